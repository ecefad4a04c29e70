"""Bounds from steps by kind never exceed what any tiling of a cell takes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.kernels.mapping.cell_bounds import KNOWN_ROWS, bound_at, describe, know, way_traffic
from trainyard.kernels.mapping.cell_pruning import NARROW, has_kinds, idle_in_steps, kinds_of_way, write_extremes
from trainyard.kernels.mapping.tile_bounds import BELOW, needed_bytes, spans_of, totals_of
from trainyard.kernels.mapping.tile_cycles import kinds_of
from trainyard.kernels.mapping.tile_leaf import keep_bits
from trainyard.kernels.mapping.tiles import ORDERS, STEP_KINDS, cut_sizes, tiled_cycles
from trainyard.mapping.tiling import NO_HALO, Problem, form_rows


@st.composite
def same_counts(draw):
    """A product, a tile of it, and a range of sizes around it that make as many tiles."""
    extents, low, sizes, high = [], [], [], []
    for _ in range(3):
        extent, count = draw(st.integers(1, 10 ** draw(st.integers(1, 4)))), draw(st.integers(1, 7))
        count = -(-extent // -(-extent // min(count, extent)))
        least, most = -(-extent // count), (extent - 1) // (count - 1) if count > 1 else extent
        one, size, other = sorted(draw(st.integers(least, most)) for _ in range(3))
        extents.append(extent)
        low.append(one)
        sizes.append(size)
        high.append(other)
    return (*extents, draw(st.sampled_from([1, 1, 2, 5]))), low, sizes, high


ARRAYS = st.builds(
    Systolic, rows=st.integers(1, 200), columns=st.integers(1, 200), dataflow=st.sampled_from(["ws", "is", "os"])
)  # fmt: skip


class Cell:
    """A range of sizes of a product on an array, as the compiled loops know it."""

    def __init__(self, cell, array, room, scales=(1.0, 1.0)) -> None:
        (m, n, k, count), low, self.sizes, high = cell
        self.dims = np.array([m, n, k, count])
        self.rates = np.array(Problem.dense(MatMul(m, n, k, count=count), 2).all_rates)
        self.rates[0] *= scales[0]
        self.rates[2] *= scales[1]
        self.forms, totals, self.known = form_rows(array.folds, array), np.empty(6), np.empty((KNOWN_ROWS, 3))
        totals_of(self.dims, self.rates, totals)
        x, y, z = self.sizes
        self.space = room * (x * z * self.rates[4] + y * z * self.rates[5] + x * y * self.rates[3])
        describe(self.dims, self.rates, totals, False, self.forms, self.space, self.known)
        assert know(*map(float, low), *map(float, high), self.dims, self.forms, 0.0, np.inf, self.known)
        self.tile, self.spans, self.kinds = np.empty((3, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
        self.rows = np.empty((STEP_KINDS, 3))

    def cycles(self, order, keep, speed, latency) -> float:
        """Of its tile; infinite where that does not fit."""
        for axis in range(3):
            cut_sizes(self.tile, axis, self.dims[axis], self.sizes[axis])
        spans_of(self.tile, np.array(NO_HALO), self.spans)
        if needed_bytes(self.tile, self.spans, self.dims, ORDERS[order], keep, self.rates) > self.space:
            return np.inf
        kinds_of(self.tile, self.forms, self.kinds)
        return tiled_cycles(self.tile, self.spans, ORDERS[order], keep, self.dims[3], self.rates, speed, latency, self.kinds)

    def bound(self, way, speed, latency) -> float:
        write_extremes(self.known, self.tile, self.spans, self.kinds)
        moved, loads = way_traffic(way % 6, way // 6, self.known)
        many, cycle = kinds_of_way(way, self.known, self.rates, self.tile, self.spans, self.kinds, self.rows), BELOW / speed
        return (moved * cycle + latency * loads + idle_in_steps(self.rows, many, cycle, float(latency))) * BELOW


@given(
    cell=same_counts(), array=ARRAYS, room=st.floats(1.0, 40.0), speed=st.floats(0.2, 300.0),
    latency=st.sampled_from([0, 0, 10, 200]), scales=st.tuples(st.sampled_from([0.3, 1.0]), st.sampled_from([0.0, 1.0, 3.0])),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_a_bound_by_kinds_of_steps_holds_for_each_tile_of_a_cell(cell, array, room, speed, latency, scales):
    one = Cell(cell, array, room, scales)
    for order, kept in itertools.product(range(6), range(3)):
        cycles = one.cycles(order, keep_bits(ORDERS[order], kept), speed, latency)
        if cycles < np.inf:
            assert one.bound(order + 6 * kept, speed, latency) <= cycles * (1 + 1e-9)


def test_the_bound_of_a_single_tile_is_its_time_but_for_parts_of_cycles():
    """The last tiles along n and k are small: under the compute of full ones the DRAM has little to load. Sums over all steps do
    not see that."""
    sizes, order, kept, speed, latency = [300, 140, 250], 3, 2, 20.0, 10
    one = Cell(((300, 450, 600, 1), sizes, sizes, sizes), Systolic(rows=64, columns=64), 4.0)
    cycles = one.cycles(order, keep_bits(ORDERS[order], kept), speed, latency)
    assert has_kinds(one.known)
    assert 0.9995 * cycles <= one.bound(order + 6 * kept, speed, latency) <= cycles
    assert bound_at(BELOW / speed, 1 << order + 6 * kept, float(latency), 0, np.zeros(2), one.known)[0] < 0.9 * cycles


def test_kinds_are_looked_at_in_narrow_cells_with_fixed_numbers_of_tiles_along_two_loops():
    array = Systolic(rows=64, columns=64)

    def looked_at(low, high, extents=(300, 450, 600), scales=(1.0, 1.0)):
        return has_kinds(Cell(((*extents, 1), low, low, high), array, 40.0, scales).known)

    assert looked_at([300, 100, 130], [300, 110, 140])
    assert not looked_at([300, 100, 130], [300, 112, 170])  # five, or four tiles along k
    assert not looked_at([300, 450, 130], [300, 450, 140])  # one loop alone
    assert not looked_at([300, 226, 301], [300, 449, 599])  # as many tiles, but not narrow
    assert NARROW * 226 * 301 < 449 * 599
    assert not looked_at([300, 100, 130], [300, 110, 140], scales=(0.0, 1.0))  # nothing is loaded of A
