"""Nodes: the designs' order holds for any step, folding and known durations change nothing, breakdowns sum, errors say which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.systems.node.networks import CHAIN, DEEP, DESIGNS, DEVICE, SLOW, chain, changed, moved

import trainyard as ty
from trainyard import machines
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Step
from trainyard.mapping.algorithms import ModelAveraging
from trainyard.systems import DeviceCentric, HostCentric, MemoryCentric, Wired
from trainyard.systems.node.plan import Planner, one_device
from trainyard.systems.node.systems import Node
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane, Switched
from trainyard.units import parse

widths_of_steps = st.lists(st.integers(1, 12).map(lambda n: 8 * n), min_size=2, max_size=5).map(tuple)


def times(step: Step, **changes: Any) -> dict[str, float]:
    return {name: ty.run(step, on=changed(design, **changes)).time_s for name, design in DESIGNS.items()}


@settings(max_examples=12, deadline=None)
@given(widths_of_steps, st.sampled_from([8, 32, 64]), st.sampled_from(["data", "model"]), st.sampled_from([1, 2, None]))
def test_oracle_is_fastest_and_bw_aware_beats_local_for_any_step(
    widths: tuple[int, ...], batch: int, parallel: str, window: int | None
) -> None:
    """The facts that hold whatever is assumed: O <= B <= L, B <= S, and half the bandwidth everywhere at most doubles the time."""
    latency = {"link_latency_s": 0.0, "message_bytes": 1}  # more hops in a ring take longer: bandwidth alone is compared
    found = times(chain(widths, batch), parallel=parallel, window=window, **latency)
    slack = 1 + 1e-6
    assert found["o"] <= found["b"] * slack
    assert found["b"] <= found["l"] * slack
    hops = 1e-6 * len(widths)  # an exchange too small for all rings takes the star's shortest
    assert found["b"] <= found["s"] * slack + hops
    assert found["hc"] <= 2 * found["b"] * slack


@pytest.mark.parametrize("name", list(DESIGNS))
@pytest.mark.parametrize("parallel", ["data", "model"])
def test_a_folded_plan_equals_the_plan_of_all_devices(name: str, parallel: str) -> None:
    """Folded with known durations, and all devices as flows over every wire."""
    design = changed(DESIGNS[name], parallel=parallel)
    folded, unfolded = ty.run(CHAIN, on=design), ty.run(CHAIN, on=changed(design, fold=False))
    assert folded.time_s == pytest.approx(unfolded.time_s, rel=1e-6)
    assert folded.macs == unfolded.macs
    assert folded.energy_j == pytest.approx(unfolded.energy_j)
    assert folded.traffic_bytes == unfolded.traffic_bytes
    for axis in ("phase", "kind"):
        one, many = folded.group(axis), unfolded.group(axis)
        for key in one:
            assert one[key].time_s == pytest.approx(many[key].time_s, rel=1e-5, abs=1e-9)
    peaks = {pool.rsplit(" ", 1)[0] if pool[-1].isdigit() else pool: size for pool, size in unfolded.peak_memory_bytes.items()}
    assert peaks == dict(folded.peak_memory_bytes)


@pytest.mark.parametrize("name", ["b", "l", "s", "hc", "dc"])
def test_a_folded_plan_with_contention_equals_the_plan_of_all_devices(name: str) -> None:
    design = changed(DESIGNS[name], contention=True)
    folded, unfolded = ty.run(CHAIN, on=design), ty.run(CHAIN, on=changed(design, fold=False))
    assert folded.time_s == pytest.approx(unfolded.time_s, rel=1e-5)
    assert folded.time_s >= ty.run(CHAIN, on=DESIGNS[name]).time_s * (1 - 1e-9)


def planned_devices(node: Node) -> int:
    planner = Planner(node, one_device(node, CHAIN), None)
    planner.plan()
    return len(planner.tasks)


@pytest.mark.parametrize("name", ["b", "s", "dc"])
def test_one_device_is_planned_under_contention_where_all_contend_alike(name: str) -> None:
    assert planned_devices(changed(DESIGNS[name], contention=True)) == 1


def test_peaks_are_those_of_all_devices() -> None:
    node, one = DESIGNS["b"], DEVICE.peaks
    expected = (node.devices * one.macs_per_s, node.devices * one.dram_bytes_per_s, node.devices)
    assert (node.peaks.macs_per_s, node.peaks.dram_bytes_per_s, node.peaks.devices) == expected


def test_zero_with_an_algorithm_of_local_steps_is_refused() -> None:
    with pytest.raises(NotModelled, match=r"zero=1 sums gradients in every step: write algorithm=synchronous\(\)"):
        ty.run(CHAIN, on=changed(DESIGNS["b"], zero=1, algorithm=ModelAveraging(4)))


def test_where_an_exchange_crosses_a_wire_of_several_copies_every_device_is_planned() -> None:
    """Each pair of devices pages into the memory behind the other pair's switch, over the wire that the ring passes, too."""
    places = [Place(name=f"D{i}", kind="device") for i in range(4)] + [Place(name=f"X{i}", kind="switch") for i in range(2)]
    places += [
        Place(name=f"M{i}", kind="memory", memory_bytes_per_s=1e9, serves=(f"D{2 - 2 * i}", f"D{3 - 2 * i}")) for i in range(2)
    ]
    wires = [Wire(a=f"D{i}", b=f"X{i // 2}", bytes_per_s=20e6) for i in range(4)]
    wires += [Wire(a="X0", b="X1", bytes_per_s=30e6)] + [Wire(a=f"X{i}", b=f"M{i}", bytes_per_s=1e9) for i in range(2)]
    node = Wired(graph=Topology(places=tuple(places), wires=tuple(wires)), device=DEVICE, page_bytes=256, contention=True)
    assert planned_devices(replace(node, contention=False)) == 1
    assert planned_devices(node) == 4
    folded, unfolded = ty.run(CHAIN, on=node), ty.run(CHAIN, on=replace(node, fold=False))
    assert folded.time_s == pytest.approx(unfolded.time_s, rel=1e-5)


def test_contention_costs_time_only_where_copies_and_exchanges_share_wires() -> None:
    step = chain((128,) * 8, 1024)  # gradients are exchanged while maps come back
    alone, shared = ty.run(step, on=DESIGNS["b"]), ty.run(step, on=changed(DESIGNS["b"], contention=True))
    assert shared.time_s > alone.time_s * 1.01
    apart = ty.run(step, on=changed(DESIGNS["dc"], contention=True))
    assert apart.time_s == pytest.approx(ty.run(step, on=DESIGNS["dc"]).time_s, rel=1e-6)  # PCIe is nobody's ring


@pytest.mark.parametrize("field", ["link_bytes_per_s", "pcie_bytes_per_s"])
@pytest.mark.parametrize("parallel", ["data", "model", "mixed"])
def test_more_bandwidth_never_costs_time(field: str, parallel: str) -> None:
    design = changed(DESIGNS["dc"], parallel=parallel)
    taken = [ty.run(CHAIN, on=changed(design, **{field: getattr(design, field) * factor})).time_ps for factor in (1, 1.5, 2, 8, 64)]
    assert taken == sorted(taken, reverse=True)


def test_breakdowns_sum_and_the_three_streams_are_there() -> None:
    result = ty.run(CHAIN, on=DESIGNS["b"])
    assert sum(cost.time_s for cost in result.by_class.values()) == pytest.approx(result.time_s)
    assert sum(cost.time_s for cost in result.by_layer.values()) == pytest.approx(result.time_s)
    assert set(result.by_class) >= {"compute", "synchronisation", "copy"}
    timeline = result.timeline
    assert timeline is not None
    assert {"device 0", "exchange", "copy out 0", "copy in 0"} <= set(timeline.stream_names)
    assert result.samples == CHAIN.batch


@pytest.mark.parametrize("name", ["dc", "hc", "s", "l", "b"])
@pytest.mark.parametrize("parallel", ["data", "model"])
def test_all_that_leaves_comes_back_and_no_design_moves_more(name: str, parallel: str) -> None:
    out, back = moved(ty.run(CHAIN, on=changed(DESIGNS[name], parallel=parallel)))
    assert out == back > 0
    assert out == moved(ty.run(CHAIN, on=changed(DESIGNS["b"], parallel=parallel)))[0]


def test_paging_lowers_the_peak_and_fills_the_pool() -> None:
    deep = chain((64, *(128,) * 10, 96), 4096)
    paged, kept = ty.run(deep, on=changed(DESIGNS["b"], window=1)), ty.run(deep, on=DESIGNS["o"])
    assert paged.peak_memory_bytes["device memory"] < kept.peak_memory_bytes["device memory"]
    assert paged.peak_memory_bytes["remote memory"] > 0
    assert "remote memory" not in kept.peak_memory_bytes


def test_a_device_of_any_kind_may_be_inside() -> None:
    slow, fast = ty.run(CHAIN, on=DESIGNS["b"]), ty.run(CHAIN, on=changed(DESIGNS["b"], device=replace(DEVICE, clock_hz=400e6)))
    assert fast.by_class["compute"].busy_s < slow.by_class["compute"].busy_s
    combined = ty.run("resnet18", on="mcdla-b(device=npu(array=tensordash,order=interleaved))", batch=16)
    assert combined.time_s > 0


def test_a_user_defined_graph_runs_with_its_own_memory() -> None:
    places = (*(Place(name=f"D{i}", kind="device") for i in range(3)), Place(name="M", kind="memory", memory_bytes_per_s=1e9))
    wires = tuple(Wire(a=f"D{i}", b=f"D{(i + 1) % 3}", bytes_per_s=20e6) for i in range(3))
    pool = tuple(Wire(a=f"D{i}", b="M", bytes_per_s=10e6) for i in range(3))
    node = Wired(graph=Topology(places=places, wires=wires + pool), device=DEVICE, page_bytes=256)
    assert node.devices == 3
    assert moved(ty.run(chain((32, 64, 64, 32), 48), on=node))[0] > 0


def test_an_unusable_graph_or_policy_is_refused_with_its_name() -> None:
    lonely = Topology(places=(Place(name="D0", kind="device"), Place(name="D1", kind="device")), wires=())
    with pytest.raises(BadInput, match="D0"):
        ty.run(CHAIN, on=Wired(graph=lonely, device=DEVICE, overlay="off"))
    with pytest.raises(BadInput, match=r"D0.*D1"):
        Topology(places=lonely.places, wires=(Wire(a="D0", b="D1", bytes_per_s=0.0),))
    with pytest.raises(BadInput, match="does not divide"):
        ty.run(chain((8, 8), 12), on=DESIGNS["b"])
    with pytest.raises(UnknownName, match="bw_aware"):
        changed(DESIGNS["b"], placement="bandwidth")
    with pytest.raises(BadInput, match="device"):
        MemoryCentric(device="npu")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(BadInput, match="link"):
        assert HostCentric(device=DEVICE, host_links=5).rings


FOUR = "examples/four.toml"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("devices=8", r"devices=8, but the graph has its own \(4\): change .*graph\.places"),
        ("links=2", r"links=2, but the graph has its own \(4\): change graph\.wires"),
        ("link=1 GB/s", r"link=1 GB/s, but the graph has its own \(25 GB/s\): change bytes_per_s in graph\.wires"),
        ("link_latency=1 us", r"link_latency=1 µs, but the graph has its own \(0 s\): change latency_s in graph\.wires"),
    ],
)
def test_a_field_that_contradicts_the_graph_is_refused(changes: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        machines.machine(f"{FOUR}({changes})")


def test_a_field_that_agrees_with_the_graph_is_accepted_and_the_graph_can_be_replaced() -> None:
    plain, same = machines.machine(FOUR), machines.machine(f"{FOUR}(devices=4,links=4,link=25 GB/s,link_latency=0 s)")
    assert plain == same
    assert machines.from_table(machines.describe(same)) == plain
    assert (same.devices, same.links, same.link_bytes_per_s) == (4, None, None)
    faster = replace(plain.graph, wires=tuple(replace(wire, bytes_per_s=50e9) for wire in plain.graph.wires))
    assert replace(same, graph=faster).topology.wires[0].bytes_per_s == 50e9


WORDS = (
    "collectives",
    "stored",
    "directions",
    "split",
    "reduce",
    "exchange",
    "recompute",
    "moved",
    "parallel",
    "overlay",
    "placement",
)
KINDS: dict[str, tuple[type[Node], tuple[str, ...]]] = {
    "memory-centric": (MemoryCentric, ("shape",)),
    "device-centric": (DeviceCentric, ()),
    "switched": (Switched, ()),
    "plane": (Plane, ("recast",)),
    "cluster": (Cluster, ("design", "across")),
}


@pytest.mark.parametrize(("kind", "word"), [(name, word) for name, (_, own) in KINDS.items() for word in (*WORDS, *own)])
def test_an_unknown_choice_of_a_field_is_refused_by_the_constructor(kind: str, word: str) -> None:
    given: dict[str, Any] = {"device": DEVICE, word: "nonsense"}
    with pytest.raises(UnknownName, match=f"unknown {word} 'nonsense' in {KINDS[kind][0].__name__}"):
        KINDS[kind][0](**given)


NUMBERS: dict[str, Any] = {
    "devices": 0,
    "links": 0,
    "link_bytes_per_s": 0,
    "link_latency_s": -1.0,
    "depth": 0,
    "window": 0,
    "page_bytes": 0,
}
NUMBERS |= {"fold": 1, "contention": "no", "bucket_bytes": -1, "capacity_bytes": 0, "compression": 0.5}
HOST: dict[str, Any] = {"devices_per_switch": 0, "pcie_bytes_per_s": 0, "socket_bytes_per_s": 0}
REFUSED: list[tuple[type[Node], dict[str, Any]]] = [
    (MemoryCentric, NUMBERS | {"memory_node": "8 GB RDIMM", "compression": None}),
    (MemoryCentric, {"memory_node": None, "device": None}),
    (DeviceCentric, HOST | {"pcie_latency_s": -1.0}),
    (HostCentric, {"host_links": 0, "socket_bytes_per_s": 0, "devices_per_socket": 0}),
    (Switched, HOST | {"planes": 0, "memory_nodes": -1, "memory_node": None}),
    (Plane, HOST | {"radix": 0, "torus_rows": 0, "memory_per_node": -1, "hop_latency_s": -1.0, "memory_node": "x"}),
    (Cluster, HOST | {"nics": 0, "nic_bytes_per_s": 0, "staged": "no", "nic_latency_s": -1.0, "memory_node": 8}),
    (Wired, {"graph": "x"}),
]


@pytest.mark.parametrize(("kind", "name", "value"), [(kind, *item) for kind, fields in REFUSED for item in fields.items()])
def test_a_value_of_the_wrong_type_is_refused_with_the_field_name(kind: type[Node], name: str, value: Any) -> None:
    given = {"device": DEVICE, name: value}
    with pytest.raises(BadInput, match=f"{kind.__name__}: {name} must be"):
        kind(**given)


def test_quantities_accept_units_and_optional_counts_accept_zero() -> None:
    assert MemoryCentric(device=DEVICE, link_bytes_per_s="50 GB/s", capacity_bytes="1 GB").link_bytes_per_s == 50e9  # type: ignore[arg-type]
    assert Switched(device=DEVICE, memory_nodes=0, bucket_bytes=0).topology.devices
    assert Plane(device=DEVICE, memory_per_node=0, bucket_bytes=0).tree.memory_per_node == 0


def test_a_stated_capacity_is_the_capacity_of_the_memory_pool() -> None:
    peak = ty.run(DEEP, on=DESIGNS["b"]).peak_memory_bytes["device memory"]
    fits, over = (ty.run(DEEP, on=changed(DESIGNS["b"], capacity_bytes=size)).notes for size in (peak, peak - 1))
    assert not any("does not fit" in note for note in fits)
    assert sum(note.startswith("device memory: the step needs") and "does not fit" in note for note in over) == 1


def test_the_note_on_paging_is_a_bound_in_the_units_of_the_peak() -> None:
    result = ty.run(DEEP, on=DESIGNS["b"])
    (note,) = (note for note in result.notes if note.startswith("paging"))
    bound = note.partition("holds at most ")[2].partition(" whatever the timing")[0]
    assert "iB" in bound
    assert parse(bound, "B") >= result.peak_memory_bytes["device memory"] * 0.995  # of three digits


def test_as_needed_holds_its_capacity_and_more_of_it_never_costs_time() -> None:
    plain = ty.run(DEEP, on=changed(DESIGNS["b"], overlay="off")).peak_memory_bytes["device memory"]
    taken = []
    for share in (0.62, 0.7, 0.8, 0.9, 1.0):
        capacity = int(plain * share)
        result = ty.run(DEEP, on=changed(DESIGNS["b"], overlay="as_needed", capacity_bytes=capacity))
        assert result.peak_memory_bytes["device memory"] <= capacity
        taken.append(result.time_s)
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] == pytest.approx(ty.run(DEEP, on=changed(DESIGNS["b"], overlay="off")).time_s)
    assert taken[0] > taken[-1]


def test_a_capacity_too_small_for_one_layer_says_which() -> None:
    said = r"nothing fits 100 kB: \S+ \(\w+\) alone needs 2\.\d+ MB .*: give a larger capacity, a smaller batch, or moved=all"
    with pytest.raises(BadInput, match=said) as refused:
        ty.run(DEEP, on=changed(DESIGNS["b"], overlay="as_needed", capacity_bytes=100_000))
    enough = str(refused.value).partition("alone needs ")[2].partition(" with")[0]  # what it says is what fits
    assert ty.run(DEEP, on=changed(DESIGNS["b"], overlay="as_needed", capacity_bytes=enough)).time_s > 0
    with pytest.raises(BadInput, match=r"a smaller batch$"):
        ty.run(DEEP, on=changed(DESIGNS["b"], overlay="as_needed", capacity_bytes=100_000, moved="all"))
    with pytest.raises(BadInput, match="capacity"):
        ty.run(DEEP, on=changed(DESIGNS["b"], overlay="as_needed"))


@pytest.mark.parametrize("share", [0.65, 0.8])
def test_the_engine_does_what_the_overlay_foresaw(share: float) -> None:
    """One device behind PCIe: the plan's end is the choice's, and so is the memory at its fullest."""
    from trainyard.mapping.overlay.policy import simulate
    from trainyard.systems.node.plan import Planner, one_device

    node = changed(DESIGNS["dc"], devices=1, overlay="off")
    plain = ty.run(DEEP, on=node).peak_memory_bytes["device memory"]
    node = replace(node, overlay="as_needed", capacity_bytes=int(plain * share))
    planner = Planner(node, one_device(node, DEEP), None)
    planner.plan()
    foreseen = simulate(planner.paging.problem, planner.paging.choice)
    result = ty.run(DEEP, on=node)
    assert "send" in planner.paging.choice.decisions
    assert result.time_s == pytest.approx(foreseen.time_s, rel=1e-6)
    assert result.peak_memory_bytes["device memory"] <= foreseen.peak_bytes


def test_recomputed_maps_are_not_copied_but_cost_compute() -> None:
    step = ty.zoo.load("resnet18", batch=16)
    design = DESIGNS["b"]
    again, copied = ty.run(step, on=design), ty.run(step, on=changed(design, recompute="none"))
    assert moved(again)[0] < moved(copied)[0]
    assert again.by_class["compute"].busy_s > copied.by_class["compute"].busy_s
    assert again.macs == copied.macs == ty.run(step, on=DESIGNS["o"]).macs  # no product is made again


@pytest.mark.parametrize("kind", ["weights", "state", "all"])
def test_moved_weights_or_state_are_paged_with_the_maps(kind: str) -> None:
    step = ty.zoo.load("bert-tiny", batch=8)
    maps, more = ty.run(step, on=DESIGNS["b"]), ty.run(step, on=changed(DESIGNS["b"], moved=kind))
    assert sum(moved(more)) > sum(moved(maps))
    assert more.peak_memory_bytes["device memory"] < maps.peak_memory_bytes["device memory"]


def test_compression_reduces_bytes_on_the_wires() -> None:
    step = ty.zoo.load("alexnet", batch=16)
    plain, half = ty.run(step, on=DESIGNS["dc"]), ty.run(step, on=changed(DESIGNS["dc"], compression=2.0))
    assert moved(half)[0] == pytest.approx(moved(plain)[0] / 2, rel=1e-3)
    assert half.time_s < plain.time_s
    empty = ty.run(step, on=changed(DESIGNS["dc"], compression="masks"), masks="sparsity(A=0.75)")
    assert moved(plain)[0] / 4 < moved(empty)[0] < moved(plain)[0]
    with pytest.raises(BadInput, match="masks"):
        ty.run(step, on=changed(DESIGNS["dc"], compression="masks"))


def test_a_window_of_one_takes_longer_and_less_memory_than_none() -> None:
    found = {window: ty.run(DEEP, on=changed(DESIGNS["b"], window=window)) for window in (1, 2, None)}
    assert found[1].time_s >= found[2].time_s >= found[None].time_s
    assert found[1].peak_memory_bytes["device memory"] <= found[None].peak_memory_bytes["device memory"]


def test_copies_out_and_back_share_the_bandwidth_of_a_memory() -> None:
    """As wide as one way's wires: what leaves and what comes back at once share it, folded or not."""
    wide = changed(DESIGNS["hc"], moved="all", window=None)
    narrow = changed(wide, socket_bytes_per_s=4 * 3 * 20e6)
    step = ty.zoo.load("bert-tiny", batch=8)
    taken = ty.run(step, on=narrow)
    assert taken.time_s > ty.run(step, on=wide).time_s
    assert taken.time_s == pytest.approx(ty.run(step, on=changed(narrow, fold=False)).time_s, rel=1e-5)
    moving_s = sum(moved(taken)) / (2 * 4 * 3 * 20e6)  # two sockets
    assert moving_s <= taken.time_s


def test_the_memory_nodes_units_and_requests_count() -> None:
    from trainyard.hardware.memory_node.board import MemoryNode, Unit

    fast = MemoryCentric(**{**SLOW, "link_bytes_per_s": 200e6})
    plain = ty.run(DEEP, on=fast)
    at_device = Unit(kind="compression", where="device", latency_s=0.0, bytes_per_s=1e12, ratio=2.0)
    squeezed = ty.run(DEEP, on=replace(fast, memory_node=MemoryNode(units=(at_device,))))
    assert moved(squeezed)[0] == pytest.approx(moved(plain)[0] / 2, rel=1e-3)
    at_node = Unit(kind="encryption", latency_s=0.0, bytes_per_s=5e6)
    guarded = ty.run(DEEP, on=replace(fast, memory_node=MemoryNode(units=(at_node,))))
    assert moved(guarded) == moved(plain)
    assert guarded.time_s > 2 * plain.time_s  # 5 MB/s a group where the wires have 600
    patient = ty.run(DEEP, on=replace(fast, memory_node=MemoryNode(protocol_latency_s=1e-3, dma_request_bytes=4096)))
    assert patient.time_s > 2 * plain.time_s  # 8 KB a millisecond
    assert replace(fast, link_bytes_per_s=50e6).memory_node.link_bytes_per_s == 50e6
