"""Refuses fields of an accelerator that contradict each other, or that are not modelled together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.checks import require_countable
from trainyard.errors import BadInput
from trainyard.ir.protocols import HasLocalBuffers

if TYPE_CHECKING:
    from trainyard.devices.accelerator.device import Accelerator

OWNER = "Accelerator"


def require_consistent(device: Accelerator) -> None:
    """Refuses fields that contradict each other."""
    require_countable(OWNER, device.clock_hz, device.dram_bytes_per_s, device.dram_latency_s)
    if device.across != "none" and device.between_layers:
        raise BadInput(
            f"{OWNER}: across={device.across!r} takes tiles from one layer into the next, reuse={device.reuse!r} whole tensors: "
            "give one of them"
        )
    if device.cores > 1 and device.tile_reuse == "step":
        raise BadInput(
            f"{OWNER}: {device.cores} cores share a scratchpad that keeps tiles: write reuse='lru' or 'farthest' as well"
        )
    if device._on_chip is not None:
        _require_levels_alone(device)
    if device.rates and device.paired:
        raise BadInput(
            f"{OWNER}: rates={dict(device.rates)} with order={device.order!r}, reuse={device.reuse!r} is not modelled: "
            "dX and dW reduce along different dimensions; write order='sequential' and reuse='step', or no rates"
        )
    if device.together != "none" and device.paired:
        raise BadInput(
            f"{OWNER}: together='gradients' runs dX and dW on two parts of the array, order={device.order!r} with "
            f"reuse={device.reuse!r} in turn on all of it: give one of them"
        )
    if device.partition != "none" and not device.paired:
        raise BadInput(
            f"{OWNER}: partition={device.partition!r} cuts dX and dW that are done together: give an order such as "
            "order='paper', or reuse='lru'"
        )
    if device.across != "none" and device.order == "sequential":
        raise BadInput(
            f"{OWNER}: across={device.across!r} takes dX into the layer below while dX and dW are done in turn: give an "
            "order such as order='cost' as well"
        )


def _require_levels_alone(device: Accelerator) -> None:
    """Refuses what is not modelled together with memory levels."""
    given = "levels" if device.levels else "scratchpad_width"
    for name, value, plain in (
        ("order", device.order, "sequential"), ("reuse", device.tile_reuse, "step"), ("cores", device.cores, 1),
        ("together", device.together, "none"),
    ):  # fmt: skip
        if value != plain:
            raise BadInput(f"{OWNER}: {given} with {name}={value!r} is not modelled: write {name}={plain!r}, or no {given}")
    if device.scratchpad_write_width_bytes_per_cycle is not None and device.scratchpad_width_bytes_per_cycle is None:
        raise BadInput(f"{OWNER}: scratchpad_write_width is a second port: give scratchpad_width, that of the first, as well")
    own_buffers = isinstance(device.array, HasLocalBuffers) and device.array.local_bytes is not None
    if own_buffers and any(level.name == "local" for level in device.levels):
        raise BadInput(f"{OWNER}: 'local' are buffers of {type(device.array).__name__} itself: give the level another name")
