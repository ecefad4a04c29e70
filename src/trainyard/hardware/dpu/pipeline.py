"""The pipeline of a DPU, instruction by instruction: tasklets in round robin, one DMA engine, barriers.

UPMEM's rule (J. Gomez-Luna et al., IEEE Access 10, 2022: PrIM; F. Devaux, Hot Chips 2019): the pipeline takes one instruction in a
cycle, from tasklets in turn, and one of the same tasklet at the earliest 11 cycles after the one before; eleven tasklets fill it. A
transfer between MRAM and WRAM stops its own tasklet alone until it has ended; the engine serves one after the other, each for a
fixed time and half a cycle a byte.

A program is, for each tasklet, a row of segments: a number of instructions, a transfer, or a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.construction import NonNegative, NonNegativeInt, part
from trainyard.errors import BadInput, NotModelled

Integers = npt.NDArray[np.int64]
Kind = Literal["run", "read", "write", "barrier"]
KINDS: tuple[Kind, ...] = ("run", "read", "write", "barrier")
FINEST = 1 << 20
"""Fractions of a cycle in which the time of a byte is counted, so that times are integers."""


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
    """`dma_wait` sums the cycles that transfers waited for a busy engine; `issues` are the first instructions, if requested."""

    cycles: int
    instructions: int
    dma_busy: int
    dma_wait: int
    issues: tuple[Issue, ...] = ()


@part
class Pipeline:
    """The parameters of the rules, in cycles of one clock.

    >>> Pipeline().transfer(2048), Pipeline().transfer(8)
    (1101, 81)
    >>> Pipeline().simulate([[Segment("run", 100)]] * 11).cycles, Pipeline().simulate([[Segment("run", 100)]]).cycles
    (1110, 1100)
    """

    interval: int = 11
    read_fixed: NonNegativeInt = 77
    write_fixed: NonNegativeInt = 61
    cycles_per_byte: NonNegative = 0.5
    longest_transfer: int = 2048

    def transfer(self, size: int, kind: Kind = "read") -> int:
        """Cycles that the engine is busy with one transfer."""
        fixed = self.read_fixed if kind == "read" else self.write_fixed
        return fixed + -(-size * round(self.cycles_per_byte * FINEST) // FINEST)

    def simulate(self, program: Program, issues: int = 0) -> Ran:
        """Runs a program by the compiled loop; the first `issues` instructions are recorded."""
        from trainyard.kernels import dpu_pipeline as compiled

        self._require(program)
        rows = [segment for tasklet in program for segment in tasklet]
        kinds = np.array([KINDS.index(segment.kind) for segment in rows], np.int64)
        amounts = np.array([segment.amount for segment in rows], np.int64)
        starts = np.cumsum([0, *map(len, program)], dtype=np.int64)
        per_byte = round(self.cycles_per_byte * FINEST)
        rules = np.array([self.interval, self.read_fixed, self.write_fixed, per_byte, FINEST], np.int64)
        recorded = np.empty((issues, 2), np.int64)
        totals = compiled.simulate(kinds, amounts, starts, rules, recorded)
        return Ran(
            cycles=int(totals[compiled.CYCLES]),
            instructions=int(totals[compiled.INSTRUCTIONS]),
            dma_busy=int(totals[compiled.DMA_BUSY]),
            dma_wait=int(totals[compiled.DMA_WAIT]),
            issues=tuple(Issue(int(cycle), int(tasklet)) for cycle, tasklet in recorded[: totals[compiled.INSTRUCTIONS]]),
        )

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
