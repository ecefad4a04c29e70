"""Devices: an array, or a whole processor, with memory and a clock.

`accelerator` is an array behind a scratchpad and DRAM, `gpu` a roofline with tiles, caches and launches, `dpu` a processor in a
DRAM bank. Imports mapping, hardware and masks; arrays come through the protocols of `ir`. A new device is one file with a frozen
dataclass that follows `ir.Device`: it groups the ops of a step into Works and costs each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.devices.accelerator.device import Accelerator
    from trainyard.devices.dpu.device import Dpu
    from trainyard.devices.gpu.device import Gpu

__all__ = [
    "Accelerator", "Dpu", "Gpu",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "Accelerator": "accelerator.device",
        "Dpu": "dpu.device",
        "Gpu": "gpu.device",
    },
)
