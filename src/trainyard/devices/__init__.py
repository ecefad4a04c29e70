"""Devices: an array, or a whole processor, with memory and a clock.

Import parts, arrays and mapping. A new device is one file with a frozen dataclass that follows `ir.Device`: it groups the ops of a
step into Works and costs each.
"""

from trainyard.devices.accelerator import Accelerator
from trainyard.devices.gpu import Gpu

__all__ = ["Accelerator", "Gpu"]
