"""Beyond the paper: skipping on both sides, other readings of how rows wait, fewer banks, storage scheduled ahead.

For figures and the page; no claim is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from trainyard.arrays import TensorDash
from trainyard.arrays.tensordash.footprints import Footprint, TwoOrders, activation_orders, weight_orders
from trainyard.ir import Convolution, MaskView
from trainyard.masks.views import geometry_letter, unpacked
from trainyard.papers.tensordash.models import NAMES, Subject, recorded
from trainyard.papers.tensordash.performance import each
from trainyard.papers.tensordash.products import Source, masked_products
from trainyard.papers.tensordash.sweeps import PAPER

Bits = npt.NDArray[np.bool_]

# fmt: off
READINGS: Mapping[str, TensorDash] = {
    "lockstep, 4 banks":           PAPER,
    "rows wait at an output":      replace(PAPER, sync="output"),
    "rows wait at a full buffer":  replace(PAPER, sync="block"),
    "3 banks (lookahead)":         replace(PAPER, banks=3),
    "filters on rows, as printed": replace(PAPER, scheduled="b"),
    "both sides":                  replace(PAPER, sides="two"),
}
# fmt: on


@cache
def reading(name: str, source: Source = recorded) -> Mapping[str, float]:
    """Speedups of all models under another reading, or with schedulers on both sides."""
    return each(source, READINGS[name])


@cache
def footprints(name: str) -> Mapping[str, tuple[Footprint, Mapping[str, int]]]:
    """Of A, G and W of a model's layers: bits in each form in the order of their first use, and with both orders stored."""
    by_letter: dict[str, list[TwoOrders]] = {}
    for letter, bits in _tensors(recorded(name)):
        orders = weight_orders if letter == "W" else activation_orders
        by_letter.setdefault(letter, []).append(orders(bits, PAPER.scheduler))
    return {letter: _summed(orders) for letter, orders in sorted(by_letter.items())}


def _summed(orders: list[TwoOrders]) -> tuple[Footprint, Mapping[str, int]]:
    total, both = orders[0].first, dict(orders[0].both)
    for one in orders[1:]:
        total = total + one.first
        both = {kind: both[kind] + bits for kind, bits in one.both.items()}
    return total, both


def _tensors(subject: Subject) -> Iterable[tuple[str, Bits]]:
    """Each recorded tensor once, as [samples, channels, positions] or [filters, channels, taps]."""
    seen: set[object] = set()
    for product in masked_products(subject):
        for operand in product.parts[0]:
            if isinstance(operand, MaskView) and operand.key not in seen:
                seen.add(operand.key)
                bits = unpacked(operand.source, operand.key)
                yield geometry_letter(operand)[:1], _cube(bits, operand.geometry, geometry_letter(operand))


def _cube(bits: Bits, body: Convolution | None, place: str) -> Bits:
    """Of a matrix the rows are positions of one sample, or filters."""
    if body is not None:
        return bits.reshape(*bits.shape[:2], -1)
    flat = bits.reshape(-1, bits.shape[-1])
    return flat[:, :, None] if place.startswith("W") else flat.T[None]


STORED = tuple(name for name in NAMES if name != "NCF")
"""Models whose footprints are shown: NCF's streams are a few steps long, and mostly start addresses."""
