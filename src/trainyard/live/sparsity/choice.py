"""Exact choices: the largest k of many scores, and a whole number shared out in proportion. Ties go to the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from trainyard.errors import BadInput


def largest(scores: Tensor, count: int) -> Tensor:
    """True at exactly `count` of the largest scores; of equal ones, at those that come first.

    >>> largest(torch.tensor([3.0, 1.0, 3.0, 3.0]), 2)
    tensor([ True, False,  True, False])
    """
    if not 0 <= count <= scores.numel():
        raise BadInput(f"cannot choose {count} of {scores.numel()} scores")
    flat = scores.detach().flatten()
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()  # exact, and ranked on every device
    if bool(flat.isnan().any()):
        raise BadInput("weights or gradients are NaN, so there is no largest among them: training has diverged")
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = flat.kthvalue(flat.numel() - count + 1).values  # linear in time; sorting is not needed
    chosen = flat > threshold
    ties = (flat == threshold).nonzero().flatten()
    chosen[ties[: count - int(chosen.sum())]] = True
    return chosen.view(scores.shape)


def share_out(total: int, shares: Sequence[float], room: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `shares` that sum to `total`, none above its room, by largest remainder.

    What a full one cannot take goes to the others in the same proportion; without any share left, by room.

    >>> share_out(10, [1.0, 1.0, 2.0], [9, 9, 9]), share_out(10, [1.0, 1.0, 2.0], [9, 9, 2])
    ([3, 2, 5], [4, 4, 2])
    """
    if not 0 <= total <= sum(room):
        raise BadInput(f"cannot share out {total} among places for {sum(room)}")
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        raise BadInput(f"shares must be finite and at least 0, got {list(shares)}: has training diverged?")
    counts = [0] * len(room)
    waiting = [i for i, free in enumerate(room) if free]
    exact = [Fraction(share) for share in shares]
    while waiting:
        remaining = total - sum(counts)
        if not any(exact[i] for i in waiting):
            exact = [Fraction(free) for free in room]
        share_sum = sum((exact[i] for i in waiting), Fraction(0))
        quota = {i: remaining * exact[i] / share_sum for i in waiting}
        full = [i for i in waiting if quota[i] >= room[i]]
        for i in full:
            counts[i] = room[i]
        waiting = [i for i in waiting if i not in full]
        if not full:
            for i in waiting:
                counts[i] = int(quota[i])
            by_remainder = sorted(waiting, key=lambda i: int(quota[i]) - quota[i])
            for i in by_remainder[: total - sum(counts)]:
                counts[i] += 1
            break
    return counts


def random_places(free: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """True at `count` of the places that are free. Drawn on the CPU, so that every device gets the same ones."""
    free_indices = free.flatten().nonzero().flatten()
    chosen = torch.zeros(free.numel(), dtype=torch.bool, device=free.device)
    chosen_indices = torch.randperm(free_indices.numel(), generator=generator)[:count]
    chosen[free_indices[chosen_indices.to(free.device)]] = True
    return chosen.view(free.shape)
