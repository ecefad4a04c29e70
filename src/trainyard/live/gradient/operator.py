"""`trainyard::gradient_pair`: dX, dW and db of a matrix product as one PyTorch operator.

torch.compile traces it by shape without a graph break; double backward uses its derivative, written in torch's own products; FLOP
counters have its formula. Operands are (M, N), (M, K) and (N, K), or, for a 1x1 convolution, (B, N, P), (B, K, P) and (N, K). dW
and db share one contiguous tensor, as the kernel sums them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from trainyard.live.gradient.reference import one_pass, pair


def gradient_pair(
    dy: Tensor, x: Tensor, weight: Tensor, bias: bool, path: str, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dX, dW and, if `bias`, db; `path` is `fused`, `reference` or `pair`."""
    # Gradients enabled in a backward pass: it is to be differentiated itself.
    differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    compute: Callable[..., tuple[Tensor, Tensor]] = _Pair.apply if differentiable else _OPERATOR
    dx, dw_db = compute(dy, x, weight, bias, path, deterministic)
    return dx, *_parted(dw_db, weight, bias)


def by_rows(tensor: Tensor) -> Tensor:
    """(M, N) as it is, (B, N, P) as (B P, N)."""
    return tensor if tensor.dim() == 2 else tensor.transpose(1, 2).flatten(0, 1)


class _Pair(torch.autograd.Function):
    """The operator with its own derivative, for double backward: the pair is linear in each of its operands."""

    @staticmethod
    def forward(
        ctx: Any, dy: Tensor, x: Tensor, weight: Tensor, bias: bool, path: str, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(dy, x, weight)
        ctx.bias = bias
        results: tuple[Tensor, Tensor] = _OPERATOR(dy, x, weight, bias, path, deterministic)
        return results

    @staticmethod
    def backward(ctx: Any, ddx: Tensor, ddboth: Tensor) -> tuple[Tensor | None, ...]:
        dy, x, weight = ctx.saved_tensors
        ddweight, ddbias = _parted(ddboth, weight, ctx.bias)
        dy_rows, x_rows, ddx_rows = by_rows(dy), by_rows(x), by_rows(ddx)
        of_dy = ddx_rows @ weight.t() + x_rows @ ddweight.t()
        of_dy = of_dy if ddbias is None else of_dy + ddbias
        of_x, of_weight = dy_rows @ ddweight, dy_rows.t() @ ddx_rows
        if dy.dim() == 3:  # a convolution's rows go back to their samples
            of_dy, of_x = (rows.view(dy.shape[0], dy.shape[2], -1).transpose(1, 2) for rows in (of_dy, of_x))
        return of_dy, of_x, of_weight, None, None, None


def _parted(dw_db: Tensor, weight: Tensor, bias: bool) -> tuple[Tensor, Tensor | None]:
    size = weight.shape[0] * weight.shape[1]
    return dw_db[:size].view(weight.shape), dw_db[size:] if bias else None


def _compute(dy: Tensor, x: Tensor, weight: Tensor, bias: bool, path: str, deterministic: bool) -> tuple[Tensor, Tensor]:
    """dX, contiguous, and dW followed by db."""
    if torch.is_autocast_enabled(dy.device.type):  # backward inside an autocast region: the operands' dtypes are settled
        with torch.autocast(dy.device.type, enabled=False):
            return _compute(dy, x, weight, bias, path, deterministic)
    dbias: Tensor | None
    if 0 in dy.shape or 0 in x.shape:
        dx, dweight, dbias = x.new_zeros(x.shape), weight.new_zeros(weight.shape), by_rows(dy).sum(0)
    elif path == "fused":
        from trainyard.live.gradient import kernels

        fused = kernels.fused if dy.dim() == 2 else kernels.fused_batched
        dx, dweight, dbias = fused(dy, x, weight, bias=bias, deterministic=deterministic)
    else:
        dx, dweight, dbias = (pair if path == "pair" else one_pass)(dy, x, weight, bias=bias)
    return dx.contiguous(), _joined(dweight, dbias) if bias and dbias is not None else dweight.flatten()


def _joined(dweight: Tensor, dbias: Tensor) -> Tensor:
    """dW and db concatenated; without a copy where they already are adjacent in memory."""
    size = dweight.numel()
    adjacent = dweight.untyped_storage().data_ptr() == dbias.untyped_storage().data_ptr() and dweight.is_contiguous()
    if adjacent and dbias.stride() == (1,) and dbias.storage_offset() == dweight.storage_offset() + size:
        return dweight.as_strided((size + len(dbias),), (1,))
    return torch.cat((dweight.flatten(), dbias))


def _shapes(dy: Tensor, x: Tensor, weight: Tensor, bias: bool, path: str, deterministic: bool) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight.shape
    return x.new_empty(x.shape), weight.new_empty(outputs * inputs + (outputs if bias else 0))


def _operations(dy_shape: Any, x_shape: Any, weight_shape: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Two products of the forward one's size, a multiplication and an addition each."""
    return 4 * int(math.prod(dy_shape)) * int(weight_shape[1])


# Defined without torch.library.custom_op, whose wrappers cost more than the dispatch itself: small layers would notice.
if not hasattr(torch.ops.trainyard, "gradient_pair"):  # a second import of this file finds it
    _LIBRARY = torch.library.Library("trainyard", "FRAGMENT")
    _LIBRARY.define(
        "gradient_pair(Tensor dy, Tensor x, Tensor weight, bool bias, str path, bool deterministic) -> (Tensor, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    _LIBRARY.impl("gradient_pair", _compute, "CompositeExplicitAutograd")
    torch.library.register_fake("trainyard::gradient_pair", _shapes, lib=_LIBRARY)
    register_flop_formula(torch.ops.trainyard.gradient_pair)(_operations)
_OPERATOR = torch.ops.trainyard.gradient_pair.default
