"""Faster R-CNN on MobileNetV3-Large with a feature pyramid, the 19.4 M detector that torch ships.

A. Howard et al.: Searching for MobileNetV3. ICCV 2019, Table 1, under S. Ren et al.: Faster R-CNN. NIPS 2015. Of the
Faster R-CNNs that torch ships only this one has the 19 M parameters of IGO's Table 4; IGO does not name its trunk.

As there: the pyramid joins the maps of the first 160-channel block and of the last convolution, both of stride 32, and
regions are pooled from the finer one; anchors of five sizes on every level; the first seven entries of `body` do not
train. 512 regions per image, 800 x 1344 images. See `regions` for what is fixed; non-maximum suppression is left out.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.boxes import align_on
from trainyard.workloads.zoo.vision.pyramid import WIDTH, BoxPredictor, FeaturePyramid, TwoLayerHead
from trainyard.workloads.zoo.vision.regions import (
    Detection,
    FrozenBatchNorm2d,
    Level,
    RegionProposalNetwork,
    detector,
    sample_regions,
)

REGIONS, FOREGROUND = 512, 128
BINS, STRIDE = 7, 32
SIZES = (32, 64, 128, 256, 512)
FROZEN, FIRST_MAP, LAST_MAP = 7, 13, 16  # indices into `body`


class Row(NamedTuple):
    """One bottleneck of Table 1."""

    kernel: int
    expanded: int
    filters: int
    squeeze: bool
    activation: type[nn.Module]
    stride: int


RE, HS = nn.ReLU, nn.Hardswish
# fmt: off
TABLE = (
    Row(3,  16,  16, False, RE, 1),
    Row(3,  64,  24, False, RE, 2),
    Row(3,  72,  24, False, RE, 1),
    Row(5,  72,  40, True,  RE, 2),
    Row(5, 120,  40, True,  RE, 1),
    Row(5, 120,  40, True,  RE, 1),
    Row(3, 240,  80, False, HS, 2),
    Row(3, 200,  80, False, HS, 1),
    Row(3, 184,  80, False, HS, 1),
    Row(3, 184,  80, False, HS, 1),
    Row(3, 480, 112, True,  HS, 1),
    Row(3, 672, 112, True,  HS, 1),
    Row(5, 672, 160, True,  HS, 2),
    Row(5, 960, 160, True,  HS, 1),
    Row(5, 960, 160, True,  HS, 1),
)
# fmt: on


def convolution(
    channels: int, filters: int, kernel: int, activation: type[nn.Module] | None, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    # The frozen normalisation does not rescale, so that the weights must: He et al. 2015, by what follows.
    nn.init.kaiming_normal_(conv.weight, nonlinearity="linear" if activation is None else "relu")
    tail = [] if activation is None else [activation()]
    return nn.Sequential(conv, FrozenBatchNorm2d(filters), *tail)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from all channel means; a quarter of the channels, in steps of 8."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = (channels // 4 + 4) // 8 * 8
        if squeezed < 0.9 * (channels // 4):  # rounding must not take more than a tenth (72 channels: 24, not 16)
            squeezed += 8
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, maps: Tensor) -> Tensor:
        scale: Tensor = self.gate(self.fc2(self.relu(self.fc1(self.avgpool(maps)))))
        return maps * scale


class InvertedResidual(nn.Module):
    """Expand by 1 x 1, filter each channel, squeeze and excite, project by 1 x 1 (Fig. 4)."""

    def __init__(self, channels: int, row: Row) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if row.expanded != channels:
            layers.append(convolution(channels, row.expanded, 1, row.activation))
        layers.append(convolution(row.expanded, row.expanded, row.kernel, row.activation, row.stride, groups=row.expanded))
        if row.squeeze:
            layers.append(SqueezeExcitation(row.expanded))
        layers.append(convolution(row.expanded, row.filters, 1, None))
        self.block = nn.Sequential(*layers)
        self.shortcut = row.stride == 1 and channels == row.filters

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = self.block(maps)
        return maps + output if self.shortcut else output


def body() -> nn.ModuleList:
    """Stem, the fifteen bottlenecks, the last convolution, numbered 0 to 16."""
    layers: list[nn.Module] = [convolution(3, 16, 3, HS, stride=2)]
    channels = 16
    for row in TABLE:
        layers.append(InvertedResidual(channels, row))
        channels = row.filters
    layers.append(convolution(channels, 6 * channels, 1, HS))
    return nn.ModuleList(layers)


class Backbone(nn.Module):
    """MobileNetV3-Large (`body`) and the pyramid over its last two maps (`fpn`)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.body[:FROZEN].requires_grad_(False)
        self.fpn = FeaturePyramid((160, 960))

    def forward(self, images: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = []
        current = images
        for layer in self.body:
            current = layer(current)
            outputs.append(current)
        levels: list[Tensor] = self.fpn([outputs[FIRST_MAP], outputs[LAST_MAP]])
        return levels


class RegionHead(nn.Module):
    """Two fully connected layers, class scores and a box per class."""

    def __init__(self) -> None:
        super().__init__()
        self.box_head = TwoLayerHead()
        self.box_predictor = BoxPredictor()

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        output: tuple[Tensor, Tensor] = self.box_predictor(self.box_head(regions))
        return output


class FasterRCNNMobileNet(nn.Module):
    """Images [batch, 3, height, width] and true boxes [batch, object, 4] to a `Detection`."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        levels = (Level(STRIDE, SIZES), Level(STRIDE, SIZES), Level(2 * STRIDE, SIZES))
        self.backbone = Backbone()
        self.rpn = RegionProposalNetwork(WIDTH, WIDTH, levels, height, width)
        self.roi_heads = RegionHead()

    def forward(self, images: Tensor, boxes: Tensor) -> Detection:
        levels = self.backbone(images)
        objectness, deltas, proposals = self.rpn(levels)
        regions = sample_regions(proposals, boxes, REGIONS, FOREGROUND)
        scores, corrections = self.roi_heads(align_on(levels[0], regions, BINS, STRIDE))
        return Detection(self.rpn.anchors, objectness, deltas, regions, scores, corrections, boxes)


def faster_rcnn_mobilenet(height: int = 800, width: int = 1344) -> Recipe:
    return detector(lambda: FasterRCNNMobileNet(height, width), height, width)
