"""QSGD: gradients quantised at random to a few levels of each bucket's norm, so that their expectation is exact.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic: QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding.
NeurIPS 2017.

A vector is cut into buckets of d elements. With the 2-norm of its bucket and s steps from 0 to it, an element v becomes

    Q(v) = norm sgn(v) level / s,    level = floor(r) or floor(r) + 1, the latter with probability r - floor(r),    r = s |v| / norm

so that E Q(v) = v, E |Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) norm^2, and at most s (s + sqrt(d)) levels of a bucket are expected
not to be 0 (Lemma 3.1). `bits` are a sign and a level: s = 2^(bits - 1) - 1. What is sent, for each bucket after 32 bits of norm:

    packed   `bits` for every element; best where most levels are not 0
    sparse   of each level that is not 0 the gap to it, its sign and the level; gap and level in P. Elias's recursive code (1975),
             as in Sec. 3.2; before them, and this is ours, how many there are plus one, so that a bucket says where it ends
    shorter  one bit that says which, and the shorter of the two

A norm is rounded up to a float32, so that no level is ever above s. Coded vectors are decoded before they are added (`decode_ops`),
and the sum is coded again (`encode_ops`) if it is sent on coded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.construction import part
from trainyard.errors import BadInput

Reals = npt.NDArray[np.float32]
Levels = npt.NDArray[np.int16]
Coding = Literal["packed", "sparse", "shorter"]
CODINGS = ("packed", "sparse", "shorter")
NORM_BITS = 32  # Alistarh et al., Sec. 3.2: a norm is sent as a 32-bit float
MOST_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Arithmetic operations of coding or decoding vectors, by kind; the addition of an accumulation is not included."""

    integer: int = 0
    """Shifts, masks, comparisons, random words."""
    conversions: int = 0
    """Between integers and floats."""
    adds: int = 0
    multiplies: int = 0
    divisions: int = 0
    roots: int = 0

    @property
    def total(self) -> int:
        return self.integer + self.conversions + self.adds + self.multiplies + self.divisions + self.roots


@part
class Qsgd:
    """The scheme: `bits` for a sign and a level, elements of a bucket, and the coding of levels.

    >>> scheme = Qsgd(bits=4, bucket=512)
    >>> scheme.steps, round(scheme.packed_bits(11_700_000) / 11_700_000, 4)  # of 32
    (7, 4.0625)
    >>> quantized = scheme.quantize(np.array([3, 0, -4], np.float32), 1)
    >>> quantized.levels.tolist(), float(quantized.norms[0])  # 4.2 and 5.6 of 7 steps
    ([4, 0, -5], 5.0)
    >>> scheme.decode(scheme.encode(quantized), 3).values().tolist() == quantized.values().tolist()
    True
    """

    bits: int = 4
    bucket: int = 512  # Alistarh et al., Sec. 5: 4 bits in buckets of 512 keep the accuracy of all their networks
    coding: Coding = "packed"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= MOST_BITS:
            raise BadInput(f"Qsgd: bits must be 2 to {MOST_BITS}, a sign and a level, got {self.bits}")

    @property
    def steps(self) -> int:
        """s: the largest level."""
        return (1 << self.bits - 1) - 1

    def buckets(self, elements: int) -> int:
        return -(-elements // self.bucket)

    @property
    def variance_bound(self) -> float:
        """Upper bound of E |Q(v) - v|^2 / |v|^2 (Lemma 3.1)."""
        return min(self.bucket / self.steps**2, math.sqrt(self.bucket) / self.steps)

    @property
    def nonzero_bound(self) -> float:
        """Upper bound of the expected non-zero levels of a bucket (Lemma 3.1)."""
        return min(self.bucket, self.steps * (self.steps + math.sqrt(self.bucket)))

    def packed_bits(self, elements: int) -> int:
        """Bits of a vector packed, which do not depend on its values."""
        return self.buckets(elements) * NORM_BITS + elements * self.bits

    def packed_bytes(self, elements: int) -> int:
        return -(-self.packed_bits(elements) // 8)

    def quantize(self, vector: npt.ArrayLike, rng: np.random.Generator | int) -> Quantized:
        """Levels of a vector; `rng` is a generator, of which one word is drawn, or a seed."""
        from trainyard.kernels import qsgd

        values = _vector(vector)
        norms, levels = np.empty(self.buckets(values.size), np.float32), np.empty(values.size, np.int16)
        qsgd.quantize(values, self.bucket, self.steps, _seed(rng), norms, levels)
        if not np.isfinite(norms).all():
            element = int(np.argmin(np.isfinite(norms))) * self.bucket
            raise BadInput(f"Qsgd: elements {element} to {element + self.bucket - 1} have no finite norm: a nan, inf or overflow")
        return Quantized(scheme=self, norms=norms, levels=levels)

    def applied(self, rows: npt.ArrayLike, rng: np.random.Generator | int) -> Reals:
        """The values that arrive of each row [..., elements], each coded by itself: `quantize` and `values` in one call."""
        values = np.asarray(rows, np.float32)
        generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
        arrived = np.empty_like(values)
        for source, target in zip(values.reshape(-1, values.shape[-1]), arrived.reshape(-1, values.shape[-1]), strict=True):
            target[:] = self.quantize(source, generator).values()
        return arrived

    def encode(self, quantized: Quantized) -> bytes:
        """The stream of bits, padded to whole bytes."""
        from trainyard.kernels import qsgd

        words = np.zeros(-(-quantized.bits // 64) + 1, np.uint64)
        norms, position = quantized.norms.view(np.uint32), 0
        if self.coding == "shorter":
            position = qsgd.put(words, 0, np.uint64(quantized.sparse), 1)
        if quantized.sparse:
            position = qsgd.write_sparse(quantized.levels, norms, self.bucket, words, position)
        else:
            position = qsgd.write_packed(quantized.levels, norms, self.bucket, self.bits, words, position)
        return words.astype(">u8").tobytes()[: -(-position // 8)]

    def decode(self, data: bytes, elements: int) -> Quantized:
        """The levels and norms that were encoded; both sides know the number of elements."""
        from trainyard.kernels import qsgd

        require_positive("Qsgd.decode", elements=elements)
        words = np.frombuffer(data + bytes(16 - len(data) % 8), ">u8").astype(np.uint64)
        end, position = 8 * len(data), int(self.coding == "shorter")
        norms, levels = np.empty(self.buckets(elements), np.uint32), np.zeros(elements, np.int16)
        sparse = self.coding == "sparse" or (self.coding == "shorter" and bool(words[0] >> np.uint64(63)))
        if sparse:
            position = qsgd.read_sparse(words, position, end, self.bucket, self.steps, norms, levels)
        elif position + self.packed_bits(elements) <= end:
            position = qsgd.read_packed(words, position, self.bucket, self.bits, norms, levels)
        else:
            position = -1
        if position < 0 or -(-position // 8) != len(data) or not np.isfinite(norms.view(np.float32)).all():
            raise BadInput(f"Qsgd: {len(data)} bytes are not {elements} elements in the {self.coding} coding of {self.bits} bits")
        return Quantized(scheme=self, norms=norms.view(np.float32), levels=levels)

    def decode_ops(self, elements: int) -> Operations:
        """Operations to decode packed levels: extract (shift, mask), convert and multiply by the bucket's norm / s."""
        return Operations(
            integer=2 * elements, conversions=elements, multiplies=elements + self.buckets(elements)
        )  # 1 / s is a constant

    def encode_ops(self, elements: int) -> Operations:
        """Operations to encode: squares, sum, root and division of a bucket; ratio, floor, random bits, packing of an element."""
        buckets = self.buckets(elements)
        return Operations(
            integer=4 * elements,  # a random word, its comparison, shift and or into the stream
            conversions=elements,
            adds=2 * elements,  # sum of squares, fraction of the ratio
            multiplies=2 * elements,
            divisions=buckets,
            roots=buckets,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantized:
    """A vector as signed levels (-s to s) and the norms of its buckets."""

    scheme: Qsgd
    norms: Reals
    levels: Levels

    def values(self) -> Reals:
        """Norm times level / s, rounded to float32."""
        from trainyard.kernels import qsgd

        restored = np.empty(self.levels.size, np.float32)
        qsgd.restore(self.levels, self.norms, self.scheme.bucket, self.scheme.steps, restored)
        return restored

    @property
    def packed_bits(self) -> int:
        return self.scheme.packed_bits(self.levels.size)

    @property
    def sparse_bits(self) -> int:
        from trainyard.kernels import qsgd

        return int(qsgd.sparse_bits(self.levels, self.scheme.bucket)) + self.norms.size * NORM_BITS

    @property
    def sparse(self) -> bool:
        """Whether non-zeros are sent instead of all elements."""
        coding = self.scheme.coding
        return coding == "sparse" or (coding == "shorter" and self.sparse_bits < self.packed_bits)

    @property
    def bits(self) -> int:
        """Exactly what `encode` writes, before it is filled up to whole bytes."""
        flag = int(self.scheme.coding == "shorter")
        return flag + (self.sparse_bits if self.sparse else self.packed_bits)

    @property
    def bytes(self) -> int:
        return -(-self.bits // 8)


def _vector(vector: Any) -> Reals:
    values = np.ascontiguousarray(vector, np.float32)
    if values.ndim != 1 or not values.size:
        raise BadInput(f"Qsgd: a vector is wanted, got an array of shape {values.shape}: flatten it, or use applied() on rows")
    return values


def _seed(rng: np.random.Generator | int) -> np.uint64:
    if isinstance(rng, np.random.Generator):
        return np.uint64(rng.integers(0, 1 << 64, dtype=np.uint64))
    return np.uint64(rng % (1 << 64))
