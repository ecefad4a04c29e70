"""A floating-point adder of any format: swap, align, add, normalise, round to nearest even.

One path, as a textbook draws it (J.-M. Muller et al.: Handbook of Floating-Point Arithmetic, 2nd ed., Ch. 8). The operand of
smaller size is shifted right; three bits below its last place (guard, round, sticky) are enough, for where the difference of two
numbers loses more than one leading bit, the shift was at most one and lost nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.rtl.arithmetic.formats import FloatFormat, add, format_of
from trainyard.rtl.arithmetic.operands import unpacked
from trainyard.rtl.arithmetic.pipeline import Pipeline, leading_zeros, require_stages
from trainyard.rtl.arithmetic.stimulus import random_bits
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register

BELOW = 3
"""Bits kept below the last place: guard, round, sticky."""


class FloatAdder(Component):
    """`sum` = `a` + `b`, after `stages` cycles."""

    def __init__(self, kind: FloatFormat, stages: int = 0) -> None:
        require_stages("adder", stages)
        super().__init__({"a": In(kind.width), "b": In(kind.width), "sum": Out(kind.width)})
        self._kind, self._stages = kind, stages

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pipeline = Pipeline(m, self._stages)
        large, small, special, special_bits = self._ordered(m)
        aligned = self._aligned(m, large, small)
        top, low, exponent, sign, subtract, both_negative, special, special_bits = pipeline.cut(
            "early", top=large.significand, low=aligned, exponent=large.exponent, sign=large.sign,
            subtract=large.sign ^ small.sign, both_negative=large.sign & small.sign, special=special, special_bits=special_bits,
        )  # fmt: skip
        total = Signal(self._kind.precision + BELOW + 1)
        extended = Cat(Const(0, BELOW), top)
        m.d.comb += total.eq(Mux(subtract, extended - low, extended + low))
        total, exponent, sign, both_negative, special, special_bits = pipeline.cut(
            "middle", total=total, exponent=exponent, sign=sign, both_negative=both_negative, special=special,
            special_bits=special_bits,
        )  # fmt: skip
        packed = self._normalised_and_rounded(m, total, exponent, sign, both_negative)
        (result,) = pipeline.cut("result", result=Mux(special, special_bits, packed))
        m.d.comb += self.sum.eq(result)
        return m

    def _ordered(self, m: Module) -> tuple[Any, Any, Any, Any]:
        """The operand of larger size and the other, and the answer where one is infinite or NaN."""
        kind = self._kind
        a, b = unpacked(m, "a", kind, self.a), unpacked(m, "b", kind, self.b)
        swap = Signal()
        m.d.comb += swap.eq(self.a[: kind.width - 1] < self.b[: kind.width - 1])
        large, small = a.chosen(m, "large", b, swap), b.chosen(m, "small", a, swap)
        special, bits = Signal(), Signal(kind.width)
        invalid = a.is_nan | b.is_nan | (a.is_infinite & b.is_infinite & (a.sign ^ b.sign))
        m.d.comb += special.eq(a.is_nan | b.is_nan | a.is_infinite | b.is_infinite)
        infinite = Cat(Const(kind.infinity, kind.width - 1), Mux(a.is_infinite, a.sign, b.sign))
        m.d.comb += bits.eq(Mux(invalid, Const(kind.nan, kind.width), infinite))
        return large, small, special, bits

    def _aligned(self, m: Module, large: Any, small: Any) -> Any:
        """The smaller significand at the larger one's exponent; the sticky bit is set where a one was shifted out."""
        width = self._kind.precision + BELOW
        distance, shift = Signal(self._kind.exponent_bits), Signal(range(width + 1))
        m.d.comb += [distance.eq(large.exponent - small.exponent), shift.eq(Mux(distance > width, width, distance))]
        whole, shifted, lost = Signal(width), Signal(2 * width), Signal()
        m.d.comb += [
            whole.eq(Cat(Const(0, BELOW), small.significand)),
            shifted.eq(Cat(Const(0, width), whole) >> shift),
            lost.eq(shifted[:width].any()),
        ]
        aligned = Signal(width)
        m.d.comb += aligned.eq(Cat(shifted[width] | lost, shifted[width + 1 :]))
        return aligned

    def _normalised_and_rounded(self, m: Module, total: Any, exponent: Any, sign: Any, both_negative: Any) -> Any:
        """The leading one moved to its place, or as far as the exponent allows (a subnormal), then rounded and packed."""
        kind, width = self._kind, self._kind.precision + BELOW
        zeros = leading_zeros(m, "total", total)
        shift, normal = Signal(range(width + 2)), Signal(width + 1)
        tiny = Signal()  # the leading one cannot get to its place: below the smallest normal number
        m.d.comb += [
            tiny.eq(zeros > exponent),
            shift.eq(Mux(tiny, exponent, zeros)),
            normal.eq(total << shift),
        ]
        # a carry out has zeros == 0: the exponent grows by 1 - zeros, and the bit that falls off joins the sticky one
        field = Signal(kind.exponent_bits + 1)
        m.d.comb += field.eq(Mux(tiny, 0, exponent + 1 - zeros))
        fraction = normal[BELOW + 1 : BELOW + 1 + kind.fraction_bits]
        half, rest = normal[BELOW], normal[:BELOW].any()
        up = half & (rest | fraction[0])
        magnitude = Signal(kind.exponent_bits + 1 + kind.fraction_bits)
        m.d.comb += magnitude.eq(Cat(fraction, field) + up)
        overflow = Signal()
        m.d.comb += overflow.eq(magnitude[kind.fraction_bits :] >= kind.greatest_exponent)
        finite = magnitude[: kind.width - 1]
        if not kind.subnormals:
            finite = Mux(tiny, 0, finite)
        zero = Signal()
        m.d.comb += zero.eq(total == 0)
        packed = Signal(kind.width)
        size = Mux(overflow, Const(kind.infinity, kind.width - 1), finite)
        m.d.comb += packed.eq(Mux(zero, Cat(Const(0, kind.width - 1), both_negative), Cat(size[: kind.width - 1], sign)))
        return packed


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdderDesign(Design):
    """The adder beside its numeric twin."""

    name: ClassVar[str] = "adder"
    word: ClassVar[str] = "floating-point adder, shared by all designs (IEEE 754, round to nearest even)"
    number: str = parameter(
        "fp32", "number format: fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, -flush without subnormals"
    )
    stages: int = parameter(0, "registers from input to output, 0 to 3")

    def __post_init__(self) -> None:
        format_of(self.number)
        require_stages(self.name, self.stages)

    def build(self) -> Component:
        return FloatAdder(format_of(self.number), self.stages)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        kind, chance = format_of(self.number), random.Random(seed)
        rows: list[Inputs] = []
        for _ in range(cycles):
            a = random_bits(kind, chance)
            rows.append({"a": a, "b": random_bits(kind, chance, near=a)})
        return rows

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        kind = format_of(self.number)
        sums: list[Outputs] = [{"sum": add(kind, row["a"], row["b"])} for row in stimulus]
        return ([{}] * self.stages + sums)[: len(sums)]
