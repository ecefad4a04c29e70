"""Expert parallelism on nodes: any graph of links, time that grows with imbalance, and assumptions that are shown."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from tests.mapping.parallel.mixtures import Sizes, captured

import trainyard as ty
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Step, assumptions_of
from trainyard.machines.presets.mcdla import DEVICE
from trainyard.mapping.algorithms import ModelAveraging
from trainyard.mapping.parallel.experts import ExpertParallel
from trainyard.systems.node.systems import DeviceCentric, HostCentric, MemoryCentric, Node, Wired
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane
from trainyard.systems.single import Single

SIZES = Sizes(experts=16, width=256, hidden=512, top=2, length=64)


@lru_cache
def step(batch: int = 16) -> Step:
    return captured(batch, SIZES)


def star(devices: int) -> Topology:
    """All devices on one switch."""
    places = (*(Place(name=f"D{number}", kind="device") for number in range(devices)), Place(name="X0", kind="switch"))
    return Topology(places=places, wires=tuple(Wire(a=f"D{n}", b="X0", bytes_per_s=25e9) for n in range(devices)), name="star")


def node(kind: type[Node] = MemoryCentric, *, devices: int = 8, plan: dict[str, Any] | None = None, **fields: Any) -> Node:
    shared = {"device": DEVICE, "devices": devices, "overlay": "off", "parallel": "expert", "experts": ExpertParallel(**plan or {})}
    return kind(**shared | fields)


NODES = [
    (MemoryCentric, {}), (DeviceCentric, {}), (HostCentric, {}), (MemoryCentric, {"shape": "folded"}),
    (MemoryCentric, {"contention": True}), (MemoryCentric, {"overlay": "all"}), (MemoryCentric, {"fold": False}),
    (Plane, {"devices": 16}), (Cluster, {"devices": 16}), (Wired, {"graph": star(8), "collectives": "auto"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), NODES, ids=lambda part: getattr(part, "__name__", str(part)[:40]))
def test_time_grows_with_imbalance_on_every_graph_and_rows_are_conserved(kind: type[Node], fields: dict[str, Any]) -> None:
    results = [ty.run(step(), node(kind, plan={"imbalance": imbalance}, **fields)) for imbalance in (1.0, 1.25, 1.5, 2.0)]
    assert all(before.time_s < after.time_s for before, after in pairwise(results))
    assert {result.macs for result in results} == {step().macs}
    assert {result.traffic_bytes["link"] for result in results} == {results[0].traffic_bytes["link"]}
    assert len({round(result.energy_j, 9) for result in results}) == 1
    assert results[0].samples == step().batch


def test_a_capacity_bounds_the_time_of_an_imbalance_and_says_what_it_drops() -> None:
    free, bound, balanced = (
        ty.run(step(), node(plan=plan)) for plan in ({"imbalance": 2.0}, {"imbalance": 2.0, "capacity_factor": 1.25}, {})
    )
    assert balanced.time_s < bound.time_s < free.time_s
    assert bound.time_s == ty.run(step(), node(plan={"imbalance": 1.25})).time_s
    assert any("9.4% of the experts' rows exceed the capacity_factor" in note for note in bound.notes)
    assert not any("capacity_factor" in note for note in free.notes)
    assert bound.macs < step().macs


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rows_on_a_switch_take_the_time_of_the_bytes_that_leave_a_device(ranks: int) -> None:
    """tokens x top-k x width x 4 bytes x (n - 1)/n over one wire, four times, besides latencies; replicas have their own wires."""
    rows = ty.run(step(), node(Wired, graph=star(8), collectives="auto", plan={"ranks": ranks})).to_frame()
    exchanged = rows[rows["op"] == "all_to_all"]
    size = step().batch // 8 * SIZES.length * SIZES.top * SIZES.width * 4
    least_s = 4 * size * (ranks - 1) / ranks / 25e9
    assert len(exchanged) == 4
    assert least_s < exchanged["busy_s"].sum() < 1.2 * least_s


def test_one_device_is_the_device_alone_and_one_rank_is_data_parallelism() -> None:
    alone = node(devices=1)
    assert ty.run(step(), alone).time_s == ty.run(step(), Single(device=DEVICE)).time_s
    assert ty.run(step(), node(plan={"ranks": 1})).time_s == ty.run(step(), node(parallel="data")).time_s


def test_imbalance_and_capacity_are_assumptions_that_only_this_layout_uses() -> None:
    expert, data = node(), node(parallel="data")
    names = {"experts.imbalance", "experts.capacity_factor"}
    for machine, unused in ((expert, False), (data, True), (node(plan={"ranks": 1}), True)):
        found = {a.name: a for a in assumptions_of(machine, step()) if a.name in names}
        assert found.keys() == names
        assert {a.unused for a in found.values()} == {unused}
    shown = {assumption.name for assumption in ty.run(step(), expert).assumptions}
    assert names <= shown


def test_the_layout_is_named_on_the_command_line_as_others_are() -> None:
    by_name = ty.run(step(), "mcdla-b(overlay=off,experts.imbalance=1.5)", parallel="expert")
    whole = ty.run(step(), "mcdla-b(overlay=off,parallel=expert,experts.imbalance=1.5,experts.ranks=8)")
    assert by_name.time_s == whole.time_s
    assert by_name.time_s > ty.run(step(), "mcdla-b(overlay=off,parallel=expert)").time_s


def test_what_expert_parallelism_does_not_go_with_is_refused() -> None:
    with pytest.raises(BadInput, match="zero=1"):
        ty.run(step(), node(zero=1))
    with pytest.raises(NotModelled, match="parallel='data'"):
        ty.run(step(), node(algorithm=ModelAveraging(period=4)))
    with pytest.raises(BadInput, match="does not divide over 8 devices"):
        ty.run(step().rebatch(12), node())
    with pytest.raises(BadInput, match="no grouped products"):
        ty.run("bert-tiny", replace(node()), batch=16)
