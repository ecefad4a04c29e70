"""Energy as the third criterion of the tile search: the compiled joules against an array's own events, the choice against all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import CambriconX, Eie, Sigma, Spatial, Systolic, TensorCore, TensorDash
from trainyard.devices.accelerator.energy import events_per_cycle, tile_prices
from trainyard.hardware.tables.energy import Prices
from trainyard.ir import MatMul
from trainyard.ir.folds import Tiles
from trainyard.kernels.mapping import tile_energy, tile_search
from trainyard.kernels.mapping.cell_pruning import SAVING
from trainyard.kernels.mapping.tile_front import ENTRY, FRONT, offer, pick
from trainyard.mapping.tile_choice import best_of, on_chip_joules
from trainyard.mapping.tiling import (
    FASTEST,
    ORDERS,
    Goal,
    Problem,
    Supply,
    Tiling,
    evaluate,
    form_rows,
    needed_bytes,
    search,
)

ARRAYS = [
    Systolic(rows=4, columns=3, dataflow="ws"),
    Systolic(rows=4, columns=2, dataflow="os", pipelined=True),
    Systolic(rows=2, columns=4, dataflow="is"),
    Spatial(elements=6, macs_per_element=2, buffer_bytes=128),
    TensorCore(lanes=2, rows=2, columns=3, tiles=6),
    TensorCore(lanes=2, rows=4, columns=2, tiles=4, multicast=False),
    TensorDash(lanes=4, rows=2, columns=2, tiles=5),
    Sigma(dpes=2, multipliers=4, bandwidth=3),
    Sigma(dpes=2, multipliers=4, bandwidth=2, stationary="b"),
    Sigma(dpes=3, multipliers=2, bandwidth=2, streaming="limited", drain="pass"),
]
PRICES = Prices(dram=40.0, read=3.0, write=2.0, local=0.25, cycle=0.5)
extents = st.integers(1, 40)
ops = st.builds(MatMul, extents, extents, extents, st.sampled_from([1, 3]))


def sides(extent, size):
    """All tiles along an axis."""
    return [min(size, extent - start) for start in range(0, extent, size)]


def joules_tile_by_tile(problem, tiling, array, prices):
    """Plain twin: the array's events of every tile, one by one, and the sums that an earlier tile has begun."""
    op, (a_bytes, b_bytes) = problem.op, problem.element_bytes
    total = 0.0
    for m, n in itertools.product(sides(op.M, tiling.m), sides(op.N, tiling.n)):
        for index, k in enumerate(sides(op.K, tiling.k)):
            columns = (np.array([float(side)]) for side in (m, n, k, 1))
            events = {name: float(np.ravel(count)[0]) for name, count in array.tile_events(Tiles(*columns)).items()}
            for operand, size in (("a", a_bytes), ("b", b_bytes), ("out", 4)):
                total += prices.read * size * events.get(f"scratchpad_read_{operand}", 0.0)
                total += prices.write * size * events.get(f"scratchpad_write_{operand}", 0.0)
                total += prices.local * size * events.get(f"local_read_{operand}", 0.0)  # each is written once as well
            total += prices.cycle * array.tile_cycles(m, n, k) + (prices.read * 4 * m * n if index else 0.0)
    return total * op.count


def compiled(problem, tiling, array, prices):
    op = problem.op
    cut = [(size, -(-extent // size)) for extent, size in zip((op.M, op.N, op.K), (tiling.m, tiling.n, tiling.k), strict=True)]
    extents = (op.M, op.N, op.K)
    tile = np.array([(size, count, extent - (count - 1) * size) for (size, count), extent in zip(cut, extents, strict=True)])
    forms, dims = form_rows(array.folds, array), np.array([*extents, op.count])
    compute = float(tile_search.kinds_of(tile, forms, np.zeros((2, 2, 2), np.int64)) * op.count)
    rates, row = np.array(problem.all_rates), np.array(prices.row)
    return tile_energy.array_joules(tile, dims, rates, forms, row, compute), (tile, dims, rates, forms, row, compute)


@pytest.mark.oracle
@settings(max_examples=150)
@given(op=ops, array=st.sampled_from(ARRAYS), sizes=st.tuples(extents, extents, extents), element=st.sampled_from([1, 2, 4]))
def test_compiled_joules_are_those_of_the_events_of_every_tile(op, array, sizes, element):
    problem = replace(Problem.dense(op, element), element_bytes=(element, 2 * element))
    tiling = Tiling(**{axis: min(size, extent) for axis, size, extent in zip("mnk", sizes, (op.M, op.N, op.K), strict=True)})
    prices = PRICES if isinstance(array, TensorCore | TensorDash) else PRICES._replace(local=0.0)
    joules, _ = compiled(problem, tiling, array, prices)
    assert joules == pytest.approx(joules_tile_by_tile(problem, tiling, array, prices))


@pytest.mark.oracle
@settings(max_examples=150)
@given(
    op=ops, array=st.sampled_from(ARRAYS), sizes=st.tuples(extents, extents, extents), less=st.tuples(*[st.integers(0, 9)] * 3),
    more=st.tuples(*[st.integers(0, 9)] * 3),
)  # fmt: skip
def test_no_tile_of_a_cell_takes_fewer_joules_than_its_bound(op, array, sizes, less, more):
    problem, extents = Problem.dense(op, 2), (op.M, op.N, op.K)
    size = [min(one, extent) for one, extent in zip(sizes, extents, strict=True)]
    tiling = Tiling(m=size[0], n=size[1], k=size[2])
    joules, (_, dims, rates, forms, prices, compute) = compiled(problem, tiling, array, PRICES)
    low = [float(max(1, side - step)) for side, step in zip(size, less, strict=True)]
    counts = [float(-(-extent // min(extent, side + step))) for extent, side, step in zip(extents, size, more, strict=True)]
    assert tile_energy.least_joules(*low, *counts, dims, rates, forms, prices, compute) <= joules * (1 + 1e-9)


small = st.integers(1, 6)


def kept_choices(order):
    lacking = {"n": "a", "m": "b", "k": "out"}
    return [(), (lacking[order[1]],), tuple(t for t in ("a", "b", "out") if t in (lacking[order[1]], lacking[order[0]]))]


@pytest.mark.oracle
@settings(max_examples=40)
@given(
    op=st.builds(MatMul, st.integers(1, 9), small, small), array=st.sampled_from(ARRAYS), room=st.integers(16, 400),
    speed=st.sampled_from([0.5, 4.0, 64.0]), latency=st.sampled_from([0, 20]),
)  # fmt: skip
def test_of_equal_time_and_traffic_the_search_takes_the_least_energy_of_all_tilings(op, array, room, speed, latency):
    problem = Problem.dense(op, 2)
    supply, goal = Supply(resident_bytes=room, bytes_per_cycle=speed, latency_cycles=latency), Goal(prices=PRICES)
    everything = [
        evaluate(problem, tiling, array, supply)
        for m, n, k in itertools.product(*(range(1, extent + 1) for extent in (op.M, op.N, op.K)))
        for order in ORDERS
        for keep in kept_choices(order)
        if needed_bytes(problem, tiling := Tiling(m=m, n=n, k=k, order=order, keep=keep)) <= room
    ]
    if not everything:
        return
    (best,) = search([problem], array, supply, goal=goal)

    def joules(tiled):
        return compiled(problem, tiled.tiling, array, PRICES)[0] + PRICES.row[0] * tiled.dram_bytes

    fastest = min(tiled.cycles for tiled in everything)
    least = min(tiled.dram_bytes for tiled in everything if tiled.cycles <= fastest * 1.01)
    equal = [
        tiled for tiled in everything if tiled.cycles < fastest * 1.01 / tile_search.SLACK and tiled.dram_bytes <= least * 1.01
    ]
    assert best.cycles <= fastest * 1.01
    assert joules(best) <= min(map(joules, equal), default=np.inf) * SAVING * (1 + 1e-9)


@pytest.mark.oracle
@settings(max_examples=60)
@given(
    op=ops, sizes=st.tuples(extents, extents, extents),
    array=st.sampled_from([
        *ARRAYS, Eie(elements=5, bandwidth=4), Eie(elements=3, loading="left out", weights="b"),
        CambriconX(elements=4, leaves=2, loading="left out"),
    ]),
)  # fmt: skip
def test_joules_by_the_cost_of_each_size_of_tile_are_the_compiled_ones(op, array, sizes):
    problem = Problem.dense(op, 2)
    tiling = Tiling(**{axis: min(size, extent) for axis, size, extent in zip("mnk", sizes, (op.M, op.N, op.K), strict=True)})
    prices = Prices(dram=40.0, read=3.0, write=2.0)
    assert on_chip_joules(problem, tiling, array, prices) == pytest.approx(compiled(problem, tiling, array, prices)[0])


def test_of_a_few_tilings_time_comes_before_traffic_and_traffic_before_energy():
    problem, array = Problem.dense(MatMul(64, 64, 64), 2), Systolic(rows=8, columns=8)
    large, small = Tiling(m=64, n=64, k=64), Tiling(m=64, n=4, k=64)  # a narrow tile reads A once more for each half of a fold

    @dataclass(frozen=True)
    class Evaluated:
        tiling: Tiling
        cycles: int
        dram_bytes: float

    def taken(*tilings):
        return best_of(tilings, problem, array, 0.01, FASTEST.prices)

    costly, sparing = Evaluated(small, 1000, 1000.0), Evaluated(large, 1010, 1010.0)
    assert taken(costly, sparing) == taken(sparing, costly) == sparing
    assert taken(costly, replace(sparing, cycles=1011)) == costly
    assert taken(costly, replace(sparing, dram_bytes=1011.0)) == costly
    assert taken(replace(costly, dram_bytes=2000.0), replace(sparing, dram_bytes=1900.0)).tiling == large


def entered(rows, band=1.01, tolerance=0.01):
    front, entries, tile = np.zeros((FRONT, ENTRY)), 0, np.ones((3, 3), np.int64)
    for value, moved, joules in rows:
        entries = offer(front, entries, float(value), float(moved), float(joules), float(int(value)), tile, 0, 0, band, tolerance)
    return front[pick(front, entries, band, tolerance), [0, 1, 8]].tolist()


def test_time_comes_before_traffic_and_traffic_before_energy():
    assert entered([(100, 50, 9), (102, 10, 1)]) == [100, 50, 9]  # 2 % slower: not looked at
    assert entered([(100, 50, 9), (101, 49, 9)]) == [101, 49, 9]  # 1 % slower, fewer bytes
    assert entered([(100, 1000, 9), (100.5, 990.2, 8), (101, 1000.1, 7)]) == [101, 1000.1, 7]  # 1 % more bytes, less energy
    assert entered([(100, 1000, 9), (100.5, 990, 8), (101, 1000.1, 7)]) == [100.5, 990, 8]  # 1.02 % more bytes


@given(rows=st.lists(st.tuples(st.integers(1000, 1030), st.integers(1000, 1030), st.integers(1, 40)), min_size=1, max_size=12))
def test_the_choice_does_not_depend_on_the_order_in_which_tilings_are_offered(rows):
    assert entered(rows) == entered(sorted(rows)) == entered(rows[::-1])


def test_among_tilings_of_equal_time_and_traffic_the_one_with_fewer_reads_of_the_scratchpad_is_taken():
    problem, array = Problem.dense(MatMul(392, 1000, 1024), 2), Spatial()
    supply = Supply(resident_bytes=4e6, bytes_per_cycle=50.0, latency_cycles=50)
    without = Prices(dram=1.0, read=0.0, write=0.0)
    goals = Goal(prices=without, effort=4000), Goal(prices=FASTEST.prices)
    (blind,), (sparing,) = (search([problem], array, supply, goal=goal) for goal in goals)
    ports = [compiled(problem, tiled.tiling, array, Prices(dram=0.0, read=1.0, write=1.0))[0] for tiled in (blind, sparing)]
    assert sparing.cycles <= 1.01 * blind.cycles
    assert sparing.dram_bytes <= 1.01 * blind.dram_bytes
    assert ports[1] < 0.2 * ports[0]


def test_the_technology_of_a_machine_changes_no_tiles():
    import trainyard as ty

    plain, other = (ty.run("linear", on=machine) for machine in ("tensorcore", "tensorcore(technology_nm=7,dram_kind=ddr4)"))
    assert plain.cycles == other.cycles
    assert plain.traffic_bytes == other.traffic_bytes
    assert plain.energy_j != other.energy_j


def test_prices_count_the_lanes_of_every_busy_cycle_of_a_tensor_core():
    array = TensorCore(lanes=2, rows=2, columns=3, tiles=6)
    per_cycle = dict(events_per_cycle(array))
    assert per_cycle == {"core_slot": array.peak_macs_per_cycle, "transposer_cycle": array.transposers}
    prices = tile_prices(array.components, array.local_bytes, 2**20, "fp16", tuple(per_cycle.items()))
    core, transposer = (row.at(16, "fp16") for row in array.components)
    assert prices.cycle == pytest.approx(core * array.peak_macs_per_cycle + transposer * array.transposers)
    assert prices[:3] == FASTEST.prices[:3]
    assert events_per_cycle(Systolic(rows=4, columns=4)) == ()
