"""Traffic between DRAM and scratchpad, byte for byte, and cycles of dX and dW in one order.

The streams are those of `tile_streams`. The scratchpad holds tiles up to a number of bytes. A tile operation touches dY, W, dX or
X, dY, dW; of these, resident tiles become most recent, in that order; then the missing ones are loaded, in that order, and others
are evicted: the least recent (`lru`), or those needed last (`farthest`: all tiles of the stream's present step stay). A missing
operand is read. A new sum costs nothing; one evicted unfinished is written, and read back when it is touched; a finished one is
written once and freed.

Two further policies: `window` reuses tiles inside one half of the scratchpad alone. As many steps as the half holds tiles for are a
window; the other half is filled for the next one, and nothing passes from one to the other but through DRAM: an unfinished sum is
written at the end of the window, begins at zero in a later one, and is read back while that one computes, to be added. `operands`
keeps operands as `lru` does, and passes every unfinished sum through DRAM after each step in that way.

On several cores a step is one tile operation of each. A sum over the partitioned axis (dW where m is cut, dX where n is) has one
partial sum on each core; at the end of the step in which the last of them is complete, the others are added to it one by one, read
back where they were evicted, and the sum is written once.

While the array computes a step, the DRAM loads the tiles of the next one and writes what this one evicted and the one before
finished; the first loads and the last results are not hidden (under `window` a window takes the place of a step). `execution` does
all this with real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput
from trainyard.ir import Array, Direction, MatMul
from trainyard.ir.folds import AXES
from trainyard.ir.protocols import HasTileCycles
from trainyard.mapping.gradient_order.tile_streams import ORDERS, Gradient, Grid, Order, Partition, Size, grid, require_order
from trainyard.mapping.tiling import Problem, Supply

Policy = Literal["lru", "farthest", "window", "operands"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
TENSORS = ("dY", "W", "X", "dX", "dW")
OPERANDS, RESULTS = TENSORS[:3], TENSORS[3:]
ORDER_NUMBERS = {**{order: number for number, order in enumerate(ORDERS)}, "dx_major_mnk": 6, "dw_major_nmk": 7}
"""As `kernels.mapping.gradient_order.scratchpad` numbers them."""
SQUARE_BELOW = 4.0
"""Sec. 4.3: nearly square where the largest dimension is less than four times the smallest."""
SLACK = 1 + 1e-9
"""Tolerance of the capacity, as sums of fractions of bytes are rounded."""
MOST_TILES, CACHED_TILES = 20_000_000, 100_000
"""Most tiles of one stream, about 100 bytes for each; and of one that is cached."""
REAL = (int, float, np.integer, np.floating)
Integers = npt.NDArray[np.int64]
Compute = Callable[[Gradient, int, int, int], int]
"""Cycles of one tile operation, by the numbers of its tiles along m, n and k."""


def algorithm_1(op: MatMul, square_below: float = SQUARE_BELOW, *, k_inner: bool = False) -> Order:
    """The order of a forward product as Algorithm 1 chooses it, from its dimensions alone; `k_inner`: k is the innermost loop.

    >>> algorithm_1(MatMul(512, 512, 512)), algorithm_1(MatMul(64, 64, 4096)), algorithm_1(MatMul(4096, 64, 64))
    ('interleaved', 'dw_major', 'dx_major')
    """
    if max(op.M, op.N, op.K) / min(op.M, op.N, op.K) < square_below:
        return "interleaved"
    if op.K > op.N and op.K > op.M:
        return "dw_major_nmk" if k_inner else "dw_major"
    return "dx_major_mnk" if k_inner else "dx_major"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """dX and dW of a forward product, with the DRAM bytes of each whole tensor (of all `count` products).

    `resident` are the bytes of dY, W, X, dX and dW in the scratchpad; `sums` those of dX and dW evicted unfinished. `alone` leaves
    dW out: then any single product can take the place of dX (rows m, columns k, summed over n). `dw_transposed`: the array computes
    dW transposed, n by k.

    Of a convolution whose dX multiplies windows of dY (`lowering`, "dilated"), m are positions of dY, n and k channels: a tile of
    W or dW has `windows` weights for each n and k, and one of dX `spread` rows for each m, which a stride inserts. Rows of dY that
    windows of two tiles share are not counted again, as everywhere with a line buffer.
    """

    op: MatMul
    moved: tuple[int, int, int, int, int]
    resident: tuple[int, int, int, int, int]
    sums: tuple[int, int]
    alone: bool = False
    dw_transposed: bool = False
    windows: int = 1
    spread: int = 1
    _hash: int = field(init=False, repr=False, compare=False)
    """Found once: a search looks itself up by its pair."""

    def __post_init__(self) -> None:
        fields = (self.op, self.moved, self.resident, self.sums, self.alone, self.dw_transposed, self.windows, self.spread)
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def dense(cls, op: MatMul, element_bytes: int) -> Pair:
        """A pair with the same bytes for every element of every tensor, unfinished sums included."""
        sizes = [op.count * elements * element_bytes for elements in _elements(op)]
        bytes_ = (sizes[0], sizes[1], sizes[2], sizes[3], sizes[4])
        return cls(op=op, moved=bytes_, resident=bytes_, sums=(sizes[3], sizes[4]))

    @classmethod
    def single(cls, problem: Problem) -> Pair:
        """One product A(M,K) B(K,N), its sums in the place of dX; k is the innermost loop."""
        op, resident = problem.op, [round(rate * size) for rate, size in zip(problem.sram_rates, _sides(problem.op), strict=True)]
        return cls(
            op=MatMul(op.M, op.K, op.N, op.count),
            moved=(problem.a_bytes, problem.b_bytes, 0, problem.out_bytes, 0),
            resident=(resident[0], resident[1], 0, resident[2], 0),
            sums=(problem.sum_bytes, 0),
            alone=True,
        )

    def with_count(self, count: int) -> Pair:
        """The same pair with `count` of its equal products."""
        moved, resident = ([size * count // self.op.count for size in sizes] for sizes in (self.moved, self.resident))
        return replace(
            self,
            op=replace(self.op, count=count),
            moved=(moved[0], moved[1], moved[2], moved[3], moved[4]),
            resident=(resident[0], resident[1], resident[2], resident[3], resident[4]),
            sums=(self.sums[0] * count // self.op.count, self.sums[1] * count // self.op.count),
        )

    @property
    def products(self) -> Products:
        return Products(self.dw_transposed, self.windows, self.spread)

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Bytes per element of each tensor: resident, moved, moved unfinished."""
        return _rates(self)

    def needed(self, tile: Size, cores: int = 1) -> float:
        """The most bytes that the tiles of one step take."""
        m, n, k = (min(size, extent) for size, extent in zip(tile, (self.op.M, self.op.N, self.op.K), strict=True))
        resident = _resident_rates(self)
        first = m * n * resident[0] + k * n * resident[1] + m * k * resident[3]
        second = 0.0 if self.alone else m * k * resident[2] + m * n * resident[0] + k * n * resident[4]
        return float(cores * max(first, second))

    @property
    def compulsory_bytes(self) -> int:
        """Bytes if each operand is read once and each result written once."""
        return sum(self.moved)


@lru_cache(maxsize=4096)
def _rates(pair: Pair) -> npt.NDArray[np.float64]:
    rows = [*zip(pair.resident, pair.moved, (0, 0, 0, *pair.sums), strict=True)]
    rates: npt.NDArray[np.float64] = np.array(rows) / (np.array(_elements(pair.op))[:, None] * pair.op.count)
    rates.setflags(write=False)
    return rates


@lru_cache(maxsize=4096)
def _resident_rates(pair: Pair) -> tuple[float, ...]:
    return tuple(_rates(pair)[:, 0].tolist())


def _elements(op: MatMul) -> tuple[int, int, int, int, int]:
    return op.M * op.N, op.K * op.N, op.M * op.K, op.M * op.K, op.K * op.N


def _sides(op: MatMul) -> Size:
    return op.count * op.M * op.K, op.count * op.K * op.N, op.count * op.M * op.N


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes between DRAM and scratchpad by tensor and direction; a spill is an unfinished sum written, or read back."""

    bytes: Mapping[tuple[str, Direction], int]

    def _sum(self, direction: Direction) -> int:
        return sum(size for (_, way), size in self.bytes.items() if way == direction)

    @property
    def read_bytes(self) -> int:
        """Operands, as often as they were loaded."""
        return self._sum("read")

    @property
    def write_bytes(self) -> int:
        """Finished results."""
        return self._sum("write")

    @property
    def spill_bytes(self) -> int:
        """Unfinished sums, written and read back."""
        return self._sum("spill")

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())

    @property
    def by_tensor(self) -> dict[str, int]:
        """All directions added up, for every tensor in the order of `TENSORS`."""
        return {name: sum(size for (tensor, _), size in self.bytes.items() if tensor == name) for name in TENSORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCost:
    """A pair of gradients in one order: traffic, cycles, cycles of the array alone, additions of partial sums between cores."""

    order: Order
    tile: Size
    partition: Partition | None
    traffic: Traffic
    cycles: int
    compute_cycles: int
    additions: int = 0
    proven: bool = field(default=False, compare=False)
    """Whether a complete search found it: nothing in its menu is faster by more than the tolerance."""


def traffic(
    op: MatMul,
    *,
    tile: Size,
    capacity_bytes: float,
    element_bytes: int,
    order: Order,
    policy: Policy = "lru",
    partition: Partition | None = None,
) -> Traffic:
    """Traffic of the two gradients of the forward product `op`. `capacity_bytes` is all room for resident tiles.

    >>> moved = traffic(MatMul(4, 4, 4), tile=(2, 2, 2), capacity_bytes=20, element_bytes=1, order="dx_major")
    >>> moved.read_bytes, moved.write_bytes, moved.spill_bytes, moved.by_tensor["dY"]
    (76, 32, 32, 28)
    """
    require_positive("traffic", element_bytes=element_bytes)
    if isinstance(capacity_bytes, bool) or not isinstance(capacity_bytes, REAL) or math.isnan(capacity_bytes):
        raise BadInput(f"capacity_bytes must be a number of bytes, got {capacity_bytes!r}")
    pair = Pair.dense(op, element_bytes)
    return _run(pair, tile, capacity_bytes, order, policy, partition, _IDLE, _NO_SUPPLY)[0]


_IDLE: Compute = lambda gradient, m, n, k: 0  # noqa: E731  # only bytes are counted
_NO_SUPPLY = Supply(resident_bytes=0, bytes_per_cycle=math.inf)


def cost(
    pair: Pair,
    *,
    tile: Size,
    order: Order,
    array: Array,
    supply: Supply,
    policy: Policy = "lru",
    partition: Partition | None = None,
    compute: Compute | None = None,
    by_tile: bool = True,
) -> OrderCost:
    """Traffic and cycles of a pair on an array behind a scratchpad of which `supply.resident_bytes` hold tiles.

    `array` is one core. `compute` gives the cycles of each tile operation where they differ from tile to tile (`by_tile`), or those
    of one tile of each size; otherwise they come from the array, once for each size.
    """
    alike = compute is None or not by_tile
    cut = grid(pair.op, tile, partition)
    moved, cycles, compute_cycles = _run(
        pair, tile, supply.resident_bytes, order, policy, partition, compute or by_size(pair, cut, array), supply, alike
    )
    return OrderCost(
        order=order,
        tile=tile,
        partition=partition,
        traffic=moved,
        cycles=cycles,
        compute_cycles=compute_cycles,
        additions=additions(pair, partition),
    )


def additions(pair: Pair, partition: Partition | None) -> int:
    """Elements of partial sums that one core adds to another's."""
    if partition is None or not partition.cores:
        return 0
    op = pair.op
    summed = {"m": 0 if pair.alone else op.K * op.N * pair.windows, "n": op.M * pair.spread * op.K, "k": 0}[partition.axis]
    extent = {"m": op.M, "n": op.N, "k": op.K}[partition.axis]
    return op.count * summed * (min(partition.parts, extent) - 1)


class Products(NamedTuple):
    """How the array computes the tiles of a pair: the fields of these names of `Pair`."""

    dw_transposed: bool
    windows: int
    spread: int

    def of(self, gradient: Gradient, m: int, n: int, k: int) -> MatMul:
        """The product of one tile operation.

        >>> Products(False, windows=9, spread=1).of("dX", 64, 8, 4), Products(False, windows=9, spread=1).of("dW", 64, 8, 4)
        (MatMul(M=64, N=4, K=72, count=1), MatMul(M=36, N=8, K=64, count=1))
        """
        if gradient == "dX":
            return MatMul(m * self.spread, k, n * self.windows)
        return MatMul(n, k * self.windows, m) if self.dw_transposed else MatMul(k * self.windows, n, m)


def tile_cycles(array: Array, product: MatMul) -> int:
    """Cycles of one tile: without the closing -1 of a whole op where the array counts tiles itself."""
    if isinstance(array, HasTileCycles):
        return array.tile_cycles(product.M, product.N, product.K)
    return array.cost(product).cycles


def by_size(pair: Pair, cut: Grid, array: Array) -> Compute:
    """Cycles by the size of a tile."""
    cache: dict[MatMul, int] = {}

    def cycles(gradient: Gradient, m: int, n: int, k: int) -> int:
        product = pair.products.of(gradient, cut.m[m], cut.n[n], cut.k[k])
        if product not in cache:
            cache[product] = tile_cycles(array, product)
        return cache[product]

    return cycles


def _kinds(lengths: Sequence[int], by_size: bool) -> tuple[list[int], list[int]]:
    """For each tile along an axis its row of the compute table, and one tile for each row."""
    if not by_size:
        return [*range(len(lengths))], [*range(len(lengths))]
    first: dict[int, int] = {}
    for number, length in enumerate(lengths):
        first.setdefault(length, number)
    rows = {length: row for row, length in enumerate(first)}
    return [rows[length] for length in lengths], [*first.values()]


def compute_table(cut: Grid, gradients: Sequence[Gradient], compute: Compute, by_size: bool = True) -> tuple[Integers, Integers]:
    """Cycles of the array by gradient and kind of tile along m, n and k; and of each tile its kind along each axis."""
    kinds = [_kinds(cut.sizes(axis), by_size) for axis in AXES]
    rows = [tiles for _, tiles in kinds]
    table = np.zeros((2, *(len(tiles) for tiles in rows)), dtype=np.int64)
    for which, gradient in enumerate(gradients):
        for i, m in enumerate(rows[0]):
            for j, n in enumerate(rows[1]):
                for h, k in enumerate(rows[2]):
                    table[which, i, j, h] = compute(gradient, m, n, k)
    numbers = np.zeros((3, max(len(row) for row, _ in kinds)), dtype=np.int64)
    for axis, (row, _) in enumerate(kinds):
        numbers[axis, : len(row)] = row
    return table, numbers


def too_many_tiles(tiles: str) -> BadInput:
    return BadInput(
        f"{tiles} are more than are walked one by one ({MOST_TILES:,}): "
        "give larger tiles (tiling=...), or an order and a reuse that are not walked (order='sequential', reuse='step')"
    )


def _operation_stream(
    counts: Size, order: int, axis: int, bounds: tuple[tuple[int, int], ...], cores: bool
) -> tuple[Integers, Integers]:
    """The operations of a stream in order, and where each step begins; short streams are cached."""
    tiles = math.prod(counts)
    if tiles > MOST_TILES:
        raise too_many_tiles(f"{' x '.join(map(str, counts))} tiles (m, n, k) of one product")
    return (_cached_stream if tiles <= CACHED_TILES else _new_stream)(counts, order, axis, bounds, cores)


def _new_stream(counts: Size, order: int, axis: int, bounds: tuple[tuple[int, int], ...], cores: bool) -> tuple[Integers, Integers]:
    from trainyard.kernels.mapping.gradient_order import scratchpad as kernel

    ops, begins = kernel.stream(np.array(counts), order, axis, np.array(bounds))
    return kernel.in_step(ops, begins) if cores else (ops, np.arange(len(ops) + 1))


_cached_stream = lru_cache(maxsize=64)(_new_stream)


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One product's tile operations through the scratchpad: what moved, and when.

    `moved` are bytes by tensor and kind, `transfers` those that each stage loads, spills and finishes; a stage is one step, or a
    window of them. `ops`, `steps` and `begins` are the operations, and where steps and stages begin.
    """

    cut: Grid
    moved: npt.NDArray[np.float64]
    transfers: npt.NDArray[np.float64]
    ops: Integers
    steps: Integers
    begins: Integers

    def stage_cycles(self, table: Integers, kinds: Integers) -> Integers:
        """Cycles of the array in each stage; `table` and `kinds` as `compute_table` makes them."""
        from trainyard.kernels.mapping.gradient_order import scratchpad as kernel

        return kernel.stage_cycles(self.ops, self.steps, self.begins, table, kinds)


def walk(
    pair: Pair, tile: Size, capacity_bytes: float, order: Order, policy: Policy = "lru", partition: Partition | None = None
) -> Walk:
    from trainyard.kernels.mapping.gradient_order import scratchpad as kernel

    require_order(order)
    require_choice("", policy=(policy, POLICIES))
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    room = checked_room(pair, tile, cores, capacity_bytes)
    counts = np.array([len(cut.m), len(cut.n), len(cut.k)])
    axis = -1 if cut.axis is None else AXES.index(cut.axis)
    bounds = tuple((part.start, part.stop) for part in cut.parts) or ((0, 0),)
    number = kernel.ALONE if pair.alone else ORDER_NUMBERS[order]
    ops, steps = _operation_stream((len(cut.m), len(cut.n), len(cut.k)), number, axis, bounds, cores > 1)
    copies = np.array([cores if cut.axis == "n" else 1, cores if cut.axis == "m" else 1])
    additions_left = np.array([(counts[1], counts[0])] * max(copies))
    for core in range(cores if max(copies) > 1 else 0):
        additions_left[core, 0 if cut.axis == "n" else 1] = len(cut.parts[core])
    lengths = [np.array(sizes) for sizes in (cut.m, cut.n, cut.k)]
    starts, sizes, tensor = kernel.measure(lengths[0], lengths[1], lengths[2], copies, pair.rates)
    uses = kernel.next_uses(ops, counts, copies, starts) if policy == "farthest" else _NO_USES
    moved, transfers, begins = kernel.walk(
        ops, steps, counts, copies, additions_left, starts, sizes, tensor, POLICIES.index(policy), order == "no_second_dy", room,
        uses,
    )  # fmt: skip
    return Walk(cut, moved, transfers, ops, steps, begins)


def in_a_row(transfers: npt.NDArray[np.float64], busy: Integers, count: int, supply: Supply) -> int:
    """Cycles of `count` equal products one after the other."""
    from trainyard.kernels.mapping.gradient_order import scratchpad as kernel

    passes = min(count, 3 if len(busy) == 1 else 2)  # from there on each takes as long as the last of them
    cycles = kernel.clock(transfers, busy, passes, supply.latency_cycles, supply.bytes_per_cycle)
    return int(cycles[-1]) + ((count - passes) * int(cycles[-1] - cycles[-2]) if count > passes else 0)


def _run(
    pair: Pair,
    tile: Size,
    capacity_bytes: float,
    order: Order,
    policy: Policy,
    partition: Partition | None,
    compute: Compute,
    supply: Supply,
    by_size: bool = True,
) -> tuple[Traffic, int, int]:
    walked = walk(pair, tile, capacity_bytes, order, policy, partition)
    busy = walked.stage_cycles(*compute_table(walked.cut, ("dX",) if pair.alone else ("dX", "dW"), compute, by_size))
    cycles = in_a_row(walked.transfers, busy, pair.op.count, supply)
    return kernel_traffic(walked.moved * pair.op.count), cycles, int(busy.sum()) * pair.op.count


_NO_USES = np.zeros((0, 3), dtype=np.int64)


def checked_room(pair: Pair, tile: Size, cores: int, capacity_bytes: float) -> float:
    """The capacity, if the tiles of a step fit; fractions of bytes get some tolerance."""
    is_whole = all(rate.is_integer() for rate in pair.rates[:, 0].tolist())
    needed, room = pair.needed(tile, cores), float(capacity_bytes) * (1 if is_whole else SLACK)
    if needed > room:
        m, n, k = tile
        of_cores = "" if cores == 1 else f" of {cores} cores"
        raise BadInput(
            f"a step with tiles {m} x {n} x {k} (m, n, k) of {pair.op}{of_cores} needs {math.ceil(needed):,} bytes, "
            f"there is room for {math.floor(capacity_bytes):,}: give more room or smaller tiles"
        )
    return room


def kernel_traffic(moved: npt.NDArray[np.float64], names: Sequence[str] = TENSORS) -> Traffic:
    """Traffic from a kernel's counts, a row for each tensor: read, written, spilled, read back."""
    traffic_bytes: dict[tuple[str, Direction], int] = {}
    for name, (read, written, left, back) in zip(names, moved.tolist(), strict=True):
        sizes: list[tuple[Direction, float]] = [("read", read), ("write", written), ("spill", left + back)]
        traffic_bytes |= {(name, direction): round(size) for direction, size in sizes if size}
    return Traffic(bytes=traffic_bytes)
