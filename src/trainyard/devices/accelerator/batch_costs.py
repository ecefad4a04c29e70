"""The demands of a whole step costed at once, as columns: one row for each distinct demand. The plain twin is
`devices.accelerator.costs`.

What a step and a policy decide (`StepShape`) is put together once; what a machine's numbers decide is then one compiled call behind
the search of its tiles. Cycles are known at once; events, energy, shares and bytes are derived when they are read. Demands of other
kinds than products and streams are costed one by one. Counts are real numbers, exact below 2**53: a step with more of anything is
left to the twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainyard.caches import BoundedCache, ByIdentity, is_frozen, kept_on_disk, per_part
from trainyard.devices.accelerator.costs import Costing
from trainyard.devices.accelerator.energy import FORMATS, EnergyRates, format_of
from trainyard.devices.accelerator.event_counts import EventCounts, event_counts, event_names
from trainyard.devices.accelerator.step_shape import EXACT, ON_CHIP, Real, StepShape, Which, Whole, step_shape
from trainyard.errors import TrainyardError
from trainyard.ir import Array, DeviceCost, Step, Work
from trainyard.ir.protocols import Divisible, HasClosedForm, HasTileEvents
from trainyard.mapping.bandwidths import search_tiles
from trainyard.mapping.demand import Demand, Policy
from trainyard.mapping.profile import works
from trainyard.mapping.tiling import ProblemTable, Supply, form_rows
from trainyard.masks.dma import Densities
from trainyard.progress import counted

BOUNDS = ("compute", "dram", "vector")
NO_SHARES: Real = np.zeros((0, 1))
NO_TILES: Whole = np.zeros((0, 10), np.int64)
NO_TILES.flags.writeable = False  # as found ones are: loops are compiled for one of both
CACHED_TILES = 128
"""Tilings of whole steps that are kept."""
RatesOf = Callable[[str | None], EnergyRates]
KnownCosts = Mapping[Demand, DeviceCost]
CostsByRow = dict[int, DeviceCost]
"""Costs of demands, by their row in a `StepShape`."""
Rates = dict[str | None, EnergyRates]
"""Joules of events, by the format of the multiplications; None where there are none."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchCosts:
    """The costs of all demands of a step on one machine; `apart` has those that were costed one by one."""

    shape: StepShape
    array: Array
    rates: Rates
    tiles: Whole
    cycles: Whole
    compute_cycles: Whole
    bound: Whole
    product_bytes: Real
    """[kind, product] Bytes of A, of B and of spilled sums, and all bytes read and written."""
    waiting: Real
    """[product] Cycles that the array waits, for each byte."""
    stream_reads: Real
    apart: Mapping[int, DeviceCost]

    @property
    def bounds(self) -> list[str]:
        bounds = [BOUNDS[code] for code in self.bound.tolist()]
        for row, cost in self.apart.items():
            bounds[row] = cost.bound
        return bounds

    @property
    def uncertainty_cycles(self) -> float:
        """Half-width of the 95 % interval of all cycles: each sampled product has a row of its own."""
        return math.sqrt(sum(cost.uncertainty**2 for cost in self.apart.values()))

    @property
    def exact(self) -> bool:
        """Whether events are counted exactly; the twin counts them where they are not."""
        return self.counts.exact

    @cached_property
    def counts(self) -> EventCounts:
        """Events depend on the tiles, not on clock, bandwidth or technology."""
        return event_counts(self.shape, self.array, self.tiles, self.product_bytes, self.stream_reads)

    @property
    def components(self) -> tuple[str, ...]:
        """What energy is booked to."""
        return self.rates[None].components

    @cached_property
    def energy(self) -> Real:
        """[component, demand] Joules."""
        from trainyard.kernels.mapping.product_costs import joules

        components = self.components
        total = np.zeros((len(components), len(self.shape.demands)))
        for group in self.counts.groups:
            joules(group.counts, *self.rates[group.number].terms(group.events), group.rows, total)
        for row, cost in self.apart.items():
            spent = self.rates[format_of(cost.events)].joules(cost.events, self.array)
            total[:, row] = [spent[component] for component in components]
        return total

    @cached_property
    def shares(self) -> tuple[Whole, Real]:
        """The demands of several ops, and what each op gets, row by row, zeros at the end."""
        from trainyard.kernels.mapping.product_costs import chain_shares

        own = self.shape.products
        rows, chained = own.rows[own.chains], NO_SHARES
        if len(own.chains):
            chained = chain_shares(self.cycles, own.rows, self.waiting, own.chains, own.drained, own.lengths)
        others = {row: cost.share for row, cost in self.apart.items() if len(cost.share) > 1}
        if not others:
            return rows, chained
        most = max(chained.shape[1], *map(len, others.values()))
        shares = np.zeros((len(rows) + len(others), most))
        shares[: len(rows), : chained.shape[1]] = chained
        for place, parts in enumerate(others.values(), start=len(rows)):
            shares[place, : len(parts)] = parts
        return np.concatenate([rows, np.array([*others], np.int64)]), shares

    @property
    def moved(self) -> Real:
        """[demand, key] Bytes."""
        moved, products, streams = self.shape.moved.copy(), self.shape.products, self.shape.streams
        for key, size in zip(products.keys, self.product_bytes[:3], strict=True):
            moved[products.rows, key] += size
        moved[streams.rows, streams.again_key] += self.stream_reads - streams.table[:, 0]
        for group in self.counts.groups:
            for column, (level, _, way) in enumerate(ON_CHIP, start=-len(ON_CHIP)):
                if f"{level}_{way}" in group.events:
                    moved[group.rows, column] = np.rint(group.counts[group.events.index(f"{level}_{way}")])
        return moved


_searched = BoundedCache(entries=CACHED_TILES)


def batch_costs(step: Step, policy: Policy, costing: Costing, rates_of: RatesOf, known_costs: KnownCosts) -> BatchCosts | None:
    """All demands of dense operands on one machine, but for the costs that are `known_costs`.

    None where something is too large to be counted exactly, or is refused: the twin says why.
    """

    def others(shape: StepShape) -> CostsByRow:
        apart = {row: known_costs.get(shape.demands[row]) if known_costs else None for row in shape.others}
        missing = [row for row, cost in apart.items() if cost is None]
        costed = dict(zip(missing, costing.costs([shape.demands[row] for row in missing]), strict=True)) if missing else {}
        return {row: cost or costed[row] for row, cost in apart.items()}

    shape = step_shape(step, policy, which_at_once(costing))
    return None if shape is None else costs_of(shape, costing, rates_of, others)


def masked_costs(
    step: Step, policy: Policy, zeros: Densities, costing: Costing, rates_of: RatesOf, cost_of: Callable[[Work], DeviceCost]
) -> BatchCosts | None:
    """Streams at once, and products with their zeros one by one: `cost_of` looks at them."""
    shape = step_shape(step, policy, "masked", zeros)
    if shape is None:
        return None
    work_of = {shape.number[work.ops]: work for work in works(step, policy) if work.ops in shape.number}
    return costs_of(
        shape, costing, rates_of, lambda own: {row: cost_of(work_of[row]) for row in counted(own.others, "layers and phases")}
    )


def costs_of(shape: StepShape, costing: Costing, rates_of: RatesOf, others: Callable[[StepShape], CostsByRow]) -> BatchCosts | None:
    """The costs of a shape's demands; `others` finds those that are not costed at once."""
    products, tiles = shape.products, NO_TILES
    try:
        if len(products.rows):
            tiles = _tiles(products.shapes, costing)
        costs = others(shape)
        rates = rates_by_format(shape, costing.array, costs.values(), rates_of)
    except TrainyardError:
        return None
    return batch_from_tiles(shape, costing.array, costing.supply, costing.vector_lanes, tiles, rates, costs)


def batch_from_tiles(
    shape: StepShape, array: Array, supply: Supply, vector_lanes: int, tiles: Whole, rates: Rates, apart: CostsByRow
) -> BatchCosts | None:
    """The costs of a shape's demands, whose products have these `tiles`; None where something exceeds what is counted exactly."""
    from trainyard.kernels.mapping.product_costs import step_costs

    products, streams = shape.products, shape.streams
    cycles, compute, bound, moves, waiting, reads, largest = step_costs(
        tiles, products.table, products.rows, streams.table, streams.rows, len(shape.demands), vector_lanes,
        float(supply.bytes_per_cycle), float(supply.resident_bytes), float(supply.latency_cycles),
    )  # fmt: skip
    if largest >= EXACT:
        return None
    for row, cost in apart.items():
        cycles[row], compute[row] = cost.cycles, cost.compute_cycles
    return BatchCosts(
        shape=shape, array=array, rates=rates, tiles=tiles, cycles=cycles, compute_cycles=compute, bound=bound,
        product_bytes=moves, waiting=waiting, stream_reads=reads, apart=apart,
    )  # fmt: skip


def _tiles(products: ProblemTable, costing: Costing) -> Whole:
    """The tiles of all products; machines with the same array and supply, whatever their technology, share them."""
    array, supply, tile, goal = costing.array, costing.supply, costing.tile, costing.goal

    def searched() -> Whole:
        return search_tiles(products, array.folds, array, supply, tile, goal)  # type: ignore[attr-defined]  # has a closed form

    def kept() -> Whole:
        disk = kept_on_disk()
        if disk is None:
            return searched()
        forms = form_rows(array.folds, array)  # type: ignore[attr-defined]
        seen = (forms.tobytes(), array.granule(), array.peak_macs_per_cycle, tile, supply, goal)  # all that the search looks at
        return disk.get((products.digest, *seen), searched)

    if goal.energy is not None or not is_frozen(array):  # joules are those of one machine
        return searched()
    return _searched.get((ByIdentity(products), array, supply, tile, goal), kept)


def which_at_once(costing: Costing) -> Which:
    """The products that are costed at once."""
    searched = costing.schedule.reuse == "step" and costing.on_chip is None and costing.value is None
    return _with_closed_form(costing.array) if searched else "none"


@per_part
def _with_closed_form(array: Any) -> Which:
    if not (isinstance(array, HasClosedForm) and bool(array.folds) and isinstance(array, HasTileEvents)):
        return "none"
    return "single" if isinstance(array, Divisible) else "all"


def rates_by_format(shape: StepShape, array: Array, apart: Iterable[DeviceCost], rates_of: RatesOf) -> Rates:
    """Joules by the format of the multiplications; refuses formats and events that have none, before any energy is read."""
    rates: Rates = {None: rates_of(None)}
    for number, _ in shape.products.numbers:
        rates[number] = rates_of(number if f"mac_{number}" in FORMATS else None)
        rates[number].require(event_names(array), array)
    for cost in apart:
        multiplied = format_of(cost.events)
        if multiplied not in rates:
            rates[multiplied] = rates_of(multiplied)
        rates[multiplied].require(cost.events, array)
    return rates
