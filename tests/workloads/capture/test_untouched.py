"""The user's model, optimizer and random state are exactly as before, also when the capture fails."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainyard.errors import CaptureError
from trainyard.workloads.capture import capture


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 6)
        self.tied = nn.Linear(5, 6, bias=False)
        self.tied.weight = self.head.weight
        self.again = self.conv
        self.table = torch.arange(6)
        self.seen: list[torch.Tensor] = []
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(self.norm(self.conv(x)).flatten(2).transpose(1, 2), training=self.training)
        y, self.last = self.lstm(y)
        self.seen.append(y)
        return self.head(y[:, -1]) + self.tied(y[:, 0]) + self.table


def trained() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    model.conv.weight.register_hook(lambda gradient: gradient * 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 6, 6)).pow(2).mean().backward()
        optimizer.step()
    model.seen.clear()
    model.last = None
    return model, optimizer


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "values": copy.deepcopy(model.state_dict()),
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "identity": {
            name: (id(t), t.data_ptr()) for name, t in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
        },
        "gradient identity": {name: id(p.grad) for name, p in model.named_parameters()},
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "state identity": {id(p): {k: id(v) for k, v in s.items()} for p, s in optimizer.state.items()},
        "groups": [[id(p) for p in group["params"]] for group in optimizer.param_groups],
        "flags": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(module.__dict__) for name, module in model.named_modules()},
        "hooks": {name: (p._backward_hooks, p._post_accumulate_grad_hooks) for name, p in model.named_parameters()},
        "random": torch.get_rng_state(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def check(model: Model, optimizer: torch.optim.Optimizer, before: dict[str, Any]) -> None:
    after = snapshot(model, optimizer)
    for key in before:
        assert same(before[key], after[key]), key
    assert model.seen == []
    assert model.last is None
    assert model.tied.weight is model.head.weight
    assert all(w is ref() for w, ref in zip(model.lstm._flat_weights, model.lstm._flat_weight_refs, strict=True))
    optimizer.zero_grad()
    model(torch.randn(2, 3, 6, 6)).pow(2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("real", [False, True])
def test_a_model_capture_leaves_no_trace(real: bool) -> None:
    model, optimizer = trained()
    before = snapshot(model, optimizer)
    step = capture(
        model, torch.randn(2, 3, 6, 6, generator=torch.Generator()), loss=lambda y: y.mean(), optimizer=optimizer, real=real
    )
    assert step.rebatchable
    check(model, optimizer, before)


@pytest.mark.parametrize("real", [False, True])
def test_a_loop_leaves_no_trace(real: bool) -> None:
    model, optimizer = trained()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data = torch.randn(4, 3, 6, 6, generator=torch.Generator())

    def train_step(batch: int) -> float:
        optimizer.zero_grad()
        loss = model(data[:1].expand(batch, -1, -1, -1) + torch.randn(batch, 3, 6, 6)).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    before = snapshot(model, optimizer)
    step = capture(train_step, model=model, batch=2, real=real)
    assert step.rebatchable, step.source
    check(model, optimizer, before)
    assert schedule.last_epoch == 0


def test_a_failure_leaves_no_trace() -> None:
    model, optimizer = trained()
    before = snapshot(model, optimizer)

    def fails(output: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such loss")

    with pytest.raises(CaptureError, match="no such loss"):
        capture(model, torch.randn(2, 3, 6, 6, generator=torch.Generator()), loss=fails, optimizer=optimizer)
    check(model, optimizer, before)


@pytest.mark.parametrize("real", [False, True])
def test_a_graph_that_the_user_still_holds_survives(real: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    reference = weakref.ref(model[0].weight)
    loss = model(torch.ones(2, 4)).sum()
    capture(model, torch.randn(2, 4), loss=lambda y: y.mean(), optimizer=torch.optim.SGD(model.parameters(), 0.1), real=real)
    loss.backward()
    assert reference() is model[0].weight
    assert torch.equal(model[1].bias.grad, torch.full((2,), 2.0))


def test_parameters_that_share_memory_without_being_one_object() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    pointer = model[0].weight.data_ptr()
    step = capture(model, torch.randn(2, 4), loss=lambda y: y.mean())
    assert model[1].weight.data_ptr() == pointer == model[0].weight.data_ptr()
    assert step.macs == 5 * 2 * 16


def test_user_hooks_run_during_capture() -> None:
    model = nn.Linear(4, 4)
    devices = []
    model.weight.register_hook(lambda gradient: devices.append(gradient.device.type))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: devices.append(parameter.device.type))
    capture(model, torch.randn(2, 4), loss=lambda y: y.mean())
    assert set(devices) == {"meta"}
    devices.clear()
    model(torch.randn(2, 4)).mean().backward()
    assert devices == ["cpu", "cpu"]


def test_importing_workloads_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, trainyard.workloads.capture; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_modules_beside_the_model_are_left_as_they_were() -> None:
    net = nn.Linear(4, 4)
    average = copy.deepcopy(net).requires_grad_(False)
    statistics = nn.BatchNorm1d(4, affine=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train_step(batch: int) -> None:
        optimizer.zero_grad()
        statistics(net(torch.randn(batch, 4))).pow(3).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(value, 0.1)

    def state() -> dict[str, torch.Tensor]:
        return {f"{index}.{k}": v.clone() for index, m in enumerate((average, statistics)) for k, v in m.state_dict().items()}

    before = state()
    capture(train_step, model=net, batch=4)
    capture(net, torch.randn(4, 4), loss=lambda output: statistics(output).pow(3).mean())
    after = state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(type(p) is nn.Parameter and not p.is_meta for p in average.parameters())
