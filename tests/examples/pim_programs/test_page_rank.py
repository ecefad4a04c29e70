"""PageRank on DPUs: the ranks of networkx and of numpy's power iteration, on any machine, cut in any way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pim_programs.graph import Graph, rmat, uniform
from pim_programs.page_rank import PAIR_BYTES, VALUE_BYTES, HostWork, Number, page_rank, part_bytes
from pim_programs.partition import Layout, PartitionRule, owners
from trainyard.devices.dpu.presets import UPMEM
from trainyard.errors import BadInput, UnknownName
from trainyard.systems.pim.systems import DpuToDpu, HostMediated

MACHINES = (DpuToDpu(dpus=8, cluster_size=4), HostMediated(dpus=8))


def power_iteration(graph: Graph, damping: float = 0.85) -> npt.NDArray[np.float64]:
    """The whole matrix, until nothing changes any more."""
    n = graph.vertices
    matrix = np.zeros((n, n))
    np.add.at(matrix, (graph.targets, graph.sources), 1 / np.maximum(graph.out_degrees, 1)[graph.sources])
    matrix[:, graph.out_degrees == 0] = 1 / n
    ranks = np.full(n, 1 / n)
    for _ in range(400):
        ranks = (1 - damping) / n + damping * (matrix @ ranks)
    return ranks


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    vertices = draw(st.integers(8, 30))
    vertex = st.integers(0, vertices - 1)
    return Graph.from_edges(draw(st.lists(st.tuples(vertex, vertex), max_size=90)), vertices=vertices)


@pytest.mark.oracle
@settings(max_examples=15)
@given(graphs(), st.sampled_from(MACHINES), st.sampled_from(get_args(PartitionRule)), st.sampled_from((1, 2, 4, None)))
def test_ranks_are_those_of_power_iteration(
    graph: Graph, machine: DpuToDpu | HostMediated, partition: PartitionRule, combining: int | None
) -> None:
    expected = power_iteration(graph)
    for number, host in itertools.product(get_args(Number), get_args(HostWork) if combining in (1, None) else ("sorts",)):
        run = page_rank(graph, machine, partition=partition, number=number, combining=combining, host=host)
        assert run.converged
        assert np.abs(run.values - expected).max() < 1e-10
        assert run.values.sum() == pytest.approx(1, abs=1e-11)


@pytest.mark.oracle
def test_ranks_are_those_of_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    pytest.importorskip("scipy")
    for graph in (rmat(9, 4000, seed=2), uniform(400, 3000, seed=2)):
        same = networkx.MultiDiGraph()
        same.add_nodes_from(range(graph.vertices))
        same.add_edges_from(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
        found = networkx.pagerank(same, alpha=0.9, tol=1e-15, max_iter=1000)
        run = page_rank(graph, DpuToDpu(dpus=128), damping=0.9)
        assert np.abs(run.values - np.array([found[vertex] for vertex in range(graph.vertices)])).max() < 1e-10


def test_fixed_point_has_the_same_bits_on_every_machine_however_cut() -> None:
    graph = rmat(8, 2500, seed=4)
    first = page_rank(graph, HostMediated(dpus=1), partition="block").values.tobytes()
    for dpus, partition in itertools.product((4, 32, 128), get_args(PartitionRule)):
        assert page_rank(graph, HostMediated(dpus=dpus), partition=partition).values.tobytes() == first
        assert page_rank(graph, DpuToDpu(dpus=dpus, cluster_size=4), partition=partition).values.tobytes() == first
    assert page_rank(graph, DpuToDpu(dpus=32, agau=None)).values.tobytes() == first


def test_parts_sum_to_the_run_and_work_is_counted() -> None:
    graph = rmat(10, 20_000, seed=1)
    for machine in (DpuToDpu(dpus=128), HostMediated(dpus=128)):
        run = page_rank(graph, machine, host="sorts")
        assert sum(run.by_part.values()) == pytest.approx(run.seconds)
        assert run.work == 20_000 * run.iterations
        assert run.work_per_s == pytest.approx(run.work / run.seconds)
        assert run.energy_j == pytest.approx(sum(run.cost.energy_j.values()))
        assert run.cost.imbalance >= 1
        hops = Layout.of(graph, owners(graph, 128), 128, 64 if isinstance(machine, DpuToDpu) else 1).hops
        sent = sum(int(hop.values.sum()) for hop in hops) * PAIR_BYTES
        assert run.bytes == sent * (run.iterations + 1)  # what is spread before the first iteration
    stopped = page_rank(graph, HostMediated(dpus=8), most_iterations=2)
    assert (stopped.iterations, stopped.converged) == (2, False)


def test_messages_one_after_another_to_the_same_dpu_are_slower_than_staggered() -> None:
    graph, machine = uniform(4096, 60_000), DpuToDpu(dpus=64)
    staggered = page_rank(graph, machine, most_iterations=1)
    in_order = page_rank(graph, machine, most_iterations=1, sending="in_order")
    assert in_order.cost.communication_s > 1.5 * staggered.cost.communication_s
    assert in_order.bytes == staggered.bytes
    with pytest.raises(UnknownName, match="order of sending 'random'"):
        page_rank(graph, machine, sending="random")  # type: ignore[arg-type]


def test_one_dpu_sends_no_messages() -> None:
    run = page_rank(uniform(50, 300), DpuToDpu(dpus=1))
    assert (run.bytes, run.by_part["communication"], run.by_part["synchronisation"]) == (0, 0, 0)


@pytest.mark.probe
def test_a_part_one_byte_larger_than_mram_is_refused() -> None:
    graph = uniform(64, 1000)
    needed = int(part_bytes(Layout.of(graph, owners(graph, 8), 8)).max())
    page_rank(graph, HostMediated(dpus=8, dpu=replace(UPMEM, mram_bytes=needed)), host="sorts")
    with pytest.raises(BadInput, match=r"page_rank: the part of DPU \d takes .* its MRAM has .*: give more DPUs"):
        page_rank(graph, HostMediated(dpus=8, dpu=replace(UPMEM, mram_bytes=needed - 1)), host="sorts")


def test_wrong_arguments_say_what_to_write() -> None:
    graph, machine = uniform(64, 100), HostMediated(dpus=8)
    for damping in (0, 1, -0.5, 1.5):
        with pytest.raises(BadInput, match="damping must"):
            page_rank(graph, machine, damping=damping)
    with pytest.raises(BadInput, match="tolerance must be above 0"):
        page_rank(graph, machine, tolerance=0)
    with pytest.raises(BadInput, match="most_iterations must be a positive whole number"):
        page_rank(graph, machine, most_iterations=0)
    with pytest.raises(UnknownName, match=r"unknown number format 'fp16'.*page_rank"):
        page_rank(graph, machine, number="fp16")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="groups of 3 do not divide 8 DPUs"):
        page_rank(graph, machine, combining=3, host="sorts")
    with pytest.raises(BadInput, match="combining=2 where the host adds up all: give combining=1, or host='sorts'"):
        page_rank(graph, machine, combining=2)
    with pytest.raises(UnknownName, match=r"unknown work of the host 'add'.*did you mean 'adds'"):
        page_rank(graph, machine, host="add")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="64 vertices cannot be spread over 128 DPUs"):
        page_rank(graph, HostMediated(dpus=128))
    with pytest.raises(BadInput, match="dpus must be a positive whole number, got 0"):
        page_rank(graph, HostMediated(dpus=0))


def test_fp64_costs_more_instructions_than_fixed_point() -> None:
    graph, machine = rmat(10, 20_000), DpuToDpu(dpus=16)
    fixed, floating = (page_rank(graph, machine, number=number, most_iterations=1).cost.compute_s for number in ("fixed64", "fp64"))
    assert floating > 3 * fixed


def test_slower_dpus_end_the_superstep() -> None:
    graph = uniform(4096, 60_000)
    even, uneven = (page_rank(graph, DpuToDpu(dpus=64, cluster_size=8, speeds=s), most_iterations=1).cost for s in ((), (1.0, 0.5)))
    assert uneven.compute_s == pytest.approx(2 * even.compute_s, rel=0.05)
    assert uneven.communication_s == even.communication_s


def test_a_host_that_adds_gets_all_slots_and_gives_one_value_for_each_vertex() -> None:
    graph, machine = rmat(11, 40_000, seed=5), HostMediated(dpus=128)
    layout = Layout.of(graph, owners(graph, 128), 128)
    adds, sorts = (page_rank(graph, machine, host=host, most_iterations=4) for host in ("adds", "sorts"))
    assert adds.values.tobytes() == sorts.values.tobytes()
    assert adds.bytes == 5 * PAIR_BYTES * int(layout.made.sum())
    ranks = [slice(0, 64), slice(64, 128)]
    padded = sum(64 * -(-int((layout.made[rank] * PAIR_BYTES + 16).max()) // 8) * 8 for rank in ranks)
    padded += sum(64 * int((layout.parts[rank] * VALUE_BYTES + 16).max()) for rank in ranks)
    assert adds.cost.link_bytes["host link"] - page_rank(graph, machine, most_iterations=3).cost.link_bytes["host link"] == padded
    assert adds.cost.communication_s < sorts.cost.communication_s
    assert adds.cost.compute_s < sorts.cost.compute_s
