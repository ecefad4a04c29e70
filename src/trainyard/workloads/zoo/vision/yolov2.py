"""YOLOv2-tiny. J. Redmon, A. Farhadi: YOLO9000: Better, Faster, Stronger. CVPR 2017; the tiny network is from the
authors' Darknet release (yolov2-tiny), COCO head: 80 classes, 5 anchors, eighth convolution of 512 filters.

The VOC network has 1024 filters there and 15.9 M parameters; IGO's 11 M are the COCO network's. Which cell and anchor
answers for which object is decided while loading data: targets come dense, one row per cell and anchor.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import images, sgd

CLASSES = 80
ANCHORS = 5
STRIDE = 32
FILTERS = (16, 32, 64, 128, 256, 512, 1024, 512)
OBJECT_WEIGHT = 5.0  # object_scale of the released configuration; all other terms weigh 1


def convolution(channels: int, filters: int) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(channels, filters, 3, padding=1, bias=False),
        bn=nn.BatchNorm2d(filters),
        leaky=nn.LeakyReLU(0.1),
    )
    return nn.Sequential(layers)


class YOLOv2Tiny(nn.Module):
    """Eight 3 x 3 convolutions `conv1` .. `conv8`, the 1 x 1 head `conv9`. Returns [batch, anchor, cell, 5 + class]."""

    def __init__(self) -> None:
        super().__init__()
        channels = 3
        for index, filters in enumerate(FILTERS, start=1):
            self.add_module(f"conv{index}", convolution(channels, filters))
            channels = filters
        self.conv9 = nn.Conv2d(channels, ANCHORS * (5 + CLASSES), 1)
        self.pool = nn.MaxPool2d(2, stride=2)
        # The sixth pooling has stride 1: a border of minus infinity keeps the 13 x 13 map.
        self.border = nn.ConstantPad2d((0, 1, 0, 1), float("-inf"))
        self.pool6 = nn.MaxPool2d(2, stride=1)

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for index in range(1, len(FILTERS) + 1):
            maps = self.get_submodule(f"conv{index}")(maps)
            if index <= 5:
                maps = self.pool(maps)
            elif index == 6:
                maps = self.pool6(self.border(maps))
        predictions: Tensor = self.conv9(maps)
        return torch.unflatten(predictions, 1, (ANCHORS, 5 + CLASSES)).flatten(3).transpose(2, 3)


def loss(predictions: Tensor, boxes: Tensor, objects: Tensor, classes: Tensor) -> Tensor:
    """Squared errors of centre, size and confidence, cross entropy of the class where there is an object."""
    centre, size, confidence, scores = torch.split(predictions, [2, 2, 1, CLASSES], dim=-1)
    centre_error = (torch.sigmoid(centre) - boxes[..., :2]).square().sum(-1)
    size_error = (size - boxes[..., 2:]).square().sum(-1)
    confidence_error = (torch.sigmoid(confidence.squeeze(-1)) - objects).square()
    class_error = functional.cross_entropy(scores.flatten(0, 2), classes.flatten(), reduction="none").view_as(classes)
    weight = 1 + (OBJECT_WEIGHT - 1) * objects
    total = (objects * (centre_error + size_error + class_error) + weight * confidence_error).sum((1, 2))
    return total.mean()


def yolov2_tiny(size: int = 416) -> Recipe:
    cells = (size // STRIDE) ** 2

    def targets(batch: int) -> tuple[Tensor, ...]:
        boxes = torch.rand(batch, ANCHORS, cells, 4)
        objects = (torch.rand(batch, ANCHORS, cells) < 0.01).float()
        return boxes, objects, torch.randint(0, CLASSES, (batch, ANCHORS, cells))

    return Recipe(
        model=YOLOv2Tiny,
        inputs=lambda batch: (images(batch, size, size),),
        targets=targets,
        loss=loss,
        optimizer=sgd,
    )
