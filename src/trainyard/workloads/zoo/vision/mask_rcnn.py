"""Mask R-CNN. K. He, G. Gkioxari, P. Dollar, R. Girshick: Mask R-CNN. ICCV 2017.

ResNet-50 with feature pyramid, 800 x 1344 images. 512 regions per image, a quarter of them foreground (Sec. 3.1); only
the foreground regions train the mask branch, four convolutions and a transposed one to 28 x 28 (Fig. 4, right). True
masks come as 56 x 56 rasters of their boxes. See `regions` for what is fixed where the paper's counts depend on the
image; non-maximum suppression is left out.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.boxes import align_on_pyramid, grid, iou, sampling_points, take
from trainyard.workloads.zoo.vision.pyramid import WIDTH, BoxPredictor, FeaturePyramid, TwoLayerHead
from trainyard.workloads.zoo.vision.regions import (
    CLASSES,
    OBJECTS,
    REGION_FOREGROUND,
    Body,
    Detection,
    Level,
    RegionProposalNetwork,
    detection_loss,
    detector,
    object_labels,
    sample_regions,
)

REGIONS, FOREGROUND = 512, 128
BOX_BINS, MASK_BINS, MASK_SIZE = 7, 14, 28
RASTER = 56
LEVELS = tuple(Level(stride, (8 * stride,)) for stride in (4, 8, 16, 32, 64))  # FPN, Sec. 4.1: areas 32^2 to 512^2


class Backbone(nn.Module):
    """ResNet-50 (`body`) and its pyramid (`fpn`)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body((3, 4, 6, 3))
        self.fpn = FeaturePyramid((256, 512, 1024, 2048))

    def forward(self, images: Tensor) -> list[Tensor]:
        levels: list[Tensor] = self.fpn(self.body(images))
        return levels


def mask_head() -> nn.Sequential:
    layers: list[tuple[str, nn.Module]] = []
    for index in range(1, 5):
        layers += [(f"mask_fcn{index}", nn.Conv2d(WIDTH, WIDTH, 3, padding=1)), (f"relu{index}", nn.ReLU())]
    return nn.Sequential(OrderedDict(layers))


def mask_predictor() -> nn.Sequential:
    upsample = nn.ConvTranspose2d(WIDTH, WIDTH, kernel_size=2, stride=2)
    layers = OrderedDict[str, nn.Module](conv5_mask=upsample, relu=nn.ReLU(), mask_fcn_logits=nn.Conv2d(WIDTH, CLASSES, 1))
    return nn.Sequential(layers)


class RegionHeads(nn.Module):
    """Box branch over all regions, mask branch over the foreground ones."""

    def __init__(self) -> None:
        super().__init__()
        self.box_head = TwoLayerHead()
        self.box_predictor = BoxPredictor()
        self.mask_head = mask_head()
        self.mask_predictor = mask_predictor()

    def forward(self, pyramid: list[Tensor], regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, corrections = self.box_predictor(self.box_head(align_on_pyramid(pyramid, regions, BOX_BINS)))
        foreground = align_on_pyramid(pyramid, regions[:, :FOREGROUND], MASK_BINS)
        return scores, corrections, self.mask_predictor(self.mask_head(foreground))


class MaskRCNN(nn.Module):
    """Images and true boxes to a `Detection` and mask scores [batch * foreground, class, 28, 28]."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.rpn = RegionProposalNetwork(WIDTH, WIDTH, LEVELS, height, width)
        self.roi_heads = RegionHeads()

    def forward(self, images: Tensor, boxes: Tensor) -> tuple[Detection, Tensor]:
        levels = self.backbone(images)
        objectness, deltas, proposals = self.rpn(levels)
        regions = sample_regions(proposals, boxes, REGIONS, FOREGROUND)
        scores, corrections, masks = self.roi_heads(levels[:-1], regions)
        return Detection(self.rpn.anchors, objectness, deltas, regions, scores, corrections, boxes), masks


@torch.no_grad()
def mask_targets(regions: Tensor, boxes: Tensor, matched: Tensor, rasters: Tensor) -> Tensor:
    """The matched object's mask as each region sees it: [batch * region, 28, 28] of zeros and ones."""
    matched_boxes = take(boxes, matched)
    x, y = sampling_points(regions, MASK_SIZE)
    size = (matched_boxes[..., 2:] - matched_boxes[..., :2]).clamp(min=1.0)
    across = (x - matched_boxes[..., 0:1]) / size[..., 0:1] * 2 - 1
    down = (y - matched_boxes[..., 1:2]) / size[..., 1:2] * 2 - 1
    masks = take(rasters.flatten(2), matched).reshape(-1, 1, RASTER, RASTER)
    points = torch.unflatten(grid(across, down), 1, (-1, MASK_SIZE)).flatten(0, 1)
    sampled = functional.grid_sample(masks, points, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled.squeeze(1) >= 0.5).float()


def loss(output: tuple[Detection, Tensor], labels: Tensor, rasters: Tensor) -> Tensor:
    """L = L_cls + L_box + L_mask (Sec. 3), and the proposals' loss. Only the true class's mask counts."""
    detection, masks = output
    regions = detection.regions[:, :FOREGROUND]
    with torch.no_grad():
        overlap, matched = iou(regions, detection.boxes).max(-1)
        weight = (overlap >= REGION_FOREGROUND).float().view(-1, 1, 1)
        kinds = labels.gather(1, matched).view(-1, 1, 1, 1).expand(-1, 1, MASK_SIZE, MASK_SIZE)
        target = mask_targets(regions, detection.boxes, matched, rasters)
    class_masks = masks.gather(1, kinds).squeeze(1)
    mask_loss = functional.binary_cross_entropy_with_logits(class_masks, target, weight=weight)
    return detection_loss(detection, labels) + mask_loss


def mask_rcnn(height: int = 800, width: int = 1344) -> Recipe:
    def targets(batch: int) -> tuple[Tensor, ...]:
        return object_labels(batch), (torch.rand(batch, OBJECTS, RASTER, RASTER) < 0.6).float()

    return detector(lambda: MaskRCNN(height, width), height, width, targets=targets, loss=loss)
