"""Reals as whole numbers of 2^-fraction, which is what a DPU without a floating-point unit multiplies.

PIM-Opt (S. Rhyner et al., PACT 2024) normalises each feature to 0 .. 1 and keeps 31 bits of it behind the point in an unsigned
32-bit word, cut off, not rounded (its quantization_train_test_data_uint32.py). That is the default here.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_flag, require_positive
from trainyard.errors import BadInput

WIDTHS = (8, 16, 32)  # 64 would need more digits than a double has
PIM_OPT_FRACTION = 31  # PIM-Opt: N_FRAC_BITS, SHIFT_AMOUNT
Words = npt.NDArray[Any]


def fixed_point(
    values: npt.ArrayLike,
    bits: int = 32,
    fraction: int = PIM_OPT_FRACTION,
    *,
    signed: bool = False,
    rounding: Literal["down", "nearest"] = "down",
) -> Words:
    """Words of `bits`, `fraction` of them behind the point; a value that does not fit is an error, never wrapped around.

    `restored` gives the values back, less than 2^-fraction too small, or with "nearest" at most half of that away.

    >>> fixed_point([0.0, 0.5, 1.0])
    array([         0, 1073741824, 2147483648], dtype=uint32)
    >>> restored(fixed_point([-0.3, 0.3], 8, 4, signed=True), 4)
    array([-0.3125,  0.25  ])
    """
    _check(bits, fraction, signed, rounding)
    given = np.asarray(values, np.float64)
    scaled = np.floor(given * 2.0**fraction + (0.5 if rounding == "nearest" else 0.0))
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    outside = ~((scaled >= lowest) & (scaled <= highest))  # so that nan is outside
    if outside.any():
        kind = "signed" if signed else "unsigned"
        raise BadInput(
            f"fixed point: {given[outside].flat[0]} does not fit a {kind} word of {bits} bits, {fraction} behind the point "
            f"({lowest / 2.0**fraction} to {highest / 2.0**fraction}): normalise the values, or take a smaller fraction"
        )
    return scaled.astype(f"{'int' if signed else 'uint'}{bits}")


def restored(words: Words, fraction: int = PIM_OPT_FRACTION) -> npt.NDArray[np.float64]:
    """The reals that words stand for, exactly."""
    if words.dtype.kind not in "iu":
        raise BadInput(f"fixed point: words are whole numbers, got {words.dtype}")
    return np.asarray(words.astype(np.float64) * 2.0**-fraction)


def _check(bits: int, fraction: int, signed: bool, rounding: str) -> None:
    require_positive("fixed_point", bits=bits)
    require_flag("fixed_point", signed=signed)
    if bits not in WIDTHS:
        raise BadInput(f"fixed_point: bits must be one of {', '.join(map(str, WIDTHS))}, got {bits}")
    if not 0 <= fraction <= bits:
        raise BadInput(f"fixed_point: fraction must be 0 to {bits} bits, got {fraction}")
    if rounding not in ("down", "nearest"):
        raise BadInput(f"fixed_point: rounding must be 'down' or 'nearest', got {rounding!r}")
