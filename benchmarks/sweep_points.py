"""Points of a sweep per second: ResNet-50 training steps on changed NPUs, and what the sweep adds to bare `ty.run` calls.

python benchmarks/sweep_points.py [--points 10000] [--workers N]

Prints: bare runs of machines never seen before and a sweep in this process, in turn, by CPU time; keys; then the whole study on
workers: half of it, the rest on the same store, and once more with nothing to do.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import trainyard as ty
from trainyard.sweep.executors import Executor, Inline, LocalProcesses
from trainyard.sweep.points import Materials
from trainyard.sweep.running import sweep
from trainyard.sweep.study import Study

BOUND_POINTS_PER_S = 500  # per core, after warm-up


ARRAYS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
ROUNDS = 3


def study_of(points: int, first: int = 0, arrays: tuple[int, ...] = ARRAYS) -> Study:
    """Arrays by bandwidths: `first` moves the bandwidths, so that no machine of one study is of another."""
    table: dict[str, Any] = {
        "name": "speed",
        "workloads": ["resnet50"],
        "machine": "npu",
        "objectives": {"time_s": "min", "energy_j": "min"},
        "axes": {
            "array.rows": list(arrays),
            "dram_bytes_per_s": {"from": 20e9 + first * 1e6, "to": 900e9 + first * 1e6, "steps": max(2, points // len(ARRAYS))},
        },
        "tie": {"array.columns": "array.rows"},
    }
    return Study.from_table(table)


def bare(study: Study, materials: Materials) -> float:
    """CPU seconds a point of `ty.run` on machines made beforehand; nothing is kept."""
    machines = [materials.machine(point) for point in study.points()]
    (step,) = materials.steps.values()
    begin = time.process_time()
    for machine in machines:
        result = ty.run(step, machine)
        _ = result.time_s, result.energy_j
    return (time.process_time() - begin) / len(machines)


def swept(study: Study, store: Path, executor: Executor) -> tuple[float, float, int]:
    """Wall and CPU seconds of this process, and the points that were run."""
    begin, cpu = time.perf_counter(), time.process_time()
    summary = sweep(study, store, executor)
    if summary.failed:
        raise SystemExit(f"{summary.failed} points failed: {next(r.error for r in summary.records if r.failed)}")
    return time.perf_counter() - begin, time.process_time() - cpu, summary.computed


def side_by_side(points: int, folder: str) -> None:
    """Bare runs and sweeps in turn, each on machines never seen before; the best round of each counts."""
    warm = study_of(20, first=1)
    materials = Materials.of(warm)
    bare(warm, materials)
    runs, sweeps = [], []
    for number in range(ROUNDS):
        runs.append(bare(study_of(points, first=2 + 2 * number), materials))
        _, cpu, count = swept(study_of(points, first=3 + 2 * number), Path(folder, str(number)), Inline())
        sweeps.append(cpu / count)
    run_s, sweep_s = min(runs), min(sweeps)
    print(f"bare ty.run on a new machine  {1e3 * run_s:7.3f} ms  {1 / run_s:6.0f} a second (CPU; bound {BOUND_POINTS_PER_S})")
    print(f"a point of a sweep, inline    {1e3 * sweep_s:7.3f} ms  {1 / sweep_s:6.0f} a second, {1e6 * (sweep_s - run_s):+.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        side_by_side(min(asked.points, 500), folder)
        study, half, store = study_of(asked.points), study_of(asked.points, arrays=ARRAYS[:5]), Path(folder, "workers")
        begin = time.perf_counter()
        keys = {point.key for point in Materials.of(study).keyed(study.points())}
        key_s = time.perf_counter() - begin
        print(f"keys of {len(keys)} points: {key_s:.2f} s, {1e6 * key_s / len(keys):.0f} us each")
        for what, asked_study in (("half of them", half), ("the rest", study), ("once more", study)):
            seconds, _, count = swept(asked_study, store, LocalProcesses(asked.workers))
            print(f"{what} on {asked.workers} workers: {count} computed in {seconds:.1f} s, {count / seconds:.0f} a second in all")
        print(f"store: {(store / 'points.parquet').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
