"""One device: its Works in program order on one stream, its memory a pool.

A device that costs all Works of a step at once (`batch_costs`) is booked as columns: what the step and the device's policy decide
(`StepColumns`) is put together once for all machines with that policy, what a machine's numbers decide is then a few array
operations. A *cell* is one op of one distinct demand; every row of the plan is a copy of its cell. Work by Work is the exception:
devices without that capability, steps with masks on an array that looks at them, and counts beyond 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.caches import per_step
from trainyard.ir import Device, DeviceCost, Masks, Step, Work
from trainyard.ir.booking import BookingColumns, Traffic
from trainyard.ir.plan import LONGEST_PS, Dependencies, Plan, picoseconds
from trainyard.ir.protocols import CostsWholeSteps, HasArray, HasCapacity
from trainyard.mapping.precision import with_precision
from trainyard.mapping.profile import profile, works
from trainyard.results.booking import IDLE

if TYPE_CHECKING:
    from trainyard.devices.accelerator.batch_costs import BatchCosts, Key
    from trainyard.mapping.demand import Policy

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
NO_ROW = np.iinfo(np.int64).max
MEMORY = "device memory"
"""The name of a device's memory pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A system of one device; what `ty.run` makes of a bare device."""

    device: Device
    name: str = "device"

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        costs: BatchCosts | None = self.device.batch_costs(step, masks) if isinstance(self.device, CostsWholeSteps) else None
        columns = None if costs is None else step_columns(step, costs.shape.policy, self.name)
        if costs is not None and columns is not None:
            times = [picoseconds(cycles, self.device.clock_hz) for cycles in costs.cycles.tolist()]
            if max(times, default=0) < LONGEST_PS:
                return self._plan_columns(columns, costs, times)
        return self.work_by_work(step, masks)

    def _plan_columns(self, columns: StepColumns, costs: BatchCosts, times: Sequence[int]) -> Plan:
        """All tasks and rows at once."""
        plan, demand = Plan(), columns.demand
        booking, stream = plan.booking, plan.stream(self.name)
        plan.tasks(stream, np.array(times, np.int64)[demand], after=columns.waits, tags=np.arange(len(demand)))
        capacity = self.device.dram_capacity_bytes if isinstance(self.device, HasCapacity) else None
        pool = plan.pool(MEMORY, capacity, resident_bytes=columns.resident_bytes)
        plan.allocate(columns.first_task, columns.last_task, pool, columns.sizes)
        booking.columns = booking_columns(columns, costs)
        booking.cycles = int(costs.cycles[demand].sum())
        if isinstance(self.device, HasArray):
            booking.array_cycles = int(costs.compute_cycles[demand][columns.multiplies].sum())
        return plan

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
        for work in works:
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepColumns:
    """The Works of a step in program order, their rows, and the memory that they hold."""

    demand: Whole
    """The number of each Work's demand."""
    multiplies: npt.NDArray[np.bool_]
    """Works with a product in them."""
    waits: Dependencies
    cell: Whole
    """The cell of each row; that of the idle row is one past the last."""
    cell_demand: Whole
    first_cell: Whole
    first_row: Whole
    """The first row that is a copy of each cell."""
    labels: Mapping[str, tuple[str, ...]]
    macs: Whole
    entries: tuple[tuple[int, ...], ...]
    entry: Whole
    first_task: Whole
    last_task: Whole
    sizes: Whole
    resident_bytes: int


@per_step
def step_columns(step: Step, policy: Policy, resource: str) -> StepColumns | None:
    """None where a Work has no demand of its own, or a sum exceeds 64 bits."""
    number, ordered = profile(step, policy).number, works(step, policy)
    stored = with_precision(step, policy.precision)
    if any(work.ops not in number for work in ordered) or max(step.macs, *(size for _, size in stored.transients), 0) >= 2**62:
        return None
    task_of_op = {op: task for task, work in enumerate(ordered) for op in work.ops}
    ops = [step.ops[index] for work in ordered for index in work.ops]
    entries, rows = list[tuple[int, ...]](), 0
    for work in ordered:
        entries.append(tuple(range(rows, rows + len(work.ops))))
        rows += len(work.ops)
    demands = [number[work.ops] for work in ordered]
    length = {demand: len(work.ops) for demand, work in zip(demands, ordered, strict=True)}
    first_cell = np.array([0, *accumulate(length[demand] for demand in range(len(length)))])
    cell = [
        int(first_cell[demand]) + place for demand, work in zip(demands, ordered, strict=True) for place in range(len(work.ops))
    ]
    first_row = np.full(first_cell[-1] + 1, NO_ROW)
    np.minimum.at(first_row, cell, np.arange(rows))
    first_task, last_task, sizes = stored.lifetimes(task_of_op)
    macs = np.array([*(op.macs for op in ops), 0], np.int64)
    macs.flags.writeable = False  # results share it
    return StepColumns(
        demand=np.array(demands, np.int64),
        multiplies=np.array([any(step.ops[index].is_product for index in work.ops) for work in ordered], np.bool_),
        waits=_dependencies(step, ordered, task_of_op),
        cell=np.array([*cell, first_cell[-1]], np.int64),
        cell_demand=np.array([demand for demand in range(len(length)) for _ in range(length[demand])], np.int64),
        first_cell=first_cell,
        first_row=first_row,
        labels={
            "op": (*(op.name for op in ops), IDLE),
            "layer": (*(op.layer for op in ops), ""),
            "phase": (*(op.phase.value for op in ops), IDLE),
            "resource": (*(resource for _ in ops), ""),
            "kind": (*("compute" for _ in ops), IDLE),
        },
        macs=macs,
        entries=tuple(entries),
        entry=np.array([task for task, work in enumerate(ordered) for _ in work.ops], np.int64),
        first_task=np.array(first_task, np.int64),
        last_task=np.array(last_task, np.int64),
        sizes=np.array(sizes, np.int64),
        resident_bytes=stored.resident_bytes,
    )


def _dependencies(step: Step, ordered: tuple[Work, ...], task_of_op: Mapping[int, int]) -> Dependencies:
    """The earlier Works that each Work waits for; what it depends on inside itself is left out."""
    return Dependencies.of(
        [
            sorted({task_of_op[op] for index in work.ops for op in step.dependencies[index] if task_of_op.get(op, task) < task})
            for task, work in enumerate(ordered)
        ]
    )


def booking_columns(columns: StepColumns, costs: BatchCosts) -> BookingColumns:
    """The rows of a step on one machine."""
    begin, end, share = np.zeros(len(columns.cell_demand)), np.ones(len(columns.cell_demand)), np.ones(len(columns.cell_demand))
    edges = np.cumsum(costs.shares, axis=1)
    edges[costs.shares[:, 0] == 1.0] = 1.0
    first, place = columns.first_cell[costs.several], np.arange(edges.shape[1])
    ops = (columns.first_cell[costs.several + 1] - first)[:, None]
    cells, inside, before = first[:, None] + place, place < ops, place < ops - 1
    share[cells[inside]] = costs.shares[inside]
    begin[cells[before] + 1] = end[cells[before]] = edges[before]
    last_cell = np.zeros(len(end), np.bool_)
    last_cell[columns.first_cell[1:] - 1] = True
    rows, spent = columns.cell[:-1], np.zeros((len(costs.energy), len(share) + 1))
    spent[:, :-1] = [joules[columns.cell_demand] for joules in costs.energy.values()]
    spent[:, :-1] *= share
    bounds = [costs.bounds[demand] for demand in columns.cell_demand.tolist()] + [IDLE]
    return BookingColumns(
        **columns.labels,
        bound=tuple(map(bounds.__getitem__, columns.cell.tolist())),
        macs=columns.macs,
        energy=dict(zip(costs.energy, spent[:, columns.cell], strict=True)),
        traffic=_traffic(columns, costs, begin, end, last_cell),
        entries=columns.entries,
        entry=columns.entry,
        row=None,
        begin=begin[rows],
        end=end[rows],
        last=last_cell[rows],
    )


def _traffic(columns: StepColumns, costs: BatchCosts, begin: Real, end: Real, last: npt.NDArray[np.bool_]) -> dict[Key, Whole]:
    """Bytes of every row by key, as integers; keys in the order of the first row that moves any, then in that row's own order."""
    from trainyard.kernels.mapping.product_costs import parts_of

    keys, moved, rank = _all_traffic(costs)
    parts, cells = parts_of(moved, columns.cell_demand, begin, end, last, columns.first_row)
    first, demand = columns.first_row[cells].tolist(), np.append(columns.cell_demand, 0)[cells]
    place = rank[demand, np.arange(len(keys))].tolist()
    named = sorted((key for key in range(len(keys)) if first[key] < NO_ROW), key=lambda key: (first[key], place[key]))
    return {keys[key]: row for key, row in zip(named, parts[named][:, columns.cell], strict=True)}


def _all_traffic(costs: BatchCosts) -> tuple[list[Key], Real, Whole]:
    """Keys, bytes and ranks of all demands, those included that were costed one by one."""
    keys = list(costs.shape.keys)
    if not costs.apart:
        return keys, costs.moved, costs.shape.rank
    from trainyard.systems.work_rows import traffic_of

    apart: dict[int, Traffic] = {demand: traffic_of(cost) for demand, cost in costs.apart.items()}
    extra = [key for key in dict.fromkeys(key for traffic in apart.values() for key in traffic) if key not in keys]
    keys += extra
    column = {key: number for number, key in enumerate(keys)}
    widths = ((0, 0), (0, len(extra)))
    moved, rank = np.pad(costs.moved, widths), np.pad(costs.shape.rank, widths)
    for demand, traffic in apart.items():
        for place, (key, size) in enumerate(traffic.items()):
            moved[demand, column[key]], rank[demand, column[key]] = size, place
    return keys, moved, rank
