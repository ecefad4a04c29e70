"""One on-chip memory level inside the scratchpad: its size, its port, what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trainyard.construction import part
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.tables.energy import Access, ram_joules_per_byte

Held = Literal["a", "b", "out"]
OPERANDS: tuple[Held, ...] = ("a", "b", "out")
"""The two operands of a product and its sums."""
Bypass = Literal["search", "never"]
RESERVED = ("dram", "scratchpad", "mac", "vector", "all")
"""Names of other memories and parts in results."""
LEVEL_EVENT = "level:"
"""What the events of a level begin with: `level:local_read` are the bytes read from the level `local`."""


@part
class Level:
    """A memory between the scratchpad (or another level) and the array.

    `width` is the bytes per cycle between it and what is inside of it, the next level or the array, both ways together; sums that
    come back have a port of their own where `write_width` is given. Without a width nothing waits for it. It holds the operands
    of `holds`; all others go past it, from the level outside to the next one inside. With `bypass="search"` an operand that it
    could hold goes past as well where that is faster. A `double_buffered` level fills one half while the other is in use, and
    tiles have half of it; otherwise tiles have all of it and nothing is computed while it is filled. `banks` equal banks make an
    access cost the energy of one of them; `energy_per_byte_j` replaces the table's RAM of that size.

    >>> Level(name="local", size="64 KiB", width="256 B/cycle", holds=("a", "b")).room_bytes
    32768.0
    """

    name: str
    size_bytes: int
    width_bytes_per_cycle: float | None = None
    write_width_bytes_per_cycle: float | None = None
    holds: tuple[str, ...] = OPERANDS
    bypass: Bypass = "search"
    double_buffered: bool = True
    banks: int = 1
    energy_per_byte_j: float | None = None

    if TYPE_CHECKING:  # `part` makes it: every field, and quantities also under their names without units

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", self.name):
            raise BadInput(f"Level: name must be a word such as 'local', got {self.name!r}")
        if self.name in RESERVED:
            raise BadInput(f"Level: the name {self.name!r} means another part of a result: give another one, such as 'local'")
        given: Any = self.holds
        holds = (given,) if isinstance(given, str) else tuple(given)
        for operand in holds:
            if operand not in OPERANDS:
                raise UnknownName("operand", str(operand), OPERANDS, f"Level {self.name}: holds")
        if len(set(holds)) < len(holds):
            raise BadInput(f"Level {self.name}: holds={holds} names an operand twice")
        object.__setattr__(self, "holds", tuple(operand for operand in OPERANDS if operand in holds))
        if self.write_width_bytes_per_cycle is not None and self.width_bytes_per_cycle is None:
            raise BadInput(f"Level {self.name}: write_width is a second port: give the width of the first as well")

    @property
    def room_bytes(self) -> float:
        """Bytes for the tiles of one step."""
        return self.size_bytes / 2 if self.double_buffered else float(self.size_bytes)

    def joules_per_byte(self, access: Access, nm: float) -> float:
        """Energy of a byte read or written at a technology node: the given one, or that of a RAM of one bank's size."""
        if self.energy_per_byte_j is not None:
            return self.energy_per_byte_j
        return ram_joules_per_byte(access, self.size_bytes / self.banks, nm)


def checked_levels(levels: Any, owner: str) -> tuple[Level, ...]:
    """Levels from the outermost to the innermost; each has a name of its own."""
    if isinstance(levels, tuple) and not levels:  # most machines have none
        return ()
    if isinstance(levels, Level) or not isinstance(levels, Sequence) or isinstance(levels, str):
        raise BadInput(f"{owner}: levels is a list such as [Level(name='local', size='64 KiB')], got {levels!r}")
    checked = tuple(Level(**level) if isinstance(level, Mapping) else level for level in levels)
    for level in checked:
        if not isinstance(level, Level):
            raise BadInput(f"{owner}: levels has {level!r}: write Level(name='local', size='64 KiB')")
    names = [level.name for level in checked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{owner}: two levels are called {twice!r}: give each a name of its own")
    return checked
