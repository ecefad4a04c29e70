"""Benes networks: settings from the router, held against values pushed through the switches and against every possible setting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import benes_routing
from oracles.benes_routing import naive_routes, naive_settings, routable
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.benes import network as benes
from trainyard.hardware.benes.network import Benes, Settings, TextbookBenes
from trainyard.kernels.networks.benes import _looped


def all_maps(ports, low=0):
    return np.array(list(itertools.product(range(low, ports), repeat=ports)))


def values_for(sources):
    return np.random.default_rng(1).standard_normal(np.shape(sources)).astype(np.float32)


def target(sources, values):
    return np.where(sources >= 0, np.take_along_axis(values, np.maximum(sources, 0), axis=1), np.float32(0))


def passes(network, sources):
    """Passes of every vector, once the switches have delivered exactly what was asked for."""
    sources, values = np.asarray(sources), values_for(sources)
    routed = network.route(sources)
    np.testing.assert_array_equal(network.deliver(routed, values), target(sources, values))
    return routed.passes


def runs(ports, count, seed, most):
    """Ascending runs of sources below a bound, one run per row of a stationary matrix: the maps of SIGMA's counters."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        width, share, sources = random.integers(2, most), random.uniform(0.05, 1), []
        while len(sources) < ports:
            sources.extend(np.flatnonzero(random.random(width) < share))
        yield sources[:ports]


def plain_push(network, bits, inputs):
    """The switches one by one, from the description: names of values in, names out. `bits` is [levels, switches]."""
    double = isinstance(network, Benes)
    count = len(bits[0])
    links = [(inputs[j], None) if double else (inputs[2 * j], inputs[2 * j + 1]) for j in range(count)]
    strides = [2**k for k in range(len(bits) // 2)]
    for level, stride in zip(bits, [*strides, *strides[::-1], None], strict=True):
        outputs = [(pair[cell & 1], pair[cell >> 1 & 1]) for pair, cell in zip(links, level, strict=True)]
        if stride:
            links = [(outputs[j][0], outputs[j ^ stride][1]) for j in range(count)]
    return [outputs[j][0] for j in range(count)] if double else [value for pair in outputs for value in pair]


def plain_loop(sources, outer):
    """The looping algorithm from its description: the middle of every output, and whether all loops were even."""
    links, even = len(sources) << outer, True
    place = {d: d << outer for d, source in enumerate(sources) if source >= 0}
    for level in range(links.bit_length() - 2):
        below = (links >> level) - 1

        def input_link(link, source):
            return (link & ~below) + ((source << outer) >> level)  # noqa: B023

        out = {place[d]: sources[d] for d in sorted(place)}  # where sources clash, the last one counts
        into = {input_link(place[d], sources[d]) for d in place}
        colour = {link: (link >> 1, link & 1) for link in into}  # component, side

        def bound(link):
            return link in out and input_link(link, out[link]) ^ 1 in into  # noqa: B023

        def part(one, other):
            (first, a), (second, b) = (colour[input_link(link, out[link])] for link in (one, other))  # noqa: B023
            if first == second:
                return a != b
            flip = a ^ b ^ 1
            colour.update({link: (second, side ^ flip) for link, (block, side) in colour.items() if block == first})  # noqa: B023
            return True

        def carries(switch):
            return {out[link] for link in (2 * switch, 2 * switch + 1) if link in out}  # noqa: B023

        for link in range(0, links, 2):
            if len(carries(link >> 1)) == 2 and bound(link) and bound(link + 1):
                even &= part(link, link + 1)
        for switch in range(0, links >> 1, 2):
            if len(carries(switch)) == len(carries(switch + 1)) == 1 and carries(switch) != carries(switch + 1):
                one, other = (next(link for link in (2 * s, 2 * s + 1) if link in out) for s in (switch, switch + 1))
                if bound(one) and bound(other):
                    part(one, other)
        half = {link: colour[input_link(link, out[link])][1] for link in out if bound(link)}
        for link in sorted(out.keys() - half.keys()):
            like = {near: out[near] == out[link] for near in (link ^ 1, link ^ 2, link ^ 3) if near in half}
            if link ^ 1 in like:
                half[link] = half[link ^ 1] ^ (not like[link ^ 1])
                continue
            lean = sum((-1 if alike else 2) * (1 - 2 * half[near]) for near, alike in like.items())
            half[link] = int(lean > 0) if lean else (out[link] << outer) >> (level + 1) & 1
        place = {d: (link >> 1) + half[link] * (links >> 1) for d, link in place.items()}
    return [place[d] >> 1 if d in place else -1 for d in range(len(sources))], even


def halves_exist(sources):
    """8 ports, textbook: four-port networks route everything (checked below), so a map is routed if its outputs fall into two
    halves in which no outer switch meets two sources."""
    pairs = [
        (d, e)
        for d, e in itertools.combinations(range(8), 2)
        if sources[d] != sources[e] and (d // 2 == e // 2 or sources[d] // 2 == sources[e] // 2)
    ]
    return any(all((half >> d ^ half >> e) & 1 for d, e in pairs) for half in range(256))


@pytest.mark.paper
@pytest.mark.parametrize(("ports", "levels"), [(2, 3), (4, 5), (128, 15), (512, 19)])
def test_sizes_are_those_of_the_paper(ports, levels):
    network = Benes(ports=ports)
    assert (network.levels, network.switches, network.control_bits) == (levels, levels * ports, 2 * levels * ports)
    textbook = TextbookBenes(ports=ports)
    assert (textbook.levels, textbook.switches) == (levels - 2, (levels - 2) * ports // 2)


@pytest.mark.parametrize("ports", [2, 4])
def test_every_map_of_few_ports_is_delivered_in_one_pass(ports):
    assert (passes(Benes(ports=ports), all_maps(ports, -1)) == 1).all()


@pytest.mark.oracle
def test_textbook_of_four_ports_routes_just_what_some_setting_reaches():
    network = TextbookBenes(ports=4)
    reached = {tuple(plain_push(network, np.reshape(cells, (3, 2)), range(4))) for cells in itertools.product(range(4), repeat=6)}
    maps = all_maps(4)
    np.testing.assert_array_equal(routable(network, maps), [tuple(row) in reached for row in maps.tolist()])
    assert (passes(network, all_maps(4, -1)) == 1).all()


@pytest.mark.oracle
def test_textbook_of_eight_ports_blocks_just_what_has_no_two_halves():
    maps = np.random.default_rng(2).integers(0, 8, (600, 8))
    actual = routable(TextbookBenes(ports=8), maps)
    assert actual.tolist() == [halves_exist(row) for row in maps.tolist()]
    assert 20 < (~actual).sum() < 120


@pytest.mark.paper
def test_textbook_of_eight_ports_blocks_a_tenth_of_the_maps_and_two_passes_do():
    network, maps = TextbookBenes(ports=8), np.random.default_rng(3).integers(0, 8, (40_000, 8))
    free = routable(network, maps)
    assert abs((~free).mean() - 0.105) < 0.006  # exactly 1 761 408 of 8**8 (the slow test counts an eighth); four standard errors
    maps, free = maps[:2000], free[:2000]
    np.testing.assert_array_equal(network.blocks(maps), ~free)
    np.testing.assert_array_equal(passes(network, maps), np.where(free, 1, 2))
    np.testing.assert_array_equal(network.passes(maps), np.where(free, 1, 2))


@pytest.mark.slow
def test_all_maps_of_eight_ports_whose_first_source_is_port_0():
    """Flipping a bit of all source numbers renames switches only, so that the other seven eighths block as often."""
    rest = np.array(np.meshgrid(*[np.arange(8)] * 7, indexing="ij")).reshape(7, -1).T
    blocked = 0
    for part in np.array_split(np.column_stack([np.zeros(len(rest), dtype=np.int64), rest]), 16):
        assert (passes(Benes(ports=8), part) == 1).all()
        blocked += (~routable(TextbookBenes(ports=8), part)).sum()
    assert blocked == 220_176


@pytest.mark.parametrize("network", [Benes(ports=8), TextbookBenes(ports=8)], ids=["sigma", "textbook"])
def test_all_permutations_and_all_monotone_maps_of_eight_ports_take_one_pass(network):
    assert (passes(network, list(itertools.permutations(range(8)))) == 1).all()
    assert (passes(network, list(itertools.combinations_with_replacement(range(8), 8))) == 1).all()


@pytest.mark.parametrize(("ports", "count"), [(16, 300), (128, 100), (512, 10)])
def test_permutations_never_need_more_than_the_looping_algorithm(ports, count, monkeypatch):
    monkeypatch.setattr(benes, "ROUNDS", 1)
    maps = np.argsort(np.random.default_rng(4).random((count, ports)), axis=1)
    idle = np.random.default_rng(5).random(maps.shape) < 0.3
    for network in (Benes(ports=ports), TextbookBenes(ports=ports)):
        assert (passes(network, maps) == 1).all()
        assert (passes(network, np.where(idle, -1, maps)) == 1).all()


@pytest.mark.oracle
@given(st.integers(1, 7), st.sampled_from([0, 1]), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 0.7]))
@settings(max_examples=80, deadline=None)
def test_compiled_routing_equals_plain_python(power, outer, seed, idle):
    ports = 2**power
    for kind in (runs(ports, 1, seed, max(3, ports // 2)), np.random.default_rng(seed).integers(0, ports, (1, ports))):
        sources = np.where(np.random.default_rng(seed).random(ports) < idle, -1, next(iter(kind)))
        middle, work = np.empty(ports, np.int64), np.empty((16, (ports << outer) + 1), np.int32)
        even = _looped(sources, outer, middle, work)
        assert (middle.tolist(), even) == plain_loop(sources.tolist(), outer)


@pytest.mark.parametrize("ports", [8, 128, 512])
def test_a_monotone_map_is_routed_by_the_ranks_of_its_sources(ports):
    maps = np.sort(np.random.default_rng(6).integers(0, ports, (50, ports)), axis=1)
    ranks = np.cumsum(np.diff(maps, axis=1, prepend=maps[:, :1]) > 0, axis=1)
    network, values = Benes(ports=ports), values_for(maps)
    np.testing.assert_array_equal(
        network.deliver(network._set(maps, ranks, np.arange(50), 50), values), np.take_along_axis(values, maps, axis=1)
    )
    assert (passes(network, maps) == 1).all()


@given(st.sampled_from([Benes, TextbookBenes]), st.integers(1, 9), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=60, deadline=None)
def test_sources_that_do_not_decrease_take_one_pass_with_idle_outputs_between(kind, power, seed, idle):
    ports, random = 2**power, np.random.default_rng(seed)
    maps = np.sort(random.integers(0, random.integers(1, ports + 1), (5, ports)), axis=1)
    assert (passes(kind(ports=ports), np.where(random.random(maps.shape) < idle, -1, maps)) == 1).all()


@pytest.mark.parametrize("ports", [2, 4, 8, 64, 128, 256, 512])
@pytest.mark.parametrize("rounds", [1, 500])
def test_carry_equals_route_and_deliver(ports, rounds, monkeypatch):
    """With one round of negotiation some maps take several passes; equal vectors in a row take the same."""
    monkeypatch.setattr(benes, "ROUNDS", rounds)
    random = np.random.default_rng(ports)
    maps = np.array([*runs(ports, 12, 12, max(3, ports * 3 // 8)), *random.integers(-1, ports, (4, ports))])
    maps = np.repeat(maps, random.integers(1, 4, len(maps)), axis=0)
    network, values = Benes(ports=ports), values_for(maps)
    routed = network.route(maps)
    delivered, turns = network.carry(maps, values)
    np.testing.assert_array_equal(delivered, target(maps, values))
    np.testing.assert_array_equal(delivered, network.deliver(routed, values))
    np.testing.assert_array_equal(turns, routed.passes)
    assert rounds > 1 or ports < 64 or turns.max() > 1


def test_random_maps_of_eight_ports_with_idle_outputs_take_one_pass():
    assert (passes(Benes(ports=8), np.random.default_rng(7).integers(-1, 8, (50_000, 8))) == 1).all()


@given(st.integers(1, 9), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.0, 0.2, 0.7]))
@settings(max_examples=60, deadline=None)
def test_any_map_is_delivered(power, random, idle):
    ports = 2**power
    pool = random.sample(range(ports), random.randint(1, ports))
    sources = np.array([[-1 if random.random() < idle else random.choice(pool) for _ in range(ports)] for _ in range(3)])
    assert (passes(Benes(ports=ports), sources) == 1).all()
    if ports <= 64:
        passes(TextbookBenes(ports=ports), sources)


@pytest.mark.paper
def test_the_maps_of_sigmas_counters_take_one_pass_at_128_ports():
    maps = np.array([*runs(128, 100, 8, 128), *runs(128, 150, 9, 48)])
    maps = np.where(np.random.default_rng(10).random(maps.shape) < 0.1, -1, maps)
    assert (passes(Benes(ports=128), maps) == 1).all()


def test_connections_that_do_not_fit_take_further_passes(monkeypatch):
    maps = np.array(list(runs(64, 60, 11, 24)))
    assert (passes(Benes(ports=64), maps) == 1).all()
    monkeypatch.setattr(benes, "ROUNDS", 1)
    actual = passes(Benes(ports=64), maps)
    assert actual.max() > 1
    np.testing.assert_array_equal(Benes(ports=64, latency=3).cycles(maps), 2 + actual)
    np.testing.assert_array_equal(Benes(ports=64).blocks(maps), actual > 1)


@pytest.mark.oracle
@given(st.sampled_from([Benes, TextbookBenes]), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_any_setting_moves_values_as_the_plain_switches_do(kind, power, seed):
    network = kind(ports=2**power)
    random = np.random.default_rng(seed)
    bits = random.integers(0, 4, (1, network.levels, network.switches // network.levels), dtype=np.uint8)
    values = random.standard_normal((1, network.ports)).astype(np.float32)
    built = Settings(bits=bits, enable=np.ones((1, network.ports), dtype=bool), row=np.zeros(1, dtype=np.int64), vectors=1)
    expected = [0.0 if value is None else value for value in plain_push(network, bits[0].tolist(), values[0])]
    np.testing.assert_array_equal(network.deliver(built, values)[0], np.array(expected, dtype=np.float32))


def test_one_wrong_control_bit_misdelivers():
    network, sources = Benes(ports=8), np.array([[3, 1, 4, 1, 5, 0, 2, 6]])
    routed, values = network.route(sources), values_for(sources)
    seen = 0
    for level, switch, bit in itertools.product(range(network.levels), range(8), (1, 2)):
        bits = routed.bits.copy()
        bits[0, level, switch] ^= bit
        changed = Settings(bits=bits, enable=routed.enable, row=routed.row, vectors=1)
        seen += not np.array_equal(network.deliver(changed, values), target(sources, values))
    assert seen >= 8 * network.levels / 2  # eight paths; a bit is shared by two outputs at most where port 1 is copied


@pytest.mark.oracle
def test_naive_routing_delivers_where_nothing_borrows_and_no_link_is_shared():
    maps = all_maps(4)
    network = Benes(ports=4)

    def holds(row):
        links = {}
        for d, s in enumerate(row):
            if s ^ d != abs(s - d):
                return False
            at = s
            for stride in (1, 2):
                after = (at & ~stride) | (d & stride)
                if links.setdefault((stride, at, after), s) != s:
                    return False
                at = after
        return True

    actual = naive_routes(network, maps)
    assert actual.tolist() == [holds(row) for row in maps.tolist()]
    assert actual.sum() == 144
    assert naive_routes(network, [[-1, -1, -1, -1], [-1, 1, 0, -1], [-1, 2, 0, -1]]).tolist() == [True, True, False]


def test_naive_routing_sends_a_borrowing_pair_astray_where_the_router_delivers():
    network, sources = Benes(ports=4), np.array([[0, 2, 2, 3]])
    values = np.array([[10.0, 11.0, 12.0, 13.0]], dtype=np.float32)
    arrived = network.deliver(naive_settings(network, sources), values)
    assert arrived[0, 1] != 12.0  # 2 - 1 = 1: the diagonal of stride 1 leads from 2 to 3, not to 1
    np.testing.assert_array_equal(network.deliver(network.route(sources), values), [[10.0, 12.0, 12.0, 13.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Benes(ports=96), "power of two of at least 2, got 96: write 64 or 128"),
        (lambda: Benes(ports=1), "got 1: write 2"),
        (lambda: TextbookBenes(ports=0), "ports must be a positive whole number"),
        (lambda: Benes(ports=4, latency=0), "latency must be a positive whole number"),
        (lambda: Benes(ports=4).route([[0, 1, 2]]), r"shape \[vectors, 4\].*got shape \(1, 3\)"),
        (lambda: Benes(ports=4).route([[0, 1, 2, 4]]), r"sources\[0, 3\] is 4: an input port 0..3, or -1"),
        (lambda: Benes(ports=4).route([[0, 1, -2, 3]]), r"sources\[0, 2\] is -2"),
        (lambda: Benes(ports=4).route([[0.0, 1, 2, 3]]), "whole numbers"),
        (lambda: Benes(ports=4).deliver(Benes(ports=4).route([[0, 1, 2, 3]]), [[1.0]]), r"values must have shape \[1, 4\]"),
        (lambda: Benes(ports=4).deliver(Benes(ports=8).route([[0] * 8]), [[1.0] * 4]), "route them on this network"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(BadInput, match=message):
        make()


def test_an_undecided_search_raises(monkeypatch):
    monkeypatch.setattr(benes_routing, "STEPS", 1)
    with pytest.raises(NotModelled, match="vector 1 of 8 ports stays undecided"):
        routable(TextbookBenes(ports=8), [[0] * 8, [0, 0, 0, 0, 1, 2, 1, 3]])
