"""Handlers of everything that multiplies: matrix products, convolutions; fused attention is in `attention`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainyard.ir import Convolution, MatMul, Phase, Reduction, Routing
from trainyard.ir.routing import Axis
from trainyard.workloads.capture.attention.handlers import ATTENTION
from trainyard.workloads.capture.ops.registry import Call, Handler, OnChip, Piece


def _matrix_product(first: int) -> Handler:
    """(M,K) x (K,N), the operands at positions `first` and `first` + 1; tensors before them are added to the product."""

    def handler(call: Call) -> Piece:
        a, b = call.args[first], call.args[first + 1]
        added = [t for t in call.args[:first] if isinstance(t, Tensor)]
        if a.dim() == 3:
            body = MatMul(a.shape[1], b.shape[2], a.shape[2], count=a.shape[0])
        else:
            body = MatMul(a.shape[0], b.shape[1] if b.dim() == 2 else 1, a.shape[1])
        return Piece(body, inputs=(a, b, *added))

    return handler


def _scaled(call: Call) -> Piece:
    """A product of fp8 or fp4 operands with their scales; two fp4 numbers are one element."""
    a, b = call.args[:2]
    packed = 2 if "float4" in str(a.dtype) else 1
    rest = tuple(t for t in call.inputs if t is not a and t is not b)
    return Piece(MatMul(a.shape[0], b.shape[1], a.shape[1] * packed), inputs=(a, b, *rest))


def _packed_weight(call: Call) -> Piece:
    """A product with a weight of 8 or 4 bits, packed for the kernel, and its scales: the widths are those of input and output."""
    a, weight = call.args[:2]
    rest = tuple(t for t in call.inputs if t is not a and t is not weight)
    rows = a.numel() // a.shape[-1]
    return Piece(MatMul(rows, call.outputs[0].shape[-1], a.shape[-1]), inputs=(a, weight, *rest))


def _time_batch_channels(call: Call) -> Piece:
    """`conv_tbc`: a window of rows is multiplied by (kernel x channels, outputs)."""
    x, weight, bias = call.args[:3]
    kernel, channels, outputs = weight.shape
    return Piece(MatMul(call.outputs[0].numel() // outputs, outputs, kernel * channels), inputs=(x, weight, bias))


def _dot(call: Call) -> Piece:
    a, b = call.args[:2]
    return Piece(MatMul(1, 1, a.numel()), inputs=(a, b))


def _summed_batches(call: Call) -> Piece:
    added, a, b = call.args[:3]
    return Piece(MatMul(a.shape[1], b.shape[2], a.shape[0] * a.shape[2]), inputs=(a, b, added))


def _grouped(call: Call) -> Piece:
    """Mixture of experts: rows, columns or sums of a 2-d operand belong to groups in turn (`ir.routing`: evenly)."""
    a, b = call.args[:2]
    if a.dim() == 3 and b.dim() == 3:
        return Piece(MatMul(a.shape[1], b.shape[2], a.shape[2], count=a.shape[0]), inputs=(a, b))
    axis: Axis = "N" if a.dim() == 3 else "M" if b.dim() == 3 else "K"
    rows = a.shape[0] if axis == "M" else b.shape[1] if axis == "N" else a.shape[1]
    groups = a.shape[0] if axis == "N" else b.shape[0] if axis == "M" else call.outputs[0].shape[0]
    return Piece(MatMul(a.shape[-2], b.shape[-1], a.shape[-1]), inputs=(a, b), routing=Routing(axis, rows, groups))


def _linear(call: Call) -> Piece:
    a, weight = call.args[:2]
    bias = call.argument(2, "bias")
    rows = a.numel() // a.shape[-1]
    return Piece(MatMul(rows, weight.shape[0], a.shape[-1]), inputs=(a, weight, *([] if bias is None else [bias])))


def _spread(value: Sequence[int], rank: int) -> tuple[int, ...]:
    """torch writes one number for all spatial dimensions."""
    numbers = tuple(int(v) for v in value)
    return numbers * rank if len(numbers) == 1 else numbers


def _geometry(x: Sequence[int], weight: Sequence[int], y: Sequence[int], rest: Sequence[Any]) -> Convolution:
    """The convolution between x and y; a transposed one is described by the convolution from y back to x."""
    stride, padding, dilation, transposed, output_padding, groups = rest
    rank = len(x) - 2
    steps, pads, gaps = _spread(stride, rank), _spread(padding, rank), _spread(dilation, rank)
    size, in_channels, out_channels = tuple(x[2:]), x[1], y[1]
    if transposed:
        extra = _spread(output_padding, rank)
        # Output padding of a stride or more only adds positions that no input reaches.
        size = tuple(
            full - extra_size if extra_size >= step else full for full, extra_size, step in zip(y[2:], extra, steps, strict=True)
        )
        in_channels, out_channels = y[1], x[1]
    return Convolution(
        batch=x[0], in_channels=in_channels, out_channels=out_channels, size=size, kernel=tuple(weight[2:]),
        stride=steps, padding=pads, dilation=gaps, groups=groups,
    )  # fmt: skip


def _convolution(call: Call) -> Piece:
    x, weight, bias = call.args[:3]
    transposed = call.args[6]
    geometry = _geometry(x.shape, weight.shape, call.outputs[0].shape, call.args[3:9])
    body = geometry.as_product("grad_input" if transposed else "forward")
    return Piece(body, inputs=(x, weight, *([] if bias is None else [bias])))


def _convolution_backward(call: Call) -> list[Piece]:
    """One dispatched op, up to three ops: `output_mask` has the requested gradients."""
    gradient, x, weight = call.args[:3]
    transposed = call.args[7]
    geometry = _geometry(x.shape, weight.shape, gradient.shape, call.args[4:10])
    output_mask = call.argument(10, "output_mask")
    results = iter(call.outputs)
    pieces = []
    if output_mask[0]:
        body = geometry.as_product("forward" if transposed else "grad_input")
        pieces.append(Piece(body, inputs=(gradient, weight), outputs=(next(results),)))
    if output_mask[1]:
        operands = (x, gradient) if transposed else (gradient, x)
        pieces.append(Piece(geometry.as_product("grad_weight"), inputs=operands, outputs=(next(results),)))
    if output_mask[2]:
        bias = next(results)
        pieces.append(
            Piece(Reduction("sum", gradient.numel(), bias.numel()), inputs=(gradient,), outputs=(bias,), phase=Phase.GRAD_WEIGHT)
        )
    return pieces


def _trilinear(call: Call) -> list[Piece]:
    """nn.Bilinear and its gradients: the sum of a product of three tensors, two of them first, as torch's kernel does it.

    `expand` names the dimensions that a tensor lacks. The gradient that sums over the batch is the weight's.
    """
    tensors, lacking, summed = call.args[:3], call.args[3:6], set(call.args[6])
    spaces: list[dict[int, int]] = []
    for tensor, missing in zip(tensors, lacking, strict=True):
        sizes = iter(tensor.shape)
        spaces.append({axis: next(sizes) for axis in range(tensor.dim() + len(missing)) if axis not in missing})
    first, between = _pair(spaces[0], spaces[1], summed - spaces[2].keys())
    second, _ = _pair(between, spaces[2], summed)
    between_product = OnChip(tuple(between.values()), tensors[0].dtype)
    phase = Phase.GRAD_WEIGHT if 0 in summed else Phase.GRAD_INPUT
    return [
        Piece(first, tuple(tensors[:2]), (between_product,), phase=phase, fused=True),
        Piece(second, (between_product, tensors[2]), tuple(call.outputs), phase=phase, fused=True),
    ]


def _pair(a: dict[int, int], b: dict[int, int], summed: set[int]) -> tuple[MatMul, dict[int, int]]:
    """The matrix product over the axes that both have and that are summed, and the axes (with their extents) that it leaves."""
    shared = a.keys() & b.keys()
    body = MatMul(
        M=math.prod(a[x] for x in a.keys() - shared - summed),
        N=math.prod(b[x] for x in b.keys() - shared - summed),
        K=math.prod(a[x] for x in shared & summed),
        count=math.prod(a[x] for x in shared - summed),
    )
    return body, {axis: extent for axis, extent in sorted((a | b).items()) if axis not in summed}


# fmt: off
PRODUCTS: dict[str, Handler] = {
    "mm":                    _matrix_product(0),
    "_int_mm":               _matrix_product(0),
    "_scaled_mm":            _scaled,
    "_scaled_mm_v2":         _scaled,
    "_weight_int8pack_mm":   _packed_weight,
    "_weight_int4pack_mm":   _packed_weight,
    "_weight_int4pack_mm_for_cpu":               _packed_weight,
    "_weight_int4pack_mm_with_scales_and_zeros": _packed_weight,
    "_dyn_quant_matmul_4bit":                    _packed_weight,
    "_mixed_dtypes_linear":  _packed_weight,
    "conv_tbc":              _time_batch_channels,
    "_grouped_mm":           _grouped,
    "_scaled_grouped_mm":    _grouped,
    "_scaled_grouped_mm_v2": _grouped,
    "bmm":                   _matrix_product(0),
    "mv":                    _matrix_product(0),
    "addmm":                 _matrix_product(1),
    "addmm_":                _matrix_product(1),
    "_addmm_activation":     _matrix_product(1),
    "baddbmm":               _matrix_product(1),
    "baddbmm_":              _matrix_product(1),
    "addmv":                 _matrix_product(1),
    "addmv_":                _matrix_product(1),
    "addbmm":                _summed_batches,
    "addbmm_":               _summed_batches,
    "dot":                   _dot,
    "vdot":                  _dot,
    "linear":                _linear,
    "_trilinear":            _trilinear,
    "convolution":           _convolution,
    "_convolution":          _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward":  _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    **ATTENTION,
}
# fmt: on
