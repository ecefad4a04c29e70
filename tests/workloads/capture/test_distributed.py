"""Collectives, seen on torch's fake process group: one process that believes it is one of four."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard.ir import Collective, Op, Phase, Step
from trainyard.workloads.capture import capture

RANKS = 4


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def collectives(step: Step, kind: str) -> list[Op]:
    actual = [op for op in step if isinstance(op.body, Collective) and op.body.kind == kind]
    assert all(op.body.ranks == RANKS and op.body.group == "world" for op in actual)  # type: ignore[union-attr]
    return actual


@pytest.mark.parametrize("real", [False, True])
def test_data_parallel_gradients_are_all_reduced(real: bool) -> None:
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1)
    reducer = model.reducer
    weight = model.module[0].weight
    before = weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters())
    step = capture(model, torch.randn(4, 16), loss=lambda y: y.sum(), optimizer=optimizer, real=real)
    exchanged = collectives(step, "all_reduce")
    assert sum(op.body.elements for op in exchanged) == sum(p.numel() for p in model.parameters())  # type: ignore[union-attr]
    assert {op.phase for op in exchanged} == {Phase.GRAD_WEIGHT}
    assert {op.layer for op in step if op.is_product} == {"module.0", "module.2"}
    assert len(step.only(Phase.UPDATE)) == 4
    assert step.rebatchable, step.source
    assert model.reducer is reducer
    assert model.module[0].weight is weight
    assert torch.equal(weight, before)


def test_buckets_follow_their_size() -> None:
    wide = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
    model = nn.parallel.DistributedDataParallel(wide, bucket_cap_mb=1)
    step = capture(model, torch.randn(2, 512), loss=lambda y: y.sum())
    assert [op.body.elements for op in collectives(step, "all_reduce")] == [512 * 512] * 4  # type: ignore[union-attr]
    last = max(i for i, op in enumerate(step.ops) if op.is_product)
    first = min(i for i, op in enumerate(step.ops) if isinstance(op.body, Collective))
    assert first < last, "the first bucket leaves before backward has ended"


def test_buffers_are_broadcast() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)))
    step = capture(model, torch.randn(4, 16), loss=lambda y: y.sum())
    assert sum(op.body.elements for op in collectives(step, "broadcast")) == 8 + 8 + 1  # type: ignore[union-attr]


def test_sharded_parameters_are_gathered_and_their_gradients_scattered() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    model = net()
    elements = {name: sum(p.numel() for p in model[int(name)].parameters()) for name in ("0", "2")}
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    before = [p.to_local().clone() for p in model.parameters()]
    step = capture(model, torch.randn(4, 16), loss=lambda y: y.sum(), optimizer=optimizer)
    assert "with values" in step.source
    forward = [op for op in collectives(step, "all_gather") if op.phase is Phase.FORWARD]
    assert [(op.layer, op.body.elements) for op in forward] == [("0", elements["0"]), ("2", elements["2"])]  # type: ignore[union-attr]
    again = [op for op in collectives(step, "all_gather") if op.phase is not Phase.FORWARD]
    assert sum(op.body.elements for op in again) == sum(elements.values())  # type: ignore[union-attr]
    scattered = collectives(step, "reduce_scatter")
    assert sum(op.body.elements for op in scattered) == sum(elements.values())  # type: ignore[union-attr]
    assert {op.phase for op in scattered} == {Phase.GRAD_WEIGHT}
    assert [op.letters for op in step if op.is_product] == [("A", "W"), ("A", "W"), ("G", "W"), ("G", "A"), ("G", "A")]
    updates = [op for op in step if op.name == "adamw"]
    assert sum(op.body.elements for op in updates) == sum(elements.values()) // RANKS  # type: ignore[union-attr]
    assert all(torch.equal(p.to_local(), value) for p, value in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_exchanges_that_a_step_makes_itself() -> None:
    model = net()

    def train_step(batch: int) -> None:
        model(torch.randn(batch, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        everybody = torch.empty(RANKS * 8)
        dist.all_gather_into_tensor(everybody, model[2].bias.grad)

    step = capture(train_step, model=model, batch=4)
    assert sum(op.body.elements for op in collectives(step, "all_reduce")) == sum(p.numel() for p in model.parameters())  # type: ignore[union-attr]
    (gathered,) = collectives(step, "all_gather")
    assert gathered.body.elements == RANKS * 8  # type: ignore[union-attr]


def test_functional_exchanges() -> None:
    from torch.distributed import _functional_collectives as functional

    model = net()

    def train_step(batch: int) -> None:
        x = functional.all_gather_tensor(torch.randn(batch, 16), 0, dist.group.WORLD)
        model(x + 0).sum().backward()

    step = capture(train_step, model=model, batch=2)
    (gathered,) = collectives(step, "all_gather")
    assert gathered.body.elements == RANKS * 2 * 16  # type: ignore[union-attr]
    assert step.rebatchable, step.source
    assert step.rebatch(4).macs == 2 * step.macs
