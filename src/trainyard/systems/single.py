"""One device: its Works in program order on one stream, its memory a pool.

A device that costs all Works of a step at once (`batch_costs`) is booked as columns (`systems.step_columns`). Work by Work is the
exception: devices without that capability, and counts beyond 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.ir import Device, DeviceCost, Masks, Step
from trainyard.ir.booking import Traffic
from trainyard.ir.plan import LONGEST_PS, Plan, picoseconds
from trainyard.ir.protocols import CostsWholeSteps, HasArray, HasCapacity
from trainyard.progress import counted
from trainyard.systems.step_columns import StepColumns, booking_columns, energy_sums, step_columns

if TYPE_CHECKING:
    from trainyard.devices.accelerator.batch_costs import BatchCosts

Whole = npt.NDArray[np.int64]
MEMORY = "device memory"
"""The name of a device's memory pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A system of one device; what `ty.run` makes of a bare device."""

    device: Device
    name: str = "device"

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        schedule = self.schedule(step, masks)
        return self.work_by_work(step, masks) if schedule is None or not schedule.costs.exact else schedule.plan()

    def schedule(self, step: Step, masks: Masks | None = None) -> ProgramSchedule | None:
        """The step's tasks as columns; None where they have to be planned one by one."""
        from trainyard.kernels.mapping.product_costs import durations

        costs: BatchCosts | None = self.device.batch_costs(step, masks) if isinstance(self.device, CostsWholeSteps) else None
        columns = None if costs is None else step_columns(step, costs.shape, self.name)
        numerator, denominator = self.device.clock_hz.as_integer_ratio()
        if costs is None or columns is None or max(numerator, denominator) >= LONGEST_PS:
            return None
        times, end_ps, cycles, array_cycles = durations(
            costs.cycles,
            costs.compute_cycles,
            columns.demand,
            columns.multiplies,
            float(self.device.clock_hz),
            numerator,
            denominator,
        )
        if end_ps < 0:
            return None
        return ProgramSchedule(
            system=self, columns=columns, costs=costs, durations_ps=times, end_ps=end_ps, cycles=cycles,
            array_cycles=array_cycles if isinstance(self.device, HasArray) else None,
        )  # fmt: skip

    def work_by_work(self, step: Step, masks: Masks | None = None) -> Plan:
        """One task and its rows after the other; the oracle of the column form."""
        from trainyard.systems.work_rows import book_memory, book_work, capacity_of, in_device_precision, traffic_of

        plan = Plan()
        booking = plan.booking
        stream = plan.stream(self.name)
        works = self.device.works(step)
        task_of_op: dict[int, int] = {}
        cycles = array_cycles = 0
        spent: dict[int, tuple[Mapping[str, float], Traffic]] = {}
        costs: list[DeviceCost] = []  # an id stays its own only while the cost lives
        for work in counted(works, "layers and phases"):
            cost = self.device.cost(step, work, masks)
            cycles += cost.cycles
            array_cycles += cost.compute_cycles if any(step.ops[index].is_product for index in work.ops) else 0
            costs.append(cost)
            if id(cost) not in spent:  # identical Works share one cost
                spent[id(cost)] = self.device.energy(cost.events), traffic_of(cost)
            tag = book_work(booking, step, work, cost, *spent[id(cost)], self.name)
            before = {task_of_op[op] for index in work.ops for op in step.dependencies[index] if op in task_of_op}
            task = plan.task(stream, picoseconds(cost.cycles, self.device.clock_hz), after=sorted(before), tag=tag)
            task_of_op.update(dict.fromkeys(work.ops, task))
        stored = in_device_precision(step, self.device)
        pool = plan.pool(MEMORY, capacity_of(self.device), resident_bytes=stored.resident_bytes)
        book_memory(plan, pool, stored, task_of_op)
        booking.cycles = cycles
        booking.array_cycles = array_cycles if isinstance(self.device, HasArray) else None
        booking.uncertainty_cycles = math.sqrt(sum(cost.uncertainty**2 for cost in costs))
        return plan


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgramSchedule:
    """The Works of a step on one device, one after the other. A task waits for earlier ones alone, so none waits at all."""

    system: Single
    columns: StepColumns
    costs: BatchCosts
    durations_ps: Whole
    """By demand."""
    end_ps: int
    cycles: int
    array_cycles: int | None

    def energy_by_component(self) -> dict[str, float] | None:
        """Joules of the step; None where the twin has to count its events."""
        return energy_sums(self.columns, self.costs)

    def plan(self) -> Plan:
        """The same tasks for the engine's clock."""
        plan, columns, device = Plan(), self.columns, self.system.device
        plan.tasks(
            plan.stream(self.system.name),
            self.durations_ps[columns.demand],
            after=columns.waits,
            tags=np.arange(len(columns.demand)),
        )
        capacity = device.dram_capacity_bytes if isinstance(device, HasCapacity) else None
        pool = plan.pool(MEMORY, capacity, resident_bytes=columns.resident_bytes)
        plan.allocate(columns.first_task, columns.last_task, pool, columns.sizes)
        plan.booking.columns = booking_columns(columns, self.costs)
        plan.booking.cycles, plan.booking.array_cycles = self.cycles, self.array_cycles
        plan.booking.uncertainty_cycles = self.costs.uncertainty_cycles
        return plan
