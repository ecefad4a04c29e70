"""Synthetic results, built as a system builds them: a plan with a booking, run on the clock's plain-Python twin; a long one runs on
the clock itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.engine_reference import schedule_reference
from trainyard import engine
from trainyard.engine.timeline import Timeline
from trainyard.ir import Assumption
from trainyard.ir.booking import Booking
from trainyard.ir.plan import Plan, TaskClass
from trainyard.results.booking import book_timeline
from trainyard.results.result import Peaks, Result

HOSTILE = "<script>alert('layer')</script>"
CONFIG: dict[str, Any] = {
    "type": "accelerator",
    "clock_hz": 1.05e9,
    "dram_bytes_per_s": 150e9,
    "scratchpad_bytes": 8 * 2**20,
    "element_bytes": 2,
    "order": "interleaved",
    "double_buffered": True,
    "array": {"type": "systolic", "rows": 128, "columns": 64},
}
ASSUMPTIONS = (
    Assumption(name="fusion", value="epilogue", meaning="what goes with a product", alternatives=("none",), path="fusion"),
    Assumption(name="pcie", value=6e9, meaning="effective <bandwidth> & more", alternatives=(5.3e9, 8e9), settles="claim.8"),
)
MICROSECOND = 10**6
MANY_LAYERS = 100


def run(plan: Plan) -> Timeline:
    starts, ends = schedule_reference(plan)
    columns = plan.columns()
    return Timeline(
        starts_ps=np.array(starts, np.int64),
        ends_ps=np.array(ends, np.int64),
        kinds=columns.kind,
        streams=columns.stream,
        tags=columns.tag,
        after_ends=columns.after_ends,
        after=columns.after,
        memory_events=columns.memory,
        stream_names=tuple(plan.streams),
        pools=tuple(plan.pools),
    )


def step_of(names: list[str], plan: Plan, booking: Booking) -> None:
    """Forward and backward over the layers, gradients reduced over a shared ring while backward goes on, then a fused update."""
    device, pool = plan.stream("device 0"), plan.pool("hbm", 64 * 2**20)
    ring = plan.link("ring", 25e9)
    before: list[int] = []
    forward: list[int] = []
    for number, name in enumerate(names):
        moved = {("dram", "W", "read"): 1000 * (number + 1), ("dram", "X", "read"): 5000, ("dram", "Y", "write"): 2500}
        energy = {"mac": 1e-6 * (number + 1), "dram": 2e-6}
        bound = "dram" if number % 3 == 0 else "compute"
        row = booking.row(
            "conv", layer=name, phase="forward", resource="device 0", bound=bound, macs=10**6, traffic=moved, energy=energy
        )
        before = [plan.task(device, (5 + number) * MICROSECOND, after=before, tag=booking.entry([row]))]
        plan.take(before[0], pool, 2**18)
        forward.append(before[0])
    reduced = []
    for name in reversed(names):
        pair = [
            booking.row(f"d{operand}", layer=name, phase=phase, resource="device 0", bound="compute", macs=10**6, energy={"mac":
            1e-6},
                     traffic={("dram", "dY", "read"): 4000, ("dram", "dW", "spill"): 64})
            for operand, phase in (("X", "grad_input"), ("W", "grad_weight"))
        ]  # fmt: skip
        before = [plan.task(device, 7 * MICROSECOND, after=before, tag=booking.entry(pair, (0.25, 0.75)))]
        plan.give(before[0], pool, 2**18)
        row = booking.row("all_reduce", layer=name, phase="grad_weight", resource="ring", kind="synchronisation", bound="ring",
                       traffic={("ring", "dW", "write"): 250_000})  # fmt: skip
        entry = booking.entry([row])
        kind = TaskClass.SYNCHRONISATION
        reduced.append(plan.transfer([([ring], 250_000)], after=before, kind=kind, tag=entry))
    row = booking.row("sgd", layer="", phase="update", resource="device 0", bound="dram", energy={"dram": 1e-6})
    plan.task(device, 3 * MICROSECOND, after=reduced, tag=booking.entry([row]))


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    def make(layers: int = 6, machine: str = "npu", **fields: Any) -> Result:
        names = [HOSTILE, *(f"encoder.layer{number}.conv" for number in range(1, layers))]
        plan, booking = Plan(), Booking()
        step_of(names, plan, booking)
        timeline = run(plan) if layers <= MANY_LAYERS else engine.run(plan)
        rows, columns = book_timeline(timeline, booking)
        given: dict[str, Any] = {
            "workload": "toy",
            "machine": machine,
            "batch": 8,
            "samples": 8,
            "rows": rows,
            "columns": columns,
            "entries": tuple(entry for entry, _ in booking.entries),
            "peaks": Peaks(macs_per_s=8.6e12, dram_bytes_per_s=150e9, technology="28 nm"),
            "peak_memory_bytes": {pool.name: timeline.peak(pool.name) for pool in timeline.pools},
            "assumptions": ASSUMPTIONS,
            "notes": ("a note with <markup> & an ampersand",),
            "config": CONFIG,
            "timeline": timeline,
        }
        return Result(**(given | fields))

    return make


@pytest.fixture(scope="session")
def large_result(make_result: Callable[..., Result]) -> Result:
    return make_result(layers=1001)


@pytest.fixture(scope="session")
def result(make_result: Callable[..., Result]) -> Result:
    return make_result()
