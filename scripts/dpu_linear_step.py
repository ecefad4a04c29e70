"""One step of logistic regression on one DPU as a programmer writes it for tasklets: walked once for time, once for numbers.

Each tasklet owns a run of features and passes it through its share of WRAM in blocks. Three phases, a barrier behind each of the
first two:

    dots      for each block: its weights, then row after row of the batch, multiplied and added up (a partial sum per tasklet)
    errors    a row for each tasklet in turn: partial sums added, sigmoid, label subtracted
    gradient  for each block: row after row once more, times the row's error, into a gradient block; weights updated and stored

The batch does not stay in WRAM between phases (8 rows of 4096 features are 128 KiB), so rows are read twice. In `fixed32` a number
is a 32-bit integer of 2^-fraction_bits, a product keeps its low 32 bits and is shifted back, sums wrap: the integer unit's own
arithmetic. The sigmoid comes from a table then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE, Arithmetic, arithmetic
from trainyard.hardware.dpu.pipeline import Segment

Numbers = npt.NDArray[Any]
ELEMENT_BYTES = 4
GRAIN_BYTES = 8  # a transfer is aligned to 8 bytes (UPMEM SDK: mram_read)
BLOCKS = 3  # of weights, of a row, of the gradient
ADDRESS = 4  # assumed: instructions that put together the two addresses and the length of a transfer
SIGMOID_OPERATIONS = 6  # as captured steps count a sigmoid
TABLE_ENTRIES, TABLE_RANGE = 1024, 8  # assumed: 4 KB of table; beyond +-8 a sigmoid is 0 or 1 within 2^-11
Name = Literal["read_weights", "read_row", "dot", "error", "clear", "accumulate", "update", "write_weights", "barrier"]


class Act(NamedTuple):
    """What a tasklet does next: on features `low` to `high`, and on one row of the batch where it is about one."""

    name: Name
    low: int = 0
    high: int = 0
    row: int = -1


class Stepped(NamedTuple):
    """Numbers after a step, in its own format."""

    weights: Numbers
    errors: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStep:
    """`batch` rows of `features` on `tasklets`; WRAM is shared equally, less a stack each.

    >>> LinearStep(features=4096, batch=8, tasklets=16).block  # (4096 - 1024) / 3 bytes
    256
    """

    features: int
    batch: int = 8
    tasklets: int = 16
    number: Literal["fp32", "fixed32"] = "fixed32"
    wram_bytes: int = 64 * 1024
    stack_bytes: int = 1024
    longest_transfer: int = 2048
    barrier_instructions: int = 20
    fraction_bits: int = 12

    def __post_init__(self) -> None:
        require_positive(
            "LinearStep", features=self.features, batch=self.batch, tasklets=self.tasklets, wram_bytes=self.wram_bytes,
            longest_transfer=self.longest_transfer, fraction_bits=self.fraction_bits,
        )  # fmt: skip
        if self.block < 1:
            raise BadInput(
                f"LinearStep: {self.wram_bytes} bytes of WRAM leave {self.tasklets} tasklets with stacks of {self.stack_bytes} "
                "bytes no room for blocks: give fewer tasklets"
            )

    @property
    def block(self) -> int:
        """Features that pass through WRAM at a time, for each tasklet."""
        room = (self.wram_bytes // self.tasklets - self.stack_bytes) // BLOCKS
        return min(room, self.longest_transfer) // GRAIN_BYTES * GRAIN_BYTES // ELEMENT_BYTES

    @property
    def arithmetic(self) -> Arithmetic:
        return arithmetic(self.number)

    def blocks(self, tasklet: int) -> list[tuple[int, int]]:
        """The features of a tasklet, block by block; runs begin at whole grains."""
        grain = GRAIN_BYTES // ELEMENT_BYTES
        share = -(-self.features // (self.tasklets * grain)) * grain
        first, last = min(tasklet * share, self.features), min((tasklet + 1) * share, self.features)
        return [(low, min(low + self.block, last)) for low in range(first, last, self.block)]

    def phases(self) -> Iterator[list[list[Act]]]:
        """Phase after phase, the acts of each tasklet in order."""
        rows, all_tasklets = range(self.batch), range(self.tasklets)
        yield [
            [
                act
                for low, high in self.blocks(tasklet)
                for act in (
                    Act("read_weights", low, high),
                    *(act for row in rows for act in (Act("read_row", low, high, row), Act("dot", low, high, row))),
                )
            ]
            + [Act("barrier")]
            for tasklet in all_tasklets
        ]
        yield [
            [*(Act("error", row=row) for row in rows if row % self.tasklets == tasklet), Act("barrier")] for tasklet in all_tasklets
        ]
        yield [
            [
                act
                for low, high in self.blocks(tasklet)
                for act in (
                    Act("clear", low, high),
                    *(act for row in rows for act in (Act("read_row", low, high, row), Act("accumulate", low, high, row))),
                    Act("read_weights", low, high),
                    Act("update", low, high),
                    Act("write_weights", low, high),
                )
            ]
            for tasklet in all_tasklets
        ]

    def program(self) -> list[list[Segment]]:
        """The acts as instructions and transfers."""
        rows: list[list[Segment]] = [[] for _ in range(self.tasklets)]
        for phase in self.phases():
            for row, acts in zip(rows, phase, strict=True):
                for act in acts:
                    row.extend(self._segments(act))
        return rows

    def _segments(self, act: Act) -> tuple[Segment, ...]:
        unit, count = self.arithmetic, act.high - act.low
        size = -(-count * ELEMENT_BYTES // GRAIN_BYTES) * GRAIN_BYTES
        match act.name:
            case "read_weights" | "read_row":
                return Segment("run", ADDRESS), Segment("read", size)
            case "write_weights":
                return Segment("run", ADDRESS), Segment("write", size)
            case "dot":
                return (Segment("run", count * unit.mac + LOAD + STORE + LOOP),)
            case "error":
                summed = self.tasklets * (LOAD + unit.add + LOOP)
                return (Segment("run", summed + unit.function(SIGMOID_OPERATIONS) + LOAD + unit.add + STORE + LOOP),)
            case "clear":
                return (Segment("run", count * (STORE + LOOP)),)
            case "accumulate":
                return (Segment("run", count * (2 * LOAD + unit.multiply_add + STORE + LOOP) + LOAD + LOOP),)
            case "update":
                return (Segment("run", count * (2 * LOAD + unit.multiply_add + STORE + LOOP)),)
            case "barrier":
                return Segment("run", self.barrier_instructions), Segment("barrier")

    def execute(self, rows: Numbers, labels: Numbers, weights: Numbers, rate: float) -> Stepped:
        """The same acts on numbers of the step's own format: the weights after w - rate / batch * sum of error * row."""
        unit: _Fixed | _Float = _Float() if self.number == "fp32" else _Fixed(self.fraction_bits)
        held, gradient = unit.own(weights), unit.own(np.zeros_like(weights))
        x, y, scaled = unit.own(rows), unit.own(labels), unit.constant(rate / self.batch)
        partial = unit.own(np.zeros((self.tasklets, self.batch)))
        errors = unit.own(np.zeros(self.batch))
        for phase in self.phases():
            for tasklet, acts in enumerate(phase):
                for name, low, high, row in acts:
                    part = slice(low, high)
                    match name:
                        case "dot":
                            partial[tasklet, row] = unit.sum(unit.times(x[row, part], held[part]), partial[tasklet, row])
                        case "error":
                            errors[row] = unit.sigmoid(unit.sum(partial[:, row], unit.constant(0.0))) - y[row]
                        case "clear":
                            gradient[part] = 0
                        case "accumulate":
                            gradient[part] += unit.times(x[row, part], errors[row])
                        case "update":
                            held[part] -= unit.times(gradient[part], scaled)
        return Stepped(held, errors)


class _Float:
    """fp32, one operation after the other."""

    def own(self, given: Numbers) -> Numbers:
        return np.array(given, np.float32)

    def constant(self, value: float) -> Any:
        return np.float32(value)

    def times(self, a: Numbers, b: Numbers) -> Numbers:
        return a * b

    def sum(self, terms: Numbers, begun: Any) -> Any:
        return np.add.accumulate(np.concatenate([[begun], terms]), dtype=np.float32)[-1]

    def sigmoid(self, value: Any) -> Any:
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-value, dtype=np.float32))


class _Fixed:
    """32-bit integers of 2^-bits."""

    def __init__(self, bits: int) -> None:
        self.bits, self.table = bits, sigmoid_table(bits)

    def own(self, given: Numbers) -> Numbers:
        return np.array(given, np.int32)

    def constant(self, value: float) -> Any:
        return np.int32(round(value * 2**self.bits))

    def times(self, a: Numbers, b: Numbers) -> Numbers:
        return np.multiply(a, b, dtype=np.int32) >> np.int32(self.bits)

    def sum(self, terms: Numbers, begun: Any) -> Any:
        return np.add.accumulate(np.concatenate([[begun], terms]), dtype=np.int32)[-1]

    def sigmoid(self, value: Any) -> Any:
        place = min(abs(int(value)) * TABLE_ENTRIES // (TABLE_RANGE << self.bits), TABLE_ENTRIES - 1)
        found = int(self.table[place])
        return np.int32(found if value >= 0 else (1 << self.bits) - found)


def sigmoid_table(bits: int) -> npt.NDArray[np.int32]:
    """The sigmoid of the middle of each of the entries from 0 to `TABLE_RANGE`."""
    middles = (np.arange(TABLE_ENTRIES) + 0.5) * TABLE_RANGE / TABLE_ENTRIES
    return np.array([round((1 << bits) / (1 + math.exp(-z))) for z in middles], np.int32)


def to_fixed(numbers: Numbers, bits: int = 12) -> npt.NDArray[np.int32]:
    """
    >>> to_fixed(np.array([0.5, -1.0])).tolist()
    [2048, -4096]
    """
    found: npt.NDArray[np.int32] = np.round(np.asarray(numbers, np.float64) * 2**bits).astype(np.int32)
    return found
