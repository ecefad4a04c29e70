"""YOLOv5l. G. Jocher et al.: YOLOv5 by Ultralytics, release 6.0 and later, 2021. doi:10.5281/zenodo.3908559.

There is no paper; the architecture is the release's "l" size (width 1, depth 1), 640 x 640 images, COCO classes.
Which anchor of which cell answers for which object is decided while loading data: for each of the three scales the
targets name a fixed number of matches, MATCHES per image (about seven objects of a COCO image, up to nine matches
each, over three scales). Losses as released: complete IoU, objectness and class cross entropies with their gains.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import images, sgd

CLASSES = 80
STRIDES = (8, 16, 32)
MATCHES = 21
# Width and height of the three anchors of each scale, in pixels (P3, P4, P5 of the release).
# fmt: off
ANCHORS = (
    (( 10,  13), ( 16,  30), ( 33,  23)),
    (( 30,  61), ( 62,  45), ( 59, 119)),
    ((116,  90), (156, 198), (373, 326)),
)
BOX_GAIN, OBJECT_GAIN, CLASS_GAIN = 0.05, 1.0, 0.5  # release 6.0, hyper-parameters for training from scratch
SCALE_BALANCE = (4.0, 1.0, 0.4)                     # release 6.0: weight of P3, P4, P5 objectness
# fmt: on


class Conv(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, channels: int, filters: int, kernel: int = 1, stride: int = 1, padding: int | None = None) -> None:
        super().__init__()
        border = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(channels, filters, kernel, stride=stride, padding=border, bias=False)
        self.bn = nn.BatchNorm2d(filters)
        self.act = nn.SiLU()

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = self.act(self.bn(self.conv(maps)))
        return output


class Bottleneck(nn.Module):
    """1 x 1 and 3 x 3 convolution, with or without shortcut."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels, 1)
        self.cv2 = Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = self.cv2(self.cv1(maps))
        return maps + output if self.shortcut else output


class C3(nn.Module):
    """Cross-stage partial block: half the maps through bottlenecks, half around them."""

    def __init__(self, channels: int, filters: int, repeats: int, *, shortcut: bool = True) -> None:
        super().__init__()
        half = filters // 2
        self.cv1 = Conv(channels, half, 1)
        self.cv2 = Conv(channels, half, 1)
        self.cv3 = Conv(2 * half, filters, 1)
        self.m = nn.Sequential(*(Bottleneck(half, shortcut=shortcut) for _ in range(repeats)))

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = self.cv3(torch.cat([self.m(self.cv1(maps)), self.cv2(maps)], dim=1))
        return output


class SPPF(nn.Module):
    """Spatial pyramid pooling by three poolings in a row."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels // 2, 1)
        self.cv2 = Conv(channels * 2, filters, 1)
        self.m = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, maps: Tensor) -> Tensor:
        pyramid = [self.cv1(maps)]
        for _ in range(3):
            pyramid.append(self.m(pyramid[-1]))
        output: Tensor = self.cv2(torch.cat(pyramid, dim=1))
        return output


class Concat(nn.Module):
    """Joins the newest maps with those of an earlier layer."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        return torch.cat(maps, dim=1)


class Detect(nn.Module):
    """One 1 x 1 convolution per scale. Returns per scale [batch, anchor * cell, 5 + class]."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.m = nn.ModuleList(nn.Conv2d(width, 3 * (5 + CLASSES), 1) for width in channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        raw = [head(scale) for head, scale in zip(self.m, maps, strict=True)]
        return [torch.unflatten(scale, 1, (3, 5 + CLASSES)).flatten(3).transpose(2, 3).flatten(1, 2) for scale in raw]


# The release's layer list, numbered as there (`model.0` .. `model.24`): which earlier layers join, then the layer.
Wiring = tuple[tuple[int, ...], nn.Module]


def layers() -> list[Wiring]:
    # fmt: off
    return [
        ((-1,),        Conv(3, 64, 6, 2, padding=2)),           # 0: 1/2
        ((-1,),        Conv(64, 128, 3, 2)),                    # 1: 1/4
        ((-1,),        C3(128, 128, 3)),
        ((-1,),        Conv(128, 256, 3, 2)),                   # 3: 1/8
        ((-1,),        C3(256, 256, 6)),
        ((-1,),        Conv(256, 512, 3, 2)),                   # 5: 1/16
        ((-1,),        C3(512, 512, 9)),
        ((-1,),        Conv(512, 1024, 3, 2)),                  # 7: 1/32
        ((-1,),        C3(1024, 1024, 3)),
        ((-1,),        SPPF(1024, 1024)),
        ((-1,),        Conv(1024, 512)),                        # 10: head, top down
        ((-1,),        nn.Upsample(scale_factor=2)),
        ((-1, 6),      Concat()),
        ((-1,),        C3(1024, 512, 3, shortcut=False)),
        ((-1,),        Conv(512, 256)),                         # 14
        ((-1,),        nn.Upsample(scale_factor=2)),
        ((-1, 4),      Concat()),
        ((-1,),        C3(512, 256, 3, shortcut=False)),        # 17: P3
        ((-1,),        Conv(256, 256, 3, 2)),                   # 18: head, bottom up
        ((-1, 14),     Concat()),
        ((-1,),        C3(512, 512, 3, shortcut=False)),        # 20: P4
        ((-1,),        Conv(512, 512, 3, 2)),
        ((-1, 10),     Concat()),
        ((-1,),        C3(1024, 1024, 3, shortcut=False)),      # 23: P5
        ((17, 20, 23), Detect((256, 512, 1024))),
    ]
    # fmt: on


class YOLOv5l(nn.Module):
    """Backbone `model.0` .. `model.9`, path aggregation `model.10` .. `model.23`, heads `model.24.m.0` .. `2`."""

    def __init__(self) -> None:
        super().__init__()
        wiring = layers()
        self.sources = [sources for sources, _ in wiring]
        self.model = nn.ModuleList(layer for _, layer in wiring)

    def forward(self, images: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = []
        current = images
        for sources, layer in zip(self.sources, self.model, strict=True):
            inputs = [current if source < 0 else outputs[source] for source in sources]
            current = layer(inputs[0] if len(inputs) == 1 else inputs)
            outputs.append(current)
        predictions: list[Tensor] = list(current)
        return predictions


def complete_iou(ours: Tensor, theirs: Tensor) -> Tensor:
    """Z. Zheng et al.: Distance-IoU Loss. AAAI 2020, Eq. 10. Boxes are centre x, centre y, width, height."""
    (x, y, w, h), (u, v, p, q) = ours.unbind(-1), theirs.unbind(-1)
    left, right = torch.minimum(x - w / 2, u - p / 2), torch.maximum(x + w / 2, u + p / 2)
    top, bottom = torch.minimum(y - h / 2, v - q / 2), torch.maximum(y + h / 2, v + q / 2)
    overlap_x = (torch.minimum(x + w / 2, u + p / 2) - torch.maximum(x - w / 2, u - p / 2)).clamp(min=0)
    overlap_y = (torch.minimum(y + h / 2, v + q / 2) - torch.maximum(y - h / 2, v - q / 2)).clamp(min=0)
    intersection = overlap_x * overlap_y
    iou = intersection / (w * h + p * q - intersection + 1e-7)
    distance = ((x - u).square() + (y - v).square()) / ((right - left).square() + (bottom - top).square() + 1e-7)
    aspect = (4 / math.pi**2) * (torch.atan(p / q) - torch.atan(w / (h + 1e-7))).square()
    share = (aspect / (1 - iou + aspect + 1e-7)).detach()
    return iou - distance - share * aspect


def loss(predictions: list[Tensor], matched: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
    """`matched` [batch, scale, match] counts anchors times cells; `boxes` are in cells, centre relative to the cell."""
    total = matched.new_zeros((), dtype=boxes.dtype)
    for scale, predicted in enumerate(predictions):
        index = matched[:, scale]
        chosen = predicted.gather(1, index.unsqueeze(-1).expand(-1, -1, predicted.shape[-1]))
        cells = predicted.shape[1] // 3
        pixels = torch.tensor(ANCHORS[scale], dtype=boxes.dtype, device=boxes.device)
        anchor = functional.embedding(index // cells, pixels / STRIDES[scale])
        centre = chosen[..., :2].sigmoid() * 2 - 0.5
        size = (chosen[..., 2:4].sigmoid() * 2).square() * anchor
        overlap = complete_iou(torch.cat([centre, size], dim=-1), boxes[:, scale])
        objects = torch.zeros_like(predicted[..., 4]).scatter(1, index, overlap.detach().clamp(min=0))
        objectness = functional.binary_cross_entropy_with_logits(predicted[..., 4], objects)
        kind = functional.binary_cross_entropy_with_logits(chosen[..., 5:], classes[:, scale])
        box = (1 - overlap).mean()
        total = total + BOX_GAIN * box + OBJECT_GAIN * SCALE_BALANCE[scale] * objectness + CLASS_GAIN * kind
    return total


def yolov5l(size: int = 640) -> Recipe:
    def targets(batch: int) -> tuple[Tensor, ...]:
        scales = [torch.randint(0, 3 * (size // stride) ** 2, (batch, MATCHES)) for stride in STRIDES]
        boxes = torch.rand(batch, 3, MATCHES, 4) + 0.25
        classes = functional.one_hot(torch.randint(0, CLASSES, (batch, 3, MATCHES)), CLASSES).float()
        return torch.stack(scales, dim=1), boxes, classes

    return Recipe(
        model=YOLOv5l,
        inputs=lambda batch: (images(batch, size, size),),
        targets=targets,
        loss=loss,
        optimizer=sgd,
    )
