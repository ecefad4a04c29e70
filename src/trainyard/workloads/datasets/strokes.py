"""Stand-in for handwritten digits: each is drawn with a pen along the strokes of its shape, bent, slanted and turned by chance.

A shape is lines and arcs in the unit square, y down. A sample's points are moved by an affine map (size, slant, turn, place) and by
waves (an unsteady hand), and drawn with a round pen of its own width; brightness is how far a pixel's middle lies inside the line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.workloads.datasets.streams import streams

Reals = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Points = list[tuple[float, float]]
CLASSES = 10
WAVES = 3
STREAM = 803
CHUNK = 64  # samples drawn at once


def _line(*points: tuple[float, float], steps: int = 4) -> Points:
    """A path through points, each stretch in `steps`, so that it can be bent."""
    line = [points[0]]
    for (x, y), (u, v) in pairwise(points):
        line += [(x + (u - x) * step / steps, y + (v - y) * step / steps) for step in range(1, steps + 1)]
    return line


def _arc(x: float, y: float, across: float, down: float, start: float, stop: float, steps: int = 12) -> Points:
    """Part of an ellipse, in degrees from the right, downwards."""
    angles = np.radians(np.linspace(start, stop, steps + 1))
    return [(float(x + across * np.cos(angle)), float(y + down * np.sin(angle))) for angle in angles]


# fmt: off
SHAPES: tuple[tuple[Points, ...], ...] = (
    (_arc(.50, .50, .25, .38, -90, 270, 20),),
    (_line((.36, .28), (.54, .12), (.54, .88)),),
    (_arc(.50, .34, .24, .22, 190, 385) + _line((.70, .46), (.26, .87), (.78, .87)),),
    (_arc(.46, .31, .24, .19, 200, 450), _arc(.46, .68, .27, .20, -90, 160)),
    (_line((.60, .12), (.22, .62), (.82, .62)), _line((.62, .36), (.62, .90))),
    (_line((.74, .12), (.34, .12), (.31, .47)) + _arc(.48, .65, .26, .23, -125, 145),),
    (_line((.64, .11), (.44, .26), (.30, .52)) + _arc(.50, .67, .21, .21, 180, 540, 16),),
    (_line((.24, .14), (.76, .14), (.42, .90)),),
    (_arc(.50, .30, .19, .18, 90, 450, 16), _arc(.50, .68, .24, .20, -90, 270, 16)),
    (_arc(.48, .33, .22, .21, 0, 360, 16) + _line((.70, .33), (.66, .62), (.56, .90)),),
)
# fmt: on


@cache
def _segments() -> Doubles:
    """[digit, segment, end, x or y]; a digit with fewer repeats its last."""
    segments = [[pair for stroke in shape for pair in pairwise(stroke)] for shape in SHAPES]
    longest = max(map(len, segments))
    return np.array([shape + shape[-1:] * (longest - len(shape)) for shape in segments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Strokes:
    """(images [n, 1, size, size] from 0 to 1, digits [n])."""

    samples: int = 1797
    size: int = 16
    seed: int = 0
    noise: float = 0.05

    def __post_init__(self) -> None:
        require_positive("Strokes", samples=self.samples)
        if not isinstance(self.size, int) or self.size < 6:
            raise BadInput(f"Strokes: size must be at least 6 pixels for a digit to be seen, got {self.size!r}")
        if not 0 <= self.noise < 1:
            raise BadInput(f"Strokes: noise is a share of the brightness, 0 to 1, got {self.noise!r}")

    @property
    def name(self) -> str:
        return f"stand-in: digits drawn with a pen, {self.size} x {self.size}, for handwritten ones"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: Whole) -> tuple[Reals, Whole]:
        numbers = np.asarray(indices, np.int64)
        images, digits = np.empty((len(numbers), 1, self.size, self.size), np.float32), numbers % CLASSES
        for start in range(0, len(numbers), CHUNK):
            part = slice(start, start + CHUNK)
            images[part, 0] = self._drawn(numbers[part], digits[part])
        return images, digits

    def _drawn(self, numbers: Whole, digits: Whole) -> Reals:
        chance = np.empty((len(numbers), 7 + 4 * WAVES))
        grain = np.empty((len(numbers), self.size, self.size), np.float32)
        for row, generator in enumerate(streams(self.seed, STREAM, numbers)):
            generator.random(out=chance[row])
            generator.random(dtype=np.float32, out=grain[row])
        pen = (0.035 + 0.045 * chance[:, 6, None, None]).astype(np.float32)
        ink = np.clip((pen - _distances(_moved(_segments()[digits], chance), self.size)) * self.size + 0.5, 0.0, 1.0)
        return np.asarray(np.clip(ink + np.float32(self.noise) * (2 * grain - 1), 0.0, 1.0), np.float32)


def _moved(ends: Doubles, chance: Doubles) -> Doubles:
    """Points bent by waves, then sized, slanted, turned and put in place."""
    centred = ends - 0.5
    waves = chance[:, 7:].reshape(-1, WAVES, 4)
    for wave in range(WAVES):
        pitch, phase, across, down = (waves[:, wave, part, None, None] for part in range(4))
        along = centred[..., 0] * np.cos(6.28 * pitch) + centred[..., 1] * np.sin(6.28 * pitch)
        swing = np.sin(6.28 * ((1 + wave) * along + phase))
        centred = centred + 0.05 / (1 + wave) * swing[..., None] * np.stack([2 * across - 1, 2 * down - 1], axis=-1)
    turn, slant, wide, high, left, top = (chance[:, part, None, None] for part in range(6))
    x = centred[..., 0] * (0.7 + 0.4 * wide) + centred[..., 1] * 0.5 * (slant - 0.5)
    y = centred[..., 1] * (0.8 + 0.3 * high)
    angle = 0.5 * (turn - 0.5)
    moved = np.stack([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=-1)
    return np.asarray(moved + 0.5 + 0.12 * (np.stack([left, top], axis=-1) - 0.5))


def _distances(ends: Doubles, size: int) -> Reals:
    """[sample, row, column]: from a pixel's middle to the nearest segment."""
    middles = ((np.arange(size) + 0.5) / size).astype(np.float32)
    distances = np.full((len(ends), size, size), np.inf, np.float32)
    for segment in range(ends.shape[1]):
        begin, finish = ends[:, segment].astype(np.float32).transpose(1, 2, 0)
        direction = finish - begin
        x, y = (middles - begin[axis, :, None] for axis in range(2))  # [sample, column], [sample, row]
        unit = direction / np.maximum((direction * direction).sum(0), 1e-12)
        share = (x * unit[0, :, None])[:, None, :] + (y * unit[1, :, None])[:, :, None]
        np.clip(share, 0, 1, out=share)
        across = x[:, None, :] - share * direction[0, :, None, None]
        down = y[:, :, None] - share * direction[1, :, None, None]
        np.minimum(distances, across * across + down * down, out=distances)
    return np.sqrt(distances, out=distances)
