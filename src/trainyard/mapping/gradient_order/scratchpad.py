"""What an order of dX and dW moves between DRAM and scratchpad, byte for byte, and how long it takes.

The streams are those of `tile_streams`. The scratchpad holds tiles up to a number of bytes. A tile operation touches dY, W, dX or
X, dY, dW; of these, tiles in place become most recent, in that order; then the missing ones come in, in that order, and others
make room: the least recent (`lru`), or those needed last (`farthest`: all tiles of the stream's present step stay). An operand that
is not in place is read. A new sum costs nothing; one pushed out unfinished is written, and read again when it is touched; a
finished one is written once and makes room.

On several cores a step is one tile operation of each. A sum over the partitioned axis (dW where m is cut, dX where n is) has one
partial sum on each core; at the end of the step in which the last of them ends, the others are added to it one by one, read again
where they were pushed out, and the sum is written once.

While the array computes a step, the DRAM brings the tiles of the next one and writes what this one pushed out and the one before
finished; the first fill and the last results are seen in full. `gradient_execution` does all this on real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Array, Direction, MatMul
from trainyard.ir.folds import AXES
from trainyard.ir.protocols import HasTileCycles
from trainyard.mapping.gradient_order.tile_streams import ORDERS, Gradient, Grid, Order, Partition, Size, grid, require_order
from trainyard.mapping.tiling import Problem, Supply

Policy = Literal["lru", "farthest"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
TENSORS = ("dY", "W", "X", "dX", "dW")
OPERANDS, RESULTS = TENSORS[:3], TENSORS[3:]
SQUARE_BELOW = 4.0
"""Sec. 4.3: nearly square where the largest dimension is less than four times the smallest."""
SLACK = 1 + 1e-9
"""Of the room: sums of fractions of bytes."""
MOST_TILES, REMEMBERED_TILES = 20_000_000, 100_000
"""Of one walk, about 100 bytes for each; and of one whose stream is kept for the next."""
REAL = (int, float, np.integer, np.floating)
Whole = npt.NDArray[np.int64]
Compute = Callable[[Gradient, int, int, int], int]
"""Cycles of one tile operation, by the numbers of its tiles along m, n and k."""


def algorithm_1(op: MatMul, square_below: float = SQUARE_BELOW) -> Order:
    """The order of a forward product as Algorithm 1 chooses it, from its dimensions alone.

    >>> algorithm_1(MatMul(512, 512, 512)), algorithm_1(MatMul(64, 64, 4096)), algorithm_1(MatMul(4096, 64, 64))
    ('interleaved', 'dw_major', 'dx_major')
    """
    if max(op.M, op.N, op.K) / min(op.M, op.N, op.K) < square_below:
        return "interleaved"
    return "dw_major" if op.K > op.N and op.K > op.M else "dx_major"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """dX and dW of a forward product, with the DRAM bytes of each whole tensor (of all `count` products).

    `held` are the bytes of dY, W, X, dX and dW in the scratchpad; `sums` those of dX and dW that leave unfinished. `alone` leaves
    dW out: then any single product can stand for dX (rows m, columns k, summed over n). `turned` says that the array computes dW
    transposed, n by k.
    """

    op: MatMul
    moved: tuple[int, int, int, int, int]
    held: tuple[int, int, int, int, int]
    sums: tuple[int, int]
    alone: bool = False
    turned: bool = False

    @classmethod
    def dense(cls, op: MatMul, element_bytes: int) -> Pair:
        """Every element of every tensor takes as many bytes, unfinished sums too."""
        sizes = [op.count * elements * element_bytes for elements in _elements(op)]
        whole = (sizes[0], sizes[1], sizes[2], sizes[3], sizes[4])
        return cls(op=op, moved=whole, held=whole, sums=(sizes[3], sizes[4]))

    @classmethod
    def single(cls, problem: Problem) -> Pair:
        """One product A(M,K) B(K,N), its sums in the place of dX; k is the innermost loop."""
        op, held = problem.op, [round(rate * size) for rate, size in zip(problem.sram_rates, _sides(problem.op), strict=True)]
        return cls(
            op=MatMul(op.M, op.K, op.N, op.count),
            moved=(problem.a_bytes, problem.b_bytes, 0, problem.out_bytes, 0),
            held=(held[0], held[1], 0, held[2], 0),
            sums=(problem.sum_bytes, 0),
            alone=True,
        )

    def fewer(self, count: int) -> Pair:
        """The same with so many of its equal products."""
        moved, held = ([size * count // self.op.count for size in sizes] for sizes in (self.moved, self.held))
        return replace(
            self,
            op=replace(self.op, count=count),
            moved=(moved[0], moved[1], moved[2], moved[3], moved[4]),
            held=(held[0], held[1], held[2], held[3], held[4]),
            sums=(self.sums[0] * count // self.op.count, self.sums[1] * count // self.op.count),
        )

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Bytes an element of each tensor: held, moved, moved unfinished."""
        return _rates(self)

    def needed(self, tile: Size, cores: int = 1) -> float:
        """Bytes that the tiles of one step take at most."""
        m, n, k = (min(size, extent) for size, extent in zip(tile, (self.op.M, self.op.N, self.op.K), strict=True))
        held = self.rates[:, 0]
        first = m * n * held[0] + k * n * held[1] + m * k * held[3]
        second = 0.0 if self.alone else m * k * held[2] + m * n * held[0] + k * n * held[4]
        return float(cores * max(first, second))

    @property
    def compulsory_bytes(self) -> int:
        """Each operand read once, each result written once."""
        return sum(self.moved)


@lru_cache(maxsize=4096)
def _rates(pair: Pair) -> npt.NDArray[np.float64]:
    rows = [*zip(pair.held, pair.moved, (0, 0, 0, *pair.sums), strict=True)]
    found: npt.NDArray[np.float64] = np.array(rows) / (np.array(_elements(pair.op))[:, None] * pair.op.count)
    found.setflags(write=False)
    return found


def _elements(op: MatMul) -> tuple[int, int, int, int, int]:
    return op.M * op.N, op.K * op.N, op.M * op.K, op.M * op.K, op.K * op.N


def _sides(op: MatMul) -> Size:
    return op.count * op.M * op.K, op.count * op.K * op.N, op.count * op.M * op.N


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes between DRAM and scratchpad by tensor and direction; a spill is what left unfinished and what came back."""

    bytes: Mapping[tuple[str, Direction], int]

    def _sum(self, direction: Direction) -> int:
        return sum(size for (_, way), size in self.bytes.items() if way == direction)

    @property
    def read_bytes(self) -> int:
        """Operands, as often as they came."""
        return self._sum("read")

    @property
    def write_bytes(self) -> int:
        """Finished results."""
        return self._sum("write")

    @property
    def spill_bytes(self) -> int:
        """Unfinished sums, out and in again."""
        return self._sum("spill")

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())

    @property
    def by_tensor(self) -> dict[str, int]:
        """All directions together; every tensor, in the order of `TENSORS`."""
        return {name: sum(size for (tensor, _), size in self.bytes.items() if tensor == name) for name in TENSORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A pair of gradients in one order: traffic, cycles, those of the array alone, additions of partial sums between cores."""

    order: Order
    tile: Size
    partition: Partition | None
    traffic: Traffic
    cycles: int
    compute_cycles: int
    additions: int = 0


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
    """What the two gradients of the forward product `op` move. `capacity_bytes` is all room for tiles that stay.

    >>> moved = traffic(MatMul(4, 4, 4), tile=(2, 2, 2), capacity_bytes=20, element_bytes=1, order="dx_major")
    >>> moved.read_bytes, moved.write_bytes, moved.spill_bytes, moved.by_tensor["dY"]
    (76, 32, 32, 28)
    """
    require_positive("traffic", element_bytes=element_bytes)
    if isinstance(capacity_bytes, bool) or not isinstance(capacity_bytes, REAL) or math.isnan(capacity_bytes):
        raise BadInput(f"capacity_bytes must be a number of bytes, got {capacity_bytes!r}")
    pair = Pair.dense(op, element_bytes)
    return _run(pair, tile, capacity_bytes, order, policy, partition, _IDLE, _NOTHING)[0]


_IDLE: Compute = lambda gradient, m, n, k: 0  # noqa: E731  # only bytes are asked for
_NOTHING = Supply(resident_bytes=0, bytes_per_cycle=math.inf)


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
) -> Ordered:
    """A pair on an array behind a scratchpad of which `supply.resident_bytes` hold tiles.

    `array` is one core. `compute` gives the cycles of each tile operation where they differ from tile to tile; otherwise the array
    is asked, once for each size.
    """
    cut = grid(pair.op, tile, partition)
    found, cycles, compute_cycles = _run(
        pair, tile, supply.resident_bytes, order, policy, partition, compute or _by_size(pair, cut, array), supply, compute is None
    )
    return Ordered(
        order=order,
        tile=tile,
        partition=partition,
        traffic=found,
        cycles=cycles,
        compute_cycles=compute_cycles,
        additions=_additions(pair, cut, partition),
    )


def _additions(pair: Pair, cut: Grid, partition: Partition | None) -> int:
    """Elements of partial sums that one core adds to another's."""
    if partition is None or not partition.cores:
        return 0
    op = pair.op
    summed = {"m": 0 if pair.alone else op.K * op.N, "n": op.M * op.K, "k": 0}[partition.axis]
    return op.count * summed * (len(cut.parts) - 1)


def tile_product(pair: Pair, gradient: Gradient, m: int, n: int, k: int) -> MatMul:
    """The product of one tile operation as the array sees it."""
    if gradient == "dX":
        return MatMul(m, k, n)
    return MatMul(n, k, m) if pair.turned else MatMul(k, n, m)


def tile_cycles(array: Array, product: MatMul) -> int:
    """Closed forms count without the closing -1 of a whole op."""
    if isinstance(array, HasTileCycles):
        return array.tile_cycles(product.M, product.N, product.K)
    return array.cost(product).cycles


def _by_size(pair: Pair, cut: Grid, array: Array) -> Compute:
    known: dict[MatMul, int] = {}

    def cycles(gradient: Gradient, m: int, n: int, k: int) -> int:
        product = tile_product(pair, gradient, cut.m[m], cut.n[n], cut.k[k])
        if product not in known:
            known[product] = tile_cycles(array, product)
        return known[product]

    return cycles


def _kinds(lengths: Sequence[int], by_size: bool) -> tuple[list[int], list[int]]:
    """For each tile along an axis, the row of the compute table that it has; and a tile of each row."""
    if not by_size:
        return [*range(len(lengths))], [*range(len(lengths))]
    first: dict[int, int] = {}
    for number, length in enumerate(lengths):
        first.setdefault(length, number)
    rows = {length: row for row, length in enumerate(first)}
    return [rows[length] for length in lengths], [*first.values()]


def _table(cut: Grid, gradients: Sequence[Gradient], compute: Compute, by_size: bool) -> tuple[Whole, Whole]:
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


def _streamed(counts: Size, order: int, axis: int, bounds: tuple[tuple[int, int], ...], cores: bool) -> tuple[Whole, Whole]:
    """The operations of a stream in order, and where each step begins; those of long streams are made anew each time."""
    tiles = math.prod(counts)
    if tiles > MOST_TILES:
        raise BadInput(
            f"{' x '.join(map(str, counts))} tiles (m, n, k) of one product are more than are walked one by one ({MOST_TILES:,}): "
            "give larger tiles (tiling=...), or an order and a reuse that are not walked (order='sequential', reuse='step')"
        )
    return (_remembered if tiles <= REMEMBERED_TILES else _made)(counts, order, axis, bounds, cores)


def _made(counts: Size, order: int, axis: int, bounds: tuple[tuple[int, int], ...], cores: bool) -> tuple[Whole, Whole]:
    from trainyard.kernels.mapping import gradient_order as kernel

    ops, begins = kernel.stream(np.array(counts), order, axis, np.array(bounds))
    return kernel.in_step(ops, begins) if cores else (ops, np.arange(len(ops) + 1))


_remembered = lru_cache(maxsize=64)(_made)


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
    from trainyard.kernels.mapping import gradient_order as kernel

    require_order(order)
    if policy not in POLICIES:
        raise UnknownName("policy", str(policy), POLICIES)
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    room = _room(pair, tile, cores, capacity_bytes)
    counts = np.array([len(cut.m), len(cut.n), len(cut.k)])
    axis = -1 if cut.axis is None else AXES.index(cut.axis)
    bounds = tuple((part.start, part.stop) for part in cut.parts) or ((0, 0),)
    number = kernel.ALONE if pair.alone else ORDERS.index(order)
    ops, steps = _streamed((len(cut.m), len(cut.n), len(cut.k)), number, axis, bounds, cores > 1)
    copies = np.array([cores if cut.axis == "n" else 1, cores if cut.axis == "m" else 1])
    left = np.array([(counts[1], counts[0])] * max(copies))
    for core in range(cores if max(copies) > 1 else 0):
        left[core, 0 if cut.axis == "n" else 1] = len(cut.parts[core])
    lengths = [np.array(sizes) for sizes in (cut.m, cut.n, cut.k)]
    starts, sizes, tensor = kernel.measure(lengths[0], lengths[1], lengths[2], copies, pair.rates)
    uses = kernel.next_uses(ops, counts, copies, starts) if policy == "farthest" else _NO_USES
    table, kinds = _table(cut, ("dX",) if pair.alone else ("dX", "dW"), compute, by_size)
    passes = min(pair.op.count, 3 if len(steps) == 2 else 2)  # from there on each takes as long as the last of them
    settings = np.array([POLICIES.index(policy), order == "no_second_dy", supply.latency_cycles, passes])
    moved, cycles = kernel.run(
        ops, steps, counts, copies, left, starts, sizes, tensor, settings, room, uses, table, kinds,
        np.array([supply.bytes_per_cycle]),
    )  # fmt: skip
    whole = int(cycles[passes - 1])
    if pair.op.count > passes:
        whole += (pair.op.count - passes) * int(cycles[passes - 1] - cycles[passes - 2])
    return counted(moved * pair.op.count), whole, int(cycles[passes]) * pair.op.count


_NO_USES = np.zeros((0, 3), dtype=np.int64)


def _room(pair: Pair, tile: Size, cores: int, capacity_bytes: float) -> float:
    """The capacity, if the tiles of a step fit; whole bytes add up exactly, fractions need some slack."""
    whole = all(rate.is_integer() for rate in pair.rates[:, 0].tolist())
    needed, room = pair.needed(tile, cores), float(capacity_bytes) * (1 if whole else SLACK)
    if needed > room:
        m, n, k = tile
        each = "" if cores == 1 else f" of {cores} cores"
        raise BadInput(
            f"a step with tiles {m} x {n} x {k} (m, n, k) of {pair.op}{each} needs {math.ceil(needed):,} bytes, there is room for "
            f"{math.floor(capacity_bytes):,}: give more room or smaller tiles"
        )
    return room


def counted(moved: npt.NDArray[np.float64], names: Sequence[str] = TENSORS) -> Traffic:
    """What a kernel counted, a row for each tensor: read, written, out unfinished, back."""
    found: dict[tuple[str, Direction], int] = {}
    for name, (read, written, left, back) in zip(names, moved.tolist(), strict=True):
        sizes: list[tuple[Direction, float]] = [("read", read), ("write", written), ("spill", left + back)]
        found |= {(name, way): round(size) for way, size in sizes if size}
    return Traffic(bytes=found)
