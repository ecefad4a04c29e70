"""Reports of nodes: classes exposed and hidden, the host's bandwidth, drawings, traces, what more of a system's parts is worth."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import trainyard as ty
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Step
from trainyard.report import bars, lines, nodes, page, plots, spans, tables
from trainyard.report.marginal import graph_resources, marginal_gains, resources
from trainyard.results.result import Result
from trainyard.systems import DeviceCentric, HostCentric, MemoryCentric, Replicas, Wired

DEVICE = Accelerator(array=Systolic(rows=8, columns=8), scratchpad="64 KiB", dram="1 GB/s", clock="100 MHz")
# a slow device on slow links, so that compute, exchanges and copies are all of one size
SLOW: dict[str, Any] = {"device": DEVICE, "link_bytes_per_s": 20e6, "link_latency_s": 1e-6, "page_bytes": 256, "message_bytes": 256}
DC = DeviceCentric(**SLOW, pcie_bytes_per_s=40e6, socket_bytes_per_s=1e9)
HC = HostCentric(**SLOW, socket_bytes_per_s=1e9)
MC = MemoryCentric(**SLOW)
DRAWING = '<figure class="graph">'
GRAPH = Topology(
    name="two",
    places=(
        *(Place(name=f"D{n}", kind="device") for n in range(2)),
        *(Place(name=f"M{n}", kind="memory", memory_bytes_per_s=30e6) for n in range(2)),
    ),
    wires=tuple(
        Wire(a=f"D{d}", b=f"M{m}", bytes_per_s=rate)
        for d in range(2)
        for m in range(2)
        for rate in ((20e6, 10e6) if m else (20e6,))
    ),
)


@pytest.fixture(scope="module")
def step() -> Step:
    return ty.zoo.load("squeezenet", batch=8)


@pytest.fixture(scope="module")
def small() -> Step:
    return ty.zoo.load("ncf", batch=256)


@pytest.fixture(scope="module")
def ran(step: Step) -> dict[str, Result]:
    return {name: ty.run(step, on=node) for name, node in {"dc": DC, "hc": HC, "mc": MC}.items()}


def printed(results: list[Result], width: int = 200) -> str:
    out = StringIO()
    tables.compare(results, Console(file=out, width=width))
    return out.getvalue()


def under_way(result: Result, kind: int) -> int:
    """Picoseconds in which a task of the class runs, counted instant by instant."""
    timeline = result.timeline
    assert timeline is not None
    edges = np.unique(np.concatenate([timeline.starts_ps, timeline.ends_ps]))
    total = 0
    for left, right in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        running = (timeline.starts_ps <= left) & (timeline.ends_ps >= right) & (timeline.kinds == kind)
        total += (right - left) * bool(running.any())
    return total


@pytest.mark.parametrize("fold", [True, False])
def test_exposed_and_hidden_are_what_a_class_is_under_way(step: Step, fold: bool) -> None:
    result = ty.run(step, on=replace(DC, fold=fold))
    found = lines.overlap(result)
    assert list(found) == ["compute", "synchronisation", "copy"]  # in the order in which they own an instant
    for kind, (exposed, hidden) in enumerate(found.values()):
        assert hidden is not None
        assert exposed + hidden == pytest.approx(under_way(result, kind) * 1e-12)
    assert found["compute"][1] == pytest.approx(0.0, abs=1e-12)
    idle = result.by_class["idle"].time_s
    assert sum(exposed for exposed, _ in found.values()) + idle == pytest.approx(result.time_s)


def test_the_facts_tell_classes_in_order_and_say_nothing_of_one_class(step: Step, ran: dict[str, Result]) -> None:
    names = [name for name, _ in lines.facts(ran["dc"])]
    first = names.index("compute")
    assert names[first : first + 3] == ["compute", "synchronisation", "copy"]
    told = dict(lines.facts(ran["dc"]))
    assert "exposed" in told["copy"]
    assert "hidden" in told["copy"]
    alone = ty.run(step, on=DEVICE)
    assert lines.classes(alone) == []
    assert "compute" not in dict(lines.facts(alone))
    without = replace(ran["dc"], timeline=None)  # nothing is claimed to hide where nothing tells
    assert "hidden" not in dict(lines.classes(without))["copy"]


@pytest.mark.parametrize("name", ["dc", "hc"])
def test_the_hosts_bandwidth_is_its_bytes_over_the_step(ran: dict[str, Result], name: str) -> None:
    result = ran[name]
    used = result.traffic_bytes["host memory"] / result.time_s
    assert lines.host_bytes_per_s(result) == pytest.approx(used)
    (text,) = lines.host_memory(result)
    assert text.endswith(f" over 2 sockets, each {lines.percent(used / 2 / 1e9)} of 1 GB/s")
    assert lines.host_memory(replace(result, on=None)) == [text.partition(" over")[0]]


def test_memory_nodes_leave_the_host_alone(ran: dict[str, Result]) -> None:
    assert lines.host_memory(ran["mc"]) == []
    assert nodes.sockets(MC) == []
    assert nodes.sockets(DEVICE) == []
    assert [place.name for place in nodes.sockets(DC)] == ["S0", "S1"]


def test_the_facts_say_what_is_of_all_devices_and_what_of_each(step: Step, ran: dict[str, Result]) -> None:
    told = [name for name, _ in lines.facts(ran["mc"])]
    assert {"energy per step, all devices", "DRAM traffic per step, all devices"} <= set(told)
    assert {"remote memory traffic per step, all devices", "peak memory, device memory (of each device)"} <= set(told)
    alone = [name for name, _ in lines.facts(ty.run(step, on=DEVICE))]
    assert {"energy per step", "DRAM traffic per step", "peak memory, device memory"} <= set(alone)


def test_pools_that_differ_in_their_number_are_one_line(step: Step) -> None:
    unfolded = ty.run(step, on=replace(MC, fold=False))
    assert len(unfolded.peak_memory_bytes) == 16
    assert [name for name, _ in lines.peaks(unfolded)] == ["device memory (each of 8)", "remote memory (each of 8)"]
    uneven = replace(unfolded, peak_memory_bytes={"hbm 0": 5, "hbm 1": 7, "level 2 cache": 1, "3": 2})
    largest = [(name, pool.peak_bytes) for name, pool in lines.peaks(uneven)]
    assert largest == [("hbm (largest of 2)", 7), ("level 2 cache", 1), ("3", 2)]
    folded = ty.run(step, on=MC)
    assert [name for name, _ in lines.peaks(folded)] == ["device memory (of each device)", "remote memory (of each device)"]
    figure = spans.memory_over_time(unfolded)
    assert len([trace for trace in figure.data if "capacity" not in trace.name]) == 2
    assert figure.data[0].name.startswith("device memory 0 (8 alike), peak")


def test_compare_shows_where_the_bottleneck_goes(step: Step, ran: dict[str, Result]) -> None:
    alone = ty.run(step, on=DEVICE)
    heads = [column.head for column in tables.compared([*ran.values(), alone])]
    for head in ("exposed compute", "exposed synchronisation", "exposed copy", "paged", "host memory", "bound by"):
        assert head in heads
    text = printed([*ran.values(), alone])
    copy = next(line for line in text.splitlines() if line.startswith(" exposed copy"))
    for result in ran.values():
        share = lines.percent(result.by_class["copy"].time_s / result.time_s)
        assert f"({share})" in copy
    assert copy.rstrip().endswith("-")  # one device copies nothing
    heads = [column.head for column in tables.compared([alone, alone])]
    assert not any(head.startswith("exposed") or head in ("paged", "host memory") for head in heads)


def test_designs_of_equal_parts_bring_no_warning(ran: dict[str, Result], step: Step) -> None:
    assert lines.differences(list(ran.values())) == []
    assert [line.partition(":")[0] for line in lines.differences([ran["mc"], ty.run(step, on=DEVICE)])] == [
        "machines differ in peak MACs",
        "machines differ in DRAM bandwidth",
        "machines differ in devices",
    ]


# ---- drawings
def test_the_page_draws_the_node_with_its_rings(ran: dict[str, Result]) -> None:
    html = page.page([ran["mc"]])
    drawn = html.partition(DRAWING)[2].partition("<figcaption>")[0]
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert "8 memory-nodes" in str(root.findtext("{http://www.w3.org/2000/svg}title"))
    assert "ring 1: 16 hops" in drawn
    assert "16 places and 48 wires; 6 rings of 8 devices: 6 of 16 hops." in html
    figures = json.loads(html.partition('id="figures">')[2].partition("</script>")[0])
    assert sorted(figures) == sorted(f"r0-{plot.__name__}" for plot in plots.ALL)  # each once, some beside the drawing
    assert page.page([replace(ran["mc"], on=None)]).count(DRAWING) == 0


def test_machines_side_by_side_have_a_plot_of_classes_where_there_are_some(step: Step, ran: dict[str, Result]) -> None:
    alone = ty.run(step, on=DEVICE)
    assert plots.classes_by_machine in plots.side_by_side([alone, ran["dc"]])
    assert plots.classes_by_machine not in plots.side_by_side([alone, alone])
    assert plots.exposed_and_hidden not in plots.informative(alone)
    figure = bars.classes_by_machine([ran["dc"], ran["mc"]])
    assert {"compute", "synchronisation", "copy"} <= {trace.name for trace in figure.data}
    html = page.page([ran["dc"], alone])
    assert "exposed copy" in html
    assert html.count(DRAWING) == 1


def test_bars_of_exposed_and_hidden_time_are_the_facts(ran: dict[str, Result]) -> None:
    figure = bars.exposed_and_hidden(ran["dc"])
    told = figure.layout.meta["description"]
    assert all(f"{name} {text}" in told for name, text in lines.classes(ran["dc"]))
    names = list(figure.layout.yaxis.ticktext)
    exposed = next(trace for trace in figure.data if trace.name == "exposed")
    ratio = exposed.x[names.index("copy")] / exposed.x[names.index("compute")]
    classes = ran["dc"].by_class
    assert ratio == pytest.approx(classes["copy"].time_s / classes["compute"].time_s)


def test_paged_tensors_are_one_bar_where_they_are_many(ran: dict[str, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    result = ran["mc"]
    tensors = {tensor for level, tensor, _ in result.traffic if level == "remote memory"}
    assert {f"remote memory: {tensor}" for tensor in tensors} <= set(bars.traffic_by_tensor(result).layout.yaxis.ticktext)
    monkeypatch.setattr(bars, "MOST_TENSORS", 1)
    assert f"remote memory: {len(tensors)} tensors" in bars.traffic_by_tensor(result).layout.yaxis.ticktext


@pytest.mark.parametrize(("machine", "reason"), [
    (DEVICE, "x has no link graph to draw: nodes have one, such as mcdla-b"),
    (Replicas(device=DEVICE, devices=2, link="1 GB/s"), "x has no link graph"),
    (MemoryCentric(**SLOW, devices=120), r"x has 240 devices, memories and switches, too many to draw \(at most 200\): .* x\(dev"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_said(machine: Any, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        nodes.drawing(machine, "x")


def test_a_page_of_a_node_too_large_to_draw_says_so(ran: dict[str, Result]) -> None:
    html = page.page([replace(ran["mc"], on=MemoryCentric(**SLOW, devices=120))])
    assert "too many to draw" in html
    assert html.count(DRAWING) == 0


def test_a_graph_without_a_ring_is_drawn_all_the_same() -> None:
    line = Topology(
        places=(*(Place(name=f"D{n}", kind="device") for n in range(3)), Place(name="S0", kind="socket")),
        wires=(*(Wire(a="D0", b=f"D{n}", bytes_per_s=1e9) for n in (1, 2)), Wire(a="D0", b="S0", bytes_per_s=1e9)),
    )
    drawn, told = nodes.drawing(Wired(device=DEVICE, graph=line), "line")
    assert "in no ring" in drawn
    assert told == "4 places and 3 wires; no ring passes all devices."


def test_a_sum_keeps_the_machine_where_it_is_the_same(ran: dict[str, Result]) -> None:
    assert (ran["dc"] + ran["dc"]).on == DC
    assert (2 * ran["dc"]).on == DC
    assert (ran["dc"] + ran["mc"]).on is None
    assert lines.host_memory(2 * ran["dc"])


# ---- the trace
def test_a_trace_has_a_track_for_each_stream_and_a_counter_for_each_memory(ran: dict[str, Result], tmp_path: Path) -> None:
    ran["mc"].to_perfetto(tmp_path / "r.gz")
    with gzip.open(tmp_path / "r.gz", "rt", encoding="utf-8") as stream:
        events = json.load(stream)["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(tracks.values()) == ["device 0", "exchange", "copy out 0", "copy in 0"]
    seen: dict[str, set[str]] = {name: set() for name in tracks.values()}
    for event in events:
        if event["ph"] == "X":
            seen[tracks[event["tid"]]].add(event["name"])
    assert "features.1: page out" in seen["copy out 0"]
    assert {name.partition(": ")[2] for name in seen["copy out 0"]} == {"page out"}
    assert {name.partition(": ")[2] for name in seen["copy in 0"]} == {"fetch"}
    assert {name.partition(": ")[2] for name in seen["exchange"]} == {"all_reduce"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {"memory: device memory", "memory: remote memory"}


# ---- explanations
def test_an_explanation_tells_copies_from_exchanges(ran: dict[str, Result]) -> None:
    text = replace(ran["dc"], rerun=None).explain()
    copy = ran["dc"].by_class["copy"].time_s
    line = next(line for line in text.splitlines() if line.startswith("  link (copy)"))
    assert line.endswith(lines.percent(copy / ran["dc"].time_s))
    assert "link (synchronisation)" in text
    assert f"  host memory      {lines.host_memory(ran['dc'])[0]}" in text


def test_a_system_has_resources_of_its_own_beside_its_devices() -> None:
    from trainyard.machines import describe

    found = dict(resources(describe(replace(DC, overlay="as_needed", capacity_bytes=10**6))))
    own = {"link_bytes_per_s", "pcie_bytes_per_s", "socket_bytes_per_s", "capacity_bytes"}
    assert own | {"device.clock_hz", "device.dram_bytes_per_s", "device.array.rows"} <= set(found)
    assert not {"page_bytes", "message_bytes", "bucket_bytes", "depth", "window"} & set(found)  # policies
    memory = dict(resources(describe(MC)))
    assert memory["memory_node.dimms"] == 10
    assert "memory_node.link_bytes_per_s" not in memory  # the node's links are those of its memory-nodes
    assert "memory_node.dma_request_bytes" not in memory


def test_a_tenth_more_pcie_is_worth_most_where_copies_bind(small: Step) -> None:
    slow = ty.run(small, on=replace(DC, pcie_bytes_per_s=4e3))
    first = marginal_gains(slow)[0]
    assert first.path == "pcie_bytes_per_s"
    assert first.text() == "pcie_bytes_per_s 4 kB/s -> 4.4 kB/s (+10 %)"
    faster = ty.run(small, on=replace(DC, pcie_bytes_per_s=4.4e3))
    assert first.change == pytest.approx(faster.time_s / slow.time_s - 1)


def test_the_wires_and_memories_of_a_graph_are_resources(small: Step) -> None:
    from trainyard.machines import describe

    node = Wired(device=DEVICE, page_bytes=256, message_bytes=256, graph=GRAPH)
    found = list(graph_resources(describe(node)))
    assert [(path, rate) for path, rate, _ in found] == [
        ("graph.wires.bytes_per_s", 20e6),
        ("graph.wires.bytes_per_s", 10e6),
        ("graph.places.memory_bytes_per_s", 30e6),
    ]
    assert "link_bytes_per_s" not in dict(resources(describe(node)))  # the graph says it
    result = ty.run(small, on=node)
    gains = {(gain.path, gain.before): gain for gain in marginal_gains(result)}
    gain = gains["graph.wires.bytes_per_s", 20e6]
    assert gain.text() == "graph.wires.bytes_per_s 20 MB/s -> 22 MB/s (+10 %)"
    wires = tuple(replace(wire, bytes_per_s=22e6) if wire.bytes_per_s == 20e6 else wire for wire in GRAPH.wires)
    again = ty.run(small, on=replace(node, graph=replace(GRAPH, wires=wires)))
    assert gain.change == pytest.approx(again.time_s / result.time_s - 1)
    assert list(graph_resources(describe(DEVICE))) == []
