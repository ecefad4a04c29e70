"""What the Works of a step read from and write to the DRAM, tile by tile, in the order in which an accelerator does it.

Tensors lie one behind the other, each from a page of its own. A matrix lies row by row as its product reads it; of a convolution
read raw, a tile has its share of the tensor.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.devices import Accelerator
from trainyard.devices.accelerator.choices import PairChoice, TileChoice
from trainyard.devices.accelerator.ordered import pair_of
from trainyard.errors import NotModelled
from trainyard.ir import Collective, MatMul, Step, Work
from trainyard.ir.step import operand_order
from trainyard.mapping.demand import Demand, FusedDemand, Move, NoDemand, PairDemand, ProductDemand, StreamDemand
from trainyard.mapping.gradient_order.execution import AXES_OF, SUMMED_OVER, TOUCHED
from trainyard.mapping.gradient_order.scratchpad import OrderCost, Pair
from trainyard.mapping.gradient_order.tile_streams import grid, stream
from trainyard.mapping.profile import demand
from trainyard.mapping.walk import Tile, steps
from trainyard.mapping.works import separate_products

PAGE_BYTES = 4096
Key = tuple[str, str]
"""A label and a direction, as costs are counted."""
Region = int | tuple[int, str]
"""A tensor by its number, or what has none: an op and a label."""
Whole = npt.NDArray[np.int64]


class Access(NamedTuple):
    """Bytes of one tile or one piece: segments from `starts` to `ends` in a region."""

    region: Region
    key: Key
    store: bool
    starts: Whole
    ends: Whole


class Matrix(NamedTuple):
    """Where the matrices of equal products lie: bytes of all, rows and columns of one."""

    region: Region
    key: Key
    size: int
    rows: int
    columns: int
    products: int = 1

    def tile(self, product: int, rows: tuple[int, int], columns: tuple[int, int], store: bool, direction: str = "") -> Access:
        """A tile's bytes: of each of its rows the run between two columns, in proportion to the whole."""
        first = product * self.rows + np.arange(*rows, dtype=np.int64)
        elements = self.rows * self.columns * self.products
        if columns == (0, self.columns):  # whole rows lie behind each other
            first = first[:1] * self.columns
            begin, end = first, first + (rows[1] - rows[0]) * self.columns
        else:
            begin, end = first * self.columns + columns[0], first * self.columns + columns[1]
        starts, ends = (_share(position, self.size, elements) for position in (begin, end))
        return Access(self.region, (self.key[0], direction or self.key[1]), store, starts, ends)


def _share(position: Whole, size: int, elements: int) -> Whole:
    """position * size // elements, without overflow where the product of two counts is large."""
    if size % elements == 0:
        return position * (size // elements)
    return np.array([int(p) * size // elements for p in position.tolist()], np.int64)


@dataclass
class Tracer:
    """The address map, and the accesses of one Work after the other."""

    step: Step
    device: Accelerator
    places: dict[Region, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Every memory of the step has its place beforehand; others (spilled sums) get one when they are met."""
        if self.device.between_layers:
            raise NotModelled("traces of tensors that stay on chip between layers are not written: take reuse='step'")
        self.free = PAGE_BYTES
        roomy: dict[Region, int] = {}
        for base in range(len(self.step.tensors)):
            if self.step.base(base) == base:
                roomy[base] = self.step.tensors[base].bytes
        for work in self.device.works(self.step):
            for region, size in self._sizes(work):
                roomy[region] = max(roomy.get(region, 0), size)
        for region, size in roomy.items():
            self.places[region] = self.free
            self.free += -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES

    def address(self, region: Region) -> int:
        return self.places[region]

    def demand(self, work: Work) -> Demand:
        return demand(self.step, work, self.device.policy)

    def _sizes(self, work: Work) -> Iterator[tuple[Region, int]]:
        if isinstance(self.step.ops[work.ops[0]].body, Collective):
            return
        demand = self.demand(work)
        if isinstance(demand, ProductDemand):
            yield from self._product_sizes(work, demand)
        elif isinstance(demand, PairDemand):
            for part, product in zip(separate_products(self.step, work), (demand.dx, demand.dw), strict=True):
                yield from self._product_sizes(part, product)
        elif isinstance(demand, StreamDemand | FusedDemand):
            for matrix in self._streams(work, demand):
                yield matrix.region, matrix.size

    def _product_sizes(self, work: Work, demand: ProductDemand) -> Iterator[tuple[Region, int]]:
        a, b, sums, drained = self._matrices(work, demand)
        for matrix in (a, b, sums, *(drain for drain, _ in drained)):
            yield matrix.region, matrix.size

    def accesses(self, work: Work) -> Iterator[Access]:
        demand = self.demand(work)
        match demand:
            case ProductDemand() if self.device.reuse == "step":
                yield from self._product(work, demand)
            case ProductDemand():
                yield from self._ordered(work, (demand,))
            case PairDemand():
                yield from self._ordered(work, (demand.dx, demand.dw))
            case StreamDemand() | FusedDemand():
                yield from _streamed(self._streams(work, demand))
            case NoDemand():
                return
            case _:
                raise NotModelled(f"{type(demand).__name__}: works that run side by side or across layers are not traced")

    def _matrices(self, work: Work, demand: ProductDemand) -> tuple[Matrix, Matrix, Matrix, list[tuple[Matrix, bool]]]:
        """A, B, the sums, and what moves with finished sums, as a product of the demand sees them."""
        head, problem, op = self.step.ops[work.ops[0]], demand.problem, demand.problem.op
        first, second = operand_order(self.step, head)
        regions = [self._region(work.ops[0], head.inputs[i] if i < len(head.inputs) else None, demand.labels[p]) for p, i in
                   enumerate((first, second))]  # fmt: skip
        a = Matrix(regions[0], (demand.labels[0], "read"), problem.a_bytes, op.M, op.K, op.count)
        b = Matrix(regions[1], (demand.labels[1], "read"), problem.b_bytes, op.K, op.N, op.count)
        sums = Matrix((work.ops[0], "sums"), (demand.labels[2], "spill"), problem.sum_bytes, op.M, op.N, op.count)
        drained = []
        for position, moves in enumerate(demand.drained):
            for move, tensor in zip(moves, self._tensors(work.ops[position], moves, position == 0), strict=True):
                region = self._region(work.ops[position], tensor, f"{move.label} {move.direction}")
                matrix = Matrix(region, (move.label, move.direction), move.size, op.M, op.N, op.count)
                drained.append((matrix, move.direction == "write"))
        return a, b, sums, drained

    def _region(self, op: int, tensor: int | None, label: str) -> Region:
        return (op, label) if tensor is None else self.step.base(tensor)

    def _tensors(self, index: int, moves: Sequence[Move], head: bool) -> list[int | None]:
        """Which of an op's tensors each move is of: the next one of its direction and role."""
        op = self.step.ops[index]
        left = {"read": list(op.inputs[2:] if head else op.inputs), "write": list(op.outputs)}
        tensors: list[int | None] = []
        for move in moves:
            candidates = left.get(move.direction, [])
            fits = (t for t in candidates if head or str(self.step.tensors[self.step.base(t)].role) == move.label)
            tensor = next(fits, None)
            if tensor is not None:
                candidates.remove(tensor)
            tensors.append(tensor)
        return tensors

    def _product(self, work: Work, demand: ProductDemand) -> Iterator[Access]:
        """Tile after tile: operands that are not in place, sums that were begun; what leaves makes room first."""
        a, b, sums, drained = self._matrices(work, demand)
        tiled = next(choice.tiled for choice in self.device.cost(self.step, work).chosen if isinstance(choice, TileChoice))
        resident: dict[str, object] = {}
        loaded: set[object] = set()
        begun: set[object] = set()
        kept = tiled.tiling.keep
        left: tuple[object, ...] | None = None
        before = None
        for at in steps(demand.problem.op, tiled.tiling):
            output_tile = (at.product, at.m, at.n)
            if left is not None and left != output_tile:
                assert before is not None
                yield from self._left(before, begun, sums, drained, demand.problem.op, keep="out" in kept)
            for name, matrix, rows, columns in (("a", a, at.m, at.k), ("b", b, at.k, at.n)):
                tile = (at.product, rows, columns)
                if resident.get(name) != tile and not (name in kept and (name, tile) in loaded):
                    loaded.add((name, tile))
                    resident[name] = tile
                    yield matrix.tile(at.product, rows, columns, store=False)
            if left != output_tile and output_tile in begun:
                yield sums.tile(at.product, at.m, at.n, store=False)
            left, before = output_tile, at
        assert before is not None
        yield from self._left(before, begun, sums, drained, demand.problem.op, keep="out" in kept)

    def _left(
        self, at: Tile, begun: set[object], sums: Matrix, drained: Sequence[tuple[Matrix, bool]], op: MatMul, *, keep: bool
    ) -> Iterator[Access]:
        """A tile of sums makes room: finished ones go their way once, others spill, unless all of them are kept."""
        product, m, n, k = at.product, at.m, at.n, at.k
        if k[1] == op.K:
            begun.discard((product, m, n))
            for matrix, store in drained:
                yield matrix.tile(product, m, n, store=store)
        elif not keep:
            begun.add((product, m, n))
            yield sums.tile(product, m, n, store=True)

    def _ordered(self, work: Work, demands: tuple[ProductDemand, ...]) -> Iterator[Access]:
        """The tiles of one or two gradients out of a scratchpad that keeps the most recent ones."""
        schedule = self.device.schedule
        if schedule.cores > 1 or schedule.policy != "lru":
            raise NotModelled(
                f"traces of several cores, or of reuse={schedule.policy!r}, are not written: take one core and reuse='lru'"
            )
        parts = (work,) if len(demands) == 1 else separate_products(self.step, work)
        if self._apart(work):
            for part, product in zip(parts, demands, strict=True):
                yield from self._product(part, product)
            return
        pair = Pair.single(demands[0].problem) if len(demands) == 1 else pair_of(*demands)
        chosen = self._way(work)
        places, drained = _places(pair, [self._matrices(part, product) for part, product in zip(parts, demands, strict=True)])
        for repeat in range(pair.op.count):
            yield from replayed(pair, chosen, repeat, places, drained, self.device.supply.resident_bytes)

    def _apart(self, work: Work) -> bool:
        """Whether the two gradients were costed one after the other, each with tiles of its own."""
        return all(isinstance(choice, TileChoice) for choice in self.device.cost(self.step, work).chosen)

    def _way(self, work: Work) -> OrderCost:
        """Order and tile as the device chose them."""
        if self.device.schedule.partition != "none":
            raise NotModelled("gradients in parts are not traced: write partition='none'")
        return next(choice.ordered for choice in self.device.cost(self.step, work).chosen if isinstance(choice, PairChoice))

    def _streams(self, work: Work, demand: StreamDemand | FusedDemand) -> list[Matrix]:
        """What streams through, each once, or again where it does not fit on chip."""
        moves = list(demand.moves)
        resident = self.device.supply.resident_bytes
        if isinstance(demand, StreamDemand):
            if demand.again is not None and demand.row_bytes > resident:
                moves.append(demand.again)
        else:
            parts = max(1, -(-demand.item_bytes // int(resident)))
            moves.extend(move._replace(size=move.size * (parts - 1)) for move in demand.again if parts > 1)
        taken: Counter[str] = Counter()
        matrices = []
        for move in moves:
            ops = [self.step.ops[op] for op in work.ops]
            tensors = [t for op in ops for t in (op.inputs if move.direction == "read" else op.outputs)]
            bases = [b for b in dict.fromkeys(map(self.step.base, tensors)) if str(self.step.tensors[b].role) == move.label]
            number = taken[f"{move.label} {move.direction}"]
            taken[f"{move.label} {move.direction}"] += 1
            region: Region = bases[number % len(bases)] if bases else (work.ops[0], f"{move.label} {move.direction}")
            matrices.append(Matrix(region, (move.label, move.direction), move.size, 1, max(1, move.size)))
        return matrices


def _streamed(matrices: Sequence[Matrix]) -> Iterator[Access]:
    """Page by page: a piece of all that is read, then of all that is written."""
    pieces = max((-(-matrix.size // PAGE_BYTES) for matrix in matrices), default=0)
    order = sorted(matrices, key=lambda matrix: matrix.key[1] == "write")
    for piece in range(pieces):
        for matrix in order:
            begin, end = matrix.size * piece // pieces, matrix.size * (piece + 1) // pieces
            if end > begin:
                yield Access(matrix.region, matrix.key, matrix.key[1] == "write", np.array([begin]), np.array([end]))


Places = dict[str, Matrix]
Drained = dict[str, list[tuple[Matrix, bool]]]


def _places(pair: Pair, matrices: Sequence[tuple[Matrix, Matrix, Matrix, list[tuple[Matrix, bool]]]]) -> tuple[Places, Drained]:
    """The matrices of the products by the names of the gradient model; rows and columns as it sees them."""
    a, b, sums, drained = matrices[0]
    m, n, k = pair.op.M, pair.op.N, pair.op.K
    places = {"dY": a._replace(rows=m, columns=n), "W": b._replace(rows=k, columns=n), "dX": sums._replace(rows=m, columns=k)}
    left = {"dX": [(matrix._replace(rows=m, columns=k), store) for matrix, store in drained]}
    if not pair.alone:
        a, b, sums, drained = matrices[1]
        places |= {"X": (b if pair.dw_transposed else a)._replace(rows=m, columns=k), "dW": sums._replace(rows=k, columns=n)}
        left["dW"] = [(matrix._replace(rows=k, columns=n), store) for matrix, store in drained]
    return places, left


def replayed(pair: Pair, order: OrderCost, product: int, places: Places, drained: Drained, room: float) -> Iterator[Access]:
    """The law of `mapping.gradient_order.execution` on tiles without values: touch, bring in, make room, finish."""
    cut = grid(pair.op, order.tile, None)
    ends = {axis: [0, *itertools.accumulate(cut.sizes(axis))] for axis in "mnk"}  # type: ignore[arg-type]
    held_rate = dict(zip(("dY", "W", "X", "dX", "dW"), pair.rates[:, 0].tolist(), strict=True))
    resident: OrderedDict[tuple[str, int, int], float] = OrderedDict()
    done: Counter[tuple[str, int, int]] = Counter()
    spilled: set[tuple[str, int, int]] = set()
    used = 0.0

    def span(tile: tuple[str, int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        rows, columns = AXES_OF[tile[0]]
        return (ends[rows][tile[1]], ends[rows][tile[1] + 1]), (ends[columns][tile[2]], ends[columns][tile[2] + 1])

    def size(tile: tuple[str, int, int]) -> float:
        (r0, r1), (c0, c1) = span(tile)
        return float((r1 - r0) * (c1 - c0) * held_rate[tile[0]])

    for (op,) in stream(cut, order.order):
        if pair.alone and op.gradient == "dW":
            continue
        at = {"m": op.m, "n": op.n, "k": op.k}
        touched = [(t, at[AXES_OF[t][0]], at[AXES_OF[t][1]]) for t in TOUCHED[op.gradient]]
        for tile in touched:
            if tile in resident:
                resident.move_to_end(tile)
        for tile in touched:
            if tile in resident:
                continue
            while used + size(tile) > room * (1 + 1e-9):
                gone = next(old for old in resident if old not in touched)
                used -= resident.pop(gone)
                if gone[0] in SUMMED_OVER:
                    spilled.add(gone)
                    yield places[gone[0]].tile(product, *span(gone), store=True)
            resident[tile] = size(tile)
            used += resident[tile]
            if tile[0] not in SUMMED_OVER or tile in spilled:
                free = order.order == "no_second_dy" and op.gradient == "dW" and tile[0] == "dY"
                if not free:
                    yield places[tile[0]].tile(product, *span(tile), store=False)
                spilled.discard(tile)
        sums = touched[2]
        done[sums] += 1
        if done[sums] == len(cut.sizes(SUMMED_OVER[op.gradient])):
            used -= resident.pop(sums)
            for matrix, store in drained[op.gradient]:
                yield matrix.tile(product, *span(sums), store=store)
