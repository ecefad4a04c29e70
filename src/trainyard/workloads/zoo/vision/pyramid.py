"""Feature pyramid. T.-Y. Lin et al.: Feature Pyramid Networks for Object Detection. CVPR 2017.

256 maps on every level, nearest-neighbour upsampling, a last level by pooling for the proposals only (Sec. 4.1).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.vision.regions import CLASSES

WIDTH = 256
HIDDEN = 1024  # Sec. 5.2: two fully connected layers of 1024


class FeaturePyramid(nn.Module):
    """Lateral 1 x 1 (`inner_blocks`) and output 3 x 3 convolutions (`layer_blocks`), finest level first."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in channels)
        self.layer_blocks = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        lateral = [block(level) for block, level in zip(self.inner_blocks, maps, strict=True)]
        merged = [lateral[-1]]
        for level in reversed(lateral[:-1]):
            merged.append(level + functional.interpolate(merged[-1], size=level.shape[-2:], mode="nearest"))
        outputs = [block(level) for block, level in zip(self.layer_blocks, reversed(merged), strict=True)]
        return [*outputs, functional.max_pool2d(outputs[-1], kernel_size=1, stride=2)]


class TwoLayerHead(nn.Module):
    """`fc6` and `fc7` over 7 x 7 pooled regions."""

    def __init__(self) -> None:
        super().__init__()
        self.fc6 = nn.Linear(WIDTH * 7 * 7, HIDDEN)
        self.fc7 = nn.Linear(HIDDEN, HIDDEN)
        self.relu = nn.ReLU()

    def forward(self, regions: Tensor) -> Tensor:
        hidden: Tensor = self.relu(self.fc7(self.relu(self.fc6(regions.flatten(1)))))
        return hidden


class BoxPredictor(nn.Module):
    """Class scores and a box per class."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_score = nn.Linear(HIDDEN, CLASSES)
        self.bbox_pred = nn.Linear(HIDDEN, 4 * CLASSES)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        scores: Tensor = self.cls_score(features)
        corrections: Tensor = self.bbox_pred(features)
        return scores, corrections
