"""Formats of sparse matrices: their size, encoding and decoding, and the front end with which SIGMA's controller reads them.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-C and
Fig. 7, compare none (dense), CSR, CSC, COO, run-length codes with fields of 4 and 2 bits, and the bitmap. An R x C matrix with z
non-zeros has, beside its values,

    csr     z indices of ceil(log2 C) bits and R + 1 pointers of ceil(log2 (z + 1)) bits; csc the same with R and C swapped
    coo     z times ceil(log2 R) + ceil(log2 C) bits
    rlc     a field of b bits before each value: how many zeros come in front of it, rows one after the other as one stream; a run
            of more than 2^b - 1 zeros is broken by an entry whose value is a zero; zeros after the last value are not stored
    bitmap  one bit for each element

Shape, type and number of values are in the descriptor of a transfer and count as nothing. Zero is the element whose bits are all
zero: a negative zero is kept.

The controller works on bitmaps, so another format needs a front end only (Sec. IV-C). Its cycles are assumed: a front end has
`width` lanes, each with a port of one element; in a cycle a lane takes 16 bits of a bitmap, one element of a dense matrix (and
compares it with zero), one non-zero or one pointer (csr, csc), one non-zero (coo), or one entry (rlc). Run lengths are added up
over the lanes by a pipelined prefix sum of ceil(log2 width) stages, so the last bits come that much later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap

Integers = npt.NDArray[np.int64]
Values = npt.NDArray[Any]
Reading = Literal["nonzero_runs", "runs", "runs_and_padding"]
"""What counts as overhead of a run-length code: the fields of non-zeros, of all entries, or of all entries and stored zeros."""
Fields = tuple[tuple[Integers, int], ...]
"""Numbers of one width each, one list after the other."""

PORT_BITS = 16  # assumed: a lane's port carries one bf16 element


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bits of a matrix in memory; integers where counted from a bitmap, expectations from a density."""

    metadata: float
    values: float
    padding: float = 0
    """Zeros that a run-length code stores as values."""
    nonzero_metadata: float = 0
    """The part of the metadata that belongs to non-zeros and not to padding."""

    @property
    def total(self) -> float:
        return self.metadata + self.values + self.padding

    def overhead(self, reading: Reading = "runs") -> float:
        """Bits that are not values, under one reading of a run-length code's overhead; other formats have one reading only."""
        if reading == "nonzero_runs":
            return self.nonzero_metadata
        return self.metadata if reading == "runs" else self.metadata + self.padding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A matrix in a format: metadata packed bit by bit, and the values that are stored, in their order."""

    format: str
    shape: tuple[int, int]
    metadata: bytes
    metadata_bits: int
    values: Values

    @property
    def bits(self) -> int:
        return self.metadata_bits + self.values.size * self.values.itemsize * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format. Subclasses define its fields, and the elements that they point to."""

    name: str
    size_depends_on_positions = False
    """Whether its size depends on the positions of non-zeros, not on their number alone."""

    def encode(self, values: npt.ArrayLike) -> Encoded:
        """
        >>> CSR.encode(np.array([[0, 5, 0], [0, 0, 0], [7, 0, 8]], np.int16)).metadata_bits  # 3 indices and 4 pointers of 2 bits
        14
        """
        matrix = np.asarray(values)
        if matrix.ndim != 2 or matrix.dtype.hasobject or not matrix.dtype.itemsize:
            raise BadInput(f"{self.name}: a matrix of numbers is encoded, got {matrix.dtype} {list(matrix.shape)}")
        fields, stored = self._fields(_not_zero(matrix))
        bits = np.concatenate([_to_bits(numbers, width) for numbers, width in fields]) if fields else np.zeros(0, np.uint8)
        return Encoded(
            format=self.name,
            shape=(matrix.shape[0], matrix.shape[1]),
            metadata=np.packbits(bits, bitorder="little").tobytes(),
            metadata_bits=bits.size,
            values=matrix.reshape(-1)[stored],
        )

    def decode(self, encoded: Encoded) -> Values:
        """The matrix that was encoded, bit for bit."""
        matrix = np.zeros(encoded.shape[0] * encoded.shape[1], encoded.values.dtype)
        matrix[self._stored_elements(encoded)] = encoded.values
        return matrix.reshape(encoded.shape)

    def front_end(self, encoded: Encoded) -> Bitmap:
        """The bitmap for the controller; of each value it is read only whether it is zero."""
        bits = np.zeros(encoded.shape[0] * encoded.shape[1], np.bool_)
        bits[self._stored_elements(encoded)] = _not_zero(encoded.values)
        return Bitmap.of(bits.reshape(encoded.shape))

    def front_end_cycles(self, bitmap: Bitmap, width: int) -> int:
        """Cycles until the last bit of a matrix has left the front end."""
        require_positive(f"front end of {self.name}", width=width)
        return self._cycles(bitmap, width)

    def footprint_bits(self, bitmap: Bitmap, element_bits: int) -> Footprint:
        """The exact size, from the positions of the non-zeros.

        >>> zeros = Bitmap.random(100, 1000, nonzero=0.2, seed=0)
        >>> [format_named(name).footprint_bits(zeros, 16).metadata for name in ("csr", "coo", "rlc4", "rlc2", "bitmap")]
        [200985, 339099, 81940, 67712, 100000]
        """
        return self.footprint_of(*bitmap.shape, bitmap.nonzeros, element_bits, self.padding_of(bitmap))

    def expected_bits(self, rows: int, columns: int, density: float, element_bits: int) -> Footprint:
        """The expected size with independent elements of this density; pointers are as wide as the expected number needs."""
        if not 0 <= density <= 1:
            raise BadInput(f"{self.name}: density is a share from 0 to 1, got {density!r}")
        padding = self.expected_padding(rows * columns, density)
        return self.footprint_of(rows, columns, rows * columns * density, element_bits, padding)

    def footprint_of(self, rows: int, columns: int, nonzeros: float, element_bits: int, padding: float = 0) -> Footprint:
        """The size from the numbers of non-zeros and padding entries."""
        require_positive(self.name, element_bits=element_bits)
        nonzero_metadata = self._metadata(rows, columns, nonzeros)
        padding_metadata = self._metadata(rows, columns, nonzeros + padding) - nonzero_metadata if padding else 0
        return Footprint(
            metadata=nonzero_metadata + padding_metadata,
            values=self._stored(rows, columns, nonzeros) * element_bits,
            padding=padding * element_bits,
            nonzero_metadata=nonzero_metadata,
        )

    def padding_of(self, bitmap: Bitmap) -> int:
        return 0

    def expected_padding(self, elements: int, density: float) -> float:
        return 0.0

    def _stored(self, rows: int, columns: int, nonzeros: float) -> float:
        return nonzeros

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        raise NotImplementedError

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        """The fields of a matrix, and the elements whose values are stored, in order, numbered along rows."""
        raise NotImplementedError

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        """The elements that the values belong to, from the fields' bits."""
        raise NotImplementedError

    def _cycles(self, bitmap: Bitmap, width: int) -> int:
        return -(-bitmap.nonzeros // width)

    def _stored_elements(self, encoded: Encoded) -> Integers:
        rows, columns = encoded.shape
        entries = encoded.values.size
        fits = encoded.format == self.name and encoded.metadata_bits == self._metadata(rows, columns, entries)
        if fits and len(encoded.metadata) == -(-encoded.metadata_bits // 8):
            bits = np.unpackbits(np.frombuffer(encoded.metadata, np.uint8), count=encoded.metadata_bits, bitorder="little")
            positions = self._positions(bits, encoded.shape, entries)
            if positions.size == entries and (not entries or (positions.min() >= 0 and positions.max() < rows * columns)):
                return positions
        raise BadInput(
            f"{self.name}: {encoded.metadata_bits} bits of {encoded.format} metadata and {entries} values are not a matrix of "
            f"{rows} x {columns}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Format):
    """No format: all values, no metadata."""

    def _stored(self, rows: int, columns: int, nonzeros: float) -> float:
        return rows * columns

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        return 0

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        return (), np.arange(nonzero.size)

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        return np.arange(shape[0] * shape[1])

    def _cycles(self, bitmap: Bitmap, width: int) -> int:
        return -(-bitmap.rows * bitmap.columns // width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(Format):
    """Compressed sparse rows, or columns: pointers to the start of each line, and indices inside the lines."""

    by_columns: bool = False

    def _lines(self, shape: tuple[int, int]) -> tuple[int, int]:
        """The number of lines, and their length."""
        return (shape[1], shape[0]) if self.by_columns else shape

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        lines, length = self._lines((rows, columns))
        return entries * index_bits(length) + (lines + 1) * pointer_bits(entries)

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        line, index = np.nonzero(nonzero.T if self.by_columns else nonzero)
        lines, length = self._lines((nonzero.shape[0], nonzero.shape[1]))
        pointers = np.searchsorted(line, np.arange(lines + 1))
        positions = index * nonzero.shape[1] + line if self.by_columns else line * nonzero.shape[1] + index
        return ((pointers, pointer_bits(line.size)), (index, index_bits(length))), positions

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        lines, length = self._lines(shape)
        end = (lines + 1) * pointer_bits(entries)
        pointers = _from_bits(metadata[:end], lines + 1, pointer_bits(entries))
        index = _from_bits(metadata[end:], entries, index_bits(length))
        counts = np.diff(pointers)
        if np.any(counts < 0) or pointers[0] or pointers[-1] != entries:
            return np.zeros(0, np.int64)
        line = np.repeat(np.arange(lines), counts)
        return index * shape[1] + line if self.by_columns else line * shape[1] + index

    def _cycles(self, bitmap: Bitmap, width: int) -> int:
        return -(-(bitmap.nonzeros + self._lines(bitmap.shape)[0] + 1) // width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates(Format):
    """Row and column of each value."""

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        return entries * (index_bits(rows) + index_bits(columns))

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        row, column = np.nonzero(nonzero)
        return ((row, index_bits(nonzero.shape[0])), (column, index_bits(nonzero.shape[1]))), row * nonzero.shape[1] + column

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        end = entries * index_bits(shape[0])
        row = _from_bits(metadata[:end], entries, index_bits(shape[0]))
        return row * shape[1] + _from_bits(metadata[end:], entries, index_bits(shape[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength(Format):
    """Zeros in front of each value, in a field of `run_bits`."""

    run_bits: int
    size_depends_on_positions = True

    @property
    def period(self) -> int:
        """Zeros that a padding entry represents: those of its run and its value."""
        return 1 << self.run_bits

    def padding_of(self, bitmap: Bitmap) -> int:
        from trainyard.kernels.masks.bitmaps import padding_entries

        return int(padding_entries(bitmap.words, bitmap.columns, self.run_bits))

    def expected_padding(self, elements: int, density: float) -> float:
        """Exact expectation for independent elements: a non-zero has a j-th padding entry where j periods of zeros precede it.

        sum over j of density x^j (elements - j period),   x = (1 - density)^period
        """
        most, share = (elements - 1) // self.period, (1 - density) ** self.period
        if not density or most < 1:
            return 0.0
        powers = share * (1 - share**most) / (1 - share)
        weighted = share * (1 - (most + 1) * share**most + most * share ** (most + 1)) / (1 - share) ** 2
        return density * (elements * powers - self.period * weighted)

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        return entries * self.run_bits

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        last = np.flatnonzero(nonzero)
        start = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])[: last.size]
        padding = (last - start) // self.period
        number = np.arange(padding.sum()) - np.repeat(np.cumsum(padding) - padding, padding)
        positions = np.sort(np.concatenate([last, np.repeat(start, padding) + (number + 1) * self.period - 1]))
        return ((np.diff(positions, prepend=-1) - 1, self.run_bits),), positions

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        return np.cumsum(_from_bits(metadata, entries, self.run_bits) + 1) - 1

    def _cycles(self, bitmap: Bitmap, width: int) -> int:
        entries = bitmap.nonzeros + self.padding_of(bitmap)
        return -(-entries // width) + index_bits(width) if entries else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits(Format):
    """The bitmap itself."""

    def _metadata(self, rows: int, columns: int, entries: float) -> float:
        return rows * columns

    def _fields(self, nonzero: npt.NDArray[np.bool_]) -> tuple[Fields, Integers]:
        return ((nonzero.reshape(-1).astype(np.int64), 1),), np.flatnonzero(nonzero)

    def _positions(self, metadata: npt.NDArray[np.uint8], shape: tuple[int, int], entries: int) -> Integers:
        return np.flatnonzero(metadata)

    def _cycles(self, bitmap: Bitmap, width: int) -> int:
        return -(-bitmap.rows * bitmap.columns // (PORT_BITS * width))


NONE, CSR, CSC = Dense(name="none"), Compressed(name="csr"), Compressed(name="csc", by_columns=True)
COO, RLC4, RLC2, BITMAP = (
    Coordinates(name="coo"),
    RunLength(name="rlc4", run_bits=4),
    RunLength(name="rlc2", run_bits=2),
    Bits(name="bitmap"),
)
FORMATS = {row.name: row for row in (NONE, CSR, CSC, COO, RLC4, RLC2, BITMAP)}
"""In the order of Fig. 7."""


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return FORMATS[name]


def decode(encoded: Encoded) -> Values:
    return format_named(encoded.format).decode(encoded)


def front_end(encoded: Encoded) -> Bitmap:
    return format_named(encoded.format).front_end(encoded)


def smaller_between(
    one: Format, other: Format, rows: int, columns: int, element_bits: int, reading: Reading = "runs"
) -> tuple[tuple[float, float], ...]:
    """Ranges of sparsity in which `one` expects less overhead than `other`, among thousandths below 1.

    >>> smaller_between(RLC4, BITMAP, 1632, 36548, element_bits=16)  # Fig. 7
    ((0.753, 0.999),)
    """
    sparsities = [step / 1000 for step in range(1000)]
    sizes = [
        [layout.expected_bits(rows, columns, 1 - sparsity, element_bits).overhead(reading) for sparsity in sparsities]
        for layout in (one, other)
    ]
    ranges: list[tuple[float, float]] = []
    before = False
    for sparsity, size, rival in zip(sparsities, *sizes, strict=True):
        if size < rival:
            ranges[-1:] = [(ranges[-1][0], sparsity)] if before else [*ranges[-1:], (sparsity, sparsity)]
        before = size < rival
    return tuple(ranges)


def index_bits(dimension: int) -> int:
    """Bits of an index: ceil(log2 dimension).

    >>> [index_bits(dimension) for dimension in (1, 2, 3, 4, 5, 36548)]
    [0, 1, 2, 2, 3, 16]
    """
    return max(0, dimension - 1).bit_length()


def pointer_bits(entries: float) -> int:
    """Bits of a pointer, from 0 to `entries`: ceil(log2 (entries + 1)).

    >>> [pointer_bits(entries) for entries in (0, 1, 3, 4)]
    [0, 1, 2, 3]
    """
    return int(entries).bit_length()


def _not_zero(values: Values) -> npt.NDArray[np.bool_]:
    """Whether any bit of an element is set, so that decoding is exact."""
    octets = np.frombuffer(values.tobytes(), np.uint8).reshape(*values.shape, values.itemsize)
    return np.asarray(octets.any(axis=-1))


def _to_bits(numbers: Integers, width: int) -> npt.NDArray[np.uint8]:
    """Numbers of `width` bits, lowest first, as single bits."""
    return ((numbers[:, None] >> np.arange(width)) & 1).astype(np.uint8).reshape(-1)


def _from_bits(bits: npt.NDArray[np.uint8], count: int, width: int) -> Integers:
    """Numbers from their single bits."""
    return bits.reshape(count, width) @ (1 << np.arange(width))
