"""The steps of Kim et al. (MICRO 2023, Sec. 6.6, Fig. 17) as Triton programs of one tile size, to be measured against each other.

| step           | a program                                                         | dY tiles that it loads               |
|----------------|-------------------------------------------------------------------|--------------------------------------|
| two kernels    | one tile of dX; in a second launch one tile of dW                 | its row of dY; its column of dY      |
| sequential     | the same in one launch, tiles of dX first                         | the same                             |
| interleaving   | one tile of dX and one of dW, step by step in turns               | its row and its column, side by side |
| dXmajor        | one tile of dX over its row of dY; adds to the dW tiles it passes | its row, each tile once for both     |
| dWmajor        | one tile of dW over its column of dY; adds to the dX tiles        | its column, each tile once for both  |
| + partitioning | the same over a part of the row (N) or column (M); both are added | a part of them                       |

Rearrangement takes interleaving, dXmajor or dWmajor by Algorithm 1. What a program does not own it adds to by fp32 atomics: the
intermediate results that the paper sends off chip. These programs are for the comparison; the one to train with is in
`trainyard.live.gradient.kernels`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainyard.errors import UnknownName

Step = Literal["two_kernels", "sequential", "interleaving", "dx_major", "dw_major"]
STEPS: tuple[Step, ...] = ("two_kernels", "sequential", "interleaving", "dx_major", "dw_major")
SQUARE = 4  # Sec. 4.3: largest dimension below four times the smallest


def algorithm_1(rows: int, outputs: int, inputs: int) -> Step:
    """The order that Algorithm 1 selects for Y(M,N) = X(M,K) W(K,N).

    >>> algorithm_1(128, 128, 256), algorithm_1(64, 64, 512), algorithm_1(12544, 64, 64)
    ('interleaving', 'dw_major', 'dx_major')
    """
    if max(rows, outputs, inputs) < SQUARE * min(rows, outputs, inputs):
        return "interleaving"
    return "dw_major" if inputs > outputs and inputs > rows else "dx_major"


def run(step: Step, dy: Tensor, x: Tensor, weight: Tensor, *, parts: int = 1) -> tuple[Tensor, Tensor]:
    """dX (M, K) and dW (N, K) of contiguous dY (M, N), X (M, K), W (N, K); `parts` cut the loop of dXmajor (N) or dWmajor (M)."""
    if step not in STEPS:
        raise UnknownName("step", step, STEPS)
    (rows, outputs), inputs = dy.shape, x.shape[1]
    tile = 32 if dy.dtype == torch.float32 else 64
    tiles_m, tiles_n, tiles_k = (-(-size // tile) for size in (rows, outputs, inputs))
    options: dict[str, Any] = {"TILE": tile, "num_warps": 4}
    numbers = (rows, outputs, inputs)
    if step in ("two_kernels", "sequential", "interleaving"):
        dx, dw = torch.empty_like(x), torch.empty_like(weight)
        for_dx, for_dw = tiles_m * tiles_k, tiles_n * tiles_k
        if step == "two_kernels":
            products[(for_dx,)](dy, x, weight, dx, dw, *numbers, for_dx, **options)
            products[(for_dw,)](dy, x, weight, dx, dw, *numbers, 0, **options)
        elif step == "sequential":
            products[(for_dx + for_dw,)](dy, x, weight, dx, dw, *numbers, for_dx, **options)
        else:
            interleaved[(max(for_dx, for_dw),)](dy, x, weight, dx, dw, *numbers, **options)
        return dx, dw
    dx, dw = (torch.zeros(tensor.shape, dtype=torch.float32, device=dy.device) for tensor in (x, weight))
    own, walk = (tiles_m, tiles_n) if step == "dx_major" else (tiles_n, tiles_m)
    parts = max(1, min(parts, walk))
    rearranged[(own * tiles_k * parts,)](dy, x, weight, dx, dw, *numbers, parts, DX_MAJOR=step == "dx_major", **options)
    return dx.to(x.dtype), dw.to(weight.dtype)


@triton.jit
def _load(ptr, row, column, rows, columns):
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(ptr + row[:, None].to(tl.int64) * columns + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(ptr, value, row, column, rows, columns):
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(ptr + row[:, None].to(tl.int64) * columns + column[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add(ptr, value, row, column, rows, columns):
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.atomic_add(ptr + row[:, None].to(tl.int64) * columns + column[None, :], value, mask=mask, sem="relaxed")


@triton.jit
def _dx_step(dx, dy, w, m, n, k, M, N, K):
    return tl.dot(_load(dy, m, n, M, N), _load(w, n, k, N, K), dx, input_precision="ieee")


@triton.jit
def _dw_step(dw, dy, x, m, n, k, M, N, K):
    return tl.dot(tl.trans(_load(dy, m, n, M, N)), _load(x, m, k, M, K), dw, input_precision="ieee")


@triton.jit(do_not_specialize=["M", "dx_tiles"])
def products(dy, x, w, dx, dw, M, N, K, dx_tiles, TILE: tl.constexpr):
    """One tile of dX for the first programs, one tile of dW for the others: no dY tile is used twice by a program."""
    program, span = tl.program_id(0), tl.arange(0, TILE)
    tiles_k = tl.cdiv(K, TILE)
    total = tl.zeros([TILE, TILE], tl.float32)
    if program < dx_tiles:
        m, k = program // tiles_k * TILE + span, program % tiles_k * TILE + span
        for first in range(0, N, TILE):
            total = _dx_step(total, dy, w, m, first + span, k, M, N, K)
        _store(dx, total, m, k, M, K)
    else:
        tile = program - dx_tiles
        n, k = tile // tiles_k * TILE + span, tile % tiles_k * TILE + span
        for first in range(0, M, TILE):
            total = _dw_step(total, dy, x, first + span, n, k, M, N, K)
        _store(dw, total, n, k, N, K)


@triton.jit(do_not_specialize=["M"])
def interleaved(dy, x, w, dx, dw, M, N, K, TILE: tl.constexpr):
    """A tile of dX and a tile of dW in turns: dY row by row for the one, column by column for the other (Fig. 10 a)."""
    program, span = tl.program_id(0), tl.arange(0, TILE)
    tiles_k = tl.cdiv(K, TILE)
    row, k = program // tiles_k * TILE + span, program % tiles_k * TILE + span
    dx_tile, dw_tile = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE, TILE], tl.float32)
    dx_end = tl.where(program < tl.cdiv(M, TILE) * tiles_k, N, 0)
    dw_end = tl.where(program < tl.cdiv(N, TILE) * tiles_k, M, 0)
    both = tl.minimum(dx_end, dw_end)
    for first in range(0, both, TILE):
        dx_tile = _dx_step(dx_tile, dy, w, row, first + span, k, M, N, K)
        dw_tile = _dw_step(dw_tile, dy, x, first + span, row, k, M, N, K)
    rest = tl.cdiv(both, TILE) * TILE
    for first in range(rest, dx_end, TILE):
        dx_tile = _dx_step(dx_tile, dy, w, row, first + span, k, M, N, K)
    for first in range(rest, dw_end, TILE):
        dw_tile = _dw_step(dw_tile, dy, x, first + span, row, k, M, N, K)
    if dx_end > 0:
        _store(dx, dx_tile, row, k, M, K)
    if dw_end > 0:
        _store(dw, dw_tile, row, k, N, K)


@triton.jit(do_not_specialize=["M", "parts"])
def rearranged(dy, x, w, dx, dw, M, N, K, parts, DX_MAJOR: tl.constexpr, TILE: tl.constexpr):
    """A dY tile is loaded once for both gradients (Fig. 10 b, c); a part of the walk is one partition (Fig. 11)."""
    program, span = tl.program_id(0), tl.arange(0, TILE)
    tiles_k = tl.cdiv(K, TILE)
    part, tile = program % parts, program // parts
    own, k = tile // tiles_k * TILE + span, tile % tiles_k * TILE + span
    total = tl.zeros([TILE, TILE], tl.float32)
    if DX_MAJOR:
        steps = tl.cdiv(N, TILE)
        x_tile = _load(x, own, k, M, K)
        for step in range(part * steps // parts, (part + 1) * steps // parts):
            n = step * TILE + span
            dy_tile = _load(dy, own, n, M, N)
            total = tl.dot(dy_tile, _load(w, n, k, N, K), total, input_precision="ieee")
            _add(dw, tl.dot(tl.trans(dy_tile), x_tile, input_precision="ieee"), n, k, N, K)
        _add(dx, total, own, k, M, K)
    else:
        steps = tl.cdiv(M, TILE)
        w_tile = _load(w, own, k, N, K)
        for step in range(part * steps // parts, (part + 1) * steps // parts):
            m = step * TILE + span
            dy_tile = _load(dy, m, own, M, N)
            total = tl.dot(tl.trans(dy_tile), _load(x, m, k, M, K), total, input_precision="ieee")
            _add(dx, tl.dot(dy_tile, w_tile, input_precision="ieee"), m, k, M, K)
        _add(dw, total, own, k, N, K)
