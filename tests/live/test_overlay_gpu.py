"""The live overlay on a real GPU: equal gradients, the budget kept, copies that overlap."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.mapping.overlay.policy import Choice, Decision, Problem, with_cost
from trainyard.mapping.overlay.search import ladder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


class Blocks(nn.Module):
    def __init__(self, width: int = 512, depth: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + nn.functional.dropout(down(nn.functional.gelu(up(norm(x)))), 0.1)
        return x


def train(steps: int, **options: Any) -> tuple[list[Tensor], Any, int]:
    """Gradients of all steps, the pages, and the peak of memory in the last three."""
    torch.manual_seed(0)
    model = Blocks().cuda()
    optimizer, actual = torch.optim.SGD(model.parameters(), 0.01), []
    with ty.live.overlay(model, **options) if options else nullcontext() as pages:
        for step in range(steps):
            if step == steps - 3:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
            actual.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu())
            optimizer.step()
    return actual, pages, torch.cuda.max_memory_allocated()


def always(decision: Decision) -> Any:
    def policy(problem: Problem, budget: int) -> Choice:
        return with_cost(
            problem, [decision if decision != "recompute" or one.recompute_s is not None else "send" for one in problem.saved]
        )

    return policy


@pytest.mark.parametrize("store", ["pinned", "host", "disk"])
@pytest.mark.parametrize("decision", ["keep", "send", "recompute"])
def test_gradients_are_those_of_plain_training(decision: Decision, store: str) -> None:
    expected, _, _ = train(5)
    actual, pages, _ = train(5, budget="100 GB", store=store, policy=always(decision))
    assert all(map(torch.equal, actual, expected))
    assert pages.passes["followed"] >= 2
    assert pages._shared.resident.now == 0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_peak_stays_within_the_budget(share: float) -> None:
    gc.collect()  # what earlier tests left would count as memory of the first runs
    expected, _, _ = train(12)
    _, pages, _ = train(12, budget="100 GB", policy=always("send"))
    least, most = ladder(pages.plan.problem).least, ladder(pages.plan.problem).most
    del pages  # with its model
    gc.collect()
    budget = int(least + share * (most - least))
    actual, pages, peak = train(12, budget=budget)
    assert all(map(torch.equal, actual, expected))
    assert peak <= budget
    assert {"send", "recompute"} & set(pages.plan.choice.decisions)
