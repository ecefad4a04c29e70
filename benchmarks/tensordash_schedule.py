"""Lane positions scheduled per second and core: the compiled loops and their plain-Python twin, on the same streams in one run.

A position is one lane of one step of one row, zero or not. Seconds are processor time of the thread that schedules, best of a few,
so that a busy machine does not blur them. The first rows have targets; the run fails where one is missed.

python benchmarks/tensordash_schedule.py [positions]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.scheduler import Scheduler, pack

NARROW, WIDE = 1.5e9, 2e8  # positions per second: 4 lanes x 4 deep x 4 rows at 60 % zeros in lockstep; 16 lanes x 3 deep
STEPS = 1024
TWIN_POSITIONS = 60_000

GROUPED = Scheduler(lanes=16, depth=3, levels=patterns.levels(patterns.default_options(16, 3), 16))
# fmt: off
CASES = (
    # unit                           rows  zeros  sync        banks  target
    (Scheduler(),                      4,  0.6,  "lockstep",  None,  NARROW),
    (Scheduler(lanes=16, depth=3),     4,  0.6,  "lockstep",  None,  WIDE),
    (GROUPED,                          4,  0.6,  "lockstep",  None,  WIDE),
    (Scheduler(),                      4,  0.2,  "lockstep",  None,  None),
    (Scheduler(),                      4,  0.9,  "lockstep",  None,  None),
    (Scheduler(),                      1,  0.6,  "lockstep",  None,  None),
    (Scheduler(),                      2,  0.6,  "lockstep",  None,  None),
    (Scheduler(),                      8,  0.6,  "lockstep",  None,  None),
    (Scheduler(),                     16,  0.6,  "lockstep",  None,  None),
    (Scheduler(),                      4,  0.6,  "output",    None,  None),
    (Scheduler(),                      4,  0.6,  "block",     None,  None),
    (Scheduler(),                      4,  0.6,  "lockstep",  3,     None),
    (Scheduler(depth=2),               4,  0.6,  "lockstep",  None,  None),
    (Scheduler(depth=3),               4,  0.6,  "lockstep",  None,  None),
    (Scheduler(depth=5),               4,  0.6,  "lockstep",  None,  None),
    (Scheduler(lanes=16, depth=4),     4,  0.6,  "lockstep",  None,  None),
    (Scheduler(lanes=16, depth=3),    16,  0.6,  "lockstep",  None,  None),
    (Scheduler(lanes=16, depth=3),     4,  0.6,  "output",    None,  None),
    (Scheduler(lanes=16, depth=3),     4,  0.6,  "block",     None,  None),
    (Scheduler(lanes=70, depth=3),     4,  0.6,  "lockstep",  None,  None),
)
# fmt: on


def seconds(action: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        begun = time.thread_time()
        action()
        best = min(best, time.thread_time() - begun)
    return best


def measured(unit: Scheduler, rows: int, zeros: float, sync: str, banks: int | None, positions: int) -> tuple[float, float, float]:
    """Speedup over the dense schedule, and positions per second compiled and plain; both must find the same cycles."""
    groups = max(8, positions // (STEPS * rows * unit.lanes))
    bits = np.random.default_rng(0).random((groups * rows, STEPS, unit.lanes)) >= zeros
    words = pack(bits)
    cycles = unit.cycles(words, STEPS, rows, sync, banks)  # compiles, or loads what was compiled
    compiled = bits.size / seconds(lambda: unit.cycles(words, STEPS, rows, sync, banks), 5)
    short = max(unit.depth, TWIN_POSITIONS // (rows * unit.lanes))
    few = bits[:rows, :short]
    found: list[int] = []
    plain = few.size / seconds(lambda: found.append(unit.plain(few, sync, banks)), 2)
    assert found[:1] == unit.cycles(pack(few), few.shape[1], rows, sync, banks).tolist()
    return groups * STEPS / float(cycles.sum()), compiled, plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("positions", nargs="?", type=int, default=20_000_000)
    positions = parser.parse_args().positions
    missed = 0
    print(f"{'unit':34s}{'zeros':>6s} {'speedup':>8s}{'compiled/s':>12s}{'plain/s':>10s}{'ratio':>9s}")
    for unit, rows, zeros, sync, banks, target in CASES:
        speedup, compiled, plain = measured(unit, rows, zeros, sync, banks, positions)
        name = f"{unit.lanes} x {unit.depth} x {rows} {sync}" + (f" {banks} banks" if banks else "")
        name += f" {len(unit.levels)} levels" if len(unit.levels) < unit.lanes else ""
        verdict = "" if target is None else f"  target {target:.1e}" + ("" if compiled >= target else " MISSED")
        missed += target is not None and compiled < target
        print(f"{name:34s}{zeros:6.0%} {speedup:7.3f}x{compiled:12.2e}{plain:10.1e}{compiled / plain:8.0f}x{verdict}")
    bits = np.random.default_rng(0).random((positions // 4096, 1024, 4)) >= 0.6
    print(f"packing streams: {bits.size / seconds(lambda: pack(bits), 3):.1e} positions/s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
