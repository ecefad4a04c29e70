"""The two gradients of a matrix product in plain PyTorch: in one pass over dY, and as the pair of products that libraries compute.

Y = X W^T as nn.Linear has it: X (M, K), W (N, K), Y (M, N). Backward owes dX = dY W, dW = dY^T X and db = the sum of dY's rows.
`one_pass` is what the fused kernel does, step by step on any device: a block of dY's rows is read, and gives its rows of dX, its
share of dW and its share of db before the next block is read. Sums of 16-bit numbers are kept in fp32 until the end; blocks come
in one order, so the results are the same in every run. `pair` is what it is compared with: dX whole, then dW whole.

Pointwise (1x1) convolutions have dY (B, N, P) and X (B, K, P), P positions in each of B samples; dX is (B, K, P).
J. Kim et al.: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for DNN Training. MICRO 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ELEMENTS = (
    1 << 18
)  # of dY: 1 MiB in fp32. assumed: about a core's second-level cache, large enough for a product to run at speed


def one_pass(
    dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool, block_elements: int = BLOCK_ELEMENTS
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dX, dW and, if `bias`, db; dY is read once, block by block.

    >>> dy, x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([[7.0, 8.0]])
    >>> dx, dw, db = one_pass(dy, x, w, bias=True, block_elements=1)
    >>> dx.tolist(), dw.tolist(), db.tolist()
    ([[7.0, 8.0], [14.0, 16.0]], [[13.0, 16.0]], [3.0])
    """
    wide = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    outputs, size = len(weight), weight.numel()
    dw_db = torch.zeros(size + (outputs if bias else 0), dtype=wide, device=weight.device)  # in one piece, as the kernel has them
    dweight, dbias = dw_db[:size].view(weight.shape), dw_db[size:]
    weight_wide = weight.to(wide)
    for block in _blocks(dy, max(1, block_elements // max(1, outputs))):
        columns, dx_block = _columns(dy[block]).to(wide), dx[block]  # (N, positions)
        if dy.dim() == 2 and wide == x.dtype:
            torch.mm(columns.t(), weight_wide, out=dx_block)
        else:
            dx_block.copy_(_like(dx_block, weight_wide.t() @ columns))
        dweight.addmm_(columns, _columns(x[block]).to(wide).t())
        if bias:
            dbias += columns.sum(1)
    dw_db = dw_db.to(weight.dtype)
    return dx, dw_db[:size].view(weight.shape), dw_db[size:] if bias else None


def pair(dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same results as two library products (and a sum), each of which reads dY anew.

    >>> dy, x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([[7.0, 8.0]])
    >>> dx, dw, _ = pair(dy, x, w, bias=False)
    >>> dx.tolist(), dw.tolist()
    ([[7.0, 8.0], [14.0, 16.0]], [[13.0, 16.0]])
    """
    if dy.dim() == 2:
        return dy @ weight, dy.t() @ x, dy.sum(0) if bias else None
    return weight.t() @ dy, torch.einsum("bnp,bkp->nk", dy, x), dy.sum((0, 2)) if bias else None


def _blocks(dy: Tensor, rows: int) -> Iterator[slice]:
    """Rows of dY in blocks; of a convolution, whole samples."""
    step = rows if dy.dim() == 2 else max(1, rows // max(1, dy.shape[2]))
    return (slice(first, first + step) for first in range(0, dy.shape[0], step))


def _columns(block: Tensor) -> Tensor:
    """A block with its channels first and everything else behind: a view for rows and for a single sample."""
    return block.t() if block.dim() == 2 else block.transpose(0, 1).flatten(1)


def _like(block: Tensor, columns: Tensor) -> Tensor:
    """Columns (channels first) in the order of `block`."""
    if block.dim() == 2:
        return columns.t()
    return columns.view(block.shape[1], block.shape[0], block.shape[2]).transpose(0, 1)
