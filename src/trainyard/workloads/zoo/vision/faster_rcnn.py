"""Faster R-CNN. S. Ren, K. He, R. Girshick, J. Sun: Faster R-CNN: Towards Real-Time Object Detection with Region Proposal
Networks. NIPS 2015; with ResNet-50 as in K. He et al.: Deep Residual Learning for Image Recognition, CVPR 2016, App. A.

The "C4" detector: stages 1 to 4 of the trunk propose and are pooled, stage 5 (`layer4`) runs on every region. Anchors of
4 scales and 3 ratios (COCO, Sec. 4.2), a proposal convolution of 512 filters (Sec. 3.1), 64 regions per image, 16 of them
foreground (Mask R-CNN, Sec. 3.1, which names 64 for this trunk and for this paper). Regions are pooled by RoIAlign,
14 x 14. Images of 800 x 1344, the size of today's detectors (the paper: shorter side 600). See `regions` for what is
fixed where the paper's counts depend on the image; non-maximum suppression is left out.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.boxes import align_on
from trainyard.workloads.zoo.vision.regions import (
    CLASSES,
    Body,
    Detection,
    FrozenBatchNorm2d,
    Level,
    RegionProposalNetwork,
    detector,
    sample_regions,
)
from trainyard.workloads.zoo.vision.resnet import Bottleneck, stage

REGIONS, FOREGROUND = 64, 16
STRIDE = 16
BINS = 14
SIZES = (64, 128, 256, 512)


class Backbone(nn.Module):
    """Stages 1 to 4 of ResNet-50 under torch's path `backbone.body`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body((3, 4, 6))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.body(images)[-1]
        return maps


class RegionHead(nn.Module):
    """Stage 5 of ResNet-50 on each region, then class scores and a box per class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer4 = stage(Bottleneck, 1024, 512, 3, 2, FrozenBatchNorm2d)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.cls_score = nn.Linear(2048, CLASSES)
        self.bbox_pred = nn.Linear(2048, 4 * CLASSES)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        features = self.avgpool(self.layer4(regions)).flatten(1)
        return self.cls_score(features), self.bbox_pred(features)


class FasterRCNN(nn.Module):
    """Images [batch, 3, height, width] and true boxes [batch, object, 4] to a `Detection`."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.rpn = RegionProposalNetwork(1024, 512, (Level(STRIDE, SIZES),), height, width)
        self.roi_heads = RegionHead()

    def forward(self, images: Tensor, boxes: Tensor) -> Detection:
        maps = self.backbone(images)
        objectness, deltas, proposals = self.rpn([maps])
        regions = sample_regions(proposals, boxes, REGIONS, FOREGROUND)
        scores, corrections = self.roi_heads(align_on(maps, regions, BINS, STRIDE))
        return Detection(self.rpn.anchors, objectness, deltas, regions, scores, corrections, boxes)


def faster_rcnn(height: int = 800, width: int = 1344) -> Recipe:
    return detector(lambda: FasterRCNN(height, width), height, width)
