"""Reduction networks: every grouping gives the right sums at the right cycle, along links that exist."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.reduction import adder_trees
from trainyard.hardware.reduction.adder_trees import ADD, BYPASS, IDLE, PORTS, Art, Fan, LinearChain, Temporal, stall_cycles
from trainyard.kernels.networks import adder_trees as compiled

NETWORKS = (Fan, Art, LinearChain, Temporal)


@st.composite
def groupings(draw, largest=9):
    """Lanes of a power of two cut into dot products, with idle stretches in between; ids in any order."""
    lanes = 1 << draw(st.integers(1, largest))
    vec_ids, number = [], 0
    while len(vec_ids) < lanes:
        size = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33, 100, lanes]))
        vec_ids += [-1 if draw(st.integers(0, 4)) == 0 else number] * size
        number += 1
    return np.array([name if name < 0 else (name * 7919) % 10007 for name in vec_ids[:lanes]])


def cuts(lanes, before=0, after=0):
    """All contiguous groupings of the lanes between two idle stretches."""
    used = lanes - before - after
    codes = np.arange(1 << (used - 1))
    new = (codes[:, None] >> np.arange(used - 1)) & 1
    grouped = np.concatenate([np.zeros((len(codes), 1), int), np.cumsum(new, axis=1)], axis=1)
    return np.pad(grouped, ((0, 0), (before, after)), constant_values=-1)


def with_idle_lanes(lanes):
    """All groupings with idle lanes anywhere."""
    actual = set()
    for word in itertools.product("+=-", repeat=lanes):  # starts a dot product, goes on with it, is idle
        vec_ids, number = [], 0
        for lane, sign in enumerate(word):
            number += sign == "+" or (lane > 0 and vec_ids[-1] < 0)
            vec_ids.append(-1 if sign == "-" else number)
        actual.add(tuple(vec_ids))
    return np.array(sorted(actual))


def spans(vec_ids):
    """First and last lane of each dot product, by walking along the lanes."""
    actual = []
    for lane, name in enumerate(vec_ids):
        if name >= 0 and lane and vec_ids[lane - 1] == name:
            actual[-1][1] = lane
        elif name >= 0:
            actual.append([lane, lane])
    return actual


def trailing_ones(number):
    return len(f"{number:b}") - len(f"{number:b}".rstrip("1"))


def highest_level(start, end):
    """The highest adder between two lanes; a lane alone bypasses level 0."""
    return max([trailing_ones(adder) for adder in range(start, end)], default=0)


def art_finish(start, end):
    """Cycles of one dot product in ART, from its two ends alone: level by level the first and the last node that hold a part of it.

    A node with its outer half only hands its part on: the last one to the left if it is even, else the first to the right if odd.
    """
    first, last = start // 2, end // 2
    if first < last and end % 2 == 0 and last % 2 == 0:
        last -= 1
    if first < last and start % 2 == 1 and first % 2 == 1:
        first += 1
    return 1 if first == last else 1 + art_finish(first, last)


FINISH = {
    Fan: lambda start, end, lanes: highest_level(start, end) + 1,
    Art: lambda start, end, lanes: art_finish(start, end),
    LinearChain: lambda start, end, lanes: lanes,
    Temporal: lambda start, end, lanes: end - start + 1,
}


def check(network, vec_ids):
    """Exact sums of powers of two name the lanes in them: each is added exactly once, to its own dot product."""
    ends = spans(vec_ids.tolist())
    actual = network.reduce(np.exp2(np.arange(network.lanes))[None], vec_ids)
    assert actual.sums[0].tolist() == [2.0 ** (end + 1) - 2.0**start for start, end in ends]
    assert actual.finish.tolist() == [FINISH[type(network)](start, end, network.lanes) for start, end in ends]
    assert actual.additions == sum(end - start for start, end in ends)


@pytest.mark.oracle
@pytest.mark.parametrize("network", NETWORKS)
def test_every_grouping_of_eight_lanes_with_idle_lanes_anywhere(network):
    everything = with_idle_lanes(8)
    assert len(everything) > 2000
    for vec_ids in everything:
        check(network(lanes=8), vec_ids)


@pytest.mark.oracle
@pytest.mark.parametrize("network", [Fan, Art])
def test_every_grouping_of_sixteen_lanes_with_idle_lanes_before_and_after(network):
    """Below level 4 a wide tree is many of 16 lanes side by side: 1024 groupings are done at once, and a sample of them alone."""
    finish = np.array([[FINISH[network](start, max(start, end), 16) for end in range(16)] for start in range(16)])
    everything = np.concatenate([cuts(16, before, after) for before in range(16) for after in range(16 - before)])
    assert len(everything) == sum((17 - used) * 2 ** (used - 1) for used in range(1, 17))
    wide = 1024 * 16
    for piece in np.array_split(everything, len(everything) // 1024 + 1):
        vec_ids = np.where(piece < 0, -1, piece + 16 * np.arange(len(piece))[:, None]).ravel()
        vec_ids = np.pad(vec_ids, (0, wide - vec_ids.size), constant_values=-1)
        starts = np.flatnonzero((vec_ids >= 0) & (np.diff(vec_ids, prepend=-1) != 0))
        ends = np.flatnonzero((vec_ids >= 0) & (np.diff(vec_ids, append=-1) != 0))
        expected, products = np.exp2(ends % 16 + 1) - np.exp2(starts % 16), np.exp2(np.arange(wide) % 16)[None]
        actual = network(lanes=wide).reduce(products, vec_ids)
        assert (actual.sums[0] == expected).all()
        assert (actual.finish == finish[starts % 16, ends % 16]).all()
    for vec_ids in everything[::97]:
        check(network(lanes=16), vec_ids)


@pytest.mark.oracle
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=60, deadline=None)
@given(vec_ids=groupings(), seed=st.integers(0, 2**32 - 1))
def test_sums_of_any_width(network, vec_ids, seed):
    random, ends = np.random.default_rng(seed), spans(vec_ids.tolist())
    whole = random.integers(-1000, 1000, (19, len(vec_ids)))
    actual = network(lanes=len(vec_ids)).reduce(whole, vec_ids)
    assert actual.ids.tolist() == [vec_ids[start] for start, _ in ends]
    assert actual.sums.shape == (19, len(ends))
    for sums, (start, end) in zip(actual.sums.T, ends, strict=True):
        assert (sums == whole[:, start : end + 1].sum(axis=1)).all()  # whole numbers below 2^24: exact
    assert actual.additions == 19 * sum(end - start for start, end in ends)
    assert actual.finish.tolist() == [FINISH[network](start, end, len(vec_ids)) for start, end in ends]
    assert actual.cycles == max(actual.finish.tolist(), default=0)
    assert actual.cycles <= network(lanes=len(vec_ids)).fold_cycles(max([end - start + 1 for start, end in ends], default=1))

    real = random.standard_normal((3, len(vec_ids))).astype(np.float32)
    real[:, vec_ids < 0] = np.nan  # what an idle multiplier shows must not matter
    actual = network(lanes=len(vec_ids)).reduce(real, vec_ids)
    for sums, (start, end) in zip(actual.sums.T, ends, strict=True):
        part = real[:, start : end + 1].astype(np.float64)
        bound = 1.01 * (end - start) * 2.0**-24 * np.abs(part).sum(axis=1)  # each addition rounds once
        assert (np.abs(sums - part.sum(axis=1)) <= bound).all()


@pytest.mark.probe
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=25, deadline=None)
@given(vec_ids=groupings(largest=4))
def test_one_cycle_early_is_unfinished_and_on_time_is_right(network, vec_ids):
    tree = network(lanes=len(vec_ids))
    values = np.exp2(np.arange(tree.lanes)) * np.array([[1], [3], [9], [27]])  # partial sums and other vectors' sums all differ
    actual, shown = tree.reduce(values, vec_ids), tree.watch(values, vec_ids)
    for group, finish in enumerate(actual.finish.tolist()):
        for vector in range(4):
            assert shown[vector * actual.interval + finish, group] == actual.sums[vector, group]
            assert shown[vector * actual.interval + finish - 1, group] != actual.sums[vector, group]


@pytest.mark.oracle
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=15, deadline=None)
@given(vec_ids=groupings(largest=7), seed=st.integers(0, 2**32 - 1))
def test_the_compiled_loop_is_the_clocked_network_bit_for_bit(network, vec_ids, seed):
    tree = network(lanes=len(vec_ids))
    values = np.random.default_rng(seed).standard_normal((3, tree.lanes)).astype(np.float32)
    actual, shown = tree.reduce(values, vec_ids), tree.watch(values, vec_ids)
    for group, finish in enumerate(actual.finish.tolist()):
        assert shown[finish :: actual.interval, group][:3].tobytes() == actual.sums[:, group].tobytes()


def lanes_at_adder(tree, adder):
    """Lanes that end at an adder without a link in between; none above level 0 of a tree."""
    if isinstance(tree, LinearChain):
        return {adder}
    if isinstance(tree, Temporal):
        return set(range(adder, tree.lanes))  # the products of its own dot product, one a cycle
    return {adder, adder + 1} if adder % 2 == 0 else set()


def check_structure(tree, vec_ids):
    """Follows lanes through the steps: along links that exist, in time, no adder, wire or register for two dot products."""
    schedule, flip_flops = tree.schedule(vec_ids), {(link.source, link.target): link.flip_flops for link in tree.links}
    if isinstance(tree, Art):
        levels = tree.adder_levels()
        flip_flops |= {(target, source): 0 for source, target in flip_flops if levels[source] == levels[target]}
    held = {lane: (frozenset([lane]), 0) for lane in range(tree.lanes)}
    adds, carried, written = set(), set(), set()
    for cycle, target, sources in zip(schedule.cycles, schedule.targets, schedule.sources, strict=True):
        adder, port = divmod(int(target) - tree.lanes, PORTS)
        sources = [int(slot) for slot in sources if slot >= 0]
        wire = schedule.wired and port == 1
        for slot in sources:
            _, ready = held[slot]
            if slot < tree.lanes:
                assert slot in lanes_at_adder(tree, adder)
                continue
            origin = (slot - tree.lanes) // PORTS
            if origin == adder:
                assert isinstance(tree, Temporal)
            else:
                assert (origin, adder, cycle) not in carried, "a link carries one value"
                carried.add((origin, adder, cycle))
                assert flip_flops[origin, adder] == cycle - ready - 1, "the link exists, and its flip-flops are the wait"
        parts = [held[slot][0] for slot in sources]
        together = frozenset().union(*parts)
        assert sum(map(len, parts)) == len(together), "each product once"
        assert len({int(vec_ids[lane]) for lane in together}) == 1, "one dot product"
        assert vec_ids[min(together)] >= 0
        if len(sources) > 1:
            assert len(sources) <= tree.adder_inputs
            assert (adder, cycle) not in adds, "one dot product in an adder"
            adds.add((adder, cycle))
        assert (target, cycle) not in written
        written.add((target, cycle))
        held[int(target)] = (together, int(cycle) - wire)
    for slot, finish, (start, end) in zip(schedule.outlets, schedule.finish, spans(vec_ids.tolist()), strict=True):
        assert held[int(slot)][0] == frozenset(range(start, end + 1))
        assert held[int(slot)][1] == (end + 1 if isinstance(tree, LinearChain) else finish)


@pytest.mark.oracle
@pytest.mark.parametrize("network", NETWORKS)
def test_values_move_along_links_exhaustively(network):
    for vec_ids in with_idle_lanes(8)[:: 1 if network in (Fan, Art) else 7]:
        check_structure(network(lanes=8), vec_ids)


@pytest.mark.oracle
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=60, deadline=None)
@given(vec_ids=groupings())
def test_values_move_along_links_of_any_width(network, vec_ids):
    check_structure(network(lanes=len(vec_ids)), vec_ids)


@pytest.mark.paper
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32, 64, 512])
def test_fan_has_the_links_of_the_printed_rule(lanes):
    printed = set()
    for adder in range(lanes - 1):
        for level in range(1, trailing_ones(adder) + 1):
            printed |= {(adder - 2 ** (level - 1), adder), (adder + 2 ** (level - 1), adder)}
    tree, width = Fan(lanes=lanes), lanes.bit_length() - 1
    assert {(link.source, link.target) for link in tree.links} == printed
    assert len(tree.links) == len(printed) == 2 * (lanes - 1 - width)
    assert tree.adder_levels().tolist() == [trailing_ones(adder) for adder in range(lanes - 1)]
    assert (tree.adders, tree.adder_inputs) == (lanes - 1, 2)
    assert tree.mux_inputs == sum(2 * trailing_ones(adder) for adder in range(lanes - 1) if trailing_ones(adder) > 1)


@pytest.mark.oracle
@settings(max_examples=100, deadline=None)
@given(vec_ids=groupings())
def test_fan_routes_as_a_search_over_its_links_does(vec_ids):
    """On either side the linked adder of the highest level that adds for the same dot product; else the neighbour's bypass."""
    tree, route, group = Fan(lanes=len(vec_ids)), Fan(lanes=len(vec_ids)).route(vec_ids), dict(enumerate(vec_ids.tolist()))
    inside = [group[adder] if group[adder] == group[adder + 1] else -1 for adder in range(tree.adders)]
    linked = {adder: ([], []) for adder in range(tree.adders)}
    for source, target, _ in tree.links:
        linked[target][source > target].append(source)
    for adder, own in enumerate(inside):
        level = trailing_ones(adder)
        passes = level == 0 and max(group[adder], group[adder + 1]) >= 0
        assert route.mode[adder] == (ADD if own >= 0 else BYPASS if passes else IDLE)
        for side, taken in enumerate((route.left[adder], route.right[adder])):
            expected = 0
            if own >= 0 and level:
                same = [trailing_ones(source) + 1 for source in linked[adder][side] if inside[source] == own]
                expected = max(same, default=1)
                if not same:
                    assert route.mode[adder - 1 + 2 * side] == BYPASS
            assert taken == expected


def test_a_plain_binary_tree_would_mix_dot_products():
    """Sec. IV-A2: in (a0 a1 a2 b0 b1 c0 c1 c2), a2 and b0, and b1 and c0, meet in the same adders; FAN and ART keep them apart."""
    vec_ids, values = np.array([0, 0, 0, 1, 1, 2, 2, 2]), 2.0 ** np.arange(8)
    assert {vec_ids[lane] for lane in (2, 3)} == {0, 1}
    for network in NETWORKS:
        assert network(lanes=8).reduce(values[None], vec_ids).sums.tolist() == [[7.0, 24.0, 224.0]]
    assert Fan(lanes=8).route(vec_ids).mode.tolist() == [ADD, ADD, BYPASS, ADD, BYPASS, ADD, ADD]


def test_art_is_never_later_than_fan_and_saves_levels_where_neighbours_have_no_common_parent():
    pairs = [(start, end) for start in range(64) for end in range(start, 64)]
    assert all(art_finish(*pair) <= highest_level(*pair) + 1 for pair in pairs)
    assert (art_finish(3, 4), highest_level(3, 4) + 1) == (1, 3)  # node 1 and node 2 of level 0 are linked
    assert art_finish(31, 32) == 1
    assert art_finish(1, 2) == highest_level(1, 2) + 1 == 2  # node 0 and node 1 meet in their parent


def test_art_has_no_link_between_siblings_of_one_parent():
    for lanes in (2, 4, 8, 64, 512):
        tree, width = Art(lanes=lanes), lanes.bit_length() - 1
        levels = tree.adder_levels()
        sideways = [link for link in tree.links if levels[link.source] == levels[link.target]]
        up = {link.source: link.target for link in tree.links if levels[link.source] < levels[link.target]}
        assert (len(up), len(sideways)) == (lanes - 2, lanes // 2 - width)
        for source, target, _ in sideways:
            assert up[source] != up[target]
            assert target - source == 2 << levels[source]
        assert (tree.adders, tree.adder_inputs, tree.mux_inputs) == (lanes - 1, 3, 0)


@pytest.mark.parametrize("lanes", [2, 8, 128, 512])
def test_a_fold_waits_for_the_longest_path(lanes):
    one = np.zeros(lanes, dtype=int)
    waits = {network: network(lanes=lanes).fold_cycles(lanes) for network in NETWORKS}
    assert waits == {Fan: lanes.bit_length() - 1, Art: lanes.bit_length() - 1, LinearChain: lanes, Temporal: lanes}
    for network, cycles in waits.items():
        assert network(lanes=lanes).reduce(np.ones((1, lanes)), one).cycles == cycles
    assert Temporal(lanes=lanes).fold_cycles(2) == 2
    assert LinearChain(lanes=lanes).fold_cycles(2) == lanes


@pytest.mark.paper
def test_fan_over_the_linear_chain_in_figure_6b():
    """100 folds of 1000 vectors: little at 32 PEs, half as fast again at 512."""
    ratio = {n: stall_cycles(LinearChain(lanes=n), 100, 1000) / stall_cycles(Fan(lanes=n), 100, 1000) for n in (32, 128, 512)}
    assert ratio[512] == pytest.approx(1512 / 1009)
    assert 1 < ratio[32] < ratio[128] < ratio[512]
    assert stall_cycles(Art(lanes=512), 100, 1000) == stall_cycles(Fan(lanes=512), 100, 1000) == 100 * 1009
    assert stall_cycles(Temporal(lanes=512), 3, 10, longest=4) == 3 * 14


def test_idle_lanes_alone_give_no_sums():
    for network in NETWORKS:
        actual = network(lanes=4).reduce(np.ones((2, 4)), [-1] * 4)
        assert (actual.sums.shape, actual.cycles, actual.additions) == ((2, 0), 0, 0)


def test_adder_modes_are_the_same_numbers_in_kernel_and_network():
    assert (compiled.IDLE, compiled.BYPASS, compiled.ADD) == (adder_trees.IDLE, adder_trees.BYPASS, adder_trees.ADD)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Fan(lanes=12), r"Fan: lanes must be a power of two from 2 on, got 12; the nearest: 8 or 16"),
        (lambda: Art(lanes=100), r"Art: .* the nearest: 64 or 128"),
        (lambda: Fan(lanes=1), r"the nearest: 2$"),
        (lambda: Fan(lanes=0), r"Fan: lanes must be a positive whole number, got 0"),
        (lambda: LinearChain(lanes=-3), r"LinearChain: lanes must be a positive whole number"),
        (lambda: Fan(lanes=4).reduce(np.ones((1, 4)), [0, 0, 1]), r"Fan: vec_ids must be 4 whole numbers, .* shape \(3,\)"),
        (lambda: Fan(lanes=4).reduce(np.ones((1, 4)), [0.0, 0, 1, 1]), r"whole numbers, one for each lane; got float64"),
        (lambda: Fan(lanes=4).reduce(np.ones(4), [0, 0, 1, 1]), r"values must be \[vectors, 4 lanes\], got the shape \(4,\)"),
        (
            lambda: Art(lanes=4).reduce(np.ones((1, 4)), [5, 1, 5, 5]),
            r"Art: id 5 of vec_ids ends at lane 0 and comes again at lane 2",
        ),
        (lambda: Temporal(lanes=4).reduce(np.ones((1, 4)), [5, -1, 5, 5]), r"id 5 .* must follow each other .* the value 0"),
        (lambda: Fan(lanes=4).route([0, -2, 1, 1]), r"vec_ids\[1\] is -2; ids count from 0, and -1 marks an idle lane"),
        (lambda: Fan(lanes=4).fold_cycles(5), r"a dot product of 5 lanes does not fit 4"),
        (lambda: stall_cycles(Fan(lanes=4), 0, 10), r"stall_cycles: folds must be a positive whole number"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(BadInput, match=message):
        call()
