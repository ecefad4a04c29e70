"""torchvision's ops in plain torch, for a torchvision whose compiled extension does not load (a CUDA wheel beside a CPU torch).

`provide()` before `import torchvision` (or timm, or a vision model of transformers). Where the extension loads it does nothing.
`nms`, `roi_align` and the gradient of `roi_align` compute values; the other ops have their signatures only, so that the shape and
gradient rules of torchvision can be registered.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_POOL = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_GRAD = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, "
    "SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_POOL_SAMPLED = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio"
_QUANTIZED = "float input_scale, int input_zero_point, float rois_scale, int rois_zero_point"

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align(Tensor input, {_POOL_SAMPLED}, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_POOL}, {_GRAD}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align(Tensor input, Tensor rois, {_QUANTIZED}, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_POOL}) -> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    f"{_GRAD}) -> Tensor",
    f"ps_roi_align(Tensor input, {_POOL_SAMPLED}) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height, "
    f"SymInt pooled_width, int sampling_ratio, {_GRAD}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_POOL}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height, "
    f"SymInt pooled_width, {_GRAD}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
)
"""The signatures of torchvision's extension, as its Python files call them."""

ROIS_AT_ONCE = 64  # regions pooled by one product: bounds the memory of an intermediate

_libraries: list[Any] = []  # what is defined lives as long as its library


def provide() -> bool:
    """Make `import torchvision` work; whether the ops of this file stand in for those of the extension."""
    if "torchvision" in sys.modules:
        return bool(_libraries)
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None or _loads(Path(package.origin).parent):
        return False
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    for name, function in (("nms", nms), ("roi_align", roi_align), ("_roi_align_backward", roi_align_backward)):
        library.impl(name, function, "CPU")
    library.impl("_cuda_version", lambda: -1, "CompositeImplicitAutograd")
    _libraries.append(library)
    with _extension_taken_as_loaded():
        import torchvision  # noqa: F401  # registers its shape and gradient rules for the ops above
    return True


def _loads(folder: Path) -> bool:
    """Whether torchvision's extension in a folder loads into this process (and now is loaded)."""
    paths = [folder / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES]
    for path in paths:
        if path.exists():
            try:
                torch.ops.load_library(str(path))
            except OSError:
                return False
            return True
    return False


@contextmanager
def _extension_taken_as_loaded() -> Iterator[None]:
    load = torch.ops.load_library

    def load_others(path: Any) -> None:
        if Path(path).name.partition(".")[0] != "_C":
            load(path)

    torch.ops.load_library = load_others  # type: ignore[method-assign]
    try:
        yield
    finally:
        del torch.ops.load_library


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes (x1, y1, x2, y2) that no box of a higher score overlaps by more than the threshold, by falling score."""
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(order), dtype=torch.bool)
    for first in range(len(order)):
        if not alive[first]:
            continue
        rest = slice(first + 1, None)
        sides = torch.minimum(boxes[first, 2:], boxes[rest, 2:]) - torch.maximum(boxes[first, :2], boxes[rest, :2])
        overlap = sides.clamp(min=0).prod(1)
        alive[rest] &= overlap <= iou_threshold * (areas[first] + areas[rest] - overlap)
    return order[alive]


def roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int, aligned: bool
) -> Tensor:
    """The mean of bilinear samples in each bin of each region: one matrix of weights for the rows, one for the columns."""
    output = input.new_empty(len(rois), input.shape[1], pooled_height, pooled_width)
    for index, image, rows, columns in _groups(rois, input.shape[2:], (pooled_height, pooled_width), spatial_scale,
                                               sampling_ratio, aligned):  # fmt: skip
        output[index] = torch.einsum("kph,chw,kqw->kcpq", rows, input[image], columns)
    return output


def roi_align_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, batch_size: int, channels: int,
    height: int, width: int, sampling_ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    """The gradient with respect to the feature maps: the transposed weights of `roi_align`."""
    result = grad.new_zeros(batch_size, channels, height, width)
    for index, image, rows, columns in _groups(rois, (height, width), (pooled_height, pooled_width), spatial_scale,
                                               sampling_ratio, aligned):  # fmt: skip
        result[image] += torch.einsum("kph,kcpq,kqw->chw", rows, grad[index], columns)
    return result


def _groups(
    rois: Tensor, size: Any, pooled: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> Iterator[tuple[Tensor, int, Tensor, Tensor]]:
    """Regions of one image at a time: their indices, the image, the weights of its rows and of its columns."""
    for image in rois[:, 0].long().unique().tolist():
        for index in (rois[:, 0].long() == image).nonzero()[:, 0].split(ROIS_AT_ONCE):
            corners = rois[index, 1:] * scale - (0.5 if aligned else 0.0)
            weights = [
                torch.stack([_axis_weights(low, high, pooled[axis], int(size[axis]), ratio, aligned) for low, high in sides])
                for axis, sides in ((0, corners[:, [1, 3]].tolist()), (1, corners[:, [0, 2]].tolist()))
            ]
            yield index, int(image), weights[0].to(rois.dtype), weights[1].to(rois.dtype)


def _axis_weights(low: float, high: float, bins: int, size: int, ratio: int, aligned: bool) -> Tensor:
    """(bins, size): how much each line of a feature map counts in each bin of a region from low to high."""
    length = high - low if aligned else max(high - low, 1.0)
    samples = ratio if ratio > 0 else max(int(-(-length // bins)), 1)
    points = low + (torch.arange(bins * samples, dtype=torch.float64) + 0.5) * (length / (bins * samples))
    inside = (points >= -1.0) & (points <= size)
    points = points.clamp(0, size - 1)
    below = points.floor().long()
    above = (below + 1).clamp(max=size - 1)
    weights = torch.zeros(bins * samples, size, dtype=torch.float64)
    weights.scatter_add_(1, below[:, None], ((1 - (points - below)) * inside)[:, None])
    weights.scatter_add_(1, above[:, None], ((points - below) * inside)[:, None])
    return weights.view(bins, samples, size).mean(1)
