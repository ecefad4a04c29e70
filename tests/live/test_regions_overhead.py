"""An overlay that moves nothing is plain training: no call replaced, no hook on a block or a tensor, a few Python calls a step."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.live.paging.regions.pages import CHECKED, RegionPages
from trainyard.mapping.overlay.policy import Choice, Problem, with_cost

HOOKS = [name for name in nn.Module().__dict__ if "hooks" in name and "state" not in name]
MOST_CALLS = 80
"""Functions that the one hook on the model's call may enter in a step, however many blocks there are: about 7 us."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def keep_all(problem: Problem, budget: int) -> Choice:
    return with_cost(problem, ["keep"] * len(problem.saved))


def step(model: nn.Module, x: Tensor) -> None:
    model(x).square().sum().backward()


def python_calls(model: nn.Module, x: Tensor) -> int:
    """Python and C functions that a training step enters."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        step(model, x)
    finally:
        sys.setprofile(before)
    return entered


def settled(model: nn.Module, x: Tensor) -> RegionPages:
    """Pages whose plan is chosen, measured and checked."""
    pages = ty.live.overlay(model, "1 GB", unit="blocks", policy=keep_all)
    assert isinstance(pages, RegionPages)
    with pages:
        while pages.passes["followed"] <= CHECKED[1]:  # the next pass is neither timed nor is its memory read
            step(model, x)
    return pages


@pytest.mark.parametrize("blocks", [4, 64])
def test_a_step_in_which_all_blocks_are_kept_is_plain_training_and_one_hook(blocks: int) -> None:
    model, x = nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(4, 1)), torch.randn(3, 4)
    step(model, x)
    plain = python_calls(model, x)
    attributes = {name: set(module.__dict__) for name, module in model.named_modules()}
    with settled(model, x) as pages:
        for _ in range(CHECKED[1] + 1):  # of a plan that is installed once more
            step(model, x)
        assert set(pages.plan.variants.values()) == {"keep"}  # type: ignore[union-attr]
        hooked = [(name, hooks) for name, module in model.named_modules() for hooks in HOOKS if getattr(module, hooks)]
        assert hooked == [("", "_forward_pre_hooks"), ("", "_forward_pre_hooks_with_kwargs")]
        added = {name: set(module.__dict__) - attributes[name] for name, module in model.named_modules()}
        assert {name for name, names in added.items() if names} <= {str(number) for number in range(blocks)}
        assert set().union(*added.values()) == {"overlaid"}
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        assert all(not parameter._backward_hooks for parameter in model.parameters())
        assert 0 < python_calls(model, x) - plain <= MOST_CALLS
    assert python_calls(model, x) == plain
