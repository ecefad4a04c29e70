"""One device: its Works in program order on one stream, its memory a pool.

A device that costs all Works of a step at once (`batch_costs`) is booked as columns (`systems.program`). Work by Work is the
exception: devices without that capability, steps with masks on an array that looks at them, and counts beyond 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from trainyard.devices.accelerator.batch_costs import BatchCosts
from trainyard.ir import Device, DeviceCost, Masks, Step, Work
from trainyard.ir.booking import Booking, Traffic
from trainyard.ir.plan import LONGEST_PS, Plan
from trainyard.ir.protocols import CostsWholeSteps, HasArray, HasCapacity, HasPrecision
from trainyard.mapping.precision import with_precision
from trainyard.results.booking import split
from trainyard.systems.program import Program, ledger, lives, program
from trainyard.units import PICOSECONDS_PER_SECOND

MEMORY = "device memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A system of one device; what `ty.run` makes of a bare device."""

    device: Device
    name: str = "device"

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        costs: BatchCosts | None = self.device.batch_costs(step, masks) if isinstance(self.device, CostsWholeSteps) else None
        given = None if costs is None else program(step, costs.terms.policy, self.name)
        if costs is not None and given is not None:
            times = [picoseconds(cycles, self.device.clock_hz) for cycles in costs.cycles.tolist()]
            if max(times, default=0) < LONGEST_PS:
                return self._at_once(given, costs, times)
        return self.work_by_work(step, masks)

    def _at_once(self, given: Program, costs: BatchCosts, times: Sequence[int]) -> Plan:
        import numpy as np

        plan = Plan()
        booking, stream = plan.booking, plan.stream(self.name)
        plan.tasks(stream, np.array(times, np.int64)[given.which], after=given.waits, tags=np.arange(len(given.which)))
        pool = plan.pool(MEMORY, capacity_of(self.device), resident_bytes=given.resident_bytes)
        plan.allocate(given.first_task, given.last_task, pool, given.sizes)
        booking.columns = ledger(given, costs, {demand: off_chip(cost) for demand, cost in costs.apart.items()})
        booking.cycles = int(costs.cycles[given.which].sum())
        booking.array_cycles = (
            int(costs.compute_cycles[given.which][given.multiplies].sum()) if isinstance(self.device, HasArray) else None
        )
        return plan

    def work_by_work(self, step: Step, masks: Masks | None = None) -> Plan:
        plan = Plan()
        booking = plan.booking
        stream = plan.stream(self.name)
        works = self.device.works(step)
        task_of_op: dict[int, int] = {}
        cycles = array_cycles = 0
        spent: dict[int, tuple[Mapping[str, float], Traffic]] = {}
        costs: list[DeviceCost] = []  # an id stays its own only while the cost lives
        for work in works:
            cost = self.device.cost(step, work, masks)
            cycles += cost.cycles
            array_cycles += cost.compute_cycles if any(step.ops[index].is_product for index in work.ops) else 0
            costs.append(cost)
            if id(cost) not in spent:  # identical Works share one cost
                spent[id(cost)] = self.device.energy(cost.events), off_chip(cost)
            tag = enter(booking, step, work, cost, *spent[id(cost)], self.name)
            before = {task_of_op[op] for index in work.ops for op in step.dependencies[index] if op in task_of_op}
            task = plan.task(stream, picoseconds(cost.cycles, self.device.clock_hz), after=sorted(before), tag=tag)
            task_of_op.update(dict.fromkeys(work.ops, task))
        capacity = capacity_of(self.device)
        kept = as_held(step, self.device)
        pool = plan.pool(MEMORY, capacity, resident_bytes=kept.resident_bytes)
        book_memory(plan, pool, kept, task_of_op)
        booking.cycles = cycles
        booking.array_cycles = array_cycles if isinstance(self.device, HasArray) else None
        booking.uncertainty_cycles = math.sqrt(sum(cost.uncertainty**2 for cost in costs))
        return plan


def capacity_of(device: Device) -> int | None:
    """Bytes of a device's own memory; None where it states no limit."""
    return device.dram_capacity_bytes if isinstance(device, HasCapacity) else None


def as_held(step: Step, device: Device) -> Step:
    """A step whose tensors have the element types of a device's precision, where it has one."""
    return with_precision(step, device.precision if isinstance(device, HasPrecision) else None)


def picoseconds(cycles: int, clock_hz: float) -> int:
    """Cycles on the engine's clock, rounded up so that nothing ends early."""
    numerator, denominator = clock_hz.as_integer_ratio()
    return -(-cycles * PICOSECONDS_PER_SECOND * denominator // numerator)


def enter(
    booking: Booking,
    step: Step,
    work: Work,
    cost: DeviceCost,
    energy: Mapping[str, float],
    traffic: Traffic,
    resource: str,
    copies: int = 1,
) -> int:
    """Books one Work: a row for each of its ops; energy and bytes are divided among them as the time is.

    `copies` identical devices are booked as one.
    """
    rows = []
    shared = (traffic,) if len(work.ops) == 1 else shares_of(traffic, cost.share)
    for index, share, moved in zip(work.ops, cost.share, shared, strict=True):
        op = step.ops[index]
        row = booking.row(
            op.name,
            layer=op.layer,
            phase=op.phase.value,
            resource=resource,
            bound=cost.bound,
            macs=op.macs * copies,
            energy=energy if share == 1.0 else {part: joules * share for part, joules in energy.items()},
            traffic=moved,
        )
        rows.append(row)
    return booking.entry(rows, cost.share)


def shares_of(traffic: Traffic, shares: Sequence[float]) -> list[Traffic]:
    """Whole bytes for each op of a Work; every key sums to what the Work moved."""
    parts: list[dict[tuple[str, str, str], int]] = [{} for _ in shares]
    for key, count in traffic.items():
        for part, own in zip(parts, split(count, shares), strict=True):
            if own:
                part[key] = own
    return list(parts)


def off_chip(cost: DeviceCost) -> Traffic:
    traffic = {("dram", tensor, str(direction)): count for (tensor, direction), count in cost.bytes.items() if count}
    for level, direction in product(("scratchpad", "local"), ("read", "write")):
        if moved := round(cost.events.get(f"{level}_{direction}", 0)):
            traffic[level, "all", direction] = moved
    return traffic


def book_memory(plan: Plan, pool: int, step: Step, task_of_op: Mapping[int, int]) -> None:
    """Every tensor that is not resident takes memory from its producer's start to its last user's end."""
    first, last, sizes = lives(step, task_of_op)
    plan.allocate(first, last, pool, sizes)
