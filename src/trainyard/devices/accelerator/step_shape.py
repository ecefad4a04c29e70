"""What a step asks of any device of one policy, as columns: one row for each distinct demand.

It is put together once for a step and a policy, and shared by all machines that differ in their numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.caches import ByIdentity, per_step
from trainyard.ir import DTYPE_BYTES, Convolution, Step, TensorSpec
from trainyard.mapping.demand import Demand, Move, Policy, ProductDemand, StreamDemand
from trainyard.mapping.halo import windows_overlap
from trainyard.mapping.lowering import GradInput, lower
from trainyard.mapping.precision import Precision, dtype_of
from trainyard.mapping.profile import RAW, profile
from trainyard.mapping.tiling import ProblemTable
from trainyard.masks.dma import Densities

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Key = tuple[str, str, str]
Which = Literal["all", "single", "none", "masked"]
"""Products that are costed at once: those with a closed form; of an array that can be divided, not the many of a batched op. Where
an array looks at zeros (`masked`) none are, and each product has a row of its own."""
EXACT = 2.0**53
ON_CHIP: tuple[Key, ...] = tuple((level, "all", way) for level in ("scratchpad", "local") for way in ("read", "write"))
LAST = 1 << 20
"""Rank of what no move of a demand names."""
ACCUMULATOR_BYTES = 4
"""A sum in fp32; the alternative is narrower."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Products:
    """The products among the demands: rows of `StepShape`, shapes for the search, and what each column of a cost is made from."""

    rows: Whole
    shapes: ProblemTable
    table: Real
    """[product] Bytes of A, B, what leaves with finished sums, all sums; bytes that an epilogue reads and writes; vector
    operations."""
    element_bytes: Whole
    keys: Whole
    """Columns of the traffic: A read, B read, sums spilled."""
    numbers: Mapping[tuple[str, int], Whole]
    """Format, and how many a multiplier takes at once -> which products are in it."""
    chains: Whole
    """Products with an epilogue."""
    drained: Real
    """[chain, op] Bytes that the ops of an epilogue move; the product's own place, and those past the end, are 0."""
    lengths: Whole


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Streams:
    """The streams among the demands."""

    rows: Whole
    table: Real
    """[stream] Bytes read and written, vector operations; bytes that come again where a row does not fit on chip, and the bytes of
    such a row (-1 where nothing does)."""
    again_key: Whole


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepShape:
    """What a step asks of any device of one policy."""

    policy: Policy
    demands: tuple[Demand, ...]
    number: Mapping[tuple[int, ...], int]
    """The demand of each Work, by its ops."""
    keys: tuple[Key, ...]
    moved: Real
    """[demand, key] Bytes that move whatever the tiles are."""
    rank: Whole
    """[demand, key] The order in which a demand's traffic names its keys."""
    products: Products
    streams: Streams
    others: tuple[int, ...]


def step_shape(step: Step, policy: Policy, which: Which, zeros: Densities = RAW) -> StepShape | None:
    """None where a step has more of something than is counted exactly here. `zeros` is what a compressing DMA engine knows of."""
    return _step_shape(step, policy, which, ByIdentity(zeros or RAW))


@per_step
def _step_shape(step: Step, policy: Policy, which: Which, zeros: ByIdentity[Densities]) -> StepShape | None:
    asked = profile(step, policy, zeros.value, which == "masked")
    demands = asked.demands
    plain = [_plain(demand, which) for demand in demands]
    wanted: dict[Key, int] = {}
    for demand, own in zip(demands, plain, strict=True):
        for move in _moves(demand) if own else ():
            wanted.setdefault(("dram", move.label, str(move.direction)), len(wanted))
    keys = (*wanted, *ON_CHIP)
    moved, rank = np.zeros((len(demands), len(keys))), np.full((len(demands), len(keys)), LAST)
    rank[:, -len(ON_CHIP) :] += np.arange(1, len(ON_CHIP) + 1)
    settled, operations = np.zeros((len(demands), 2)), [0] * len(demands)
    for row, (demand, own) in enumerate(zip(demands, plain, strict=True)):
        if not own:
            continue
        assert isinstance(demand, ProductDemand | StreamDemand)
        operations[row] = demand.vector_operations
        for place, move in enumerate(_moves(demand)):
            column = wanted["dram", move.label, str(move.direction)]
            rank[row, column] = min(rank[row, column], place)
        for move in _settled(demand):
            moved[row, wanted["dram", move.label, str(move.direction)]] += move.size
            settled[row, 0 if move.direction == "read" else 1] += move.size
    if max(float(moved.sum()), float(sum(operations))) >= EXACT:
        return None
    return StepShape(
        policy=policy, demands=demands, number=asked.number, keys=keys, moved=moved, rank=rank,
        products=_products(demands, plain, wanted, settled),
        streams=_streams(demands, plain, wanted, settled), others=tuple(row for row, own in enumerate(plain) if not own),
    )  # fmt: skip


def _plain(demand: Demand, which: Which) -> bool:
    if isinstance(demand, ProductDemand):
        counted = demand.problem.halo is None  # bytes of a halo depend on the tile, not on passes alone
        return counted and (which == "all" or (which == "single" and demand.problem.op.count == 1))
    return isinstance(demand, StreamDemand) and all(move.size == move.held for move in demand.moves)  # nothing is compressed


def _moves(demand: Demand) -> list[Move]:
    """In the order in which `Costing` books them; of what depends on tiles, one byte stands for all."""
    if isinstance(demand, StreamDemand):
        return [move for move in demand.moves if move.size]
    assert isinstance(demand, ProductDemand)
    a, b, out = demand.labels
    operands = [(a, demand.problem.a_bytes), (b, demand.problem.b_bytes)]
    return [*(Move(label, "read", 1, 1) for label, size in operands if size), *_settled(demand), Move(out, "spill", 1, 1)]


def _settled(demand: ProductDemand | StreamDemand) -> list[Move]:
    """What moves whatever the tiles are."""
    if isinstance(demand, StreamDemand):
        return _moves(demand)
    return [move for moves in demand.drained for move in moves if move.size]


def _products(demands: Sequence[Demand], plain: Sequence[bool], keys: Mapping[Key, int], settled: Real) -> Products:
    products = [(row, demand) for row, demand in enumerate(demands) if plain[row] and isinstance(demand, ProductDemand)]
    problems = [demand.problem for _, demand in products]
    chains = [
        (which, [sum(move.size for move in moves) for moves in demand.drained[1:]])
        for which, (_, demand) in enumerate(products)
        if len(demand.drained) > 1
    ]
    most = max((len(sizes) for _, sizes in chains), default=0)
    numbers = dict.fromkeys((demand.number, demand.packed) for _, demand in products)
    named = [(("dram", d.labels[0], "read"), ("dram", d.labels[1], "read"), ("dram", d.labels[2], "spill")) for _, d in products]
    return Products(
        rows=np.array([row for row, _ in products], np.int64),
        shapes=ProblemTable.of(problems),
        table=np.array(
            [
                (one.a_bytes, one.b_bytes, one.out_bytes, one.sum_bytes, *settled[row], demand.vector_operations)
                for one, (row, demand) in zip(problems, products, strict=True)
            ],
            np.float64,
        ).reshape(-1, 7),
        element_bytes=np.array([demand.element_bytes for _, demand in products], np.int64).reshape(-1, 3).T,
        keys=np.array([[keys.get(key, 0) for key in three] for three in named], np.int64).reshape(-1, 3).T,
        numbers={
            n: np.array([which for which, (_, d) in enumerate(products) if (d.number, d.packed) == n], np.int64) for n in numbers
        },
        chains=np.array([which for which, _ in chains], np.int64),
        drained=np.array([[0, *sizes, *[0] * (most - len(sizes))] for _, sizes in chains], np.float64).reshape(-1, most + 1),
        lengths=np.array([len(sizes) + 1 for _, sizes in chains], np.int64),
    )


def _streams(demands: Sequence[Demand], plain: Sequence[bool], keys: Mapping[Key, int], settled: Real) -> Streams:
    streams = [(row, demand) for row, demand in enumerate(demands) if plain[row] and isinstance(demand, StreamDemand)]
    again = [demand.again or Move("", "read", 0, 0) for _, demand in streams]
    return Streams(
        rows=np.array([row for row, _ in streams], np.int64),
        table=np.array(
            [
                (*settled[row], demand.vector_operations, move.size, demand.row_bytes if demand.again else -1)
                for (row, demand), move in zip(streams, again, strict=True)
            ],
            np.float64,
        ).reshape(-1, 5),
        again_key=np.array([keys.get(("dram", move.label, "read"), 0) for move in again], np.int64),
    )


@per_step
def asked_of_sums(step: Step, grad_input: GradInput, precision: str | Precision | None) -> tuple[bool, bool, bool, int]:
    """Whether a step unfolds anything, whether windows of it overlap, whether it has a dX of a convolution, and the bytes of its
    narrowest result."""
    images = [op.body for op in step.ops if isinstance(op.body, Convolution)]
    lowered = [lower(body, grad_input) for body in images]
    results = [step.tensors[op.outputs[0]] if op.outputs else TensorSpec((1,)) for op in step.ops if op.is_product]
    return (
        any(side.elements != side.matrix for one in lowered for side in (one.a, one.b, one.out)),
        any(windows_overlap(body, grad_input) for body in images),
        any(body.product == "grad_input" for body in images),
        min((DTYPE_BYTES[dtype_of(result, precision)] for result in results), default=ACCUMULATOR_BYTES),
    )
