"""SIGMA executed: products through Benes switches, multipliers and FAN adders in FP32, and the cycles they take.

Every fold is loaded; every streaming vector goes through the switches of each Flex-DPE by the controller's tables, is multiplied
and summed by row. Partial sums across Flex-DPEs are added as `across` says, those across folds in the output buffer. The tally
counts what happens (values loaded, vectors streamed, adders drained) and does not use the closed form in `array.py`: a test
compares the two. All vectors of one Flex-DPE go through its switches and adders in one compiled call each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays.execution import require_product_shapes
from trainyard.arrays.sigma.controller import IDLE, Controller, FlexDpe, Pass
from trainyard.arrays.sigma.partial_sums import Across, add_latency, waiting_partials
from trainyard.checks import require_choice
from trainyard.errors import BadInput
from trainyard.hardware.benes.network import Benes, Settings
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.ir import MatMul

if TYPE_CHECKING:
    from trainyard.arrays.sigma.array import Sigma

Reals = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Stationary = Literal["a", "b", "none"]
CYCLES_AT_ONCE = 4096
"""Without local reuse: cycles that go through the switches in one call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmaExecution:
    """The product and its cycles, by Table II; `multiplications` are those of two non-zeros, `partials` the partial sums that were
    added across Flex-DPEs or folds."""

    product: Reals
    stationary: Stationary
    loading: int
    streaming: int
    add: int
    folds: int
    multiplications: int
    partials: int

    @property
    def cycles(self) -> int:
        return self.loading + self.streaming + self.add


@dataclass(slots=True)
class Tally:
    """Counts cycles as they pass: only the adders overlap, with the streaming before the last vector (Table II)."""

    array: Sigma
    vectors: int
    loaded: int = 0
    loading: int = 0
    streaming: int = 0
    add: int = 0
    folds: int = 0
    _fold: int = -1
    _drain: int = 0

    def load(self, pass_: Pass) -> None:
        """Unicast, `bandwidth` values a cycle. The adders drain before the next fold begins; the input's last cycle of one load
        already brings the first values of the next."""
        if pass_.fold != self._fold:
            self.drain()
            self._fold, self.folds = pass_.fold, self.folds + 1
        self.loaded = pass_.end
        self.loading = -(-self.loaded // self.array.bandwidth)

    def stream(self, spanned: int, partials: int, repeats: int) -> None:
        """All vectors, one in a cycle, and a further cycle (`repeats`) where a Flex-DPE's switches cannot connect all at once; the
        sums of the last vector are then still in the adders."""
        array = self.array
        self.streaming += self.vectors + repeats
        waiting = waiting_partials(partials, self.vectors, array.bandwidth)
        latency = add_latency(array.across, array.multipliers, array.dpes, spanned, waiting, array.bandwidth)
        self._drain = max(self._drain, latency)
        if array.drain == "pass" and array.streaming == "limited":
            self.drain()

    def drain(self) -> None:
        self.add += self._drain
        self._drain = 0


@dataclass(slots=True)
class Fabric:
    """The Flex-DPEs of an array: one Benes and one FAN, used by each of them in turn."""

    array: Sigma
    benes: Benes = field(init=False)
    fan: Fan = field(init=False)

    def __post_init__(self) -> None:
        self.benes, self.fan = Benes(ports=self.array.multipliers), Fan(lanes=self.array.multipliers)

    def products(self, stationary: Reals, sources: Integers, inputs: Reals) -> tuple[Reals, Settings]:
        """Products [vectors, multipliers] and the switch settings; a multiplier without an input has the product 0."""
        settings = self.benes.route(sources)
        return self._times(stationary, sources, self.benes.deliver(settings, inputs)), settings

    def run(self, stationary: Reals, sources: Integers, inputs: Reals) -> tuple[Reals, Integers]:
        """The same products, with the number of passes through the switches for each vector in place of the settings."""
        delivered, passes = self.benes.carry(sources, inputs)
        return self._times(stationary, sources, delivered), passes

    def _times(self, stationary: Reals, sources: Integers, delivered: Reals) -> Reals:
        from trainyard.kernels.arrays.flex_dpe import multiply

        products = np.empty_like(delivered)
        multiply(delivered, np.atleast_2d(stationary), sources, products)
        return products


def execute(array: Sigma, a: npt.ArrayLike, b: npt.ArrayLike, stationary: str | None = None) -> SigmaExecution:
    """a [M, K] times b [K, N] in FP32; `stationary` is a, b, none, or best (the one that costs fewer cycles).

    >>> from trainyard.arrays import Sigma
    >>> done = execute(Sigma(dpes=2, multipliers=4, bandwidth=4), [[1.0, 0.0], [2.0, 3.0]], [[4.0, 0.0], [0.0, 5.0]], "a")
    >>> done.product.tolist(), (done.loading, done.streaming, done.add)
    ([[4.0, 0.0], [8.0, 15.0]], (1, 2, 3))
    """
    left, right = (np.ascontiguousarray(operand, dtype=np.float32) for operand in (a, b))
    require_product_shapes(left, right)
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise BadInput("execute: an operand is not finite in FP32; a skipped product with infinity would hide it")
    chosen = array.stationary if stationary is None else stationary
    require_choice("execute", stationary=(chosen, ("a", "b", "none", "best")))
    if chosen == "best":
        op = MatMul(left.shape[0], right.shape[1], left.shape[1])
        chosen = array.cost(op, a=left, b=right, stationary="best").stationary
    if chosen == "none":
        return _without_reuse(array, left, right)
    return _execute_stationary(array, left, right, "a" if chosen == "a" else "b")


def _execute_stationary(array: Sigma, a: Reals, b: Reals, side: Literal["a", "b"]) -> SigmaExecution:
    """Steps i to vii of Sec. IV-E, for every pass."""
    controller, fabric = Controller.of(array), Fabric(array)
    gathered = controller.gather(Bitmap.of(a), Bitmap.of(b), side)
    stationary_matrix, streamed = (a, b) if side == "a" else (b.T, a.T)
    placement = controller.place(controller.prune(gathered.stationary, controller.row_or(gathered.streaming)))
    vectors = Vectors.of(np.ascontiguousarray(streamed.T), controller.chunk)
    buffer = np.zeros((len(stationary_matrix), streamed.shape[1]), np.float32)
    tally, multiplications, partials = Tally(array, streamed.shape[1]), 0, 0
    values = stationary_matrix[placement.row, placement.k]
    written = np.zeros(len(stationary_matrix), np.bool_)
    for pass_ in placement.passes:
        tally.load(pass_)
        parts: dict[int, list[tuple[int, Reals]]] = defaultdict(list)
        repeats = np.zeros(tally.vectors, np.int64)
        for unit in controller.flex_dpes(placement, pass_):
            sources, inputs, listening = ports(unit, pass_, vectors)
            held_values = np.where(unit.value != IDLE, values[unit.value], np.float32(0))
            products, passes = fabric.run(held_values, sources, inputs)
            repeats = np.maximum(repeats, passes - 1)
            reduced = fabric.fan.reduce(products, unit.vec_ids)
            multiplications += listening
            for group, vec_id in enumerate(reduced.ids):
                turns, row = divmod(int(vec_id), placement.rows)
                parts[row].append((unit.number + turns * array.dpes, reduced.sums[:, group]))
        for row, pieces in parts.items():
            buffer[row] += combine_partials(array.across, sorted(pieces, key=lambda piece: piece[0]))
            partials += len(pieces) - 1 + int(written[row])
            written[row] = True
        spans = [len(pieces) for pieces in parts.values()]
        tally.stream(max(spans), sum(spans) - len(spans), int(repeats.sum()))
    tally.drain()
    return SigmaExecution(
        product=np.ascontiguousarray(buffer.T) if gathered.is_transposed else buffer, stationary=side,
        loading=tally.loading, streaming=tally.streaming, add=tally.add, folds=tally.folds,
        multiplications=multiplications, partials=partials,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vectors:
    """Streaming vectors [vectors, K], their counters (step v) and how many non-zeros each has in each chunk of K."""

    values: Reals
    counters: npt.NDArray[np.int32]
    totals: npt.NDArray[np.int32]
    chunk: int

    @classmethod
    def of(cls, values: Reals, chunk: int | None) -> Vectors:
        from trainyard.kernels.arrays.flex_dpe import count_streaming

        vectors, depth = values.shape
        wide = chunk or depth
        counters = np.empty(values.shape, np.int32)
        totals = np.empty((vectors, -(-depth // wide)), np.int32)
        count_streaming(values, wide, counters, totals)
        return cls(values=values, counters=counters, totals=totals, chunk=wide)


def ports(unit: FlexDpe, pass_: Pass, vectors: Vectors) -> tuple[Integers, Reals, int]:
    """For every vector the port of each multiplier of a Flex-DPE, the values at the ports, and how many multipliers read one."""
    from trainyard.kernels.arrays.flex_dpe import connect

    busy = unit.k != IDLE
    distinct = np.unique(unit.k[busy])
    lanes = np.where(busy, np.searchsorted(distinct, unit.k), IDLE)
    shape = (len(vectors.values), len(unit.k))
    sources, inputs = np.empty(shape, np.int64), np.zeros(shape, np.float32)
    totals = np.ascontiguousarray(vectors.totals[:, pass_.k_first // vectors.chunk])
    listening = connect(lanes, distinct, vectors.counters, totals, vectors.values, sources, inputs)
    return sources, inputs, int(listening)


def combine_partials(across: str, pieces: list[tuple[int, Any]]) -> Any:
    """The sum of a dot product's partial sums (Flex-DPE, sum), in the order of `across`.

    >>> combine_partials("tree", [(1, 1.0), (2, 10.0), (3, 100.0)])  # 2 and 3 first, then 1
    111.0
    """
    require_choice("Sigma", across=(across, get_args(Across)))
    if across == "tree":
        sums_by_dpe = dict(pieces)
        while len(sums_by_dpe) > 1:
            level: dict[int, Any] = {}
            for number in sorted(sums_by_dpe):
                level[number // 2] = level[number // 2] + sums_by_dpe[number] if number // 2 in level else sums_by_dpe[number]
            sums_by_dpe = level
        return next(iter(sums_by_dpe.values()))
    total = pieces[0][1]
    for _, sums in pieces[1:]:  # from neighbour to neighbour, or one after another at the buffer
        total = total + sums
    return total


def _without_reuse(array: Sigma, a: Reals, b: Reals) -> SigmaExecution:
    """Pairs of two non-zeros, output by output, as their elements arrive: nothing is stationary, every cycle sums other outputs.

    Partial sums across Flex-DPEs are added in the tree, whatever `across` says: only the tree can regroup in every cycle.
    """
    controller, fabric = Controller.of(array), Fabric(array)
    pairs = controller.pairs(Bitmap.of(a), Bitmap.of(b))
    outputs = pairs[:, 0] * b.shape[1] + pairs[:, 1]
    left, right = a[pairs[:, 0], pairs[:, 2]], b[pairs[:, 2], pairs[:, 1]]
    product = np.zeros(a.shape[0] * b.shape[1], np.float32)
    partial_count = 0
    cycles = list(arrivals(len(pairs), array.bandwidth, controller.pool))
    for begin in range(0, len(cycles), CYCLES_AT_ONCE):
        first, end = np.array(cycles[begin : begin + CYCLES_AT_ONCE]).T
        units = range(-(-int((end - first).max()) // array.multipliers))
        sums_of_dpes = [_flex_dpe_sums(fabric, first + number * array.multipliers, end, left, right, outputs) for number in units]
        partial_count += sum(len(sums[0]) for sums in sums_of_dpes)
        gathered, sums = _sums_by_output(sums_of_dpes)
        np.add.at(product, gathered, sums)  # one after the other, cycle by cycle
    written = int(np.count_nonzero(np.diff(outputs, prepend=-1)))
    return SigmaExecution(
        product=product.reshape(a.shape[0], b.shape[1]), stationary="none", loading=0, streaming=len(cycles),
        add=add_latency("tree", array.multipliers, array.dpes, 1, 0, array.bandwidth) if cycles else 0,
        folds=-(-len(pairs) // controller.pool), multiplications=len(pairs), partials=partial_count - written,
    )  # fmt: skip


def arrivals(pairs: int, bandwidth: int, multipliers: int) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) pair of each cycle: pairs whose two elements have arrived, as many as there are multipliers.

    >>> list(arrivals(5, bandwidth=3, multipliers=8)), list(arrivals(5, bandwidth=8, multipliers=2))
    ([(0, 1), (1, 3), (3, 4), (4, 5)], [(0, 2), (2, 4), (4, 5)])
    """
    done, elements = 0, 0
    while done < pairs:
        elements += bandwidth
        end = min(elements // 2, done + multipliers, pairs)
        yield done, end
        done = end


def _sums_by_output(sums_of_dpes: list[tuple[Integers, Integers, Reals]]) -> tuple[Integers, Reals]:
    """Outputs in the order of their cycles, each with the sum of its partial sums on several Flex-DPEs."""
    number = np.repeat(np.arange(len(sums_of_dpes)), [len(cycle) for cycle, _, _ in sums_of_dpes])
    cycle, output, sums = (np.concatenate(part) for part in zip(*sums_of_dpes, strict=True))
    order = np.lexsort((number, output, cycle))
    number, cycle, output, sums = number[order], cycle[order], output[order], sums[order]
    starts = np.flatnonzero(np.append(True, (cycle[1:] != cycle[:-1]) | (output[1:] != output[:-1])))
    lengths, totals = np.diff(np.append(starts, len(cycle))), sums[starts]
    for index in np.flatnonzero(lengths > 1):
        pieces = slice(starts[index], starts[index] + lengths[index])
        totals[index] = combine_partials("tree", list(zip(number[pieces].tolist(), sums[pieces], strict=True)))
    return output[starts], totals


def _flex_dpe_sums(
    fabric: Fabric, first: Integers, end: Integers, left: Reals, right: Reals, outputs: Integers
) -> tuple[Integers, Integers, Reals]:
    """Cycle, output and sum of all that one Flex-DPE adds up: pairs from `first` on, before `end`, in each cycle.

    Elements of A are delivered as stationary values are. The adders are configured again for each cycle.
    """
    from trainyard.kernels.arrays.flex_dpe import sum_each

    lane = np.arange(fabric.array.multipliers)
    pair = first[:, None] + lane
    busy = pair < end[:, None]
    pair[~busy] = 0
    sources, ids = (np.where(busy, values, IDLE) for values in (lane, outputs[pair]))
    stationary, inputs = (np.where(busy, values[pair], np.float32(0)) for values in (left, right))
    products, _ = fabric.run(stationary, sources, inputs)  # straight down: a permutation always has a route
    cycle, output, sums = sum_each(products, ids)
    return cycle, output, sums
