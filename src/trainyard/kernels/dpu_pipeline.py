"""The tasklets of a DPU, compiled: from one issued instruction to the next. Plain Python, cycle by cycle: `oracles.dpu_pipeline`.

A tasklet's program is a row of segments (kind, amount). `rules` are the cycles between two instructions of a tasklet, the fixed
cycles of a read and of a write, and the cycles for `rules[4]` bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
RUN, READ, WRITE, BARRIER = range(4)
CYCLES, INSTRUCTIONS, DMA_BUSY, DMA_WAIT = range(4)
"""Columns of the result: cycles, instructions issued, cycles of a busy DMA engine, cycles that transfers waited for it."""
NEVER = 2**62


@njit(cache=True)
def _skip(kinds: Ints, left: Ints, at: int, end: int) -> int:
    """The next segment that has something to issue."""
    while at < end and kinds[at] == RUN and left[at] == 0:
        at += 1
    return at


@njit(cache=True)
def simulate(kinds: Ints, amounts: Ints, starts: Ints, rules: Ints, issues: Ints) -> Ints:
    """Segments of tasklet i are starts[i] to starts[i + 1]; the first issues (cycle, tasklet) are recorded in `issues`."""
    tasklets = len(starts) - 1
    interval, read_fixed, write_fixed, cycles_of, bytes_of = rules
    left, at, ready = amounts.copy(), starts[:-1].copy(), np.zeros(tasklets, np.int64)
    totals = np.zeros(4, np.int64)
    for tasklet in range(tasklets):
        at[tasklet] = _skip(kinds, left, at[tasklet], starts[tasklet + 1])
        if at[tasklet] == starts[tasklet + 1]:
            ready[tasklet] = NEVER
    cycle, first, engine_free, arrived, done, end, recorded = 0, 0, 0, 0, 0, 0, 0
    for tasklet in range(tasklets):
        done += ready[tasklet] == NEVER
    while done < tasklets:
        chosen, soonest = -1, NEVER
        for turn in range(tasklets):
            tasklet = first + turn if first + turn < tasklets else first + turn - tasklets
            if ready[tasklet] <= cycle:
                chosen = tasklet
                break
            soonest = min(soonest, ready[tasklet])
        if chosen < 0:
            if soonest == NEVER:
                totals[CYCLES] = -1  # some wait at a barrier that others never reach
                return totals
            cycle = soonest
            continue
        segment = at[chosen]
        kind = kinds[segment]
        totals[INSTRUCTIONS] += 1
        if recorded < len(issues):
            issues[recorded, 0], issues[recorded, 1] = cycle, chosen
            recorded += 1
        ready[chosen] = cycle + interval
        if kind == RUN:
            left[segment] -= 1
        elif kind != BARRIER:
            begin = max(cycle + 1, engine_free)
            fixed = read_fixed if kind == READ else write_fixed
            engine_free = begin + fixed + -(-amounts[segment] * cycles_of // bytes_of)
            totals[DMA_BUSY] += engine_free - begin
            totals[DMA_WAIT] += begin - cycle - 1
            ready[chosen] = max(ready[chosen], engine_free)
        end = max(end, ready[chosen])
        if kind != RUN:
            at[chosen] = segment + 1
        at[chosen] = _skip(kinds, left, at[chosen], starts[chosen + 1])
        over = at[chosen] == starts[chosen + 1]
        if kind == BARRIER:
            arrived += 1
            ready[chosen] = NEVER
            if arrived == tasklets:
                arrived = 0
                for tasklet in range(tasklets):
                    if at[tasklet] < starts[tasklet + 1]:
                        ready[tasklet] = cycle + interval
        if over:
            ready[chosen] = NEVER
            done += 1
        first = chosen + 1 if chosen + 1 < tasklets else 0
        cycle += 1
    totals[CYCLES] = end
    return totals
