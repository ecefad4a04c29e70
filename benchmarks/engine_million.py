"""One million tasks through the engine's public API: build, run, attribute. And the compiled clock against its plain-Python twin.

python benchmarks/engine_million.py [tasks]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from trainyard import engine
from trainyard.ir.plan import Plan, TaskClass

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from oracles.engine_reference import schedule_reference

Made = TypeVar("Made")
STREAMS = 16
LINKS = 16


def timed(action: Callable[[], Made], repeats: int = 3) -> tuple[Made, float]:
    """The result and the best of a few wall times, in seconds."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        result = action()
        best = min(best, time.perf_counter() - begin)
    return result, best


def one_by_one(tasks: int) -> Plan:
    """`plan.task` once for each task; each waits for one other stream's task."""
    plan = Plan()
    for stream in range(STREAMS):
        plan.stream(f"device {stream}")
    task = plan.task
    for number in range(tasks):
        task(number % STREAMS, 1000 + number % 977, after=(number - 17,) if number >= 17 else (), tag=number)
    return plan


def in_bulk(tasks: int) -> Plan:
    """The same plan through `plan.tasks`."""
    plan = Plan()
    for stream in range(STREAMS):
        plan.stream(f"device {stream}")
    numbers = np.arange(tasks)
    plan.tasks(numbers % STREAMS, 1000 + numbers % 977, after=np.where(numbers >= 17, numbers - 17, -1), tags=numbers)
    return plan


def with_transfers(tasks: int) -> Plan:
    """Devices on a ring: of four tasks one is a transfer of two flows over neighbouring links."""
    plan = Plan()
    for number in range(STREAMS):
        plan.stream(f"device {number}")
    for number in range(LINKS):
        plan.link(f"link {number}", 25e9 + number * 1e9, latency_s=5e-9)
    for number in range(tasks):
        device, after = number % STREAMS, (number - STREAMS,) if number >= STREAMS else ()
        if number // STREAMS % 4 == 3:
            flows = [((device, (device + 1) % LINKS), 4096 + 64 * device), (((device + 2) % LINKS,), 8192)]
            plan.transfer(flows, after=after, kind=TaskClass.SYNCHRONISATION)
        else:
            plan.task(device, 100_000 + 1000 * device, after=after)
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    tasks = parser.parse_args().tasks
    engine.run(one_by_one(100)), engine.run(with_transfers(100))  # compile, or load what was compiled

    rows: list[tuple[str, float]] = []
    plan, seconds = timed(lambda: one_by_one(tasks))
    rows.append(("build, one call a task", seconds))
    bulk, seconds = timed(lambda: in_bulk(tasks))
    rows.append(("build, in bulk", seconds))
    timeline, seconds = timed(lambda: engine.run(plan))
    rows.append(("run", seconds))
    assert engine.run(bulk) == timeline
    _, seconds = timed(lambda: engine.run(plan).idle_ps)
    rows.append(("run and attribute every instant", seconds))
    _, seconds = timed(lambda: engine.run(one_by_one(tasks)).end_ps)
    rows.append(("build one by one and run", seconds))
    print(f"{tasks} tasks on {STREAMS} streams, seconds (best of 3)")
    for name, seconds in rows:
        print(f"  {name:34s}{seconds:8.3f}")

    small = tasks // 50
    for name, build in (("without transfers", one_by_one), ("a quarter transfers", with_transfers)):
        plan = build(small)
        timeline, compiled = timed(lambda plan=plan: engine.run(plan))  # type: ignore[misc]
        (starts_ps, ends_ps), plain = timed(lambda plan=plan: schedule_reference(plan), repeats=1)  # type: ignore[misc]
        assert timeline.starts_ps.tolist() == starts_ps
        assert timeline.ends_ps.tolist() == ends_ps
        print(f"{small} tasks, {name}: compiled {compiled:.4f} s, plain Python {plain:.3f} s, ratio {plain / compiled:.0f}")


if __name__ == "__main__":
    main()
