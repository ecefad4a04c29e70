"""Narrow number formats, really rounded: bf16, fp16, tf32 and the two fp8 of training, in numpy.

To the nearest, ties to even, with subnormals (IEEE 754-2019, Sec. 4.3.1). fp8: P. Micikevicius et al.: FP8 Formats for Deep
Learning. 2022, and OCP 8-bit Floating Point Specification 1.0, 2023: e5m2 is as IEEE's formats are, with infinities; e4m3 has none,
its largest exponent holds numbers up to 448 and one NaN. What is too large becomes the largest number (`saturate`, as training
does), or what the format has for it: infinity, or NaN for e4m3 (the OCP specification has both modes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import UnknownName

Real = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A sign, `exponent` bits, `significand` bits behind the point; `largest` is the largest number."""

    name: str
    exponent: int
    significand: int
    largest: float
    infinite: bool = True

    @property
    def least_exponent(self) -> int:
        """Of a normal number."""
        return 2 - (1 << self.exponent - 1)

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.significand


# fmt: off
FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format(name="tf32",     exponent=8, significand=10, largest=float(2.0**127 * (2 - 2.0**-10))),    # NVIDIA A100 paper, 2020
        Format(name="bf16",     exponent=8, significand=7,  largest=float(2.0**127 * (2 - 2.0**-7))),     # as fp32, cut to 16 bits
        Format(name="fp16",     exponent=5, significand=10, largest=65504.0),                             # IEEE 754 binary16
        Format(name="fp8_e4m3", exponent=4, significand=3,  largest=448.0, infinite=False),               # FP8 paper, Table 1
        Format(name="fp8_e5m2", exponent=5, significand=2,  largest=57344.0),                             # FP8 paper, Table 1
    )
}
# fmt: on


def format_of(name: str) -> Format:
    """`fp8` alone is e4m3, that of weights and activations."""
    name = "fp8_e4m3" if name == "fp8" else name
    if name not in FORMATS:
        raise UnknownName("number format", name, FORMATS)
    return FORMATS[name]


def rounded(values: npt.ArrayLike, name: str, *, saturate: bool = True) -> npt.NDArray[np.float32]:
    """Numbers as a format holds them.

    >>> rounded([1.1, 500.0, 0.001], "fp8_e4m3").tolist()
    [1.125, 448.0, 0.001953125]
    """
    form = format_of(name)
    exact = np.asarray(values, np.float64)
    _, exponent = np.frexp(exact)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, form.least_exponent) - form.significand)
    found = np.where(np.isfinite(exact), np.rint(exact / quantum) * quantum, exact)
    over = np.abs(found) > form.largest
    beyond = form.largest if saturate else (np.inf if form.infinite else np.nan)
    found = np.where(over & ~np.isnan(exact), np.copysign(beyond, exact), found)
    return found.astype(np.float32)


def product(a: Real, b: Real, left: str, right: str) -> npt.NDArray[np.float32]:
    """A matrix product of rounded operands with sums in fp32, as a tensor core makes it (but for the order of its sums)."""
    return rounded(a, left) @ rounded(b, right)
