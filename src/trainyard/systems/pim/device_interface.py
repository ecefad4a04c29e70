"""What a PIM machine needs from the device in a DPU's place: a DPU, or any other device with a memory of its own.

An accelerator in that place is a processing unit at its memory bank, a GPU one with its board's memory; batches and exchanges stay
the same. These functions give, for any device, what a Dpu has as fields: memory capacity, static power, and the rate at which it
adds data that others send. A device without a stated capacity (`dram_capacity`) has memory for every step, as it has alone.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

from trainyard.devices.dpu.device import Dpu
from trainyard.devices.dpu.memory import MemoryUse, step_memory
from trainyard.errors import BadInput
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.ir import Device, ElementWise, Op, Phase, Step, TensorSpec, Work
from trainyard.ir.protocols import HasName, HasPrecision, HasStaticPower
from trainyard.systems.work_rows import capacity_of
from trainyard.units import show

SUMMED = 2**20
"""Elements of the addition that measures a device's rate of adding: so many that start-up does not count."""


def require_device(owner: str, name: str, value: Any) -> None:
    if isinstance(value, type) or not isinstance(value, Device) or not is_dataclass(value):
        raise BadInput(f"{owner}: {name} must be a device (a Dpu, an Accelerator, a Gpu), got {value!r}")


def as_dpu(device: Device) -> Dpu:
    """The device as a Dpu, for programs in a DPU's instructions; refused for any other device."""
    if not isinstance(device, Dpu):
        raise BadInput(
            f"programs are written in a DPU's instructions: a machine with a {name_of(device)} at their place cannot run them"
        )
    return device


def name_of(device: Device) -> str:
    return device.name if isinstance(device, HasName) else type(device).__name__.lower()


def memory_name(device: Device) -> str:
    return "MRAM of a DPU" if isinstance(device, Dpu) else "memory at a DPU's place"


def precision(device: Device) -> Any:
    return device.precision if isinstance(device, HasPrecision) else None


def static_w(device: Device) -> float:
    """Watts at rest; 0 for an accelerator, whose energy table has none."""
    return device.static_w if isinstance(device, HasStaticPower) else 0.0


def at_speed(device: Device, speed: float) -> Device:
    """The device with its clock multiplied by `speed`."""
    scaled: Device = replace(device, clock_hz=device.clock_hz * speed)  # type: ignore[type-var]  # checked by `require_device`
    return scaled


def memory_use(device: Device, step: Step, data_bytes: int) -> MemoryUse:
    """Memory of a step on the device, with a data set of `data_bytes`."""
    return step_memory(step, precision(device), data_bytes)


def require_room(device: Device, step: Step, data_bytes: int) -> None:
    """Refuses a step that does not fit the device's memory."""
    if isinstance(device, Dpu):
        device.require_room(step, data_bytes=data_bytes)
        return
    capacity, needed = capacity_of(device), memory_use(device, step, data_bytes).bytes
    if capacity is not None and needed > capacity:
        raise BadInput(
            f"step {step.name!r} at batch {step.batch} needs {show(needed, 'B')}, the {name_of(device)} at a DPU's place has "
            f"{show(capacity, 'B')}: give it more memory (dpu.dram_capacity=...), a smaller batch, or, on 'direct', split=true"
        )


def software_sum(device: Device) -> tuple[float, float]:
    """Adding received data on the device: bytes per second of incoming data, and joules per byte.

    A DPU loads a word and the running sum from MRAM, adds and stores; instructions and transfers overlap. For any other device it
    is the cost of one long addition.
    """
    return _dpu_sum(device) if isinstance(device, Dpu) else _device_sum(device)  # type: ignore[arg-type]  # frozen dataclasses hash


def _dpu_sum(dpu: Dpu) -> tuple[float, float]:
    instructions = 2 * LOAD + dpu.arithmetic.add + STORE + LOOP
    issued_s = instructions / (dpu.occupancy * dpu.clock_hz)
    longest = dpu.longest_transfer_bytes
    read, write = (dpu.transfers(longest, longest, direction)[0] / longest for direction in ("read", "write"))
    moved_s = dpu.element_bytes * (2 * read + write) / dpu.clock_hz
    seconds = max(issued_s, moved_s)
    joules = instructions * dpu.joules["instruction"] + 3 * dpu.element_bytes * dpu.joules["mram_read_byte"]
    return dpu.element_bytes / seconds, joules / dpu.element_bytes


@lru_cache(maxsize=64)
def _device_sum(device: Any) -> tuple[float, float]:
    step = _addition()
    cost = device.cost(step, Work(ops=(0,)))
    size = step.tensors[0].bytes
    return size * device.clock_hz / cost.cycles, sum(device.energy(cost.events).values()) / size


@lru_cache(maxsize=1)
def _addition() -> Step:
    """A step of one addition of two tensors; one object, because devices cache costs by the identity of a step."""
    tensors = tuple(TensorSpec((SUMMED,), name=name) for name in ("sent", "sum", "new sum"))
    op = Op(body=ElementWise("add", SUMMED), name="add", layer="", phase=Phase.UPDATE, inputs=(0, 1), outputs=(2,))
    return Step("sum", 1, (op,), tensors)
