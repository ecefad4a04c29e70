"""Fig. 7: bits of metadata for each element of a 1632 x 36548 matrix, in every format, counted on masks.

The paper calls 36548 K; in the suite's 1632-36548-1024 (M-N-K) it is N. A run-length code's metadata are its run fields, padding
entries included; the zeros that these entries store are counted apart (`hardware.formats.matrices.Footprint`).

The controller works on bitmaps; a front end turns the other formats into one (Sec. IV-C). Its cycles are shown and charged to no
run: an `Accelerator` pays for a format's traffic, and the front end works while the DMA engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.formats.matrices import (
    BITMAP,
    FORMATS,
    RLC2,
    RLC4,
    Footprint,
    Format,
    Reading,
    format_named,
    smaller_between,
)
from trainyard.papers.ledger import Experiments, Measured

ROWS, COLUMNS = 1632, 36548  # Fig. 7: M and K
ELEMENT_BITS = 32  # Sec. IV-A2: FP32
LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # Sec. I: 10 to 90 % of non-zeros, and the ends
FRONT_END_LEVELS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
LANES = 128  # Sec. V: words per cycle from the SRAM
STEP = 0.001
"""Crossings are found to a thousandth."""


@cache
def _mask(sparsity: float) -> Bitmap:
    return Bitmap.random(ROWS, COLUMNS, nonzero=1 - sparsity, seed=round(1000 * sparsity))


@cache
def footprint(name: str, sparsity: float) -> Footprint:
    return format_named(name).footprint_bits(_mask(sparsity), ELEMENT_BITS)


def overhead(name: str, sparsity: float, reading: Reading = "runs") -> float:
    """Bits for each element that are not a value."""
    return footprint(name, sparsity).overhead(reading) / (ROWS * COLUMNS)


@cache
def front_end_cycles(name: str, sparsity: float) -> int:
    """Until the last bit of the matrix has left a front end of as many lanes as words come from the SRAM."""
    return format_named(name).front_end_cycles(_mask(sparsity), LANES)


def crossing(one: Format) -> float:
    """The sparsity from which a run-length code has less metadata than the bitmap, by halving, on masks."""
    low, high = 0.0, 1.0 - STEP  # of a single crossing: run fields fall as zeros grow, the bitmap stays
    while high - low > STEP:
        middle = round((low + high) / 2, 4)
        if overhead(one.name, middle) < overhead(BITMAP.name, middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _others() -> str:
    """Where the two codes are smaller than the bitmap if the zeros stored as padding count."""
    ranges = {
        f"{NAMES[one.name]} with elements of {bits} bits": smaller_between(one, BITMAP, ROWS, COLUMNS, bits, "runs_and_padding")
        for one in (RLC2, RLC4)
        for bits in (16, 32)
    }
    sentences = [
        f"{code} {' and '.join(f'{100 * low:.0f} to {100 * high:.0f} %' for low, high in spans) if spans else 'nowhere'}"
        for code, spans in ranges.items()
    ]
    return f"Counting the zeros that padding stores, a code is smaller than the bitmap: {', '.join(sentences)}."


def _bitmap_wins() -> Measured:
    """Sec. IV-C says where RLC is worse, not where it begins to be: the bitmap must have less metadata everywhere below."""
    crossings = [100 * crossing(code) for code in (RLC2, RLC4)]
    return Measured(
        min(crossings),
        note=f"The text gives a bound, no crossing: here the bitmap has less metadata than RLC-2 up to {crossings[0]:.1f} % zeros, "
        f"and less than RLC-4 up to {crossings[1]:.1f} %.",
        details="Fields of 2 bits for 70 % of the elements are 1.4 bits for each one, so that no crossing can be at 30 %: there "
        f"RLC-2 has {overhead('rlc2', 0.3):.2f} and RLC-4 {overhead('rlc4', 0.3):.2f} times the bitmap's metadata, which the text "
        f"may still call comparable. {_others()}",
    )


def _code_wins() -> Measured:
    crossings = [100 * crossing(code) for code in (RLC2, RLC4)]
    return Measured(
        max(crossings),
        note=f"From {crossings[1]:.1f} % zeros both codes have less metadata than the bitmap; RLC-2 has from {crossings[0]:.1f} %.",
        details=f"At 70 % zeros RLC-2 has {overhead('rlc2', 0.7):.2f} and RLC-4 {overhead('rlc4', 0.7):.2f} times the bitmap's.",
    )


def _bitmap_metadata() -> Measured:
    bits = [overhead(BITMAP.name, sparsity) for sparsity in LEVELS]
    return Measured(max(bits), note=f"From {min(bits):g} to {max(bits):g} over {len(LEVELS)} levels of sparsity from 0 to 95 %.")


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.format.bitmap_beats_rlc_below_sparsity": _bitmap_wins,
    "sigma.format.rlc_beats_bitmap_above_sparsity": _code_wins,
    "sigma.format.bitmap_metadata":                 _bitmap_metadata,
}
# fmt: on
NAMES: Mapping[str, str] = {
    "none": "None",
    "csr": "CSR",
    "csc": "CSC",
    "coo": "COO",
    "rlc4": "RLC-4",
    "rlc2": "RLC-2",
    "bitmap": "Bitmap",
}  # fmt: skip
"""In the order of the figure."""
assert set(NAMES) == set(FORMATS)
