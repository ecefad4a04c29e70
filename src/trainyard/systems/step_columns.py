"""The Works of a step in program order as columns: tasks, rows and memory of one device.

What the step and the device's policy decide (`StepColumns`) is put together once for all machines with that policy; what the
numbers of a machine decide is then a few compiled calls. A *cell* is one op of one distinct demand; every row of a result is a copy
of its cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.caches import ByIdentity, per_step
from trainyard.ir import Step, Work
from trainyard.ir.booking import BookingColumns, Traffic
from trainyard.ir.plan import Dependencies
from trainyard.mapping.precision import with_precision
from trainyard.mapping.profile import works
from trainyard.results.booking import IDLE

if TYPE_CHECKING:
    from trainyard.devices.accelerator.batch_costs import BatchCosts
    from trainyard.devices.accelerator.step_shape import Key, StepShape

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
NO_ROW = np.iinfo(np.int64).max


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
    last_cell: npt.NDArray[np.bool_]
    """Cells that are the last of their demand."""
    first_task: Whole
    last_task: Whole
    sizes: Whole
    """Bytes that are held from the start of their first task to the end of their last one."""
    resident_bytes: int


def step_columns(step: Step, shape: StepShape, resource: str) -> StepColumns | None:
    """None where a Work has no demand of its own, or a sum exceeds 64 bits."""
    return _step_columns(step, ByIdentity(shape), resource)


@per_step
def _step_columns(step: Step, shape: ByIdentity[StepShape], resource: str) -> StepColumns | None:
    number, policy = shape.value.number, shape.value.policy
    ordered = works(step, policy)
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
    last_cell = np.zeros(first_cell[-1], np.bool_)
    last_cell[first_cell[1:] - 1] = True
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
        last_cell=last_cell,
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


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Where the part of each cell begins and ends in the time of its demand, and how large it is."""

    begin: Real
    end: Real
    share: Real


def edges_of(columns: StepColumns, costs: BatchCosts) -> Edges:
    from trainyard.kernels.mapping.product_costs import cell_edges

    several, shares = costs.shares
    return Edges(*cell_edges(shares, several, columns.first_cell))


def energy_columns(columns: StepColumns, costs: BatchCosts, edges: Edges) -> Real:
    """[component, row] Joules; a component's sum is that of its column, row by row."""
    from trainyard.kernels.mapping.product_costs import energy_rows

    spent: Real = energy_rows(costs.energy, columns.cell, columns.cell_demand, edges.share)
    return spent


def energy_sums(columns: StepColumns, costs: BatchCosts) -> dict[str, float] | None:
    """Joules by component: sums of the columns that `booking_columns` has; None where events are not counted exactly."""
    from trainyard.devices.accelerator.event_counts import STREAMED, known_events
    from trainyard.devices.accelerator.step_shape import EXACT
    from trainyard.kernels.mapping.step_energy import step_energy

    products, streams = costs.shape.products, costs.shape.streams
    if costs.apart or len(products.numbers) != 1:
        if not costs.exact:
            return None
        spent = energy_columns(columns, costs, edges_of(columns, costs))
        return dict(zip(costs.components, spent.sum(axis=1).tolist(), strict=True))
    known, place = known_events(costs.shape, costs.array, costs.tiles)
    own, rates, others = known.recipes[0], costs.rates[known.recipes[0].number], costs.rates[None]
    spent, largest = step_energy(
        known.counted, place, own.which, own.rows, own.source, own.target, own.size, own.formats, own.mac,
        products.table, costs.product_bytes, products.rows, costs.waiting, products.chains, products.drained, products.lengths,
        streams.table, costs.stream_reads, streams.rows, *rates.terms(own.events), *others.terms(STREAMED),
        len(others.components), costs.cycles, columns.first_cell, columns.cell, columns.cell_demand,
    )  # fmt: skip
    return dict(zip(others.components, spent.sum(axis=1).tolist(), strict=True)) if largest < EXACT else None


def booking_columns(columns: StepColumns, costs: BatchCosts) -> BookingColumns:
    """The rows of a step on one machine."""
    edges, rows = edges_of(columns, costs), columns.cell[:-1]
    bounds = [*map(costs.bounds.__getitem__, columns.cell_demand.tolist()), IDLE]
    return BookingColumns(
        **columns.labels,
        bound=tuple(map(bounds.__getitem__, columns.cell.tolist())),
        macs=columns.macs,
        energy=dict(zip(costs.components, energy_columns(columns, costs, edges), strict=True)),
        traffic=_traffic(columns, costs, edges),
        entries=columns.entries,
        entry=columns.entry,
        row=None,
        begin=edges.begin[rows],
        end=edges.end[rows],
        last=columns.last_cell[rows],
    )


def _traffic(columns: StepColumns, costs: BatchCosts, edges: Edges) -> dict[Key, Whole]:
    """Bytes of every row by key, as integers; keys in the order of the first row that moves any, then in that row's own order."""
    from trainyard.kernels.mapping.product_costs import parts_of

    keys, moved, rank = _all_traffic(costs)
    parts, cells = parts_of(moved, columns.cell_demand, edges.begin, edges.end, columns.last_cell, columns.first_row)
    first, demand = columns.first_row[cells].tolist(), np.append(columns.cell_demand, 0)[cells]
    place = rank[demand, np.arange(len(keys))].tolist()
    named = sorted((key for key in range(len(keys)) if first[key] < NO_ROW), key=lambda key: (first[key], place[key]))
    return {keys[key]: row for key, row in zip(named, parts[named][:, columns.cell], strict=True)}


def _all_traffic(costs: BatchCosts) -> tuple[list[Key], Real, Whole]:
    """Keys, bytes and ranks of all demands, those included that were costed one by one."""
    keys = list(costs.shape.keys)
    moved, rank = costs.moved, costs.shape.rank
    if not costs.apart:
        return keys, moved, rank
    from trainyard.systems.work_rows import traffic_of

    apart: dict[int, Traffic] = {demand: traffic_of(cost) for demand, cost in costs.apart.items()}
    extra = [key for key in dict.fromkeys(key for traffic in apart.values() for key in traffic) if key not in keys]
    keys += extra
    column = {key: number for number, key in enumerate(keys)}
    widths = ((0, 0), (0, len(extra)))
    moved, rank = np.pad(moved, widths), np.pad(rank, widths)
    for demand, traffic in apart.items():
        for place, (key, size) in enumerate(traffic.items()):
            moved[demand, column[key]], rank[demand, column[key]] = size, place
    return keys, moved, rank
