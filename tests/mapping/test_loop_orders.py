"""Given tiles: their best loop order against brute force over all orders, and the compiled walk against the plain one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.ir import Convolution, MatMul
from trainyard.mapping.halo import halo_of
from trainyard.mapping.loop_orders import LoopOrders
from trainyard.mapping.lowering import lower
from trainyard.mapping.tile_descent import CountedTiles
from trainyard.mapping.tiling import ORDERS, TENSORS, Goal, Problem, Supply, Tiling, evaluate, needed_bytes
from trainyard.mapping.walk import steps, walk, walk_counted

IMAGE = Convolution(batch=2, in_channels=1, out_channels=2, size=(4, 3), kernel=(3, 3), padding=(1, 1))
LACKS = {"n": "a", "m": "b", "k": "out"}
sides, extents = st.integers(1, 13), st.integers(1, 24)
supplies = st.builds(
    Supply,
    resident_bytes=st.sampled_from([64, 200, 1000, 10**6]),
    bytes_per_cycle=st.sampled_from([0.3, 1.0, 7.5, 64.0]),
    latency_cycles=st.sampled_from([0, 5, 100]),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    op, halo = MatMul(draw(extents), draw(extents), draw(extents), draw(st.sampled_from([1, 1, 2, 3]))), None
    if draw(st.integers(0, 3)) == 0:
        image = replace(IMAGE, product=draw(st.sampled_from(["forward", "grad_input", "grad_weight"])))
        grad_input = draw(st.sampled_from(["col2im", "dilated"]))
        op, halo = lower(image, grad_input).product, halo_of(image, grad_input)
    a, b, out, sums = (draw(st.integers(1, 5000)) for _ in range(4))
    return Problem(op=op, a_bytes=a, b_bytes=b, out_bytes=out, sum_bytes=sums, halo=halo)


def cycles_of(m: int, n: int, k: int) -> int:
    """Any array: no two sizes are alike."""
    return 1 + (m * 31 + n * 17 + k * 7) % 23 * (1 + m * n * k // 50)


def every_order(problem: Problem, size: tuple[int, int, int]) -> list[Tiling]:
    """Orders with nothing kept, then those with one tensor kept, then those with two."""
    tilings = []
    for kept in range(3):
        for order in problem.orders or ORDERS:
            lacking = {LACKS[order[1]], LACKS[order[0]]} if kept == 2 else {LACKS[order[1]]} if kept else set()
            if set(problem.keep) <= {*lacking, LACKS[order[2]]}:
                tilings.append(Tiling(m=size[0], n=size[1], k=size[2], order=order, keep=tuple(t for t in TENSORS if t in lacking)))
    return tilings


@pytest.mark.oracle
@given(
    problem=problems(),
    supply=supplies,
    tile=st.tuples(sides, sides, sides),
    orders=st.sampled_from([(), (), ("nkm",), ("mnk", "kmn")]),
    keep=st.sampled_from([(), (), ("a",), ("a", "b"), ("out",)]),
    tolerance=st.sampled_from([0.0, 0.01, 0.3]),
    objective=st.sampled_from(["time", "traffic", "edp"]),
)
def test_the_order_of_a_tile_is_the_best_of_all(problem, supply, tile, orders, keep, tolerance, objective):
    problem, op = replace(problem, orders=orders, keep=keep), problem.op
    goal = Goal(objective=objective, tolerance=tolerance, energy=(1e-3, lambda _: 1.0))
    size = min(tile[0], op.M), min(tile[1], op.N), min(tile[2], op.K)
    array = CountedTiles(Systolic(rows=4, columns=4), cycles_of)
    costs = [
        evaluate(problem, one, array, supply)
        for one in every_order(problem, size)
        if needed_bytes(problem, one) <= supply.resident_bytes
    ]
    search = LoopOrders.of(problem, supply, goal)
    best = search.best(size, cycles_of)
    assert (best is None) == (not costs)
    if best is None:
        return

    def value(moved, cycles):
        joules = 1e-3 * moved + 1.0
        return {"time": cycles, "traffic": moved, "edp": joules * cycles}[objective]

    least = min(value(cost.dram_bytes, cost.cycles) for cost in costs)
    rounding = 0.0 if problem.halo is None else 3.0  # bytes with a halo are rounded by tensor
    assert best.value <= (least + rounding * (1 + least * 1e-3)) * (1 + tolerance)
    near = [cost for cost in costs if value(cost.dram_bytes, cost.cycles) <= least * (1 + tolerance) * (1 - 1e-9)]
    assert best.dram_bytes <= min((cost.dram_bytes for cost in near), default=np.inf) + rounding
    assert search.tiled(best) == evaluate(problem, best.tiling, array, supply)
    assert needed_bytes(problem, best.tiling) <= supply.resident_bytes


@pytest.mark.oracle
@given(
    problem=problems(),
    supply=supplies,
    tile=st.tuples(sides, sides, sides),
    order=st.sampled_from(ORDERS),
    keep=st.sets(st.sampled_from(TENSORS)),
    seed=st.integers(0, 99),
)
def test_a_compiled_walk_over_counted_tiles_equals_the_plain_one(problem, supply, tile, order, keep, seed):
    tiling = Tiling(m=tile[0], n=tile[1], k=tile[2], order=order, keep=tuple(t for t in TENSORS if t in keep))
    tiles = list(steps(problem.op, tiling))
    busy = np.random.default_rng(seed).integers(0, 200, len(tiles))
    in_turn = iter(busy.tolist())
    assert walk_counted(problem, tiling, supply, busy) == walk(problem, tiling, supply, lambda _: next(in_turn))


@pytest.mark.probe
@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_tile_fits_to_the_byte(spare: int, fits: bool) -> None:
    problem = Problem.dense(MatMul(8, 8, 8), 2)
    supply = Supply(resident_bytes=4 * 4 * (2 + 2 + 4) + spare, bytes_per_cycle=1.0)
    assert (LoopOrders.of(problem, supply).best((4, 4, 4), cycles_of) is not None) == fits


@pytest.mark.probe
def test_a_tile_of_more_than_2_to_the_53_cycles_is_not_taken() -> None:
    problem, supply = Problem.dense(MatMul(4, 4, 4), 2), Supply(resident_bytes=10**6, bytes_per_cycle=64.0)
    orders = LoopOrders.of(problem, supply)
    assert orders.best((4, 4, 4), lambda m, n, k: 2**53) is None
    assert orders.best((2, 4, 4), lambda m, n, k: 2**52) is None
    best = orders.best((4, 4, 4), lambda m, n, k: 2**53 - 100)
    assert best is not None
    assert best.compute_cycles == 2**53 - 100


def test_every_loop_of_one_step_may_stand_anywhere() -> None:
    """Of orders that do the same, the first is named."""
    problem, supply = Problem.dense(MatMul(8, 8, 8), 2), Supply(resident_bytes=10**6, bytes_per_cycle=64.0)
    for size in itertools.product((4, 8), repeat=3):
        best = LoopOrders.of(problem, supply).best(size, cycles_of)
        assert best is not None
        equal = [
            one
            for one in every_order(problem, size)
            if evaluate(problem, one, CountedTiles(Systolic(rows=4, columns=4), cycles_of), supply).dram_bytes == best.dram_bytes
        ]
        assert best.tiling in equal
