"""MobileNet v1. A. G. Howard et al.: MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications.
arXiv:1704.04861, 2017.

Table 1, width multiplier 1, 224 x 224 images. The last depthwise convolution keeps its map size: the table prints
stride 2 there, but also prints 7 x 7 maps before and after it.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier

# Table 1, the depthwise separable blocks: input maps, output maps, stride of the depthwise convolution.
# fmt: off
BLOCKS: tuple[tuple[int, int, int], ...] = (
    ( 32,   64, 1),
    ( 64,  128, 2),
    (128,  128, 1),
    (128,  256, 2),
    (256,  256, 1),
    (256,  512, 2),
    (512,  512, 1), (512, 512, 1), (512, 512, 1), (512, 512, 1), (512, 512, 1),
    (512, 1024, 2),
    (1024, 1024, 1),
)
# fmt: on


class Separable(nn.Module):
    """A 3 x 3 depthwise and a 1 x 1 pointwise convolution, each with batch normalisation and rectifier (Fig. 3)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        filtered = self.relu(self.bn1(self.depthwise(maps)))
        output: Tensor = self.relu(self.bn2(self.pointwise(filtered)))
        return output


class MobileNet(nn.Module):
    """`conv1`, thirteen `blocks.N.depthwise` / `blocks.N.pointwise`, `fc`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*(Separable(channels, filters, stride) for channels, filters, stride in BLOCKS))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(1024, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(self.relu(self.bn1(self.conv1(images))))
        scores: Tensor = self.fc(self.avgpool(maps).flatten(1))
        return scores


def mobilenet(size: int = 224) -> Recipe:
    return classifier(MobileNet, size=size)
