"""Geometry of region-based detectors with static shapes: anchors, box coding, overlap, RoIAlign.

Boxes are [batch, box, 4]: left, top, right, bottom in pixels. Nothing here depends on the data except through
arithmetic, so that a detector's training step has the same operations for every image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

LARGEST_GROWTH = math.log(1000 / 16)  # bound of a box's logarithmic growth, so that exp never overflows
SAMPLES = 2  # RoIAlign: sampling points per bin and axis (Mask R-CNN, Sec. 3: four points per bin)


def anchor_grid(height: int, width: int, stride: int, sizes: tuple[int, ...], ratios: tuple[float, ...]) -> Tensor:
    """[height * width * anchors, 4]: at each cell one anchor per size and ratio (height over width)."""
    shapes = [(size / math.sqrt(ratio), size * math.sqrt(ratio)) for size in sizes for ratio in ratios]
    half = torch.tensor([(-w / 2, -h / 2, w / 2, h / 2) for w, h in shapes])
    y, x = torch.meshgrid(torch.arange(height) * stride, torch.arange(width) * stride, indexing="ij")
    corner = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4) + stride / 2
    return (corner + half).reshape(-1, 4)


def centre_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    start, end = boxes[..., :2], boxes[..., 2:]
    size = (end - start).clamp(min=1.0)
    return start + size / 2, size


def encode(boxes: Tensor, references: Tensor) -> Tensor:
    """Shift and logarithmic growth that turn `references` into `boxes` (Faster R-CNN, Eq. 2)."""
    centre, size = centre_and_size(boxes)
    origin, scale = centre_and_size(references)
    return torch.cat([(centre - origin) / scale, torch.log(size / scale)], dim=-1)


def decode(deltas: Tensor, references: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `encode`, clipped to the image."""
    origin, scale = centre_and_size(references)
    centre = origin + deltas[..., :2] * scale
    size = scale * torch.exp(deltas[..., 2:].clamp(max=LARGEST_GROWTH))
    start, end = centre - size / 2, centre + size / 2
    x = torch.stack([start[..., 0], end[..., 0]], dim=-1).clamp(0, width)
    y = torch.stack([start[..., 1], end[..., 1]], dim=-1).clamp(0, height)
    return torch.stack([x, y], dim=-1).flatten(-2)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of every pair: [batch, n, 4] and [batch, m, 4] give [batch, n, m]."""
    start = torch.maximum(boxes[..., None, :2], others[..., None, :, :2])
    end = torch.minimum(boxes[..., None, 2:], others[..., None, :, 2:])
    intersection = (end - start).clamp(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)[..., :, None]
    other_area = (others[..., 2:] - others[..., :2]).prod(-1)[..., None, :]
    return intersection / (area + other_area - intersection).clamp(min=1e-6)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows [batch, n, width] at index [batch, k]: [batch, k, width]."""
    return rows.gather(1, index.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def sampling_points(regions: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Where a grid of bins x bins samples each region: x and y in pixels, both [batch, region, bins]."""
    fraction = (torch.arange(bins, device=regions.device) + 0.5) / bins
    start, extent = regions[..., :2], regions[..., 2:] - regions[..., :2]
    points = start.unsqueeze(-1) + extent.unsqueeze(-1) * fraction
    return points[..., 0, :], points[..., 1, :]


def grid(x: Tensor, y: Tensor) -> Tensor:
    """All pairs of [batch, region, n] coordinates, regions below one another: [batch, region * n, n, 2]."""
    shape = (*x.shape, x.shape[-1])
    return torch.stack([x.unsqueeze(-2).expand(shape), y.unsqueeze(-1).expand(shape)], dim=-1).flatten(1, 2)


def roi_align(maps: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear samples of `maps` averaged per bin (Mask R-CNN, Sec. 3): [batch * region, channel, bin, bin].

    `x`, `y` [batch, region, bins * SAMPLES] are in cells of `maps`, 0 at the centre of the first one.
    """
    height, width = maps.shape[-2:]
    points = grid(x * (2 / (width - 1)) - 1, y * (2 / (height - 1)) - 1)
    sampled = functional.grid_sample(maps, points, mode="bilinear", padding_mode="border", align_corners=True)
    pooled = functional.avg_pool2d(sampled, SAMPLES)
    return torch.unflatten(pooled, 2, (x.shape[1], -1)).transpose(1, 2).flatten(0, 1)


def align_on(maps: Tensor, regions: Tensor, bins: int, stride: int) -> Tensor:
    """RoIAlign on one map of the given stride."""
    height, width = maps.shape[-2:]
    x, y = sampling_points(regions, bins * SAMPLES)
    return roi_align(maps, (x / stride - 0.5).clamp(0, width - 1), (y / stride - 0.5).clamp(0, height - 1))


def align_on_pyramid(pyramid: list[Tensor], regions: Tensor, bins: int) -> Tensor:
    """RoIAlign where each region reads the one level of its size (FPN, Eq. 1), levels P2 to P5 with strides 4 to 32.

    The level depends on the data; so that shapes do not, the levels are laid out on one canvas, P2 on the left, the
    others below one another on its right, and the level only moves the sampling points.
    """
    finest, *coarse = pyramid
    height, width = finest.shape[-2:]
    column = torch.cat([functional.pad(level, (0, width // 2 - level.shape[-1])) for level in coarse], dim=2)
    canvas = torch.cat([finest, functional.pad(column, (0, 0, 0, height - column.shape[2]))], dim=3)

    side = (regions[..., 2:] - regions[..., :2]).prod(-1).clamp(min=1.0).sqrt()
    level = torch.floor(4 + torch.log2(side / 224)).clamp(2, 5).unsqueeze(-1)
    shrink = torch.exp2(2 - level)  # width of the level over that of P2
    left = torch.where(level > 2, width, 0)
    top = (height * (1 - 2 * shrink)).clamp(min=0)  # P3 at 0, P4 below it at height / 2, P5 at height * 3 / 4
    x, y = sampling_points(regions, bins * SAMPLES)
    inside_x = torch.minimum((x * shrink / 4 - 0.5).clamp(min=0), width * shrink - 1)
    inside_y = torch.minimum((y * shrink / 4 - 0.5).clamp(min=0), height * shrink - 1)
    return roi_align(canvas, left + inside_x, top + inside_y)
