"""What costs are put together from: bytes over the pins with their events, an array's events as bytes, shares of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.devices.accelerator.energy import OPERANDS, event_of
from trainyard.ir import Direction
from trainyard.mapping.demand import Move, ProductDemand

ARITHMETIC = ("mac", "core_slot")
SUM_BYTES = 4
"""Bytes of a sum at the port of a scratchpad."""
COMING: Mapping[Direction, float] = {"read": 1.0, "write": 0.0, "spill": 0.5}
"""Which part of what moves comes in."""


@dataclass(slots=True)
class Traffic:
    """What moves between DRAM and scratchpad: bytes over the pins by tensor, and what they are on chip, where they may be more."""

    bytes: dict[tuple[str, Direction], int] = field(default_factory=dict)
    events: dict[str, float] = field(
        default_factory=lambda: {"dram_read": 0.0, "dram_write": 0.0, "scratchpad_write": 0.0, "scratchpad_read": 0.0}
    )

    def add(self, move: Move) -> None:
        """Every DRAM byte also crosses the scratchpad's port once, expanded; a spill goes out and comes back.

        What is kept on chip crosses that port alone.
        """
        if move.on_chip:
            self.events["scratchpad_read" if move.direction == "read" else "scratchpad_write"] += move.held
        if not move.size:
            return
        key = move.label, move.direction
        self.bytes[key] = self.bytes.get(key, 0) + move.size
        comes = COMING[move.direction]
        self.events["dram_read"] += move.size * comes
        self.events["dram_write"] += move.size * (1.0 - comes)
        self.events["scratchpad_write"] += move.held * comes
        self.events["scratchpad_read"] += move.held * (1.0 - comes)

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def sizes(extent: int, size: int) -> list[tuple[int, int]]:
    """Sizes of the tiles along an axis, and how many there are of each.

    >>> sizes(10, 4), sizes(8, 4), sizes(3, 4)
    ([(4, 2), (2, 1)], [(4, 2)], [(3, 1)])
    """
    size = min(size, extent)
    whole, rest = divmod(extent, size)
    return [(size, whole), *([(rest, 1)] if rest else [])]


def added(values: Iterable[float]) -> float:
    """From left to right, as columns are added: `sum` compensates what is lost on the way in some versions of Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights as parts of 1 that add up to exactly 1; all to the first where there are none.

    >>> shares([2, 1, 1]), sum(shares([1, 1, 1])), shares([0, 0])
    ((0.5, 0.25, 0.25), 1.0, (1.0, 0.0))
    """
    total = added(weights)
    if total <= 0:
        return (1.0, *[0.0] * (len(weights) - 1))
    parts = [weight / total for weight in weights[:-1]]
    return (*parts, 1.0 - added(parts))


def expanded(moved: int, size: int, held: int | None) -> int:
    """What an operand is on chip that goes through as often as `moved` holds its `size`."""
    return moved if held is None or not size else moved * held // size


def bound_of(**cycles: int) -> str:
    return max(cycles, key=lambda name: cycles[name])


def count_array(
    events: dict[str, float], counted: Mapping[str, float], sizes: tuple[int, int, int], number: str, packed: int = 1
) -> None:
    """An array's own events: elements at the ports of scratchpads become bytes, MACs are mac_event by their format as well.

    Where a multiplier makes `packed` products at once, each of its MACs counts as so many.

    The scratchpad is the device's; `local` ones belong to the array.
    """
    operands = dict(zip(OPERANDS, (*sizes[:2], SUM_BYTES), strict=True))
    for name, count in counted.items():
        target, operand = event_of(name)
        size = packed if name in ARITHMETIC else operands.get(operand, 1)
        events[target] = events.get(target, 0.0) + count * size
    mac_event = f"mac_{number}"
    events[mac_event] = events.get(mac_event, 0.0) + counted.get("mac", 0.0) * packed


def events_of(counted: Mapping[str, float], demand: ProductDemand, traffic: Traffic) -> dict[str, float]:
    events: dict[str, float] = {"vector_op": demand.vector_operations, **traffic.events}
    count_array(events, counted, demand.element_bytes, demand.number, demand.packed)
    return events
