"""Dynamic energy from switching activity: the netlist runs on a design's inputs, gate by gate, and every toggle takes energy.

A toggle of a net takes half of C V^2 of the inputs on it and the internal energy of the gate that drives it, read in the library's
tables at the net's load and the gate's input transition (the mean of rising and falling, and of the gate's inputs). The clock pin
of a flip-flop takes both edges of every cycle. Gates settle at once: glitches, the clock's tree and wires are not counted. The
outputs of the run are compared with those that the design's testbench expects, so that what was counted is the design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.kernels.gates import PINS, simulate
from trainyard.rtl.catalogue import Inputs
from trainyard.rtl.synthesis.netlist import Netlist
from trainyard.rtl.synthesis.timing import SHARP_NS, CellTables, Timing

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Energy of a cycle in pJ: of the clock's pins, of flip-flops' data and outputs, of gates, of the inputs' nets.

    `by_module` has the sum of each instance that was kept apart; `toggle_rate` is the mean number of toggles of a gate's output in
    a cycle.
    """

    cycles: int
    clock_pj: float
    flip_flops_pj: float
    gates_pj: float
    inputs_pj: float
    by_module: dict[str, float]
    toggle_rate: float

    @property
    def total_pj(self) -> float:
        return self.clock_pj + self.flip_flops_pj + self.gates_pj + self.inputs_pj


def run_gates(netlist: Netlist, stimulus: Sequence[Inputs]) -> tuple[npt.NDArray[np.int64], list[dict[str, int]]]:
    """Toggles of every net, and the output ports of every cycle."""
    names, output_names = list(netlist.inputs), list(netlist.outputs)
    bits = np.concatenate([_bits([row.get(name, 0) for row in stimulus], len(netlist.inputs[name])) for name in names], axis=1)
    input_nets = np.concatenate([netlist.inputs[name] for name in names])
    output_nets = np.concatenate([netlist.outputs[name] for name in output_names])
    truth = np.array([cell.truth for cell in netlist.kinds], np.int64)
    toggles, results = simulate(
        netlist.gate_kind, netlist.gate_inputs, netlist.gate_output, truth, netlist.data, netlist.state, netlist.init, input_nets,
        output_nets, bits, netlist.nets,
    )  # fmt: skip
    ends = np.cumsum([len(netlist.outputs[name]) for name in output_names])
    columns = {name: _numbers(part) for name, part in zip(output_names, np.split(results, ends[:-1], axis=1), strict=True)}
    return toggles, [{name: columns[name][cycle] for name in output_names} for cycle in range(len(stimulus))]


def _bits(values: list[int], width: int) -> Bits:
    size = -(-width // 8)
    try:
        packed = b"".join(value.to_bytes(size, "little") for value in values)
    except OverflowError:
        raise BadInput(f"a value of the stimulus is no number of {width} bits") from None
    return np.unpackbits(np.frombuffer(packed, np.uint8).reshape(len(values), size), axis=1, bitorder="little")[:, :width]


def _numbers(bits: Bits) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits, axis=1, bitorder="little")]


def energy(netlist: Netlist, timing: Timing, toggles: npt.NDArray[np.int64], cycles: int, tables: CellTables) -> Activity:
    """The energy of a run over `cycles`, by cycle."""
    if cycles < 2:
        raise BadInput("activity needs a stimulus of at least two cycles")
    rate = toggles / (cycles - 1)
    joint = 0.5 * timing.load_pf * netlist.library.supply_v**2
    gates = rate[netlist.gate_output] * (joint[netlist.gate_output] + _internal(netlist, timing, tables))
    flip_flops = rate[netlist.state] * (joint[netlist.state] + _flip_flop_outputs(netlist, timing))
    flip_flops += rate[netlist.data] * _pin(netlist, "D")
    clock = _pin(netlist, "") * 2 + np.array([
        cell.capacitance_pf[cell.clock] * netlist.library.supply_v**2 if cell.clock else 0.0 for cell in netlist.kinds
    ])[netlist.flip_flop_kind]  # fmt: skip
    inputs = sum(float((rate[nets] * joint[nets]).sum()) for nets in netlist.inputs.values())
    owners = np.zeros(len(netlist.modules))
    np.add.at(owners, netlist.gate_owner, gates)
    np.add.at(owners, netlist.flip_flop_owner, flip_flops + clock)
    return Activity(
        cycles=cycles, clock_pj=float(clock.sum()), flip_flops_pj=float(flip_flops.sum()), gates_pj=float(gates.sum()),
        inputs_pj=inputs, by_module={name: float(owners[place]) for place, name in enumerate(netlist.modules)},
        toggle_rate=float(rate[netlist.gate_output].mean()) if len(netlist.gate_output) else 0.0,
    )  # fmt: skip


def _internal(netlist: Netlist, timing: Timing, tables: CellTables) -> Floats:
    """Of one toggle of each gate's output."""
    total = np.zeros(len(netlist.gate_kind))
    widths = tables.widths[netlist.gate_kind]
    load = timing.load_pf[netlist.gate_output]
    for pin in range(PINS):
        used = np.flatnonzero(widths > pin)
        kind = netlist.gate_kind[used]
        slew = timing.slew_ns[netlist.gate_inputs[used, pin]].mean(axis=1)
        mean = tables.energy[kind, pin].mean(axis=1)  # of rising and falling
        total[used] += _at(tables.loads[kind, pin], tables.slews[kind, pin], mean, load[used], slew) / widths[used]
    return total


def _at(rows: Floats, columns: Floats, table: Floats, row: Floats, column: Floats) -> Floats:
    """Bilinear in a table for each place, the outer cells prolonged."""
    place = np.arange(len(row))
    i = np.clip((row[:, None] > rows).sum(axis=1) - 1, 0, rows.shape[1] - 2)
    j = np.clip((column[:, None] > columns).sum(axis=1) - 1, 0, columns.shape[1] - 2)
    down = (row - rows[place, i]) / (rows[place, i + 1] - rows[place, i])
    right = (column - columns[place, j]) / (columns[place, j + 1] - columns[place, j])
    first = table[place, i, j] + (table[place, i, j + 1] - table[place, i, j]) * right
    second = table[place, i + 1, j] + (table[place, i + 1, j + 1] - table[place, i + 1, j]) * right
    result: Floats = first + (second - first) * down
    return result


def _flip_flop_outputs(netlist: Netlist, timing: Timing) -> Floats:
    result = np.zeros(len(netlist.state))
    for kind, cell in enumerate(netlist.kinds):
        for place in np.flatnonzero(netlist.flip_flop_kind == kind):
            arc = cell.arcs[cell.clock]
            result[place] = sum(table.at(timing.load_pf[netlist.state[place]], SHARP_NS) for table in arc.energy) / 2
    return result


def _pin(netlist: Netlist, pin: str) -> Floats:
    """Internal energy of one toggle of a flip-flop's pin, with sharp edges; of its clock for ""."""
    by_kind = np.zeros(len(netlist.kinds))
    for kind, cell in enumerate(netlist.kinds):
        if cell.clock and (tables := cell.pin_energy.get(pin or cell.clock)) is not None:
            by_kind[kind] = sum(table.at(0.0, SHARP_NS) for table in tables) / 2
    return by_kind[netlist.flip_flop_kind]
