"""A Work's cost as rows of a plan's booking, and a step's memory as a pool: what every system that plans Work by Work needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from trainyard.ir import Device, DeviceCost, Step, Work
from trainyard.ir.booking import Booking, Traffic
from trainyard.ir.plan import Plan
from trainyard.ir.protocols import HasCapacity, HasPrecision
from trainyard.mapping.levels.level import LEVEL_EVENT
from trainyard.mapping.precision import with_precision
from trainyard.results.booking import split


def capacity_of(device: Device) -> int | None:
    """Bytes of a device's own memory; None where it states no limit."""
    return device.dram_capacity_bytes if isinstance(device, HasCapacity) else None


def in_device_precision(step: Step, device: Device) -> Step:
    """A step whose tensors have the element types of a device's precision, where it has one."""
    return with_precision(step, device.precision if isinstance(device, HasPrecision) else None)


def book_work(
    booking: Booking,
    step: Step,
    work: Work,
    cost: DeviceCost,
    energy: Mapping[str, float],
    traffic: Traffic,
    resource: str,
    copies: int = 1,
) -> int:
    """Books one Work: a row for each of its ops; energy and bytes are divided among them as the time is.

    `copies` identical devices are booked as one.
    """
    rows = []
    shared = (traffic,) if len(work.ops) == 1 else traffic_shares(traffic, cost.share)
    for index, share, moved in zip(work.ops, cost.share, shared, strict=True):
        op = step.ops[index]
        row = booking.row(
            op.name,
            layer=op.layer,
            phase=op.phase.value,
            resource=resource,
            bound=cost.bound,
            macs=op.macs * copies,
            energy=energy if share == 1.0 else {part: joules * share for part, joules in energy.items()},
            traffic=moved,
        )
        rows.append(row)
    return booking.entry(rows, cost.share)


def traffic_shares(traffic: Traffic, shares: Sequence[float]) -> list[Traffic]:
    """Whole bytes for each op of a Work; every key sums to what the Work moved."""
    parts: list[dict[tuple[str, str, str], int]] = [{} for _ in shares]
    for key, count in traffic.items():
        for part, own in zip(parts, split(count, shares), strict=True):
            if own:
                part[key] = own
    return list(parts)


def traffic_of(cost: DeviceCost) -> Traffic:
    """Bytes of a cost by (level, tensor, direction): DRAM by tensor, memories on chip in all."""
    traffic = {("dram", tensor, str(direction)): count for (tensor, direction), count in cost.bytes.items() if count}
    for level, direction in product(("scratchpad", "local"), ("read", "write")):
        if moved := round(cost.events.get(f"{level}_{direction}", 0)):
            traffic[level, "all", direction] = moved
    for event, count in cost.events.items():
        if event.startswith(LEVEL_EVENT) and (moved := round(count)):
            level, _, direction = event.removeprefix(LEVEL_EVENT).rpartition("_")
            traffic[level, "all", direction] = moved
    return traffic


def book_memory(plan: Plan, pool: int, step: Step, task_of_op: Mapping[int, int]) -> None:
    """Every tensor that is not resident takes memory from its producer's start to its last user's end."""
    first, last, sizes = step.lifetimes(task_of_op)
    plan.allocate(first, last, pool, sizes)
