"""From the library's 0.18 um to the papers' nodes: area, energy of a gate and delay of a gate.

A. Stillmaker, B. Baas: Scaling Equations for the Accurate Prediction of CMOS Device Performance from 180 nm to 7 nm. Integration,
the VLSI Journal 58, 2017: area factors (Table 3), polynomials of energy and of delay by supply voltage (Tables 4 and 5). Nodes from
90 nm on are those of `hardware.tables.technology`. Only absolute figures are scaled; ratios of two designs need no scaling.
"""

from __future__ import annotations

from trainyard.hardware.tables.technology import NODES, area_factor, between, gate_energy, require_node

# fmt: off
LIBRARY_NM        = 180
LIBRARY_SUPPLY_V  = 1.8    # the library's nominal supply
LIBRARY_AREA      = 19.0   # Stillmaker 2017: area at 180 nm over 45 nm
LIBRARY_ENERGY    = 0.0 * LIBRARY_SUPPLY_V**2 + 24.64 * LIBRARY_SUPPLY_V - 17.98           # Stillmaker 2017, 180 nm
LIBRARY_DELAY     = 97.09 * LIBRARY_SUPPLY_V**2 - 356.7 * LIBRARY_SUPPLY_V + 406.5         # Stillmaker 2017, 180 nm
DELAY_POLYNOMIALS = {      # Stillmaker 2017, high-performance devices where there are two kinds: V^3, V^2, V, 1
    90: (-60.34,  262.5, -384.2, 210.9),
    65: (-53.3,   230.4, -333.9, 178.6),
    45: (-501.6, 1567.0, -1619.0, 566.1),
    32: (-1047.0, 2982.0, -2797.0, 873.5),
    20: (0.0,      34.63, -66.37,  41.15),
    16: (0.0,      24.8,  -47.52,  28.87),
    14: (-40.66,  109.2, -100.6,   35.92),
    10: (-34.95,   93.65, -85.99,  30.4),
    7:  (-28.58,   76.6,  -70.26,  24.69),
}
# fmt: on


def area_at(um2: float, nm: float) -> float:
    """Square microns of the library at another node.

    >>> round(area_at(19.0, 45), 3)
    1.0
    """
    return um2 * area_factor(nm) / LIBRARY_AREA


def energy_at(picojoules: float, nm: float) -> float:
    """Energy of the same toggles at another node and its nominal supply."""
    reference = next(node.energy for node in NODES if node.nm == 45)
    return picojoules * gate_energy(nm) * reference / LIBRARY_ENERGY


def delay_at(ns: float, nm: float) -> float:
    """Delay of the same path at another node and its nominal supply."""
    require_node(nm)
    points = [(float(node.nm), _delay(node.nm, node.supply_v)) for node in NODES]
    return ns * between(points, nm) / LIBRARY_DELAY


def _delay(nm: int, volts: float) -> float:
    third, second, first, constant = DELAY_POLYNOMIALS[nm]
    return third * volts**3 + second * volts**2 + first * volts + constant
