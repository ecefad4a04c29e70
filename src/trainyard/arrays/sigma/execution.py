"""SIGMA at work: whole products through Benes switches, multipliers and FAN adders in FP32, and the cycles they take.

Every fold is loaded; every streaming vector goes through the switches of each Flex-DPE by the controller's tables, is multiplied
and summed by row. Sums that cross Flex-DPEs meet as `across` says, sums that cross folds meet in the output buffer. The tally
counts what happens (values loaded, vectors streamed, adders run empty) and knows nothing of the closed form in `array.py`: a test
holds the two together. All vectors of one Flex-DPE go through its switches and adders in one compiled call each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays.sigma.across import Across, across_cycles, waiting
from trainyard.arrays.sigma.controller import IDLE, Controller, FlexDpe, Pass
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.benes.network import Benes, Settings
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.ir import MatMul

if TYPE_CHECKING:
    from trainyard.arrays.sigma.array import Sigma

Reals = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
Stationary = Literal["a", "b", "none"]
CYCLES_AT_ONCE = 4096
"""Without local reuse: cycles that go through the switches in one call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmaExecution:
    """What came out and the cycles it took, by Table II; `multiplications` are those of two non-zeros, `partials` the sums of parts
    of a dot product that had to meet across Flex-DPEs or folds."""

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
    """Counts as things happen: nothing is overlapped but the adders with the streaming before the last vector (Table II)."""

    array: Sigma
    vectors: int
    loaded: int = 0
    loading: int = 0
    streaming: int = 0
    add: int = 0
    folds: int = 0
    _fold: int = -1
    _drain: int = 0

    def load(self, which: Pass) -> None:
        """Unicast, `bandwidth` values a cycle. The adders run empty before a turn of the multipliers begins anew; what a cycle of
        the input has left at the end of one load already brings the first values of the next."""
        if which.fold != self._fold:
            self.drain()
            self._fold, self.folds = which.fold, self.folds + 1
        self.loaded = which.end
        self.loading = -(-self.loaded // self.array.bandwidth)

    def stream(self, spanned: int, partials: int, again: int) -> None:
        """All vectors, one in a cycle, and once more (`again`) where a Flex-DPE's switches could not connect all at once; then the
        sums of the last are still under way."""
        array = self.array
        self.streaming += self.vectors + again
        left = waiting(partials, self.vectors, array.bandwidth)
        latency = across_cycles(array.across, array.multipliers, array.dpes, spanned, left, array.bandwidth)
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

    def products(self, stationary: Reals, sources: Whole, inputs: Reals) -> tuple[Reals, Settings]:
        """Through the switches to the multipliers [vectors, multipliers]; one that hears nothing has the product 0."""
        settings = self.benes.route(sources)
        return self._times(stationary, sources, self.benes.deliver(settings, inputs)), settings

    def run(self, stationary: Reals, sources: Whole, inputs: Reals) -> tuple[Reals, Whole]:
        """The same products, with the passes of each vector in place of its settings."""
        delivered, passes = self.benes.carry(sources, inputs)
        return self._times(stationary, sources, delivered), passes

    def _times(self, stationary: Reals, sources: Whole, delivered: Reals) -> Reals:
        from trainyard.kernels.arrays.flex_dpe import multiply

        products = np.empty_like(delivered)
        multiply(delivered, np.atleast_2d(stationary), sources, products)
        return products


def execute(array: Sigma, a: npt.ArrayLike, b: npt.ArrayLike, stationary: str | None = None) -> SigmaExecution:
    """a [M, K] times b [K, N] on this very array, in FP32; `stationary` is a, b, none, or best (the one that costs fewer cycles).

    >>> from trainyard.arrays import Sigma
    >>> done = execute(Sigma(dpes=2, multipliers=4, bandwidth=4), [[1.0, 0.0], [2.0, 3.0]], [[4.0, 0.0], [0.0, 5.0]], "a")
    >>> done.product.tolist(), (done.loading, done.streaming, done.add)
    ([[4.0, 0.0], [8.0, 15.0]], (1, 2, 3))
    """
    left, right = (np.ascontiguousarray(given, dtype=np.float32) for given in (a, b))
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not left.size or not right.size:
        raise BadInput(f"execute: shapes {left.shape} and {right.shape} do not multiply")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise BadInput("execute: an operand is not finite in FP32; a skipped product with infinity would hide it")
    chosen = array.stationary if stationary is None else stationary
    if chosen not in ("a", "b", "none", "best"):
        raise UnknownName("stationary", str(chosen), ("a", "b", "none", "best"), where="execute")
    if chosen == "best":
        op = MatMul(left.shape[0], right.shape[1], left.shape[1])
        chosen = array.cost(op, a=left, b=right, stationary="best").stationary
    if chosen == "none":
        return _without_reuse(array, left, right)
    return _held(array, left, right, "a" if chosen == "a" else "b")


def _held(array: Sigma, a: Reals, b: Reals, side: Literal["a", "b"]) -> SigmaExecution:
    """Steps i to vii of Sec. IV-E, for every pass."""
    controller, fabric = Controller.of(array), Fabric(array)
    gathered = controller.gather(Bitmap.of(a), Bitmap.of(b), side)
    held, streamed = (a, b) if side == "a" else (b.T, a.T)
    placement = controller.place(controller.prune(gathered.stationary, controller.row_or(gathered.streaming)))
    vectors = Vectors.of(np.ascontiguousarray(streamed.T), controller.chunk)
    buffer = np.zeros((len(held), streamed.shape[1]), np.float32)
    tally, multiplications, met = Tally(array, streamed.shape[1]), 0, 0
    values = held[placement.row, placement.k]
    written = np.zeros(len(held), np.bool_)
    for which in placement.passes:
        tally.load(which)
        parts: dict[int, list[tuple[int, Reals]]] = defaultdict(list)
        again = np.zeros(tally.vectors, np.int64)
        for unit in controller.flex_dpes(placement, which):
            sources, inputs, listening = ports(unit, which, vectors)
            stationary = np.where(unit.value != IDLE, values[unit.value], np.float32(0))
            products, passes = fabric.run(stationary, sources, inputs)
            again = np.maximum(again, passes - 1)
            reduced = fabric.fan.reduce(products, unit.vec_ids)
            multiplications += listening
            for group, vec_id in enumerate(reduced.ids):
                turns, row = divmod(int(vec_id), placement.rows)
                parts[row].append((unit.number + turns * array.dpes, reduced.sums[:, group]))
        for row, pieces in parts.items():
            buffer[row] += meet(array.across, sorted(pieces, key=lambda piece: piece[0]))
            met += len(pieces) - 1 + int(written[row])
            written[row] = True
        spans = [len(pieces) for pieces in parts.values()]
        tally.stream(max(spans), sum(spans) - len(spans), int(again.sum()))
    tally.drain()
    return SigmaExecution(
        product=np.ascontiguousarray(buffer.T) if gathered.turned else buffer, stationary=side,
        loading=tally.loading, streaming=tally.streaming, add=tally.add, folds=tally.folds,
        multiplications=multiplications, partials=met,
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


def ports(unit: FlexDpe, which: Pass, vectors: Vectors) -> tuple[Whole, Reals, int]:
    """For every vector the port that each multiplier of a Flex-DPE listens to, what stands at the ports, and how many listen."""
    from trainyard.kernels.arrays.flex_dpe import connect

    busy = unit.k != IDLE
    distinct = np.unique(unit.k[busy])
    lanes = np.where(busy, np.searchsorted(distinct, unit.k), IDLE)
    shape = (len(vectors.values), len(unit.k))
    sources, inputs = np.empty(shape, np.int64), np.zeros(shape, np.float32)
    totals = np.ascontiguousarray(vectors.totals[:, which.k_first // vectors.chunk])
    listening = connect(lanes, distinct, vectors.counters, totals, vectors.values, sources, inputs)
    return sources, inputs, int(listening)


def meet(across: str, pieces: list[tuple[int, Any]]) -> Any:
    """One sum of the partial sums (Flex-DPE, sum) of a dot product, given in that order, as its adders see them.

    >>> meet("tree", [(1, 1.0), (2, 10.0), (3, 100.0)])  # 2 and 3 first, then 1
    111.0
    """
    if across not in get_args(Across):
        raise UnknownName("way across Flex-DPEs", str(across), get_args(Across), where="Sigma")
    if across == "tree":
        found = dict(pieces)
        while len(found) > 1:
            level: dict[int, Any] = {}
            for number in sorted(found):
                level[number // 2] = level[number // 2] + found[number] if number // 2 in level else found[number]
            found = level
        return next(iter(found.values()))
    total = pieces[0][1]
    for _, sums in pieces[1:]:  # from neighbour to neighbour, or one after another at the buffer
        total = total + sums
    return total


def _without_reuse(array: Sigma, a: Reals, b: Reals) -> SigmaExecution:
    """Pairs of two non-zeros, output by output, as their elements come in: nothing stays, other outputs are summed every cycle.

    Sums that cross Flex-DPEs meet in the tree, whatever `across` says: it alone takes another grouping in every cycle.
    """
    controller, fabric = Controller.of(array), Fabric(array)
    pairs = controller.pairs(Bitmap.of(a), Bitmap.of(b))
    outputs = pairs[:, 0] * b.shape[1] + pairs[:, 1]
    left, right = a[pairs[:, 0], pairs[:, 2]], b[pairs[:, 2], pairs[:, 1]]
    product = np.zeros(a.shape[0] * b.shape[1], np.float32)
    parts = 0
    issued = list(arrivals(len(pairs), array.bandwidth, controller.pool))
    for begin in range(0, len(issued), CYCLES_AT_ONCE):
        first, end = np.array(issued[begin : begin + CYCLES_AT_ONCE]).T
        units = range(-(-int((end - first).max()) // array.multipliers))
        found = [_block(fabric, first + number * array.multipliers, end, left, right, outputs) for number in units]
        parts += sum(len(one[0]) for one in found)
        gathered, sums = _gathered(found)
        np.add.at(product, gathered, sums)  # one after the other, cycle by cycle
    written = int(np.count_nonzero(np.diff(outputs, prepend=-1)))
    return SigmaExecution(
        product=product.reshape(a.shape[0], b.shape[1]), stationary="none", loading=0, streaming=len(issued),
        add=across_cycles("tree", array.multipliers, array.dpes, 1, 0, array.bandwidth) if issued else 0,
        folds=-(-len(pairs) // controller.pool), multiplications=len(pairs), partials=parts - written,
    )  # fmt: skip


def arrivals(pairs: int, bandwidth: int, multipliers: int) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) pair of each cycle: those whose two elements have come, as many as there are multipliers.

    >>> list(arrivals(5, bandwidth=3, multipliers=8)), list(arrivals(5, bandwidth=8, multipliers=2))
    ([(0, 1), (1, 3), (3, 4), (4, 5)], [(0, 2), (2, 4), (4, 5)])
    """
    done, elements = 0, 0
    while done < pairs:
        elements += bandwidth
        end = min(elements // 2, done + multipliers, pairs)
        yield done, end
        done = end


def _gathered(found: list[tuple[Whole, Whole, Reals]]) -> tuple[Whole, Reals]:
    """Outputs in the order of their cycles, and for each the sum of what several Flex-DPEs (the items of `found`) have of it."""
    number = np.repeat(np.arange(len(found)), [len(cycle) for cycle, _, _ in found])
    cycle, output, sums = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((number, output, cycle))
    number, cycle, output, sums = number[order], cycle[order], output[order], sums[order]
    starts = np.flatnonzero(np.append(True, (cycle[1:] != cycle[:-1]) | (output[1:] != output[:-1])))
    lengths, totals = np.diff(np.append(starts, len(cycle))), sums[starts]
    for which in np.flatnonzero(lengths > 1):
        pieces = slice(starts[which], starts[which] + lengths[which])
        totals[which] = meet("tree", list(zip(number[pieces].tolist(), sums[pieces], strict=True)))
    return output[starts], totals


def _block(fabric: Fabric, first: Whole, end: Whole, left: Reals, right: Reals, outputs: Whole) -> tuple[Whole, Whole, Reals]:
    """Cycle, output and sum of all that one Flex-DPE adds up: pairs from `first` on, before `end`, in each cycle.

    An A element comes down as stationary values do. The adders are set anew for each cycle.
    """
    from trainyard.kernels.arrays.flex_dpe import sum_each

    lane = np.arange(fabric.array.multipliers)
    pair = first[:, None] + lane
    busy = pair < end[:, None]
    pair[~busy] = 0
    sources, ids = (np.where(busy, given, IDLE) for given in (lane, outputs[pair]))
    held, inputs = (np.where(busy, given[pair], np.float32(0)) for given in (left, right))
    products, _ = fabric.run(held, sources, inputs)  # straight down: a permutation always has a route
    cycle, output, sums = sum_each(products, ids)
    return cycle, output, sums
