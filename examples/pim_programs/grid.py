"""A grid cut into blocks for DPUs, with copies of the neighbours' cells around each, and the steps on it.

Each DPU owns a block and keeps it with a *halo* around it. A halo of k cells lets it take k steps between two exchanges, each on a
region one cell narrower on every side. The blocks are computed for real and messages carry the cells, so that the result is the
whole grid's, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]
    Cells = npt.NDArray[Any]

Points = Literal[5, 9]
Borders = Literal["fixed", "periodic"]
CELL_BYTES = 4
SIDES = ((-1, 0), (1, 0), (0, -1), (0, 1))
CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A grid of `height` x `width` cells in `rows` x `columns` blocks; sizes of blocks differ by one cell at most.

    >>> cut = Cut.of(100, 60, dpus=6, borders="fixed", points=5, halo=1)
    >>> cut.rows, cut.columns, cut.block(0), cut.block(5)
    (3, 2, (0, 33, 0, 30), (66, 100, 30, 60))
    >>> [(source, size) for source, destination, size, _ in cut.messages() if destination == 0]
    [(2, 30), (1, 33)]
    """

    height: int
    width: int
    rows: int
    columns: int
    borders: Borders = "fixed"
    points: Points = 5
    halo: int = 1

    @classmethod
    def of(cls, height: int, width: int, *, dpus: int, borders: Borders, points: Points, halo: int) -> Cut:
        """The cut whose largest block has the shortest border, the one of more rows among equals."""
        require_positive("heat", dpus=dpus, halo=halo)
        fitting = [
            (math.ceil(height / rows) + math.ceil(width / (dpus // rows)), -rows)
            for rows in range(1, dpus + 1)
            if dpus % rows == 0 and height // rows >= halo and width // (dpus // rows) >= halo
        ]
        if not fitting:
            need = f" with at least {halo} x {halo} cells each for a halo of {halo}" if halo > 1 else ""
            raise BadInput(
                f"heat: a grid of {height} x {width} cells cannot be cut into {dpus} blocks{need}: give fewer DPUs or a larger grid"
            )
        rows = -min(fitting)[1]
        return cls(height=height, width=width, rows=rows, columns=dpus // rows, borders=borders, points=points, halo=halo)

    @property
    def dpus(self) -> int:
        return self.rows * self.columns

    def block(self, dpu: int) -> tuple[int, int, int, int]:
        """First row, end row, first column, end column in the grid."""
        row, column = divmod(dpu, self.columns)
        return (
            row * self.height // self.rows,
            (row + 1) * self.height // self.rows,
            column * self.width // self.columns,
            (column + 1) * self.width // self.columns,
        )

    def messages(self) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
        """(source, destination, cells, where the source lies as seen from the destination), in the order of destinations.

        A DPU that is its own neighbour (periodic borders, one block in a row) copies inside its MRAM and is not named here.
        """
        for dpu in range(self.dpus):
            for side in self.directions:
                other = self.neighbour(dpu, side)
                if other is not None and other != dpu:
                    yield other, dpu, self.strip(dpu, side), side

    @property
    def directions(self) -> Sequence[tuple[int, int]]:
        """Corners matter to 9 points, and to 5 points from the second step after an exchange on."""
        return SIDES if self.points == 5 and self.halo == 1 else (*SIDES, *CORNERS)

    def neighbour(self, dpu: int, side: tuple[int, int]) -> int | None:
        row, column = dpu // self.columns + side[0], dpu % self.columns + side[1]
        if self.borders == "periodic":
            return row % self.rows * self.columns + column % self.columns
        inside = 0 <= row < self.rows and 0 <= column < self.columns
        return row * self.columns + column if inside else None

    def strip(self, dpu: int, side: tuple[int, int]) -> int:
        """Cells of the halo on that side."""
        top, bottom, left, right = self.block(dpu)
        return (self.halo if side[0] else bottom - top) * (self.halo if side[1] else right - left)

    def region(self, dpu: int, beyond: int) -> tuple[int, int, int, int]:
        """What is computed when `beyond` cells around the block are still needed: rows and columns of the block with its halo.

        A fixed border of the grid is never computed.
        """
        top, bottom, left, right = self.block(dpu)
        rows, columns = (top - beyond, bottom + beyond), (left - beyond, right + beyond)
        if self.borders == "fixed":
            rows, columns = _inside(rows, self.height), _inside(columns, self.width)
        down, across = self.halo - top, self.halo - left
        return rows[0] + down, rows[1] + down, columns[0] + across, columns[1] + across

    def computed(self, beyond: int) -> Whole:
        """Cells that each DPU computes in one step."""
        import numpy as np

        regions = np.array([self.region(dpu, beyond) for dpu in range(self.dpus)], np.int64)
        size = np.maximum(regions[:, 1::2] - regions[:, ::2], 0)
        cells: Whole = size[:, 0] * size[:, 1]
        return cells


def _inside(span: tuple[int, int], length: int) -> tuple[int, int]:
    first = max(span[0], 1)
    return first, max(min(span[1], length - 1), first)


def step_sizes(steps: int, halo: int) -> list[int]:
    """How many steps follow each exchange.

    >>> step_sizes(10, 4)
    [4, 4, 2]
    """
    return [halo] * (steps // halo) + ([steps % halo] if steps % halo else [])


class Blocks:
    """All DPUs' memories: each block with its halo, twice (a step reads one and writes the other)."""

    def __init__(self, grid: Cells, cut: Cut, coefficient: float) -> None:
        import numpy as np

        from pim_programs.kernels import stencil

        self.cut = cut
        shape = (cut.height, cut.width)
        if grid.shape != shape:
            raise BadInput(f"heat: the cut is for {shape}, the grid is {grid.shape}")
        self.old, self.new = [], []
        for dpu in range(cut.dpus):
            top, bottom, left, right = cut.block(dpu)
            held = np.zeros((bottom - top + 2 * cut.halo, right - left + 2 * cut.halo), grid.dtype)
            held[cut.halo : -cut.halo, cut.halo : -cut.halo] = grid[top:bottom, left:right]
            self.old.append(held)
            self.new.append(held.copy())
        words = grid.dtype == np.int32
        if words:
            self.rule: Any = stencil.heat_five_words if cut.points == 5 else stencil.heat_nine_words
            self.scaled: Any = round(-math.log2(coefficient))
        else:
            self.rule = stencil.heat_five if cut.points == 5 else stencil.heat_nine
            self.scaled = np.float32(coefficient) if cut.points == 5 else np.float32(coefficient) / np.float32(4)

    def exchange(self) -> None:
        """Every halo is filled from the neighbours' blocks; both copies then hold what a fixed border keeps."""
        halo, cut = self.cut.halo, self.cut
        for dpu in range(cut.dpus):
            for side in cut.directions:
                source = cut.neighbour(dpu, side)
                if source is None:
                    continue
                into, out = self.old[dpu], self.old[source]
                there = tuple(_halo_of(d, size, halo) for d, size in zip(side, into.shape, strict=True))
                here = tuple(_edge_of(-d, size, halo) for d, size in zip(side, out.shape, strict=True))
                into[there] = out[here]
        for old, new in zip(self.old, self.new, strict=True):
            new[...] = old

    def advance(self, steps: int) -> None:
        """`steps` of at most `halo` steps without another exchange."""
        for step in range(1, steps + 1):
            for dpu in range(self.cut.dpus):
                self.rule(self.old[dpu], self.new[dpu], *self.cut.region(dpu, steps - step), self.scaled)
            self.old, self.new = self.new, self.old

    def gathered(self) -> Cells:
        import numpy as np

        grid = np.empty((self.cut.height, self.cut.width), self.old[0].dtype)
        halo = self.cut.halo
        for dpu, held in enumerate(self.old):
            top, bottom, left, right = self.cut.block(dpu)
            grid[top:bottom, left:right] = held[halo:-halo, halo:-halo]
        return grid


def _halo_of(direction: int, size: int, halo: int) -> slice:
    return {-1: slice(0, halo), 0: slice(halo, size - halo), 1: slice(size - halo, size)}[direction]


def _edge_of(direction: int, size: int, halo: int) -> slice:
    """The cells of a block that lie along its side in that direction."""
    return {-1: slice(halo, 2 * halo), 0: slice(halo, size - halo), 1: slice(size - 2 * halo, size - halo)}[direction]


def require_grid(grid: Any, points: int, alpha: float, borders: str, steps: int) -> None:
    import numpy as np

    if not isinstance(grid, np.ndarray) or grid.ndim != 2 or grid.dtype not in (np.float32, np.int32) or not grid.size:
        kind = f"{grid.dtype} of shape {grid.shape}" if isinstance(grid, np.ndarray) else type(grid).__name__
        raise BadInput(f"heat: grid must be a numpy array of float32 or int32 in two dimensions, got {kind}")
    require_positive("heat", steps=steps)
    require_quantity("heat", alpha=alpha)
    if points not in (5, 9):
        raise BadInput(f"heat: points must be 5 or 9, got {points!r}")
    if borders not in ("fixed", "periodic"):
        raise BadInput(f"heat: borders must be 'fixed' or 'periodic', got {borders!r}")
    if alpha > 0.25:
        raise BadInput(f"heat: alpha={alpha} is not stable: at most 0.25 (diffusivity x time step / cell size squared)")
    if grid.dtype == np.int32:
        if math.frexp(alpha)[0] != 0.5:
            raise BadInput(f"heat: alpha={alpha} of a grid of int32 must be 1/4, 1/8, 1/16, ...: it is a shift")
        limit = (2**31 - 1) // 24  # 9 points add up 12 times and take off 12 times a value
        if int(np.abs(grid.astype(np.int64)).max()) > limit:
            raise BadInput(f"heat: values of a grid of int32 must lie within +-{limit}, so that no sum leaves 32 bits")
    elif not np.isfinite(grid).all():
        raise BadInput("heat: the grid holds numbers that are not finite")
