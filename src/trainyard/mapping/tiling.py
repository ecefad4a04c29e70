"""Tiles of a product: bytes between DRAM and scratchpad, cycles, and the search for the fastest tile and loop order.

Half of the scratchpad holds the tiles of the current step (one of A, one of B, one of sums), the other half is being filled with
those of the next. While the array computes a step, the DRAM writes what the step before left behind and reads what the next one
needs, so a step takes the longer of the two; the first fill and the last drain are seen in full. A tile that two steps in a row
share is not moved. Unfinished sums (k is not the innermost loop, and more than one tile of sums lies inside it) spill: they are
written and read again as accumulators. `walk` visits tile after tile; the closed form gives exactly the same cycles and bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul
from trainyard.ir.folds import AXES, COLUMNS, Axis, Folds, Pooled
from trainyard.ir.protocols import HasClosedForm, HasTileCycles, HasTileGuides

ORDERS = tuple("".join(AXES[axis] for axis in order) for order in itertools.permutations(range(3)))
"""Loop orders, outer to inner: mnk, mkn, nmk, nkm, kmn, knm."""

Size = tuple[int, int, int]
SMALLEST = (1, 1, 1)
NO_TILE = (0, 0, 0)
"""No fixed tile: the search tries all candidates."""
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A product and the DRAM bytes of its complete tensors (all `count` of them) when each is moved once.

    `out_bytes` are those of finished sums, with the reads and writes of an epilogue; `sum_bytes` is the size of all sums as
    accumulators. A convolution that is read without im2col has fewer `a_bytes` than its matrix; a tile takes its share of them.
    If a DMA engine decompresses what it reads, `a_sram_bytes` and `b_sram_bytes` are the sizes in the scratchpad. `tile`
    fixes sizes of the tile (0: free), `orders` are the loop orders that may be searched (none named: all).
    """

    op: MatMul
    a_bytes: int
    b_bytes: int
    out_bytes: int
    sum_bytes: int
    a_sram_bytes: int | None = None
    b_sram_bytes: int | None = None
    tile: Size = NO_TILE
    orders: tuple[str, ...] = ()

    @classmethod
    def dense(cls, op: MatMul, element_bytes: int, accumulator_bytes: int = 4) -> Problem:
        left, right, out = (op.count * size for size in (op.M * op.K, op.K * op.N, op.M * op.N))
        return cls(
            op=op,
            a_bytes=left * element_bytes,
            b_bytes=right * element_bytes,
            out_bytes=out * element_bytes,
            sum_bytes=out * accumulator_bytes,
        )

    @property
    def is_constrained(self) -> bool:
        return self.tile != NO_TILE or bool(self.orders)

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """DRAM bytes per matrix element of A, B, finished sums, unfinished sums."""
        op = self.op
        left, right, out = (op.count * size for size in (op.M * op.K, op.K * op.N, op.M * op.N))
        return self.a_bytes / left, self.b_bytes / right, self.out_bytes / out, self.sum_bytes / out

    @property
    def sram_rates(self) -> tuple[float, float, float]:
        """Scratchpad bytes per matrix element of A, B, sums."""
        op = self.op
        a_bytes = self.a_bytes if self.a_sram_bytes is None else self.a_sram_bytes
        b_bytes = self.b_bytes if self.b_sram_bytes is None else self.b_sram_bytes
        return a_bytes / (op.count * op.M * op.K), b_bytes / (op.count * op.K * op.N), self.sum_bytes / (op.count * op.M * op.N)

    @property
    def all_rates(self) -> tuple[float, ...]:
        """The arguments of the compiled loops: `rates`, then the scratchpad bytes of A and B."""
        return (*self.rates, *self.sram_rates[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The memory system of a device: bytes for the tiles of one step, DRAM bandwidth and latency in cycles of its clock."""

    resident_bytes: float
    bytes_per_cycle: float
    latency_cycles: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Tile sizes along m, n, k (edge tiles are clipped) and the order of the loops, outer to inner."""

    m: int
    n: int
    k: int
    order: str = "mnk"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise BadInput(f"Tiling: order {self.order!r} is none of {', '.join(ORDERS)}")

    def size(self, axis: Axis) -> int:
        return {"m": self.m, "n": self.n, "k": self.k}[axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    """The cost of a product in tiles: cycles, cycles of the array alone, and DRAM bytes by tensor."""

    tiling: Tiling
    cycles: int
    compute_cycles: int
    a_read: int
    b_read: int
    out_moved: int
    spill_write: int
    spill_read: int
    proven: bool = True
    """False where the search was ended before it was known that no mapping is better."""

    @property
    def dram_bytes(self) -> int:
        return self.a_read + self.b_read + self.out_moved + self.spill_write + self.spill_read


def passes(op: MatMul, tiling: Tiling) -> Size:
    """How often A, B and the sums are moved: once for each step of the loop that they lack, if there are steps inside that loop.

    >>> passes(MatMul(8, 8, 8), Tiling(m=4, n=4, k=4, order="mnk"))  # A moves for each n, B for each m, sums stay
    (2, 2, 1)
    >>> passes(MatMul(8, 8, 8), Tiling(m=4, n=4, k=8, order="mnk"))  # all of K in one tile: a row of A stays over n
    (1, 2, 1)
    """
    steps = {axis: -(-extent // tiling.size(axis)) for axis, extent in zip(AXES, (op.M, op.N, op.K), strict=True)}

    def times(axis: str) -> int:
        inside = tiling.order[tiling.order.index(axis) + 1 :]
        return steps[axis] if any(steps[loop] > 1 for loop in inside) else 1  # type: ignore[index]  # loops are axes

    return times("n"), times("m"), times("k")


def _closed_form(problem: Problem, tiling: Tiling, cycles: int, compute_cycles: int, moves: Sequence[int]) -> Tiled:
    over_n, over_m, over_k = moves
    spilled = (over_k - 1) * problem.sum_bytes
    return Tiled(
        tiling=tiling,
        cycles=cycles,
        compute_cycles=compute_cycles,
        a_read=over_n * problem.a_bytes,
        b_read=over_m * problem.b_bytes,
        out_moved=problem.out_bytes,
        spill_write=spilled,
        spill_read=spilled,
    )


def _candidate_sizes(extents: Size, granule: Size, tile: Size | None) -> tuple[Integers, Integers]:
    """Candidate sizes of each axis for the compiled search: those that are combined freely, then the diagonal ones."""
    from trainyard.kernels.mapping import tile_search

    sizes, ends = np.ones((3, tile_search.LONGEST_MENU), dtype=np.int64), np.empty((3, 2), dtype=np.int64)
    tile_search.menu(np.array(extents), np.array(granule), np.array(tile or NO_TILE), sizes, ends)
    return sizes, ends


def candidates(op: MatMul, granule: Size) -> list[Size]:
    """The tiles of the search: all combinations of doublings of the granule up to the dimension; below it, halvings.

    >>> candidates(MatMul(5, 4, 9), (2, 4, 4))
    [(2, 4, 4), (2, 4, 8), (2, 4, 9), (4, 4, 4), (4, 4, 8), (4, 4, 9), (5, 4, 4), (5, 4, 8), (5, 4, 9), (1, 2, 2), (1, 1, 1)]
    """
    sizes, ends = _candidate_sizes((op.M, op.N, op.K), granule, None)
    free = [sizes[axis, : ends[axis, 0]].tolist() for axis in range(3)]
    small = zip(*(sizes[axis, ends[axis, 0] : ends[axis, 1]].tolist() for axis in range(3)), strict=True)
    return [*itertools.product(*free), *small]


def _rows(forms: Sequence[Folds | Pooled]) -> Integers:
    return np.array([form.row for form in forms], dtype=np.int64).reshape(len(forms), COLUMNS)


def _tile_cycles(array: Array, problem: Problem, sizes: Integers, ends: Integers, supply: Supply) -> Integers:
    """Tile cycles of an array without a closed form: `Array.cost` for each size and its edge that fit the scratchpad."""
    extents, rates = (problem.op.M, problem.op.N, problem.op.K), problem.sram_rates
    table = np.zeros(tuple(2 * int(ends[axis, 1]) for axis in range(3)), dtype=np.int64)
    cycles: dict[Size, int] = {}
    free = itertools.product(*(range(int(ends[axis, 0])) for axis in range(3)))
    small = zip(*(range(int(ends[axis, 0]), int(ends[axis, 1])) for axis in range(3)), strict=True)
    for where in itertools.chain(free, small):
        m, n, k = (int(sizes[axis, index]) for axis, index in enumerate(where))
        if m * k * rates[0] + k * n * rates[1] + m * n * rates[2] > supply.resident_bytes:
            continue
        pairs = [(size, extent - (-(-extent // size) - 1) * size) for size, extent in zip((m, n, k), extents, strict=True)]
        for edges in itertools.product((0, 1), repeat=3):
            size = (pairs[0][edges[0]], pairs[1][edges[1]], pairs[2][edges[2]])
            if size not in cycles:
                cycles[size] = array.cost(MatMul(*size)).cycles
            table[tuple(2 * index + edge for index, edge in zip(where, edges, strict=True))] = cycles[size]
    return table


@dataclass(frozen=True, slots=True, eq=False)
class ProblemTable:
    """Many products as arrays for the compiled search: M, N, K and count, and bytes per element (`all_rates`)."""

    problems: tuple[Problem, ...]
    dims: Integers
    rates: npt.NDArray[np.float64]
    longest: int
    macs: int

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> ProblemTable:
        from trainyard.kernels.mapping.tile_search import MOST_CYCLES

        ops = [problem.op for problem in problems]
        longest = max((max(op.M, op.N, op.K, op.count) for op in ops), default=0)
        dims = [(op.M, op.N, op.K, op.count) for op in ops] if longest < MOST_CYCLES else []
        return cls(
            tuple(problems),
            np.array(dims, dtype=np.int64).reshape(-1, 4),
            np.array([problem.all_rates for problem in problems]).reshape(-1, 6),
            longest,
            max((op.macs for op in ops), default=0),
        )


def search_tiles(
    products: ProblemTable, forms: Sequence[Folds | Pooled], array: Array, supply: Supply, tile: Size | None = None
) -> Integers:
    """The fastest tiling of each product as a row of the compiled search (`kernels.mapping.tile_search.CHOSEN`).

    `forms` are closed forms of tile cycles; without any, the cycles come from `array` tile by tile.
    """
    from trainyard.kernels.mapping import tile_search

    most = tile_search.MOST_CYCLES
    if max(products.longest, products.macs // array.peak_macs_per_cycle) >= most:
        ops = (problem.op for problem in products.problems)
        raise _too_long(next(op for op in ops if max(op.M, op.N, op.K, op.count, op.macs // array.peak_macs_per_cycle) >= most))
    granule, speed = np.array(array.granule()), np.array([supply.bytes_per_cycle, supply.resident_bytes], dtype=np.float64)
    if forms:
        rows: Integers = tile_search.best_tiles(
            products.dims, products.rates, granule, np.array(tile or NO_TILE), _rows(forms), speed, supply.latency_cycles
        )
    else:
        rows = np.empty((len(products.problems), tile_search.CHOSEN), dtype=np.int64)
        for problem, dims, rates, row in zip(products.problems, products.dims, products.rates, rows, strict=True):
            sizes, ends = _candidate_sizes((problem.op.M, problem.op.N, problem.op.K), array.granule(), tile)
            table = _tile_cycles(array, problem, sizes, ends, supply)
            tile_search.best_tile(dims, rates, sizes, ends, _rows(()), table, speed, supply.latency_cycles, row)
    too_long, too_large = rows[:, 4] == tile_search.TOO_LONG, rows[:, 4] == tile_search.NOTHING_FITS
    if too_long.any():
        raise _too_long(products.problems[int(too_long.argmax())].op)
    if too_large.any():
        raise _too_large(products.problems[int(too_large.argmax())], supply, tile)
    for problem, row in zip(products.problems, rows, strict=True):
        if problem.is_constrained:
            chosen = _within_constraints(problem, array, supply, tile)
            tiling = chosen.tiling
            row[:6] = tiling.m, tiling.n, tiling.k, ORDERS.index(tiling.order), chosen.cycles, chosen.compute_cycles
            row[7:10] = passes(problem.op, tiling)
    return rows


def _within_constraints(problem: Problem, array: Array, supply: Supply, tile: Size | None) -> Tiled:
    """The fastest tiling of a product that has fixed sizes or orders of its own: one after the other."""
    extents, rates = (problem.op.M, problem.op.N, problem.op.K), problem.sram_rates
    fixed = [min(own or given, extent) for own, given, extent in zip(problem.tile, tile or NO_TILE, extents, strict=True)]
    halvings = [[extent >> power for power in range(extent.bit_length())] for extent in extents]
    menus = [[size] if size else sizes for size, sizes in zip(fixed, halvings, strict=True)]
    fitting = [
        (m, n, k)
        for m, n, k in itertools.product(*menus)
        if m * k * rates[0] + k * n * rates[1] + m * n * rates[2] <= supply.resident_bytes
    ]
    if not fitting:
        raise _too_large(problem, supply, (fixed[0] or 1, fixed[1] or 1, fixed[2] or 1))
    evaluated = (
        evaluate(problem, Tiling(m=m, n=n, k=k, order=order), array, supply)
        for m, n, k in fitting
        for order in problem.orders or ORDERS
    )
    return min(evaluated, key=lambda tiled: (tiled.cycles, tiled.dram_bytes))


def search(
    problems: Sequence[Problem], array: Array, supply: Supply, tile: Size | None = None, guides: Sequence[Folds | Pooled] = ()
) -> list[Tiled]:
    """The fastest tile and loop order of each product, or the fastest order of a given tile.

    An array without a closed form may have `guides`, approximate closed forms: they choose the tile, whose cost then comes from the
    array. With the argument `guides`, the costs are those of the guides, and the caller costs the chosen tiles.
    """
    if not problems:
        return []
    exact: Sequence[Folds | Pooled] = array.folds if isinstance(array, HasClosedForm) else ()
    forms = guides or exact or (array.guides if isinstance(array, HasTileGuides) else ())
    if not forms and tile is None:
        from trainyard.mapping.tile_descent import fastest_of

        descents = [(problem, fastest_of(problem, array, supply)) for problem in problems]
        return [found if found is not None else _refused(problem, array, supply) for problem, found in descents]
    rows = search_tiles(ProblemTable.of(problems), forms, array, supply, tile)
    tiled = [_tiled(problem, row) for problem, row in zip(problems, rows.tolist(), strict=True)]
    if forms and not guides and not exact:
        return [evaluate(problem, choice.tiling, array, supply) for problem, choice in zip(problems, tiled, strict=True)]
    return tiled


def _refused(problem: Problem, array: Array, supply: Supply) -> NoReturn:
    """Says why a product has no tile at all."""
    search_tiles(ProblemTable.of([problem]), (), array, supply, SMALLEST)
    raise _too_long(problem.op)


def _too_long(op: MatMul) -> BadInput:
    return BadInput(f"{op} takes more than 2**53 cycles here: give a smaller product or a larger array")


def _too_large(problem: Problem, supply: Supply, tile: Size | None) -> BadInput:
    op, rates = problem.op, problem.sram_rates
    m, n, k = (1, 1, 1) if tile is None else (min(tile[0], op.M), min(tile[1], op.N), min(tile[2], op.K))
    needed = m * k * rates[0] + k * n * rates[1] + m * n * rates[2]
    return BadInput(
        f"tile {m} x {n} x {k} of {op} needs {needed:g} bytes, half of the scratchpad holds {supply.resident_bytes:g}: "
        f"give a larger scratchpad{'' if tile is None else ' or a smaller tiling'}"
    )


def _tiled(problem: Problem, row: list[int]) -> Tiled:
    m, n, k, order, cycles, compute, _, *moves = row
    return _closed_form(problem, Tiling(m=m, n=n, k=k, order=ORDERS[order]), cycles, compute, moves)


def evaluate(problem: Problem, tiling: Tiling, array: Array, supply: Supply) -> Tiled:
    """The cost of one tiling in closed form."""
    from trainyard.kernels.mapping import tiles

    extents = (problem.op.M, problem.op.N, problem.op.K)
    sizes = [min(tiling.size(axis), extent) for axis, extent in zip(AXES, extents, strict=True)]
    steps = [-(-extent // size) for size, extent in zip(sizes, extents, strict=True)]
    edges = [extent - (count - 1) * size for size, count, extent in zip(sizes, steps, extents, strict=True)]
    pairs = list(zip(sizes, edges, strict=True))
    kinds = np.empty((2, 2, 2), dtype=np.int64)
    compute = 0
    cycles_of = array.tile_cycles if isinstance(array, HasTileCycles) else lambda m, n, k: array.cost(MatMul(m, n, k)).cycles
    for em, en, ek in itertools.product((0, 1), repeat=3):
        kinds[em, en, ek] = cycles_of(pairs[0][em], pairs[1][en], pairs[2][ek])
        weights = [1 if edge else count - 1 for edge, count in zip((em, en, ek), steps, strict=True)]
        compute += weights[0] * weights[1] * weights[2] * int(kinds[em, en, ek])
    tile = np.array(list(zip(sizes, steps, edges, strict=True)), dtype=np.int64)
    order = np.array([AXES.index(axis) for axis in tiling.order], dtype=np.int64)
    count, rates, most = problem.op.count, np.array(problem.all_rates), np.iinfo(np.int64).max
    cycles = int(tiles.tiled_cycles(tile, order, count, rates, float(supply.bytes_per_cycle), supply.latency_cycles, kinds, most))
    return _closed_form(problem, tiling, cycles, compute * count, passes(problem.op, tiling))
