"""Cases that go wrong in every way that the harness of coverage must survive; used by test_coverage_harness."""

from __future__ import annotations

import os
import time

import torch
from coverage_cases.case import Case, Training
from torch import nn


def linear() -> Training:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training(model, torch.randn(3, 4), torch.randn(3, 2), loss=nn.functional.mse_loss, optimizer=optimizer)


def crashing() -> Training:
    os._exit(7)


def hanging() -> Training:
    time.sleep(3600)
    return linear()


def greedy() -> Training:
    torch.empty(1 << 40, dtype=torch.uint8).fill_(1)
    return linear()


def unbuildable() -> Training:
    raise ValueError("no such width")


class Untrainable(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.zeros(5, 7)  # shapes that do not fit


def untrainable() -> Training:
    model = Untrainable(4, 2)
    return Training(model, torch.randn(3, 4), torch.randn(3, 2), loss=nn.functional.mse_loss)


def cases() -> list[Case]:
    builders = (linear, crashing, hanging, greedy, unbuildable, untrainable)
    return [Case("benchmarks.failing_cases", build.__name__, build) for build in builders]
