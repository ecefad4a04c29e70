"""Losses, optimizers and batches that several language models and recommenders share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def token_batch(batch: int, sequence: int, vocabulary: int) -> Tensor:
    """Random token numbers; on the meta device only their shape exists."""
    return torch.randint(vocabulary, (batch, sequence))


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over every position of every sequence: logits (batch, sequence, vocabulary), targets (batch, sequence)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# foreach=False: one update per parameter tensor, so that a capture sees each of them.
def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, foreach=False)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, foreach=False)


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """No momentum, hence no state beside the parameters."""
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)
