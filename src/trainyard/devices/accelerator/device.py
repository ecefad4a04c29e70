"""An accelerator: an array with a scratchpad, DRAM and a clock.

A product is cut into tiles that pass through the scratchpad while the array works (`mapping.tiling`); everything else is a stream
between DRAM and a vector unit. A layer costs the sum of its tile steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainyard.caches import BoundedCache, ByIdentity, is_frozen, kept_on_disk, per_part
from trainyard.checks import require_choice, require_positive
from trainyard.construction import NonNegative, NonNegativeInt, Positive, part, settable
from trainyard.devices.accelerator.batch_costs import BatchCosts, batch_costs, masked_costs
from trainyard.devices.accelerator.chained import Across, chosen, stays_apart
from trainyard.devices.accelerator.consistency import OWNER, require_consistent
from trainyard.devices.accelerator.costs import Costing
from trainyard.devices.accelerator.energy import EnergyRates, energy_rates, events_per_cycle, format_of, tile_prices
from trainyard.devices.accelerator.family import NUMBERS, ArrayEnergy, StepFamily
from trainyard.devices.accelerator.masked_tiles import what_is_seen
from trainyard.devices.accelerator.ordered import Division, Schedule, TileReuse, require_order
from trainyard.devices.accelerator.side_by_side import require_divisible
from trainyard.devices.accelerator.step_shape import ACCUMULATOR_BYTES, asked_of_sums
from trainyard.errors import BadInput
from trainyard.hardware.tables.technology import require_node
from trainyard.ir import Array, Collective, DeviceCost, Masks, Step, Work, assumed
from trainyard.ir.protocols import HasComponents, HasLocalBuffers, uses_operand_values
from trainyard.mapping.constraints import NO_CONSTRAINTS, checked_mapping
from trainyard.mapping.demand import Demand, Im2col, Policy, Scope
from trainyard.mapping.levels.array import OnChip
from trainyard.mapping.levels.level import Level, checked_levels
from trainyard.mapping.levels.stages import Wire
from trainyard.mapping.lowering import GradInput
from trainyard.mapping.precision import UNIT_RATES, MacRates, checked_precision, checked_rates
from trainyard.mapping.profile import RAW, Profile, demand, profile, works
from trainyard.mapping.tiling import Goal, Objective, Supply
from trainyard.mapping.works import Fusion, Together, is_exchange
from trainyard.masks.dma import Densities, densities, stored_sizes
from trainyard.results.result import Peaks

if TYPE_CHECKING:
    from trainyard.hardware.tables.energy import Component
    from trainyard.results.loop_nests import LoopNest

Dma = Literal["raw", "zero_compressed", "bitmap", "csr", "csc", "coo", "rlc4", "rlc2"]
Reuse = Literal["step", "lru", "farthest", "window", "operands", "layers", "slices", "on", "off", "none"]
"""Tiles that stay within a product (`step` to `operands`), or tensors between layers; `on` is `layers`, `off` is `step`."""
REUSES = get_args(Reuse)
REUSE_NAMES: Mapping[str | bool, str] = {"on": "layers", True: "layers", "off": "step", "none": "step", False: "step"}
BETWEEN_LAYERS = ("layers", "slices")
DramKind = Literal["hbm2", "gddr6", "ddr4", "lpddr4"]
CACHED_COSTS, CACHED_STEPS = 4096, 8
"""Distinct costs, and things known of whole steps, that a device keeps."""


@part
class Accelerator:
    """Fields hold SI numbers; the constructor also takes quantities with units under their plain names.

    The scratchpad may be cut into `scratchpad_banks` equal banks: an access then costs the energy of one of them. With
    `dma="zero_compressed"` zeros that masks tell of do not cross the DRAM's pins (`hardware.formats.zero_compression`); with the
    name of a format tensors lie in DRAM in that format (`hardware.formats.matrices`) where it makes them smaller. On chip
    everything has its full size. `order` says how dX and dW of a layer follow each other: `sequential`, or their tiles in turn as
    IGO has them (`interleaved`, `dx_major`, `dw_major`), so that dY is read once where it stays; `paper` chooses by Algorithm 1
    (`paper_mnk`: with k innermost), `cost` takes the best; `no_second_dy` is the bound of its Sec. 3.3. With `reuse` the
    scratchpad keeps the tiles of two steps (`step`), or as many as fit, the least recent leaving first, or those needed last
    (`lru`, `farthest`; a fused order keeps at least `lru`), or those of one half alone (`window`), or operands but no sums
    (`operands`); `layers` keeps whole tensors between layers where they fit (`devices.accelerator.between`), `slices` also those
    of blocks of layers that run for some samples or rows at a time (`sliced`). `partition` cuts gradients of a layer along m, n or
    k into `parts`, or, with several `cores` of this array that share scratchpad and DRAM, into one for each; `cost` takes the
    fastest (`devices.accelerator.ordered`). With `across="relu"` two layers that only a ReLU, or other element-wise ops, keep apart
    are done in one go where that is faster: what goes from one to the other stays on chip (`devices.accelerator.chained`). `rates`
    says how many products of a narrow type a multiplier makes in a cycle (`{"fp8": 2}`), 1 where it does not. With
    `together="gradients"` dX and dW of a layer share an array that can be divided, and with it scratchpad and DRAM, where that is
    faster than one after the other (`devices.accelerator.side_by_side`). `levels` are memories inside the scratchpad, from outside
    to inside (`mapping.levels`); `scratchpad_width` is the bytes per cycle of the port that feeds them, or the array; without it
    nothing waits there. `mapping` fixes tiles, loop orders and what stays, by layer (`mapping.constraints`). The search makes
    `objective` least; among tilings within `tolerance` of the least it looks at those within `tolerance` of the least traffic, and
    takes the one of them with the least energy; `effort` bounds its work, and the result says so.

    >>> from trainyard.arrays import Systolic
    >>> npu = Accelerator(array=Systolic(rows=128, columns=128), scratchpad="8 MiB", dram="150 GB/s", clock="1.05 GHz")
    >>> npu.scratchpad_bytes, npu.dram_bytes_per_s, npu.clock_hz
    (8388608, 150000000000.0, 1050000000.0)
    """

    array: Array
    scratchpad_bytes: int
    dram_bytes_per_s: float
    clock_hz: float = 1.0e9
    dram_latency_s: float = 100e-9
    dram_capacity_bytes: int | None = None
    precision: str | Mapping[str, str] | None = None
    rates: Mapping[str, int] = UNIT_RATES
    order: str = "sequential"
    tiling: Literal["search"] | tuple[int, int, int] = "search"
    mapping: Mapping[str, object] | str = NO_CONSTRAINTS
    objective: Objective = "time"
    tolerance: NonNegative = 0.01
    effort: NonNegativeInt = 0
    scratchpad_banks: int = 1
    dma: Dma = "raw"
    together: Together = "none"
    reuse: Reuse | bool = "step"
    cores: int = 1
    partition: Division = "none"
    parts: int = 2
    square_below: Positive = 4.0
    across: Across = "none"
    scratchpad_width_bytes_per_cycle: float | None = None
    scratchpad_write_width_bytes_per_cycle: float | None = None
    levels: tuple[Level, ...] = ()
    # fmt: off
    fusion: Fusion = assumed("epilogue", "element-wise ops go with the product in front of them", "none")
    scope: Scope = assumed("all", "which ops are simulated", "products", choice=True)
    im2col: Im2col = assumed(
        "raw", "a convolution reads each element once and unfolds it on chip, or reads the unfolded matrix", "materialised")
    line_buffer: bool = assumed(
        True, "rows that tiles or bands of a convolution share stay in a line buffer (not counted for IGO's orders)", False)
    grad_input: GradInput = assumed(
        "col2im", "dX of a strided convolution adds up windows, or multiplies inserted zeros", "dilated")
    vector_lanes: int = assumed(1024, "element-wise operations per cycle (TPU v2: 128 lanes of 8)", 128)
    accumulator_bytes: int = assumed(ACCUMULATOR_BYTES, "bytes of an unfinished sum in the scratchpad", 2)
    technology_nm: float = assumed(16, "technology node, for energy and area", 7, only="energy_j")
    dram_kind: DramKind = assumed(
        "hbm2", "type of DRAM, for energy", "ddr4", only="energy_j")
    # fmt: on
    _steps: BoundedCache = field(default_factory=lambda: BoundedCache(entries=CACHED_STEPS), init=False, repr=False, compare=False)
    _costs: BoundedCache = field(default_factory=lambda: BoundedCache(entries=CACHED_COSTS), init=False, repr=False, compare=False)

    if TYPE_CHECKING:  # `part` makes it: every field, and quantities also under their names without units

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.array, type) or not isinstance(self.array, Array):
            raise BadInput(f"{OWNER}: array must be an array such as Systolic(rows=128, columns=128), got {self.array!r}")
        reuse = REUSE_NAMES.get(self.reuse, self.reuse)
        if reuse not in REUSES:
            require_choice(OWNER, reuse=(reuse, REUSES))
        for name, given, checked in (
            ("precision", self.precision, checked_precision(self.precision)),
            ("rates", self.rates, checked_rates(self.rates)),
            ("reuse", self.reuse, reuse),
            ("levels", self.levels, checked_levels(self.levels, OWNER)),
            ("tiling", self.tiling, self.tiling if self.tiling == "search" else _tile(self.tiling)),
            ("mapping", self.mapping, checked_mapping(self.mapping)),
        ):
            if checked is not given:
                object.__setattr__(self, name, checked)
        require_order(self.order)
        if self.together != "none":
            require_divisible(self.array, f"{OWNER}: together={self.together!r}")
        require_consistent(self)
        require_node(self.technology_nm)
        if (self.objective, self.tolerance) != ("time", 0.01):
            from trainyard.devices.accelerator.goals import require_goal

            require_goal(self)

    @property
    def _on_chip(self) -> OnChip | None:
        """Memory between scratchpad and array that may be waited for."""
        width, write_width = self.scratchpad_width_bytes_per_cycle, self.scratchpad_write_width_bytes_per_cycle
        if not self.levels and width is None and write_width is None:
            return None
        return OnChip(levels=self.levels, outside=Wire(width, write_width), accumulator_bytes=self.accumulator_bytes)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.cores * self.array.peak_macs_per_cycle

    @property
    def peaks(self) -> Peaks:
        return Peaks(
            macs_per_s=self.peak_macs_per_cycle * self.clock_hz * MacRates(self.rates).of(self.number),
            dram_bytes_per_s=self.dram_bytes_per_s,
            technology=f"{self.technology_nm:g} nm",
        )

    @property
    def masks_note(self) -> str:
        """What a result says of masks that this accelerator makes no use of."""
        if uses_operand_values(self.array) or self.dma != "raw":
            return ""
        array = type(self.array).__name__
        return f"the {array} array computes zeros like any other number, and dma=raw moves them: masks change nothing"

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        """Assumptions that change nothing in a step: of convolutions where it has none, of sums as wide as their results."""
        unfolds, overlaps, inputs, narrowest = asked_of_sums(step, self.grad_input, self.policy.precision)
        without_effect = {
            "im2col": not unfolds,
            "line_buffer": not (overlaps or self.reuse == "slices") or self.im2col == "materialised",
            "grad_input": not inputs,
            "accumulator_bytes": narrowest >= max(self.accumulator_bytes, ACCUMULATOR_BYTES),
            "fusion": self.scope == "products",
            "vector_lanes": self.scope == "products",
        }
        return frozenset(name for name, nothing in without_effect.items() if nothing)

    @property
    def supply(self) -> Supply:
        """What a product's tiles get: half of the scratchpad, the DRAM in cycles of this clock."""
        return Supply(
            resident_bytes=self.scratchpad_bytes / 2,
            bytes_per_cycle=self.dram_bytes_per_s / self.clock_hz,
            latency_cycles=math.ceil(self.dram_latency_s * self.clock_hz * (1 - 1e-12)),  # 100 ns at 1 GHz is 100, not 101
        )

    @property
    def policy(self) -> Policy:
        return _cached_policy(
            precision=self.precision,
            fusion=self.fusion,
            scope=self.scope,
            im2col=self.im2col,
            line_buffer=self.line_buffer,
            grad_input=self.grad_input,
            accumulator_bytes=self.accumulator_bytes,
            together=self.together,
            paired=self.paired,
            rates=self.rates,
            mapping=self.mapping,
        )

    @property
    def paired(self) -> bool:
        """Whether dX and dW of a layer are one Work: not where each has tiles and steps of its own."""
        return self.order != "sequential" or self.tile_reuse != "step"

    @property
    def between_layers(self) -> bool:
        """Whether tensors stay on chip from one Work to the next."""
        return self.reuse in BETWEEN_LAYERS

    @property
    def tile_reuse(self) -> TileReuse:
        """Which tiles stay within a Work."""
        return "step" if self.between_layers else self.reuse  # type: ignore[return-value]  # one of the three, by `REUSE_NAMES`

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            order=self.order,
            reuse=self.tile_reuse,
            cores=self.cores,
            partition=self.partition,
            parts=self.parts,
            square_below=self.square_below,
        )

    @property
    def _costing(self) -> Costing:
        bank = self.scratchpad_bytes / self.scratchpad_banks
        prices = tile_prices(*_own_energy(self.array), bank, self.number, events_per_cycle(self.array))
        costing = Costing(
            array=self.array,
            supply=self.supply,
            vector_lanes=self.vector_lanes,
            tile=None if self.tiling == "search" else (self.tiling[0], self.tiling[1], self.tiling[2]),
            schedule=self.schedule,
            goal=Goal(prices=prices),
            on_chip=self._on_chip,
        )
        if (self.objective, self.tolerance, self.effort) == ("time", 0.01, 0):
            return costing
        from trainyard.devices.accelerator.goals import goal_of, value_of

        return replace(costing, goal=goal_of(self, prices), value=value_of(self))

    def works(self, step: Step) -> tuple[Work, ...]:
        return works(step, self._policy(step)[0])

    def _policy(self, step: Step) -> tuple[Policy, Mapping[Demand, DeviceCost]]:
        """With the layers of this step that go on into each other, and the tensors that stay between layers, where that pays; and
        what was costed to find out."""
        if self.mapping:
            self._steps.get(("mapping", ByIdentity(step)), self._require_mapping(step))
        if self.between_layers:
            return self._steps.get(("between", ByIdentity(step)), lambda: self._between(step))
        if self.across == "none" or stays_apart(self.schedule):
            return self.policy, {}
        return self._steps.get(("across", ByIdentity(step)), lambda: self._across(step))

    def _require_mapping(self, step: Step) -> Callable[[], None]:
        from trainyard.devices.accelerator.constrained import require_mapping

        return lambda: require_mapping(step, self.policy, self.supply, reuse=self.tile_reuse)

    def _across(self, step: Step) -> tuple[Policy, Mapping[Demand, DeviceCost]]:
        heads, costs = chosen(step, self.policy, self._costing.costs, self._costing.orderly)
        return replace(self.policy, across=heads), costs

    def _between(self, step: Step) -> tuple[Policy, Mapping[Demand, DeviceCost]]:
        from trainyard.devices.accelerator.between import chosen_between

        return chosen_between(step, self.policy, self._costing, self.scratchpad_bytes, slices=self.reuse == "slices")

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost:
        zeros = self._zeros(step, masks)
        if masks is not None and uses_operand_values(self.array):
            if self.reuse == "slices":  # zeros are known of whole tensors
                return self._with_whole_tensors.cost(step, work, masks)
            asked = self._demand(step, work, self._masked_policy(step, masks, zeros), zeros)
            masked_cost = self._masked_cost(step, work, asked, masks)
            return masked_cost or self._costs.get(("demand", asked), lambda: self._costing.costs((asked,))[0])
        demands, costs = self._step_costs(step, zeros)
        number = demands.number.get(work.ops)
        if number is None:
            return self._costing.costs((demand(step, work, self.policy, zeros),))[0]
        return costs[number]

    def _demand(self, step: Step, work: Work, policy: Policy, zeros: Densities) -> Demand:
        """What one of its Works asks for; that of all Works of a step is found once."""
        demands = profile(step, policy, zeros)
        number = demands.number.get(work.ops)
        return demand(step, work, policy, zeros) if number is None else demands.demands[number]

    @property
    def _with_whole_tensors(self) -> Accelerator:
        return self._steps.get("layers", lambda: replace(self, reuse="layers"))

    def _masked_policy(self, step: Step, masks: Masks, zeros: Densities) -> Policy:
        """Tensors to keep are chosen for dense operands; none are kept where zeros make that slower."""
        kept = self._policy(step)[0]
        if kept.residency is None:
            return kept

        def total(policy: Policy) -> tuple[int, int]:
            demands = [(work, demand(step, work, policy, zeros)) for work in works(step, policy) if not is_exchange(step, work)]
            costs = [self._masked_cost(step, *one, masks) or self._costing.costs((one[1],))[0] for one in demands]
            return sum(cost.cycles for cost in costs), sum(sum(cost.bytes.values()) for cost in costs)

        key = ("kept", ByIdentity(step), ByIdentity(masks))
        return self._steps.get(key, lambda: min((self.policy, kept), key=total))

    def _masked_cost(self, step: Step, work: Work, demand: Demand, masks: Masks) -> DeviceCost | None:
        """Products that are alike in demand and zeros are costed once, whatever else is in their step."""
        key = (demand, what_is_seen(step, work, masks))
        return self._costs.get(key, lambda: self._costing.masked(step, work, demand, masks))

    def _zeros(self, step: Step, masks: Masks | None) -> Densities:
        """Densities of the tensors that a compressing DMA engine moves."""
        if masks is None or self.dma == "raw":
            return RAW
        stored = partial(densities, step, masks) if self.dma == "zero_compressed" else partial(stored_sizes, step, masks, self.dma)
        return _stored_zeros.get((ByIdentity(step), ByIdentity(masks), self.dma), stored)

    def _step_costs(self, step: Step, zeros: Densities) -> tuple[Profile, list[DeviceCost]]:
        """All distinct demands of a step, costed together the first time one is asked for."""
        return self._steps.get(("costs", ByIdentity(step), ByIdentity(zeros)), lambda: self._cost_all(step, zeros))

    def _cost_all(self, step: Step, zeros: Densities) -> tuple[Profile, list[DeviceCost]]:
        """Steps of one model at several batch sizes share the costs of demands that do not change."""
        policy, costed = self._policy(step)
        if zeros and policy.residency is not None:  # tensors to keep are chosen for what is not compressed
            from trainyard.devices.accelerator.between import better

            policy = better(step, (self.policy, policy), self._costing, zeros)
        demands_of_step = profile(step, policy, zeros)
        costs: dict[Demand, DeviceCost] = self._steps.get("demands", dict)
        if len(costs) > CACHED_COSTS:
            costs = self._steps.put("demands", {})  # another thread may be reading the full one
        missing = [demand for demand in demands_of_step.demands if demand not in costed and demand not in costs]
        costs.update(zip(missing, self._costing.costs(missing), strict=True))
        return demands_of_step, [costed[demand] if demand in costed else costs[demand] for demand in demands_of_step.demands]

    def batch_costs(self, step: Step, masks: Masks | None = None) -> BatchCosts | None:
        """All Works of a step costed at once; None where they have to be costed one by one."""
        if masks is not None and uses_operand_values(self.array):
            zeros = self._zeros(step, masks)
            policy = self._masked_policy(step, masks, zeros)
            return masked_costs(step, policy, zeros, self._costing, self._energy_rates(), lambda work: self.cost(step, work, masks))
        if masks is not None and self.dma != "raw":
            return None
        family = self._family(step) if is_frozen(self.array) and kept_on_disk() is None else None
        if family is not None:
            bank = self.scratchpad_bytes / self.scratchpad_banks
            return family.costs(self.supply, bank, self.technology_nm, self.dram_kind)
        policy, known_costs = self._policy(step)
        return batch_costs(step, policy, self._costing, self._energy_rates(), known_costs)

    def _family(self, step: Step) -> StepFamily | None:
        """What all machines share that differ from this one in `family.NUMBERS` alone; None where a step or a policy is not of the
        plain kind."""
        return _families.get((ByIdentity(step), *_shared_fields()(self)), lambda: self._new_family(step))

    def _new_family(self, step: Step) -> StepFamily | None:
        goal = (self.objective, self.tolerance, self.effort)
        if self.mapping or self.between_layers or self.across != "none" or goal != ("time", 0.01, 0):
            return None
        components, local = _own_energy(self.array)
        own = ArrayEnergy(components=components, local_bytes=local, per_cycle=events_per_cycle(self.array))
        return StepFamily.of(step, self.policy, self._costing, self.number, own)

    def loop_nests(self, step: Step, masks: Masks | None = None) -> tuple[LoopNest, ...]:
        """The mapping of each Work of a step: tiles, loops at each memory, what moves how often."""
        from trainyard.devices.accelerator.loop_nests import nests_of

        if masks is not None and uses_operand_values(self.array) and self.reuse == "slices":
            return self._with_whole_tensors.loop_nests(step, masks)
        residency = self._policy(step)[0].residency
        on_chip = residency.by_work if residency else {}
        return tuple(
            nest
            for work in self.works(step)
            if not isinstance(step.ops[work.ops[0]].body, Collective)
            for nest in nests_of(step, work, self.cost(step, work, masks), on_chip.get(work.ops), self.effort)
        )

    def step_notes(self, step: Step, masks: Masks | None = None) -> tuple[str, ...]:
        """What a result says of the search."""
        if not self.effort:
            return ()
        from trainyard.devices.accelerator.goals import search_notes

        return search_notes(self, step, masks)

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component: events times rows of `hardware.tables.energy` at this node, and of the array's own rows where it has
        some. Identical layers share their events."""
        return self._costs.get(ByIdentity(events), lambda: self._energy_rates()(format_of(events)).joules(events, self.array))

    def _energy_rates(self) -> Callable[[str | None], EnergyRates]:
        """Joules of events by the format of the array's own arithmetic, None for that of the multipliers."""
        own, local = _own_energy(self.array)
        bank, multiplier, nm = self.scratchpad_bytes / self.scratchpad_banks, self.number, self.technology_nm
        levels = tuple((level.name, level.joules_per_byte("read", nm), level.joules_per_byte("write", nm)) for level in self.levels)
        return lambda number: energy_rates(own, local, bank, nm, self.dram_kind, multiplier, number or multiplier, levels)

    @property
    def number(self) -> str:
        """The format of the multipliers: the precision of activations, fp32 where the step decides."""
        if isinstance(self.precision, str):
            return self.precision
        return (self.precision or {}).get("activation", "fp32")

    def area(self) -> dict[str, float]:
        """Square metres by component: multipliers with adders, or the array's own rows where it has some, and memories."""
        from trainyard.devices.accelerator.area import areas_of

        return areas_of(self).total

    @property
    def leakage_w(self) -> float:
        """Static power of the memories and the table's multipliers, beside what `energy` counts."""
        from trainyard.devices.accelerator.area import leakage_of

        return leakage_of(self)


@per_part
def _own_energy(array: Array) -> tuple[tuple[Component, ...], float | None]:
    """The rows of energy that an array brings with it, and the bytes of its local scratchpads."""
    components = tuple(array.components) if isinstance(array, HasComponents) else ()
    return components, array.local_bytes if isinstance(array, HasLocalBuffers) else None


@cache
def _shared_fields() -> Callable[[Accelerator], tuple[object, ...]]:
    """The fields that machines of a family share."""
    return attrgetter(*(name for name in settable(Accelerator) if name not in NUMBERS))


_families = BoundedCache(entries=32)
"""By step, and by all fields that a family shares."""
_stored_zeros = BoundedCache(entries=8)
"""What a DMA engine knows of the zeros of a step, for all machines that compress alike."""
_cached_policy = lru_cache(maxsize=64)(Policy)  # machines that differ in their numbers share the object, so that it compares fast


def _tile(tiling: Any) -> tuple[int, int, int]:
    if isinstance(tiling, str) or not isinstance(tiling, Sequence) or len(tiling) != 3:
        raise BadInput(f"{OWNER}: tiling must be 'search' or three sizes (m, n, k), got {tiling!r}")
    require_positive(OWNER, **{f"tiling[{axis}]": size for axis, size in zip("mnk", tiling, strict=True)})
    return (tiling[0], tiling[1], tiling[2])
