"""Structured sparsity, n of m: of every m neighbours along the reduction exactly n are stored, with their positions.

A. Mishra et al.: Accelerating Sparse Deep Neural Networks. 2021 (2:4, the sparse tensor cores of A100): values and 2 position bits
for each; the multipliers select the other operand's elements by position, so that half of the steps remain. The transpose of such
a matrix, which dX needs, is 2:4 only if its mask was made so: 4 x 4 blocks with two of each row and column (I. Hubara et al.:
Accelerated Sparse Neural Training: A Provable and Efficient Method to Find N:M Transposable Masks. NeurIPS 2021).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir.operands import Structured

Bits = npt.NDArray[np.bool_]
Real = npt.NDArray[Any]


def stored_bytes(elements: int, element_bytes: int, pattern: Structured) -> int:
    """Bytes of the stored values and of the bits of their positions.

    >>> stored_bytes(1024, 2, Structured(2, 4))  # 16 bits and 2 for each of 512: 9/16 of the dense matrix
    1152
    """
    stored = -(-elements * pattern.kept // pattern.of)
    return stored * element_bytes + -(-stored * pattern.index_bits // 8)


def drawn(shape: tuple[int, ...], axis: int, pattern: Structured, random: np.random.Generator, transposable: bool = False) -> Bits:
    """A random mask with exactly n of every m along an axis; all ones where the axis does not divide into groups.

    `transposable` masks have n of every m along both axes 0 and 1.
    """
    if shape[axis] % pattern.of or (transposable and (shape[0] % pattern.of or shape[1] % pattern.of)):
        return np.ones(shape, np.bool_)
    if transposable:
        return _blocks(shape, pattern, random)
    moved = (*shape[:axis], *shape[axis + 1 :])
    order = random.random((*moved, shape[axis] // pattern.of, pattern.of)).argsort(-1)
    return np.moveaxis((order < pattern.kept).reshape(*moved, shape[axis]), -1, axis)


def _blocks(shape: tuple[int, ...], pattern: Structured, random: np.random.Generator) -> Bits:
    """A mask whose m x m blocks of the first two axes have n elements in each row and column."""
    size = pattern.of
    rows = [np.isin(np.arange(size), positions) for positions in itertools.combinations(range(size), pattern.kept)]
    patterns = np.array([block for block in itertools.product(rows, repeat=size) if np.all(np.sum(block, 0) == pattern.kept)])
    rest = shape[2:]
    chosen = patterns[random.integers(len(patterns), size=(shape[0] // size, shape[1] // size, *rest))]  # blocks, rest, m, m
    blocks = np.moveaxis(chosen, (-2, -1), (1, 3))
    return blocks.reshape(shape)


def largest(matrix: Real, axis: int, pattern: Structured) -> Bits:
    """The mask that keeps the n largest magnitudes of every m, as pruning for sparse tensor cores does."""
    reduction_last = np.moveaxis(np.abs(matrix), axis, -1)
    groups = reduction_last.reshape(*reduction_last.shape[:-1], -1, pattern.of)
    order = (-groups).argsort(-1, kind="stable").argsort(-1, kind="stable")
    return np.moveaxis((order < pattern.kept).reshape(reduction_last.shape), -1, axis)


def fits(mask: Bits, axis: int, pattern: Structured) -> bool:
    """Whether at most n of every m along an axis are set."""
    if mask.shape[axis] % pattern.of:
        return False
    reduction_last = np.moveaxis(mask, axis, -1)
    return bool((reduction_last.reshape(-1, pattern.of).sum(-1) <= pattern.kept).all())


def compress(matrix: Real, pattern: Structured) -> tuple[Real, npt.NDArray[np.uint8]]:
    """A matrix (K, N) as stored values (K n/m, N) and their positions in groups of m; groups of fewer are padded."""
    if not fits(matrix != 0, 0, pattern):
        raise BadInput(f"structured: the matrix {matrix.shape} has more than {pattern.kept} of {pattern.of} along its rows")
    groups = matrix.reshape(-1, pattern.of, matrix.shape[1])
    positions = (groups == 0).argsort(1, kind="stable")[:, : pattern.kept]
    positions = np.sort(positions, axis=1)
    values = np.take_along_axis(groups, positions, 1)
    return values.reshape(-1, matrix.shape[1]), positions.reshape(-1, matrix.shape[1]).astype(np.uint8)


def expand(values: Real, positions: npt.NDArray[np.uint8], pattern: Structured) -> Real:
    """The dense matrix of `compress`ed values."""
    columns = values.shape[1]
    dense = np.zeros((len(values) // pattern.kept, pattern.of, columns), values.dtype)
    shape = (-1, pattern.kept, columns)
    np.put_along_axis(dense, positions.reshape(shape).astype(np.int64), values.reshape(shape), 1)
    return dense.reshape(-1, columns)


def multiply(a: Real, values: Real, positions: npt.NDArray[np.uint8], pattern: Structured) -> Real:
    """(M, K) times a compressed (K, N): every stored value is multiplied by the element of a at its position."""
    first = np.repeat(np.arange(len(values) // pattern.kept) * pattern.of, pattern.kept)
    selected = a[:, first[:, None] + positions]  # M, kept, N
    product: Real = (selected * values).sum(1)
    return product
