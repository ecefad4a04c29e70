"""Which tiles a product gets whose zeros the array looks at: guided by their shares, decided by the zeros themselves.

A closed form that sees the shares (`HasDensityGuides`) chooses the tile at once. Otherwise the array is asked what tiles of these
shares are expected to take. If the tile of the dense closed form takes some share of its dense cycles, the closed form chooses
again as if every tile took that share. Where that tile, or one of half its length along an axis, takes another share, or an array
has no closed form, a descent follows (`mapping.tile_descent`). A few of the fastest are then counted tile by tile with the zeros
that lie in them, the dense one among them, and the fastest is taken: a look at zeros never slows a product down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.devices.accelerator.masked_tiles import TileCosts
from trainyard.ir import DENSE, Array, Density, Masks, MaskView, MatMul, Operand, Step
from trainyard.ir.folds import Pooled
from trainyard.ir.protocols import EstimatesTiles, HasClosedForm, HasTileCycles, HasTileGuides, KnowsDensity, ReadsStreams
from trainyard.mapping.tiling import FASTEST, Goal, Problem, Size, Supply, Tiled, Tiling, evaluate, search
from trainyard.mapping.walk import steps, walk_counted
from trainyard.masks.views import unpacked

if TYPE_CHECKING:
    from trainyard.mapping.tile_descent import CountedTiles

CACHED_STEPS, CACHED_BYTES = 4, 64 * 1024 * 1024
"""Steps with masks whose counted tiles are kept, and bytes of each."""
LEAST_SHARE = 2.0**-10
"""Tiles that take less of their dense cycles wait for DRAM all the time."""
ALIKE = 0.05
"""Shares of the dense cycles that differ by no more than this are taken for the same in all tiles."""
Slowdown = Callable[[MatMul], float]
TOLERANCE = 1.01
"""Cycles that a tiling may take over the fewest to move fewer bytes."""
NEAR, SHORTLIST = 1.03, 2
"""Tiles that are expected to take at most this much longer than the fastest are counted as well, at most so many beside the dense
closed form's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTileSearch:
    """What tiles are chosen by: the device's sizes and a fixed tile, where there is one."""

    array: Array
    supply: Supply
    tile: Size | None = None
    goal: Goal = FASTEST

    def candidates(
        self,
        problem: Problem,
        guides: tuple[Pooled, ...],
        left: Operand,
        right: Operand,
        cycles_of: dict[Size, int],
        slowdown: Slowdown | None = None,
    ) -> list[Tiling]:
        """The tiles to count: one where a closed form sees the zeros, else a short list. `cycles_of` keeps what tiles are expected
        to take, `slowdown` is that of the operands' layout in memory."""
        (planned,) = search([problem], self.array, self.supply, self.tile, guides, self.goal)
        if guides or self.tile is not None or self.goal.objective != "time":
            return [planned.tiling]
        from trainyard.mapping.tile_descent import CountedTiles, descend

        def cycles(m: int, n: int, k: int) -> int:
            tile = MatMul(m, n, k)
            return math.ceil(_expected_cycles(self.array, tile, left, right) * (slowdown(tile) if slowdown else 1.0))

        counted = CountedTiles(self.array, cycles, cycles_of)
        expected = evaluate(problem, planned.tiling, counted, self.supply)
        if not isinstance(self.array, HasClosedForm | HasTileGuides):
            likely = descend(problem, counted, self.supply, [_size(planned)], most=SHORTLIST)
        elif all(self._share(counted, size) == 1.0 for size in (_size(planned), (problem.op.M, problem.op.N, problem.op.K))):
            return [planned.tiling]  # the closed form is right: this array makes no use of these zeros
        else:
            likely = self._faster(problem, counted, planned, expected)
        near = [tiled.tiling for tiled in likely if tiled.cycles <= NEAR * likely[0].cycles and tiled.cycles <= expected.cycles]
        return [*dict.fromkeys([planned.tiling, *near[:SHORTLIST]])]

    def _faster(self, problem: Problem, counted: CountedTiles, planned: Tiled, expected: Tiled) -> list[Tiled]:
        """Tiles that may be faster than the dense one, the fastest first: that of the closed form if every tile took the share of
        its cycles that the first is expected to take; where shares differ, what a descent finds."""
        from trainyard.mapping.tile_descent import descend

        share = max(expected.compute_cycles / planned.compute_cycles, LEAST_SHARE)
        whole = (problem.op.M, problem.op.N, problem.op.K)
        slower = replace(  # DRAM in cycles of the dense array
            self.supply,
            bytes_per_cycle=self.supply.bytes_per_cycle * share,
            latency_cycles=math.ceil(self.supply.latency_cycles / share),
        )
        (scaled,) = search([problem], self.array, slower)
        (second,) = search([problem], counted, self.supply, _size(scaled))
        if all(abs(self._share(counted, size) - share) <= ALIKE * share for size in (*_halved(_size(scaled)), whole)):
            return [second]
        return descend(problem, counted, self.supply, [_size(planned), _size(scaled)], most=SHORTLIST)

    def _share(self, counted: CountedTiles, size: Size) -> float:
        """The share of its dense cycles that a tile is expected to take."""
        array = self.array
        dense = array.tile_cycles(*size) if isinstance(array, HasTileCycles) else array.cost(MatMul(*size)).cycles
        return counted.tile_cycles(*size) / max(1, dense)


def _halved(size: Size) -> list[Size]:
    """The tile itself, and with each axis half as long."""
    m, n, k = size
    return [size, (-(-m // 2), n, k), (m, -(-n // 2), k), (m, n, -(-k // 2))]


@dataclass(frozen=True, slots=True, eq=False)
class TileCounts:
    """What the tiles of a product did in one tiling: the cycles of each in loop order, the events of all, their uncertainty."""

    cycles: npt.NDArray[np.int64]
    events: Mapping[str, float]
    uncertainty: float

    @property
    def nbytes(self) -> int:
        return self.cycles.nbytes

    @classmethod
    def of(cls, op: MatMul, tiling: Tiling, costs: TileCosts) -> TileCounts:
        """Counts every tile, or every size where no tile has zeros of its own; `costs` has counted none yet."""
        if costs.known_by_shares:
            cycles = costs.of_sizes(op, tiling)
        else:
            cycles = np.array([costs(tile) for tile in steps(op, tiling)], np.int64)
        return cls(cycles, costs.events, costs.uncertainty)


_steps = BoundedCache(entries=CACHED_STEPS)


def tile_counts(step: Step, masks: Masks) -> BoundedCache:
    """`TileCounts` of a step's products with these masks: machines that differ in memory or clock share them."""
    return _steps.get((ByIdentity(step), ByIdentity(masks)), lambda: BoundedCache(max_bytes=CACHED_BYTES))


def fastest(
    problem: Problem, tilings: Sequence[Tiling], supply: Supply, count: Callable[[Tiling], TileCounts]
) -> tuple[Tiled, TileCounts]:
    """The tiling that takes the fewest cycles with its zeros, and what its tiles did.

    Within `TOLERANCE` of the fewest cycles, the one that moves the fewest bytes.
    """
    counted = []
    for tiling in tilings:
        counts = count(tiling)
        counted.append((walk_counted(problem, tiling, supply, counts.cycles), counts))
    most = TOLERANCE * min(tiled.cycles for tiled, _ in counted)
    fast_enough = (pair for pair in counted if pair[0].cycles <= most)
    return min(fast_enough, key=lambda pair: (pair[0].dram_bytes, pair[0].cycles))


def layout_slowdown(array: Array, views: TileCosts) -> Slowdown | None:
    """By what factor tiles take longer than by their sizes because of the layout of views of bits (`ReadsStreams`); or None.

    A piece of the reduction of a convolution that is not whole channels of all taps leaves lanes empty. The first piece stands for
    all.
    """
    if not isinstance(array, ReadsStreams) or views.known_by_shares:
        return None

    def slowdown(tile: MatMul) -> float:
        m, n, k = (0, tile.M), (0, tile.N), (0, tile.K)
        return array.stream_steps(tile, views.left(0, m, k), views.right(0, k, n)) / array.stream_steps(tile, DENSE, DENSE)

    return slowdown


def known_share(operand: Operand) -> Operand:
    """An operand's zeros without their places: the share of a view of bits, and what else is known by shares as it is."""
    if not isinstance(operand, MaskView):
        return operand
    inserted = math.prod(operand.geometry.stride) if operand.dilated and operand.place == "G" and operand.geometry else 1
    source, key = operand.source, operand.key
    share = source.density(key) if isinstance(source, KnowsDensity) else float(unpacked(source, key).mean())
    return Density(min(1.0, share / inserted))


def _expected_cycles(array: Array, op: MatMul, left: Operand, right: Operand) -> int:
    if isinstance(array, EstimatesTiles):
        return array.estimated_cycles(op, left, right)
    return array.cost(op, a=left, b=right).cycles


def _size(tiled: Tiled) -> Size:
    return tiled.tiling.m, tiled.tiling.n, tiled.tiling.k
