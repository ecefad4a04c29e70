"""An accelerator: an array with a scratchpad, DRAM and a clock.

A product is cut into tiles that pass through the scratchpad while the array works (`mapping.tiling`); everything else is a stream
between DRAM and a vector unit. A layer costs the sum of its tile steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trainyard.devices.costs import Costing
from trainyard.devices.demand import Im2col, Policy, Scope
from trainyard.devices.precision import Precision, precision_of
from trainyard.devices.profile import Profile, demand, fusion_of, profile
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Array, DeviceCost, Masks, Step, Work, assumed
from trainyard.mapping.lowering import GradInput
from trainyard.mapping.tiling import Supply
from trainyard.mapping.works import Fusion, group, require_order
from trainyard.parts import area, energy
from trainyard.parts.checks import require_positive, require_quantity
from trainyard.parts.nodes import require_node
from trainyard.results import Peaks
from trainyard.units import parse, require_likely

DramKind = Literal["hbm2", "gddr6", "ddr4", "lpddr4"]
OWNER = "Accelerator"
REMEMBERED = 4096
"""Distinct costs whose energy is kept."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Accelerator:
    """Fields hold SI numbers; the constructor also takes quantities with units under their plain names.

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
    order: str = "sequential"
    tiling: Literal["search"] | tuple[int, int, int] = "search"
    # fmt: off
    fusion: Literal["epilogue", "none"] = assumed("epilogue", "element-wise ops go with the product in front of them", "none")
    scope: Literal["all", "products"] = assumed("all", "which ops are simulated", "products", choice=True)
    im2col: Literal["raw", "materialised"] = assumed(
        "raw", "a convolution reads each element once and unfolds it on chip, or reads the unfolded matrix", "materialised")
    grad_input: Literal["col2im", "dilated"] = assumed(
        "col2im", "dX of a strided convolution adds up windows, or multiplies inserted zeros", "dilated")
    vector_lanes: int = assumed(1024, "element-wise operations per cycle (TPU v2: 128 lanes of 8)", 128)
    accumulator_bytes: int = assumed(4, "bytes of an unfinished sum in the scratchpad", 2)
    technology_nm: float = assumed(16, "technology node, for energy and area", 7)
    dram_kind: Literal["hbm2", "gddr6", "ddr4", "lpddr4"] = assumed("hbm2", "type of DRAM, for energy", "ddr4")
    # fmt: on
    _known: dict[Any, Any] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        *,
        array: Array,
        scratchpad: str | float | None = None,
        dram: str | float | None = None,
        clock: str | float | None = None,
        dram_latency: str | float | None = None,
        dram_capacity: str | float | None = None,
        scratchpad_bytes: float | None = None,
        dram_bytes_per_s: float | None = None,
        clock_hz: float | None = None,
        dram_latency_s: float | None = None,
        dram_capacity_bytes: float | None = None,
        precision: str | Mapping[str, str] | None = None,
        order: str = "sequential",
        tiling: Literal["search"] | Sequence[int] = "search",
        fusion: Fusion = "epilogue",
        scope: Scope = "all",
        im2col: Im2col = "raw",
        grad_input: GradInput = "col2im",
        vector_lanes: int = 1024,
        accumulator_bytes: int = 4,
        technology_nm: float = 16,
        dram_kind: DramKind = "hbm2",
    ) -> None:
        if isinstance(array, type) or not isinstance(array, Array):
            raise BadInput(f"{OWNER}: array must be an array such as Systolic(rows=128, columns=128), got {array!r}")
        capacity = _quantity("dram_capacity", dram_capacity, "dram_capacity_bytes", dram_capacity_bytes, "B", None)
        values = {
            "array": array,
            "scratchpad_bytes": _whole(_quantity("scratchpad", scratchpad, "scratchpad_bytes", scratchpad_bytes, "B")),
            "dram_bytes_per_s": _quantity("dram", dram, "dram_bytes_per_s", dram_bytes_per_s, "B/s"),
            "clock_hz": _quantity("clock", clock, "clock_hz", clock_hz, "Hz", 1.0e9),
            "dram_latency_s": _quantity("dram_latency", dram_latency, "dram_latency_s", dram_latency_s, "s", 100e-9),
            "dram_capacity_bytes": None if capacity is None else _whole(capacity),
            "precision": precision_of(precision),
            "order": order,
            "tiling": tiling if tiling == "search" else _tile(tiling),
            "fusion": _choice("fusion", fusion, get_args(Fusion)),
            "scope": _choice("scope", scope, get_args(Scope)),
            "im2col": _choice("im2col", im2col, get_args(Im2col)),
            "grad_input": _choice("grad_input", grad_input, get_args(GradInput)),
            "vector_lanes": vector_lanes,
            "accumulator_bytes": accumulator_bytes,
            "technology_nm": technology_nm,
            "dram_kind": _choice("dram_kind", dram_kind, get_args(DramKind)),
            "_known": {},
        }
        require_order(order)
        require_positive(OWNER, vector_lanes=vector_lanes, accumulator_bytes=accumulator_bytes)
        require_node(technology_nm)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.array.peak_macs_per_cycle

    @property
    def peaks(self) -> Peaks:
        return Peaks(
            macs_per_s=self.peak_macs_per_cycle * self.clock_hz,
            dram_bytes_per_s=self.dram_bytes_per_s,
            technology=f"{self.technology_nm:g} nm",
        )

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
        return Policy(
            precision=self.precision if isinstance(self.precision, str | None) else Precision(self.precision),
            fusion=self.fusion,
            scope=self.scope,
            im2col=self.im2col,
            grad_input=self.grad_input,
            accumulator_bytes=self.accumulator_bytes,
        )

    @property
    def _costing(self) -> Costing:
        return Costing(
            array=self.array,
            supply=self.supply,
            vector_lanes=self.vector_lanes,
            tile=None if self.tiling == "search" else (self.tiling[0], self.tiling[1], self.tiling[2]),
        )

    def works(self, step: Step) -> tuple[Work, ...]:
        return group(step, fusion_of(self.policy))

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost:
        if masks is not None and not hasattr(self.array, "folds"):
            found = self._costing.masked(step, work, demand(step, work, self.policy), masks)
            if found is not None:
                return found
        known, costs = self._costs(step)
        number = known.number.get(work.ops)
        if number is None or work.grouping not in ("single", "chain"):
            return self._costing.costs((demand(step, work, self.policy),))[0]
        return costs[number]

    def _costs(self, step: Step) -> tuple[Profile, list[DeviceCost]]:
        """All distinct demands of a step, costed together the first time one is asked for."""
        if self._known.get("step") is not step:
            known = profile(step, self.policy)
            self._known.update(step=step, profile=known, costs=self._costing.costs(known.demands))
        return self._known["profile"], self._known["costs"]

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component: events times rows of `parts.energy` at this node."""
        same, found = self._known.get(id(events), (None, {}))
        if same is events:  # identical layers share their events
            return found  # type: ignore[no-any-return]  # what was kept below
        rates = self._known.get("joules") or self._known.setdefault("joules", self._joules())
        found = dict.fromkeys(("mac", "scratchpad", "dram", "vector"), 0.0)
        unnamed = events.get("mac", 0.0)
        for event, count in events.items():
            if event in rates:
                component, joules = rates[event]
                found[component] += count * joules
                unnamed -= count if component == "mac" else 0.0
        found["mac"] += unnamed * energy.mac_joules(self.number, self.technology_nm)
        if len(self._known) < REMEMBERED:
            self._known[id(events)] = (events, found)
        return found

    def _joules(self) -> dict[str, tuple[str, float]]:
        nm = self.technology_nm
        sram, dram = energy.sram_joules_per_byte(self.scratchpad_bytes, nm), energy.dram_joules_per_byte(self.dram_kind)
        # fmt: off
        return {
            "scratchpad_read":  ("scratchpad", sram),
            "scratchpad_write": ("scratchpad", sram),
            "dram_read":        ("dram", dram),
            "dram_write":       ("dram", dram),
            "vector_op":        ("vector", energy.add_joules("fp32", nm)),
            **{f"mac_{row.name}": ("mac", energy.mac_joules(row.name, nm)) for row in energy.MULTIPLY},
        }
        # fmt: on

    @property
    def number(self) -> str:
        """The format of the multipliers: the precision of activations, fp32 where the step decides."""
        if isinstance(self.precision, str):
            return self.precision
        return (self.precision or {}).get("activation", "fp32")

    def area(self) -> dict[str, float]:
        """Square metres by component: multipliers with their adders, and the scratchpad."""
        return {
            "mac": self.peak_macs_per_cycle * area.mac_m2(self.number, self.technology_nm),
            "scratchpad": area.sram_m2(self.scratchpad_bytes, self.technology_nm),
        }


def _quantity(
    plain: str, given: str | float | None, named: str, number: float | None, unit: str, default: float | None = -1.0
) -> Any:
    """One quantity, given with its unit, or as an SI number under the field's own name, or by default (-1: needed)."""
    if given is not None and number is not None:
        raise BadInput(f"{OWNER}: give {plain} or {named}, not both")
    if given is None and number is None:
        if default is not None and default < 0:
            example = {"B": "8 MiB", "B/s": "150 GB/s"}[unit]
            raise BadInput(f"{OWNER} needs {plain} (such as {plain}={example!r}) or {named}")
        return default
    name, value = (plain, given) if number is None else (named, number)
    assert value is not None
    found = parse(value, unit, f"{OWNER}: {name}")
    if number is None and not isinstance(value, str):
        require_likely(found, unit, plain, named)
    require_quantity(OWNER, zero=unit == "s", **{name: found})
    return found


def _whole(size: float) -> int:
    if size != int(size):
        raise BadInput(f"{OWNER}: {size!r} bytes is not a whole number of bytes")
    return int(size)


def _choice(name: str, given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise UnknownName(name, str(given), known, where=OWNER)
    return given


def _tile(tiling: Any) -> tuple[int, int, int]:
    if isinstance(tiling, str) or not isinstance(tiling, Sequence) or len(tiling) != 3:
        raise BadInput(f"{OWNER}: tiling must be 'search' or three sizes (m, n, k), got {tiling!r}")
    require_positive(OWNER, **{f"tiling[{axis}]": size for axis, size in zip("mnk", tiling, strict=True)})
    return (tiling[0], tiling[1], tiling[2])
