"""Stand-in for COCO's objects: several shapes in one picture, with their boxes, kinds and masks.

Object by object is drawn over what is there; boxes are those of the shapes' circles, masks what the outline covers of its own box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.pictures import KINDS, axes, background, coloured, place
from stand_ins.randomness import integers, numbered, uniform

CATEGORIES = 90  # COCO's category numbers run to 90
SPREAD = 1.65  # of an outline beyond its radius: 1 + the deepest lobe


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """(images, boxes [n, object, 4], labels [n, object] from 1, masks [n, object, raster, raster] of each box)."""

    samples: int
    height: int
    width: int
    objects: int = 8
    raster: int = 56
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: {self.objects} objects a picture of {CATEGORIES} kinds, {self.height} x {self.width}, for COCO"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        samples = numbered(indices, self.device)
        grid = axes(self.height, self.width, samples.device)
        side = min(self.height, self.width)
        picture = background(self.seed, samples, self.height, self.width)
        boxes, labels, rasters = [], [], []
        for number in range(self.objects):
            down, across, size, turn, phase, hue, kind = uniform(self.seed, 200 + number, samples, 7).unbind(1)
            label = integers(kind, CATEGORIES)
            radius = 0.08 * 5.0**size  # from a twenty-fifth to a fifth of the shorter side
            centre = ((down - 0.5) * (2 * self.height / side - 0.4), (across - 0.5) * (2 * self.width / side - 0.4))
            shape, texture = label % KINDS, label // KINDS
            angle = 2 * math.pi * turn
            placed = place(shape, centre, radius, angle, grid)
            colours = coloured(placed, texture, integers(hue, KINDS), phase) - 0.4
            picture = torch.lerp(picture, colours, placed.inside[:, None])
            boxes.append(self._boxes(centre, radius))
            labels.append(label + 1)
            raster_grid = axes(self.raster, self.raster, samples.device)
            rasters.append(
                place(shape, (0 * down, 0 * across), torch.full_like(radius, 1 / SPREAD), angle, raster_grid).inside >= 0.5
            )
        return picture * 3, torch.stack(boxes, 1), torch.stack(labels, 1), torch.stack(rasters, 1).float()

    def _boxes(self, centre: tuple[Tensor, Tensor], radius: Tensor) -> Tensor:
        """Corners x1, y1, x2, y2 in pixels, cut at the picture's edge."""
        half = min(self.height, self.width) / 2
        y, x = centre[0] * half + self.height / 2, centre[1] * half + self.width / 2
        reach = SPREAD * radius * half
        corners = [(x - reach).clamp(min=0), (y - reach).clamp(min=0)]
        return torch.stack([*corners, (x + reach).clamp(max=self.width), (y + reach).clamp(max=self.height)], dim=1)
