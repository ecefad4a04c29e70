"""Energy and area of a crossbar hierarchy: joules of a byte over a port of each level, area and leakage of the switches.

A switch of n ports (those below, the one above, one for an AGAU) is, for every output, a tree of n - 1 two-way muxes of a port's
width, a register at each end of a port, and at each input an SRAM for its messages. A byte over a port is written to and read
from that SRAM, passes log2(n) muxes and two registers, and the line: on a die by C V^2, between packages what pins take. Cells
and lines are those of `hardware.tables.cells`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainyard.hardware.tables.area import sram_m2
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, LEAKAGE_W_PER_M2, MUX_UM2, TOGGLED, cells_joules, cells_m2, line_joules
from trainyard.hardware.tables.energy import dram_joules_per_byte, ram_joules_per_byte

if TYPE_CHECKING:
    from trainyard.hardware.crossbar.hierarchy import Crossbar, Level

# fmt: off
REPEATER_UM2    = 1.862    # Nangate 45 nm Open Cell Library: BUF_X4
REPEATER_M      = 0.37e-3  # assumed: a repeater in so many metres of line, as arrays.sigma.components found for SIGMA's area
AGAU_LINE_M     = 0.5e-3   # assumed: an AGAU stands beside its switch, half a millimetre away
AGAU_WIDTH_BITS = 256      # Sec. III-A
# fmt: on


def ports(level: Level) -> int:
    """Ports of a switch: one to each node below, one to the switch above, one to an AGAU."""
    return level.fan_in + 2


def _line_joules_per_byte(metres: float) -> float:
    return 8 * TOGGLED * line_joules(metres)


def _buffer_bytes(crossbar: Crossbar, level: Level) -> int:
    return level.buffer_messages * crossbar.message_bytes


def joules(crossbar: Crossbar) -> dict[str, float]:
    """Joules by event: a byte over one port of a level, or of an AGAU."""
    nm = crossbar.technology_nm
    joules_by_event = {}
    for number, level in enumerate(crossbar.levels):
        cells = 8 * (math.ceil(math.log2(ports(level))) * MUX_UM2 + 2 * FLIP_FLOP_UM2)
        held = _buffer_bytes(crossbar, level)
        buffer = ram_joules_per_byte("write", held, nm) + ram_joules_per_byte("read", held, nm)
        line = dram_joules_per_byte("ddr4") if level.pins else _line_joules_per_byte(level.line_m)
        joules_by_event[f"crossbar_level{number}_byte"] = cells_joules(cells, nm) + buffer + line
    joules_by_event["crossbar_agau_byte"] = cells_joules(8 * 2 * FLIP_FLOP_UM2, nm) + _line_joules_per_byte(AGAU_LINE_M)
    return joules_by_event


def areas(crossbar: Crossbar) -> dict[str, float]:
    """Square metres of all switches in use: cells, buffers and lines of each level."""
    scale = cells_m2(1.0, crossbar.technology_nm)
    areas_by_component = {}
    for number, level in enumerate(crossbar.levels[: crossbar.depth]):
        switches, port_count = crossbar.counts[number + 1], ports(level)
        cells = level.width_bits * (port_count * (port_count - 1) * MUX_UM2 + 2 * port_count * FLIP_FLOP_UM2)
        lines = 0.0 if level.pins else 2 * level.fan_in * level.width_bits * level.line_m / REPEATER_M * REPEATER_UM2
        lines += 2 * AGAU_WIDTH_BITS * AGAU_LINE_M / REPEATER_M * REPEATER_UM2
        areas_by_component[f"crossbar_level{number}_cells"] = switches * cells * scale
        areas_by_component[f"crossbar_level{number}_lines"] = switches * lines * scale
        buffers = (port_count - 1) * sram_m2(
            _buffer_bytes(crossbar, level), crossbar.technology_nm
        )  # AGAU's own input is its cache
        areas_by_component[f"crossbar_level{number}_buffers"] = switches * buffers
    return areas_by_component


def static_w(crossbar: Crossbar) -> float:
    """Leakage of all switches."""
    return LEAKAGE_W_PER_M2 * sum(areas(crossbar).values())
