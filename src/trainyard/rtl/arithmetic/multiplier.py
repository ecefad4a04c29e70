"""A floating-point multiplier of any format: multiply significands, normalise, round to nearest even.

The result may have another format than the operands: bfloat16 operands with an fp32 result is the usual first half of a
multiply-accumulate unit. There the product of two 8-bit significands fits 24 bits, so only results below the normal range are
rounded. Operands without subnormals need no count of leading zeros: the product of two significands has at most one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib.wiring import Component, In, Out

from trainyard.rtl.arithmetic.formats import FloatFormat, format_of, multiply
from trainyard.rtl.arithmetic.operands import unpacked
from trainyard.rtl.arithmetic.pipeline import Pipeline, leading_zeros, require_stages
from trainyard.rtl.arithmetic.stimulus import random_bits
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register


class FloatMultiplier(Component):
    """`product` = `a` * `b`, rounded to `result` (by default the operands' format), after `stages` cycles."""

    def __init__(self, kind: FloatFormat, result: FloatFormat | None = None, stages: int = 0) -> None:
        require_stages("multiplier", stages)
        self._kind, self._result, self._stages = kind, result or kind, stages
        super().__init__({"a": In(kind.width), "b": In(kind.width), "product": Out(self._result.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kind, result = self._kind, self._result
        pipeline = Pipeline(m, self._stages)
        a, b = unpacked(m, "a", kind, self.a), unpacked(m, "b", kind, self.b)
        sign, special, special_bits = Signal(), Signal(), Signal(result.width)
        zero = Signal()
        bits = max(kind.exponent_bits, result.exponent_bits, (2 * kind.precision).bit_length()) + 3
        exponent = Signal(signed(bits))  # the result's field if both leading ones meet at the top of the product
        m.d.comb += [
            sign.eq(a.sign ^ b.sign),
            zero.eq((a.significand == 0) | (b.significand == 0)),
            special.eq(a.is_nan | b.is_nan | a.is_infinite | b.is_infinite),
            exponent.eq(a.exponent + b.exponent + Const(result.bias + 1 - 2 * kind.bias, signed(bits))),
        ]
        invalid = a.is_nan | b.is_nan | (zero & (a.is_infinite | b.is_infinite))
        infinite = Cat(Const(result.infinity, result.width - 1), sign)
        m.d.comb += special_bits.eq(Mux(invalid, Const(result.nan, result.width), infinite))
        left, right, exponent, sign, zero, special, special_bits = pipeline.cut(
            "early", left=a.significand, right=b.significand, exponent=exponent, sign=sign, zero=zero, special=special,
            special_bits=special_bits,
        )  # fmt: skip
        product = Signal(2 * kind.precision)
        m.d.comb += product.eq(left * right)
        product, exponent, sign, zero, special, special_bits = pipeline.cut(
            "middle", product=product, exponent=exponent, sign=sign, zero=zero, special=special, special_bits=special_bits
        )
        magnitude = self._normalised_and_rounded(m, product, exponent)
        packed = Cat(Mux(zero, Const(0, result.width - 1), magnitude), sign)
        (final,) = pipeline.cut("result", result=Mux(special, special_bits, packed))
        m.d.comb += self.product.eq(final)
        return m

    def _normalised_and_rounded(self, m: Module, product: Any, exponent: Any) -> Any:
        """Exponent and fraction of the result: the leading one at the top, moved down again below the normal range."""
        result, width = self._result, max(2 * self._kind.precision, self._result.precision + 1)
        zeros = leading_zeros(m, "product", product) if self._kind.subnormals else ~product[-1]
        normal, field = Signal(width), Signal(exponent.shape())
        m.d.comb += [
            normal.eq(Cat(Const(0, width - len(product)), (product << zeros)[: len(product)])),
            field.eq(exponent - zeros),
        ]
        tiny = Signal()  # below the smallest normal number
        m.d.comb += tiny.eq(field < 1)
        lost = Const(0, 1)
        if result.subnormals:
            shift, shifted, lost = Signal(range(width + 2)), Signal(2 * width + 1), Signal()
            distance = Signal(len(exponent))
            m.d.comb += [
                distance.eq(1 - field),
                shift.eq(Mux(tiny, Mux(distance > width, width + 1, distance), 0)),
                shifted.eq(Cat(Const(0, width + 1), normal) >> shift),
                lost.eq(shifted[: width + 1].any()),
            ]
            normal = shifted[width + 1 :]
        below = width - result.precision  # bits under the last place
        fraction = normal[below : width - 1]
        half, rest = (normal[below - 1] if below else Const(0, 1)), normal[: max(below - 1, 0)].any() | lost
        up = half & (rest | fraction[0])
        magnitude = Signal(len(exponent) + result.fraction_bits)
        m.d.comb += magnitude.eq(Cat(fraction, Mux(tiny, 0, field)[: len(exponent)]) + up)
        overflow = Signal()
        m.d.comb += overflow.eq(~tiny & (magnitude[result.fraction_bits :] >= result.greatest_exponent))
        size = Signal(result.width - 1)
        finite = magnitude[: result.width - 1] if result.subnormals else Mux(tiny, 0, magnitude[: result.width - 1])
        m.d.comb += size.eq(Mux(overflow, Const(result.infinity, result.width - 1), finite))
        return size


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplierDesign(Design):
    """The multiplier beside its numeric twin."""

    name: ClassVar[str] = "multiplier"
    word: ClassVar[str] = "floating-point multiplier, shared by all designs (IEEE 754, round to nearest even)"
    number: str = parameter(
        "fp32", "format of the operands: fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, -flush without subnormals"
    )
    result: str = parameter("", "format of the product; that of the operands where it is empty")
    stages: int = parameter(0, "registers from input to output, 0 to 3")

    def __post_init__(self) -> None:
        format_of(self.number)
        format_of(self.result or self.number)
        require_stages(self.name, self.stages)

    def build(self) -> Component:
        return FloatMultiplier(format_of(self.number), format_of(self.result or self.number), self.stages)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        kind, chance = format_of(self.number), random.Random(seed)
        return [{"a": random_bits(kind, chance), "b": random_bits(kind, chance)} for _ in range(cycles)]

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        kind, result = format_of(self.number), format_of(self.result or self.number)
        products: list[Outputs] = [{"product": multiply(kind, row["a"], row["b"], result)} for row in stimulus]
        return ([{}] * self.stages + products)[: len(products)]
