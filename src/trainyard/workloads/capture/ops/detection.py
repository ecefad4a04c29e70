"""Handlers of torchvision's own ops: what detectors do with boxes and regions."""

from __future__ import annotations

import math

from trainyard.ir import ElementWise, MatMul, Phase, Reduction
from trainyard.workloads.capture.ops.registry import Call, Handler, HandlerResult, OnChip, Piece

OVERLAP_OPERATIONS = 12  # intersection and union of two boxes, and their ratio
BILINEAR_OPERATIONS = 8  # four weights times four neighbours, summed
ADAPTIVE_SAMPLES = 2  # samples along each side of a bin, where the region decides (its side over the bins, rounded up)


def _suppression(call: Call) -> HandlerResult:
    """Non-maximum suppression compares each box with those that score lower."""
    boxes = call.args[0].shape[0]
    return ElementWise("nms", max(1, boxes * (boxes - 1) // 2), OVERLAP_OPERATIONS)


def _region_samples(position: int) -> Handler:
    """Each element of a region's result is the mean of bilinear samples; `position` is that of the sampling ratio."""

    def handler(call: Call) -> HandlerResult:
        ratio = call.argument(position, "sampling_ratio", -1)
        samples = (ratio if ratio > 0 else ADAPTIVE_SAMPLES) ** 2
        elements = max(call.outputs[0].numel() if "backward" not in call.name else call.args[0].numel(), 1)
        return ElementWise(call.name.rpartition(".")[2].strip("_"), elements, BILINEAR_OPERATIONS * samples)

    return handler


def _region_maximum(call: Call) -> HandlerResult:
    results = max(1, call.outputs[0].numel())
    return Reduction(call.name.rpartition(".")[2].strip("_"), max(results, call.args[0].numel()), results)


def _deformed(call: Call) -> list[Piece]:
    """Samples at shifted positions become the columns of a matrix product; they are written in between."""
    x, weight, offset, mask, bias = call.args[:5]
    out = call.outputs[0]
    rows, depth = out.shape[0] * out.shape[2] * out.shape[3], math.prod(weight.shape[1:])
    groups = max(1, x.shape[1] // weight.shape[1])
    columns = OnChip((rows, depth * groups), x.dtype)
    sampling = ElementWise("deformed_columns", rows * depth * groups, BILINEAR_OPERATIONS)
    return [
        Piece(sampling, (x, offset, mask), (columns,), fused=True),
        Piece(MatMul(rows, weight.shape[0] // groups, depth, count=groups), (columns, weight, bias), (out,), fused=True),
    ]


def _deformed_backward(call: Call) -> list[Piece]:
    gradient, x, weight = call.args[:3]
    rows, depth = gradient.shape[0] * gradient.shape[2] * gradient.shape[3], math.prod(weight.shape[1:])
    groups = max(1, x.shape[1] // weight.shape[1])
    columns, d_columns = (OnChip((rows, depth * groups), x.dtype) for _ in range(2))
    d_x, d_weight, *rest = call.outputs
    sampling = ElementWise("deformed_columns", rows * depth * groups, BILINEAR_OPERATIONS)
    scattering = ElementWise("deformed_gradient", rows * depth * groups, 2 * BILINEAR_OPERATIONS)
    inner, per_group = Phase.GRAD_INPUT, weight.shape[0] // groups
    return [
        Piece(MatMul(rows, depth, per_group, count=groups), (gradient, weight), (d_columns,), inner, fused=True),
        Piece(scattering, (d_columns, *call.args[3:5]), (d_x, *rest), inner, fused=True),
        Piece(sampling, (x, *call.args[3:5]), (columns,), Phase.GRAD_WEIGHT, fused=True),
        Piece(MatMul(per_group, depth, rows, count=groups), (gradient, columns), (d_weight,), Phase.GRAD_WEIGHT, fused=True),
    ]


# fmt: off
DETECTION: dict[str, Handler] = {
    "nms":                     _suppression,
    "roi_align":               _region_samples(5),
    "_roi_align_backward":     _region_samples(9),
    "ps_roi_align":            _region_samples(5),
    "_ps_roi_align_backward":  _region_samples(6),
    "roi_pool":                _region_maximum,
    "_roi_pool_backward":      _region_maximum,
    "ps_roi_pool":             _region_maximum,
    "_ps_roi_pool_backward":   _region_maximum,
    "deform_conv2d":           _deformed,
    "_deform_conv2d_backward": _deformed_backward,
}
# fmt: on
