"""Collectives on rings: against a simulation of every message, against ASTRA-sim, and against the paper's Fig. 9."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.engine import run
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.collectives.ring_timing import LAPS, STREAMS
from trainyard.hardware.topology.builders import cube_mesh, memory_ring, star
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import Ring
from trainyard.hardware.topology.rings import rings as rings_of
from trainyard.ir.plan import Plan

KINDS = (*LAPS, *STREAMS)


def ring_on(walk, arcs):
    return Ring(walk=tuple(walk), arcs=tuple(arcs), devices=tuple(name for name in walk if name.startswith("d")))


def node_with_rings(count, loops, *, rate=lambda: 1.0, latency=lambda: 0.0):
    """A node of `count` devices and a ring for each of `loops`: (order of devices, forwarding places behind each)."""
    places = {f"d{rank}": "device" for rank in range(count)}
    wires, rings = [], []
    for number, (order, between) in enumerate(loops):
        walk = []
        for rank, forwards in zip(order, between, strict=True):
            walk.append(f"d{rank}")
            walk += [f"m{number}.{rank}.{step}" for step in range(forwards)]
        first = len(wires)
        wires += [Wire(a=a, b=b, bytes_per_s=rate(), latency_s=latency()) for a, b in zip(walk, walk[1:] + walk[:1], strict=True)]
        places.update({name: "memory" for name in walk if name not in places})
        rings.append(ring_on(walk, [(first + hop, 0) for hop in range(len(walk))]))
    return Topology(places=tuple(Place(name=name, kind=kind) for name, kind in places.items()), wires=tuple(wires)), tuple(rings)


def plain(devices, rate, latency, forwards=0):
    """One ring one way, with so many memory-nodes behind each device."""
    return node_with_rings(devices, [(range(devices), [forwards] * devices)], rate=lambda: rate, latency=lambda: latency)


@st.composite
def nodes(draw, rates=(1.0, 0.5, 0.25), least=2, most=5):
    """Rates are powers of two and latencies whole, so that every time below is exact."""
    count = draw(st.integers(least, most))
    order = st.permutations(range(count))
    loops = draw(st.lists(st.tuples(order, st.lists(st.integers(0, 2), min_size=count, max_size=count)), min_size=1, max_size=3))
    return node_with_rings(
        count,
        loops,
        rate=lambda: draw(st.sampled_from(rates)),
        latency=lambda: float(draw(st.integers(0, 30))),
    )


def cut(size, message):
    return [min(message, size - start) for start in range(0, size, message)]


def segments(topology, ring):
    """[(from device, arcs to the next device)] in the order of the ring."""
    actual = []
    for place, arc in zip(ring.walk, ring.arcs, strict=True):
        if topology.place(place).kind == "device":
            actual.append((topology.devices.index(place), []))
        actual[-1][1].append(arc)
    return actual


def launch(kind, chunk, loop, clock, message, pipelined, root):
    """Sets one ring going: each place sends a chunk on when it has arrived there, or each of its messages."""
    count, sizes, missing = len(loop), cut(chunk, message), defaultdict(int)
    last = LAPS.get(kind, 1) * (count - 1) - 1

    def run(place, number, turn, messages):
        for size in messages:

            def arrived(size=size):
                missing[number, turn] += 1
                whole = missing[number, turn] == len(sizes)
                if turn < last and (pipelined or whole):
                    run((place + 1) % count, number, turn + 1, [size] if pipelined else sizes)

            clock.send(loop[place][1], size, arrived)

    start = [rank for rank, _ in loop].index(root) + (kind == "reduce")
    for number in range(count):
        run((number if kind in LAPS else start) % count, number, 0, sizes)


def last_message_time(clock, kind, chunks, rings, message, pipelined, root=0):
    """Every message of every chunk over every wire: the end of the last."""
    for ring, chunk in zip(rings, chunks, strict=True):
        launch(kind, chunk, segments(clock.topology, ring), clock, message, pipelined, root)
    return clock.run()


def chunks_of(actual, kind, rings, count):
    rounds = count if kind in STREAMS else LAPS[kind] * (count - 1)
    carried = {arc: size for path, size in actual.flows for arc in path}
    return [max(carried.get(arc, 0) for arc in ring.arcs) // rounds for ring in rings]


@pytest.mark.oracle
@given(nodes(), st.sampled_from(KINDS), st.integers(1, 90), st.integers(1, 9), st.sampled_from(["equal", "balanced"]), st.data())
def test_rounds_by_chunks_end_when_the_last_message_arrives(message_clock, node, kind, size, message, split, data):
    topology, rings = node
    root = data.draw(st.integers(0, len(topology.devices) - 1))
    actual = timing(kind, size, topology, rings, message_bytes=message, split=split, root=root)
    chunks = chunks_of(actual, kind, rings, len(topology.devices))
    assert sum(chunks) == -(-size // len(topology.devices))
    clock = message_clock(topology)
    assert actual.time_s == last_message_time(clock, kind, chunks, rings, message, False, root)
    assert {arc: size for path, size in actual.flows for arc in path} == clock.carried


@pytest.mark.oracle
@given(nodes(), st.sampled_from(KINDS), st.integers(1, 90), st.integers(1, 9), st.data())
def test_message_by_message_is_exact_or_less_than_one_message_late(message_clock, node, kind, size, message, data):
    topology, rings = node
    root = data.draw(st.integers(0, len(topology.devices) - 1))
    actual = timing(kind, size, topology, rings, message_bytes=message, pipelined=True, root=root)
    chunks = chunks_of(actual, kind, rings, len(topology.devices))
    end = last_message_time(message_clock(topology), kind, chunks, rings, message, True, root)
    slowest = max(1 / wire.bytes_per_s for wire in topology.wires)
    assert end <= actual.time_s < end + message * slowest
    alike = all(len({topology.wires[wire].bytes_per_s for wire, _ in ring.arcs}) == 1 for ring in rings)
    if alike or all(chunk <= message or chunk % message == 0 for chunk in chunks):
        assert actual.time_s == end


@pytest.mark.probe
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_time_is_the_delay_and_then_the_longest_flow(kind, pipelined):
    topology, rings = node_with_rings(
        4, [([0, 1, 2, 3], [0, 1, 0, 2]), ([2, 0, 3, 1], [1, 1, 1, 1])], rate=lambda: 25e9, latency=lambda: 1e-7
    )
    actual = timing(kind, 1_000_003, topology, rings, pipelined=pipelined)
    moving = max(size / 25e9 for _, size in actual.flows)
    assert actual.time_s == actual.delay_s + moving
    assert 0 < actual.delay_s < actual.time_s


@pytest.mark.oracle
@pytest.mark.parametrize("unit", [10**6, 2**20])  # the source says MB; either reading holds
@pytest.mark.parametrize(("size", "astra_us"), [(1, 43.0), (8, 294.3), (64, 2304.7)])
def test_one_ring_one_way_agrees_with_astra_sim(size, astra_us, unit):
    """ASTRA-sim's analytical back end: ring all-reduce of one chunk between 8 devices, 50 GB/s, 500 ns."""
    actual = timing("all_reduce", size * unit, *plain(8, 50e9, 500e-9))
    assert actual.time_s * 1e6 == pytest.approx(astra_us, rel=0.03)


@pytest.mark.paper
@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "broadcast"])
def test_memory_nodes_on_the_ring_cost_little_for_large_messages(kind):
    """Fig. 9: links of 50 GB/s both ways together, 4 KB messages, 8 MB."""

    def longer(size, **more):
        eight = timing(kind, size, *plain(8, 25e9, 0.0)).time_s
        return timing(kind, size, *plain(**more, rate=25e9, latency=0.0)).time_s / eight

    assert 1 < longer(8_000_000, devices=8, forwards=1) < 1.05
    assert longer(8_000_000, devices=16) == pytest.approx(1.07, abs=0.005)
    ratios = [longer(size, devices=8, forwards=1) for size in (8_000_000, 800_000, 80_000, 8_000)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1.4


@pytest.mark.probe
def test_one_more_message_costs_a_slot_and_one_more_hop_a_message():
    """Rate 1, latency 5, messages of 4: a chunk of 8 over two wires takes 8 + 4 + 2 x 5."""
    node = plain(2, 1.0, 5.0, forwards=1)
    exact = timing("all_gather", 2 * 8, *node, message_bytes=4)
    assert exact.time_s == 8 + 4 + 10
    assert timing("all_gather", 2 * 9, *node, message_bytes=4).time_s == exact.time_s + 1
    assert timing("all_gather", 2 * 8 - 1, *node, message_bytes=4).time_s == exact.time_s  # padded to 8 each
    assert timing("all_gather", 2 * 8, *plain(2, 1.0, 5.0, forwards=2), message_bytes=4).time_s == exact.time_s + 4 + 5
    assert timing("all_gather", 2 * 8, *node, message_bytes=8).time_s == 8 + 8 + 10


@given(
    nodes(),
    st.sampled_from(KINDS),
    st.integers(0, 200),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(["equal", "balanced"]),
    st.data(),
)
def test_better_wires_are_never_slower(node, kind, size, message, pipelined, split, data):
    topology, rings = node
    options = {"message_bytes": message, "pipelined": pipelined}
    before = timing(kind, size, topology, rings, split=split, **options).time_s
    assert timing(kind, size, topology, rings, split="balanced", **options).time_s <= before
    assert timing(kind, size + data.draw(st.integers(0, 20)), topology, rings, split=split, **options).time_s >= before
    number = data.draw(st.integers(0, len(topology.wires) - 1))
    faster = replace(topology.wires[number], bytes_per_s=topology.wires[number].bytes_per_s * 2)
    changed = replace(topology, wires=(*topology.wires[:number], faster, *topology.wires[number + 1 :]))
    assert timing(kind, size, changed, rings, split=split, **options).time_s <= before
    ring = rings[0]
    at = data.draw(st.integers(0, len(ring.walk) - 1))
    if topology.place(ring.walk[at]).kind == "memory":  # leave that place out: its wires become one, as fast as the first
        shorter = ring_on(ring.walk[:at] + ring.walk[at + 1 :], ring.arcs[:at] + ring.arcs[at + 1 :])
        assert timing(kind, size, topology, (shorter, *rings[1:]), split=split, **options).time_s <= before


def brute(part, count, cost):
    """The best of all ways to cut a part into so many shares."""
    if count == 1:
        return cost(0, part)
    return min(max(cost(count - 1, share), brute(part - share, count - 1, cost)) for share in range(part + 1))


@pytest.mark.oracle
@given(nodes(most=3), st.sampled_from(KINDS), st.integers(1, 30), st.integers(1, 6), st.booleans())
def test_balanced_shares_are_the_best_there_are(node, kind, size, message, pipelined):
    topology, rings = node
    count = len(topology.devices)

    def cost(number, share):
        return timing(kind, share * count, topology, (rings[number],), message_bytes=message, pipelined=pipelined).time_s

    best = brute(-(-size // count), len(rings), cost)
    assert timing(kind, size, topology, rings, message_bytes=message, pipelined=pipelined, split="balanced").time_s == best


def test_equal_shares_wait_for_the_longest_ring():
    topology, rings = node_with_rings(4, [([0, 1, 2, 3], [0] * 4), ([0, 1, 2, 3], [4] * 4)], latency=lambda: 1.0)
    both = timing("all_reduce", 800, topology, rings, message_bytes=10)
    alone = timing("all_reduce", 400, topology, rings[1:], message_bytes=10)
    assert both.time_s == alone.time_s
    assert [size for _, size in both.flows] == [600, 600]


def test_nothing_to_send_takes_no_time():
    assert timing("all_reduce", 0, *plain(4, 1e9, 1e-6)).time_s == 0
    one = Topology(places=(Place(name="d0", kind="device"),), wires=())
    assert timing("all_gather", 4096, one, ()).flows == ()


def test_padding_is_to_whole_elements():
    node = plain(8, 1.0, 0.0)
    assert timing("all_gather", 100, *node).flows[0][1] == 7 * 13
    assert timing("all_gather", 100, *node, element_bytes=4).flows[0][1] == 7 * 16


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kind": "all_reduced"}, UnknownName, "did you mean 'all_reduce'"),
        ({"algorithm": "rings"}, UnknownName, "did you mean 'ring'"),
        ({"split": "even"}, UnknownName, "split"),
        ({"kind": "all_to_all"}, NotModelled, "switches"),
        ({"rings": ()}, BadInput, "at least one ring"),
        ({"size_bytes": -1}, BadInput, "at least 0"),
        ({"message_bytes": 0}, BadInput, "message_bytes"),
        ({"root": 4}, BadInput, "numbered from 0"),
    ],
)
def test_impossible_collectives_raise_with_the_reason(change, error, says):
    topology, rings = plain(4, 1e9, 1e-6)
    options = {"kind": "all_reduce", "size_bytes": 64, "topology": topology, "rings": rings, **change}
    with pytest.raises(error, match=says):
        timing(**options)


def test_rings_must_fit_the_node():
    topology, rings = plain(4, 1e9, 1e-6)
    with pytest.raises(BadInput, match="d0 - d1"):
        timing("all_reduce", 64, topology, rings + rings)
    with pytest.raises(BadInput, match="every device exactly once"):
        timing("all_reduce", 64, topology, (ring_on(rings[0].walk[:3], rings[0].arcs[:3]),))


@pytest.mark.slow
def test_timing_a_thousand_collectives_is_fast():
    topology, rings = node_with_rings(8, [(range(8), [1] * 8)] * 6, rate=lambda: 25e9, latency=lambda: 1e-7)
    timing("all_reduce", 1, topology, rings)
    start = time.perf_counter()
    for size in range(1000):
        timing("all_reduce", 10**6 + size, topology, rings)
    assert time.perf_counter() - start < 0.2  # about 25 us each; a size seen before takes 1 us


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["equal", "balanced"])
def test_the_engine_takes_the_same_time_for_the_delay_and_the_flows(kind, split):
    """MC-DLA's folded star: rings of 8, 12 and 20 hops, both ways."""
    node = star(folded=True, link_bytes_per_s=25e9, link_latency_s=1e-7)
    actual = timing(kind, 10_000_019, node, rings_of(node), split=split)
    plan = Plan()
    links = {(wire, way): plan.link(f"{wire}.{way}", 25e9) for wire in range(len(node.wires)) for way in (0, 1)}
    waited = plan.task(plan.stream("rounds"), round(actual.delay_s * 1e12))
    plan.transfer([([links[arc] for arc in path], count) for path, count in actual.flows], after=[waited])
    assert run(plan).ends_ps.max() == pytest.approx(actual.time_s * 1e12, abs=2)


@pytest.mark.paper
def test_the_longer_the_rings_the_longer_the_delay():
    """8/8/8 hops in the cube mesh, 16/16/16 in MC-DLA's ring, 8/12/20 and 8/8/24 in its stars; all move the same bytes."""
    wires = {"link_bytes_per_s": 25e9, "link_latency_s": 1e-7}
    nodes = [cube_mesh(**wires, pcie_bytes_per_s=12e9), memory_ring(**wires), star(folded=True, **wires), star(**wires)]
    actual = [timing("all_reduce", 8_000_000, node, rings_of(node)) for node in nodes]
    assert [timed.time_s for timed in actual] == sorted(timed.time_s for timed in actual)
    assert len({sum(len(path) > 0 for path, _ in timed.flows) for timed in actual}) == 1
    assert len({max(count for _, count in timed.flows) for timed in actual}) == 1
