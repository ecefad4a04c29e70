"""Bit patterns that reach the corners of floating-point arithmetic more often than chance would."""

from __future__ import annotations

import random

from trainyard.rtl.arithmetic.formats import FloatFormat


def random_bits(kind: FloatFormat, chance: random.Random, near: int | None = None) -> int:
    """A pattern: any one, one near the ends of the exponents, a special one, or one of a size like `near`.

    >>> sorted({random_bits(FloatFormat(exponent_bits=2, fraction_bits=1), random.Random(seed)) for seed in range(200)})
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    """
    way = chance.random()
    any_bits = chance.getrandbits(kind.width)
    if way < 0.35 or (near is None and way < 0.8):
        return any_bits
    fraction, sign = any_bits & ((1 << kind.fraction_bits) - 1), any_bits >> (kind.width - 1) << (kind.width - 1)
    if way < 0.8:
        assert near is not None
        exponent = (near >> kind.fraction_bits & kind.greatest_exponent) + chance.randint(-2, 2)
        if chance.random() < 0.3:  # fractions that differ in few bits cancel
            fraction = near & ((1 << kind.fraction_bits) - 1) ^ (1 << chance.randrange(kind.fraction_bits))
        return sign | max(0, min(exponent, kind.greatest_exponent)) << kind.fraction_bits | fraction
    if way < 0.95:
        exponent = chance.choice((0, 1, 2, kind.greatest_exponent - 2, kind.greatest_exponent - 1))
        return sign | max(0, exponent) << kind.fraction_bits | fraction
    return chance.choice((0, 1 << (kind.width - 1), kind.infinity, sign | kind.infinity, kind.nan, 1, kind.infinity - 1))


def finite_bits(kind: FloatFormat, chance: random.Random) -> int:
    """A number of moderate size, so that sums neither vanish nor overflow; now and then zero of either sign."""
    if chance.random() < 0.1:
        return chance.getrandbits(1) << (kind.width - 1)
    spread = max(1, min(4, kind.bias // 2))
    exponent = kind.bias + chance.randint(-spread, spread)
    return chance.getrandbits(1) << (kind.width - 1) | exponent << kind.fraction_bits | chance.getrandbits(kind.fraction_bits)
