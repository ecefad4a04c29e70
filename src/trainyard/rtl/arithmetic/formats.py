"""Binary floating-point formats of any size, and their arithmetic on bit patterns: the numeric twin of the circuits.

A number is (sign, exponent, fraction) as in IEEE 754, from high to low; the exponent of all ones holds infinity (fraction 0) and
NaN. Results are rounded to nearest, ties to even. Decided here, where circuits differ:

- **NaN.** One NaN comes out, whatever went in: positive, quiet, the rest of the fraction 0 (as RISC-V and most accelerators do;
  x86 hands on the operand's payload, so comparisons with numpy count every NaN as the same).
- **Subnormals** are numbers like any other by default, so that results equal numpy's bit for bit. With `subnormals=False` operands
  with exponent 0 count as zero, and a result is replaced by zero of its sign if it lies below the smallest normal number before
  rounding: the cheaper unit that most accelerators build.
- **Zero.** A sum that cancels is +0; -0 comes only of two negative zeros, or as the sign of a product.

The twin computes with integers of any length, rounds once, and shares no code with the circuits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from trainyard.checks import require_flag, require_positive
from trainyard.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """A sign, `exponent_bits` and `fraction_bits`.

    >>> FP32.width, FP32.bias, hex(FP32.nan), hex(BF16.infinity)
    (32, 127, '0x7fc00000', '0x7f80')
    """

    exponent_bits: int
    fraction_bits: int
    subnormals: bool = True

    def __post_init__(self) -> None:
        require_positive("FloatFormat", exponent_bits=self.exponent_bits, fraction_bits=self.fraction_bits)
        require_flag("FloatFormat", subnormals=self.subnormals)
        if self.exponent_bits < 2:
            raise BadInput(f"FloatFormat: exponent_bits must be at least 2, got {self.exponent_bits}: 1 leaves no normal number")

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def precision(self) -> int:
        """Bits of a significand: the fraction and the leading one."""
        return self.fraction_bits + 1

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def greatest_exponent(self) -> int:
        """The exponent field of infinity and NaN: all ones."""
        return (1 << self.exponent_bits) - 1

    @property
    def infinity(self) -> int:
        return self.greatest_exponent << self.fraction_bits

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.fraction_bits - 1)

    @property
    def name(self) -> str:
        known = next((name for name, other in FORMATS.items() if other == self), None)
        flush = "" if self.subnormals else "-flush"
        return known or f"e{self.exponent_bits}m{self.fraction_bits}{flush}"


# fmt: off
FP32 = FloatFormat(exponent_bits=8, fraction_bits=23)  # IEEE 754 binary32
FP16 = FloatFormat(exponent_bits=5, fraction_bits=10)  # IEEE 754 binary16
BF16 = FloatFormat(exponent_bits=8, fraction_bits=7)   # the upper half of binary32
FORMATS = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
# fmt: on


def format_of(name: str) -> FloatFormat:
    """A format by name: fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, with `-flush` for one without subnormals.

    >>> format_of("e4m3"), format_of("bf16-flush").subnormals
    (FloatFormat(exponent_bits=4, fraction_bits=3, subnormals=True), False)
    >>> format_of("fp8")
    Traceback (most recent call last):
    trainyard.errors.BadInput: unknown number format 'fp8': write fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, such as e4m3
    """
    plain, flush, rest = str(name).partition("-flush")
    sizes = re.fullmatch(r"e(\d+)m(\d+)", plain)
    if rest or (sizes is None and plain not in FORMATS):
        known = "fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, such as e4m3"
        raise BadInput(f"unknown number format '{name}': write {known}")
    known_format = FORMATS.get(plain)
    bits = (
        (known_format.exponent_bits, known_format.fraction_bits)
        if known_format
        else (int(plain[1:].split("m")[0]), int(plain.split("m")[1]))
    )
    return FloatFormat(exponent_bits=bits[0], fraction_bits=bits[1], subnormals=not flush)


def fields_of(kind: FloatFormat, bits: int) -> tuple[int, int, int]:
    """Sign, exponent field and fraction field."""
    return bits >> (kind.width - 1), (bits >> kind.fraction_bits) & kind.greatest_exponent, bits & ((1 << kind.fraction_bits) - 1)


def is_nan(kind: FloatFormat, bits: int) -> bool:
    _, exponent, fraction = fields_of(kind, bits)
    return exponent == kind.greatest_exponent and fraction != 0


def is_infinite(kind: FloatFormat, bits: int) -> bool:
    _, exponent, fraction = fields_of(kind, bits)
    return exponent == kind.greatest_exponent and fraction == 0


def significand(kind: FloatFormat, bits: int) -> tuple[int, int]:
    """A finite number's size as (whole number, power of two); zero, and a subnormal that is flushed, is (0, 0)."""
    _, exponent, fraction = fields_of(kind, bits)
    if exponent == 0:
        return (fraction, 1 - kind.bias - kind.fraction_bits) if kind.subnormals and fraction else (0, 0)
    return fraction | 1 << kind.fraction_bits, exponent - kind.bias - kind.fraction_bits


def rounded(kind: FloatFormat, sign: int, size: int, power: int) -> int:
    """The bit pattern nearest to (-1)^sign * size * 2^power, ties to even.

    >>> hex(rounded(FP32, 0, 1, 0)), hex(rounded(FP32, 1, (1 << 24) + 1, 0)), hex(rounded(FP32, 0, 1, 128))
    ('0x3f800000', '0xcb800000', '0x7f800000')
    """
    negative = sign << (kind.width - 1)
    if size == 0:
        return negative
    exponent = max(size.bit_length() - 1 + power + kind.bias, 1)  # of the unrounded number; 1 also for subnormals
    if not kind.subnormals and size.bit_length() - 1 + power + kind.bias < 1:
        return negative
    unit = exponent - kind.bias - kind.fraction_bits  # power of two of the last place
    if power >= unit:
        count = size << (power - unit)
    else:
        count, rest = divmod(size, 1 << (unit - power))
        half = 1 << (unit - power - 1)
        count += rest > half or (rest == half and count & 1)
    if count >> kind.precision:
        count, exponent = count >> 1, exponent + 1
    if exponent >= kind.greatest_exponent:
        return negative | kind.infinity
    if count >> kind.fraction_bits:
        return negative | exponent << kind.fraction_bits | count & ((1 << kind.fraction_bits) - 1)
    return negative | count


def add(kind: FloatFormat, a: int, b: int) -> int:
    """The sum of two bit patterns.

    >>> hex(add(FP32, 0x3F800000, 0xBF800000)), hex(add(FP32, 0x7F800000, 0xFF800000))  # 1 - 1, infinity - infinity
    ('0x0', '0x7fc00000')
    """
    sign_a, sign_b = a >> (kind.width - 1), b >> (kind.width - 1)
    if is_nan(kind, a) or is_nan(kind, b):
        return kind.nan
    if is_infinite(kind, a) or is_infinite(kind, b):
        if is_infinite(kind, a) and is_infinite(kind, b) and sign_a != sign_b:
            return kind.nan
        return a if is_infinite(kind, a) else b
    (size_a, power_a), (size_b, power_b) = significand(kind, a), significand(kind, b)
    power = min(power_a, power_b)
    total = (-1) ** sign_a * (size_a << (power_a - power)) + (-1) ** sign_b * (size_b << (power_b - power))
    if total == 0:
        return (sign_a & sign_b) << (kind.width - 1)
    return rounded(kind, int(total < 0), abs(total), power)


def multiply(kind: FloatFormat, a: int, b: int, result: FloatFormat | None = None) -> int:
    """The product of two bit patterns of `kind`, rounded to `result` (by default `kind`).

    >>> hex(multiply(BF16, 0x3F81, 0x3F81, FP32)), hex(multiply(BF16, 0x3F81, 0x3F81))  # (1 + 1/128)^2
    ('0x3f820200', '0x3f82')
    """
    result = result or kind
    sign = (a ^ b) >> (kind.width - 1)
    negative = sign << (result.width - 1)
    if is_nan(kind, a) or is_nan(kind, b):
        return result.nan
    (size_a, power_a), (size_b, power_b) = significand(kind, a), significand(kind, b)
    if is_infinite(kind, a) or is_infinite(kind, b):
        zero = (not is_infinite(kind, a) and size_a == 0) or (not is_infinite(kind, b) and size_b == 0)
        return result.nan if zero else negative | result.infinity
    return rounded(result, sign, size_a * size_b, power_a + power_b)


def to_bits(kind: FloatFormat, value: float) -> int:
    """The bit pattern nearest to a Python float.

    >>> hex(to_bits(FP32, -0.1)), hex(to_bits(FP16, 65520.0))
    ('0xbdcccccd', '0x7c00')
    """
    import math

    if math.isnan(value):
        return kind.nan
    sign = int(math.copysign(1.0, value) < 0)
    if math.isinf(value):
        return sign << (kind.width - 1) | kind.infinity
    exact = Fraction(value)
    return rounded(kind, sign, abs(exact.numerator), 1 - exact.denominator.bit_length())


def to_float(kind: FloatFormat, bits: int) -> float:
    """The number as a Python float, which holds every format up to 53 bits of precision and 11 of exponent exactly.

    >>> to_float(BF16, 0x4049), to_float(FP16, 0x0001)
    (3.140625, 5.960464477539063e-08)
    """
    sign, _, _ = fields_of(kind, bits)
    if is_nan(kind, bits):
        return float("nan")
    if is_infinite(kind, bits):
        return float("-inf") if sign else float("inf")
    size, power = significand(kind, bits)
    value = float(Fraction(size) * Fraction(2) ** power)
    return -value if sign else value
