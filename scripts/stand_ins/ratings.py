"""Stand-in for MovieLens: users who like items by the product of hidden factors of low rank, and by how good an item is.

Few users and items take most of the ratings. A rating of 4 or more counts as liked, as is usual; here that is drawn directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.randomness import normal, numbered, uniform

RANK = 8
SKEW = 3.0  # place in the order of activity is a uniform value to this power: a tenth of the users give 46 % of the ratings
TASTE, QUALITY = 1.5, 1.5  # weights of the two reasons to like an item


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """(users, items, liked as 0.0 or 1.0)."""

    samples: int
    users: int = 138_493  # MovieLens 20M
    items: int = 26_744  # MovieLens 20M
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: ratings of rank {RANK} by {self.users} users of {self.items} items, for MovieLens 20M"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        samples = numbered(indices, self.device)
        user, item, draw = uniform(self.seed, 501, samples, 3).unbind(1)
        users = (user**SKEW * self.users).long().clamp(max=self.users - 1)
        items = (item**SKEW * self.items).long().clamp(max=self.items - 1)
        tastes = (normal(self.seed, 502, users, RANK) * normal(self.seed, 503, items, RANK)).sum(1) / RANK**0.5
        quality = normal(self.seed, 504, items, 1)[:, 0]
        return users, items, (draw < torch.sigmoid(TASTE * tastes + QUALITY * quality)).float()
