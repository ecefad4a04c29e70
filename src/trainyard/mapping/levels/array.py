"""An array behind its memory levels, as an array: what a tile of the scratchpad takes through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.ir import DENSE, Array, ArrayCost, MatMul, Operand, Product, one_after_another
from trainyard.ir.folds import Folds
from trainyard.mapping.levels.level import Level
from trainyard.mapping.levels.stages import (
    ALL,
    PORTS,
    Choice,
    Integers,
    LevelStage,
    PortStage,
    Real,
    Stage,
    Wire,
    exact_forms,
    least_forms,
    stages,
)

CACHED_ARRAYS = 64
"""Arrays behind levels whose tiles are kept: machines that differ in clock, DRAM or scratchpad share them."""
_ARRAYS = BoundedCache(entries=CACHED_ARRAYS)


@dataclass(frozen=True, slots=True, eq=False)
class LeveledArray:
    """`levels` stand from outside to inside; `outside` is the port of the scratchpad; sizes are bytes of a, b and a sum."""

    array: Array
    levels: tuple[Level, ...]
    outside: Wire
    element_bytes: tuple[float, float, float]
    stage: PortStage | LevelStage = field(init=False, repr=False)
    _cycles: dict[tuple[int, int, int], int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage", stages(self.array, self.levels, self.outside, self.element_bytes))

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.array.peak_macs_per_cycle

    @property
    def operand_aware(self) -> bool:
        return False

    @property
    def lower_bounds(self) -> Sequence[Folds]:
        """Closed forms that never exceed the cycles of a tile: no level makes the array faster."""
        return least_forms(self.array) if self.levels else exact_forms(self.array)

    def least_cycles(self, sizes: Integers) -> Real:
        """Cycles that tiles [tile, axis] take at least: of the array, and of each operand once over the scratchpad's port."""
        once = np.stack([sizes[:, 0] * sizes[:, 2], sizes[:, 2] * sizes[:, 1], sizes[:, 0] * sizes[:, 1]], axis=1)
        port = self.outside.cycles(once.astype(np.float64), self.element_bytes, np.array(ALL))
        forms = [form.cycles(sizes[:, 0], sizes[:, 1], sizes[:, 2]) for form in self.lower_bounds]
        return np.maximum(port, np.min(forms, axis=0) if forms else 0.0)

    def granule(self) -> tuple[int, int, int]:
        return self.array.granule()

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        """Cycles of a tile of the scratchpad, from the first fill of the outermost level to its last drain."""
        cycles = self._cycles.get((m, n, k))
        if cycles is None:
            cycles = self._cycles[m, n, k] = int(self.stage.columns(np.array([[m, n, k]]), np.array([ALL]))[0][0])
        return cycles

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Cycles and events of `op.count` such products, one after the other; bytes of each level are among the events."""
        size = (op.M, op.N, op.K)
        cycles, crossing = self.stage.columns(np.array([size]), np.array([ALL]))
        events = {name: count * op.count for name, count in self.stage.events(size, ALL).items()}
        events |= {port: count * op.count for port, count in zip(PORTS, crossing[0].tolist(), strict=True)}
        total = int(cycles[0]) * op.count
        return ArrayCost(cycles=total, finish=(total,), events=events)

    def choices(self, m: int, n: int, k: int) -> list[tuple[Level, Choice]]:
        """The tiles of each level, from outside to inside, of a tile of the scratchpad; of several sizes the full one."""
        chosen: list[tuple[Level, Choice]] = []
        stage: Stage = self.stage
        size, wired = (m, n, k), ALL
        while isinstance(stage, LevelStage):
            choice = stage.choice(size, wired)
            chosen.append((stage.level, choice))
            stage, size, wired = stage.inside, choice.tile, choice.held
        return chosen

    def bound(self, op: MatMul) -> str:
        """What is busy longest with a product: the array (`compute`), or the port of the level of this name."""
        busy = self.stage.busy((op.M, op.N, op.K), ALL)
        return max(busy, key=lambda name: (busy[name], name == "compute"))

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnChip:
    """The memory between a scratchpad and an array: the scratchpad's port, and levels from outside to inside."""

    levels: tuple[Level, ...]
    outside: Wire
    accumulator_bytes: int = 4

    def around(self, array: Array, element_bytes: tuple[int, int, int]) -> LeveledArray:
        """An array behind this memory, for elements of these sizes of a, b and the result; sums are accumulators everywhere."""
        a, b, out = element_bytes
        return leveled(array, self.levels, self.outside, (a, b, max(self.accumulator_bytes, out)))


def leveled(array: Array, levels: tuple[Level, ...], outside: Wire, element_bytes: tuple[float, float, float]) -> LeveledArray:
    """The same array behind the same levels is one object, so that its tiles are searched once."""
    try:
        hash(array)
        key: object = array
    except TypeError:  # a user's array may hold what cannot be hashed
        key = ByIdentity(array)
    return _ARRAYS.get(
        (cast("Array", key), levels, outside, element_bytes), lambda: LeveledArray(array, levels, outside, element_bytes)
    )
