"""TensorDash cycle by cycle, as text: staging buffer, the options and the choice of each lane, MS, AS, and both schedules.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Fig. 3, 5 and 6.
`report.walkthroughs.tensordash.figure` draws the same cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash.scheduler import Bits, Scheduler
from trainyard.checks import require_positive
from trainyard.errors import BadInput

EXAMPLE = (
    (1, 0, 1, 0),
    (1, 0, 0, 1),
    (0, 0, 1, 0),
    (1, 0, 0, 1),
)
"""16 pairs of which 7 are effectual, as in Fig. 3, which a 2-deep buffer does in two cycles; their positions are our choice."""

ZERO, WAITING, DONE, PAST = -1, -2, -3, -4
"""States of a pair in the buffer that no lane takes in this cycle: a zero, left for later, multiplied before, beyond the end."""
MARKS = {ZERO: ".", WAITING: "o", DONE: "-", PAST: " "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A lane's turn: the options (MS) that were effectual when it chose, the one it took, and that pair's step and lane."""

    lane: int
    had: tuple[int, ...]
    ms: int | None
    step: int = -1
    source: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle: the buffer's first step, the lane that takes each of its pairs (or the pair's state), the choices, AS."""

    number: int
    position: int
    buffer: tuple[tuple[int, ...], ...]
    choices: tuple[Choice, ...]
    advance: int


def example(seed: int, *, steps: int = 12, lanes: int = 4, sparsity: float = 0.6) -> Bits:
    """A random stream to walk through.

    >>> int(example(3).sum())
    21
    """
    require_positive("walk-through", steps=steps, lanes=lanes)
    if not 0 <= sparsity <= 1:
        raise BadInput(f"walk-through: sparsity is a share of zeros between 0 and 1, got {sparsity!r}")
    return np.asarray(np.random.default_rng(seed).random((steps, lanes)) >= sparsity)


def cycles(nonzero: npt.ArrayLike, scheduler: Scheduler) -> tuple[Cycle, ...]:
    """Every cycle of one processing element on a stream [steps, lanes]."""
    bits = np.asarray(nonzero) != 0
    if bits.ndim != 2 or bits.shape[1] != scheduler.lanes or not bits.size:
        raise BadInput(f"walk-through: a mask of shape {bits.shape} is no stream of this element: give [steps, {scheduler.lanes}]")
    trace = scheduler.trace(bits[None])
    left = np.zeros((len(bits) + scheduler.depth, scheduler.lanes), np.bool_)
    left[: len(bits)] = bits
    shown = []
    for number in range(trace.cycles):
        position = int(trace.position[number, 0])
        buffer = _states(bits, left, position, scheduler.depth)
        choices = tuple(_choices(left, position, trace.select[number, 0].tolist(), scheduler))
        for choice in choices:
            if choice.ms is not None:
                buffer[choice.step - position][choice.source] = choice.lane
        rows = tuple(tuple(row) for row in buffer)
        advance = int(trace.advance[number, 0])
        shown.append(Cycle(number=number, position=position, buffer=rows, choices=choices, advance=advance))
    return tuple(shown)


def _states(bits: Bits, left: Bits, position: int, depth: int) -> list[list[int]]:
    """The states of the buffer before lanes choose."""

    def state(step: int, lane: int) -> int:
        if step >= len(bits):
            return PAST
        return WAITING if left[step, lane] else DONE if bits[step, lane] else ZERO

    return [[state(step, lane) for lane in range(bits.shape[1])] for step in range(position, position + depth)]


def _choices(left: Bits, position: int, selected: list[int], scheduler: Scheduler) -> Iterator[Choice]:
    """The lanes' choices, level by level, removed from `left`. Lanes of a level cannot conflict, so their order does not matter."""
    for lane in (lane for level in scheduler.levels for lane in level):
        places = [(position + step, (lane + offset) % scheduler.lanes) for step, offset in scheduler.options]
        had = tuple(number for number, place in enumerate(places) if left[place])
        if selected[lane] < 0:
            yield Choice(lane=lane, had=had, ms=None)
            continue
        step, source = places[selected[lane]]
        left[step, source] = False
        yield Choice(lane=lane, had=had, ms=selected[lane], step=step, source=source)


def walkthrough(nonzero: npt.ArrayLike, scheduler: Scheduler, *, width: int = 100, most: int = 12) -> str:
    """A stream [steps, lanes] on one processing element; beyond `most` cycles only the schedules are printed.

    >>> print(walkthrough(EXAMPLE, Scheduler(depth=2)).split("cycle 2")[0].rstrip())
    4 lanes, 2 deep. What lane i may take, by MS:
      0 (+0, i)     1 (+1, i)     2 (+1, i-1)   3 (+1, i+1)
    Lanes choose in the order 0 > 1 > 2 > 3, each the first that it finds.
    7 of 16 pairs are effectual: 4 cycles dense, 2 scheduled, 2.00x (at most 2).
    <BLANKLINE>
    cycle 1: steps 0 to 1 in the buffer
      step      lane  0  1  2  3    lane   had     MS   takes
      +0    0         0  .  2  .       0   012.     0   0.0
      +1    1         1  .  .  3       1   ..2.     2   1.0
                                       2   0..3     0   0.2
                                       3   .1..     1   1.3
      AS 2: steps 0 to 1 are drained
    """
    trace = cycles(nonzero, scheduler)
    bits = np.asarray(nonzero) != 0
    lines = [*_heading(bits, scheduler, len(trace), width), ""]
    for cycle in trace[:most]:
        lines += [*_cycle(cycle, len(bits), scheduler, width), ""]
    if len(trace) > most:
        lines += [f"{len(trace) - most} more cycles are not shown one by one.", ""]
    return "\n".join([*lines, *_legend(), "", *_schedules(bits, trace, width)])


def _heading(bits: Bits, scheduler: Scheduler, count: int, width: int) -> Iterator[str]:
    yield f"{scheduler.lanes} lanes, {scheduler.depth} deep. What lane i may take, by MS:"
    listed = [f"{number} {option_name(option)}" for number, option in enumerate(scheduler.options)]
    across = max(1, (width - 2) // 14)
    for first in range(0, len(listed), across):
        yield "  " + "".join(f"{name:<14}" for name in listed[first : first + across]).rstrip()
    order = " > ".join(" ".join(map(str, level)) for level in scheduler.levels)
    yield f"Lanes choose in the order {order}, each the first that it finds."
    yield (
        f"{int(bits.sum())} of {bits.size} pairs are effectual: {len(bits)} cycles dense, {count} scheduled, "
        f"{len(bits) / count:.2f}x (at most {scheduler.depth})."
    )


def option_name(option: tuple[int, int]) -> str:
    """An option as the paper writes it.

    >>> option_name((1, -1)), option_name((0, 0))
    ('(+1, i-1)', '(+0, i)')
    """
    step, offset = option
    return f"(+{step}, i{offset:+d})" if offset else f"(+{step}, i)"


def _cycle(cycle: Cycle, steps: int, scheduler: Scheduler, width: int) -> list[str]:
    last = min(cycle.position + scheduler.depth, steps) - 1
    wide = max(2, len(str(scheduler.lanes - 1)))
    left = ["  step      lane" + "".join(f" {lane:>{wide}}" for lane in range(scheduler.lanes))]
    for ahead, row in enumerate(cycle.buffer):
        name = str(cycle.position + ahead) if cycle.position + ahead < steps else ""
        left.append(f"  +{ahead} {name:>4}       " + "".join(f" {MARKS.get(state, str(state)):>{wide}}" for state in row))
    right = [f"lane   {'had':<{len(scheduler.options)}}    MS   takes"]
    for choice in cycle.choices:
        had = "".join(_digit(number) if number in choice.had else "." for number in range(len(scheduler.options)))
        taken = f"{choice.ms:>3}   {choice.step}.{choice.source}" if choice.ms is not None else "  -   nothing"
        right.append(f"{choice.lane:>4}   {had:<3}   {taken}")
    until = min(cycle.position + cycle.advance, steps) - 1
    drained = f"step {cycle.position} is" if until == cycle.position else f"steps {cycle.position} to {until} are"
    return [
        f"cycle {cycle.number + 1}: steps {cycle.position} to {last} in the buffer",
        *_side_by_side(left, right, width),
        f"  AS {cycle.advance}: {drained} drained" + (", and the stream ends" if until == steps - 1 else ""),
    ]


def _digit(number: int) -> str:
    return "0123456789abcdefghijklmnopqrstuvwxyz"[number % 36]


def _side_by_side(left: list[str], right: list[str], width: int) -> list[str]:
    """Two blocks side by side, or one below the other where they do not fit."""
    wide = max(map(len, left)) + 4
    if wide + max(map(len, right)) > width:
        return [line.rstrip() for line in (*left, *right)]
    rows = max(len(left), len(right))
    first, second = left + [""] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{start:<{wide}}{end}".rstrip() for start, end in zip(first, second, strict=True)]


def _legend() -> Iterator[str]:
    yield "In the buffer: a number is the lane that takes the pair now, o waits, - was multiplied before, . has a zero."
    yield "had: the options that were effectual at the lane's turn. takes: step.lane of the pair."


def _schedules(bits: Bits, trace: tuple[Cycle, ...], width: int) -> list[str]:
    """The dense and the sparse schedule, a line for each cycle."""
    lanes = bits.shape[1]
    wide = len(f"{len(bits) - 1}.{lanes - 1}")

    def line(pairs: list[str]) -> str:
        return " ".join(f"{pair:>{wide}}" for pair in pairs)

    dense = [line([f"{step}.{lane}" if bits[step, lane] else "." for lane in range(lanes)]) for step in range(len(bits))]
    issued = []
    for cycle in trace:
        pairs = ["."] * lanes
        for choice in cycle.choices:
            if choice.ms is not None:
                pairs[choice.lane] = f"{choice.step}.{choice.source}"
        issued.append(f"{line(pairs)}   {cycle.advance:>2}")
    span = (wide + 1) * lanes - 1
    left = [f"cycle   {'dense':<{span}}", *(f"{number + 1:>5}   {text}" for number, text in enumerate(dense))]
    right = [f"cycle   {'scheduled':<{span}}   AS", *(f"{number + 1:>5}   {text}" for number, text in enumerate(issued))]
    return ["The pair (step.lane) at each multiplier, lane 0 first:", *_side_by_side(left, right, width)]
