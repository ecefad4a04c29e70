"""Nodes, task by task: nothing is read while it is away, freed while it is used, or held beyond a capacity; pools balance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.systems.node.networks import CHAIN, DEEP, DESIGNS, DEVICE, SLOW, chain, changed, moved

import trainyard as ty
from trainyard import engine
from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput
from trainyard.hardware.memory_node.board import MemoryNode, Unit
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Step
from trainyard.systems import Cluster, Plane, Switched, Wired
from trainyard.systems.node.plan import Planner, one_device
from trainyard.systems.node.systems import Node


def faults(node: Node, step: Step) -> Iterator[str]:
    """Every op's inputs must be there from its start to its end, by the tasks that bring, make and free them."""
    planner = Planner(node, one_device(node, step), None)
    timeline = engine.run(planner.plan())
    position = {op: number for number, work in enumerate(planner.works) for op in work.ops}
    entries: dict[int, list[int]] = {}
    for index, bases in enumerate(planner.paging.paged_step.tensor_groups):
        for base in bases:
            entries.setdefault(base, []).append(index)
    for copy, tasks in enumerate(planner.tasks):
        for op, task in tasks.items():
            start, end = timeline.starts_ps[planner.begun.get(op, task)], timeline.ends_ps[task]
            for base in map(planner.step.base, planner.step.ops[op].inputs):
                for index in entries.get(base, ()):
                    if not planner.paging.paged_step.resident[index]:
                        yield from _absent(planner, timeline, copy, index, position[op], int(start), int(end))
        yield from _unready(planner, timeline, copy)
        yield from _unbooked(planner, timeline, copy)
    for number, pool in enumerate(timeline.pools):
        held = timeline.memory(number)[1]
        if held.min() < 0 or held[-1] != pool.resident_bytes:
            yield f"{pool.name} ends with {held[-1]} bytes, begins with {pool.resident_bytes}"
        if node.overlay == "as_needed" and pool.name.startswith("device") and held.max() > (node.capacity_bytes or 0):
            yield f"{pool.name} holds {held.max()} bytes"


def _absent(planner: Planner, timeline: Timeline, copy: int, index: int, at: int, start: int, end: int) -> Iterator[str]:
    paging, ends = planner.paging, timeline.ends_ps
    one, decision = paging.problem.saved[index], paging.choice.decisions[index]
    if at <= one.last_forward:
        gone = paging.out[copy].get(index, paging._task(one.last_forward, copy))
        if decision != "keep" and ends[gone] < end:
            yield f"{one.name} is gone while position {at} reads it"
        return
    if decision == "send" and ends[paging.back[copy][index]] > start:
        yield f"{one.name} is not back when position {at} starts"
    if decision == "recompute" and ends[paging.recomputed[copy][index][1]] > start:
        yield f"{one.name} is not made again when position {at} starts"
    if ends[paging._task(paging.needed.last[index], copy)] < end:
        yield f"{one.name} is freed while position {at} reads it"


def _unbooked(planner: Planner, timeline: Timeline, copy: int) -> Iterator[str]:
    """What is made again takes memory from then to its last use."""
    paging, events = planner.paging, {(int(task), int(size)) for task, _, size in timeline.memory_events}
    for index, (first, _) in paging.recomputed[copy].items():
        tensor = paging.problem.saved[index]
        if not paging.paged_step.resident[index] and (first, tensor.bytes) not in events:
            yield f"{tensor.name} takes no memory when it is made again"


def _unready(planner: Planner, timeline: Timeline, copy: int) -> Iterator[str]:
    paging, starts, ends = planner.paging, timeline.starts_ps, timeline.ends_ps
    for index, (first, _) in paging.recomputed[copy].items():
        for source in paging.problem.saved[index].sources:
            ready = paging.back[copy].get(source, paging.recomputed[copy].get(source, (0, -1))[1])
            if ready >= 0 and ends[ready] > starts[first]:
                yield f"{paging.problem.saved[index].name} is made again before its source is there"
    for index, back in paging.back[copy].items():
        out = paging.out[copy].get(index)
        if out is not None and not paging.problem.saved[index].wraps and ends[out] > starts[back]:
            yield f"{paging.problem.saved[index].name} comes back before it has left"


@pytest.mark.parametrize("model", ["resnet18", "alexnet", "bert-tiny", "lstm-1"])
@pytest.mark.parametrize("parallel", ["data", "model", "mixed"])
@pytest.mark.parametrize("name", ["dc", "b"])
def test_every_tensor_is_in_memory_when_it_is_read(model: str, parallel: str, name: str) -> None:
    assert not list(faults(changed(DESIGNS[name], parallel=parallel), ty.zoo.load(model, batch=16)))


@pytest.mark.parametrize("kind", ["weights", "state", "all"])
@pytest.mark.parametrize("contention", [False, True])
def test_weights_and_state_are_in_memory_when_read_under_contention_too(kind: str, contention: bool) -> None:
    assert not list(faults(changed(DESIGNS["b"], moved=kind, contention=contention), ty.zoo.load("bert-tiny", batch=16)))


@pytest.mark.parametrize("parallel", ["data", "model", "mixed"])
@pytest.mark.parametrize("share", [0.7, 0.9])
def test_a_capacity_holds_under_every_parallelism(parallel: str, share: float) -> None:
    """Exchanges take and give back memory too, and may not run ahead."""
    plain = ty.run(DEEP, on=changed(DESIGNS["b"], overlay="off", parallel=parallel)).peak_memory_bytes["device memory"]
    node = changed(DESIGNS["b"], parallel=parallel, overlay="as_needed", capacity_bytes=int(plain * share))
    assert not list(faults(node, DEEP))


def of_own(wires: list[Wire], *memory_bytes_per_s: float, switch: bool = False, **changes: Any) -> Wired:
    """Two devices on a ring of their own, each with a memory."""
    places = [Place(name="D0", kind="device"), Place(name="D1", kind="device")]
    places += [Place(name="X", kind="switch")] if switch else []
    places += [
        Place(name=f"M{i}", kind="memory", memory_bytes_per_s=rate, serves=(f"D{i}",)) for i, rate in enumerate(memory_bytes_per_s)
    ]
    between = [Wire(a="D0", b="D1", bytes_per_s=20e6)] * 2
    return Wired(graph=Topology(places=tuple(places), wires=(*between, *wires)), device=DEVICE, page_bytes=256, **changes)


@pytest.mark.parametrize(
    "node",
    [
        of_own([Wire(a="D0", b="M0", bytes_per_s=10e6), Wire(a="D1", b="M1", bytes_per_s=20e6)], 20e6, 10e6),
        of_own(
            [
                Wire(a="D0", b="M0", bytes_per_s=10e6),
                Wire(a="D1", b="X", bytes_per_s=10e6),
                Wire(a="X", b="M1", bytes_per_s=10e6),
            ],
            1e9,
            1e9,
            switch=True,
        ),
        of_own([Wire(a=f"D{i}", b=f"M{i}", bytes_per_s=rate) for i in (0, 1) for rate in (10e6, 30e6)], 1e9, 1e9),
    ],
    ids=["wires against memory", "through a switch", "uneven lanes"],
)
def test_devices_that_differ_are_not_folded_into_one(node: Wired) -> None:
    folded, unfolded = ty.run(CHAIN, on=node), ty.run(CHAIN, on=replace(node, fold=False))
    assert folded.time_s == pytest.approx(unfolded.time_s, rel=1e-5)
    assert folded.energy_j == pytest.approx(unfolded.energy_j)


def test_lanes_of_unequal_rate_carry_bytes_in_proportion() -> None:
    """10 and 30 MB/s side by side are as fast as two of 20."""
    uneven = [Wire(a=f"D{i}", b=f"M{i}", bytes_per_s=rate) for i in (0, 1) for rate in (10e6, 30e6)]
    even = [Wire(a=f"D{i}", b=f"M{i}", bytes_per_s=20e6) for i in (0, 1) for _ in (0, 1)]
    one, other = (ty.run(CHAIN, on=of_own(wires, 1e9, 1e9)) for wires in (uneven, even))
    assert one.time_s == pytest.approx(other.time_s, rel=1e-3)


@pytest.mark.parametrize(
    "system",
    [
        Switched(**SLOW, devices=4, memory_nodes=4),
        Plane(**SLOW, devices=8, devices_per_node=4),
        Cluster(**SLOW, devices=16, nic_bytes_per_s=20e6),
    ],
)
def test_units_of_the_memory_nodes_count_everywhere(system: Any) -> None:
    plain = ty.run(CHAIN, on=system)
    squeeze = Unit(kind="compression", where="device", latency_s=0.0, bytes_per_s=1e12, ratio=2.0)
    squeezed = ty.run(CHAIN, on=replace(system, memory_node=MemoryNode(units=(squeeze,))))
    assert moved(squeezed)[0] == pytest.approx(moved(plain)[0] / 2, rel=1e-3)
    assert squeezed.time_s <= plain.time_s * (1 + 1e-9)
    guard = Unit(kind="encryption", latency_s=0.0, bytes_per_s=1e5)
    assert ty.run(CHAIN, on=replace(system, memory_node=MemoryNode(units=(guard,)))).time_s > plain.time_s


def test_a_step_with_exchanges_of_its_own_has_the_samples_of_all_ranks() -> None:
    node = changed(DESIGNS["o"], parallel="data")
    own = one_device(node, CHAIN)
    assert ty.run(own, on=node).samples == CHAIN.batch
    for parallel in ("model", "mixed"):
        with pytest.raises(BadInput, match="exchanges of its own parallelism"):
            ty.run(own, on=changed(node, parallel=parallel))


def test_tied_weights_are_reduced_once_and_every_time_step_of_a_recurrent_layer() -> None:
    tied, recurrent = ty.zoo.load("gpt2-small", batch=8), ty.zoo.load("lstm-1", batch=8)
    for step, more in ((tied, False), (recurrent, True)):
        carried = [ty.run(step, on=changed(DESIGNS["o"], reduce=reduce)).traffic_bytes["link"] for reduce in ("once", "every_call")]
        assert (carried[1] > carried[0]) == more


def test_a_map_that_the_next_work_reads_is_not_paged_out() -> None:
    planner = Planner(DESIGNS["b"], one_device(DESIGNS["b"], CHAIN), None)
    planner.plan()
    near = [i for i, one in enumerate(planner.paging.problem.saved) if one.first_backward == one.last_forward + 1]
    assert near
    assert {planner.paging.choice.decisions[i] for i in near} == {"keep"}


def test_bytes_on_the_links_follow_precision_and_hops() -> None:
    """Exchanges and copies are of what the device holds; every wire that a byte crosses counts, in traffic and in energy."""
    wide, ring = ty.run(CHAIN, on=DESIGNS["o"]), ty.run(CHAIN, on=DESIGNS["b"])
    narrow = ty.run(CHAIN, on=changed(DESIGNS["b"], device=replace(DEVICE, precision="bf16")))
    assert narrow.traffic_bytes["link"] == pytest.approx(ring.traffic_bytes["link"] / 2, rel=0.01)
    assert moved(narrow)[0] * 2 == moved(ring)[0]
    assert ring.traffic_bytes["link"] == 2 * wide.traffic_bytes["link"]  # rings of 16 hops against rings of 8
    copied = sum(moved(ring)) * 1 + ring.traffic_bytes["link"]  # a memory-node is one wire away
    assert ring.energy_by_component["link"] == pytest.approx(copied * 80e-12)
    behind_switch = ty.run(CHAIN, on=DESIGNS["dc"])
    crossed = sum(moved(behind_switch)) * 2 + behind_switch.traffic_bytes["link"]
    assert behind_switch.energy_by_component["link"] == pytest.approx(crossed * 80e-12)


def test_a_device_has_its_share_of_the_memories_and_waits_for_them() -> None:
    result = ty.run(CHAIN, on=DESIGNS["b"])
    assert result.timeline is not None
    pool = next(pool for pool in result.timeline.pools if pool.name == "remote memory")
    assert pool.capacity_bytes == MemoryNode().capacity_bytes  # half of the left one and half of the right one
    slow = replace(DESIGNS["b"], memory_node=MemoryNode(memory_latency_s=1e-3))  # type: ignore[call-arg]  # a MemoryCentric
    assert ty.run(CHAIN, on=slow).time_s > result.time_s + 1e-3


def test_an_exchange_waits_for_what_is_fetched_for_it() -> None:
    """Under model parallelism a gather of backward reads a map that was away."""
    planner = Planner(changed(DESIGNS["dc"], parallel="model"), one_device(changed(DESIGNS["dc"], parallel="model"), DEEP), None)
    timeline = engine.run(planner.plan())
    gathers = {number for number, work in enumerate(planner.works) if planner._exchange(work)}
    fetched = [(index, at) for at, users in planner.paging.users.items() if at in gathers for index in users]
    assert fetched
    for index, at in fetched:
        begun = planner.begun[planner.works[at].ops[0]]
        assert timeline.ends_ps[planner.paging.back[0][index]] <= timeline.starts_ps[begun]


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Devices in one ring or two, memories on some or all of them by one to three wires, or one for all behind a switch."""
    count = draw(st.integers(2, 4))
    rate = st.integers(5, 60).map(lambda megabytes: megabytes * 1e6)
    places = [Place(name=f"D{i}", kind="device") for i in range(count)]
    wires = [
        Wire(a=f"D{i}", b=f"D{(i + 1) % count}", bytes_per_s=speed)
        for speed in draw(st.lists(rate, min_size=1, max_size=2))
        for i in range(count)
    ]
    if draw(st.booleans()):
        everybody = tuple(place.name for place in places)
        places += [Place(name="X", kind="switch"), Place(name="M", kind="memory", memory_bytes_per_s=draw(rate), serves=everybody)]
        wires += [Wire(a=f"D{i}", b="X", bytes_per_s=draw(rate)) for i in range(count)] + [
            Wire(a="X", b="M", bytes_per_s=draw(rate))
        ]
    else:
        for i in range(count):
            places.append(Place(name=f"M{i}", kind="memory", memory_bytes_per_s=draw(rate), serves=(f"D{i}",)))
            wires += [Wire(a=f"D{i}", b=f"M{i}", bytes_per_s=speed) for speed in draw(st.lists(rate, min_size=1, max_size=3))]
    return Topology(places=tuple(places), wires=tuple(wires))


def times_as_fast(graph: Topology, factor: int) -> Topology:
    places = (
        replace(place, memory_bytes_per_s=factor * place.memory_bytes_per_s) if place.memory_bytes_per_s else place
        for place in graph.places
    )
    return Topology(places=tuple(places), wires=tuple(replace(wire, bytes_per_s=factor * wire.bytes_per_s) for wire in graph.wires))


UNEQUAL = Topology(  # the same rate to memory by wires that a ring passes, too, and that differ
    places=(
        Place(name="D0", kind="device"),
        Place(name="D1", kind="device"),
        Place(name="X", kind="switch"),
        Place(name="M", kind="memory", memory_bytes_per_s=7e6, serves=("D0", "D1")),
    ),
    wires=(
        *[Wire(a="D0", b="D1", bytes_per_s=5e6)] * 2,
        Wire(a="D0", b="X", bytes_per_s=5e6),
        Wire(a="D1", b="X", bytes_per_s=6e6),
        Wire(a="X", b="M", bytes_per_s=6e6),
    ),
)


@settings(max_examples=25, deadline=None)
@example(UNEQUAL, [8, 8, 8, 8], "data", True)
@given(
    graphs(),
    st.lists(st.integers(1, 8).map(lambda n: 8 * n), min_size=3, max_size=5),
    st.sampled_from(["data", "model"]),
    st.booleans(),
)
def test_bounds_that_hold_on_any_graph(graph: Topology, widths: list[int], parallel: str, contention: bool) -> None:
    """Nothing paged is never slower; twice the bandwidth everywhere is never slower and at most halves the step."""
    step = chain(tuple(widths), 12 * 16)
    node = Wired(graph=graph, device=DEVICE, page_bytes=256, parallel=parallel, contention=contention)  # type: ignore[arg-type]
    taken = ty.run(step, on=node)
    twice = ty.run(step, on=replace(node, graph=times_as_fast(graph, 2)))
    kept = ty.run(step, on=replace(node, overlay="off"))
    slack = 1 + 1e-6
    assert kept.time_s <= taken.time_s * slack
    assert twice.time_s <= taken.time_s * slack
    assert taken.time_s <= 2 * twice.time_s * slack
    assert taken.time_s == pytest.approx(ty.run(step, on=replace(node, fold=False)).time_s, rel=1e-5)
    assert not list(faults(node, step))
