"""Technology nodes: how energy and area shrink.

A. Stillmaker, B. Baas: Scaling Equations for the Accurate Prediction of CMOS Device Performance from 180 nm to 7 nm.
Integration, the VLSI Journal 58, 2017.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.errors import BadInput


@dataclass(frozen=True, slots=True)
class Node:
    """Energy of a gate is a V^2 + b V + c at supply V; `area` is relative to 45 nm."""

    nm: int
    a: float
    b: float
    c: float
    supply_v: float
    area: float
    source: str

    @property
    def energy(self) -> float:
        return self.a * self.supply_v**2 + self.b * self.supply_v + self.c


FITS = "Stillmaker 2017: energy coefficients, high-performance devices where it has two kinds, and area factors; "
# fmt: off
NODES: tuple[Node, ...] = (
    Node(90, 4.762,  -4.781,   2.092,   1.20, 2.8,   FITS + "supply: PTM nominal"),
    Node(65, 3.755,  -4.398,   1.975,   1.10, 1.5,   FITS + "supply: PTM nominal"),
    Node(45, 1.018,  -0.3107,  0.1539,  0.90, 1.0,   FITS + "supply: Horowitz, ISSCC 2014 (PTM nominal: 1.0)"),
    Node(32, 0.8367, -0.4341,  0.1701,  0.90, 0.46,  FITS + "supply: PTM nominal"),
    Node(20, 0.373,  -0.1582,  0.04104, 0.90, 0.21,  FITS + "supply: PTM-MG nominal"),
    Node(16, 0.2958, -0.1241,  0.03024, 0.85, 0.19,  FITS + "supply: PTM-MG nominal"),
    Node(14, 0.2363, -0.09675, 0.02239, 0.80, 0.17,  FITS + "supply: PTM-MG nominal"),
    Node(10, 0.2068, -0.09311, 0.02375, 0.75, 0.10,  FITS + "supply: PTM-MG nominal"),
    Node(7,  0.1776, -0.09097, 0.02447, 0.70, 0.059, FITS + "supply: PTM-MG nominal"),
)
# fmt: on


_GATES: list[tuple[float, float]] = sorted((node.nm, node.energy) for node in NODES)
_GATE_NODES = [nm for nm, _ in _GATES]
_GATE_45NM = dict(_GATES)[45]


def between(points: list[tuple[float, float]], x: float) -> float:
    """Straight lines on logarithmic axes through `points`, the outer ones prolonged.

    >>> between([(1.0, 1.0), (4.0, 16.0)], 2.0)
    4.0
    """
    points = sorted(points)
    right = line_through([at for at, _ in points], x)
    return on_line(points[right - 1], points[right], x)


def line_through(places: Sequence[float], x: float) -> int:
    """The number of the place, of several that rise, where the line ends that `x` lies on."""
    return min(max(bisect_left(places, x), 1), len(places) - 1)


def on_line(left: tuple[float, float], right: tuple[float, float], x: float) -> float:
    """A straight line on logarithmic axes through two points."""
    (x0, y0), (x1, y1) = left, right
    slope = math.log(y1 / y0) / math.log(x1 / x0)
    return y0 * math.exp(slope * math.log(x / x0))


def require_node(nm: float) -> None:
    smallest, largest = NODES[-1].nm, NODES[0].nm
    if isinstance(nm, bool) or not isinstance(nm, int | float) or not smallest <= nm <= largest:
        raise BadInput(f"technology node {nm!r} nm is outside the tables: give {smallest} to {largest} nm")


def gate_energy(nm: float) -> float:
    """Energy of a gate relative to 45 nm.

    >>> gate_energy(45), gate_energy(16) < 0.2
    (1.0, True)
    """
    require_node(nm)
    right = line_through(_GATE_NODES, nm)
    return on_line(_GATES[right - 1], _GATES[right], nm) / _GATE_45NM


def area_factor(nm: float) -> float:
    """Area of logic relative to 45 nm."""
    require_node(nm)
    return between([(node.nm, node.area) for node in NODES], nm)
