"""Registers inside an arithmetic unit: as many as its `stages`, at named places of the calculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal

from trainyard.errors import BadInput

CUTS = {0: (), 1: ("result",), 2: ("middle", "result"), 3: ("early", "middle", "result")}
"""Places that have a register, by the number of stages: before the result, in the middle, and early in the calculation."""


def require_stages(owner: str, stages: object) -> None:
    """0 (no register) to 3.

    >>> require_stages("adder", 4)
    Traceback (most recent call last):
    trainyard.errors.BadInput: adder: stages must be a whole number from 0 (no register) to 3, got 4
    """
    if isinstance(stages, bool) or not isinstance(stages, int) or stages not in CUTS:
        raise BadInput(f"{owner}: stages must be a whole number from 0 (no register) to {max(CUTS)}, got {stages!r}")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Hands signals on, through a register where the number of stages asks for one at this place."""

    module: Any
    stages: int

    def cut(self, place: str, **signals: Any) -> tuple[Any, ...]:
        """The signals as they are behind this place, by their order."""
        behind = []
        for name, value in signals.items():
            copy = Signal(value.shape(), name=f"{name}_{place}")
            domain = self.module.d.sync if place in CUTS[self.stages] else self.module.d.comb
            domain += copy.eq(value)
            behind.append(copy)
        return tuple(behind)


def leading_zeros(module: Module, name: str, bits: Any) -> Any:
    """The number of zeros above the highest one of `bits`, by halving; the width where all are 0."""
    width = len(bits)
    levels = max(1, (width - 1).bit_length())
    padded = bits << ((1 << levels) - width)  # zeros below, so that those above stay the same
    rest = Signal(1 << levels, name=f"{name}_padded")
    module.d.comb += rest.eq(padded)
    count = []
    for level in reversed(range(levels)):
        half = 1 << level
        empty = Signal(name=f"{name}_empty_{half}")
        module.d.comb += empty.eq(rest[half:] == 0)
        count.append(empty)
        if level:
            following = Signal(half, name=f"{name}_rest_{half}")
            module.d.comb += following.eq(Mux(empty, rest[:half], rest[half:]))
            rest = following
    zeros = Signal(range(width + 1), name=f"{name}_zeros")
    everything = Signal(name=f"{name}_none")
    module.d.comb += [everything.eq(bits == 0), zeros.eq(Mux(everything, width, Cat(*reversed(count))))]
    return zeros
