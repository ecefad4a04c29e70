"""Area and static power of the machine behind a result, over all its devices.

A device says its own area (`area`) and the watts that it leaks beside what its energy table counts (`leakage_w`); a system of equal
devices has as many times that, unless it says its area itself. What says nothing is not known, which is None and not zero.
"""

from __future__ import annotations

from trainyard.ir.protocols import HasArea, HasDevice, HasLeakage


def area_by_component(machine: object, devices: int) -> dict[str, float] | None:
    """Square metres of each component; None where the machine states no area."""
    if isinstance(machine, HasArea):
        areas = machine.area()
        return dict(areas) if areas else None
    if isinstance(machine, HasDevice) and isinstance(machine.device, HasArea):
        one = machine.device.area()
        return {name: devices * m2 for name, m2 in one.items()} or None
    return None


def leakage_w(machine: object, devices: int) -> float | None:
    """Static watts that are not in the machine's energy already; None where nothing is known of them."""
    device = machine.device if isinstance(machine, HasDevice) else machine
    return devices * device.leakage_w if isinstance(device, HasLeakage) else None
