"""The arithmetic of a TensorDash element: a multiplier a lane, an adder tree over the lanes, an accumulator.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III, Fig. 2.
The simulator's part is `arrays.tensordash.element.adder_tree` and the accumulation around it: neighbours first,
((p0 + p1) + (p2 + p3)) for four, an odd last lane is added in the next stage, and the accumulator starts at 0.

The dense baseline of the paper has the same arithmetic, without buffers, schedulers and multiplexers: area ratios compare them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FP32, format_of
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier

Patterns = npt.NDArray[np.uint64]
STAGES = 3
"""Places for a pipeline register: behind the multiplexers, the multipliers and the adder tree."""


def require_pipeline(owner: str, pipeline: int) -> None:
    """So many of the places have a register."""
    if not 0 <= pipeline <= STAGES:
        raise BadInput(f"{owner}: pipeline={pipeline}; there are {STAGES} places for a register, write 0 to {STAGES}")


class Numbers(Protocol):
    """The number format of an element: operands, their products, and sums of these in the same wider format.

    The lower half is about bit patterns in numpy arrays, for the simulator's side.
    """

    @property
    def name(self) -> str: ...
    @property
    def operand_bits(self) -> int: ...
    @property
    def sum_bits(self) -> int: ...
    def is_zero(self, value: Value) -> Value:
        """Whether an operand is zero, for the comparators."""

    def multiply(self, m: Module, name: str, a: Value, b: Value) -> Value: ...
    def add(self, m: Module, name: str, a: Value, b: Value) -> Value: ...

    @property
    def simulated(self) -> str:
        """What the simulator's element calls the format."""

    @property
    def zero_sign(self) -> int:
        """The bit that a zero may have set."""

    def random(self, draw: np.random.Generator, shape: tuple[int, ...]) -> Patterns:
        """Operands that are not zero."""

    def zeros(self, patterns: Patterns) -> npt.NDArray[np.bool_]: ...
    def values(self, patterns: Patterns) -> npt.NDArray[Any]: ...
    def total_bits(self, totals: npt.NDArray[Any]) -> Patterns:
        """The bit patterns of the simulator's sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """The simulator's `fixed`: int8 into int32 or int16 into int64, two's complement, which wrap around."""

    operand_bits: int = 8

    def __post_init__(self) -> None:
        if self.operand_bits not in (8, 16):
            raise BadInput(f"FixedPoint: operand_bits={self.operand_bits}; the simulator's fixed point has 8 or 16")

    @property
    def name(self) -> str:
        return f"int{self.operand_bits}"

    @property
    def sum_bits(self) -> int:
        return 4 * self.operand_bits

    def is_zero(self, value: Value) -> Value:
        return value == 0

    def multiply(self, m: Module, name: str, a: Value, b: Value) -> Value:
        product = Signal(self.sum_bits, name=name)
        m.d.comb += product.eq(a.as_signed() * b.as_signed())
        return product

    def add(self, m: Module, name: str, a: Value, b: Value) -> Value:
        total = Signal(self.sum_bits, name=name)
        m.d.comb += total.eq(a + b)
        return total

    @property
    def simulated(self) -> str:
        return "fixed"

    @property
    def zero_sign(self) -> int:
        return 0

    def random(self, draw: np.random.Generator, shape: tuple[int, ...]) -> Patterns:
        return draw.integers(1, 1 << self.operand_bits, shape, dtype=np.uint64)

    def zeros(self, patterns: Patterns) -> npt.NDArray[np.bool_]:
        zeros: npt.NDArray[np.bool_] = patterns == 0
        return zeros

    def values(self, patterns: Patterns) -> npt.NDArray[Any]:
        return patterns.astype(np.uint8).view(np.int8) if self.operand_bits == 8 else patterns.astype(np.uint16).view(np.int16)

    def total_bits(self, totals: npt.NDArray[Any]) -> Patterns:
        return totals.view(np.uint32 if self.operand_bits == 8 else np.uint64).astype(np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatingPoint:
    """The simulator's `fp16` or `bf16`: the product in FP32, exact save where a bf16 product leaves its range; sums in FP32."""

    name: str = "bf16"

    def __post_init__(self) -> None:
        require_choice("FloatingPoint", name=(self.name, ("fp16", "bf16")))

    @property
    def operand_bits(self) -> int:
        return 16

    @property
    def sum_bits(self) -> int:
        return FP32.width

    def is_zero(self, value: Value) -> Value:
        return value[:-1] == 0  # of either sign

    def multiply(self, m: Module, name: str, a: Value, b: Value) -> Value:
        m.submodules[name] = multiplier = FloatMultiplier(format_of(self.name), result=FP32)
        m.d.comb += [multiplier.a.eq(a), multiplier.b.eq(b)]
        return multiplier.product

    def add(self, m: Module, name: str, a: Value, b: Value) -> Value:
        m.submodules[name] = adder = FloatAdder(FP32)
        m.d.comb += [adder.a.eq(a), adder.b.eq(b)]
        return adder.sum

    @property
    def simulated(self) -> str:
        return self.name

    @property
    def zero_sign(self) -> int:
        return 1 << 15

    def random(self, draw: np.random.Generator, shape: tuple[int, ...]) -> Patterns:
        """fp16: any finite value, subnormals included; bf16: exponents within 20 of 1.0, so that no sum is infinite or NaN."""
        first, last = (1, 31 << 10) if self.name == "fp16" else ((127 - 20) << 7, (127 + 20) << 7)
        sign = draw.integers(0, 2, shape, dtype=np.uint64) * np.uint64(self.zero_sign)
        signed: Patterns = sign + draw.integers(first, last, shape, dtype=np.uint64)
        return signed

    def zeros(self, patterns: Patterns) -> npt.NDArray[np.bool_]:
        zeros: npt.NDArray[np.bool_] = patterns & np.uint64(self.zero_sign - 1) == 0
        return zeros

    def values(self, patterns: Patterns) -> npt.NDArray[Any]:
        if self.name == "fp16":
            return patterns.astype(np.uint16).view(np.float16)
        return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def total_bits(self, totals: npt.NDArray[Any]) -> Patterns:
        return totals.view(np.uint32).astype(np.uint64)


NUMBERS = ("int8", "int16", "fp16", "bf16")


def numbers_of(owner: str, name: str) -> Numbers:
    """The number format of this name."""
    if name not in NUMBERS:
        raise UnknownName("number format", name, NUMBERS, where=owner)
    return FixedPoint(operand_bits=int(name[3:])) if name.startswith("int") else FloatingPoint(name=name)


def adder_tree(m: Module, numbers: Numbers, products: Sequence[Value]) -> Value:
    """Sum of the products, neighbours first; an odd last one is added in the next stage."""
    level, stage = list(products), 0
    while len(level) > 1:
        pairs = [
            numbers.add(m, f"sum{stage}_{place // 2}", level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)
        ]
        level, stage = pairs + level[2 * len(pairs) :], stage + 1
    return level[0]


class DotProduct(Component):
    """Multipliers, tree and accumulator; the first `pipeline` of three places have a register.

    | port      | bits                 | meaning                                                                  |
    |-----------|----------------------|--------------------------------------------------------------------------|
    | `a`, `b`  | lanes x operand bits | what the multiplexers have selected                                      |
    | `working` | 1                    | these count                                                              |
    | `ends`    | 1                    | they are the last of an output                                           |
    | `total`   | sum bits             | the accumulator                                                          |
    | `done`    | 1                    | it holds a finished output, 1 + pipeline cycles after `ends`              |
    """

    def __init__(self, *, numbers: Numbers, lanes: int, pipeline: int = 0) -> None:
        require_positive("DotProduct", lanes=lanes)
        require_pipeline("DotProduct", pipeline)
        self.numbers, self.lanes, self.pipeline = numbers, lanes, pipeline
        super().__init__(
            {
                "a": In(lanes * numbers.operand_bits),
                "b": In(lanes * numbers.operand_bits),
                "working": In(1),
                "ends": In(1),
                "total": Out(numbers.sum_bits),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        numbers, bits = self.numbers, self.numbers.operand_bits
        flags: list[Value] = [self.working, self.ends]
        a, b, *flags = self._stage(m, 0, [self.a, self.b, *flags])
        products = [
            numbers.multiply(m, f"product{lane}", a.word_select(lane, bits), b.word_select(lane, bits))
            for lane in range(self.lanes)
        ]
        *products, working, ends = self._stage(m, 1, [*products, *flags])
        tree, working, ends = self._stage(m, 2, [adder_tree(m, numbers, products), working, ends])
        first, zero = Signal(init=1), Signal(numbers.sum_bits)
        accumulated = numbers.add(m, "accumulated", Mux(first, zero, self.total), tree)
        m.d.sync += self.done.eq(ends)
        with m.If(working):
            m.d.sync += [self.total.eq(accumulated), first.eq(ends)]
        return m

    def _stage(self, m: Module, place: int, values: Sequence[Value]) -> list[Value]:
        """The values, behind a register where the pipeline has one at this place."""
        if place >= self.pipeline:
            return list(values)
        registers = [Signal(len(value), name=f"stage{place}_{number}") for number, value in enumerate(values)]
        m.d.sync += [register.eq(value) for register, value in zip(registers, values, strict=True)]
        return list(registers)
