"""The scratchpad model against a twin that shares no line with it, cases counted by hand, and what must hold of any order."""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import ArrayCost, MatMul
from trainyard.mapping.gradient_order.scratchpad import Pair, additions, cost, traffic
from trainyard.mapping.gradient_order.tile_streams import Partition
from trainyard.mapping.tiling import Problem, Supply

ORDERS = ("sequential", "interleaved", "dx_major", "dw_major", "no_second_dy")
FUSED = ORDERS[1:4]
K_INNER = ("dx_major_mnk", "dw_major_nmk")
POLICIES = ("lru", "farthest")
TENSORS = ("dY", "W", "X", "dX", "dW")
SHAPES = {"dY": "MN", "W": "KN", "X": "MK", "dX": "MK", "dW": "KN"}


def chopped(begin, end, size):
    """Where the tiles of a stretch begin and end."""
    return [(start, min(start + size, end)) for start in range(begin, end, size)]


def operations(op, tile, order, partition):
    """(gradient, m, n, k) with the ranges of elements, in the order of the text: no other code is asked."""
    axes = {}
    for name, size in zip("MNK", tile, strict=True):
        extent = getattr(op, name)
        parts = min(partition.parts, extent) if partition and partition.axis.upper() == name else 1
        axes[name] = [chopped(extent * p // parts, extent * (p + 1) // parts, size) for p in range(parts)]
    found = []
    for M, N, K in itertools.product(axes["M"], axes["N"], axes["K"]):  # one of the three may have several parts
        dx = [("dX", m, n, k) for m in M for k in K for n in N]
        dw = [("dW", m, n, k) for k in K for n in N for m in M]
        if order in ("sequential", "no_second_dy"):
            found += dx + dw
        elif order == "interleaved":
            for a, b in zip(dx, dw, strict=True):
                found += [a, b]
        elif order == "dx_major":
            found += [(gradient, m, n, k) for m in M for k in K for n in N for gradient in ("dX", "dW")]
        elif order == "dw_major":
            found += [(gradient, m, n, k) for n in N for k in K for m in M for gradient in ("dX", "dW")]
        elif order == "dx_major_mnk":
            found += [(gradient, m, n, k) for m in M for n in N for k in K for gradient in ("dX", "dW")]
        else:
            found += [(gradient, m, n, k) for n in N for m in M for k in K for gradient in ("dX", "dW")]
    return found


@dataclass
class Counted:
    bytes: Counter = field(default_factory=Counter)
    loads: list = field(default_factory=list)
    spills: list = field(default_factory=list)
    finished: list = field(default_factory=list)


def twin(op, tile, capacity, order, policy="lru", partition=None, held=None, moved=None, unfinished=None):
    """Bytes an element, by tensor: `held` in the scratchpad, `moved` over the pins, `unfinished` as a sum that is not done."""
    ops = operations(op, tile, order, partition)
    touches = []
    for gradient, m, n, k in ops:
        names = ("dY", "W", "dX") if gradient == "dX" else ("X", "dY", "dW")
        place = {"M": m, "N": n, "K": k}
        touches.append([(name, *(place[axis] for axis in SHAPES[name])) for name in names])
    left = Counter(tiles[2] for tiles in touches)
    pad, away, counted = OrderedDict(), set(), Counted()

    def area(one):
        return (one[1][1] - one[1][0]) * (one[2][1] - one[2][0])

    def next_touch(one, now):
        for later in range(now + 1, len(touches)):
            if one in touches[later]:
                return later, touches[later].index(one)
        return math.inf, 0

    for now, tiles in enumerate(touches):
        load = spill = done = 0
        for one in tiles:
            if one in pad:
                pad.move_to_end(one)
        for one in tiles:
            if one in pad:
                continue
            while sum(area(other) * held[other[0]] for other in pad) + area(one) * held[one[0]] > capacity:
                others = [other for other in pad if other not in tiles]
                gone = others[0] if policy == "lru" else max(others, key=lambda other: next_touch(other, now))
                del pad[gone]
                if gone[0] in ("dX", "dW"):
                    away.add(gone)
                    counted.bytes[gone[0], "spill"] += area(gone) * unfinished[gone[0]]
                    spill += area(gone) * unfinished[gone[0]]
            pad[one] = True
            if one in away:
                away.remove(one)
                counted.bytes[one[0], "spill"] += area(one) * unfinished[one[0]]
                load += area(one) * unfinished[one[0]]
            elif one[0] not in ("dX", "dW") and not (order == "no_second_dy" and ops[now][0] == "dW" and one[0] == "dY"):
                counted.bytes[one[0], "read"] += area(one) * moved[one[0]]
                load += area(one) * moved[one[0]]
        left[tiles[2]] -= 1
        if not left[tiles[2]]:
            del pad[tiles[2]]
            counted.bytes[tiles[2][0], "write"] += area(tiles[2]) * moved[tiles[2][0]]
            done += area(tiles[2]) * moved[tiles[2][0]]
        counted.loads.append(load)
        counted.spills.append(spill)
        counted.finished.append(done)
    assert not away
    return counted


def the_same(size):
    return dict.fromkeys(TENSORS, size)


def least(op, tile, held):
    """Bytes of one operation on full tiles."""
    m, n, k = (min(size, extent) for size, extent in zip(tile, (op.M, op.N, op.K), strict=True))
    return max(
        m * n * held["dY"] + k * n * held["W"] + m * k * held["dX"], m * k * held["X"] + m * n * held["dY"] + k * n * held["dW"]
    )


def whole(op, held):
    return sum(getattr(op, SHAPES[name][0]) * getattr(op, SHAPES[name][1]) * held[name] for name in TENSORS)


@st.composite
def cases(draw, held=None):
    """A small layer, its tiles, and room between what one operation needs and what everything takes."""
    op = MatMul(*(draw(st.integers(1, 9)) for _ in range(3)))
    tile = tuple(draw(st.integers(1, 4)) for _ in range(3))
    held = held or the_same(draw(st.sampled_from([1, 2, 4])))
    needed = least(op, tile, held)
    capacity = draw(st.integers(needed, max(needed, min(whole(op, held) + 2, 6 * needed))))
    return op, tile, capacity, held["dY"]


orders, policies = st.sampled_from(ORDERS + K_INNER), st.sampled_from(POLICIES)
over_time = st.none() | st.builds(Partition, axis=st.sampled_from("mnk"), parts=st.integers(1, 12))


@pytest.mark.oracle
@given(cases(), orders, policies, over_time)
def test_every_byte_is_that_of_the_twin(case, order, policy, partition):
    op, tile, capacity, size = case
    found = traffic(op, tile=tile, capacity_bytes=capacity, element_bytes=size, order=order, policy=policy, partition=partition)
    expected = twin(op, tile, capacity, order, policy, partition, *[the_same(size)] * 3)
    assert {key: moved for key, moved in found.bytes.items() if moved} == {
        key: moved for key, moved in expected.bytes.items() if moved
    }
    assert found.read_bytes == sum(expected.bytes[name, "read"] for name in TENSORS)
    assert found.write_bytes == sum(expected.bytes[name, "write"] for name in TENSORS)
    assert found.spill_bytes == sum(expected.bytes[name, "spill"] for name in TENSORS)
    assert found.total_bytes == found.read_bytes + found.write_bytes + found.spill_bytes == sum(found.by_tensor.values())
    assert found.by_tensor == {name: sum(expected.bytes[name, way] for way in ("read", "write", "spill")) for name in TENSORS}


class Fixed:
    """An array without cycles of its own: the tests give those of each operation."""

    peak_macs_per_cycle = 1

    def granule(self):
        return (1, 1, 1)

    def cost(self, op, **_):
        return ArrayCost(cycles=op.M * op.N * op.K + op.M)


def overlapped(counted, busy, supply):
    """The first fill, then each step beside what the next one loads, what it pushed out and what the one before finished."""

    def dram(moved):
        return 0 if moved == 0 else supply.latency_cycles + math.ceil(moved / supply.bytes_per_cycle)

    loads = [*counted.loads[1:], 0]
    before = [0, *counted.finished[:-1]]
    steps = zip(busy, loads, counted.spills, before, strict=True)
    return dram(counted.loads[0]) + sum(max(one, dram(a + b + c)) for one, a, b, c in steps) + dram(counted.finished[-1])


RATES = {"dY": 2, "W": 1, "X": 3, "dX": 4, "dW": 5}


@pytest.mark.oracle
@given(
    cases(RATES),
    orders,
    policies,
    over_time,
    st.integers(1, 3),
    st.integers(0, 7),
    st.sampled_from([0.75, 1.0, 8.0]),
    st.booleans(),
)
def test_cycles_overlap_steps_and_bytes_may_differ_by_tensor(case, order, policy, partition, count, latency, rate, by_tile):
    (op, tile, capacity, _) = case
    moved, unfinished = {"dY": 1, "W": 2, "X": 2, "dX": 3, "dW": 1}, {"dX": 6, "dW": 2}
    expected = twin(op, tile, capacity, order, policy, partition, RATES, moved, unfinished)
    areas = {name: count * getattr(op, SHAPES[name][0]) * getattr(op, SHAPES[name][1]) for name in TENSORS}
    pair = Pair(
        op=MatMul(op.M, op.N, op.K, count),
        moved=tuple(areas[name] * moved[name] for name in TENSORS),
        resident=tuple(areas[name] * RATES[name] for name in TENSORS),
        sums=tuple(areas[name] * unfinished[name] for name in ("dX", "dW")),
    )
    supply = Supply(resident_bytes=capacity, bytes_per_cycle=rate, latency_cycles=latency)
    busy = [
        (m[0] + 2 * n[0] + 3 * k[0]) % 7 * 5
        if by_tile
        else _size(m) * _size(n) * _size(k) + (_size(m) if gradient == "dX" else _size(k))
        for gradient, m, n, k in operations(op, tile, order, partition)
    ]
    given_cycles = None
    if by_tile:
        first = _starts(op, tile, partition)

        def given_cycles(gradient, m, n, k):
            return (first["M"][m] + 2 * first["N"][n] + 3 * first["K"][k]) % 7 * 5

    found = cost(
        pair, tile=tile, order=order, array=Fixed(), supply=supply, policy=policy, partition=partition, compute=given_cycles
    )
    repeated = Counted(loads=expected.loads * count, spills=expected.spills * count, finished=expected.finished * count)
    assert found.cycles == overlapped(repeated, busy * count, supply)
    assert found.compute_cycles == sum(busy) * count
    assert {key: moved for key, moved in found.traffic.bytes.items() if moved} == {
        key: moved * count for key, moved in expected.bytes.items() if moved
    }


def _size(stretch):
    return stretch[1] - stretch[0]


def _starts(op, tile, partition):
    """First element of each tile, by axis."""
    found = {axis: set() for axis in "MNK"}
    for _, *stretches in operations(op, tile, "sequential", partition):
        for axis, stretch in zip("MNK", stretches, strict=True):
            found[axis].add(stretch[0])
    return {axis: sorted(starts) for axis, starts in found.items()}


# Tiles of one element, two bytes each, in a layer of 2 x 2 x 2: four tiles of each tensor, eight operations of each gradient.
# With room for three tiles nothing outlives an operation but what the next one touches.
# fmt: off
BY_HAND = {                 # reads of dY, W, X; results written; spills out and in again, of dX and of dW
    "sequential":   (16, 8, 8, 8, 0, 0),
    "interleaved":  (12, 8, 8, 8, 8, 8),  # dY stays only from dX(0,0) to dW(0,0), for dX(1,1) twice, for the last dW
    "dx_major":     ( 8, 8, 8, 8, 8, 8),  # every dX makes room for X or dW once, and so does every dW
    "dw_major":     ( 8, 8, 8, 8, 8, 8),
    "no_second_dy": ( 8, 8, 8, 8, 0, 0),
}
# fmt: on


@pytest.mark.probe
@pytest.mark.parametrize("order", ORDERS)
def test_counted_by_hand(order):
    def moved(capacity):
        found = traffic(MatMul(2, 2, 2), tile=(1, 1, 1), capacity_bytes=capacity, element_bytes=2, order=order)
        read = [found.bytes[name, "read"] // 2 for name in ("dY", "W", "X")]
        return (*read, found.write_bytes // 2, *(found.bytes.get((name, "spill"), 0) // 2 for name in ("dX", "dW")))

    assert moved(6) == moved(7) == BY_HAND[order]  # a byte more is no tile more
    assert moved(40) == (4, 4, 4, 8, 0, 0)  # everything stays
    with pytest.raises(BadInput, match=r"6.*bytes"):
        moved(5)


# The smallest layer in which a tile of dY has to stay while others go by, the tiles that takes, reads of dY then and with less.
# fmt: off
STAYS = [
    ("sequential",   MatMul(2, 1, 1), 4, 2, 4),  # W and dX(1) go by, then X(0): dY(0) and dY(1) stay
    ("interleaved",  MatMul(2, 2, 1), 6, 4, 5),  # dY(0,1) waits while W(1), X(1), dY(1,0), W(0), dX(1) come
    ("dx_major",     MatMul(1, 2, 2), 5, 3, 4),  # dY(0) of k = 0 waits for k = 1 while X, dX, dY(1), W(0,1) are touched
    ("dw_major",     MatMul(2, 1, 2), 6, 2, 4),  # dY(0) of k = 0 waits while X(0,0), dW(0), W(0), dY(1), dX(1,0) are touched
    ("no_second_dy", MatMul(2, 1, 1), 4, 2, 2),  # what is read again costs nothing
]
# fmt: on


@pytest.mark.probe
@pytest.mark.parametrize(("order", "op", "tiles", "kept", "again"), STAYS)
def test_a_byte_less_reads_dy_again(order, op, tiles, kept, again):
    def reads(capacity):
        return traffic(op, tile=(1, 1, 1), capacity_bytes=capacity, element_bytes=4, order=order).by_tensor["dY"] // 4

    assert reads(4 * tiles) == kept
    assert reads(4 * tiles - 1) == again


@pytest.mark.probe
@given(cases(), orders, policies)
def test_room_for_one_operation_is_enough_and_a_byte_less_is_not(case, order, policy):
    op, tile, _, size = case
    needed = least(op, tile, the_same(size))
    traffic(op, tile=tile, capacity_bytes=needed, element_bytes=size, order=order, policy=policy)
    with pytest.raises(BadInput, match=f"needs {needed:,} bytes"):
        traffic(op, tile=tile, capacity_bytes=needed - 1, element_bytes=size, order=order, policy=policy)


@given(cases(), orders, policies, over_time)
def test_what_must_hold(case, order, policy, partition):
    op, tile, capacity, size = case
    given_all = {"tile": tile, "element_bytes": size, "order": order, "policy": policy, "partition": partition}
    found = traffic(op, capacity_bytes=capacity, **given_all)
    once = {"dY": op.M * op.N * size, "W": op.K * op.N * size, "X": op.M * op.K * size}
    results = {("dX", "write"): once["X"], ("dW", "write"): once["W"]}
    assert all(found.bytes[name, "read"] >= bytes_ for name, bytes_ in once.items())
    assert {key: moved for key, moved in found.bytes.items() if key[1] == "write"} == results
    assert found.spill_bytes % 2 == 0  # what goes out unfinished comes in again
    if partition is None and order in ("sequential", "no_second_dy"):
        assert found.spill_bytes == 0  # the summed axis is innermost
    ample = traffic(op, capacity_bytes=whole(op, the_same(size)), **given_all)
    assert {key: moved for key, moved in ample.bytes.items() if moved} == {
        (name, "read"): moved for name, moved in once.items()
    } | results
    assert found.total_bytes >= ample.total_bytes


@given(cases(), policies)
def test_a_second_dy_for_nothing_changes_nothing_else(case, policy):
    op, tile, capacity, size = case
    both = [
        traffic(op, tile=tile, capacity_bytes=capacity, element_bytes=size, order=order, policy=policy).by_tensor
        for order in ("sequential", "no_second_dy")
    ]
    assert both[0].pop("dY") >= both[1].pop("dY")
    assert both[0] == both[1]


@given(st.tuples(*[st.integers(1, 4)] * 3), st.integers(1, 3), orders, st.integers(3, 16))
def test_farthest_next_use_brings_in_least_where_all_tiles_are_as_large(tiles, side, order, room):
    """Tiles that come in, operands and sums, are then fewest of all policies; and more room is never worse."""
    op = MatMul(*(many * side for many in tiles))

    def comes_in(policy, tiles_held):
        found = traffic(
            op, tile=(side,) * 3, capacity_bytes=tiles_held * side**2, element_bytes=1,
            order="sequential" if order == "no_second_dy" else order, policy=policy,
        )  # fmt: skip
        return found.read_bytes + found.spill_bytes // 2

    assert comes_in("farthest", room) <= comes_in("lru", room)
    assert comes_in("farthest", room + 1) <= comes_in("farthest", room)


def test_farthest_next_use_may_move_more_all_the_same():
    """It counts what comes in; a sum that has to leave is written too. So it is a heuristic, even with equal tiles."""
    recent, farthest = (
        traffic(MatMul(2, 2, 2), tile=(1, 1, 1), capacity_bytes=4, element_bytes=1, order="interleaved", policy=policy)
        for policy in POLICIES
    )
    assert (recent.read_bytes, recent.spill_bytes, recent.total_bytes) == (28, 0, 36)
    assert (farthest.read_bytes, farthest.spill_bytes, farthest.total_bytes) == (25, 4, 37)


@pytest.mark.parametrize("cores", [False, True])
@pytest.mark.parametrize("axis", "mnk")
def test_more_parts_than_elements_are_as_many_as_there_are(axis, cores):
    given_all = {"tile": (2, 2, 2), "capacity_bytes": 200, "element_bytes": 1, "order": "dx_major"}
    few, many = (traffic(MatMul(3, 3, 3), partition=Partition(axis=axis, parts=n, cores=cores), **given_all) for n in (3, 50))
    assert few == many


@given(cases(), orders, policies)
def test_one_part_is_no_partition(case, order, policy):
    op, tile, capacity, size = case
    given_all = {"tile": tile, "capacity_bytes": capacity, "element_bytes": size, "order": order, "policy": policy}
    alone = traffic(op, **given_all)
    for axis, cores in itertools.product("mnk", (False, True)):
        assert traffic(op, partition=Partition(axis=axis, parts=1, cores=cores), **given_all) == alone


@given(cases(), orders, policies, st.integers(2, 9))
def test_several_products_are_as_many_times_one(case, order, policy, count):
    op, tile, capacity, size = case
    given_all = {"tile": tile, "capacity_bytes": capacity, "element_bytes": size, "order": order, "policy": policy}
    one, many = traffic(op, **given_all), traffic(MatMul(op.M, op.N, op.K, count), **given_all)
    assert many.bytes == {key: count * moved for key, moved in one.bytes.items()}


@pytest.mark.probe
def test_more_tiles_than_are_walked_are_refused(monkeypatch):
    monkeypatch.setattr("trainyard.mapping.gradient_order.scratchpad.MOST_TILES", 24)
    traffic(MatMul(2, 3, 4), tile=(1, 1, 1), capacity_bytes=8, element_bytes=1, order="interleaved", policy="lru")
    with pytest.raises(BadInput, match=r"5 x 5 x 1 tiles .* give larger tiles"):
        traffic(MatMul(5, 5, 1), tile=(1, 1, 1), capacity_bytes=8, element_bytes=1, order="interleaved", policy="lru")


@given(order=st.sampled_from(ORDERS), sides=st.tuples(*[st.integers(1, 6)] * 3))
def test_a_stream_that_is_not_kept_is_the_same(order, sides):
    from trainyard.mapping.gradient_order import scratchpad as gradient_order

    asked = {"tile": (2, 1, 2), "capacity_bytes": 40, "element_bytes": 1, "order": order, "policy": "lru"}
    kept = traffic(MatMul(*sides), **asked)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(gradient_order, "CACHED_TILES", 0)
        assert traffic(MatMul(*sides), **asked) == kept


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"order": "interleave"}, UnknownName, "did you mean 'interleaved'"),
        ({"order": "dX_major"}, UnknownName, "dx_major"),
        ({"policy": "fifo"}, UnknownName, "unknown policy 'fifo'"),
        ({"tile": (0, 1, 1)}, BadInput, "m must be a positive whole number, got 0"),
        ({"tile": (1, -1, 1)}, BadInput, "n must be a positive whole number, got -1"),
        ({"tile": (1, 1, 1.0)}, BadInput, "k must be a positive whole number"),
        ({"tile": (1, 1)}, BadInput, "three sizes"),
        ({"element_bytes": 0}, BadInput, "element_bytes"),
        ({"element_bytes": 0.5}, BadInput, "element_bytes"),
        ({"capacity_bytes": 0}, BadInput, "bytes"),
        ({"capacity_bytes": -8}, BadInput, "bytes"),
        ({"capacity_bytes": float("nan")}, BadInput, "bytes"),
    ],
)
def test_errors_say_what_and_what_instead(changed, error, said):
    right = {"tile": (1, 1, 1), "capacity_bytes": 8, "element_bytes": 1, "order": "interleaved", "policy": "lru"}
    traffic(MatMul(2, 2, 2), **right)
    with pytest.raises(error, match=said):
        traffic(MatMul(2, 2, 2), **{**right, **changed})


def test_a_partition_of_nothing_is_refused():
    with pytest.raises(BadInput, match="parts"):
        Partition(axis="m", parts=0)
    with pytest.raises(UnknownName, match="axis"):
        Partition(axis="x", parts=2)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_many_equal_products_of_one_step_each_never_outrun_the_dram(count, alone):
    """A whole product in one step: its result is written while the next but one is computed."""
    op = MatMul(64, 3, 64, count)
    pair = Pair.single(Problem.dense(MatMul(64, 64, 3, count), 4)) if alone else Pair.dense(op, 4)
    array, supply = Systolic(rows=16, columns=16), Supply(resident_bytes=1e6, bytes_per_cycle=4.0)
    found = cost(pair, tile=(64, 3, 64), order="interleaved", array=array, supply=supply)
    assert found.cycles >= found.traffic.total_bytes / 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("sizes", "held", "tile", "order"),
    [
        ((40, 17, 23), (4343, 238, 3815, 2041, 425), (2, 6, 8), "interleaved"),
        ((31, 31, 12), (467, 2099, 188, 2930, 3312), (7, 6, 7), "sequential"),
        ((29, 3, 12), (1610, 976, 2016, 3787, 2822), (5, 8, 2), "dx_major"),
    ],
)
def test_fractions_of_bytes_that_just_fit_find_room(sizes, held, tile, order, policy):
    """A raw im2col holds less than a byte an element; sums of such sizes are rounded. Scaled to whole bytes, none is."""
    op = MatMul(*sizes)
    whole = math.lcm(op.M * op.N, op.K * op.N, op.M * op.K)
    exact = tuple(size * whole for size in held)
    array = Systolic(rows=4, columns=4)
    found = []
    for room in (held, exact):
        pair = Pair(op=op, moved=held, resident=room, sums=held[3:])
        supply = Supply(resident_bytes=pair.needed(tile), bytes_per_cycle=1.0)
        found.append(cost(pair, tile=tile, order=order, array=array, supply=supply, policy=policy))
    assert found[0] == found[1]


def test_room_may_be_any_real_number():
    op, kwargs = MatMul(8, 8, 8), {"tile": (4, 4, 4), "element_bytes": 1, "order": "dx_major"}
    assert len({traffic(op, capacity_bytes=kind(64), **kwargs).total_bytes for kind in (int, float, np.int64, np.float32)}) == 1
    with pytest.raises(BadInput, match="three sizes"):
        traffic(op, capacity_bytes=64, **kwargs | {"tile": 4})


@pytest.mark.probe
def test_a_window_reuses_only_what_its_half_holds_counted_by_hand():
    """dX of 1 x 4 x 1 tiles: room for dY, W of two products and their sum is a window of two; the sum passes through DRAM."""
    op = MatMul(1, 4, 1)
    given_all = {"tile": (1, 1, 1), "element_bytes": 1, "order": "sequential", "policy": "window"}
    two, all_of_it = (traffic(op, capacity_bytes=room, **given_all) for room in (5, 14))
    # windows of two products each: dX 0-1, dX 2-3, dW 0-1 (X, two dY, two dW), dW 2-3
    assert two.bytes == {
        ("dY", "read"): 8, ("W", "read"): 4, ("X", "read"): 2, ("dX", "spill"): 2, ("dX", "write"): 1, ("dW", "write"): 4,
    }  # fmt: skip
    assert all_of_it.bytes == {  # 4 of dY, W and dW, X and dX
        ("dY", "read"): 4, ("W", "read"): 4, ("X", "read"): 1, ("dX", "write"): 1, ("dW", "write"): 4,
    }  # fmt: skip
    assert traffic(op, capacity_bytes=13, **given_all).total_bytes > all_of_it.total_bytes


@pytest.mark.probe
def test_operands_alone_stay_and_sums_pass_through_dram_counted_by_hand():
    """Four products are added to one sum of dX: written three times unfinished, read back three times, and written once."""
    moved = traffic(MatMul(1, 4, 1), tile=(1, 1, 1), capacity_bytes=14, element_bytes=1, order="sequential", policy="operands")
    assert moved.bytes == {
        ("dY", "read"): 4, ("W", "read"): 4, ("X", "read"): 1, ("dX", "spill"): 6, ("dX", "write"): 1, ("dW", "write"): 4,
    }  # fmt: skip


@given(cases(), orders, over_time)
def test_a_window_never_moves_less_than_a_scratchpad_of_least_recent_tiles_loads_once(case, order, partition):
    op, tile, capacity, size = case
    given_all = {"tile": tile, "element_bytes": size, "order": order, "partition": partition}
    for policy in ("window", "operands"):
        found = traffic(op, capacity_bytes=capacity, policy=policy, **given_all)
        ample = traffic(op, capacity_bytes=whole(op, the_same(size)), policy="window", **given_all)
        assert found.total_bytes >= ample.total_bytes == traffic(op, capacity_bytes=10**6, **given_all).total_bytes
        assert found.spill_bytes % 2 == 0


def test_a_single_product_has_its_sums_in_the_place_of_dx_and_neither_x_nor_dw():
    """A (4,6) B (6,5): its sum runs over n, its columns are k."""
    problem = Problem(op=MatMul(4, 5, 6, 2), a_bytes=96, b_bytes=120, out_bytes=80, sum_bytes=160, a_sram_bytes=192)
    pair = Pair.single(problem)
    assert pair == Pair(
        op=MatMul(4, 6, 5, 2),
        moved=(96, 120, 0, 80, 0),
        resident=(192, 120, 0, 160, 0),
        sums=(160, 0),
        alone=True,
    )
    assert pair.compulsory_bytes == 96 + 120 + 80


def test_a_pair_of_fewer_products_has_its_share_of_all_bytes():
    pair = Pair(op=MatMul(4, 5, 6, 6), moved=(6, 12, 18, 24, 30), resident=(12, 18, 24, 30, 36), sums=(42, 48))
    two = Pair(op=MatMul(4, 5, 6, 2), moved=(2, 4, 6, 8, 10), resident=(4, 6, 8, 10, 12), sums=(14, 16))
    assert pair.with_count(2) == two
    assert two.with_count(6) == pair


# fmt: off
ADDED = [
    # axis  parts  cores  alone   elements added, of 2 products with dX (4,6) and dW (6,5)
    ("m",   3,     True,  False,  2 * 30 * 2),
    ("m",   3,     True,  True,   0),             # there is no dW
    ("n",   3,     True,  False,  2 * 24 * 2),
    ("n",   3,     True,  True,   2 * 24 * 2),
    ("k",   3,     True,  False,  0),
    ("n",   9,     True,  False,  2 * 24 * 4),    # no more parts than columns
    ("m",   1,     True,  False,  0),
    ("m",   3,     False, False,  0),             # one core does the parts in turn
]
# fmt: on


@pytest.mark.parametrize(("axis", "parts", "cores", "alone", "added"), ADDED)
def test_partial_sums_of_a_gradient_are_added_between_cores_where_its_sum_is_cut(axis, parts, cores, alone, added):
    sizes = (40, 60, 48, 48, 60)
    pair = Pair(op=MatMul(4, 5, 6, 2), moved=sizes, resident=sizes, sums=(48, 60), alone=alone)
    assert additions(pair, Partition(axis=axis, parts=parts, cores=cores)) == added
    assert additions(pair, None) == 0


def test_a_convolution_adds_every_weight_of_its_windows_and_every_row_that_a_stride_inserts():
    sizes = (40, 60, 48, 48, 60)
    pair = Pair(op=MatMul(4, 5, 6, 2), moved=sizes, resident=sizes, sums=(48, 60), windows=9, spread=4)
    assert additions(pair, Partition(axis="m", parts=2, cores=True)) == 2 * 30 * 9
    assert additions(pair, Partition(axis="n", parts=2, cores=True)) == 2 * 24 * 4
