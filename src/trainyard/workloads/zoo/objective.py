"""Losses, optimizers and batches that several language models and recommenders share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe


def token_batch(batch: int, sequence: int, vocabulary: int) -> Tensor:
    """Random token numbers; on the meta device only their shape exists."""
    return torch.randint(vocabulary, (batch, sequence))


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over every position of every sequence: logits (batch, sequence, vocabulary), targets (batch, sequence)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def token_recipe(
    model: Callable[[], nn.Module],
    vocabulary: int,
    inputs: Sequence[int],
    targets: int,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> Recipe:
    """A model that reads token sequences of lengths `inputs` and predicts `targets` tokens."""
    return Recipe(
        model=model,
        inputs=lambda batch: tuple(token_batch(batch, length, vocabulary) for length in inputs),
        targets=lambda batch: (token_batch(batch, targets, vocabulary),),
        loss=token_cross_entropy,
        optimizer=optimizer,
    )


# foreach=False: one update per parameter tensor, so that a capture sees each of them.
def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, foreach=False)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, foreach=False)


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """No momentum, hence no optimizer state."""
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)
