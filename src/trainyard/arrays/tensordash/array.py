"""TensorDash as an array: tiles of dot-product units that skip zero pairs at run time, in front of unchanged multipliers.

M. Mahmoud, I. Edo, A. H. Zadeh, O. M. Awad, G. Pekhimenko, J. Albericio, A. Moshovos: TensorDash: Exploiting Sparsity to Accelerate
Deep Neural Network Training. MICRO 2020.

One operand is *scheduled*: its rows are mapped to the rows of a tile, one scheduler each, and the other operand moves in tandem. A
row's stream is scheduled once and serves all columns and all blocks of columns (`groups.py`); blocks of unequal length are
distributed over the tiles, which do not wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainyard.arrays.dense.tensorcore import TensorCore
from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.patterns import Option
from trainyard.checks import require_choice
from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput, MaskError
from trainyard.ir import DENSE, ArrayCost, Density, MaskView, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.protocols import KnowsDensity

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.arrays.dense.spatial import Spatial
    from trainyard.arrays.tensordash.element import TileExecution
    from trainyard.arrays.tensordash.groups import GroupCycles, GroupScheduling
    from trainyard.arrays.tensordash.scheduler import Scheduler
    from trainyard.hardware.tables.area import ComponentArea
    from trainyard.hardware.tables.energy import Component
    from trainyard.ir.folds import Folds, Tiles

Scheduled = Literal["sparser", "a", "b"]
Sides = Literal["one", "two"]
Levels = tuple[tuple[int, ...], ...]


@part
class TensorDash:
    """`tiles` tiles of `rows` x `columns` processing elements of `lanes` multipliers behind staging buffers `depth` steps deep.

    `options` is what each multiplier may take, (step, lane offset) in order of priority (the paper's tables by default,
    `patterns.py`); lanes choose one after the other, or with `levels="grouped"` lanes that cannot conflict choose at once, in as
    few levels as possible. `scheduled` says whose zeros are skipped: those of operand a, of b (the mapping as printed: filters on
    the rows), or of the sparser one by the zero counters. `sides="two"` gives each element its own scheduler for both operands.
    `sample` bounds the row groups of a product that are scheduled; results then carry a 95 % interval.

    >>> import numpy as np
    >>> TensorDash(rows=1).schedule(np.zeros((1, 8, 4)))  # nothing to do: four steps in each cycle
    2
    """

    lanes: int = 4
    depth: int = 4
    rows: int = 4
    columns: int = 4
    tiles: int = 256
    options: tuple[Option, ...] | None = None
    levels: Literal["one", "grouped"] | Levels = "one"
    scheduled: Scheduled = "sparser"
    sides: Sides = "one"
    sample: int | None = None
    seed: NonNegativeInt = 0
    scratchpads_bytes: int = 256 * 1024
    # fmt: off
    sync: Literal["lockstep", "output", "block"] = assumed(
        "lockstep", "how rows of a tile wait for each other: every cycle, at an output's end, or per buffer", "output", "block")
    banks: int | None = assumed(None, "scratchpad banks, steps refilled per cycle; None: as many as the buffers are deep", 3)
    bypass: float = assumed(
        0.01, "share of zeros under which the added parts are gated and the dense schedule runs", 0.0, 0.09)
    multicast: bool = assumed(
        True, "tiles that work on the same rows or columns share one read of the chip's memories", False)
    # fmt: on
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.bypass, bool) or not isinstance(self.bypass, int | float) or not 0 <= self.bypass <= 1:
            raise BadInput(f"TensorDash: bypass is a share of zeros between 0 and 1, got {self.bypass!r}")
        options = patterns.default_options(self.lanes, self.depth) if self.options is None else self.options
        object.__setattr__(self, "options", patterns.checked(options, self.lanes, self.depth) if self.options is not None else None)
        if not isinstance(self.levels, str):
            object.__setattr__(self, "levels", patterns.require_legal(self.levels, options, self.lanes))
        else:
            require_choice("TensorDash", levels=(self.levels, ("one", "grouped")))

    @classmethod
    def around(cls, array: TensorCore | Spatial, **changes: Any) -> TensorDash:
        """TensorDash in front of the multipliers of an array of dot-product units.

        >>> from trainyard.arrays import Spatial
        >>> TensorDash.around(Spatial(elements=64, macs_per_element=16), depth=3).peak_macs_per_cycle
        1024
        """
        if isinstance(array, TensorCore):
            shape = {"lanes": array.lanes, "rows": array.rows, "columns": array.columns, "tiles": array.tiles}
        elif hasattr(array, "macs_per_element"):
            shape = {"lanes": array.macs_per_element, "rows": 1, "columns": 1, "tiles": array.elements}
        else:
            raise BadInput(f"TensorDash goes in front of dot-product units; {type(array).__name__} has none")
        return cls(**{**shape, **changes})

    @property
    def baseline(self) -> TensorCore:
        """The same tiles without TensorDash."""
        return _baseline(self)

    @property
    def promotions(self) -> tuple[Option, ...]:
        """The promotion options of a multiplier: `options`, or the default table's."""
        return patterns.default_options(self.lanes, self.depth) if self.options is None else self.options

    @property
    def scheduler(self) -> Scheduler:
        return _group_scheduling(self).scheduler

    @property
    def group_scheduling(self) -> GroupScheduling:
        """The settings that decide the cycles of a group of streams."""
        return _group_scheduling(self)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.baseline.peak_macs_per_cycle

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed forms of the dense schedule, for the tile search."""
        return self.baseline.folds

    @property
    def local_bytes(self) -> int:
        return self.baseline.local_bytes

    @property
    def components(self) -> tuple[Component, ...]:
        from trainyard.arrays.tensordash.components import tensordash_components

        return tensordash_components(
            lanes=self.lanes, depth=self.depth, rows=self.rows, columns=self.columns, options=len(self.promotions)
        )

    @property
    def component_areas(self) -> tuple[ComponentArea, ...]:
        from trainyard.arrays.tensordash.components import tensordash_areas

        return tensordash_areas(
            lanes=self.lanes, depth=self.depth, rows=self.rows, columns=self.columns, tiles=self.tiles,
            options=len(self.promotions), scratchpads_bytes=self.scratchpads_bytes, sides=self.sides,
        )  # fmt: skip

    def granule(self) -> tuple[int, int, int]:
        return self.baseline.granule()

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return self.baseline.tile_cycles(m, n, k)

    def stream_steps(self, op: MatMul, a: Operand, b: Operand) -> int:
        return self.baseline.stream_steps(op, a, b)

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """The events of many dense tiles at once."""
        return self.baseline.tile_events(tiles)

    def schedule(self, nonzero: npt.ArrayLike) -> int:
        """Cycles of one output on one tile, without bank stalls; `nonzero` is [rows, steps, lanes], true where a pair counts."""
        import numpy as np

        from trainyard.arrays.tensordash.scheduler import pack

        bits = np.asarray(nonzero) != 0
        if bits.ndim != 3 or bits.shape[0] != self.rows or bits.shape[2] != self.lanes or not bits.size:
            raise MaskError(
                f"schedule: a mask of shape {bits.shape} does not fit this tile: give [rows, steps, lanes] = "
                f"[{self.rows}, steps, {self.lanes}]"
            )
        return int(self.scheduler.cycles(pack(bits), bits.shape[1], self.rows, self.sync, self.depth)[0])

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any], number: str = "fp16") -> TileExecution:
        """Multiplies two small matrices through staging buffers, schedulers and multipliers of one tile."""
        from trainyard.arrays.tensordash.element import execute

        return execute(self, a, b, number)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Cycles and events with the zeros of the scheduled operand (or of both) skipped, and never those of the dense schedule
        exceeded. With `sample` cycles carry a 95 % interval."""
        dense = self.baseline.cost(op, a=a, b=b)
        side = self.skipped_operands(_zeros(a), _zeros(b))
        if side == "neither":
            return dense
        if side == "both":
            return self._two_sided(op, a, b, dense)
        return self._one_sided(op, a, "a", dense) if side == "a" else self._one_sided(op.transposed(), b, "b", dense)

    def skipped_operands(self, zeros_a: float, zeros_b: float) -> Literal["neither", "a", "b", "both"]:
        """Whose zeros are skipped, from the shares of zeros: neither's where the scheduled operand has too few (`bypass`).

        >>> TensorDash().skipped_operands(0.6, 0.1), TensorDash(sides="two").skipped_operands(0.6, 0.1)
        ('a', 'both')
        >>> TensorDash(scheduled="b").skipped_operands(0.6, 0)
        'neither'
        """
        both = self.sides == "two" and min(zeros_a, zeros_b) > 0
        side: Literal["a", "b"] = "a" if zeros_a >= zeros_b else "b"
        if self.scheduled != "sparser" and not both:
            side = self.scheduled
        if (zeros_a if side == "a" else zeros_b) <= self.bypass:
            return "neither"
        return "both" if both else side

    def _one_sided(self, op: MatMul, operand: Operand, side: Literal["a", "b"], dense: ArrayCost) -> ArrayCost:
        """`op` has the scheduled operand's rows as M."""
        from trainyard.arrays.tensordash.groups import density_cycles, view_cycles

        column_blocks = -(-op.N // self.columns)
        if isinstance(operand, MaskView):
            groups = view_cycles(operand, side, self.group_scheduling)
            macs = groups.issued * op.N
        else:
            assert isinstance(operand, Density)  # a dense operand has no zeros to skip
            groups = density_cycles(
                operand, None, -(-op.K // self.lanes), -(-op.M // self.rows), self.group_scheduling, self.columns
            )
            macs = operand.nonzero * op.M * op.N * op.K
        return self._distributed(op, groups, column_blocks, macs, dense)

    def _two_sided(self, op: MatMul, a: Operand, b: Operand, dense: ArrayCost) -> ArrayCost:
        from trainyard.arrays.tensordash.groups import density_cycles, pair_cycles

        if isinstance(a, MaskView) and isinstance(b, MaskView):
            groups = pair_cycles(a, b, self.group_scheduling, self.columns)
            return self._distributed(op, groups, 1, groups.issued, dense)
        if isinstance(a, Density) and isinstance(b, Density):
            blocks = -(-op.M // self.rows) * -(-op.N // self.columns)
            groups = density_cycles(a, b, -(-op.K // self.lanes), blocks, self.group_scheduling, self.columns)
            return self._distributed(op, groups, 1, a.nonzero * b.nonzero * op.M * op.N * op.K, dense)
        raise BadInput("TensorDash: two-sided skipping needs the zeros of both operands in one form: two masks, or two densities")

    def _distributed(self, op: MatMul, groups: GroupCycles, repeats: int, macs: float, dense: ArrayCost) -> ArrayCost:
        """Blocks distributed over the tiles. If tiles are not square, the dense schedule in the other orientation may be faster."""
        from trainyard.kernels.arrays.dealing import makespan

        cycles = int(makespan(groups.cycles, repeats, self.tiles)) * op.count
        if self.rows != self.columns and cycles > dense.cycles:
            return dense
        half_width = groups.half_width * groups.cycles.size * repeats / self.tiles * op.count
        return replace(self._with_added_parts(dense, cycles, macs * op.count), uncertainty=half_width)

    def _with_added_parts(self, dense: ArrayCost, cycles: int, macs: float) -> ArrayCost:
        """The dense events (every value is fetched, zero or not) with the slots of the busy time, those of the added parts too."""
        busy = cycles * self.tiles
        elements = self.rows * self.columns
        added = {
            "mac": macs,
            "core_slot": busy * elements * self.lanes,
            "transposer_cycle": cycles * self.baseline.transposers,
            "scheduler_cycle": busy * (self.rows if self.sides == "one" else elements),
            "mux_slot": busy * elements * self.lanes,
            "staging_slot": busy * (self.rows + self.columns if self.sides == "one" else 2 * elements) * self.lanes * self.depth,
        }
        return ArrayCost(cycles=cycles, finish=(cycles,), events={**dense.events, **added})


@lru_cache(maxsize=256)
def _baseline(array: TensorDash) -> TensorCore:
    return TensorCore(
        lanes=array.lanes, rows=array.rows, columns=array.columns, tiles=array.tiles,
        scratchpads_bytes=array.scratchpads_bytes, multicast=array.multicast,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _group_scheduling(array: TensorDash) -> GroupScheduling:
    from trainyard.arrays.tensordash.groups import GroupScheduling
    from trainyard.arrays.tensordash.scheduler import Scheduler

    if array.levels == "grouped":
        levels = patterns.levels(array.promotions, array.lanes)
    else:
        levels = tuple((lane,) for lane in range(array.lanes)) if isinstance(array.levels, str) else array.levels
    return GroupScheduling(
        scheduler=Scheduler(lanes=array.lanes, depth=array.depth, options=array.promotions, levels=levels),
        rows=array.rows,
        sync=array.sync,
        banks=array.depth if array.banks is None else min(array.banks, array.depth),
        sample=array.sample,
        seed=array.seed,
    )


def _zeros(operand: Operand) -> float:
    """Share of zeros, as a counter at the tensor's origin sees it; zeros that a strided gradient is spread with count as well."""
    if isinstance(operand, Density):
        return 1.0 - operand.nonzero
    if not isinstance(operand, MaskView):
        return 0.0
    inserted = math.prod(operand.geometry.stride) if operand.dilated and operand.place == "G" and operand.geometry else 1
    if isinstance(operand.source, KnowsDensity):
        return 1.0 - operand.source.density(operand.key) / inserted
    from trainyard.masks.views import unpacked

    return 1.0 - float(unpacked(operand.source, operand.key).mean()) / inserted
