"""How the operands and results of one op lie in memory, compared with each other.

torch's element-wise kernels load several neighbouring elements at once where all tensors lie alike. Where they do not, as in the
sum of a transposed view and a new tensor, a kernel computes the address of every element; and where even the innermost dimension
differs, neighbouring threads read from places far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainyard.ir import Copy, ElementWise, Layout, Reduction
from trainyard.ir.ops import Body

ROWS = ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward")
"""Reductions that copy an operand that does not lie in the order of its dimensions."""


def layout_of(body: Body, inputs: Sequence[Any], outputs: Sequence[Any]) -> Layout:
    """Whether the tensors that are as large as the result lie alike; of products and other reductions, nothing is said.

    >>> import torch
    >>> x = torch.empty(4, 8, 16)
    >>> body = ElementWise("add", x.numel())
    >>> layout_of(body, (x, x), (x,)), layout_of(body, (x.transpose(0, 1).contiguous().transpose(0, 1), x), (x,))
    (<Layout.SAME: 'same'>, <Layout.MIXED: 'mixed'>)
    >>> layout_of(body, (x, x.transpose(1, 2).contiguous().transpose(1, 2)), (x,))
    <Layout.TRANSPOSED: 'transposed'>
    """
    if not (isinstance(body, ElementWise | Copy) or (isinstance(body, Reduction) and body.function in ROWS)):
        return Layout.SAME
    tensors = [tensor for tensor in (*inputs, *outputs) if isinstance(tensor, Tensor)]
    if isinstance(body, Copy) and body.function == "cat":
        scattered = [tensor for tensor in tensors if not tensor.is_contiguous()]
        if not scattered:
            return Layout.SAME
        return Layout.TRANSPOSED if len({_innermost(tensor) for tensor in tensors}) > 1 else Layout.MIXED
    largest = max((tensor.numel() for tensor in tensors), default=0)
    whole = [tensor for tensor in tensors if tensor.numel() == largest and 0 not in _strides(tensor)]  # not expanded ones
    if len({tensor.shape for tensor in whole}) > 1:
        return Layout.SAME  # a copy into another shape: the recorder has its view
    if len({_strides(tensor) for tensor in whole}) <= 1:
        return Layout.SAME
    return Layout.TRANSPOSED if len({_innermost(tensor) for tensor in whole}) > 1 else Layout.MIXED


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _innermost(tensor: Tensor) -> tuple[int, int]:
    """The dimension whose elements lie the closest, with its stride; the last one of several."""
    strides = [
        (stride, -dimension) for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if size > 1
    ]
    stride, dimension = min(strides, default=(1, 0))
    return -dimension, stride
