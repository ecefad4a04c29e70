"""Who did it: the rows that a plan's time, energy and traffic are booked to.

A row is one op on one resource; an entry is what a task carries as its tag: one row, or several with their shares (a fused Work).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]
    Real = npt.NDArray[np.float64]

Traffic = Mapping[tuple[str, str, str], int]
"""(level, tensor, direction) -> bytes; levels are `dram`, `scratchpad`, or the name of a link."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BookingColumns:
    """The rows of a plan as columns, the last of them that of the idle time; labels are shared between plans.

    The time of an entry is divided into parts: part i belongs to entry `entry[i]` and row `row[i]` (to row i where `row` is None)
    and lies between the shares `begin[i]` and `end[i]` of the entry; its `last` part takes what rounding leaves.
    """

    op: tuple[str, ...]
    layer: tuple[str, ...]
    phase: tuple[str, ...]
    resource: tuple[str, ...]
    kind: tuple[str, ...]
    bound: tuple[str, ...]
    macs: Whole
    energy: Mapping[str, Real]
    traffic: Mapping[tuple[str, str, str], Whole]
    entries: tuple[tuple[int, ...], ...]
    entry: Whole
    row: Whole | None
    begin: Real
    end: Real
    last: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Booking:
    """Columns of rows, filled by whoever makes the plan."""

    op: list[str] = field(default_factory=list)
    layer: list[str] = field(default_factory=list)
    phase: list[str] = field(default_factory=list)
    resource: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)
    macs: list[int] = field(default_factory=list)
    energy: list[Mapping[str, float]] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    entries: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    cycles: int | None = None
    """All cycles of the device's clock, or None for a system of several clocks."""
    array_cycles: int | None = None
    """Of these, the cycles in which the array multiplies; None where there is no such array."""
    uncertainty_cycles: float = 0.0
    """Half-width of the 95 % interval of the array's cycles, where an array sampled its outputs."""
    samples: int | None = None
    """Samples of all devices together, or None where they are the step's batch."""
    steps: int = 1
    """Optimizer steps that were planned; a result shows one of them."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the result must know of the plan."""
    columns: BookingColumns | None = None
    """All rows at once, where a plan was made so; the lists above are then empty."""

    def row(
        self,
        op: str,
        *,
        layer: str,
        phase: str,
        resource: str,
        kind: str = "compute",
        bound: str = "",
        macs: int = 0,
        energy: Mapping[str, float] | None = None,
        traffic: Traffic | None = None,
    ) -> int:
        self.op.append(op)
        self.layer.append(layer)
        self.phase.append(phase)
        self.resource.append(resource)
        self.kind.append(kind)
        self.bound.append(bound)
        self.macs.append(macs)
        self.energy.append(energy or {})
        self.traffic.append(traffic or {})
        return len(self.op) - 1

    def entry(self, rows: Sequence[int], shares: Sequence[float] = (1.0,)) -> int:
        """The tag of a task whose time goes to `rows` by `shares`."""
        self.entries.append((tuple(rows), tuple(shares)))
        return len(self.entries) - 1
