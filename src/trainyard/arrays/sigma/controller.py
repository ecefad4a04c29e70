"""SIGMA's sparsity controller, step by step: from two bitmaps to the stationary value and the input port of every multiplier.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020. Sec. IV-E,
steps i to vii of Fig. 5; a method for each. MK is stationary as the paper prints it; a stationary KN is the same with the product
transposed.

Two things go beyond the printed example. The paper's streaming counter is also the Benes port, which presumes that a column's
non-zeros fit the ports; where they do not, a Flex-DPE takes those that it needs, in the same order (at most one for each of its
multipliers). And where K arrives in chunks, stationary values are placed chunk by chunk, each row by row, cyclically over the
multipliers: value e goes to multiplier e mod P, a *fold* is one cycle through all multipliers, and a *pass* is a run of values of
one chunk, no longer than a fold, for which the vectors stream once. With one chunk, a pass is a fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.formats.bitmaps import Bitmap

if TYPE_CHECKING:
    from trainyard.arrays.sigma.array import Sigma

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
IDLE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Step i: the stationary bitmap [rows, K] and the streaming one [K, vectors]; `is_transposed`: so is the product."""

    stationary: Bitmap
    streaming: Bitmap
    is_transposed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Step iii: N_stat useful stationary values, the Flex-DPEs that they fill, and the folds they take on this fabric."""

    useful: int
    flex_dpes: int
    folds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Stationary values `first` to before `end`, whose k lies in [k_first, k_end); its last value lies in fold `fold`."""

    first: int
    end: int
    k_first: int
    k_end: int
    fold: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Step iv: row (of `rows`) and k of every useful stationary value, in the order of loading, and the passes over them."""

    rows: int
    row: Integers
    k: Integers
    passes: tuple[Pass, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlexDpe:
    """One Flex-DPE in one pass: for each multiplier its stationary value (by number), that value's row and k, and its vecID.

    The accumulation id, which FAN takes as vecID (step vii), is the row. A pass that wraps around the last multiplier can begin and
    end in one Flex-DPE: there its second part has ids of its own (row + rows), and the two parts of a dot product are added on the
    way out. IDLE marks a multiplier without a value.
    """

    number: int
    value: Integers
    row: Integers
    k: Integers
    vec_ids: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Step v: the SRC-DEST table of a Flex-DPE for one vector: (streaming counter, multiplier) of every pair of two non-zeros."""

    flex_dpe: int
    vector: int
    pairs: tuple[tuple[int, int], ...]

    def naive_routing(self) -> tuple[int, ...]:
        """Step vi as the paper's example does it: source minus destination, how far to the left each value has to go."""
        return tuple(source - destination for source, destination in self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """The controller of `dpes` Flex-DPEs with `multipliers` each; `chunk` elements of K arrive together (None: all of them).

    >>> controller = Controller(multipliers=4, dpes=2)
    >>> gathered = controller.gather(Bitmap.of([[1, 1, 1], [0, 1, 0]]), Bitmap.of([[1, 0], [0, 0], [0, 1]]))
    >>> pruned = controller.prune(gathered.stationary, controller.row_or(gathered.streaming))
    >>> pruned.bits().astype(int).tolist(), controller.allocate(pruned)
    ([[1, 0, 1], [0, 0, 0]], Allocation(useful=2, flex_dpes=1, folds=1))
    """

    multipliers: int
    dpes: int
    chunk: int | None = None

    def __post_init__(self) -> None:
        require_positive("Controller", multipliers=self.multipliers, dpes=self.dpes)
        if self.chunk is not None:
            require_positive("Controller", chunk=self.chunk)

    @classmethod
    def of(cls, array: Sigma) -> Controller:
        chunk = array.bandwidth if array.streaming == "limited" else None
        return cls(multipliers=array.multipliers, dpes=array.dpes, chunk=chunk)

    @property
    def pool(self) -> int:
        """All multipliers."""
        return self.multipliers * self.dpes

    def gather(self, a: Bitmap, b: Bitmap, stationary: Literal["a", "b"] = "a") -> Gathered:
        """Step i: two bitmap-compressed matrices, a [M, K] and b [K, N]."""
        if a.columns != b.rows:
            raise BadInput(f"controller: bitmaps of {a.rows} x {a.columns} and {b.rows} x {b.columns} do not multiply")
        if stationary == "a":
            return Gathered(stationary=a, streaming=b, is_transposed=False)
        return Gathered(stationary=b.transposed(), streaming=a.transposed(), is_transposed=True)

    def row_or(self, streaming: Bitmap) -> Bits:
        """Step ii, REGOR: for each k, whether any streaming vector has a non-zero there."""
        return np.bitwise_or.reduce(streaming.words, axis=1) != 0 if streaming.columns else np.zeros(streaming.rows, np.bool_)

    def prune(self, stationary: Bitmap, regor: Bits) -> Bitmap:
        """Step ii, stationary': every column of the stationary bitmap AND its bit of REGOR."""
        return Bitmap(stationary.words & Bitmap.of(regor[None]).words, stationary.columns)

    def allocate(self, pruned: Bitmap) -> Allocation:
        """Step iii: as many Flex-DPEs as the ones of stationary' fill, in folds where the fabric has fewer."""
        useful = pruned.nonzeros
        return Allocation(useful=useful, flex_dpes=-(-useful // self.multipliers), folds=-(-useful // self.pool))

    def place(self, pruned: Bitmap) -> Placement:
        """Step iv: stationary' values left to right, top to bottom (in each chunk of K), one after another into the multipliers."""
        row, k = (axis.astype(np.int64) for axis in np.nonzero(pruned.bits()))
        chunk = self.chunk or max(pruned.columns, 1)
        order = np.argsort(k // chunk, kind="stable")
        row, k = row[order], k[order]
        return Placement(rows=pruned.rows, row=row, k=k, passes=tuple(self._passes(k, chunk, pruned.columns)))

    def _passes(self, k: Integers, chunk: int, depth: int) -> Iterator[Pass]:
        starts = np.searchsorted(k // chunk, np.arange(-(-depth // chunk) + 1))
        for number in range(len(starts) - 1):
            for first in range(int(starts[number]), int(starts[number + 1]), self.pool):
                end = min(first + self.pool, int(starts[number + 1]))
                k_first, k_end = number * chunk, min((number + 1) * chunk, depth)
                yield Pass(first=first, end=end, k_first=k_first, k_end=k_end, fold=(end - 1) // self.pool)

    def flex_dpes(self, placement: Placement, pass_: Pass) -> Iterator[FlexDpe]:
        """The Flex-DPEs that have values in a pass, in the order of loading."""
        begin = pass_.first // self.multipliers
        for unit in range(begin, min(-(-pass_.end // self.multipliers), begin + self.dpes)):
            number = unit % self.dpes
            slots = np.arange(number * self.multipliers, (number + 1) * self.multipliers)
            value = pass_.first + (slots - pass_.first) % self.pool
            value[value >= pass_.end] = IDLE
            row, k = (np.where(value == IDLE, IDLE, indices[value]) for indices in (placement.row, placement.k))
            second = value // self.pool > pass_.first // self.pool
            yield FlexDpe(number=number, value=value, row=row, k=k, vec_ids=np.where(second, row + placement.rows, row))

    def stationary_counters(self, pruned: Bitmap) -> Integers:
        """Step v: the multiplier (in its Flex-DPE) of each stationary value, as a matrix; IDLE at a zero."""
        placement = self.place(pruned)
        counters = np.full(pruned.shape, IDLE)
        counters[placement.row, placement.k] = np.arange(len(placement.k)) % self.multipliers
        return counters

    def streaming_counters(self, streaming: Bitmap) -> Integers:
        """Step v: non-zeros numbered from the top of each column (of each chunk of it); IDLE at a zero."""
        bits = streaming.bits()
        counters = np.full(streaming.shape, IDLE)
        chunk = self.chunk or max(streaming.rows, 1)
        for begin in range(0, streaming.rows, chunk):
            part = bits[begin : begin + chunk]
            counters[begin : begin + chunk][part] = (np.cumsum(part, axis=0) - 1)[part]
        return counters

    def tables(self, unit: FlexDpe, streaming: Bitmap) -> Iterator[Table]:
        """Step v: where both bits are set, the two counters are stored, for every vector."""
        counters = self.streaming_counters(streaming)
        for vector in range(streaming.columns):
            pairs = [(int(counters[k, vector]), lane) for lane, k in enumerate(unit.k) if k != IDLE and counters[k, vector] != IDLE]
            yield Table(flex_dpe=unit.number, vector=vector, pairs=tuple(pairs))

    def output_bitmap(self, gathered: Gathered) -> Bitmap:
        """Step v: outputs with any product of two non-zeros; a sum that happens to be zero is still set here."""
        left, right = gathered.stationary.bits().astype(np.float32), gathered.streaming.bits().astype(np.float32)
        outputs = Bitmap.of(left @ right)
        return outputs.transposed() if gathered.is_transposed else outputs

    def pairs(self, a: Bitmap, b: Bitmap) -> Integers:
        """Without local reuse: (row, column, k) of every product of two non-zeros, output by output."""
        from trainyard.kernels.arrays.flex_dpe import list_pairs

        triples = np.empty((int(a.column_counts() @ b.row_counts()), 3), np.int64)
        list_pairs(a.words, b.transposed().words, triples)
        return triples
