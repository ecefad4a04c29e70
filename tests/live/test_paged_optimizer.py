"""Optimizer state in a second memory: the same parameters as with the plain optimizer, bit for bit, and everything given back."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput

OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
}


class Run:
    """Some steps of a small model, with two groups of parameters and a scheduler."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        first, *rest = self.model.parameters()
        self.optimizer = OPTIMIZERS[name]([{"params": [first], "lr": 0.02}, {"params": rest}])
        self.random = torch.Generator().manual_seed(1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def train(self, steps: int = 5, micro: int = 1) -> list[Tensor]:
        for _ in range(steps):
            self.optimizer.zero_grad()
            for _ in range(micro):
                self.model(torch.randn(4, 8, generator=self.random)).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def same(actual: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"in_backward": True}, {"window": 1}], ids=str)
def test_parameters_are_those_of_the_plain_optimizer_inside_and_afterwards(name: str, options: dict[str, Any]) -> None:
    plain, paged = Run(name), Run(name)
    expected = [*plain.train(2), *plain.train(5), *plain.train(2)]
    actual, step = paged.train(2), paged.optimizer.__dict__.get("step")  # state from before is taken over
    with ty.live.paged_optimizer(paged.optimizer, "host", **options) as pages:
        actual += paged.train(5)
        held = [tensor for state in paged.optimizer.state.values() for tensor in state.values()]
        assert not held
        assert pages.updates == 5 * 6
    assert same([*actual, *paged.train(2)], expected)
    assert paged.optimizer.__dict__.get("step") is step


def test_large_state_is_in_the_store_between_steps() -> None:
    run = Run("AdamW")
    with ty.live.paged_optimizer(run.optimizer, "host") as pages:
        run.train(2)
        large = [parameter for parameter in run.model.parameters() if parameter.nbytes >= 256]
        assert len(large) == 2
        for parameter in large:
            paged = pages._state[parameter]
            assert set(paged) == {"exp_avg", "exp_avg_sq"}
            assert all(one.tensor is None and one.ticket is not None for one in paged.values())
    assert len(run.optimizer.state) == 6


def test_gradients_are_accumulated_and_counted_as_in_plain_training() -> None:
    plain, paged = Run("AdamW"), Run("AdamW")
    with ty.live.paged_optimizer(paged.optimizer, "host"):
        actual = paged.train(3, micro=2)
    assert same(actual, plain.train(3, micro=2))


def test_updates_in_backward_free_gradients_and_go_well_with_an_overlay() -> None:
    plain, paged = Run("AdamW"), Run("AdamW")
    overlay = ty.live.overlay(paged.model, "1 GB", unit="tensors")
    with overlay, ty.live.paged_optimizer(paged.optimizer, "host", in_backward=True):
        actual = paged.train(4)
        paged.model(torch.randn(4, 8)).sum().backward()
        assert all(parameter.grad is None for parameter in paged.model.parameters())
    assert same(actual, plain.train(4))


def test_state_dict_inside_the_block_is_that_of_the_plain_optimizer_and_training_goes_on() -> None:
    plain, paged = Run("AdamW"), Run("AdamW")
    expected = plain.train(2)
    wanted = plain.optimizer.state_dict()
    with ty.live.paged_optimizer(paged.optimizer, "host") as pages:
        assert same(paged.train(2), expected)
        document = pages.state_dict()
        assert document["param_groups"] == wanted["param_groups"]
        for number, state in wanted["state"].items():
            assert all(torch.equal(document["state"][number][name], value) for name, value in state.items())
        assert same(paged.train(2), plain.train(2))


def test_state_returns_after_an_error_in_backward() -> None:
    run = Run("AdamW")

    def fail(gradient: Tensor) -> None:
        raise ValueError("stop")

    def train() -> None:
        with ty.live.paged_optimizer(run.optimizer, "host", in_backward=True):
            run.train(2)
            result = run.model[:2](torch.randn(4, 8))
            result.register_hook(fail)
            run.model[2:](result).sum().backward()

    with pytest.raises(ValueError, match="stop"):
        train()
    assert all(set(state) == {"step", "exp_avg", "exp_avg_sq"} for state in run.optimizer.state.values())
    run.train(1)


@pytest.mark.parametrize("case", ["twice", "LBFGS", "window"])
def test_bad_input_is_refused(case: str) -> None:
    run = Run("AdamW")
    with ty.live.paged_optimizer(run.optimizer, "host") if case == "twice" else nullcontext():
        optimizer = torch.optim.LBFGS(run.model.parameters()) if case == "LBFGS" else run.optimizer
        message = {"twice": "already paged", "LBFGS": "does not update each parameter by itself", "window": "window"}[case]
        with pytest.raises(BadInput, match=message):
            ty.live.paged_optimizer(optimizer, "host", window="many" if case == "window" else 1).__enter__()
