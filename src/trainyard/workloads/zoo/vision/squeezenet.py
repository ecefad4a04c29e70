"""SqueezeNet 1.0. F. N. Iandola et al.: SqueezeNet: AlexNet-level accuracy with 50x fewer parameters. arXiv:1602.07360, 2016.

Table 1 without the bypasses of Sec. 6 and before pruning. The first convolution is unpadded and poolings round up,
as in torch: maps of 109, 54, 27 and 13 for 224 x 224 images (the paper's 111, 55, 27, 13 need 227 x 227).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier


class Fire(nn.Module):
    """Squeeze to few maps by 1 x 1, expand by 1 x 1 and 3 x 3 side by side (Sec. 3.2)."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, kernel_size=1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, kernel_size=1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, kernel_size=3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        squeezed = self.relu(self.squeeze(maps))
        return torch.cat([self.relu(self.expand1x1(squeezed)), self.relu(self.expand3x3(squeezed))], dim=1)


def pooling() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


class SqueezeNet(nn.Module):
    """`features.3, 4, 5, 7, 8, 9, 10, 12` are the fire modules 2 to 9, `classifier.1` is conv10."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, kernel_size=7, stride=2),
            nn.ReLU(),
            pooling(),
            Fire(96, 16, 64),
            Fire(128, 16, 64),
            Fire(128, 32, 128),
            pooling(),
            Fire(256, 32, 128),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            pooling(),
            Fire(512, 64, 256),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Conv2d(512, CLASSES, kernel_size=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores.flatten(1)


def squeezenet(size: int = 224) -> Recipe:
    return classifier(SqueezeNet, size=size)
