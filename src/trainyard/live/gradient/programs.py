"""The Triton programs of the interleaved gradients: one pass over dY gives dX, dW and the bias gradient.

A program owns a slice of N and a slice of K. Its part of W stays on chip and its part of dW stays in registers while it walks over
tiles of M (dWmajor with weight-sharing partitions, in the words of Kim et al., MICRO 2023, Secs. 4.3 and 5):

    dX(m, k) = dY(m, n) W(n, k)         dW(n, k) += dY(m, n)^T X(m, k)        with one load of the dY tile for both

The tile lies in shared memory, from which both products read it; TRANSPOSED computes both transposed, which suits short tiles.

Slices of K that walk in step share dY through the L2. Slices of N add up dX: by atomics, or in a fixed order over one partial
result for each slice. Every walk leaves one partial dW; they are summed in a fixed order, behind a barrier of all programs or by a
second launch. Imported only when a kernel is asked for: triton is an extra.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(ptr, row, column, rows, columns, row_stride, column_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of a matrix; ROWS and COLUMNS say which edges may stick out (there it reads zeros)."""
    at = ptr + row[:, None] * row_stride + column[None, :] * column_stride
    if ROWS and COLUMNS:
        return tl.load(at, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0)
    elif ROWS:
        return tl.load(at, mask=(row < rows)[:, None], other=0.0)
    elif COLUMNS:
        return tl.load(at, mask=(column < columns)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _sum_in_order(part, out, parts, size, stride, program, programs, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """out = sum of `parts` rows of `part`, always in the same order; the programs share the columns."""
    for first in tl.range(program.to(tl.int64) * WIDTH, size, programs * WIDTH):
        column = first + tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], tl.float32)
        for top in tl.range(0, parts, ROWS):
            row = top + tl.arange(0, ROWS)
            mask = (row < parts)[:, None] & (column < size)[None, :]
            total += tl.sum(tl.load(part + row[:, None].to(tl.int64) * stride + column[None, :], mask=mask, other=0.0), 0)
        tl.store(out + column, total.to(out.dtype.element_ty), mask=column < size)


@triton.jit
def _take(total, out, size, program, programs, WIDTH: tl.constexpr):
    """out = total, and total = 0 for the next pass; the programs share the columns."""
    for first in tl.range(program * WIDTH, size, programs * WIDTH):
        column = first + tl.arange(0, WIDTH)
        value = tl.load(total + column, mask=column < size, other=0.0, cache_modifier=".cg")
        tl.store(out + column, value.to(out.dtype.element_ty), mask=column < size)
        tl.store(total + column, tl.zeros([WIDTH], tl.float32), mask=column < size)


@triton.jit(do_not_specialize=["parts", "size"])
def sum_partials(part, out, parts, size, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The second launch: partial results of a first one, summed in a fixed order."""
    _sum_in_order(part, out, parts, size, stride, tl.program_id(0), tl.num_programs(0), ROWS, WIDTH)


@triton.jit
def _wait_for_all(counter, programs):
    """Waits until every program has come this far."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel") + 1
    while arrived < programs:
        arrived = tl.atomic_add(counter, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _leave(counter, programs):
    """The last program to leave sets the counter back to zero."""
    if tl.atomic_add(counter, 1, sem="relaxed") == 2 * programs - 1:
        tl.atomic_xchg(counter, 0, sem="relaxed")


@triton.jit
def _leave_dx(tile, dx, dx_sum, dx_add, at, inside, first_m, first_k, slice_n, size, DX: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """A tile of dX to its place, to the sum over the slices of N, or to its slice's layer."""
    if DX == "store" and DESCRIPTORS:
        dx.store([first_m, first_k], tile.to(dx.dtype))
    elif DX == "store":
        tl.store(dx + at, tile.to(dx.dtype.element_ty), mask=inside)
    elif DX == "atomic" and DESCRIPTORS:
        dx_add.atomic_add([first_m, first_k], tile)
    elif DX == "atomic":
        tl.atomic_add(dx_sum + at, tile, mask=inside, sem="relaxed")
    else:
        tl.store(dx_sum + slice_n.to(tl.int64) * size + at, tile, mask=inside)


@triton.jit
def _leave_dw(dw, db, part, n, k, group, slice_k, N, K, row_of_part, BIAS: tl.constexpr, ADD_DW: tl.constexpr):
    """A slice of dW, and of the bias gradient behind it, to the sum over all groups or to its group's row."""
    at, inside = n[:, None] * K + k[None, :], (n < N)[:, None] & (k < K)[None, :]
    if ADD_DW:
        tl.atomic_add(part + at, dw, mask=inside, sem="relaxed")
        if BIAS and slice_k == 0:
            tl.atomic_add(part + N * K + n, db, mask=n < N, sem="relaxed")
    else:
        to = part + group.to(tl.int64) * row_of_part
        tl.store(to + at, dw, mask=inside)
        if BIAS and slice_k == 0:
            tl.store(to + N * K + n, db, mask=n < N)


@triton.jit
def _finish(
    part, out, dx_sum, dx, size, size_of_dx, groups, slices_n, row_of_part,
    DX: tl.constexpr, ADD_DW: tl.constexpr, SUM_ROWS: tl.constexpr, SUM_WIDTH: tl.constexpr,
):  # fmt: skip
    """Behind the barrier: what the programs left is added up and converted, a share by each of them."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if ADD_DW:
        _take(part, out, size, program, programs, SUM_WIDTH)
    else:
        _sum_in_order(part, out, groups, size, row_of_part, program, programs, SUM_ROWS, SUM_WIDTH)
    if DX == "atomic":
        _sum_in_order(dx_sum, dx, 1, size_of_dx, 0, program, programs, 1, 2048)
    if DX == "partial":
        _sum_in_order(dx_sum, dx, slices_n, size_of_dx, size_of_dx, program, programs, 8, 1024)


@triton.jit(do_not_specialize=["tiles", "tiles_of_item", "groups", "slices_n", "slices_k", "size_of_dx"])
def gradient_pass(
    dy, x, w, dx, dx_sum, dx_add, part, out, counter,
    M, N, K, tiles, tiles_of_item, groups, slices_n, slices_k, size_of_dx, row_of_part,
    dy_b, dy_m, dy_n, x_b, x_m, x_k, w_n, w_k, dx_b, dx_m, dx_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EDGE_N: tl.constexpr, EDGE_K: tl.constexpr, WIDE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DX: tl.constexpr, BIAS: tl.constexpr, BARRIER: tl.constexpr, PRECISION: tl.constexpr,
    SUM_ROWS: tl.constexpr, SUM_WIDTH: tl.constexpr, ALIGN: tl.constexpr, TRANSPOSED: tl.constexpr, ADD_DW: tl.constexpr,
):  # fmt: skip
    """Grid: groups * slices_n * slices_k programs; a group walks over tiles group, group + groups, ... of M.

    DX: "store" (one slice of N), "atomic" (into the zeroed dx_sum), "partial" (one layer of dx_sum for each slice), "none".
    """
    if ALIGN > 1:  # images: their positions are contiguous, and rows of positions begin at multiples of ALIGN
        M, dy_n, x_k, dx_k = M // ALIGN * ALIGN, dy_n // ALIGN * ALIGN, x_k // ALIGN * ALIGN, dx_k // ALIGN * ALIGN
        dy_b, x_b, dx_b = dy_b // ALIGN * ALIGN, x_b // ALIGN * ALIGN, dx_b // ALIGN * ALIGN  # no change: it lets the compiler know
    program = tl.program_id(0)
    slice_n = program // slices_k % slices_n
    group = program // (slices_k * slices_n)
    slice_k = program % slices_k
    first_n, first_k = slice_n * BLOCK_N, slice_k * BLOCK_K
    n, k = first_n + tl.arange(0, BLOCK_N), first_k + tl.arange(0, BLOCK_K)
    n_at, k_at = n, k
    if WIDE:
        n_at, k_at = n.to(tl.int64), k.to(tl.int64)
    if DESCRIPTORS:
        w_tile = w.load([first_n, first_k])
    else:
        w_tile = _tile(w, n_at, k_at, N, K, w_n, w_k, EDGE_N, EDGE_K)
    if TRANSPOSED:
        w_tile = tl.trans(w_tile)
        dw = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    else:
        dw = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    db = 0
    if BIAS:
        db = tl.zeros([BLOCK_N, 16], tl.float32)
    for tile in tl.range(group, tiles, groups, num_stages=STAGES):
        item, first_m = tile // tiles_of_item, tile % tiles_of_item * BLOCK_M
        m = first_m + tl.arange(0, BLOCK_M)
        if WIDE:
            item, m = item.to(tl.int64), m.to(tl.int64)
        if DESCRIPTORS:
            dy_tile = dy.load([first_m, first_n])
            x_tile = x.load([first_m, first_k])
        else:
            dy_tile = _tile(dy + item * dy_b, m, n_at, M, N, dy_m, dy_n, True, EDGE_N)
            x_tile = _tile(x + item * x_b, m, k_at, M, K, x_m, x_k, True, EDGE_K)
        transposed = tl.trans(dy_tile)
        if TRANSPOSED:
            if DX != "none":
                dx_tile = tl.trans(tl.dot(w_tile, transposed, input_precision=PRECISION))
            dw = tl.dot(tl.trans(x_tile), dy_tile, dw, input_precision=PRECISION)
        else:
            if DX != "none":
                dx_tile = tl.dot(dy_tile, w_tile, input_precision=PRECISION)
            dw = tl.dot(transposed, x_tile, dw, input_precision=PRECISION)
        if BIAS:
            ones = tl.where(tl.arange(0, 16)[None, :] + tl.zeros([BLOCK_M, 16], tl.int32) == 0, 1.0, 0.0)
            db = tl.dot(transposed, ones.to(transposed.dtype), db, input_precision=PRECISION)
        if DX != "none":
            at, inside = item * dx_b + m[:, None] * dx_m + k_at[None, :] * dx_k, (m < M)[:, None] & (k < K)[None, :]
            _leave_dx(dx_tile, dx, dx_sum, dx_add, at, inside, first_m, first_k, slice_n, size_of_dx, DX, DESCRIPTORS)
    if TRANSPOSED:
        dw = tl.trans(dw)
    if BIAS:
        db = tl.sum(db, 1)
    _leave_dw(dw, db, part, n, k, group, slice_k, N, K, row_of_part, BIAS, ADD_DW)
    if BARRIER:
        _wait_for_all(counter, tl.num_programs(0))
        size = N * K
        if BIAS:
            size += N
        _finish(part, out, dx_sum, dx, size, size_of_dx, groups, slices_n, row_of_part, DX, ADD_DW, SUM_ROWS, SUM_WIDTH)
        _leave(counter, tl.num_programs(0))
