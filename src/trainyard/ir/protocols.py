"""The three kinds of machine parts, and what they hand to each other.

An Array is pure: dimensions and operands in, cycles and events out. A Device groups ops into Works and costs each.
A System makes a Plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from trainyard.ir.assumptions import Assumption
from trainyard.ir.operands import DENSE, MaskSource, Operand
from trainyard.ir.ops import MatMul
from trainyard.ir.step import Step

if TYPE_CHECKING:
    from trainyard.ir.plan import Plan

Masks = MaskSource
Direction = Literal["read", "write", "spill"]
Grouping = Literal["single", "gradient_pair", "concurrent", "chain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product with what is known of its operands' zeros."""

    op: MatMul
    a: Operand = DENSE
    b: Operand = DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCost:
    """`cycles` for all of it; `finish` when each product of it ends; `events` to be multiplied with an energy table.

    `uncertainty` is the half-width, in cycles, of the 95 % interval where outputs were sampled; 0 where all were looked at.
    """

    cycles: int
    finish: tuple[int, ...] = ()
    events: Mapping[str, float] = field(default_factory=dict)
    uncertainty: float = 0.0


@runtime_checkable
class Array(Protocol):
    """A compute fabric: stateless, no clock."""

    @property
    def peak_macs_per_cycle(self) -> int: ...

    def granule(self) -> tuple[int, int, int]:
        """The natural (m, n, k) of a tile."""
        ...

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost: ...

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        """Several products at once; one after another where the fabric cannot be divided."""
        ...


def one_after_another(array: Array, products: Sequence[Product]) -> ArrayCost:
    """The default of `Array.concurrent`."""
    finish: list[int] = []
    events: dict[str, float] = {}
    cycles, squares = 0, 0.0
    for product in products:
        cost = array.cost(product.op, a=product.a, b=product.b)
        cycles += cost.cycles
        finish.append(cycles)
        squares += cost.uncertainty**2
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
    return ArrayCost(cycles=cycles, finish=tuple(finish), events=events, uncertainty=math.sqrt(squares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Ops, by number in the step, that a device does together."""

    ops: tuple[int, ...]
    grouping: Grouping = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """What one Work costs a device.

    `bytes` counts off-chip traffic by tensor and direction; `share` divides cycles among the Work's ops and sums to 1; `bound`
    names what it waits for (compute, dram, launch, ...); `events` count all that costs energy, DRAM bytes included (`dram_read`).
    `uncertainty` is that of its array's cycles (`ArrayCost`).
    """

    cycles: int
    compute_cycles: int
    bytes: Mapping[tuple[str, Direction], int]
    share: tuple[float, ...]
    events: Mapping[str, float] = field(default_factory=dict)
    bound: str = "compute"
    assumptions: tuple[Assumption, ...] = ()
    uncertainty: float = 0.0


@runtime_checkable
class Device(Protocol):
    """An array with memory and a clock."""

    @property
    def clock_hz(self) -> float: ...

    def works(self, step: Step) -> Sequence[Work]:
        """The step's ops grouped by this device's mapping policy; every op once, in an order that respects dependencies."""
        ...

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost: ...

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component: events times the rows of this device's table."""
        ...


@runtime_checkable
class System(Protocol):
    """Devices, links and memory pools."""

    def plan(self, step: Step, masks: Masks | None = None) -> Plan: ...
