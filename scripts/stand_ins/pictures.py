"""Stand-in for ImageNet: pictures of one object before a cloudy background, at any resolution.

A class is a palette, a texture and a shape (ten of each: 1000 classes), so that what is learned of one class serves the others.
With 100 classes the shape, with 10 the texture too, is the sample's own, as are always place, size, turn, light and background.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stand_ins.randomness import integers, numbered, uniform
from trainyard.errors import BadInput

KINDS = 10  # of shapes, of textures, of palettes
CLASSES = KINDS**3
OCTAVES = (4, 8, 16, 32)  # cells of the background's noise, coarse to fine, amplitude 1, 1/2, 1/4, 1/8
EDGE = 30.0  # steepness of an outline: about a tenth of a radius

# fmt: off
SHAPES = (         # lobes, depth of the lobes, height over width
    (0, 0.00, 1.0), (0, 0.00, 0.4), (2, 0.45, 1.0), (3, 0.35, 1.0), (4, 0.30, 1.0),
    (5, 0.40, 1.0), (6, 0.15, 0.6), (7, 0.35, 1.0), (3, 0.60, 0.6), (9, 0.20, 1.0),
)
TEXTURES = (       # waves across, weight of stripes, of checks, of rings
    ( 4.0, 1.0, 0.0, 0.0), ( 9.0, 1.0, 0.0, 0.0), (18.0, 1.0, 0.0, 0.0), ( 5.0, 0.0, 1.0, 0.0), (11.0, 0.0, 1.0, 0.0),
    ( 4.0, 0.0, 0.0, 1.0), ( 9.0, 0.0, 0.0, 1.0), (16.0, 0.0, 0.0, 1.0), ( 7.0, 0.5, 0.5, 0.0), ( 0.0, 0.0, 0.0, 0.0),
)
PALETTES = (       # two colours, red green blue
    ((1.0, 0.1, 0.1), (0.4, 0.0, 0.0)), ((0.1, 1.0, 0.1), (0.0, 0.3, 0.0)), ((0.2, 0.3, 1.0), (0.0, 0.0, 0.4)),
    ((1.0, 1.0, 0.1), (0.5, 0.4, 0.0)), ((1.0, 0.2, 1.0), (0.3, 0.0, 0.4)), ((0.1, 1.0, 1.0), (0.0, 0.3, 0.4)),
    ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), ((1.0, 0.5, 0.0), (0.0, 0.3, 0.7)), ((0.9, 0.1, 0.3), (0.1, 0.8, 0.4)),
    ((0.7, 0.7, 0.2), (0.4, 0.1, 0.6)),
)
# fmt: on


def factors(classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Palette, texture and shape of a class."""
    return classes % KINDS, classes // KINDS % KINDS, classes // KINDS**2 % KINDS


def axes(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column places, the shorter side from -1 to 1."""
    side = min(height, width)
    down = (torch.arange(height, device=device) * 2 + 1 - height) / side
    across = (torch.arange(width, device=device) * 2 + 1 - width) / side
    return down[None, :, None], across[None, None, :]


def background(seed: int, samples: Tensor, height: int, width: int) -> Tensor:
    """Coloured clouds: octaves of noise whose amplitude halves as their cells do."""
    total = torch.zeros(len(samples), 3, height, width, device=samples.device)
    for octave, cells in enumerate(OCTAVES):
        noise = uniform(seed, 100 + octave, samples, 3 * cells * cells) - 0.5
        grown = F.interpolate(noise.view(-1, 3, cells, cells), (height, width), mode="bilinear", align_corners=False)
        total.add_(grown, alpha=2.0**-octave)
    return total


@dataclass(frozen=True, slots=True)
class Placed:
    """Objects in their own coordinates: outline (1 inside), distance from the centre, turned coordinates."""

    inside: Tensor
    distance: Tensor
    u: Tensor
    v: Tensor


def place(shape: Tensor, centre: tuple[Tensor, Tensor], radius: Tensor, turn: Tensor, grid: tuple[Tensor, Tensor]) -> Placed:
    """Draws outlines r(angle) = radius (1 + depth cos(lobes angle)); every argument has one value for each sample."""
    rows = torch.tensor(SHAPES, device=shape.device)[shape]
    lobes, depth, aspect = (column[:, None, None] for column in rows.unbind(1))
    down, across = (axis - at[:, None, None] for axis, at in zip(grid, centre, strict=True))
    cosine, sine, size = (value[:, None, None] for value in (torch.cos(turn), torch.sin(turn), radius))
    u = (across * cosine + down * sine) / size
    v = (down * cosine - across * sine) / size
    distance = torch.sqrt(u * u + (v / aspect) ** 2 + 1e-12)
    outline = 1 + depth * torch.cos(lobes * torch.atan2(v / aspect, u))
    return Placed(torch.sigmoid((outline - distance) * EDGE), distance, u, v)


def coloured(placed: Placed, texture: Tensor, palette: Tensor, phase: Tensor) -> Tensor:
    """[sample, 3, height, width]: the two colours of a palette, mixed as the texture says."""
    rows = torch.tensor(TEXTURES, device=texture.device)[texture]
    waves, stripes, checks, rings = (column[:, None, None] for column in rows.unbind(1))
    shift = 2 * math.pi * phase[:, None, None]
    along = torch.sin(waves * placed.u + shift)
    value = stripes * along + checks * along * torch.sin(waves * placed.v) + rings * torch.sin(waves * placed.distance + shift)
    mix = (0.5 + 0.5 * value)[:, None]
    first, second = torch.tensor(PALETTES, device=palette.device)[palette].unbind(1)
    return second[:, :, None, None] + (first - second)[:, :, None, None] * mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """(images [n, 3, size, size], labels [n]); `classes` is 1000 or divides it."""

    samples: int
    size: int = 224
    classes: int = CLASSES
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        if self.classes < 1 or CLASSES % self.classes:
            raise BadInput(f"classes={self.classes} must divide {CLASSES}, as 10, 100 and 1000 do")

    @property
    def name(self) -> str:
        return f"stand-in: pictures of {self.classes} classes, {self.size} x {self.size}, for ImageNet"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        samples = numbered(indices, self.device)
        label, rest = uniform(self.seed, 1, samples, 2).unbind(1)
        labels = integers(label, self.classes)
        return self.drawn(samples, labels + self.classes * integers(rest, CLASSES // self.classes)), labels

    def drawn(self, samples: Tensor, labels: Tensor) -> Tensor:
        """Pictures of given classes, about zero mean and unit spread."""
        down, across, size, turn, phase, light, contrast = uniform(self.seed, 2, samples, 7).unbind(1)
        palette, texture, shape = factors(labels)
        centre = (down - 0.5, across - 0.5)
        grid = axes(self.size, self.size, samples.device)
        placed = place(shape, centre, 0.4 + 0.35 * size, 2 * math.pi * turn, grid)
        picture = background(self.seed, samples, self.size, self.size)
        picture = torch.lerp(picture, coloured(placed, texture, palette, phase) - 0.4, placed.inside[:, None])
        return picture * (2 + 2 * contrast)[:, None, None, None] + (light - 0.5)[:, None, None, None]
