"""What Faster R-CNN and Mask R-CNN share: frozen trunk, region proposals, sampling of regions, their losses.

S. Ren, K. He, R. Girshick, J. Sun: Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks.
NIPS 2015. Static shapes throughout. Where the paper's count depends on the image, it is fixed here:

- Proposals are the 2000 highest anchors by objectness; non-maximum suppression is left out (its result has no static
  shape, and it is no product).
- An image has eight objects, COCO's average of 7.3 rounded up.
- Samples are the best overlapping regions as foreground and the highest scoring others as background, where the paper
  draws both at random; a foreground slot without a real match has weight 0.
- Batch normalisation is frozen, and conv1 and layer1 do not train, as in the released detectors.
- COCO's category numbers run to 90: with background 91 classes, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.boxes import anchor_grid, decode, encode, iou, take
from trainyard.workloads.zoo.vision.imagenet import images, sgd
from trainyard.workloads.zoo.vision.resnet import Bottleneck, ResNetStages

CLASSES = 91
OBJECTS = 8
PROPOSALS = 2000  # Sec. 3.3: at most 2000 proposals per image in training
ANCHOR_SAMPLES = 256  # Sec. 3.1.2: 256 anchors per image, up to half of them positive
ANCHOR_FOREGROUND, ANCHOR_BACKGROUND = 0.7, 0.3  # Sec. 3.1.2
REGION_FOREGROUND = 0.5  # Fast R-CNN, Sec. 2.3
RATIOS = (0.5, 1.0, 2.0)  # Sec. 3.1.1


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation whose statistics and affine weights are constants."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, maps: Tensor) -> Tensor:
        return functional.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias, training=False)


class Body(ResNetStages):
    """ResNet-50 stages for detection; `depths` says how many of them. Returns the maps of every stage."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__(Bottleneck, depths, FrozenBatchNorm2d)
        for frozen in ("conv1", "layer1"):
            self.get_submodule(frozen).requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.maps(images)


class ProposalHead(nn.Module):
    """A 3 x 3 convolution, then objectness and box deltas of every anchor."""

    def __init__(self, channels: int, width: int, anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.relu = nn.ReLU()
        self.cls_logits = nn.Conv2d(width, anchors, 1)
        self.bbox_pred = nn.Conv2d(width, 4 * anchors, 1)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.relu(self.conv(maps))
        objectness: Tensor = self.cls_logits(shared)
        deltas: Tensor = self.bbox_pred(shared)
        return objectness.permute(0, 2, 3, 1).flatten(1), deltas.permute(0, 2, 3, 1).reshape(deltas.shape[0], -1, 4)


class Level(NamedTuple):
    """One map that proposes regions."""

    stride: int
    sizes: tuple[int, ...]


class RegionProposalNetwork(nn.Module):
    """The head over all maps. Returns objectness, deltas and the best boxes."""

    anchors: Tensor

    def __init__(self, channels: int, width: int, levels: tuple[Level, ...], height: int, image_width: int) -> None:
        super().__init__()
        self.height, self.width = height, image_width
        self.head = ProposalHead(channels, width, len(levels[0].sizes) * len(RATIOS))
        grids = [
            anchor_grid(-(-height // level.stride), -(-image_width // level.stride), level.stride, level.sizes, RATIOS)
            for level in levels
        ]
        self.register_buffer("anchors", torch.cat(grids))

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        heads = [self.head(level) for level in maps]
        objectness = torch.cat([scores for scores, _ in heads], dim=1)
        deltas = torch.cat([boxes for _, boxes in heads], dim=1)
        with torch.no_grad():
            best = objectness.detach().topk(min(PROPOSALS, self.anchors.shape[0])).indices
            anchors = take(self.anchors.expand(objectness.shape[0], -1, -1), best)
            proposals = decode(take(deltas.detach(), best), anchors, self.height, self.width)
        return objectness, deltas, proposals


@torch.no_grad()
def sample_regions(proposals: Tensor, boxes: Tensor, count: int, foreground: int) -> Tensor:
    """`count` regions per image, the first `foreground` of them the best matches; the true boxes are candidates too."""
    candidates = torch.cat([boxes, proposals], dim=1)
    overlap = iou(candidates, boxes).amax(-1)
    matching = overlap.topk(foreground).indices
    order = torch.arange(candidates.shape[1], 0, -1, device=boxes.device, dtype=boxes.dtype)
    background = torch.where(overlap < REGION_FOREGROUND, order, 0).topk(count - foreground).indices
    return take(candidates, torch.cat([matching, background], dim=1))


class Detection(NamedTuple):
    """What a detector returns in training: everything its losses need except the labels."""

    anchors: Tensor  # [anchor, 4]
    objectness: Tensor  # [batch, anchor]
    deltas: Tensor  # [batch, anchor, 4]
    regions: Tensor  # [batch, region, 4]
    scores: Tensor  # [batch * region, class]
    corrections: Tensor  # [batch * region, class * 4]
    boxes: Tensor  # [batch, object, 4]


def proposal_loss(detection: Detection) -> Tensor:
    """Log loss and smooth L1 over 256 anchors per image (Eq. 1)."""
    boxes = detection.boxes
    anchors = detection.anchors.expand(boxes.shape[0], -1, -1)
    half = ANCHOR_SAMPLES // 2
    with torch.no_grad():
        overlap = iou(anchors, boxes)
        best, matched = overlap.max(-1)
        certain = overlap.argmax(1)  # the best anchor of each object is positive whatever its overlap
        likely = best.topk(half - boxes.shape[1]).indices
        unlikely = torch.where(best < ANCHOR_BACKGROUND, detection.objectness.detach(), -torch.inf).topk(half).indices
        positive = torch.cat([certain, likely], dim=1)
        weight = torch.cat([torch.ones_like(boxes[..., 0]), (best.gather(1, likely) >= ANCHOR_FOREGROUND).float()], 1)
        target = encode(take(boxes, matched.gather(1, positive)), take(anchors, positive))
        label = torch.cat([weight, torch.zeros_like(unlikely, dtype=weight.dtype)], dim=1)
        counted = torch.cat([weight, torch.ones_like(unlikely, dtype=weight.dtype)], dim=1)
    logits = detection.objectness.gather(1, torch.cat([positive, unlikely], dim=1))
    objectness = functional.binary_cross_entropy_with_logits(logits, label, weight=counted)
    error = functional.smooth_l1_loss(take(detection.deltas, positive), target, reduction="none").sum(-1)
    return objectness + (weight * error).mean()


def region_loss(detection: Detection, labels: Tensor) -> Tensor:
    """Cross entropy of the class and smooth L1 of the class's box over the sampled regions (Fast R-CNN, Eq. 1)."""
    with torch.no_grad():
        overlap, matched = iou(detection.regions, detection.boxes).max(-1)
        kinds = torch.where(overlap >= REGION_FOREGROUND, labels.gather(1, matched), 0).flatten()
        target = encode(take(detection.boxes, matched), detection.regions).flatten(0, 1)
    corrections = torch.unflatten(detection.corrections, 1, (CLASSES, 4))
    chosen = corrections.gather(1, kinds.view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1)
    error = functional.smooth_l1_loss(chosen, target, reduction="none").sum(-1)
    return functional.cross_entropy(detection.scores, kinds) + ((kinds > 0) * error).mean()


def detection_loss(detection: Detection, labels: Tensor) -> Tensor:
    return proposal_loss(detection) + region_loss(detection, labels)


def objects(batch: int, height: int, width: int) -> Tensor:
    """Eight boxes per image, from a sixteenth to half of the image's sides, along its diagonal."""
    sides = [(index + 1) / (2 * OBJECTS) for index in range(OBJECTS)]
    starts = [index * (1 - side) / OBJECTS for index, side in enumerate(sides)]
    rows = [
        (width * start, height * start, width * (start + side), height * (start + side))
        for start, side in zip(starts, sides, strict=True)
    ]
    return torch.tensor(rows).expand(batch, -1, -1).clone()


def object_labels(batch: int) -> Tensor:
    return torch.randint(1, CLASSES, (batch, OBJECTS))


def detector(
    model: Callable[[], nn.Module],
    height: int,
    width: int,
    *,
    targets: Callable[[int], tuple[Tensor, ...]] = lambda batch: (object_labels(batch),),
    loss: Callable[..., Tensor] = detection_loss,
) -> Recipe:
    return Recipe(
        model=model,
        inputs=lambda batch: (images(batch, height, width), objects(batch, height, width)),
        targets=targets,
        loss=loss,
        optimizer=sgd,
    )
