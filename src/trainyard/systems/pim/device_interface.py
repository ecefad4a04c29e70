"""What a PIM machine asks of the device at a DPU's place: a DPU, or any other device with a memory of its own.

An accelerator there is a processing unit beside its bank with its own array, a GPU one with a board's memory: same batch for each,
same exchanges. What a Dpu says in fields of its own is asked here of all: how much its memory holds, what it draws at rest, how
fast it adds up what others send. A device that states no capacity (`dram_capacity`) has room for every step, as it has alone.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

from trainyard.devices.dpu.device import Dpu
from trainyard.devices.dpu.memory import Room, room
from trainyard.errors import BadInput
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.ir import Device, ElementWise, Op, Phase, Step, TensorSpec, Work
from trainyard.mapping.works import Same
from trainyard.units import show

SUMMED = 2**20
"""Elements of the addition that tells how fast a device adds up: long enough that its start does not count."""


def require_device(owner: str, name: str, value: Any) -> None:
    if isinstance(value, type) or not isinstance(value, Device) or not is_dataclass(value):
        raise BadInput(f"{owner}: {name} must be a device (a Dpu, an Accelerator, a Gpu), got {value!r}")


def as_dpu(device: Device) -> Dpu:
    """For what only a DPU's own instructions can run."""
    if not isinstance(device, Dpu):
        raise BadInput(
            f"programs are written in a DPU's instructions: a machine with a {called(device)} at their place cannot run them"
        )
    return device


def called(device: Device) -> str:
    return str(getattr(device, "name", type(device).__name__.lower()))


def memory(device: Device) -> str:
    """The name of its pool."""
    return "MRAM of a DPU" if isinstance(device, Dpu) else "memory at a DPU's place"


def capacity_bytes(device: Device) -> int | None:
    return getattr(device, "dram_capacity_bytes", None)


def precision(device: Device) -> Any:
    return getattr(device, "precision", None)


def static_w(device: Device) -> float:
    """Watts at rest; an accelerator's table has none."""
    return float(getattr(device, "static_w", getattr(device, "idle_w", 0.0)))


def at_speed(device: Device, speed: float) -> Device:
    """The same with a clock so many times as fast."""
    changed: Device = replace(device, clock_hz=device.clock_hz * speed)  # type: ignore[type-var]  # `require_device` has looked
    return changed


def taken(device: Device, step: Step, data_bytes: int) -> Room:
    """What a step takes of its memory, beside a data set of so many bytes."""
    return room(step, precision(device), data_bytes)


def require_room(device: Device, step: Step, data_bytes: int) -> None:
    """Refuses a step that does not fit, with the way out."""
    if isinstance(device, Dpu):
        device.require_room(step, data_bytes=data_bytes)
        return
    there, needed = capacity_bytes(device), taken(device, step, data_bytes).bytes
    if there is not None and needed > there:
        raise BadInput(
            f"step {step.name!r} at batch {step.batch} needs {show(needed, 'B')}, the {called(device)} at a DPU's place has "
            f"{show(there, 'B')}: give it more memory (dpu.dram_capacity=...), a smaller batch, or, on 'direct', split=true"
        )


def software_sum(device: Device) -> tuple[float, float]:
    """A device that sums what others send: bytes per second of incoming data, and joules of a byte.

    In a DPU a word comes from MRAM beside the running sum, is added and stored; instructions and transfers overlap. Any other
    device is asked what a long addition costs it.
    """
    return _instructions(device) if isinstance(device, Dpu) else _addition(device)  # type: ignore[arg-type]  # frozen dataclasses hash


def _instructions(dpu: Dpu) -> tuple[float, float]:
    instructions = 2 * LOAD + dpu.arithmetic.add + STORE + LOOP
    issued_s = instructions / (dpu.occupancy * dpu.clock_hz)
    longest = dpu.longest_transfer_bytes
    read, write = (dpu.transfers(longest, longest, way)[0] / longest for way in ("read", "write"))
    moved_s = dpu.element_bytes * (2 * read + write) / dpu.clock_hz
    seconds = max(issued_s, moved_s)
    joules = instructions * dpu.joules["instruction"] + 3 * dpu.element_bytes * dpu.joules["mram_read_byte"]
    return dpu.element_bytes / seconds, joules / dpu.element_bytes


@lru_cache(maxsize=64)
def _addition(device: Any) -> tuple[float, float]:
    same = _one_addition()
    cost = device.cost(same.step, Work(ops=(0,)))
    size = same.step.tensors[0].bytes
    return size * device.clock_hz / cost.cycles, sum(device.energy(cost.events).values()) / size


@lru_cache(maxsize=1)
def _one_addition() -> Same:
    """Two tensors of words into one."""
    tensors = tuple(TensorSpec((SUMMED,), name=name) for name in ("sent", "sum", "new sum"))
    op = Op(body=ElementWise("add", SUMMED), name="add", layer="", phase=Phase.UPDATE, inputs=(0, 1), outputs=(2,))
    return Same(Step("sum", 1, (op,), tensors))
