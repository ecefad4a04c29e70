"""The overlay by blocks on a real GPU: equal gradients, budgets kept, nothing left where nothing moves."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import Choice, Problem, with_cost

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
STEPS = 14  # seven are surveyed


def train(**options: Any) -> tuple[list[Tensor], Any, int]:
    """Gradients of all steps, the pages, and the peak of memory in the last three steps."""
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(8))
    model = nn.Sequential(*layers, nn.Linear(512, 8)).cuda()
    optimizer, gradients = torch.optim.SGD(model.parameters(), 0.01), []
    with ty.live.overlay(model, **options) if options else nullcontext() as pages:
        for step in range(STEPS):
            if step == STEPS - 3:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(torch.randn(16, 256, 512, device="cuda")).square().mean().backward()
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu())
            optimizer.step()
    return gradients, pages, torch.cuda.max_memory_allocated()


def checkpoint_all(problem: Problem, budget: int) -> Choice:
    return with_cost(problem, ["recompute"] * len(problem.saved))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.1])
def test_budgets_are_kept_and_gradients_are_those_of_plain_training(share: float) -> None:
    expected, _, most = train()
    gc.collect()
    with pytest.raises(BadInput, match="with every block checkpointed a pass takes"):
        train(budget="1 MB")
    _, pages, least = train(budget="100 GB", policy=checkpoint_all)
    assert set(pages.plan.variants.values()) == {"checkpoint"}
    del pages
    gc.collect()
    budget = int(least + max(share, 0.02) * (most - least))
    actual, pages, peak = train(budget=budget)
    assert all(map(torch.equal, actual, expected))
    assert peak <= budget
    assert not share or "keep" in pages.plan.variants.values()
