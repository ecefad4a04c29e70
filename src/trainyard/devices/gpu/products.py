"""One matrix product on a GPU: tile size, split of the reduction (split-K), waves over the multiprocessors, repeated reads.

The time is the largest of four: MACs of the busiest multiprocessor, its loads where operands cannot be copied in bulk, operands of
all tiles through the L2, operands through DRAM.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PARTIAL_BYTES = 4  # a split reduction leaves fp32 partial sums
VECTOR_BYTES = 16  # bytes of one load from an aligned row; alignment of bulk copies
WORD_BYTES = 4  # bytes of one load from other rows, if their length is a multiple of it
STRIDED_LOADS = 0.5  # loads per element that is strided along the reduction: loaded by vectors, transposed by words on chip


class Limits(NamedTuple):
    """Rates of one GPU for products of one element type, per second, and its tile sizes."""

    sms: int
    macs_per_sm: float
    loads_per_sm: float
    l2_per_sm: float
    l2: float
    dram: float
    l2_room: float
    tiles: tuple[tuple[int, int, int], ...]
    fill_s: float
    ramp_s: float
    splits: tuple[int, ...] = SPLITS


class Matrices(NamedTuple):
    """A product and the bytes of its tensors; the A tensor of a convolution is smaller than its matrix.

    `row` is the number of elements in one load if rows are not aligned, else 0. `a_strided` and `b_strided` mark operands that are
    not contiguous along the reduction, which TF32 tensor cores cannot read.
    """

    M: int
    N: int
    K: int
    batch: int
    a_bytes: int
    b_bytes: int
    out_bytes: int
    element_bytes: int
    row: int = 0
    a_strided: bool = False
    b_strided: bool = False

    def loads(self, m: int, n: int) -> float:
        """Loads of a tile for each step of its reduction; 0 where bulk copies feed it."""
        if self.row:
            return (m + n) / self.row
        return STRIDED_LOADS * (m * self.a_strided + n * self.b_strided)


class Tiled(NamedTuple):
    """A product in tiles of one size. `a_reads` and `b_reads` are how often each operand is read from DRAM."""

    tile: tuple[int, int, int]
    split: int
    waves: int
    compute_s: float
    l2_s: float
    a_reads: float
    b_reads: float
    partial_bytes: int

    @property
    def kernels(self) -> int:
        return 1 if self.split == 1 else 2


def elements_per_load(element_bytes: int, *rows: int) -> int:
    """Elements of one load from the least aligned of `rows` (lengths in elements), or 0 if all are aligned.

    >>> elements_per_load(2, 768, 768), elements_per_load(2, 30522, 768), elements_per_load(2, 50257), elements_per_load(4, 50257)
    (0, 2, 1, 1)
    """
    widths = [row * element_bytes for row in rows]
    if all(width % VECTOR_BYTES == 0 for width in widths):
        return 0
    return max(1, WORD_BYTES // element_bytes) if all(width % WORD_BYTES == 0 for width in widths) else 1


@lru_cache(maxsize=65536)
def best_tiling(product: Matrices, limits: Limits) -> Tiled:
    """The fastest tile size and split for operands that start in DRAM.

    >>> limits = Limits(132, 4.0e12, 5e9, 1.2e11, 1e13, 4.3e12, 3e7, ((128, 256, 64), (64, 64, 64)), 1e-6, 2e-6)
    >>> best_tiling(Matrices(8192, 8192, 8192, 1, 2**27, 2**27, 2**27, 2), limits).tile
    (128, 256, 64)
    >>> best_tiling(Matrices(128, 128, 65536, 1, 2**24, 2**24, 2**15, 2), limits).split > 1
    True
    """
    candidates = (_tiled(product, limits, tile, split) for tile in _tiles(limits) for split in _splits(product, limits, tile))
    return min(candidates, key=lambda tiled: product_seconds(tiled, product, limits))


@lru_cache(maxsize=64)
def _tiles(limits: Limits) -> tuple[tuple[int, int, int], ...]:
    """Every tile size in both orientations."""
    return tuple(dict.fromkeys(tile for m, n, k in limits.tiles for tile in ((m, n, k), (n, m, k))))


def _splits(product: Matrices, limits: Limits, tile: tuple[int, int, int]) -> tuple[int, ...]:
    steps = max(1, product.K // (4 * tile[2]))  # a shorter piece is dominated by filling and draining
    return tuple(split for split in limits.splits if split <= steps)


def _tiled(product: Matrices, limits: Limits, tile: tuple[int, int, int], split: int) -> Tiled:
    m, n, k = tile
    rows, columns = math.ceil(product.M / m), math.ceil(product.N / n)
    deep = math.ceil(product.K / split / k) * k
    tiles = rows * columns * product.batch * split
    waves = math.ceil(tiles / limits.sms)
    loads_s = product.loads(m, n) * deep / limits.loads_per_sm
    operand_bytes = (m + n) * deep * product.element_bytes
    compute_s = waves * (max(m * n * deep / limits.macs_per_sm, loads_s) + limits.fill_s)
    l2_s = max(tiles * operand_bytes / limits.l2, waves * operand_bytes / limits.l2_per_sm)
    a_reads, b_reads = _reads(product, limits, tile, rows, columns)
    partial = 0 if split == 1 else split * product.M * product.N * product.batch * PARTIAL_BYTES
    return Tiled(tile, split, waves, compute_s, l2_s, a_reads, b_reads, partial)


def _reads(product: Matrices, limits: Limits, tile: tuple[int, int, int], rows: int, columns: int) -> tuple[float, float]:
    """Once each if either operand fits the share of the L2; otherwise A once per column of waves and B once per row.

    A wave covers a block of tiles that is as square as the number of multiprocessors allows.
    """
    if min(product.a_bytes, product.b_bytes) <= product.batch * limits.l2_room:
        return 1.0, 1.0
    m, n, _ = tile
    high = max(1, min(rows, round(math.sqrt(limits.sms * n / m))))
    wide = max(1, limits.sms // high)
    return float(math.ceil(columns / wide)), float(math.ceil(rows / high))


def product_seconds(tiled: Tiled, product: Matrices, limits: Limits) -> float:
    """Time of a product; a split adds the traffic of its partial sums through the L2 and a second kernel."""
    dram = tiled.a_reads * product.a_bytes + tiled.b_reads * product.b_bytes + product.out_bytes
    spill = 2 * tiled.partial_bytes / limits.l2 + (limits.ramp_s if tiled.split > 1 else 0.0)
    return max(tiled.compute_s, tiled.l2_s, dram / limits.dram) + spill
