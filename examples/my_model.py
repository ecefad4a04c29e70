"""A model of your own on the command line: `build` says what a step computes, `train` runs real steps to record their zeros.

    trainyard run examples/my_model.py:build --on npu
    trainyard record examples/my_model.py:train -o run.safetensors
    trainyard run examples/my_model.py:build --on tensordash --masks run.safetensors

The zeros are those of this model: masks fit the step of the model that they were recorded from, and no other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 16


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip


def data(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))


def build(batch: int = BATCH) -> tuple[nn.Module, Tensor, Tensor, Callable[..., Tensor], torch.optim.Optimizer]:
    """Model, inputs, targets, loss and optimizer: shapes are enough, nothing is computed."""
    model = network()
    images, labels = data(batch)
    return model, images, labels, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05)


def train() -> tuple[Callable[[int], None], nn.Module]:
    """A function that trains one step, and the model: `record` calls it and notes where values are zero."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train_step(number: int) -> None:
        images, labels = data(BATCH)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return train_step, model
