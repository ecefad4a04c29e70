"""Compiled: one walk of tiles through a scratchpad under several timings at once. Plain: `papers.igo.readings.plain_timings`.

A timing is whether folds of the array overlap, whether transfers are hidden by steps with the DRAM's latency, by steps without it,
or over the whole layer, and whether writes take time; rows are in that order of nesting.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
LOADS, SPILLS, FINISHED = range(3)


@njit(cache=True, error_model="numpy", inline="always")
def _burst(moved: float, speed: float) -> int:
    return int(np.ceil(moved / speed)) if moved > 0.0 else 0


@njit(cache=True, error_model="numpy", inline="always")
def _wait(data: int, latency: int) -> int:
    return data + latency if data > 0 else 0


@njit(cache=True, error_model="numpy")
def _hidden_by_steps(bursts: Ints, busy: Ints, count: int, latency: int) -> int:
    """Cycles of `count` products in a row, of two stages or more each; `bursts` as `_bursts` writes them.

    From the second on each takes as long as the second.
    """
    stages, at, working, end, before_end = len(busy), 0, 0, 0, 0
    for repetition in range(min(count, 2)):
        for stage in range(stages):
            further = repetition > 0 and stage < 2
            at += max(working, _wait(bursts[stages + 2 + stage] if further else bursts[stage], latency))
            working = busy[stage]
        before_end = end
        end = at + max(working, _wait(bursts[stages], latency)) + _wait(bursts[stages + 1], latency)
    return end + (count - 2) * (end - before_end) if count > 2 else end


@njit(cache=True, error_model="numpy")
def _bursts(transfers: Real, writes: bool, spills_are_reads: bool, speed: float, bursts: Ints) -> None:
    """Cycles of data: beside each stage but the last those of the next one, the two bursts at the end, and the first two of a
    further product, beside what the one before it has left to write.
    """
    stages = len(transfers)
    stores, before = 0.0, 0.0
    for stage in range(stages):
        bursts[stage] = _burst(transfers[stage, LOADS] + stores, speed)
        spills = transfers[stage, SPILLS] if writes or spills_are_reads else 0.0
        stores, before = spills + before, transfers[stage, FINISHED] if writes else 0.0
    bursts[stages], bursts[stages + 1] = _burst(stores, speed), _burst(before, speed)
    bursts[stages + 2] = _burst(transfers[0, LOADS] + stores, speed)
    first_spills = transfers[0, SPILLS] if writes or spills_are_reads else 0.0
    bursts[stages + 3] = _burst(transfers[1, LOADS] + (first_spills + before), speed)


@njit(cache=True, error_model="numpy")
def _single_stage(loads: float, spills: float, finished: float, busy: int, count: int, speed: float, latency: int) -> int:
    """Products of one stage each: what one has finished is written beside the second after it."""
    at, working, stores, before, end, before_end = 0, 0, 0.0, 0.0, 0, 0
    for _ in range(min(count, 3)):
        at += max(working, _wait(_burst(loads + stores, speed), latency))
        working, stores, before = busy, spills + before, finished
        before_end = end
        end = at + max(working, _wait(_burst(stores, speed), latency)) + _wait(_burst(before, speed), latency)
    return end + (count - 3) * (end - before_end) if count > 3 else end


@njit(cache=True, error_model="numpy")
def timings(
    transfers: Real, serial: Ints, pipelined: Ints, count: int, latency: int, speeds: Real, spills_are_reads: bool,
    moved: float, reads: float,
) -> Real:  # fmt: skip
    """Cycles by timing and bandwidth of `count` equal products; `moved` and `reads` are the bytes of one."""
    stages = len(transfers)
    cycles, bursts = np.empty((12, len(speeds))), np.empty(stages + 4, dtype=np.int64)
    working = np.array([np.sum(serial), np.sum(pipelined)])
    for column in range(len(speeds)):
        for free in range(2):
            if stages > 1:
                _bursts(transfers, free == 0, spills_are_reads, speeds[column], bursts)
            spills = transfers[0, SPILLS] if free == 0 or spills_are_reads else 0.0
            finished = transfers[0, FINISHED] if free == 0 else 0.0
            for folds in range(2):
                busy = pipelined if folds else serial
                row = 6 * folds + free
                for place, delay in enumerate((latency, 0)):
                    if stages > 1:
                        spent = _hidden_by_steps(bursts, busy, count, delay)
                    else:
                        spent = _single_stage(transfers[0, LOADS], spills, finished, busy[0], count, speeds[column], delay)
                    cycles[row + 2 * place, column] = spent
                data = np.ceil(count * (reads if free else moved) / speeds[column])
                cycles[row + 4, column] = max(float(count * working[folds]), data)
    return cycles
