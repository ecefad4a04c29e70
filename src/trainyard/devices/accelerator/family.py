"""Machines that differ in numbers of scratchpad, DRAM, clock and technology alone: what they have in common is found at once.

A sweep over such numbers runs one step on many machines of a family. Its policy, the step as columns, the search of its tiles and
the array's own rows of energy are then looked up together; what a machine's numbers decide is left to `StepFamily.costs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from trainyard.devices.accelerator.batch_costs import BatchCosts, Rates, batch_from_tiles, rates_by_format, which_at_once
from trainyard.devices.accelerator.costs import Costing
from trainyard.devices.accelerator.energy import FORMATS, PRICES_DRAM, PRICES_NM, energy_rates, tile_prices
from trainyard.devices.accelerator.step_shape import StepShape, step_shape
from trainyard.errors import TrainyardError
from trainyard.ir import Array, Step
from trainyard.mapping.bandwidths import TileSearch
from trainyard.mapping.demand import Policy
from trainyard.mapping.tiling import Goal, Supply

if TYPE_CHECKING:
    from trainyard.hardware.tables.energy import Component

CACHED_NUMBERS = 256
"""Sizes of banks, and tables of energy, that are kept."""
NUMBERS = frozenset(
    """scratchpad_bytes scratchpad_banks dram_bytes_per_s dram_latency_s dram_capacity_bytes dram_kind clock_hz technology_nm
    dma""".split()
)
"""Fields in which machines of a family may differ; `dma` moves zeros that only masks tell of."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ArrayEnergy:
    """What an array says of its energy: its own rows, bytes of its local scratchpads, events of each busy cycle."""

    components: tuple[Component, ...]
    local_bytes: float | None
    per_cycle: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepFamily:
    """A step of dense products and streams on all machines of a family, which have no memory levels inside the scratchpad."""

    shape: StepShape
    array: Array
    vector_lanes: int
    search: TileSearch
    number: str
    """The format of the multipliers."""
    energy: ArrayEnergy

    @classmethod
    def of(cls, step: Step, policy: Policy, costing: Costing, number: str, energy: ArrayEnergy) -> StepFamily | None:
        """None where something is refused, or has to be costed one by one."""
        shape, array = step_shape(step, policy, which_at_once(costing)), costing.array
        if shape is None or shape.others or not len(shape.products.rows):
            return None
        try:
            search = TileSearch.of(shape.products.shapes, array.folds, array, costing.tile)  # type: ignore[attr-defined]
            rates_by_format(
                shape, array, (),
                lambda other: energy_rates(
                    energy.components, energy.local_bytes, 1.0, PRICES_NM, PRICES_DRAM, number, other or number
                ),
            )  # fmt: skip
        except TrainyardError:
            return None
        return cls(shape=shape, array=array, vector_lanes=costing.vector_lanes, search=search, number=number, energy=energy)

    def costs(self, supply: Supply, bank_bytes: float, nm: float, dram_kind: str) -> BatchCosts | None:
        """All demands of the step on a machine with these numbers; None where they have to be costed one by one."""
        try:
            tiles = self.search.tiles(supply, _goal(self, bank_bytes))
        except TrainyardError:
            return None
        rates = _rates(self, bank_bytes, nm, dram_kind)
        return batch_from_tiles(self.shape, self.array, supply, self.vector_lanes, tiles, rates, {})


@lru_cache(maxsize=CACHED_NUMBERS)
def _goal(family: StepFamily, bank_bytes: float) -> Goal:
    own = family.energy
    return Goal(prices=tile_prices(own.components, own.local_bytes, bank_bytes, family.number, own.per_cycle))


@lru_cache(maxsize=CACHED_NUMBERS)
def _rates(family: StepFamily, bank_bytes: float, nm: float, dram_kind: str) -> Rates:
    """As `rates_by_format` has them, which has refused what has no rates."""
    own, multiplier = family.energy, family.number
    own_rates = energy_rates(own.components, own.local_bytes, bank_bytes, nm, dram_kind, multiplier, multiplier)
    rates: Rates = {None: own_rates}
    for number, _ in family.shape.products.numbers:
        rates[number] = own_rates
        if number != multiplier and f"mac_{number}" in FORMATS:
            rates[number] = energy_rates(own.components, own.local_bytes, bank_bytes, nm, dram_kind, multiplier, number)
    return rates
