"""Collectives between nodes: numpy's results, and times that add up."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.collective_execution import execute
from oracles.hierarchical_execution import execute_hierarchical
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.collectives.hierarchical import STAGES, hierarchical, network
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.topology.builders import memory_ring
from trainyard.hardware.topology.rings import rings


def level(topology, algorithm):
    loops = rings(topology)

    def move(kind, values, root):
        return execute(kind, list(values), topology, loops, algorithm=algorithm, root=root).values

    return move


def timer(topology, algorithm):
    loops = rings(topology)
    return lambda kind, size: timing(kind, size, topology, loops, algorithm=algorithm)


@pytest.mark.oracle
@given(st.sampled_from(sorted(STAGES.keys() - {"all_to_all"})), st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.data())
def test_results_equal_numpys(kind, nodes, devices, size, data):
    count = nodes * devices
    root = data.draw(st.integers(0, count - 1))
    inside = level(memory_ring(devices=devices, links=2, link_bytes_per_s=1.0), "ring")
    across = level(network(nodes, 1.0), "auto")
    values = [np.random.default_rng(rank).integers(-99, 99, size) for rank in range(count)]
    actual = execute_hierarchical(kind, values, devices=devices, inside=inside, across=across, root=root)
    total, part = np.sum(values, axis=0), -(-size // count)
    match kind:
        case "all_reduce":
            expected = [total] * count
        case "all_gather":
            expected = [np.concatenate(values)] * count
        case "reduce_scatter":
            expected = [total[rank * part : (rank + 1) * part] for rank in range(count)]
        case "broadcast":
            expected = [values[root]] * count
        case "reduce":
            actual, expected = actual[root : root + 1], [total]
    for held, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(held, right)


@pytest.mark.oracle
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_an_all_to_all_over_nodes_transposes_blocks(nodes, devices, size):
    """Block d of device s ends as block s of device d, whatever path it took."""
    count = nodes * devices
    levels = level(network(devices, 1.0), "pairwise"), level(network(nodes, 1.0), "pairwise")
    values = [np.random.default_rng(rank).integers(-99, 99, size * count) for rank in range(count)]
    actual = execute_hierarchical("all_to_all", values, devices=devices, inside=levels[0], across=levels[1])
    blocks = np.stack(values).reshape(count, count, size)
    for rank, held in enumerate(actual):
        np.testing.assert_array_equal(held, blocks[:, rank].reshape(-1))


@pytest.mark.oracle
def test_an_all_to_all_sends_all_but_one_node_s_share_through_the_card_of_a_node():
    """Each of 8 devices has its data for 16 nodes: 15/16 of it leaves, over one card for all eight."""
    devices, nodes, size = 8, 16, 16_000_000
    inside = timer(network(devices, 25e9), "pairwise")
    across = timer(network(nodes, 12.5e9), "pairwise")
    shared, own = (
        hierarchical("all_to_all", size, devices=devices, inside=inside, across=across, shared=s)[1].timing for s in (True, False)
    )
    assert sum(count for path, count in shared.flows for wire, direction in path if (wire, direction) == (0, 0)) == (
        devices * size * (nodes - 1) // nodes
    )
    assert own.time_s == pytest.approx(shared.time_s / devices, rel=0.01)


@pytest.mark.oracle
def test_an_all_reduce_across_nodes_is_bound_by_the_shared_card():
    """8 devices a node on MC-DLA's ring, 16 nodes, one 100 Gbit/s card each: 2 (15/16) of the data through every card."""
    inside = timer(memory_ring(link_bytes_per_s=25e9), "ring")
    across = partial(lambda net, kind, size: timing(kind, size, net, (), algorithm="halving_doubling"), network(16, 12.5e9, 2e-6))
    size = 64_000_000
    actual = hierarchical("all_reduce", size, devices=8, inside=inside, across=across)
    assert [(stage.where, stage.kind) for stage in actual] == list(STAGES["all_reduce"])
    card = actual[1].timing
    assert {count for _, count in card.flows} == {2 * 15 * size // 16}
    rounds = 8 * (2e-6 + 4096 / 12.5e9)  # eight steps, each the network's latency and one message stored in the switch
    assert card.time_s == pytest.approx(2 * 15 / 16 * size / 12.5e9 + rounds)
    own = hierarchical("all_reduce", size, devices=8, inside=inside, across=across, shared=False)
    assert own[1].timing.time_s == pytest.approx(2 * 15 / 16 * size / 8 / 12.5e9 + rounds)
    assert [stage.timing for stage in own[::2]] == [stage.timing for stage in actual[::2]]


def test_one_node_needs_no_network():
    inside = timer(memory_ring(link_bytes_per_s=25e9), "ring")
    across = timer(network(1, 1e9), "auto")
    actual = hierarchical("all_reduce", 8_000_000, devices=8, inside=inside, across=across)
    assert actual[1].timing.time_s == 0
    together = inside("all_reduce", 8_000_000).time_s
    assert sum(stage.timing.time_s for stage in actual) == pytest.approx(together, rel=1e-9)


def test_impossible_collectives_raise_with_the_reason():
    with pytest.raises(UnknownName, match="all_reduce"):
        hierarchical("all_reduced", 8, devices=2, inside=None, across=None)
    with pytest.raises(BadInput, match="multiple of 2"):
        execute_hierarchical("reduce", [np.ones(2)] * 3, devices=2, inside=None, across=None)
