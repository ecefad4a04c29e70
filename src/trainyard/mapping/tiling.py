"""Tiles of a product: bytes between DRAM and scratchpad, cycles, and the search for the best tile, loop order and resident tensors.

Half of the scratchpad holds the tiles of the current step (one of A, one of B, one of sums), the other half is being filled with
those of the next. While the array computes a step, the DRAM writes what the step before left behind and reads what the next one
needs, so a step takes the longer of the two; the first fill and the last drain are seen in full. A tile that two steps in a row
share is not moved. A tensor may be kept: all of its tiles inside the loop that it lacks then stay in the scratchpad and are moved
once. Unfinished sums (k is not the innermost loop, more than one tile of sums lies inside it, and they are not kept) spill: they
are written and read again as accumulators. `walk` visits tile after tile; the closed form gives exactly the same cycles and bytes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache
from trainyard.errors import BadInput, TooLarge
from trainyard.hardware.tables.energy import REFERENCE, Prices
from trainyard.ir import Array, MatMul
from trainyard.ir.folds import AXES, COLUMNS, Axis, Folds, Pooled
from trainyard.ir.protocols import HasClosedForm, HasTileCycles, HasTileGuides
from trainyard.mapping.halo import Halo
from trainyard.progress import counted

ORDERS = tuple("".join(AXES[axis] for axis in order) for order in itertools.permutations(range(3)))
"""Loop orders, outer to inner: mnk, mkn, nmk, nkm, kmn, knm."""
Tensor = Literal["a", "b", "out"]
TENSORS: tuple[Tensor, ...] = get_args(Tensor)
"""Of a product, in the order of the bits of the compiled search; each lacks one axis: n, m, k."""
LACKS: dict[str, Axis] = {"a": "n", "b": "m", "out": "k"}
Objective = Literal["time", "energy", "edp", "traffic"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

Size = tuple[int, int, int]
NO_TILE: Size = (0, 0, 0)
"""No fixed tile: the search tries all sizes."""
Integers = npt.NDArray[np.int64]
EVALUATIONS = 128
"""Tiles that are asked of an array of which nothing but its multipliers is known, unless `effort` says otherwise."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the search makes small: time, energy, their product or DRAM traffic; of all tilings within `tolerance` of the least,
    those within `tolerance` of the least traffic of these, and of these the one with the least energy at these `prices`.

    `effort` bounds the work for one product (cells of the branch and bound; 0: none), `energy` are the joules of a byte of DRAM
    traffic, and a function for all other joules of a product, which hardly depend on tiles.
    """

    objective: Objective = "time"
    tolerance: float = 0.01
    effort: int = 0
    energy: tuple[float, Callable[[MatMul], float]] | None = None
    prices: Prices = REFERENCE

    def joules(self, op: MatMul) -> tuple[float, float]:
        return (0.0, 0.0) if self.energy is None else (self.energy[0], self.energy[1](op))


FASTEST = Goal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A product and the DRAM bytes of its complete tensors (all `count` of them) when each is moved once.

    `out_bytes` are those of finished sums, with the reads and writes of an epilogue; `sum_bytes` is the size of all sums as
    accumulators. A convolution that is read without im2col has fewer `a_bytes` than its matrix; a tile takes its share of them.
    If a DMA engine decompresses what it reads, `a_sram_bytes` and `b_sram_bytes` are the sizes in the scratchpad. `halo` is what
    neighbouring tiles of a convolution both read, where no line buffer keeps it. `tile` fixes sizes (0: free), `orders` the loop
    orders that may be taken, `keep` the tensors that have to stay inside the loop that they lack. `element_bytes` are those of A
    and B at the array; None: as in the scratchpad.
    """

    op: MatMul
    a_bytes: int
    b_bytes: int
    out_bytes: int
    sum_bytes: int
    a_sram_bytes: int | None = None
    b_sram_bytes: int | None = None
    halo: Halo | None = None
    tile: Size = NO_TILE
    orders: tuple[str, ...] = ()
    keep: tuple[Tensor, ...] = ()
    element_bytes: tuple[float, float] | None = None

    @classmethod
    def dense(cls, op: MatMul, element_bytes: int, accumulator_bytes: int = 4) -> Problem:
        left, right, out = (op.count * size for size in (op.M * op.K, op.K * op.N, op.M * op.N))
        return cls(
            op=op,
            a_bytes=left * element_bytes,
            b_bytes=right * element_bytes,
            out_bytes=out * element_bytes,
            sum_bytes=out * accumulator_bytes,
            element_bytes=(element_bytes, element_bytes),
        )

    @property
    def is_constrained(self) -> bool:
        return self.tile != NO_TILE or bool(self.orders) or bool(self.keep)

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
    def halo_row(self) -> tuple[float, ...]:
        """The halo for the compiled search, and whose it is: A's along m or k, or the sums' (`tile_bounds.HALO`)."""
        if self.halo is None:
            return NO_HALO
        return (*self.halo.row, 3.0 if self.halo.operand == "out" else (1.0 if self.halo.axis == "m" else 2.0))

    @property
    def all_rates(self) -> tuple[float, ...]:
        """The arguments of the compiled loops: `rates`, then the bytes of A and B in the scratchpad, and at the array."""
        held = self.sram_rates[:2]
        return (*self.rates, *held, *(self.element_bytes or held))


NO_HALO = (0.0,) * 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The memory system of a device: bytes for the tiles of one step, DRAM bandwidth and latency in cycles of its clock."""

    resident_bytes: float
    bytes_per_cycle: float
    latency_cycles: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Tile sizes along m, n, k (edge tiles are clipped), the order of the loops, outer to inner, and the tensors that are kept.

    The tensor without the innermost loop stays in any case; the one without the middle loop can be kept, or with it also the one
    without the outer loop, which is all of it.
    """

    m: int
    n: int
    k: int
    order: str = "mnk"
    keep: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise BadInput(f"Tiling: order {self.order!r} is none of {', '.join(ORDERS)}")
        if any(tensor not in TENSORS for tensor in self.keep):
            raise BadInput(f"Tiling: keep={self.keep!r} names something else than {', '.join(TENSORS)}")

    @property
    def keep_bits(self) -> int:
        return sum(1 << number for number, tensor in enumerate(TENSORS) if tensor in self.keep)

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
    >>> passes(MatMul(8, 8, 8), Tiling(m=4, n=4, k=4, order="mnk", keep=("a",)))  # both tiles of a row of A stay
    (1, 2, 1)
    """
    steps = {axis: -(-extent // tiling.size(axis)) for axis, extent in zip(AXES, (op.M, op.N, op.K), strict=True)}

    def times(tensor: Tensor) -> int:
        inside = tiling.order[tiling.order.index(LACKS[tensor]) + 1 :]
        again = any(steps[loop] > 1 for loop in inside) and tensor not in tiling.keep  # type: ignore[index]  # loops are axes
        return steps[LACKS[tensor]] if again else 1

    return times("a"), times("b"), times("out")


def needed_bytes(problem: Problem, tiling: Tiling) -> float:
    """Bytes of the scratchpad that one step's tiles and the kept tensors take.

    >>> problem = Problem.dense(MatMul(8, 8, 8), 4)
    >>> needed_bytes(problem, Tiling(m=4, n=4, k=2)), needed_bytes(problem, Tiling(m=4, n=4, k=2, keep=("a",)))
    (128.0, 224.0)
    """
    from trainyard.kernels.mapping import tile_bounds

    dims = np.array([problem.op.M, problem.op.N, problem.op.K, problem.op.count], np.int64)
    tile, spans = cut(problem, tiling)
    order = np.array([AXES.index(axis) for axis in tiling.order], dtype=np.int64)
    return float(tile_bounds.needed_bytes(tile, spans, dims, order, tiling.keep_bits, np.array(problem.all_rates)))


def closed_form(problem: Problem, tiling: Tiling, cycles: int, compute_cycles: int, moves: Sequence[int]) -> Tiled:
    """A tiling's DRAM bytes by tensor; `moves` says how often A, B and the sums are moved."""
    over_n, over_m, over_k = moves
    spilled = (over_k - 1) * problem.sum_bytes
    a_more, out_more = _halo_factors(problem, tiling)
    return Tiled(
        tiling=tiling,
        cycles=cycles,
        compute_cycles=compute_cycles,
        a_read=over_n * problem.a_bytes if a_more is None else round(over_n * problem.a_bytes * a_more),
        b_read=over_m * problem.b_bytes,
        out_moved=problem.out_bytes if out_more is None else round(problem.out_bytes * out_more),
        spill_write=spilled,
        spill_read=spilled,
    )


def _halo_factors(problem: Problem, tiling: Tiling) -> tuple[float | None, float | None]:
    """Bytes of A and of finished sums with their halo, over those without; None where there is none."""
    halo = problem.halo
    if halo is None:
        return None, None
    extent = problem.op.M if halo.axis == "m" else problem.op.K
    size = min(tiling.size(halo.axis), extent)
    more = 1.0 + -(-extent // size) * (halo.spread(size) - size) / extent
    return (None, more) if halo.operand == "out" else (more, None)


def form_rows(forms: Sequence[Folds | Pooled], array: Array) -> Integers:
    """Closed forms as rows of the compiled search; without any, all multipliers of the array are always busy."""
    return _form_rows(tuple(forms), 0 if forms else array.peak_macs_per_cycle)


@lru_cache(maxsize=1024)
def _form_rows(forms: tuple[Folds | Pooled, ...], multipliers: int) -> Integers:
    from trainyard.kernels.mapping.tile_cycles import IDEAL

    rows = [form.row for form in forms] or [(1, 1, 1, 0, 0, 0, 1, IDEAL, multipliers, 0, 0, 0, 0, 0)]
    return np.array(rows, dtype=np.int64).reshape(len(rows), COLUMNS)


@dataclass(frozen=True, slots=True, eq=False)
class ProblemTable:
    """Many products as arrays for the compiled search: M, N, K and count, bytes per element (`all_rates`), halos, what is fixed."""

    problems: tuple[Problem, ...]
    dims: Integers
    rates: npt.NDArray[np.float64]
    halos: npt.NDArray[np.float64]
    tiles: Integers
    allowed: Integers
    longest: int
    macs: int
    digest: bytes
    """Of all that the search looks at."""

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> ProblemTable:
        from trainyard.kernels.mapping.tile_cycles import MOST_CYCLES

        ops = [problem.op for problem in problems]
        longest = max((max(op.M, op.N, op.K, op.count) for op in ops), default=0)
        dims = [(op.M, op.N, op.K, op.count) for op in ops] if longest < MOST_CYCLES else []
        columns = (
            np.array(dims, dtype=np.int64).reshape(-1, 4),
            np.array([problem.all_rates for problem in problems]).reshape(-1, 8),
            np.array([problem.halo_row for problem in problems]).reshape(-1, len(NO_HALO)),
            np.array([problem.tile for problem in problems], dtype=np.int64).reshape(-1, 3),
            np.array([_allowed(problem.orders, problem.keep) for problem in problems], dtype=np.int64),
        )
        digest = hashlib.blake2b(b"".join(column.tobytes() for column in columns)).digest()
        return cls(tuple(problems), *columns, longest, max((op.macs for op in ops), default=0), digest)


@lru_cache(maxsize=2048)
def single_table(problem: Problem) -> ProblemTable:
    """One product: a sweep over machines asks for the same again and again."""
    return ProblemTable.of([problem])


def table_of(problems: Sequence[Problem]) -> ProblemTable:
    """Several products: a step asks for the same objects again, which the table keeps alive."""
    if len(problems) == 1:
        return single_table(problems[0])
    return _TABLES.get(tuple(map(id, problems)), lambda: ProblemTable.of(problems))


_TABLES = BoundedCache(entries=64)
"""By the identities of their products."""


@lru_cache(maxsize=256)
def _allowed(orders: tuple[str, ...], keep: tuple[Tensor, ...]) -> int:
    """A bit for each order and each choice of what is kept (`tile_bounds.KEPT_MIDDLE`) that a problem's constraints leave."""
    from trainyard.kernels.mapping.tile_bounds import KEPT_MIDDLE

    orders = orders or ORDERS
    bits = 0
    for number, order in enumerate(ORDERS):
        if order not in orders:
            continue
        by_loop: dict[str, Tensor] = {LACKS[tensor]: tensor for tensor in TENSORS}
        stays = [by_loop[order[2]]]
        for kept, more in ((0, []), (1, [order[1]]), (2, [order[1], order[0]])):
            if set(keep) <= {*stays, *(by_loop[axis] for axis in more)}:
                bits |= 1 << (number + KEPT_MIDDLE * kept)
    return bits


def search(
    problems: Sequence[Problem],
    array: Array,
    supply: Supply,
    tile: Size | None = None,
    guides: Sequence[Folds | Pooled] = (),
    goal: Goal = FASTEST,
) -> list[Tiled]:
    """The best tile, loop order and resident tensors of each product, or the best order of a given tile.

    An array without a closed form may have `guides`, approximate closed forms: they choose the tile, whose cost then comes from the
    array. With the argument `guides`, the costs are those of the guides, and the caller costs the chosen tiles. An array with
    neither is asked for the cycles of the most promising tiles (`mapping.tile_costs`).
    """
    if not problems:
        return []
    exact: Sequence[Folds | Pooled] = array.folds if isinstance(array, HasClosedForm) else ()
    forms = guides or exact or (array.guides if isinstance(array, HasTileGuides) else ())
    if not forms:
        from trainyard.mapping.tile_costs import search_by_cost

        return [search_by_cost(problem, array, supply, tile, goal) for problem in counted(problems, "search of tiles")]
    table = table_of(problems)
    from trainyard.mapping.bandwidths import search_tiles

    rows = search_tiles(table, forms, array, supply, tile, goal)
    chosen = [tiled(problem, row) for problem, row in zip(problems, rows.tolist(), strict=True)]
    if not guides and not exact:
        from trainyard.mapping.tile_costs import beyond_guides

        guided = [*zip(problems, chosen, strict=True)]
        return [beyond_guides(problem, choice, array, supply, tile, goal) for problem, choice in counted(guided, "search of tiles")]
    return chosen


def too_long(op: MatMul) -> TooLarge:
    return TooLarge(f"{op} takes more than 2**53 cycles here: give a smaller product or a larger array")


def nothing_fits(problem: Problem, supply: Supply, tile: Size | None) -> BadInput:
    op = problem.op
    given = tuple(size or (tile or NO_TILE)[axis] for axis, size in enumerate(problem.tile))
    m, n, k = (min(size or 1, extent) for size, extent in zip(given, (op.M, op.N, op.K), strict=True))
    needed = min(needed_bytes(problem, Tiling(m=m, n=n, k=k, order=order, keep=problem.keep)) for order in problem.orders or ORDERS)
    fixed = any(given) or bool(problem.keep)
    return BadInput(
        f"tile {m} x {n} x {k} of {op} needs {needed:g} bytes, half of the scratchpad holds {supply.resident_bytes:g}: "
        f"give a larger scratchpad ({2 * needed:g} bytes at least){' or a smaller tiling' if fixed else ''}"
    )


def tiled(problem: Problem, row: Sequence[int]) -> Tiled:
    """A row of the compiled search."""
    m, n, k, order, cycles, compute, proven, *moves, keep, _ = row
    kept = tuple(tensor for number, tensor in enumerate(TENSORS) if keep >> number & 1)
    cost = closed_form(problem, Tiling(m=m, n=n, k=k, order=ORDERS[order], keep=kept), cycles, compute, moves)
    return cost if proven else unproven(cost)


def unproven(cost: Tiled) -> Tiled:
    return replace(cost, proven=False)


def cut(problem: Problem, tiling: Tiling) -> tuple[Integers, npt.NDArray[np.float64]]:
    """Sizes, counts and edges along each axis, and the sides that bytes are counted by, as the compiled loops have them."""
    from trainyard.kernels.mapping import tile_bounds

    extents = (problem.op.M, problem.op.N, problem.op.K)
    sizes = [min(tiling.size(axis), extent) for axis, extent in zip(AXES, extents, strict=True)]
    steps = [-(-extent // size) for size, extent in zip(sizes, extents, strict=True)]
    edges = [extent - (count - 1) * size for size, count, extent in zip(sizes, steps, extents, strict=True)]
    tile, spans = np.array(list(zip(sizes, steps, edges, strict=True)), dtype=np.int64), np.empty((3, 2))
    tile_bounds.spans_of(tile, np.array(problem.halo_row), spans)
    return tile, spans


def evaluate(problem: Problem, tiling: Tiling, array: Array, supply: Supply) -> Tiled:
    """The cost of one tiling in closed form."""
    from trainyard.kernels.mapping import tiles

    tile, spans = cut(problem, tiling)
    kinds = np.zeros((2, 2, 2), dtype=np.int64)
    compute = 0
    cycles_of = array.tile_cycles if isinstance(array, HasTileCycles) else lambda m, n, k: array.cost(MatMul(m, n, k)).cycles
    for em, en, ek in itertools.product((0, 1), repeat=3):
        many = [1 if edge else int(count) - 1 for edge, count in zip((em, en, ek), tile[:, 1], strict=True)]
        times = many[0] * many[1] * many[2]
        if times:
            cycles = cycles_of(int(tile[0, 2 * em]), int(tile[1, 2 * en]), int(tile[2, 2 * ek]))
            kinds[em, en, ek] = cycles
            compute += times * cycles
    order = np.array([AXES.index(axis) for axis in tiling.order], dtype=np.int64)
    order.setflags(write=False)  # like the compiled constant ORDERS, so that one signature serves both
    count, rates = problem.op.count, np.array(problem.all_rates)
    cycles = int(
        tiles.tiled_cycles(
            tile, spans, order, tiling.keep_bits, count, rates, float(supply.bytes_per_cycle), supply.latency_cycles, kinds
        )
    )
    return closed_form(problem, tiling, cycles, compute * count, passes(problem.op, tiling))
