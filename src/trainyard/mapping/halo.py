"""Halos: what neighbouring tiles of a convolution both need, where no line buffer keeps it.

The rows of an unfolded image are the positions of its windows: image by image, row by row. A tile of consecutive positions needs
every element under its windows; an element under windows of two tiles is read for both. Seen from an element, its windows are a
list of positions with gaps in between, and it is read for each tile in which some of them lie: once, and once more for every
gap in which a tile starts. Within a row of the image its gaps are short, between rows almost as long as a row, and so on;
`WindowAxis` has their number and mean length. Where tiles start (inside rows, at their ends, at the ends of images) is counted
exactly, so the mean over all tiles is a closed form: exact for a single position and for whole images, and within a few percent of
a count of all windows in between.

For dX as sums of windows ("col2im") it is the result that overlaps: a sum to which two tiles contribute is written as it is and
read again. Along the reduction of one window (channels times kernel) a tile takes its share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.errors import NotModelled
from trainyard.ir import Convolution
from trainyard.ir.ops import backward_table, forward_table
from trainyard.mapping.lowering import GradInput

MOST_AXES = 3
COLUMNS = 16
"""Numbers of a row of the compiled `spread`: four of the product and four of each axis."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One spatial axis: positions of windows, visits of further windows per element, their mean gap, and the mean distance from an
    element's first window to its last."""

    extent: int
    revisits: float
    gap: float
    distance: float


@dataclass(frozen=True, slots=True)
class Halo:
    """An operand of a product whose tiles overlap along an axis: `a` along m or k, or the result `out` along m.

    `positions` are those of all images, `unit` how many of them are one row of the matrix, `weight` the bytes of a further visit
    to an element over those of the first. `axes` are the spatial ones from the innermost.

    >>> body = Convolution(batch=2, in_channels=4, out_channels=8, size=(8, 8), kernel=(3, 3), padding=(1, 1))
    >>> halo = halo_of(body)
    >>> [round(halo.spread(size), 2) for size in (1, 8, 16, 64, 128)]  # one window, one row, two rows, one image, all
    [7.56, 22.0, 28.0, 64.0, 128.0]
    """

    axis: Literal["m", "k"]
    operand: Literal["a", "out"]
    positions: int
    axes: tuple[WindowAxis, ...]
    unit: int = 1
    weight: float = 1.0

    @property
    def row(self) -> tuple[float, ...]:
        """The argument of the compiled `kernels.mapping.tile_bounds.spread`."""
        numbers = [len(self.axes), self.positions, self.unit, self.weight]
        for axis in self.axes:
            numbers += [axis.extent, axis.revisits, axis.gap, axis.distance]
        return (*map(float, numbers), *(0.0,) * (COLUMNS - len(numbers)))

    def spread(self, size: int) -> float:
        """Rows of the matrix whose share of the image a tile of `size` consecutive rows takes, in the mean over its tiles."""
        step = min(size * self.unit, self.positions)
        starts = (self.positions - 1) // step
        if starts == 0:
            return float(size)
        chance, inside, left, around = [], 1, starts, self.positions
        for axis in self.axes:
            inside *= axis.extent
            aligned = starts // (inside // math.gcd(step, inside))
            around //= axis.extent
            chance.append((left - aligned) / (around * (axis.extent - 1)) if axis.extent > 1 else 0.0)
            left = aligned
        again = 0.0
        for number, axis in enumerate(self.axes):
            steps, cut = axis.gap, axis.gap * chance[number]
            for inner in range(number - 1, -1, -1):
                finer = steps * self.axes[inner].extent - self.axes[inner].distance
                cut += (finer - steps) * chance[inner]
                steps = finer
            again += axis.revisits * (1.0 if steps >= step else min(1.0, cut))
        extra = min(again * self.positions / float(starts + 1), float(self.positions - step))
        return float(size) + self.weight * extra / self.unit


@lru_cache(maxsize=4096)
def halo_of(body: Convolution, grad_input: GradInput = "col2im", unit: int = 1) -> Halo | None:
    """The halo of a convolution's product, None where no two windows share an element.

    `unit` positions stand in one place where they are the reduction (dW on multipliers of several narrow products).
    """
    if not windows_overlap(body, grad_input):
        return None
    dilated = body.product == "grad_input" and grad_input == "dilated"
    out_size, visits = body.size if dilated else body.out_size, _visits_by_axis(body, dilated)
    sums = body.product == "grad_input" and not dilated
    if len(visits) > MOST_AXES:
        raise NotModelled(
            f"halos of a convolution with {len(visits)} spatial dimensions, at most {MOST_AXES}: write line_buffer=True"
        )
    counted = math.prod(body.size) if sums else math.prod(elements for _, elements, _ in visits)
    axes = []
    for number, ((visited, elements, gaps), extent) in enumerate(zip(visits, reversed(out_size), strict=True)):
        within = math.prod(inner for _, inner, _ in visits[:number])
        beyond = math.prod(outer for outer, _, _ in visits[number + 1 :])
        more = visited - elements
        axes.append(WindowAxis(extent, within * more * beyond / counted, gaps / more if more else 0.0, gaps / elements))
    along_k = body.product == "grad_weight"
    return Halo(
        axis="k" if along_k else "m",
        operand="out" if sums else "a",
        positions=body.batch * math.prod(out_size),
        axes=tuple(axes),
        unit=unit if along_k else 1,
    )


@lru_cache(maxsize=4096)
def windows_overlap(body: Convolution, grad_input: GradInput = "col2im") -> bool:
    """Whether two windows share an element."""
    visits = _visits_by_axis(body, body.product == "grad_input" and grad_input == "dilated")
    return all(elements for _, elements, _ in visits) and any(visited > elements for visited, elements, _ in visits)


def _visits_by_axis(body: Convolution, dilated: bool) -> list[tuple[int, int, int]]:
    """From the innermost axis."""
    table = backward_table if dilated else forward_table
    return [_visits(table(body, axis)) for axis in reversed(range(len(body.size)))]


def _visits(table: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    """Pairs of a window and an element in it, elements in any window, and the summed gaps between the windows of an element."""
    position, tap = np.nonzero(table >= 0)
    element = table[position, tap]
    order = np.lexsort((position, element))
    position, element = position[order], element[order]
    same = element[1:] == element[:-1]
    return len(element), len(np.unique(element)), int((position[1:] - position[:-1])[same].sum())
