"""A step on one device, all of it at once: what the step and the device's policy decide is put together once, as columns.

A `cell` is one op of one distinct demand (`devices.accelerator.batch_costs`): what a machine's numbers decide is worked out for
cells, and every row of the plan is a copy of its cell. The plain twin books Work by Work (`systems.single`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from trainyard.caches import per_step
from trainyard.devices.accelerator.batch_costs import BatchCosts, Key
from trainyard.ir import Step, Work
from trainyard.ir.booking import BookingColumns, Traffic
from trainyard.ir.plan import Dependencies
from trainyard.mapping.demand import Policy
from trainyard.mapping.precision import with_precision
from trainyard.mapping.profile import profile, works
from trainyard.results.booking import IDLE

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
NOBODY = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Program:
    """The Works of a step in program order, their rows, and the memory that they hold."""

    which: Whole
    """The demand of each Work."""
    multiplies: npt.NDArray[np.bool_]
    """Works with a product in them."""
    waits: Dependencies
    cell: Whole
    """The cell of each row; of the idle time's, one that nobody has."""
    cell_demand: Whole
    first_cell: Whole
    first_row: Whole
    """Of each cell, the first row that is one of it."""
    labels: Mapping[str, tuple[str, ...]]
    macs: Whole
    entries: tuple[tuple[int, ...], ...]
    entry: Whole
    first_task: Whole
    last_task: Whole
    sizes: Whole
    resident_bytes: int


@per_step
def program(step: Step, policy: Policy, resource: str) -> Program | None:
    """None where a Work is no device's alone, or a sum leaves 64 bits."""
    number, found = profile(step, policy).number, works(step, policy)
    kept = with_precision(step, policy.precision)
    if any(work.ops not in number for work in found) or max(step.macs, *(size for _, size in kept.transients), 0) >= 2**62:
        return None
    task_of_op = {op: task for task, work in enumerate(found) for op in work.ops}
    ops = [step.ops[index] for work in found for index in work.ops]
    entries, rows = list[tuple[int, ...]](), 0
    for work in found:
        entries.append(tuple(range(rows, rows + len(work.ops))))
        rows += len(work.ops)
    which = [number[work.ops] for work in found]
    length = {demand: len(work.ops) for demand, work in zip(which, found, strict=True)}
    first_cell = np.array([0, *accumulate(length[demand] for demand in range(len(length)))])
    cell = [int(first_cell[demand]) + place for demand, work in zip(which, found, strict=True) for place in range(len(work.ops))]
    first_row = np.full(first_cell[-1] + 1, NOBODY)
    np.minimum.at(first_row, cell, np.arange(rows))
    first_task, last_task, sizes = lives(kept, task_of_op)
    macs = np.array([*(op.macs for op in ops), 0], np.int64)
    macs.flags.writeable = False  # results share it
    return Program(
        which=np.array(which, np.int64),
        multiplies=np.array([any(step.ops[index].is_product for index in work.ops) for work in found], np.bool_),
        waits=_waits(step, found, task_of_op),
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
        entry=np.array([task for task, work in enumerate(found) for _ in work.ops], np.int64),
        first_task=np.array(first_task, np.int64),
        last_task=np.array(last_task, np.int64),
        sizes=np.array(sizes, np.int64),
        resident_bytes=kept.resident_bytes,
    )


def _waits(step: Step, found: tuple[Work, ...], task_of_op: Mapping[int, int]) -> Dependencies:
    """For Works that come before; a Work may also hold what it waits for itself."""
    return Dependencies.of(
        [
            sorted({task_of_op[op] for index in work.ops for op in step.dependencies[index] if task_of_op.get(op, task) < task})
            for task, work in enumerate(found)
        ]
    )


def lives(step: Step, task_of_op: Mapping[int, int]) -> tuple[list[int], list[int], list[int]]:
    """Of every tensor that is not resident: its producer's task, that of its last user, its bytes."""
    first, last, sizes = [], [], []
    for users, size in step.transients:
        if size and users[0] in task_of_op:
            first.append(task_of_op[users[0]])
            last.append(max(task_of_op.get(user, 0) for user in users))
            sizes.append(size)
    return first, last, sizes


def ledger(given: Program, costs: BatchCosts, apart: Mapping[int, Traffic]) -> BookingColumns:
    """The rows of a step on one machine; `apart` is the traffic of demands that were costed one by one."""
    begin, end, share = np.zeros(len(given.cell_demand)), np.ones(len(given.cell_demand)), np.ones(len(given.cell_demand))
    edges = np.cumsum(costs.shares, axis=1)
    edges[costs.shares[:, 0] == 1.0] = 1.0
    first, place = given.first_cell[costs.several], np.arange(edges.shape[1])
    ops = (given.first_cell[costs.several + 1] - first)[:, None]
    cells, inside, before = first[:, None] + place, place < ops, place < ops - 1
    share[cells[inside]] = costs.shares[inside]
    begin[cells[before] + 1] = end[cells[before]] = edges[before]
    last_cell = np.zeros(len(end), np.bool_)
    last_cell[given.first_cell[1:] - 1] = True
    rows, spent = given.cell[:-1], np.zeros((len(costs.energy), len(share) + 1))
    spent[:, :-1] = [joules[given.cell_demand] for joules in costs.energy.values()]
    spent[:, :-1] *= share
    bounds = [costs.bounds[demand] for demand in given.cell_demand.tolist()] + [IDLE]
    return BookingColumns(
        **given.labels,
        bound=tuple(map(bounds.__getitem__, given.cell.tolist())),
        macs=given.macs,
        energy=dict(zip(costs.energy, spent[:, given.cell], strict=True)),
        traffic=_traffic(given, costs, apart, begin, end, last_cell),
        entries=given.entries,
        entry=given.entry,
        row=None,
        begin=begin[rows],
        end=end[rows],
        last=last_cell[rows],
    )


def _traffic(
    given: Program, costs: BatchCosts, apart: Mapping[int, Traffic], begin: Real, end: Real, last: npt.NDArray[np.bool_]
) -> dict[Key, Whole]:
    """Whole bytes of every row by key, the keys as the rows name them: by the first that moves any, then in its own order."""
    from trainyard.kernels.mapping.product_costs import parts_of

    keys, moved, rank = _with(costs, apart)
    parts, cells = parts_of(moved, given.cell_demand, begin, end, last, given.first_row)
    first, demand = given.first_row[cells].tolist(), np.append(given.cell_demand, 0)[cells]
    place = rank[demand, np.arange(len(keys))].tolist()
    named = sorted((key for key in range(len(keys)) if first[key] < NOBODY), key=lambda key: (first[key], place[key]))
    return {keys[key]: row for key, row in zip(named, parts[named][:, given.cell], strict=True)}


def _with(costs: BatchCosts, apart: Mapping[int, Traffic]) -> tuple[list[Key], Real, Whole]:
    """The sheet's traffic with that of demands that were costed one by one: keys, bytes, ranks."""
    keys = list(costs.terms.keys)
    extra = [key for key in dict.fromkeys(key for traffic in apart.values() for key in traffic) if key not in keys]
    if not apart:
        return keys, costs.moved, costs.terms.rank
    keys += extra
    column = {key: number for number, key in enumerate(keys)}
    widths = ((0, 0), (0, len(extra)))
    moved, rank = np.pad(costs.moved, widths), np.pad(costs.terms.rank, widths)
    for demand, traffic in apart.items():
        for place, (key, size) in enumerate(traffic.items()):
            moved[demand, column[key]], rank[demand, column[key]] = size, place
    return keys, moved, rank
