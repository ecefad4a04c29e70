"""What a training step's function holds on to is as before: names, lists, attributes of objects, tensors of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainyard.errors import CaptureError
from trainyard.workloads.capture import capture
from trainyard.workloads.capture.closures import held_values

STEPS = 0
HISTORY: list[Any] = []


def pair() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 8), torch.tensor([0, 1])


@pytest.mark.parametrize("real", [False, True])
def test_lists_counters_and_tensors_of_a_closure_are_restored(real: bool) -> None:
    model, optimizer, x, y = pair()
    losses: list[float] = []
    best = {"loss": float("inf")}
    count, seen = 0, torch.zeros(3)
    average = [p.detach().clone() for p in model.parameters()]
    before = [tensor.clone() for tensor in average]
    x.requires_grad_()

    def step() -> None:
        nonlocal count
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        best["loss"] = loss.item()
        count += 1
        seen.add_(1)
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.lerp_(p, 0.5)

    capture(step, model=model, real=real)
    assert (losses, best, count) == ([], {"loss": float("inf")}, 0)
    assert torch.equal(seen, torch.zeros(3))
    assert all(torch.equal(mean, old) for mean, old in zip(average, before, strict=True))
    assert x.grad is None


def test_global_names_and_those_of_functions_that_are_called_are_restored() -> None:
    model, optimizer, x, y = pair()

    def logged(loss: torch.Tensor) -> None:
        global STEPS
        STEPS += 1
        HISTORY.append(loss.item())

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        logged(loss)

    capture(step, model=model)
    assert (STEPS, HISTORY) == (0, [])


class Loop:
    """A training loop as a class: schedule, teacher and counters are its attributes."""

    def __init__(self) -> None:
        self.model, self.optimizer, self.x, self.y = pair()
        self.teacher = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.losses: list[float] = []
        self.done, self.last = 0, None
        self.seen = torch.zeros(1)

    def step(self) -> None:
        goal = self.teacher(self.x).softmax(-1).detach()
        loss = F.cross_entropy(self.model(self.x), goal)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.done += 1
        self.seen += 1
        self.last = loss

    def __call__(self) -> None:
        self.step()


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("way", ["method", "object", "partial", "function"])
def test_a_loop_that_is_a_class_is_restored(way: str, real: bool) -> None:
    loop = Loop()
    ways: dict[str, Callable[..., Any]] = {
        "method": loop.step, "object": loop, "partial": functools.partial(Loop.step, loop), "function": lambda: loop.step(),
    }  # fmt: skip
    rate, statistics = loop.schedule.get_last_lr(), loop.teacher[1].running_mean.clone()  # type: ignore[operator]
    step = capture(ways[way], model=loop.model, real=real)
    assert step.macs >= 2 * 2 * 8 * 4
    assert (loop.losses, loop.done, loop.last) == ([], 0, None)
    assert loop.seen.item() == 0
    assert loop.schedule.get_last_lr() == rate
    assert loop.schedule.last_epoch == 0
    assert torch.equal(loop.teacher[1].running_mean, statistics)  # type: ignore[arg-type]


def test_everything_is_restored_after_a_failure() -> None:
    model, _, x, y = pair()
    losses: list[float] = []

    def step() -> None:
        losses.append(F.cross_entropy(model(x), y).item())
        raise ValueError("no data")

    with pytest.raises(CaptureError, match="no data"):
        capture(step, model=model)
    assert losses == []


def test_a_value_kept_from_one_batch_size_does_not_reach_the_next() -> None:
    model, optimizer, _, _ = pair()
    cache: dict[str, torch.Tensor] = {}

    def step(batch: int) -> None:
        x = cache.setdefault("noise", torch.randn(batch, 8))
        assert x.shape[0] == batch
        model(x).sum().backward()
        optimizer.step()

    assert capture(step, model=model, batch=10).rebatchable
    assert cache == {}


def test_held_values_are_those_of_names_attributes_and_arguments() -> None:
    loop = Loop()
    held = held_values(functools.partial(loop.step, extra := object()))
    assert any(value is extra for value in held)
    assert any(value is loop.teacher for value in held)
    assert held_values(len) == held_values(None) == []
