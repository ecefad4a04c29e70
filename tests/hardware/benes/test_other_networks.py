"""The networks beside Benes: what they deliver, and the delay, held against brute force and plain twins."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.benes.network import Benes, TextbookBenes
from trainyard.hardware.benes.other_networks import Bus, Butterfly, Crossbar, Distribution, Mesh, Tree, plain_mesh


def networks(ports):
    tree = Tree(ports=ports, bandwidth=min(3, ports))
    return (
        Benes(ports=ports),
        TextbookBenes(ports=ports),
        Crossbar(ports=ports),
        tree,
        Bus(ports=ports),
        Butterfly(ports=ports),
        Mesh(ports=ports),
    )


@st.composite
def maps(draw, most=6):
    ports = 2 ** draw(st.integers(1, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pool = random.permutation(ports)[: draw(st.integers(1, ports))]
    sources = random.choice(pool, (draw(st.integers(1, 3)), ports))
    return np.where(random.random(sources.shape) < draw(st.sampled_from([0.0, 0.3, 1.0])), -1, sources)


def butterfly_wires(ports, source, end):
    wires, stride = [], ports // 2
    while stride:
        source = (source & ~stride) | (end & stride)
        wires.append((stride, source))
        stride //= 2
    return wires


@given(maps())
@settings(max_examples=60, deadline=None)
def test_every_network_delivers(sources):
    values = np.random.default_rng(0).standard_normal(sources.shape).astype(np.float32)
    expected = np.where(sources >= 0, np.take_along_axis(values, np.maximum(sources, 0), axis=1), 0)
    network: Distribution
    for network in networks(sources.shape[1]):
        np.testing.assert_array_equal(network.deliver(network.route(sources), values), expected, err_msg=str(network))
        assert network.cycles(sources).shape == network.blocks(sources).shape == (len(sources),)


@given(maps())
@settings(max_examples=60, deadline=None)
def test_a_network_without_waiting_takes_the_cycles_of_an_empty_one(sources):
    ports = sources.shape[1]
    for network in (Crossbar(ports=ports), Tree(ports=ports, bandwidth=1), Bus(ports=ports), Butterfly(ports=ports)):
        free = ~network.blocks(sources)
        active = (sources >= 0).any(axis=1)
        np.testing.assert_array_equal(network.cycles(sources)[free], active[free].astype(int))


@pytest.mark.oracle
@given(maps(), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_tree_and_bus_take_the_distinct_sources_over_the_bandwidth(sources, bandwidth):
    ports = sources.shape[1]
    counts = [len({source for source in row if source >= 0}) for row in sources.tolist()]
    bandwidth = min(bandwidth, ports)
    assert Tree(ports=ports, bandwidth=bandwidth).cycles(sources).tolist() == [-(-count // bandwidth) for count in counts]
    assert Bus(ports=ports).cycles(sources).tolist() == counts
    assert not Crossbar(ports=ports).blocks(sources).any()


@pytest.mark.probe
def test_a_tree_cut_off_one_cycle_early_has_not_delivered():
    network, sources = Tree(ports=8, bandwidth=2), np.array([[7, 6, 5, 4, 3, 2, 1, 1]])
    built, values = network.route(sources), np.arange(1, 9, dtype=np.float32)[None]
    cycles = int(network.cycles(sources)[0])
    assert built.slots.shape[1] == cycles == 4
    early = replace(built, slots=built.slots[:, : cycles - 1])
    assert (network.deliver(early, values) == 0).sum() == 1
    assert (network.deliver(built, values) == 0).sum() == 0


@pytest.mark.oracle
@given(maps(4))
@settings(max_examples=80, deadline=None)
def test_butterfly_blocks_just_where_two_sources_meet_on_a_wire(sources):
    ports = sources.shape[1]
    network = Butterfly(ports=ports)
    blocked, cycles = network.blocks(sources), network.cycles(sources)
    for row, actual, taken in zip(sources.tolist(), blocked, cycles, strict=True):
        ends = [d for d in range(ports) if row[d] >= 0]
        paths = {d: set(butterfly_wires(ports, row[d], d)) for d in ends}
        meet = [(d, e) for d, e in itertools.combinations(ends, 2) if row[d] != row[e] and paths[d] & paths[e]]
        assert actual == bool(meet)
        assert taken <= 1 + max((sum(d in pair for pair in meet) for d in ends), default=0)  # the bound of first fit
        assert taken >= bool(ends) + bool(meet)


def test_butterfly_passes_are_greedy_and_not_always_the_fewest():
    """All maps of 4 ports: the fewest passes by trying every split in two."""
    sources = np.array(list(itertools.product(range(4), repeat=4)))
    network = Butterfly(ports=4)
    taken = network.cycles(sources)
    halves = np.array(list(itertools.product([True, False], repeat=4)))
    in_two = np.array(
        [(~network.blocks(np.where(halves, row, -1)) & ~network.blocks(np.where(halves, -1, row))).any() for row in sources]
    )
    assert (taken[~in_two] > 2).all()
    assert (taken[in_two] <= 2).mean() > 0.9
    assert (taken == 1).sum() == (~network.blocks(sources)).sum()


@pytest.mark.oracle
@given(maps(7))
@settings(max_examples=80, deadline=None)
def test_mesh_arrivals_equal_the_cycle_by_cycle_mesh(sources):
    mesh = Mesh(ports=sources.shape[1])
    arrivals, shared = mesh.arrivals(sources)
    for row, actual, busy in zip(sources.tolist(), arrivals.tolist(), shared, strict=True):
        assert actual == plain_mesh(mesh, row, np.zeros(mesh.ports, dtype=np.float32))[1]
        alone = [mesh.cycles(np.array([[source if target == source else -1 for target in row]]))[0] for source in {*row} - {-1}]
        if not busy:
            assert max(actual) == max(alone, default=0)
        assert max(actual) >= max(alone, default=0)


@pytest.mark.probe
def test_a_mesh_element_alone_takes_its_hops_and_the_next_of_its_row_one_more():
    mesh = Mesh(ports=64)
    for source, end in itertools.product(range(0, 64, 5), range(64)):
        sources = np.full((1, 64), -1)
        sources[0, end] = source
        assert mesh.cycles(sources)[0] == 1 + end % 8 + abs(end // 8 - source // 8)
        assert not mesh.blocks(sources)[0]
    pair = np.full((1, 64), -1)
    pair[0, [7, 0]] = 0, 1
    assert mesh.arrivals(pair)[0][0, [7, 0]].tolist() == [8, 2]
    assert mesh.blocks(pair)[0]


@given(maps())
@settings(max_examples=40, deadline=None)
def test_more_bandwidth_never_takes_longer(sources):
    ports = sources.shape[1]
    taken = [Tree(ports=ports, bandwidth=width).cycles(sources) for width in range(1, ports + 1)]
    assert all((fewer >= more).all() for fewer, more in itertools.pairwise(taken))


@pytest.mark.parametrize(
    ("network", "switches", "wires"),
    [
        (Crossbar(ports=16), 256, 32),
        (Tree(ports=8, bandwidth=1), 7, 14),
        (Tree(ports=8, bandwidth=4), 7, 2 * 4 + 4 * 2 + 8),
        (Bus(ports=8), 0, 1),
        (Butterfly(ports=8), 12, 16),
        (Mesh(ports=16), 16, 4 + 12 + 24),
        (Mesh(ports=8), 8, 2 + 6 + 8),
        (Benes(ports=8), 56, 96),
        (TextbookBenes(ports=8), 20, 32),
    ],
    ids=str,
)
def test_networks_have_the_stated_switches_and_wires(network, switches, wires):
    assert (network.switches, network.wires) == (switches, wires)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Crossbar(ports=12), "Crossbar: ports must be a power of two"),
        (lambda: Butterfly(ports=6), "Butterfly: ports must be a power of two of at least 2, got 6: write 4 or 8"),
        (lambda: Mesh(ports=True), "Mesh: ports must be a positive whole number"),
        (lambda: Tree(ports=8, bandwidth=0), "Tree: bandwidth must be a positive whole number, got 0"),
        (lambda: Tree(ports=8, bandwidth=9), "above its 8 leaves"),
        (lambda: Bus(ports=8, bandwidth=2), r"write Tree\(bandwidth=2\)"),
        (lambda: Mesh(ports=4).cycles([[0, 1, 2, 9]]), r"Mesh: sources\[0, 3\] is 9"),
        (lambda: Tree(ports=4, bandwidth=1).route([[[0]]]), r"Tree: sources must have shape \[vectors, 4\]"),
        (lambda: Bus(ports=4).deliver(Bus(ports=4).route([[0, 0, 0, 0]]), [[1.0, 2.0]]), r"Bus: values must have shape \[1, 4\]"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(BadInput, match=message):
        make()
