"""The pipeline of a DPU, instruction by instruction: tasklets in round robin, one DMA engine, barriers.

UPMEM's rule (J. Gomez-Luna et al., IEEE Access 10, 2022: PrIM; F. Devaux, Hot Chips 2019): the pipeline takes one instruction in a
cycle, from tasklets in turn, and one of the same tasklet at the earliest 11 cycles after the one before; eleven tasklets fill it. A
transfer between MRAM and WRAM stops its own tasklet alone until it has ended; the engine serves one after the other, each for a
fixed time and half a cycle a byte.

A program is, for each tasklet, a row of segments: so many instructions, a transfer, a barrier. `simulate` runs it compiled,
`plain` cycle by cycle, and `require_legal` refuses a list of issues that breaks a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, NotModelled

Whole = npt.NDArray[np.int64]
Kind = Literal["run", "read", "write", "barrier"]
KINDS: tuple[Kind, ...] = ("run", "read", "write", "barrier")
FINEST = 1 << 20
"""Parts of a cycle in which the time of a byte is counted, so that both models add whole numbers."""


class Segment(NamedTuple):
    """`amount` instructions, bytes of a transfer, or nothing for a barrier; a transfer and a barrier are one instruction each."""

    kind: Kind
    amount: int = 0


Program = Sequence[Sequence[Segment]]
"""One row of segments for each tasklet."""


class Issue(NamedTuple):
    """One instruction enters the pipeline."""

    cycle: int
    tasklet: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """`dma_wait` sums the cycles that transfers stood in front of a busy engine; `issues` are the first instructions, if asked."""

    cycles: int
    instructions: int
    dma_busy: int
    dma_wait: int
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the rules need; cycles of one clock.

    >>> Pipeline().transfer(2048), Pipeline().transfer(8)
    (1101, 81)
    >>> Pipeline().simulate([[Segment("run", 100)]] * 11).cycles, Pipeline().simulate([[Segment("run", 100)]]).cycles
    (1110, 1100)
    """

    interval: int = 11
    read_fixed: int = 77
    write_fixed: int = 61
    cycles_per_byte: float = 0.5
    longest_transfer: int = 2048

    def __post_init__(self) -> None:
        require_positive("Pipeline", interval=self.interval, longest_transfer=self.longest_transfer)
        require_quantity(
            "Pipeline", zero=True, read_fixed=self.read_fixed, write_fixed=self.write_fixed, cycles_per_byte=self.cycles_per_byte
        )

    def transfer(self, size: int, kind: Kind = "read") -> int:
        """Cycles that the engine is busy with one transfer."""
        fixed = self.read_fixed if kind == "read" else self.write_fixed
        return fixed + -(-size * round(self.cycles_per_byte * FINEST) // FINEST)

    def simulate(self, program: Program, issues: int = 0) -> Ran:
        """Compiled; the first `issues` instructions are written down."""
        from trainyard.kernels import dpu_pipeline as compiled

        self._require(program)
        rows = [segment for tasklet in program for segment in tasklet]
        kinds = np.array([KINDS.index(segment.kind) for segment in rows], np.int64)
        amounts = np.array([segment.amount for segment in rows], np.int64)
        starts = np.cumsum([0, *map(len, program)], dtype=np.int64)
        per_byte = round(self.cycles_per_byte * FINEST)
        rules = np.array([self.interval, self.read_fixed, self.write_fixed, per_byte, FINEST], np.int64)
        noted = np.empty((issues, 2), np.int64)
        found = compiled.simulate(kinds, amounts, starts, rules, noted)
        return Ran(
            cycles=int(found[compiled.CYCLES]),
            instructions=int(found[compiled.INSTRUCTIONS]),
            dma_busy=int(found[compiled.DMA_BUSY]),
            dma_wait=int(found[compiled.DMA_WAIT]),
            issues=tuple(Issue(int(cycle), int(tasklet)) for cycle, tasklet in noted[: found[compiled.INSTRUCTIONS]]),
        )

    def require_legal(self, program: Program, issues: Sequence[Issue]) -> None:
        """Refuses what the hardware would not take: two in a cycle, a tasklet too early, one that waits, one that is over."""
        self._require(program)
        tasklets, engine = [_Tasklet(row) for row in program], _Engine(self)
        before = -1
        for cycle, number in issues:
            if cycle <= before:
                raise BadInput(f"two instructions in cycle {cycle}: the pipeline takes one")
            tasklet = tasklets[number]
            if tasklet.over:
                raise BadInput(f"tasklet {number} issues in cycle {cycle}, its program is over")
            if tasklet.waiting:
                raise BadInput(f"tasklet {number} issues in cycle {cycle}, it waits at a barrier")
            if cycle < tasklet.ready:
                raise BadInput(f"tasklet {number} issues in cycle {cycle}, it may from cycle {tasklet.ready} on")
            engine.issue(tasklet, cycle)
            engine.release(tasklets, cycle)
            before = cycle

    def _require(self, program: Program) -> None:
        if not program:
            raise BadInput("a DPU's program needs at least one tasklet")
        barriers = [sum(segment.kind == "barrier" for segment in tasklet) for tasklet in program]
        if len(set(barriers)) > 1:
            raise BadInput(f"all tasklets meet at a barrier: they have {barriers} of them")
        for segment in (segment for tasklet in program for segment in tasklet):
            if segment.kind not in KINDS or segment.amount < 0:
                raise BadInput(f"{segment!r}: a segment is one of {', '.join(KINDS)} with an amount of at least 0")
            if segment.kind in ("read", "write") and not 0 < segment.amount <= self.longest_transfer:
                raise NotModelled(
                    f"a transfer of {segment.amount} bytes: the engine moves 1 to {self.longest_transfer}, cut it into pieces"
                )


class _Tasklet:
    """Where a tasklet stands in its program."""

    def __init__(self, row: Sequence[Segment]) -> None:
        self.segments = [segment for segment in row if segment.kind != "run" or segment.amount]
        self.at, self.left, self.ready, self.waiting = 0, 0, 0, False
        self._begin()

    def _begin(self) -> None:
        self.left = 0 if self.over else max(1, self.segments[self.at].amount if self.segments[self.at].kind == "run" else 1)

    @property
    def over(self) -> bool:
        return self.at == len(self.segments)

    def step(self) -> Segment:
        """One instruction further."""
        segment = self.segments[self.at]
        self.left -= 1
        if not self.left:
            self.at += 1
            self._begin()
        return segment


class _Engine:
    """What an instruction sets off; shared by the plain twin and the check of a list."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.free, self.busy, self.wait, self.end = pipeline, 0, 0, 0, 0

    def issue(self, tasklet: _Tasklet, cycle: int) -> None:
        segment = tasklet.step()
        tasklet.ready = cycle + self.pipeline.interval
        if segment.kind in ("read", "write"):
            begin = max(cycle + 1, self.free)
            self.free = begin + self.pipeline.transfer(segment.amount, segment.kind)
            self.busy += self.free - begin
            self.wait += begin - cycle - 1
            tasklet.ready = max(tasklet.ready, self.free)
        tasklet.waiting = segment.kind == "barrier"
        self.end = max(self.end, tasklet.ready)

    def release(self, tasklets: Sequence[_Tasklet], cycle: int) -> None:
        if all(tasklet.waiting for tasklet in tasklets):
            for tasklet in tasklets:
                tasklet.waiting, tasklet.ready = False, cycle + self.pipeline.interval


def plain(pipeline: Pipeline, program: Program) -> Ran:
    """The twin of the compiled loop: every cycle asks every tasklet, beginning behind the one that was served last."""
    pipeline._require(program)
    tasklets, engine = [_Tasklet(row) for row in program], _Engine(pipeline)
    cycle, first, issues = 0, 0, list[Issue]()
    while not all(tasklet.over for tasklet in tasklets):
        for turn in range(len(tasklets)):
            number = (first + turn) % len(tasklets)
            tasklet = tasklets[number]
            if not tasklet.over and not tasklet.waiting and tasklet.ready <= cycle:
                engine.issue(tasklet, cycle)
                engine.release(tasklets, cycle)
                issues.append(Issue(cycle, number))
                first = number + 1
                break
        cycle += 1
    return Ran(cycles=engine.end, instructions=len(issues), dma_busy=engine.busy, dma_wait=engine.wait, issues=tuple(issues))
