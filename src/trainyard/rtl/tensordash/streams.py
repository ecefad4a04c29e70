"""Inputs for TensorDash's element and tile, cycle by cycle, and the outputs that the simulator expects of them.

An output of the tile is a pair of operands as bit patterns, `a` [columns, steps, lanes] and `b` [rows, steps, lanes]. Their rows
lie in the scratchpads one output behind the other; in each cycle the design sees the next `banks` rows and fetches some of them.
`Window` says how many, by the simulator's `select` and `advance`; what is then compared comes from the simulator's own
`element.tile`, whole. One convention differs: past the end of a stream the simulator's AS counts empty steps, here it stops there.

Where `banks` is less than `depth`, an output is let in when the one before has left, and scheduling waits until the buffer is
full: the simulator has `depth` steps there before the first cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash.element import TileExecution, tile
from trainyard.arrays.tensordash.scheduler import Scheduler, Selects, advance, select
from trainyard.checks import require_choice, require_positive
from trainyard.rtl.catalogue import Inputs, Outputs, parameter
from trainyard.rtl.tensordash import parameters
from trainyard.rtl.tensordash.dot_product import Numbers, Patterns, numbers_of, require_pipeline
from trainyard.rtl.tensordash.scheduler import one_hot
from trainyard.rtl.tensordash.staging_buffer import require_banks

Output = tuple[Patterns, Patterns]
"""Operands of one output block: a [columns, steps, lanes] and b [rows, steps, lanes], as bit patterns."""
LONGEST = 40
"""Steps of a random output."""
GAP = 0.2
"""Share of random outputs that are let in only when the design has become idle."""


@dataclass(slots=True)
class Row:
    """A row of all scratchpads: operands as integers of the ports, Z of each row of the tile, and whether an output ends here."""

    a: Sequence[int]
    b: Sequence[int]
    z: list[list[bool]]
    mark: bool


@dataclass(slots=True)
class Window:
    """The rows in the staging buffers, and how many leave and arrive in a cycle."""

    scheduler: Scheduler
    rows: list[Row] = field(default_factory=list)

    def cycle(self, enable: bool, offered: Sequence[Row]) -> tuple[bool, int, bool]:
        """Whether the schedulers worked, how many rows were fetched, and whether an output ended."""
        count = next((number + 1 for number, row in enumerate(self.rows) if row.mark), len(self.rows))
        present, shift = self.rows[:count], 0
        if enable and present:
            buffers = [list(z) for z in zip(*(row.z for row in present), strict=True)]
            for z in buffers:
                select(z, self.scheduler.options, self.scheduler.levels)
            shift = min(advance(z) for z in buffers)
        ends = any(row.mark for row in self.rows[:shift])
        del self.rows[:shift]
        fetched = list(offered[: self.scheduler.depth - len(self.rows)])
        self.rows += fetched
        return bool(enable and present), len(fetched), ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The scratchpads around an element or a tile."""

    scheduler: Scheduler
    numbers: Numbers
    rows: int = 1
    columns: int = 1
    banks: int
    skips: str = "b"
    pipeline: int = 0

    def __post_init__(self) -> None:
        require_positive("TensorDash tile", rows=self.rows, columns=self.columns)
        require_choice("TensorDash element", skips=(self.skips, ("b", "both")))
        require_banks("TensorDash scratchpad", self.scheduler.depth, self.banks)
        require_pipeline("TensorDash element", self.pipeline)

    def random(self, cycles: int, seed: int) -> list[Inputs]:
        """Outputs of random lengths and sparsities, some of them in streams of zeros only."""
        return self.inputs(self._random_outputs(Random(seed)), cycles, Random(seed + 1))

    def _random_outputs(self, rng: Random) -> Iterator[Output]:
        draw, lanes = np.random.default_rng(rng.getrandbits(32)), self.scheduler.lanes
        while True:
            steps, share = rng.randint(1, rng.choice((4, 12, LONGEST))), rng.choice((0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0))
            nonzero = draw.random((self.rows, steps, lanes)) >= share
            yield self.valued(nonzero, draw, draw.random((self.columns, steps, lanes)) >= rng.choice((0.0, 0.5)))

    def valued(self, b: npt.NDArray[np.bool_], draw: np.random.Generator, a: npt.NDArray[np.bool_] | None = None) -> Output:
        """Random operands, zero where the masks of b [rows, steps, lanes] and a [columns, ..] are false; a is dense without one."""
        a = np.ones((self.columns, *b.shape[1:]), np.bool_) if a is None else a
        sides = []
        for mask in (a, b):
            patterns = self.numbers.random(draw, mask.shape)
            sides.append(np.where(mask, patterns, patterns & np.uint64(self.numbers.zero_sign)))
        return sides[0], sides[1]

    def masked(self, blocks: Iterable[npt.NDArray[np.bool_]], cycles: int, seed: int) -> list[Inputs]:
        """Outputs with the zeros of masks [rows, steps, lanes], such as those of a training run."""
        draw = np.random.default_rng(seed)
        return self.inputs((self.valued(block, draw) for block in blocks), cycles, Random(seed))

    def inputs(self, outputs: Iterable[Output], cycles: int, rng: Random) -> list[Inputs]:
        """Inputs for as many of the outputs as end within so many cycles; what is left of these is idle."""
        window, table = Window(self.scheduler), list[Inputs]()
        source: Iterator[Output] | None = iter(outputs)
        queue, waits, fill = list[Row](), 0, 0
        alone = self.banks < self.scheduler.depth
        while len(table) < cycles:
            if not queue and source is not None:
                rows = self._rows(next(source, None))
                if not rows or len(table) + len(window.rows) + len(rows) + self.pipeline + self.scheduler.depth + 6 > cycles:
                    source = None
                queue = rows if source is not None else []
                waits = rng.randint(1, 4) if alone or rng.random() < GAP else 0
                fill = -(-min(len(queue), self.scheduler.depth) // self.banks) if alone else 0
            if waits and not window.rows:
                waits -= 1
            offered = [] if waits else queue[: self.banks]
            enable = not (offered and fill)
            fill -= bool(offered and fill)
            table.append(self._inputs(enable, offered))
            _, fetched, _ = window.cycle(enable, offered)
            del queue[:fetched]
        return table

    def _inputs(self, enable: bool, offered: Sequence[Row]) -> Inputs:
        row_bits = self.scheduler.lanes * self.numbers.operand_bits
        words = {"enable": int(enable), "available": len(offered), "a": 0, "b": 0}
        words["marks"] = sum(row.mark << number for number, row in enumerate(offered))
        for number, row in enumerate(offered):
            for port, values in (("a", row.a), ("b", row.b)):
                words[port] |= sum(value << ((place * self.banks + number) * row_bits) for place, value in enumerate(values))
        return words

    def _rows(self, output: Output | None) -> list[Row]:
        if output is None:
            return []
        a, b = output
        steps = a.shape[1]
        return [self._row(a[:, step], b[:, step], step == steps - 1) for step in range(steps)]

    def _row(self, a: Patterns, b: Patterns, mark: bool) -> Row:
        zeros = [self.numbers.zeros(side) for side in (a, b)]
        z = (zeros[1] | zeros[0] if self.skips == "both" else zeros[1]).tolist()
        words = [[packed(values, self.numbers.operand_bits) for values in side] for side in (a, b)]
        return Row(words[0], words[1], z, mark)

    def _offered(self, row: Inputs) -> list[Row]:
        """The rows at the ports of one cycle."""
        bits, lanes = self.numbers.operand_bits, self.scheduler.lanes
        offered = []
        for number in range(row["available"]):
            operands = []
            for port, count in (("a", self.columns), ("b", self.rows)):
                words = [row[port] >> ((place * self.banks + number) * lanes * bits) for place in range(count)]
                operands.append(np.stack([unpacked(word, lanes, bits) for word in words]))
            offered.append(self._row(operands[0], operands[1], bool(row["marks"] >> number & 1)))
        return offered

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """Every cycle by the simulator's tile; an output that does not end within the stimulus is an error of the stimulus."""
        window, table = Window(self.scheduler), list[dict[str, int]]()
        collected, starts, working_before = list[Row](), list[int](), False
        for cycle, row in enumerate(stimulus):
            offered = self._offered(row)
            working, fetched, ends = window.cycle(bool(row["enable"]), offered)
            collected += offered[:fetched]
            if working and not working_before:
                starts.append(cycle)
            working_before = working and not ends
            table.append({"take": fetched, "working": int(working), "ends": int(ends), "ms": 0, "done": 0})
        for start, output in zip(starts, self._outputs(collected), strict=True):
            self._enter(table, start, output)
        return list(table)

    def _outputs(self, rows: Sequence[Row]) -> list[Output]:
        """Rows cut at their marks, as operands again."""
        bits, lanes = self.numbers.operand_bits, self.scheduler.lanes
        outputs, part = list[Output](), list[Row]()
        for row in rows:
            part.append(row)
            if row.mark:
                sides = []
                for words in ([each.a for each in part], [each.b for each in part]):
                    values = [
                        [[word >> (lane * bits) & ((1 << bits) - 1) for lane in range(lanes)] for word in row] for row in words
                    ]
                    sides.append(np.array(values, dtype=np.uint64).transpose(1, 0, 2))
                outputs.append((sides[0], sides[1]))
                part = []
        return outputs

    def simulated(self, output: Output) -> TileExecution:
        a, b = (self.numbers.values(side) for side in output)
        return tile(a, b, self.scheduler, self.numbers.simulated, skips=self.skips, banks=self.banks)

    def _enter(self, table: list[dict[str, int]], start: int, output: Output) -> None:
        """What one output does, from its first cycle on."""
        execution, steps, options = self.simulated(output), output[0].shape[1], len(self.scheduler.options)
        trace, lanes, width = execution.traces[0], self.scheduler.lanes, self.scheduler.depth.bit_length()
        for cycle in range(execution.cycles):
            row = table[start + cycle]
            row["ms"] = row["advance"] = 0
            for number in range(self.rows):
                ms: Selects = [None if choice < 0 else int(choice) for choice in trace.select[cycle, number]]
                left = steps - int(trace.position[cycle, number])
                row["ms"] |= one_hot(ms, options) << (number * lanes * options)
                row["advance"] |= min(int(trace.advance[cycle, number]), left) << (number * width)
        done = table[start + execution.cycles + self.pipeline]
        done["done"] = 1
        done["total"] = packed(self.numbers.total_bits(execution.product), self.numbers.sum_bits)


def packed(patterns: Patterns, bits: int) -> int:
    """Patterns of so many bits side by side, the first in the lowest.

    >>> hex(packed(np.array([[1, 2], [3, 4]], np.uint64), 8))
    '0x4030201'
    """
    return sum(pattern << (place * bits) for place, pattern in enumerate(patterns.ravel().tolist()))


def unpacked(word: int, count: int, bits: int) -> Patterns:
    """The first `count` patterns of a word.

    >>> unpacked(0x4030201, 3, 8)
    array([1, 2, 3], dtype=uint64)
    """
    return np.array([word >> (place * bits) & ((1 << bits) - 1) for place in range(count)], dtype=np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDesign(parameters.SchedulingDesign):
    """A design between its scratchpads; its inputs are whole outputs of random lengths and sparsities."""

    # fmt: off
    number: str   = parameter("int8", parameters.NUMBER)
    banks: int    = parameter(0, parameters.BANKS)
    pipeline: int = parameter(0, parameters.PIPELINE)
    # fmt: on

    def __post_init__(self) -> None:
        _ = self.bench

    @property
    def numbers(self) -> Numbers:
        return numbers_of(self.name, self.number)

    @property
    def bench(self) -> Bench:
        """The scratchpads around it."""
        raise NotImplementedError

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        return self.bench.random(cycles, seed)

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """By the simulator: MS and AS of each row, the end of each output in its cycle, and its bits."""
        return self.bench.expected(stimulus)
