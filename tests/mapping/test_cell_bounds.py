"""Lower bounds of cells never exceed what any tiling in them takes."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.ir.folds import Folds, Pooled
from trainyard.kernels.mapping.cell_bounds import KNOWN_ROWS, bound_at, describe, know
from trainyard.kernels.mapping.cell_pruning import undominated
from trainyard.kernels.mapping.tile_bounds import EVERYTHING, moved_bytes, needed_bytes, passes_of, spans_of, totals_of
from trainyard.kernels.mapping.tile_cycles import kinds_of
from trainyard.kernels.mapping.tile_leaf import keep_bits
from trainyard.kernels.mapping.tile_search import _narrow
from trainyard.kernels.mapping.tiles import ORDERS, cut_sizes, tiled_cycles
from trainyard.mapping.tiling import NO_HALO, Problem, form_rows

FOLDS = st.builds(
    lambda stream, along, across, fixed, floor, units: Folds(
        **{axis: 1 if axis == stream else side for axis, side in zip("mnk", (along, across, along), strict=True)},
        stream=stream, fixed=fixed, floor=floor, units=units,
    ),
    st.sampled_from("mnk"), st.integers(1, 200), st.integers(1, 200), st.integers(0, 300), st.sampled_from([-1, -1, 0, 7, 150]),
    st.sampled_from([1, 1, 1, 4, 16]),
)  # fmt: skip
POOLED = st.builds(
    lambda stream, pool, load, drain, share, chunk: Pooled(
        pool=pool, load=load, stream=stream, drain=drain, share=share, chunk=chunk
    ),
    st.sampled_from("mn"), st.integers(4, 10_000), st.integers(1, 128), st.integers(0, 20), st.floats(0.05, 1.0),
    st.sampled_from([None, None, 4, 64]),
)  # fmt: skip
FORMS = st.one_of(st.lists(FOLDS, min_size=0, max_size=2), st.lists(POOLED, min_size=1, max_size=2))


@st.composite
def cells(draw):
    """A product, a tile and a range of sizes around it; whole dimensions have cells of their own."""
    extents = [draw(st.integers(1, 10 ** draw(st.integers(1, 4)))) for _ in range(3)]
    tile, low, high = [], [], []
    for extent in extents:
        size = extent if draw(st.booleans()) else draw(st.integers(1, extent))
        width = draw(st.sampled_from([1.0, 1.0, 1.1, 1.6, 5.0]))
        whole = size == extent
        tile.append(size)
        low.append(size if whole else max(1, int(size / width)))
        high.append(size if whole else min(extent - 1, int(size * width)))
    return (*extents, draw(st.sampled_from([1, 1, 2, 5]))), tile, low, high


HALO = np.array(NO_HALO)


class Case(NamedTuple):
    """A described product on an array, and one tile of it, in the arguments of the compiled loops."""

    dims: np.ndarray
    rates: np.ndarray
    totals: np.ndarray
    table: np.ndarray
    tile: np.ndarray
    spans: np.ndarray
    kinds: np.ndarray
    known: np.ndarray
    space: float

    @classmethod
    def of(cls, cell, forms, room, scales=(1.0, 1.0)) -> Case:
        """`room` is in triples of the tile; `scales` change the bytes of A and of finished sums."""
        (m, n, k, count), sizes, _, _ = cell
        dims, rates = np.array([m, n, k, count]), np.array(Problem.dense(MatMul(m, n, k, count=count), 2).all_rates)
        totals, known, table = np.empty(6), np.empty((KNOWN_ROWS, 3)), form_rows(forms, Systolic(rows=16, columns=16))
        tile, spans, kinds = np.empty((3, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
        rates[0] *= scales[0]
        rates[2] *= scales[1]
        totals_of(dims, rates, totals)
        for axis in range(3):
            cut_sizes(tile, axis, dims[axis], sizes[axis])
        spans_of(tile, HALO, spans)
        kinds_of(tile, table, kinds)
        space = room * (sizes[0] * sizes[2] * rates[4] + sizes[1] * sizes[2] * rates[5] + sizes[0] * sizes[1] * rates[3])
        describe(dims, rates, totals, False, table, space, known)
        return cls(dims, rates, totals, table, tile, spans, kinds, known, space)


@given(
    cell=cells(),
    forms=FORMS,
    room=st.floats(1.0, 40.0),
    speed=st.floats(0.2, 300.0),
    latency=st.sampled_from([0, 0, 10, 200]),
    scales=st.tuples(st.sampled_from([0.0, 0.3, 1.0, 1.0]), st.sampled_from([1.0, 3.0])),
)
@settings(max_examples=300, deadline=None)
def test_bounds_of_a_cell_hold_for_each_tiling_in_it(cell, forms, room, speed, latency, scales):
    case, (_, _, low, high) = Case.of(cell, forms, room, scales), cell
    dims, rates, count, known = case.dims, case.rates, case.dims[3], case.known
    tile, spans, kinds, passes = case.tile, case.spans, case.kinds, np.empty(3, np.int64)
    assert know(*map(float, low), *map(float, high), dims, case.table, 1.0 / speed, np.inf, known)
    burst = float(latency) if rates[0] > 0 else 0.0
    least, fewest = bound_at(1.0 / speed, EVERYTHING, burst, 0, np.zeros(2), known)
    for (number, order), kept in itertools.product(enumerate(ORDERS), range(3)):
        keep = keep_bits(order, kept)
        if needed_bytes(tile, spans, dims, order, keep, rates) > case.space:
            continue
        cycles = tiled_cycles(tile, spans, order, keep, count, rates, speed, latency, kinds)
        passes_of(tile[:, 1], order, keep, passes)
        moved = moved_bytes(tile, spans, passes, case.totals, HALO)
        own, own_bytes = bound_at(1.0 / speed, 1 << (number + 6 * kept), burst, 0, np.zeros(2), known)
        assert least <= own * (1 + 1e-9)
        assert own <= cycles * (1 + 1e-9)
        assert max(fewest, own_bytes) <= moved * (1 + 1e-9)


@given(
    cell=cells(),
    forms=st.one_of(
        FORMS, st.sampled_from([Systolic(rows=16, columns=16).folds, Systolic(rows=8, columns=64, dataflow="os").folds])
    ),
    room=st.floats(1.0, 40.0),
    speed=st.one_of(st.floats(0.2, 300.0), st.just(1e6)),  # with that of the last, compute alone decides
    limit=st.one_of(st.floats(0.3, 3.0), st.sampled_from([1.0001, 1.01])),
)
@settings(max_examples=300, deadline=None)
def test_narrowing_a_cell_takes_no_tile_that_fits_and_is_within_the_limit(cell, forms, room, speed, limit):
    case, (_, sizes, low, high) = Case.of(cell, forms, room), cell
    dims, rates, count, known = case.dims, case.rates, case.dims[3], case.known
    tile, spans, kinds = case.tile, case.spans, case.kinds
    cycles = min(
        tiled_cycles(tile, spans, order, keep_bits(order, kept), count, rates, speed, 0, kinds)
        for order, kept in itertools.product(ORDERS, range(3))
        if needed_bytes(tile, spans, dims, order, keep_bits(order, kept), rates) <= case.space
    )
    if not know(*map(float, low), *map(float, high), dims, case.table, 1.0 / speed, limit * cycles, known):
        assert limit <= 1.0 + 1e-9
        return
    menu = [sorted({low[axis], sizes[axis], high[axis]}) for axis in range(3)]
    table_of_sizes = np.array([one + [0] * (3 - len(one)) for one in menu], np.int64)
    row = np.array([index for one in menu for index in (0, len(one) - 1)], np.int64)
    left = _narrow(row, table_of_sizes, known, 1.0 / speed, limit * cycles)
    inside = left and all(menu[axis][row[2 * axis]] <= sizes[axis] <= menu[axis][row[2 * axis + 1]] for axis in range(3))
    assert inside or limit <= 1.0 + 1e-9


@given(cell=cells(), room=st.floats(1.0, 40.0), speed=st.floats(0.2, 300.0), latency=st.sampled_from([0, 10, 200]))
@settings(max_examples=200, deadline=None)
def test_a_way_that_is_struck_for_one_that_keeps_more_is_never_faster(cell, room, speed, latency):
    case, (_, _, low, high) = Case.of(cell, Systolic(rows=16, columns=16).folds, room), cell
    dims, rates, count, known = case.dims, case.rates, case.dims[3], case.known
    tile, spans, kinds, passes = case.tile, case.spans, case.kinds, np.empty(3, np.int64)
    assert know(*map(float, low), *map(float, high), dims, case.table, 0.0, np.inf, known)
    left = undominated(EVERYTHING, known)
    for number, order in enumerate(ORDERS):
        costs = []
        for kept in range(3):
            keep = keep_bits(order, kept)
            passes_of(tile[:, 1], order, keep, passes)
            moved = moved_bytes(tile, spans, passes, case.totals, HALO)
            fits = needed_bytes(tile, spans, dims, order, keep, rates) <= case.space
            cycles = tiled_cycles(tile, spans, order, keep, count, rates, speed, latency, kinds)
            costs.append((bool(left >> (number + 6 * kept) & 1), fits, cycles, moved))
        for is_left, _, cycles, moved in costs:
            assert is_left or any(stays and fits and own <= cycles and fewer <= moved for stays, fits, own, fewer in costs)
