"""`ty.plan_memory`: how little memory a training step can do with on a machine, and what each budget costs in time.

This is what `ty.live.overlay` decides on a real GPU, asked of a machine that need not exist: by blocks (kept or checkpointed as a
whole) or by single tensors (kept, sent over a link to a second memory, or recomputed).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput
from trainyard.ir import Device, Step, System, Work
from trainyard.ir.protocols import TimesIssuedWorks
from trainyard.mapping.overlay.by_blocks import Block, block_choices, blocks_of, issued_works
from trainyard.mapping.overlay.policy import decided_bytes
from trainyard.mapping.overlay.problem import PagedStep, page_step
from trainyard.mapping.overlay.search import enough, ladder
from trainyard.runs import Machine, Workload, step_of
from trainyard.units import parse, show

Unit = Literal["blocks", "tensors"]
LINK = "55 GB/s"
"""measured: page-locked copies between an H200 and its host, docs/gpu.md."""
BUDGETS = 8
"""Budgets between the least and the plain peak, for plans by single tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One way to run the step: its peak of device memory, its time, and the bytes of saved tensors by decision."""

    peak_bytes: int
    time_s: float
    kept_bytes: int
    sent_bytes: int
    recomputed_bytes: int
    checkpointed: tuple[str, ...] = ()
    """Names of the blocks that are computed once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Ways to run a step, from the least memory to the least time: each is faster than all with less memory."""

    name: str
    machine: str
    unit: Unit
    rows: tuple[MemoryRow, ...]
    least_bytes: int
    """The smallest budget that some way fits."""

    def at(self, budget: str | float) -> MemoryRow:
        """The fastest way within a budget."""
        size = int(parse(budget, "B", "budget"))
        place = bisect_right([row.peak_bytes for row in self.rows], size)
        if not place:
            raise BadInput(
                f"{self.name} does not fit {show(size, 'B', digits=4)} on {self.machine}: "
                f"{enough(self.least_bytes)} is the least by {self.unit}"
            )
        return self.rows[place - 1]

    def __str__(self) -> str:
        lines = [
            f"{self.name} on {self.machine}, by {self.unit}",
            f"{'peak':>10} {'step':>10} {'kept':>10} {'sent':>10} {'again':>10}",
        ]
        for row in self.rows:
            sizes = (row.peak_bytes, row.kept_bytes, row.sent_bytes, row.recomputed_bytes)
            peak, *decided = (show(size, "B", binary=True) if size else "" for size in sizes)
            lines.append(" ".join(f"{cell:>10}" for cell in (peak, show(row.time_s, "s"), *decided)))
        return "\n".join(lines)


@suggests_keywords
def plan_memory(
    workload: Workload,
    on: Machine,
    *,
    budget: str | float | None = None,
    unit: Unit = "blocks",
    link: str | float = LINK,
    batch: int | None = None,
) -> MemoryPlan:
    """How little memory a training step can do with on one device, and what each budget costs in time.

    `workload` and `on` are as for `ty.run`. By "blocks", each repeated block of the model is kept or checkpointed; by "tensors",
    each saved tensor is kept, sent over `link` and fetched back, or recomputed. With `budget` the plan has the one row that is the
    fastest within it, and a budget below the least possible is refused with the least possible one.

    >>> plan = plan_memory("bert-large", "h200", batch=64)
    >>> plan.least_bytes < plan.rows[-1].peak_bytes, plan.rows[0].time_s > plan.rows[-1].time_s
    (True, True)
    """
    from trainyard import machines

    step, device = step_of(workload, batch), machines.machine(on)
    if isinstance(device, System) or not isinstance(device, Device):
        raise BadInput(f"plan_memory is about one device, got {on}: a node pages by its own field overlay=as_needed")
    if unit not in ("blocks", "tensors"):
        raise BadInput(f"unit must be 'blocks' or 'tensors', got {unit!r}")
    rate = float(parse(link, "B/s", "link"))
    rows = _by_blocks(step, device) if unit == "blocks" else _by_tensors(step, device, rate, budget)
    machine = on if isinstance(on, str) else type(on).__name__
    front = _front(rows)
    plan = MemoryPlan(name=step.name, machine=machine, unit=unit, rows=front, least_bytes=front[0].peak_bytes)
    return plan if budget is None else replace(plan, rows=(plan.at(budget),))


def _front(rows: list[MemoryRow]) -> tuple[MemoryRow, ...]:
    """Rows that are faster than all with less memory, sorted by memory."""
    front: list[MemoryRow] = []
    for row in sorted(rows, key=lambda row: (row.peak_bytes, row.time_s)):
        if not front or row.time_s < front[-1].time_s:
            front.append(row)
    return tuple(front)


class _Costs:
    """Works of a step on a device and their times."""

    def __init__(self, step: Step, device: Device) -> None:
        self.step, self.device = step, device
        self.works = device.works(step)
        self.durations_s = [self._seconds(work) for work in self.works]

    def _seconds(self, work: Work) -> float:
        return self.device.cost(self.step, work, None).cycles / self.device.clock_hz

    def again_s(self, ops: tuple[int, ...]) -> float:
        return sum(self._seconds(Work(ops=(op,))) for op in ops)

    def paged(self, rate: float, *, recompute: bool) -> PagedStep:
        from trainyard.systems.work_rows import in_device_precision

        return page_step(
            in_device_precision(self.step, self.device),
            self.works,
            self.durations_s,
            self.again_s if recompute else None,
            out_bytes_per_s=rate,
            in_bytes_per_s=rate,
            products=True,
        )


def _by_blocks(step: Step, device: Device) -> list[MemoryRow]:
    costs = _Costs(step, device)
    paged = costs.paged(1.0, recompute=False)
    total = sum(tensor.bytes for tensor in paged.problem.saved)
    seconds_of = None
    if isinstance(device, TimesIssuedWorks):
        timed = device

        def seconds_of(checkpointed: Sequence[Block]) -> float:
            return timed.issued_s(step, issued_works(costs.works, checkpointed))

    return [
        MemoryRow(
            peak_bytes=way.choice.peak_bytes,
            time_s=way.choice.time_s,
            kept_bytes=total - way.recomputed_bytes,
            sent_bytes=0,
            recomputed_bytes=way.recomputed_bytes,
            checkpointed=way.checkpointed,
        )
        for way in block_choices(paged.problem, blocks_of(step, costs.works, paged), seconds_of)
    ]


def _by_tensors(step: Step, device: Device, rate: float, budget: str | float | None) -> list[MemoryRow]:
    paged = _Costs(step, device).paged(rate, recompute=True)
    problem, budgets = paged.problem, ladder(paged.problem)
    span = budgets.most - budgets.least
    sizes = {budgets.least, *(budgets.least + span * number // BUDGETS for number in range(1, BUDGETS + 1))}
    if budget is not None:
        requested = int(parse(budget, "B", "budget"))
        sizes = {budgets.least, max(requested, budgets.least)}
    rows = []
    for size in sorted(sizes):
        choice = budgets.climb(size)
        kept, sent, again = (decided_bytes(problem, choice, decision) for decision in ("keep", "send", "recompute"))
        row = MemoryRow(
            peak_bytes=choice.peak_bytes, time_s=choice.time_s, kept_bytes=kept, sent_bytes=sent, recomputed_bytes=again
        )
        rows.append(row)
    return rows
