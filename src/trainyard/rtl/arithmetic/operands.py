"""An operand taken apart: sign, exponent, significand with its leading one, and what kind of number it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal

from trainyard.rtl.arithmetic.formats import FloatFormat


@dataclass(frozen=True, slots=True)
class Finite:
    """A finite operand. A subnormal has exponent 1 and no leading one (IEEE 754); flushed, its significand is 0."""

    sign: Any
    exponent: Any
    significand: Any

    def chosen(self, m: Module, name: str, other: Finite, swap: Any) -> Finite:
        """This operand, or the other where `swap` is set."""
        signals = {}
        for part in ("sign", "exponent", "significand"):
            mine, its = getattr(self, part), getattr(other, part)
            signals[part] = Signal(mine.shape(), name=f"{name}_{part}")
            m.d.comb += signals[part].eq(Mux(swap, its, mine))
        return Finite(**signals)


@dataclass(frozen=True, slots=True)
class Unpacked(Finite):
    """Any operand: its parts as if it were finite, and whether it is not."""

    is_nan: Any
    is_infinite: Any


def unpacked(m: Module, name: str, kind: FloatFormat, bits: Any) -> Unpacked:
    fraction, exponent = bits[: kind.fraction_bits], bits[kind.fraction_bits : kind.width - 1]
    normal, greatest = Signal(name=f"{name}_normal"), Signal(name=f"{name}_greatest")
    sign = Signal(name=f"{name}_sign")
    effective = Signal(kind.exponent_bits, name=f"{name}_exponent")
    significand = Signal(kind.precision, name=f"{name}_significand")
    is_nan, is_infinite = Signal(name=f"{name}_nan"), Signal(name=f"{name}_infinite")
    m.d.comb += [
        sign.eq(bits[-1]),
        normal.eq(exponent.any()),
        greatest.eq(exponent.all()),
        effective.eq(exponent | ~normal),
        significand.eq(Cat(fraction, normal) if kind.subnormals else Mux(normal, Cat(fraction, normal), 0)),
        is_nan.eq(greatest & fraction.any()),
        is_infinite.eq(greatest & ~fraction.any()),
    ]
    return Unpacked(sign, effective, significand, is_nan, is_infinite)
