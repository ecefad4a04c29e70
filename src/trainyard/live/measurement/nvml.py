"""The board's own meters, read through the driver's management library (NVML): energy counter and clock."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_SM_CLOCK = 1  # nvml.h: NVML_CLOCK_SM


@dataclass(frozen=True, slots=True)
class Board:
    """One board by its PCI address, since the library numbers boards in another order than CUDA."""

    library: ctypes.CDLL
    handle: ctypes.c_void_p

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded; None where the board has no such counter."""
        millijoules = ctypes.c_ulonglong()
        if self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(millijoules)):
            return None
        return millijoules.value * 1e-3

    def clock_hz(self) -> float | None:
        """The multiprocessors' clock at this moment."""
        megahertz = ctypes.c_uint()
        if self.library.nvmlDeviceGetClockInfo(self.handle, _SM_CLOCK, ctypes.byref(megahertz)):
            return None
        return megahertz.value * 1e6


def board(pci_address: str) -> Board | None:
    """The board at a PCI address (`0000:1b:00.0`), or None where the library or the board is not there."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2():
        return None
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByPciBusId_v2(pci_address.encode(), ctypes.byref(handle)):
        return None
    return Board(library, handle)
