"""Steps that were captured on a process group, on systems of several devices: their own exchanges on the system's wires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import trainyard as ty
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.collectives.ring import exchange
from trainyard.ir import Collective, Copy, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.machines.presets.mcdla import DEVICE
from trainyard.mapping.parallel.captured import COPY_IN, COPY_OUT, ahead
from trainyard.systems.node import captured
from trainyard.systems.node.systems import DeviceCentric, MemoryCentric, Node
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane, Switched
from trainyard.systems.scale_out.replicas import Replicas

SIZE = 1_000_000  # elements of what is exchanged
NODE = MemoryCentric(device=DEVICE, overlay="off")


def script(*bodies: Collective, world: int = 8, replicas: int = 8, reads: bool = True) -> Step:
    """A product, exchanges of its result one after the other, and a product that reads the last of them, or the first product's."""
    tensors = [TensorSpec((1000, 1000), role=Role.PARAMETER), TensorSpec((1000, 1000), role=Role.INPUT), TensorSpec((1000, 1000))]
    ops = [Op(body=MatMul(1000, 1000, 1000), name="first", layer="a", inputs=(1, 0), outputs=(2,))]
    last = 2
    for body in bodies:
        tensors.append(TensorSpec((1000, 1000)))
        ops.append(Op(body=body, name=body.kind, layer="a", inputs=(last,), outputs=(len(tensors) - 1,)))
        last = len(tensors) - 1
    tensors.append(TensorSpec((1000, 1000)))
    inputs = (last if reads else 2, 0)
    ops.append(Op(body=MatMul(1000, 1000, 1000), name="second", layer="b", inputs=inputs, outputs=(len(tensors) - 1,)))
    return Step("script", 4, tuple(ops), tuple(tensors), world=world, replicas=replicas)


def sync(step: Step, node: Any) -> float:
    return float(ty.run(step, node).by_class["synchronisation"].busy_s)


def group(kind: str, *members: int, elements: int = SIZE) -> Collective:
    return Collective(kind, elements, len(members), ",".join(map(str, members)))  # type: ignore[arg-type]


# ---- who may run it
def test_a_step_of_two_ranks_is_captured_and_of_one_is_not() -> None:
    assert captured.is_captured(script(Collective("all_reduce", SIZE, 2), world=2, replicas=2))
    assert not captured.is_captured(script(world=1, replicas=1))


def test_a_captured_step_needs_as_many_devices_as_ranks() -> None:
    step = script(Collective("all_reduce", SIZE, 8))
    with pytest.raises(
        BadInput, match=r"captured on 8 ranks, MemoryCentric has 4 devices: write devices=8, as in mcdla-b\(devices=8\)"
    ):
        ty.run(step, replace(NODE, devices=4))
    with pytest.raises(BadInput, match=r"leave parallel='model' out"):
        ty.run(step, NODE, parallel="model")
    with pytest.raises(BadInput, match=r"leave parallel='data' out"):
        ty.run(step, "mcdla-b", parallel="data")
    with pytest.raises(BadInput, match="leave parallel=model out"):
        ty.run(step, replace(NODE, parallel="model"))
    with pytest.raises(BadInput, match="leave zero=2 out"):
        ty.run(step, replace(NODE, zero=2))
    with pytest.raises(NotModelled, match="a single device has no links"):
        ty.run(step, DEVICE)
    with pytest.raises(NotModelled, match="parallel='pipeline'"):
        ty.run(script(group("send", 0, 4)), NODE)


def test_samples_are_those_of_the_ranks_that_have_their_own() -> None:
    for replicas in (1, 2, 8):
        result = ty.run(script(Collective("all_reduce", SIZE, 8), replicas=replicas), NODE)
        assert (result.samples, result.batch) == (4 * replicas, 4)
        assert any("SPMD" in note for note in result.notes)
        assert result.macs == 8 * 2 * 10**9, "every device does it all"


# ---- when it waits
def test_only_ops_that_read_an_exchange_wait_for_it() -> None:
    body = Collective("all_reduce", SIZE, 8)
    waits, free = (ty.run(script(body, reads=reads), NODE) for reads in (True, False))
    exchanged = NODE.collective("all_reduce", 4 * SIZE).time_s
    compute = waits.by_class["compute"].busy_s
    assert waits.time_s == pytest.approx(compute + exchanged, rel=1e-9), "not one picosecond earlier"
    assert free.time_s == pytest.approx(max(compute, compute / 2 + exchanged), rel=1e-9)


def test_exchanges_run_one_after_another_in_the_order_of_issue() -> None:
    body = Collective("all_gather", SIZE, 8)
    one, two = (sync(script(*[body] * count, reads=False), NODE) for count in (1, 2))
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize("node", [NODE, DeviceCentric(device=DEVICE), replace(NODE, overlay="all", contention=True)])
@pytest.mark.parametrize("members", [(0, 1, 2, 3), (0, 4)])
def test_a_folded_plan_equals_the_plan_of_all_devices(node: Node, members: tuple[int, ...]) -> None:
    step = script(group("all_reduce", *members), group("all_gather", *range(8)))
    folded, unfolded = ty.run(step, node), ty.run(step, replace(node, fold=False))
    assert folded.time_s == pytest.approx(unfolded.time_s, rel=1e-6)
    assert folded.energy_j == pytest.approx(unfolded.energy_j, rel=1e-6)
    assert folded.traffic_bytes == unfolded.traffic_bytes


# ---- over which wires
@pytest.mark.parametrize(
    "node",
    [
        NODE,
        DeviceCentric(device=DEVICE, overlay="off"),
        Switched(device=DEVICE, devices=8, overlay="off"),
        Plane(device=DEVICE, devices=8, overlay="off"),
        Replicas(device=DEVICE, devices=8, link="25 GB/s"),
    ],
    ids=lambda node: type(node).__name__,
)
def test_a_group_of_all_ranks_equals_the_plain_collective_and_parts_take_bounded_time(node: Any) -> None:
    """The law of the whole holds for a group that is named by its ranks; a part of it takes some time, and all parts the same."""
    whole = sync(script(Collective("all_reduce", SIZE, 8)), node)
    assert sync(script(group("all_reduce", *range(8))), node) == whole
    for members in ((0, 1), (0, 2, 4, 6), (0, 1, 2, 3)):
        part = sync(script(group("all_reduce", *members)), node)
        assert 0 < part < 8 * whole
        assert sync(script(group("all_reduce", *members, elements=2 * SIZE)), node) > part
    with pytest.raises(NotModelled, match="SPMD"):
        sync(script(group("all_reduce", 0, 1, 2)), node)


def test_a_group_on_switches_takes_the_same_time_whatever_its_members() -> None:
    node = Switched(device=DEVICE, devices=8, overlay="off")
    times = {sync(script(group("all_gather", *members)), node) for members in ((0, 1, 2, 3), (0, 2, 4, 6))}
    assert len(times) == 1


def test_a_cluster_exchanges_inside_a_node_or_across() -> None:
    cluster = Cluster(device=DEVICE, devices=16, devices_per_node=8, overlay="off")
    inside = script(group("all_reduce", *range(8)), world=16)
    assert sync(inside, cluster) == pytest.approx(sync(script(Collective("all_reduce", SIZE, 8)), cluster.inside))
    across = sync(script(group("all_reduce", 0, 8), world=16), cluster)
    # 8 pairs over 4 cards of 12 GB/s: each card carries all bytes of two pairs, there and back
    assert across == pytest.approx(2 * 4 * SIZE / cluster.card_bytes_per_s, rel=0.05)
    with pytest.raises(NotModelled, match="inner axis divides a node"):
        sync(script(group("all_reduce", *range(0, 16, 3)), world=16), cluster)


def test_an_all_to_all_needs_no_switch() -> None:
    assert sync(script(group("all_to_all", *range(8))), NODE) > 0
    assert sync(script(group("all_to_all", 0, 1, 2, 3)), Plane(device=DEVICE, devices=8, overlay="off")) > 0


def test_groups_on_one_ring_of_links() -> None:
    """Replicas: every group passes every link; the longest three steps of 1, 1, 1, 5 links in a row are 7."""
    sent, hops = captured.ring_exchange(group("all_gather", 0, 1, 2, 3, elements=8), 8, devices=8)
    assert (sent.elements, sent.links, hops) == (2 * exchange("all_gather", 8, 4).elements, 8, 7)
    node = Replicas(device=DEVICE, devices=8, link="1 GB/s", link_latency="1 us")
    assert sync(script(group("all_gather", 0, 1, 2, 3)), node) == pytest.approx(7e-6 + 2 * 3 * SIZE / 1e9, rel=1e-6)
    whole, hops = captured.ring_exchange(Collective("all_reduce", SIZE, 8), 4 * SIZE, devices=8)
    assert (whole, hops) == (exchange("all_reduce", 4 * SIZE, 8), 14)


# ---- FSDP2's gathers of forward
def gathered(layers: int) -> Step:
    """Copy in, gather, copy out, compute: layer after layer."""
    tensors, ops = [TensorSpec((8, 8), role=Role.INPUT)], []
    x = 0
    for layer in range(layers):
        first = len(tensors)
        tensors += [
            TensorSpec((8,), role=Role.PARAMETER),
            TensorSpec((8,)),
            TensorSpec((64,)),
            TensorSpec((8, 8)),
            TensorSpec((8, 8)),
        ]
        shard, sent, all_of_it, weight, y = range(first, first + 5)
        path = f"{layer}"
        ops += [
            Op(body=Copy("all_gather_copy_in", 8), name=COPY_IN, layer=path, inputs=(shard,), outputs=(sent,)),
            Op(body=Collective("all_gather", 64, 8), name="gather", layer=path, inputs=(sent,), outputs=(all_of_it,)),
            Op(body=Copy("split_with_sizes_copy", 64), name=COPY_OUT, layer=path, inputs=(all_of_it,), outputs=(weight,)),
            Op(body=MatMul(8, 8, 8), name="mm", layer=path, inputs=(x, weight), outputs=(y,)),
        ]
        x = y
    return Step("gathered", 8, tuple(ops), tuple(tensors), world=8, replicas=8)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_next_gather_starts_before_the_present_layer_computes(layers: int) -> None:
    step = gathered(layers)
    moved = ahead(step)
    names = [(op.name, op.layer) for op in moved.ops]
    for layer in range(layers - 1):
        assert names.index(("gather", f"{layer + 1}")) < names.index(("mm", f"{layer}"))
        assert names.index((COPY_OUT, f"{layer}")) < names.index((COPY_IN, f"{layer + 1}")), "one ahead, not all"
    before, after = (_waits(one) for one in (step, moved))
    assert before == after
    assert (moved is step) == (layers == 1)
    later = replace(step, ops=tuple(replace(op, phase=Phase.GRAD_INPUT) for op in step.ops))
    assert ahead(later) is later, "backward is issued as FSDP2 issues it"


def _waits(step: Step) -> set[tuple[tuple[str, str], frozenset[tuple[str, str]]]]:
    names = [(op.name, op.layer) for op in step.ops]
    return {(name, frozenset(names[before] for before in waits)) for name, waits in zip(names, step.dependencies, strict=True)}


def test_gathers_hide_behind_compute() -> None:
    node = replace(NODE, link_bytes_per_s=25e9)
    step = gathered(4)
    in_order = sum(ty.run(step, node).by_class[kind].busy_s for kind in ("compute", "synchronisation"))
    assert ty.run(step, node).time_s < in_order


def test_parameters_kept_for_backward_are_no_feature_maps() -> None:
    """`reshard_after_forward=False`: what was gathered stays, an overlay does not take it for something that forward made."""
    whole = gathered(2)
    x, weight = 5, 9  # the first layer's result and the second one's weight
    tensors = (*whole.tensors, TensorSpec((8, 8), role=Role.GRADIENT), TensorSpec((8, 8), role=Role.PARAMETER_GRADIENT))
    tensors = (*tensors, TensorSpec((8, 8), role=Role.GRADIENT))
    back = [
        Op(body=MatMul(8, 8, 8), name="mm", layer="1", phase=Phase.GRAD_INPUT, inputs=(10, weight), outputs=(11,)),
        Op(body=MatMul(8, 8, 8), name="mm", layer="1", phase=Phase.GRAD_WEIGHT, inputs=(x, 10), outputs=(12,)),
        Op(body=MatMul(8, 8, 8), name="mm", layer="0", phase=Phase.GRAD_INPUT, inputs=(11, 4), outputs=(13,)),
    ]
    step = replace(whole, ops=(*whole.ops, *back), tensors=tensors)
    paged = ty.run(step, replace(NODE, overlay="all", recompute="none")).peak_memory_bytes["remote memory"]
    assert paged == tensors[x].bytes  # the last result is read again at once
