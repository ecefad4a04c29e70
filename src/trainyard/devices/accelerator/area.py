"""Area and leakage of an accelerator: what the table of units and SRAM cells gives, and the rows that an array brings with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trainyard.hardware.tables import area
from trainyard.hardware.tables.cells import LEAKAGE_W_PER_M2, SRAM_LEAKAGE_W_PER_BIT
from trainyard.ir.protocols import HasComponentAreas

if TYPE_CHECKING:
    from trainyard.devices.accelerator.device import Accelerator


class Areas(NamedTuple):
    """Square metres by component, of the table (`hardware.tables.area`) and of the array's own rows."""

    tabled: dict[str, float]
    own: dict[str, float]

    @property
    def total(self) -> dict[str, float]:
        return {name: self.tabled.get(name, 0.0) + self.own.get(name, 0.0) for name in {**self.tabled, **self.own}}


def areas_of(device: Accelerator) -> Areas:
    """Arithmetic that an array's own rows lay out is not counted again; banks share the area of a memory of their whole size."""
    nm = device.technology_nm
    rows: Sequence[area.ComponentArea] = device.array.component_areas if isinstance(device.array, HasComponentAreas) else ()
    tabled = {} if any(row.number for row in rows) else {"mac": device.peak_macs_per_cycle * area.mac_m2(device.number, nm)}
    tabled["scratchpad"] = area.sram_m2(device.scratchpad_bytes, nm)
    tabled |= {level.name: area.sram_m2(level.size_bytes, nm) for level in device.levels}
    own: dict[str, float] = {}
    for row in rows:
        own[row.component] = own.get(row.component, 0.0) + device.cores * row.at(nm, device.number)
    return Areas(tabled, own)


def leakage_of(device: Accelerator) -> float:
    """Watts of the memories by their bits, and of the table's multipliers by their area.

    An array's own rows of energy are of a laid-out chip: what it leaks is in them.
    """
    stored_bytes = device.scratchpad_bytes + sum(level.size_bytes for level in device.levels)
    return stored_bytes * 8 * SRAM_LEAKAGE_W_PER_BIT + areas_of(device).tabled.get("mac", 0.0) * LEAKAGE_W_PER_M2
