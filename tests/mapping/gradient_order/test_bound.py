"""The least bytes of a layer's two gradients: below every order, tile, partition and policy, below the best of all executions."""

from __future__ import annotations

import math
from itertools import count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.bound import Bound, _touched, least_bytes, least_bytes_alone, regime
from trainyard.mapping.gradient_order.scratchpad import POLICIES, Pair, cost, traffic
from trainyard.mapping.gradient_order.tile_streams import Order, Partition
from trainyard.mapping.tiling import Supply

Element = tuple[str, int, int]
REAL_ORDERS = ("sequential", "interleaved", "dx_major", "dw_major")  # no_second_dy reads less than it uses


def multiplications(op: MatMul, gradients: tuple[str, ...]) -> list[tuple[Element, Element, Element]]:
    """Two operands and the sum of each scalar multiplication."""
    found: list[tuple[Element, Element, Element]] = []
    for m, n, k in product(range(op.M), range(op.N), range(op.K)):
        if "dX" in gradients:
            found.append((("dY", m, n), ("W", k, n), ("dX", m, k)))
        if "dW" in gradients:
            found.append((("X", m, k), ("dY", m, n), ("dW", k, n)))
    return found


def least_of_all_executions(op: MatMul, room: int, gradients: tuple[str, ...] = ("dX", "dW")) -> int:
    """The fewest elements moved over every order of scalar multiplications and every choice of what leaves, by exhaustive search.

    A state is what has been done, what is in place and which sums lie spilled. What can be done is done at once: that costs nothing
    and never hurts.
    """
    work = multiplications(op, gradients)
    names = sorted({element for triple in work for element in triple})
    number = {name: bit for bit, name in enumerate(names)}
    triples = [sum(1 << number[e] for e in triple) for triple in work]
    users = [sum(1 << at for at, triple in enumerate(triples) if triple >> e & 1) for e in range(len(names))]
    sums = sum(1 << e for e, name in enumerate(names) if name[0] in ("dX", "dW"))

    of = [[(1 << at, triple) for at, triple in enumerate(triples) if triple >> e & 1] for e in range(len(names))]

    def settle(done: int, here: int, new: int) -> tuple[int, int, int]:
        before, written = done, 0
        for bit, triple in of[new]:
            if triple & here == triple:
                done |= bit
        for e in range(len(names)) if done != before else ():
            if here >> e & 1 and users[e] & ~done == 0:
                here &= ~(1 << e)
                written += sums >> e & 1
        return done, here, written

    everything = (1 << len(work)) - 1
    best: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    levels: dict[int, list[tuple[int, int, int]]] = {0: [(0, 0, 0)]}
    for spent in count():
        open_states = levels.pop(spent, [])
        for state in open_states:  # grows while states of the same cost are found
            done, here, away = state
            if best[state] < spent:
                continue
            if done == everything:
                return spent
            for e in (e for e in range(len(names)) if not here >> e & 1 and users[e] & ~done):
                fetched = 0 if sums >> e & 1 and not away >> e & 1 else 1
                full = here.bit_count() >= room
                for leaving in [f for f in range(len(names)) if here >> f & 1] if full else [None]:
                    now, spilled, paid = here | 1 << e, away & ~(1 << e), fetched
                    if leaving is not None:
                        now &= ~(1 << leaving)
                        if sums >> leaving & 1 and users[leaving] & done:
                            spilled |= 1 << leaving
                            paid += 1
                    after, now, written = settle(done, now, e)
                    found, price = (after, now, spilled), spent + paid + written
                    if price < best.get(found, 1 << 30):
                        best[found] = price
                        (open_states if price == spent else levels.setdefault(price, [])).append(found)
    raise AssertionError("unreachable")


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("sizes", "room", "truth"),
    [((2, 2, 1), 3, 17), ((1, 2, 2), 3, 17), pytest.param((2, 1, 2), 4, 14, marks=pytest.mark.slow)],
)
def test_no_execution_at_all_moves_less(sizes: tuple[int, int, int], room: int, truth: int) -> None:
    op = MatMul(*sizes)
    assert least_of_all_executions(op, room) == truth
    assert least_bytes(op, room, 1).total <= truth


@pytest.mark.oracle
@pytest.mark.parametrize("room", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_no_execution_of_one_product_moves_less(room: int) -> None:
    truth = least_of_all_executions(MatMul(2, 2, 2), room, ("dX",))
    bound = least_bytes_alone(MatMul(2, 2, 2), room, 1)
    assert bound.compulsory <= bound.total <= truth
    assert truth <= 1.5 * bound.total, "the bound is of use"


sizes = st.tuples(*[st.integers(1, 12)] * 3)


@settings(max_examples=150, deadline=None)
@given(
    extents=sizes,
    tile=st.tuples(*[st.integers(1, 5)] * 3),
    element_bytes=st.sampled_from([1, 2, 4]),
    spare=st.integers(0, 120),
    order=st.sampled_from(REAL_ORDERS),
    policy=st.sampled_from(POLICIES),
    axis=st.sampled_from(["m", "n", "k", None]),
    parts=st.integers(1, 3),
    cores=st.booleans(),
    products=st.integers(1, 2),
)
def test_no_order_moves_less(extents, tile, element_bytes, spare, order, policy, axis, parts, cores, products) -> None:  # type: ignore[no-untyped-def]
    op = MatMul(extents[0], extents[1], extents[2], products)
    partition = None
    if axis is not None:
        extent = dict(zip("mnk", extents, strict=True))[axis]
        partition = Partition(axis=axis, parts=min(parts, extent), cores=cores)
    workers = partition.parts if partition is not None and cores else 1
    capacity = math.ceil(Pair.dense(op, element_bytes).needed(tile, workers)) + spare
    bound = least_bytes(op, capacity, element_bytes)
    moved = traffic(
        op, tile=tile, capacity_bytes=capacity, element_bytes=element_bytes, order=order, policy=policy, partition=partition
    )
    assert moved.total_bytes >= bound.total


@settings(max_examples=80, deadline=None)
@given(
    extents=sizes,
    tile=st.tuples(*[st.integers(1, 5)] * 3),
    moved=st.tuples(*[st.integers(1, 4)] * 5),
    held=st.tuples(*[st.integers(1, 4)] * 5),
    sums=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    spare=st.integers(0, 200),
    order=st.sampled_from(REAL_ORDERS),
    alone=st.booleans(),
)
def test_tensors_of_different_bytes_keep_it_true(extents, tile, moved, held, sums, spare, order, alone) -> None:  # type: ignore[no-untyped-def]
    m, n, k = extents
    elements = (m * n, k * n, m * k, m * k, k * n)
    moved, held = ([rate * size for rate, size in zip(rates, elements, strict=True)] for rates in (moved, held))
    if alone:
        moved[2] = moved[4] = 0
    spilled = (sums[0] * m * k, 0 if alone else sums[1] * k * n)
    pair = Pair(op=MatMul(m, n, k), moved=tuple(moved), resident=tuple(held), sums=spilled, alone=alone)
    room = math.ceil(pair.needed(tile)) + spare
    supply = Supply(resident_bytes=room, bytes_per_cycle=1.0)
    found = cost(pair, tile=tile, order=order, array=Systolic(rows=4, columns=4), supply=supply)
    assert found.traffic.total_bytes >= least_bytes(pair, room).total


def test_one_byte_less_than_the_least_is_never_claimed_where_the_least_is_reached() -> None:
    """2 K N, a row of dY and one element of dX, then of X: one pass moves everything once; with less room it does not."""
    op, room = MatMul(40, 6, 5), 2 * 30 + 6 + 1
    for capacity, reached in ((room, True), (room - 1, False)):
        moved = traffic(op, tile=(1, 6, 1), capacity_bytes=capacity, element_bytes=1, order="dx_major", policy="farthest")
        bound = least_bytes(op, capacity, 1)
        assert (moved.total_bytes == bound.total) is reached
        assert (regime(op, capacity, 1) == "weights stay") is reached


@pytest.mark.parametrize(("extents", "room", "named"), [((40, 5, 6), 66, "weights stay"), ((5, 40, 6), 66, "inputs stay")])
def test_regimes_that_stay_are_executable(extents: tuple[int, int, int], room: int, named: str) -> None:
    op = MatMul(*extents)
    assert regime(op, room, 1) == named
    tile: tuple[int, int, int] = (1, 5, 1) if named == "weights stay" else (5, 1, 1)
    order: Order = "dx_major" if named == "weights stay" else "dw_major"
    moved = traffic(op, tile=tile, capacity_bytes=room, element_bytes=1, order=order, policy="farthest")
    assert moved.total_bytes == least_bytes(op, room, 1).compulsory


def test_where_half_stays_each_product_apart_moves_all_once() -> None:
    op, room = MatMul(40, 5, 6), 30 + 5 + 6
    assert regime(op, room, 1) == "half stays"
    moved = traffic(op, tile=(1, 5, 6), capacity_bytes=room, element_bytes=1, order="sequential", policy="farthest")
    assert moved.total_bytes == least_bytes(op, room, 1).compulsory + 40 * 5


def test_dy_that_stays_is_read_once_in_every_order() -> None:
    op = MatMul(5, 6, 40)
    room = 30 + 6 + 1
    assert regime(op, room, 1) == "dY stays"
    moved = traffic(op, tile=(5, 6, 1), capacity_bytes=30 + 2 * (5 + 6), element_bytes=1, order="sequential")
    assert moved.total_bytes == least_bytes(op, 30 + 2 * (5 + 6), 1).total


@given(extents=st.tuples(*[st.integers(1, 400)] * 3), capacity=st.integers(1, 20000), more=st.integers(1, 5000))
def test_more_room_never_needs_more(extents: tuple[int, int, int], capacity: int, more: int) -> None:
    op = MatMul(*extents)
    assert least_bytes(op, capacity + more, 2).total <= least_bytes(op, capacity, 2).total
    assert least_bytes(op, capacity, 2).compulsory == Pair.dense(op, 2).compulsory_bytes


def test_large_layers_meet_the_closed_form() -> None:
    size, room = 4096, 1024
    bound = least_bytes(MatMul(size, size, size), room * room * 4, 4)
    assert bound.capacity == pytest.approx((4 * size**3 / room + room * room) * 4, rel=1e-3)
    alone = least_bytes_alone(MatMul(size, size, size), room * room * 4, 4)
    assert alone.capacity == pytest.approx((2 * size**3 / room + room * room) * 4, rel=1e-3)


def test_sums_of_more_bytes_than_results_keep_the_bound_true() -> None:
    op = MatMul(64, 64, 64)
    narrow = Pair.dense(op, 2)
    wide = Pair(
        op=op,
        moved=narrow.moved,
        resident=(*narrow.resident[:3], 2 * narrow.resident[3], 2 * narrow.resident[4]),
        sums=(16384, 16384),
    )
    assert least_bytes(wide, 2048).total <= least_bytes(narrow, 2048).total * (1 + 1e-6)


def test_refusals() -> None:
    with pytest.raises(BadInput, match="needs element_bytes"):
        least_bytes(MatMul(2, 2, 2), 64)
    with pytest.raises(BadInput, match="capacity_bytes must be positive"):
        least_bytes(MatMul(2, 2, 2), 0, 4)
    assert Bound(compulsory=20, capacity=10, segments=1).total == 20


# fmt: off
ROOM = [
    # M, N, K        bytes of an element of dY, W, X, dX, dW
    ((3, 4, 50),     (2, 1, 3, 5, 7), "dY stays",     2 * 12 + max(min(4 * 1 + 5, 3 * 5 + 1), min(4 * 7 + 3, 3 * 3 + 7))),
    ((50, 4, 3),     (2, 1, 3, 5, 7), "weights stay", 12 * (1 + 7) + min(4 * 2 + 5, 3 * (3 + 5) + 2)),
    ((4, 50, 3),     (2, 1, 3, 5, 7), "inputs stay",  12 * (3 + 5) + min(4 * 2 + 7, 3 * (1 + 7) + 2)),
    ((50, 4, 3),     (2, 3, 1, 1, 4), "half stays",   12 * 4 + min(4 * 2 + 1, 3 * 1 + 2)),    # dW and a row of X, an element of dY
    ((50, 3, 4),     (2, 3, 1, 1, 4), "half stays",   12 * 4 + min(3 * 2 + 1, 4 * 1 + 2)),    # the same, with a row of dY
    ((50, 4, 3),     (2, 4, 1, 1, 3), "half stays",   12 * 4 + min(4 * 2 + 1, 3 * 1 + 2)),    # W needs more than dW
    ((4, 50, 3),     (2, 1, 4, 3, 1), "half stays",   12 * 4 + min(4 * 2 + 1, 3 * 1 + 2)),    # X and an element of the others
    ((50, 3, 40),    (1, 1, 1, 1, 1), "half stays",   3 * 40 + min(3 + 1, 40 + 1)),
    ((50, 3, 5),     (9, 1, 2, 2, 3), "half stays",   15 * 3 + min(3 * 9 + 2, 5 * 2 + 9)),    # a row of dY is wide
    ((50, 5, 3),     (1, 1, 9, 2, 3), "half stays",   15 * 3 + min(5 * 1 + 9, 3 * 9 + 1)),    # a row of X is
]
# fmt: on


@pytest.mark.probe
@pytest.mark.parametrize(("extents", "rates", "named", "room"), ROOM)
def test_a_regime_begins_at_the_byte_at_which_its_tensors_have_room(
    extents: tuple[int, int, int], rates: tuple[int, int, int, int, int], named: str, room: int
) -> None:
    m, n, k = extents
    y, w, x, d, g = (rate * size for rate, size in zip(rates, (m * n, k * n, m * k, m * k, k * n), strict=True))
    pair = Pair(op=MatMul(m, n, k), moved=(y, w, x, d, g), resident=(y, w, x, d, g), sums=(d, g))
    assert regime(pair, room) == named
    assert regime(pair, room - 1) != named


@given(
    weights=st.tuples(*[st.fractions(min_value=1, max_value=8, max_denominator=7).map(float)] * 3),
    extents=st.tuples(*[st.integers(1, 60)] * 3),
)
def test_one_run_needs_all_of_three_tensors_however_the_products_of_fractions_round(
    weights: tuple[float, float, float], extents: tuple[int, int, int]
) -> None:
    m, n, k = extents
    limits = (m * n, k * n, m * k)
    expected = sum(weight * limit for weight, limit in zip(weights, limits, strict=True))
    assert _touched(weights, limits, m * n * k, m * n * k) == pytest.approx(expected, rel=1e-12)


@pytest.mark.probe
def test_what_roots_round_is_rounded_down() -> None:
    """In one run everything moves once; taken from roots, that is claimed but for a byte."""
    op = MatMul(4, 5, 6, 3)
    bound = least_bytes(op, 10**6, 2)
    assert (bound.compulsory, bound.capacity) == (Pair.dense(op, 2).compulsory_bytes, Pair.dense(op, 2).compulsory_bytes - 1)
    assert least_bytes_alone(op, 10**6, 2).compulsory == 2 * 3 * (24 + 30 + 20)
