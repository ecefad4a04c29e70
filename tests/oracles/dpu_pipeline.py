"""A DPU's pipeline cycle by cycle in plain Python, and the check that a list of issues breaks no rule of it."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.errors import BadInput
from trainyard.hardware.dpu.pipeline import Issue, Pipeline, Program, Ran, Segment


def require_legal(pipeline: Pipeline, program: Program, issues: Sequence[Issue]) -> None:
    """Refuses what the hardware would not take: two in a cycle, a tasklet too early, one that waits, one that is over."""
    pipeline._require(program)
    tasklets, engine = [_Tasklet(row) for row in program], _Engine(pipeline)
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
