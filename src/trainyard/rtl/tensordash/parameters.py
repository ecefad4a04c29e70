"""The parameters of TensorDash's designs, as the command line writes them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput, UnknownName
from trainyard.rtl.catalogue import Design, parameter

LEVELS = ("one", "grouped")
LANES = "multipliers of an element, one a lane"
DEPTH = "steps that a staging buffer holds"
OPTIONS = "promotion options as step:offset, in priority order, such as '0:0 1:0 1:1'; none: the simulator's default"
NUMBER = "operands: int8 or int16, or fp16 or bf16, which multiply and add in fp32"
BANKS = "rows that a scratchpad brings in a cycle; 0: as many as the depth"
PIPELINE = "registers behind the multiplexers, the multipliers, the adder tree: the first so many of the three"
LEVELS_MEANING = "lanes that choose at once: one (one after the other, as the simulator's default), or grouped (the fewest levels)"


def scheduler_of(owner: str, *, lanes: int, depth: int, options: str, levels: str) -> Scheduler:
    """The simulator's scheduler with these parameters.

    >>> scheduler_of("design", lanes=4, depth=2, options="0:0 1:-1", levels="grouped").levels
    ((0, 1, 2, 3),)
    >>> scheduler_of("design", lanes=4, depth=2, options="0:0 1", levels="one")
    Traceback (most recent call last):
    trainyard.errors.BadInput: design: promotion option '1' must be step:offset, such as 1:-1
    """
    if levels not in LEVELS:
        raise UnknownName("levels", levels, LEVELS, where=owner)
    pattern = tuple(_option(owner, text) for text in options.split())
    scheduler = Scheduler(lanes=lanes, depth=depth, options=pattern)
    if levels == "one":
        return scheduler
    return Scheduler(lanes=lanes, depth=depth, options=pattern, levels=patterns.levels(scheduler.options, lanes))


def _option(owner: str, text: str) -> patterns.Option:
    try:
        step, offset = map(int, text.split(":"))
    except ValueError:
        raise BadInput(f"{owner}: promotion option '{text}' must be step:offset, such as 1:-1") from None
    return step, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingDesign(Design):
    """A design with the simulator's scheduler in it."""

    # fmt: off
    lanes: int   = parameter(4, LANES)
    depth: int   = parameter(4, DEPTH)
    options: str = parameter("", OPTIONS)
    levels: str  = parameter("one", LEVELS_MEANING)
    # fmt: on

    def __post_init__(self) -> None:
        _ = self.scheduler

    @property
    def scheduler(self) -> Scheduler:
        return scheduler_of(self.name, lanes=self.lanes, depth=self.depth, options=self.options, levels=self.levels)
