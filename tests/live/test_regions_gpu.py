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
STEPS = 100  # nineteen are surveyed, and a plan that is replayed is compared with one that is not


class Block(nn.Module):
    """Products, a norm and dropout: plain training repeats its own bits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))), 0.1)


def train(**options: Any) -> tuple[list[Tensor], Any, int]:
    """Gradients of all steps, the pages, and the peak of memory in the last three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(512, 8)).cuda()
    optimizer, gradients = torch.optim.SGD(model.parameters(), 0.01), []
    with ty.live.overlay(model, **options) if options else nullcontext() as pages:
        for step in range(STEPS):
            if step == STEPS - 3:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(torch.randn(16, 256, 512, device="cuda")).square().mean().backward()
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu())
            optimizer.step()
        hidden_bytes = 0 if pages is None else pages.hidden_bytes
    return gradients, pages, torch.cuda.max_memory_allocated() + hidden_bytes


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


@pytest.mark.parametrize("in_backward", [False, True])
def test_an_optimizer_paged_to_pinned_memory_updates_as_the_plain_one_and_holds_no_state_on_the_device(in_backward: bool) -> None:
    def parameters(*, paged: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(6)), nn.Linear(512, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        context = ty.live.paged_optimizer(optimizer, in_backward=in_backward, window="8 MiB") if paged else nullcontext()
        with context:
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(16, 64, 512, device="cuda")).square().mean().backward()
                optimizer.step()
            allocated.append(torch.cuda.memory_allocated())
        return [parameter.detach().clone() for parameter in model.parameters()]

    allocated: list[int] = []
    expected = parameters(paged=False)
    gc.collect()
    assert all(map(torch.equal, parameters(paged=True), expected))
    assert allocated[1] < allocated[0]
