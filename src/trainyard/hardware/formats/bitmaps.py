"""Bitmaps: one bit for each element of a matrix, set where it is not zero, packed into words.

This is the format SIGMA's controller works on: a bit per element at every sparsity (E. Qin et al.: SIGMA: A Sparse and Irregular
GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-C). Zeros of large matrices are counted on packed
words: 5e8 bits are 64 MB.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MaskError

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Bitmap:
    """A value: equal and hashed by shape and bits.

    `words` is [rows, ceil(columns / 64)]; column c is bit c % 64 of word c // 64; bits past the end are 0.

    >>> left = Bitmap.of([[0, 5, 0], [7, 0, 8]])
    >>> left.shape, left.nonzeros, left.row_counts().tolist(), left.column_counts().tolist()
    ((2, 3), 3, [1, 2], [1, 1, 1])
    >>> left.transposed() == Bitmap.of([[0, 7], [5, 0], [0, 8]])
    True
    """

    words: Words
    columns: int
    _cache: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    """Counts and digest, computed once: a bitmap never changes."""

    def __post_init__(self) -> None:
        wanted = -(-self.columns // 64)
        if self.words.dtype != np.uint64 or self.words.ndim != 2 or self.words.shape[1] != wanted:
            raise MaskError(
                f"Bitmap of {self.columns} columns: words must be uint64 [rows, {wanted}], "
                f"got {self.words.dtype} {list(self.words.shape)}"
            )
        words = np.ascontiguousarray(self.words)
        if self.columns % 64 and words.size and np.any(words[:, -1] >> np.uint64(self.columns % 64)):
            raise MaskError(f"Bitmap of {self.columns} columns: bits past the end of a row are set")
        if words.flags.writeable:
            words = words.copy() if words is self.words else words
            words.flags.writeable = False
        object.__setattr__(self, "words", words)

    @classmethod
    def of(cls, mask: npt.ArrayLike) -> Bitmap:
        """The bitmap of a two-dimensional array: set where an element is not zero."""
        array = np.asarray(mask)
        if array.ndim != 2 or array.dtype.kind not in "biufc":
            raise MaskError(f"a bitmap is made of a matrix of numbers, got {array.dtype} {list(array.shape)}")
        nonzero = array if array.dtype == bool else array != 0
        return cls._of_bytes(np.packbits(nonzero, axis=1, bitorder="little"), array.shape[1])

    @classmethod
    def random(cls, rows: int, columns: int, *, nonzero: float, seed: int) -> Bitmap:
        """Independent bits, each set with probability `nonzero`, exact to 2^-64; the same for the same seed, everywhere.

        >>> Bitmap.random(64, 1000, nonzero=0.25, seed=7).nonzeros
        15845
        """
        if isinstance(nonzero, bool | str) or not isinstance(nonzero, int | float | np.number) or not 0 <= nonzero <= 1:
            raise BadInput(f"Bitmap.random: nonzero is a probability from 0 to 1, got {nonzero!r}")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise BadInput(f"Bitmap.random: seed is a whole number, got {seed!r}")
        if rows < 0 or columns < 0:
            raise BadInput(f"Bitmap.random: rows and columns must not be negative, got {rows} x {columns}")
        words = np.empty((rows, -(-columns // 64)), np.uint64)
        if nonzero == 1:
            words[:] = ~np.uint64(0)
        else:
            from trainyard.kernels.masks.bitmaps import random_words

            random_words(np.uint64(int(nonzero * 2.0**64)), np.uint64(seed % 2**64), words)
        return cls._own(_trimmed(words, columns), columns)

    @classmethod
    def _own(cls, words: Words, columns: int) -> Bitmap:
        """A bitmap of words that no other object refers to: they need no copy."""
        words.flags.writeable = False
        return cls(words, columns)

    @classmethod
    def _of_bytes(cls, octets: npt.NDArray[np.uint8], columns: int) -> Bitmap:
        """A bitmap of little-endian bytes, eight columns each."""
        padded = np.zeros((octets.shape[0], -(-columns // 64) * 8), np.uint8)
        padded[:, : octets.shape[1]] = octets
        return cls._own(padded.view("<u8").astype(np.uint64, copy=False).reshape(octets.shape[0], -(-columns // 64)), columns)

    @property
    def rows(self) -> int:
        return int(self.words.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def nonzeros(self) -> int:
        if "nonzeros" not in self._cache:
            self._cache["nonzeros"] = int(self.row_counts().sum())
        return int(self._cache["nonzeros"])

    @property
    def density(self) -> float:
        """Share of elements that are not zero; 0 where there are none."""
        return self.nonzeros / (self.rows * self.columns) if self.rows * self.columns else 0.0

    def bits(self) -> npt.NDArray[np.bool_]:
        octets = self.words.astype("<u8", copy=False).view(np.uint8).reshape(self.rows, self.words.shape[1] * 8)
        return np.unpackbits(octets, axis=1, bitorder="little", count=self.columns).view(np.bool_)

    def row_counts(self) -> Integers:
        from trainyard.kernels.masks.bitmaps import row_counts

        counts = np.zeros(self.rows, np.int64)
        row_counts(self.words, counts)
        return counts

    def column_counts(self) -> Integers:
        from trainyard.kernels.masks.bitmaps import column_counts

        counts = np.zeros(self.words.shape[1] * 64, np.int64)
        column_counts(self.words, counts)
        return counts[: self.columns]

    def transposed(self) -> Bitmap:
        from trainyard.kernels.masks.bitmaps import transpose

        words = np.zeros((self.columns, -(-self.rows // 64)), np.uint64)
        transpose(self.words, words)
        return Bitmap._own(words, self.rows)

    def cut(self, rows: tuple[int, int], columns: tuple[int, int]) -> Bitmap:
        """Rows and columns from the first to before the second of each pair."""
        (top, below), (left, right) = rows, columns
        if not (0 <= top <= below <= self.rows and 0 <= left <= right <= self.columns):
            raise BadInput(f"Bitmap.cut: rows {rows} and columns {columns} do not lie in {self.rows} x {self.columns}")
        first, shift, width = left // 64, np.uint64(left % 64), -(-(right - left) // 64)
        words = self.words[top:below, first : first + width].copy()
        if shift:
            words >>= shift
            upper = self.words[top:below, first + 1 : first + 1 + width]
            words[:, : upper.shape[1]] |= upper << (np.uint64(64) - shift)
        return Bitmap._own(_trimmed(words, right - left), right - left)

    @property
    def digest(self) -> bytes:
        """A hash of shape and bits."""
        if "digest" not in self._cache:
            hashed = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
            hashed.update(self.words.astype("<u8", copy=False).data if self.words.size else b"")
            self._cache["digest"] = hashed.digest()
        return bytes(self._cache["digest"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bitmap):
            return NotImplemented
        return self is other or (self.shape == other.shape and np.array_equal(self.words, other.words))

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Bitmap({self.rows} x {self.columns}, {self.nonzeros} non-zero)"


def as_bitmap(mask: Any, shape: tuple[int, int], name: str) -> Bitmap:
    """A mask of `shape` in any of its forms: a Bitmap, an array of that shape, `np.packbits(mask)` by row or whole, or words.

    >>> as_bitmap(np.packbits([[True, False, True]], axis=1), (1, 3), "a").bits()
    array([[ True, False,  True]])
    """
    rows, columns = shape
    try:
        array = mask if isinstance(mask, Bitmap) else np.asarray(mask)
    except ValueError as error:  # rows of different lengths
        raise MaskError(f"{name}: a mask of shape [{rows}, {columns}] is wanted, this is no matrix: {error}") from None
    if isinstance(array, Bitmap) and array.shape == (rows, columns):
        return array
    if isinstance(array, np.ndarray):
        if array.shape == (rows, columns) and array.dtype.kind in "biufc":
            return Bitmap.of(array)
        if array.dtype == np.uint8 and array.shape == (rows, -(-columns // 8)):
            if columns % 8 and np.any(array[:, -1] & np.uint8((1 << (8 - columns % 8)) - 1)):
                raise MaskError(f"{name}: packed bits past column {columns} are set; was it packed with np.packbits(mask, axis=1)?")
            return Bitmap.of(np.unpackbits(array, axis=1, count=columns).view(np.bool_))
        if array.dtype == np.uint8 and array.shape == (-(-rows * columns // 8),):
            return Bitmap.of(np.unpackbits(array, count=rows * columns).view(np.bool_).reshape(rows, columns))
        if array.dtype == np.uint64 and array.shape == (rows, -(-columns // 64)):
            return Bitmap(array, columns)
        got = f"{array.dtype} {list(array.shape)}"
    else:
        got = f"Bitmap {list(array.shape)}"
    raise MaskError(
        f"{name}: a mask of shape [{rows}, {columns}] is wanted (numbers or bool), or uint8 [{rows}, {-(-columns // 8)}] "
        f"from np.packbits(mask, axis=1), or uint8 [{-(-rows * columns // 8)}] from np.packbits(mask), "
        f"or uint64 words [{rows}, {-(-columns // 64)}], got {got}"
    )


def _trimmed(words: Words, columns: int) -> Words:
    """Words with the bits past the last column cleared."""
    if columns % 64 and words.size:
        words[:, -1] &= np.uint64((1 << columns % 64) - 1)
    return words
