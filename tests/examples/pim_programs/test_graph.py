"""Graphs and their cuts: the layout against sets and loops in plain Python, files, generators, partitions."""

from __future__ import annotations

import gzip
import heapq
from collections import defaultdict
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pim_programs.graph import GRAPH500, Graph, read_edge_list, rmat, uniform
from pim_programs.kernels import page_rank as kernel
from pim_programs.partition import Layout, PartitionRule, owners
from trainyard.errors import BadInput, UnknownName

PARTITIONS = get_args(PartitionRule)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    vertices = draw(st.integers(1, 24))
    vertex = st.integers(0, vertices - 1)
    return Graph.from_edges(draw(st.lists(st.tuples(vertex, vertex), max_size=60)), vertices=vertices)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Graph, int, int, PartitionRule]:
    """A graph, DPUs, and a group that divides them."""
    graph = draw(graphs())
    dpus = draw(st.integers(1, min(12, graph.vertices)))
    group = draw(st.sampled_from([size for size in range(1, dpus + 1) if dpus % size == 0]))
    return graph, dpus, group, draw(st.sampled_from(PARTITIONS))


@pytest.mark.oracle
@given(cuts())
def test_messages_are_those_that_sets_find(case: tuple[Graph, int, int, PartitionRule]) -> None:
    graph, dpus, group, partition = case
    owner = owners(graph, dpus, partition)
    layout = Layout.of(graph, owner, dpus, group)
    assert sorted(layout.order.tolist()) == list(range(graph.vertices))
    assert layout.parts.tolist() == np.bincount(owner, minlength=dpus).tolist()
    assert layout.edges.tolist() == np.bincount(owner[graph.sources], minlength=dpus).tolist()
    have = [set() for _ in range(dpus)]  # the vertices that each DPU has a slot for
    for source, target in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
        have[owner[source]].add(target)
    assert layout.made.tolist() == [len(slots) for slots in have]
    ways = [lambda _, vertex: int(owner[vertex])]
    if 1 < group < dpus:
        ways.insert(0, lambda dpu, vertex: dpu // group * group + int(owner[vertex]) % group)
    assert len(layout.hops) == len(ways)
    for hop, way in zip(layout.hops, ways, strict=True):
        sent, after, held = defaultdict(int), [set() for _ in range(dpus)], [0] * dpus
        for dpu, vertices in enumerate(have):
            for vertex in vertices:
                receiver = way(dpu, vertex)
                held[receiver] += 1
                after[receiver].add(vertex)
                if receiver != dpu:
                    sent[dpu, receiver] += 1
        assert {(int(s), int(d)): int(v) for s, d, v in zip(hop.sources, hop.destinations, hop.values, strict=True)} == sent
        assert hop.held.tolist() == held
        if hop is not layout.hops[-1]:
            assert hop.made.tolist() == [len(vertices) for vertices in after]
        have = after
    assert all(int(owner[vertex]) == dpu for dpu, vertices in enumerate(have) for vertex in vertices)


@pytest.mark.oracle
@given(cuts(), st.integers(0, 99))
def test_sums_are_those_of_plain_loops_in_the_same_order(case: tuple[Graph, int, int, PartitionRule], seed: int) -> None:
    """Shares are floats of no pattern: one addition out of order would show in the last bit."""
    graph, dpus, group, partition = case
    owner = owners(graph, dpus, partition)
    layout = Layout.of(graph, owner, dpus, group)
    shares = np.random.default_rng(seed).random(graph.vertices)
    order = layout.order.tolist()
    number = {old: new for new, old in enumerate(order)}
    slots: dict[tuple[int, int], float] = {}
    ends = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    for dpu, target, source in sorted((int(owner[source]), number[target], number[source]) for source, target in ends):
        slots[dpu, target] = slots.get((dpu, target), 0.0) + float(shares[source])
    values = kernel.combined(shares, layout.edge_source, layout.slot_first)
    assert values.tolist() == [slots[slot] for slot in sorted(slots)]
    if 1 < group < dpus:
        relayed: dict[tuple[int, int], float] = {}
        for dpu, vertex in sorted(slots):
            relay = dpu // group * group + int(owner[order[vertex]]) % group
            relayed[relay, vertex] = relayed.get((relay, vertex), 0.0) + slots[dpu, vertex]
        slots = relayed
    sums = [0.0] * graph.vertices
    for dpu, vertex in sorted(slots):
        sums[vertex] += slots[dpu, vertex]
    for hop in layout.hops:
        values = kernel.collected(values[hop.arrival], hop.first)
    assert values.tolist() == sums


def test_groups_send_fewer_messages_and_less_between_groups() -> None:
    graph = rmat(11, 40_000, seed=7)
    owner = owners(graph, 64)
    alone, together = Layout.of(graph, owner, 64), Layout.of(graph, owner, 64, 8)
    (direct,), (inside, across) = alone.hops, together.hops
    assert (inside.sources // 8 == inside.destinations // 8).all()
    assert (across.sources % 8 == across.destinations % 8).all()
    assert inside.values.size + across.values.size < direct.values.size / 3
    assert across.values.sum() < direct.values[direct.sources // 8 != direct.destinations // 8].sum()
    with pytest.raises(BadInput, match="groups of 7 do not divide 64 DPUs"):
        Layout.of(graph, owner, 64, 7)


@pytest.mark.oracle
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 9))
def test_dealing_by_load_is_a_heap_of_loads(loads: list[int], units: int) -> None:
    order = sorted(range(len(loads)), key=lambda item: -loads[item])
    heap = [(0, unit) for unit in range(units)]
    expected = [0] * len(loads)
    for item in order:
        load, unit = heapq.heappop(heap)
        expected[item] = unit
        heapq.heappush(heap, (load + loads[item], unit))
    assert kernel.dealt_by_load(np.array(loads), np.array(order), units).tolist() == expected


@pytest.mark.oracle
@given(st.integers(0, kernel.ONE), st.integers(0, kernel.ONE))
def test_the_fixed_point_product_is_exact_and_rounded_down(a: int, b: int) -> None:
    assert kernel.fixed_product(a, b) == a * b // kernel.ONE


def test_partitions_spread_and_balance() -> None:
    graph = rmat(10, 20_000, seed=3)
    edges = {partition: Layout.of(graph, owners(graph, 16, partition), 16) for partition in PARTITIONS}
    block = edges["block"].parts
    assert block.max() - block.min() <= 1
    assert edges["hashed"].parts.min() > 0
    loads = {name: (layout.edges + layout.hops[0].held).max() for name, layout in edges.items()}
    assert loads["balanced"] < loads["hashed"]
    assert loads["balanced"] < loads["block"]
    with pytest.raises(UnknownName, match=r"unknown partition 'blocks'.*did you mean 'block'"):
        owners(graph, 16, "blocks")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="dpus must be a positive whole number, got 0"):
        owners(graph, 0)
    with pytest.raises(BadInput, match="1024 vertices cannot be spread over 1025 DPUs: give at most 1024"):
        owners(graph, 1025)
    assert set(owners(graph, 1024, "block").tolist()) == set(range(1024))


def test_generators_keep_their_seed_and_their_law() -> None:
    power, even = rmat(12, 40_000, seed=1), uniform(4096, 40_000, seed=1)
    again = (rmat(12, 40_000, seed=1), uniform(4096, 40_000, seed=1))
    others = (rmat(12, 40_000, seed=2), uniform(4096, 40_000, seed=2))
    for graph, same, other in zip((power, even), again, others, strict=True):
        assert (graph.sources == same.sources).all()
        assert (graph.targets == same.targets).all()
        assert (graph.sources != other.sources).any()
        assert (graph.vertices, graph.edges) == (4096, 40_000)
    assert even.out_degrees.max() < 40  # a mean of 10
    assert power.out_degrees.max() > 300
    assert (power.out_degrees == 0).sum() > 1000


def test_one_level_of_rmat_has_the_shares_of_its_corners() -> None:
    graph = rmat(1, 100_000, seed=5)
    counts = np.bincount(2 * graph.sources + graph.targets, minlength=4) / graph.edges
    assert np.sort(counts) == pytest.approx(sorted(GRAPH500), abs=0.01)
    assert {int(counts.argmax()), int(counts.argmin())} in ({0, 3}, {1, 2})  # A and D lie across


def test_an_edge_list_is_read_with_its_labels(tmp_path: Path) -> None:
    text = "# a comment\n% another\n\n10 20\n20\t10\n10 700\n10 20\n"
    plain, packed = tmp_path / "web.txt", tmp_path / "web.txt.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        graph = read_edge_list(path)
        assert graph.labels is not None
        assert graph.labels.tolist() == [10, 20, 700]
        assert list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)) == [(0, 1), (1, 0), (0, 2), (0, 1)]
        assert graph.name == path.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n# x\n1\n", "line 3: 1 numbers where an edge has two: write source and target"),
        ("1 2 0.5\n", "line 1: 3 numbers where an edge has two: edges have no weights here"),
        ("1 2\nsix 7\n", "line 2: 'six 7' is not two whole numbers"),
        ("1 2.0\n", "line 1: '1 2.0' is not two whole numbers"),
        ("0 1\n\n0 -1\n", "line 3: '0 -1': a vertex is numbered from 0"),
        ("# nothing\n", "no edges in it"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_edge_list(path)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.txt: cannot be read as an edge list"):
        read_edge_list(tmp_path / "none.txt")
    broken = tmp_path / "edges.gz"
    broken.write_bytes(b"0 1\n")
    with pytest.raises(BadInput, match=r"edges\.gz: cannot be read as an edge list"):
        read_edge_list(broken)


def test_malformed_edges_are_refused() -> None:
    with pytest.raises(BadInput, match=r"edge 1 has targets\[1\]=3: vertices go from 0 to 2"):
        Graph.from_edges([(0, 1), (1, 3)], vertices=3)
    with pytest.raises(BadInput, match=r"edge 0 has sources\[0\]=-1"):
        Graph.from_edges([(-1, 1)])
    with pytest.raises(BadInput, match=r"edge 1 is \(0, 1, 2\): write \(source, target\)"):
        Graph.from_edges([(0, 1), (0, 1, 2)])  # type: ignore[list-item]
    with pytest.raises(BadInput, match="2 sources but 1 targets"):
        Graph(vertices=3, sources=np.array([0, 1]), targets=np.array([1]))
    with pytest.raises(BadInput, match="sources must be a row of whole numbers, got float64"):
        Graph(vertices=3, sources=np.array([0.5]), targets=np.array([1]))
    with pytest.raises(BadInput, match="no edges and no number of vertices"):
        Graph.from_edges([])
    with pytest.raises(BadInput, match="vertices must be a positive whole number"):
        Graph.from_edges([], vertices=0)
    with pytest.raises(BadInput, match="corners must be four probabilities that sum to 1"):
        rmat(4, 10, corners=(0.5, 0.5, 0.5, 0.5))
    with pytest.raises(BadInput, match="edges must be a positive whole number"):
        uniform(4, 0)
