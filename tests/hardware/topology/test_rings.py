"""Rings derived from wires: against every closed walk there is, and on graphs whose answer is known."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import Ring, rings

KINDS = {"D": "device", "M": "memory", "X": "switch", "S": "socket"}


def graph(*pairs):
    """`graph("D0D1", "D1X0")`: places are as the wires name them, devices D, memory-nodes M, switches X, sockets S."""
    names = sorted({pair[at : at + 2] for pair in pairs for at in (0, 2)})
    return Topology(
        places=tuple(Place(name=name, kind=KINDS[name[0]]) for name in names),
        wires=tuple(Wire(a=pair[:2], b=pair[2:], bytes_per_s=25e9) for pair in pairs),
    )


def devices_only(count, pairs):
    return Topology(
        places=tuple(Place(name=f"D{number}", kind="device") for number in range(count)),
        wires=tuple(Wire(a=f"D{a}", b=f"D{b}", bytes_per_s=25e9) for a, b in pairs),
    )


def circle(order):
    return [(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)]


def check(node, actual):
    """Each arc leads from its place to the next, no arc is used twice, every device is passed once, no socket ever."""
    arcs = [arc for ring in actual for arc in ring.arcs]
    assert len(set(arcs)) == len(arcs)
    for ring in actual:
        assert sorted(ring.devices) == sorted(node.devices)
        assert [name for name in ring.walk if name in node.devices] == list(ring.devices)
        assert ring.hops == len(ring.walk) == len(ring.arcs)
        assert all(node.place(name).kind != "socket" for name in ring.walk)
        for here, there, (number, direction) in zip(ring.walk, [*ring.walk[1:], ring.walk[0]], ring.arcs, strict=True):
            wire = node.wires[number]
            assert (here, there) == ((wire.a, wire.b), (wire.b, wire.a))[direction]


def hops(node, **options):
    actual = rings(node, **options)
    check(node, actual)
    return [ring.hops for ring in actual]


# ---- every closed walk, plainly
def closed_walks(node, directed):
    """The wires (or arcs) of every closed walk through all devices once, as sets; wires of the host are not walked."""
    host = {place.name for place in node.places if place.kind == "socket"}
    for _ in node.places:
        for wire in node.wires:
            for here, there in ((wire.a, wire.b), (wire.b, wire.a)):
                if here in host and node.place(there).kind == "switch":
                    host.add(there)
    start = node.devices[0]
    actual = set()

    def walk(here, used, visited):
        for number, wire in enumerate(node.wires):
            for direction, (a, b) in enumerate(((wire.a, wire.b), (wire.b, wire.a))):
                token = 2 * number + direction if directed else number
                if a != here or b in host or token in used:
                    continue
                if b == start:
                    if len(visited) == len(node.devices):
                        actual.add(used | {token})
                elif b not in visited:
                    walk(b, used | {token}, visited | {b} if node.place(b).kind == "device" else visited)

    walk(start, frozenset(), frozenset({start}))
    return sorted(actual, key=lambda one: (len(one), sorted(one)))


def packed(walks):
    """Hop counts of most walks that have nothing in common, lexicographically least."""
    best = []

    def choose(start, used, chosen):
        nonlocal best
        if (-len(chosen), chosen) < (-len(best), best):
            best = chosen
        for number in range(start, len(walks)):
            if not walks[number] & used:
                choose(number + 1, used | walks[number], [*chosen, len(walks[number])])

    choose(0, frozenset(), [])
    return best


@st.composite
def small_graphs(draw, most_wires=9):
    count = draw(st.integers(2, 4))
    others = draw(st.lists(st.sampled_from(["memory", "switch", "memory", "switch", "socket"]), max_size=2))
    kinds = ["device"] * count + others
    names = [f"P{number}" for number in range(len(kinds))]
    ends = st.sampled_from(list(itertools.combinations(names, 2)))
    pairs = draw(st.lists(ends, min_size=count, max_size=most_wires))
    order = draw(st.permutations(range(len(kinds))))
    return Topology(
        places=tuple(Place(name=names[number], kind=kinds[number]) for number in order),
        wires=tuple(Wire(a=a, b=b, bytes_per_s=25e9) for a, b in pairs),
    )


@pytest.mark.oracle
@given(small_graphs())
def test_one_direction_is_the_best_packing_of_all_closed_walks(node):
    expected = packed(closed_walks(node, directed=False))
    if expected:
        assert hops(node, directions="one") == expected
    else:
        with pytest.raises(BadInput, match="has no ring"):
            rings(node, directions="one")


@pytest.mark.oracle
def test_dense_graphs_against_all_closed_walks():
    """Graphs with several rings of several lengths; those of too many walks to try every set of them are left out."""
    random = Random(6)
    lengths = Counter()
    while lengths.total() < 250:
        count, others = random.randint(2, 5), random.randint(0, 3)
        names = [f"D{number}" for number in range(count)] + [f"M{number}" for number in range(others)]
        pairs = list(itertools.combinations(names, 2))
        node = Topology(
            places=tuple(Place(name=name, kind=KINDS[name[0]]) for name in names),
            wires=tuple(Wire(a=a, b=b, bytes_per_s=25e9) for a, b in (random.choice(pairs) for _ in range(random.randint(7, 11)))),
        )
        walks = closed_walks(node, directed=False)
        if 4 < len(walks) < 300:
            expected = packed(walks)
            assert hops(node, directions="one") == expected
            lengths[len(expected), len(set(expected))] += 1
    assert lengths[2, 2] > 20
    assert lengths[3, 2] + lengths[3, 3] > 5


@pytest.mark.oracle
@given(small_graphs(most_wires=7))
def test_both_directions_are_pairs_or_more_directed_walks(node):
    pairs = [count for count in packed(closed_walks(node, directed=False)) for _ in range(2)]
    walks = closed_walks(node, directed=True)
    directed = packed(walks)
    if not walks:
        with pytest.raises(BadInput, match="has no ring"):
            rings(node)
        return
    actual = hops(node)
    assert len(actual) == max(len(pairs), len(directed))
    if len(directed) > len(pairs):
        assert actual == directed
    else:
        assert actual in (pairs, [len(walks[0])] * len(directed))  # in their own order, none could be shorter


@given(small_graphs(), st.randoms(use_true_random=False))
def test_the_order_of_wires_and_their_ends_do_not_matter(node, random):
    turned = [random.choice([wire, Wire(a=wire.b, b=wire.a, bytes_per_s=wire.bytes_per_s)]) for wire in node.wires]
    random.shuffle(turned)
    other = Topology(places=node.places, wires=tuple(turned))
    try:
        expected = hops(node)
    except BadInput:
        with pytest.raises(BadInput, match="has no ring"):
            rings(other)
        return
    assert hops(other) == expected
    assert rings(node) == rings(node)


@given(small_graphs())
def test_another_wire_never_costs_a_ring(node):
    """But for one that puts a switch below a socket."""
    assume(all(place.kind != "socket" for place in node.places))

    def number(wires):
        try:
            return len(rings(Topology(places=node.places, wires=wires)))
        except BadInput:
            return 0

    assert number(node.wires) >= number(node.wires[:-1])


# ---- known answers
def test_a_walk_is_a_ring_in_both_directions():
    forward, back = rings(devices_only(4, circle([0, 2, 1, 3])))
    assert forward == Ring(walk=("D0", "D2", "D1", "D3"), arcs=((0, 0), (1, 0), (2, 0), (3, 0)), devices=("D0", "D2", "D1", "D3"))
    assert back == Ring(walk=("D0", "D3", "D1", "D2"), arcs=((3, 1), (2, 1), (1, 1), (0, 1)), devices=("D0", "D3", "D1", "D2"))
    assert forward.backwards == back
    assert back.backwards == forward
    assert rings(devices_only(4, circle([0, 2, 1, 3])), directions="one") == (forward,)


def test_one_device_has_no_ring():
    assert rings(graph("D0S0", "D0M0")) == ()


def test_a_memory_node_is_passed_twice():
    """Footnote 1 of MC-DLA: ... M0 D0 M0 M1 D1 M1 ..."""
    node = graph("D0M0", "D0M0", "D1M1", "D1M1", "M0M1", "M0M1")
    (ring, _) = rings(node)
    assert ring.walk == ("D0", "M0", "M1", "D1", "M1", "M0")
    assert hops(node) == [6, 6]


def test_the_first_ring_stays_shortest_when_the_second_is_longer():
    node = graph("D0D1", "D1D2", "D2D0", "D0M0", "M0D1", "D1M1", "M1D2", "D2M2", "M2D0")
    assert hops(node, directions="one") == [3, 6]


def test_more_rings_are_preferred_to_shorter_ones():
    """The ring of 4 hops would leave no second one: two of 5 are found."""
    node = graph("D0D1", "D0D2", "D0D2", "D0D3", "D0D3", "D1D2", "D1M0", "D1M0", "D2D3", "D3M0", "D3M0")
    assert hops(node, directions="one", at_most=1) == [4]
    assert hops(node, directions="one") == packed(closed_walks(node, directed=False)) == [5, 5]


def test_of_equal_first_rings_the_one_that_leaves_the_shortest_rest_is_taken():
    node = graph("D0D3", "D0M0", "D0M1", "D0M1", "D1D2", "D1D3", "D1M1", "D1M1", "D2D3", "D2M0", "D2M0", "D2M1", "D3M0", "M0M1")
    assert hops(node, directions="one") == packed(closed_walks(node, directed=False)) == [5, 7]


def test_sockets_and_the_switches_below_them_are_the_hosts():
    node = graph("D0D1", "D1D2", "D2D0", "D0X0", "D1X0", "D2X1", "X0S0", "X1X0")
    assert hops(node) == [3, 3]
    with pytest.raises(BadInput, match="device 'D0' has no link that leads to another device"):
        rings(graph("D0X0", "D1X0", "X0S0", "D0M0", "D1M1"))


def test_three_links_to_a_switch_are_three_rings():
    node = graph(*(f"D{number}X0" for number in range(5) for _ in range(3)))
    assert hops(node) == [10, 10, 10]
    assert hops(node, directions="one") == [10]


@pytest.mark.parametrize("count", [4, 8])
def test_three_links_cannot_be_three_rings_of_four_or_eight_devices(count):
    """Every graph of three links a device that has a ring: a circle and a set of pairs. None gives three directed rings."""
    tried = 0
    for order in itertools.permutations(range(1, count)):
        ends = (0, *order)
        pairs = list(zip(ends[::2], ends[1::2], strict=True))
        if all(a < b for a, b in pairs) and pairs == sorted(pairs):
            tried += 1
            assert hops(devices_only(count, circle(list(range(count))) + pairs)) == [count, count]
    assert tried == {4: 3, 8: 105}[count]


@pytest.mark.parametrize("count", [6, 10])
def test_three_links_are_three_rings_of_six_or_ten_devices(count):
    half = count // 2
    assert (
        hops(devices_only(count, circle(list(range(count))) + [(number, number + half) for number in range(half)])) == [count] * 3
    )


def test_parallel_wires_go_to_the_rings_fastest_first():
    places = tuple(Place(name=name, kind="device") for name in ("D0", "D1", "D2"))
    slow = [Wire(a=a, b=b, bytes_per_s=1e9) for a, b in (("D0", "D1"), ("D1", "D2"), ("D2", "D0"))]
    fast = [Wire(a=wire.a, b=wire.b, bytes_per_s=2e9) for wire in slow]
    first, second = rings(Topology(places=places, wires=(*slow, *fast)), directions="one")
    assert {wire for wire, _ in first.arcs} == {3, 4, 5}
    assert {wire for wire, _ in second.arcs} == {0, 1, 2}


def test_at_most_bounds_the_number_of_rings():
    node = devices_only(4, circle([0, 1, 2, 3]) * 3)
    assert [len(rings(node, at_most=count)) for count in (1, 2, 3, 6, 9)] == [1, 2, 3, 6, 6]
    assert [len(rings(node, at_most=count, directions="one")) for count in (1, 2, 9)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            graph("D0D1", "D2D0"),
            r"device 'D1' has only 1 link, and a ring needs one to come in and one to go out .*: give 'D1' two wires or more",
        ),
        (graph("D0D1", "D0D1", "D2S0"), r"device 'D2' has no link that leads to another device .*: give 'D2' two wires"),
        (graph("D0D1", "D0D1", "D2D3", "D2D3"), r"no way leads from 'D0' to 'D2' .*: add two wires or more between"),
        (
            graph("D0D1", "D0D1", "D1D2", "D1D2"),
            r"no closed walk passes all 3 devices exactly once .*: add wires between devices, or a switch",
        ),
    ],
)
def test_a_graph_without_a_ring_says_why(node, message):
    with pytest.raises(BadInput, match=message):
        rings(node)


def test_one_direction_needs_more_wires_than_both():
    node = graph("D0X0", "D1X0", "D2X0", "D0X1", "D1X1", "D2X1")
    assert hops(node) == [6, 6]
    with pytest.raises(
        BadInput, match=r"no closed walk, each wire in one direction only, passes all 3 .*, or write directions='both'"
    ):
        rings(node, directions="one")


def test_invalid_arguments_of_rings_raise():
    with pytest.raises(UnknownName, match="unknown directions 'all'"):
        rings(graph("D0D1"), directions="all")
    with pytest.raises(BadInput, match="at_most must be a positive whole number"):
        rings(graph("D0D1"), at_most=0)


@pytest.mark.probe
def test_the_search_is_bounded_by_its_steps():
    node = devices_only(8, [pair for order in ((0, 1, 2, 3, 7, 6, 5, 4), (0, 3, 2, 1, 5, 6, 7, 4)) for pair in circle(list(order))])
    with pytest.raises(BadInput, match=r"rings through 8 devices did not end within 1 steps; bound the number of rings"):
        rings(node, steps=1)
    enough = next(steps for steps in range(1, 10_000) if _ends(node, steps))
    assert enough > 7
    assert hops(node, steps=enough) == [8] * 4
    assert not _ends(node, enough - 1)


def _ends(node, steps):
    try:
        return bool(rings(node, steps=steps))
    except BadInput:
        return False


@pytest.mark.parametrize("count", [16, 257, 1024])
def test_a_switched_plane_of_any_size_is_settled_at_once(count):
    places = [Place(name=f"D{number}", kind="device") for number in range(count)] + [
        Place(name=f"X{p}", kind="switch") for p in range(6)
    ]
    wires = [Wire(a=f"D{number}", b=f"X{plane}", bytes_per_s=25e9) for number in range(count) for plane in range(6)]
    node = Topology(places=tuple(places), wires=tuple(wires))
    started = time.perf_counter()
    actual = rings(node)
    assert time.perf_counter() - started < 5  # some 0.2 s; a search would take years
    assert [ring.hops for ring in actual] == [2 * count] * 6
    used = Counter(arc for ring in actual for arc in ring.arcs)
    assert len(used) == 12 * count
    assert set(used.values()) == {1}


def test_two_tiers_of_switches_are_settled_at_once():
    """64 devices on leaves of 8 below one spine: two hops inside a leaf, four from leaf to leaf."""
    places = [Place(name=f"D{number}", kind="device") for number in range(64)]
    places += [Place(name=f"L{leaf}", kind="switch") for leaf in range(8)] + [Place(name="spine", kind="switch")]
    wires = [Wire(a=f"D{number}", b=f"L{number // 8}", bytes_per_s=25e9) for number in range(64) for _ in range(2)]
    wires += [Wire(a=f"L{leaf}", b="spine", bytes_per_s=100e9) for leaf in range(8) for _ in range(2)]
    assert hops(Topology(places=tuple(places), wires=tuple(wires))) == [56 * 2 + 8 * 4] * 2
