"""torchvision's ops in plain torch, against loops over single boxes, bins and samples."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from coverage_cases.torchvision_ops import nms, roi_align, roi_align_backward  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.oracle


def intersection_over_union(one: list[float], other: list[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    overlap = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return overlap / (sum(areas) - overlap)


@given(seed=st.integers(0, 10**6), count=st.integers(0, 30), threshold=st.floats(0.1, 0.9))
def test_boxes_are_kept_by_falling_score_unless_a_kept_one_overlaps(seed: int, count: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 10
    boxes = torch.cat([corners, corners + 1 + torch.rand(count, 2, generator=generator, dtype=torch.float64) * 8], dim=1)
    scores = torch.rand(count, generator=generator, dtype=torch.float64)
    expected: list[int] = []
    for box in sorted(range(count), key=lambda number: -scores[number].item()):
        if all(intersection_over_union(boxes[kept].tolist(), boxes[box].tolist()) <= threshold for kept in expected):
            expected.append(box)
    assert nms(boxes, scores, threshold).tolist() == expected


def bilinear(plane: torch.Tensor, y: float, x: float) -> float:
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = plane[top, left].item() * (1 - (x - left)) + plane[top, right].item() * (x - left)
    lower = plane[bottom, left].item() * (1 - (x - left)) + plane[bottom, right].item() * (x - left)
    return upper * (1 - (y - top)) + lower * (y - top)


def pooled(
    features: torch.Tensor, roi: list[float], scale: float, bins: tuple[int, int], ratio: int, aligned: bool
) -> torch.Tensor:
    """One region, bin by bin, sample by sample."""
    shift = 0.5 if aligned else 0.0
    left, top, right, bottom = (edge * scale - shift for edge in roi[1:])
    height, width = bottom - top, right - left
    if not aligned:
        height, width = max(height, 1.0), max(width, 1.0)
    samples = [ratio if ratio > 0 else max(math.ceil(size / count), 1) for size, count in zip((height, width), bins, strict=True)]
    output = torch.zeros(features.shape[1], *bins, dtype=features.dtype)
    for channel, plane in enumerate(features[int(roi[0])]):
        for row in range(bins[0]):
            for column in range(bins[1]):
                values = [
                    bilinear(
                        plane,
                        top + (row + (i + 0.5) / samples[0]) * height / bins[0],
                        left + (column + (j + 0.5) / samples[1]) * width / bins[1],
                    )
                    for i in range(samples[0])
                    for j in range(samples[1])
                ]
                output[channel, row, column] = sum(values) / len(values)
    return output


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [2, -1])
def test_regions_are_means_of_bilinear_samples_with_their_gradient(aligned: bool, ratio: int) -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 2, 7, 9, dtype=torch.float64)
    corners = torch.rand(6, 2, dtype=torch.float64) * 16 - 4
    boxes = torch.cat([corners, corners + torch.rand(6, 2, dtype=torch.float64) * 20], dim=1)
    rois = torch.cat([torch.tensor([[0.0], [1], [1], [0], [1], [0]], dtype=torch.float64), boxes], dim=1)
    ours = roi_align(features, rois, 0.5, 3, 2, ratio, aligned)
    oracle = torch.stack([pooled(features, roi, 0.5, (3, 2), ratio, aligned) for roi in rois.tolist()])
    torch.testing.assert_close(ours, oracle)
    direction, gradient = torch.randn_like(features), torch.randn_like(ours)
    back = roi_align_backward(gradient, rois, 0.5, 3, 2, 2, 2, 7, 9, ratio, aligned)
    torch.testing.assert_close((roi_align(direction, rois, 0.5, 3, 2, ratio, aligned) * gradient).sum(), (back * direction).sum())
