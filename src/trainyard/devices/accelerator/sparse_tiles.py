"""Which tiles a product gets whose zeros the array looks at: guided by their shares, decided by the zeros themselves.

A closed form that sees the shares (`HasDensityGuides`) chooses the tile at once. Otherwise the array is asked what tiles of these
shares are expected to take (`mapping.tile_descent`), beginning with the tile of the dense closed form, and with the one that it
would choose if all tiles were as much faster as the first is expected to be. A few of the fastest are then counted tile by tile
with the zeros that lie in them, the dense one among them, and the fastest is taken: a look at zeros never slows a product down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainyard.devices.accelerator.masked_tiles import TileCosts
from trainyard.ir import Array, Density, MaskView, MatMul, Operand
from trainyard.ir.folds import Pooled
from trainyard.ir.protocols import EstimatesTiles, HasClosedForm, HasTileGuides, KnowsDensity
from trainyard.mapping.tile_descent import CountedTiles, descend
from trainyard.mapping.tiling import Problem, Size, Supply, Tiled, Tiling, evaluate, search
from trainyard.mapping.walk import walk
from trainyard.masks.views import unpacked

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

    def candidates(self, problem: Problem, guides: tuple[Pooled, ...], left: Operand, right: Operand) -> list[Tiling]:
        """The tiles to count: one where a closed form sees the zeros, else a short list."""
        (planned,) = search([problem], self.array, self.supply, self.tile, guides)
        if guides or self.tile is not None:
            return [planned.tiling]
        counted = CountedTiles(self.array, lambda m, n, k: _expected_cycles(self.array, MatMul(m, n, k), left, right))
        expected = evaluate(problem, planned.tiling, counted, self.supply)
        if expected.compute_cycles == planned.compute_cycles and isinstance(self.array, HasClosedForm | HasTileGuides):
            return [planned.tiling]  # the closed form was right: this array makes no use of these zeros
        starts = [_size(planned), *self._as_fast(problem, expected.compute_cycles / planned.compute_cycles)]
        likely = descend(problem, counted, self.supply, starts)
        near = [tiled.tiling for tiled in likely if tiled.cycles <= NEAR * likely[0].cycles and tiled.cycles <= expected.cycles]
        return [*dict.fromkeys([planned.tiling, *near[:SHORTLIST]])]

    def _as_fast(self, problem: Problem, share: float) -> list[Size]:
        """The tile of a closed form if every tile took this share of its cycles: with DRAM that much slower in cycles of work."""
        if not isinstance(self.array, HasClosedForm | HasTileGuides) or not 0.0 < share < 1.0:
            return []
        slower = replace(
            self.supply,
            bytes_per_cycle=self.supply.bytes_per_cycle * share,
            latency_cycles=math.ceil(self.supply.latency_cycles / share),
        )
        return [_size(tiled) for tiled in search([problem], self.array, slower)]


def fastest(problem: Problem, tilings: list[Tiling], supply: Supply, costs: list[TileCosts]) -> tuple[Tiled, TileCosts]:
    """The tiling that takes the fewest cycles with its zeros, and what its tiles cost; `costs` has fresh counts for each.

    Within `TOLERANCE` of the fewest cycles, the one that moves the fewest bytes.
    """
    counted = [(walk(problem, tiling, supply, cost), cost) for tiling, cost in zip(tilings, costs, strict=True)]
    most = TOLERANCE * min(tiled.cycles for tiled, _ in counted)
    return min(
        (pair for pair in counted if pair[0].cycles <= most), key=lambda pair: (pair[0].dram_bytes, pair[0].cycles)
    )  # fmt: skip


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
