"""The slowest path of a netlist, by the library's tables: a static timing analysis of our own.

Each gate's delay and output transition are read at the load of its output (the input capacitances of what it drives; no wires) and
at the transition of the deciding input, rising and falling apart. Inputs of the design and clock edges are sharp (`SHARP_NS`) and
come at time 0; a path ends at a flip-flop, whose set-up time is added, or at an output. abc's own `stime` is of the same kind and
serves as a check on combinational designs (tests); it sees one module at a time and adds a driver before each input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainyard.kernels.gates import FALL, PINS, RISE, settle_times
from trainyard.rtl.synthesis.liberty import Cell, Table
from trainyard.rtl.synthesis.netlist import ONE, ZERO, Netlist

Floats = npt.NDArray[np.float64]
GRID = 6
SHARP_NS = 0.06
"""The sharpest transition of the library's tables."""
OUTPUT_LOAD_PF = 0.01
"""At each output of the design: about the input of a flip-flop."""
EDGES = ("rises", "falls")


@dataclass(frozen=True, slots=True)
class PathStep:
    """A cell of a path: the instance that it belongs to, its kind, which edge its output has, and when."""

    module: str
    kind: str
    edge: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When every net settles; `critical_path_ns` has the set-up time in it where the path ends at a flip-flop."""

    critical_path_ns: float
    path: tuple[PathStep, ...]
    ends_at: str
    load_pf: Floats
    slew_ns: Floats


class CellTables:
    """The tables of all kinds as arrays by kind, pin and edge, on the axes of the delay's table; flip-flops have their clock's."""

    def __init__(self, kinds: tuple[Cell, ...]) -> None:
        shape = (len(kinds), PINS)
        self.widths = np.array([1 if cell.clock else len(cell.inputs) for cell in kinds], np.int32)
        self.sense = np.zeros(shape, np.int32)
        self.loads, self.slews = (np.tile(np.arange(GRID, dtype=float), (*shape, 1)) for _ in range(2))
        self.delay, self.transition, self.energy = (np.zeros((*shape, 2, GRID, GRID)) for _ in range(3))
        for kind, cell in enumerate(kinds):
            for pin, name in enumerate((cell.clock,) if cell.clock else cell.inputs):
                arc = cell.arcs[name]
                self.sense[kind, pin] = arc.sense
                self.loads[kind, pin], self.slews[kind, pin] = _axis(arc.delay[0].loads), _axis(arc.delay[0].transitions)
                for edge in (RISE, FALL):
                    for array, tables in ((self.delay, arc.delay), (self.transition, arc.transition), (self.energy, arc.energy)):
                        array[kind, pin, edge] = _on_grid(tables[edge], self.loads[kind, pin], self.slews[kind, pin])


def _axis(points: Floats) -> Floats:
    """Six points: a shorter axis goes on at its last distance, where `_on_grid` prolongs the last cell."""
    step = points[-1] - points[-2]
    return np.concatenate([points, points[-1] + step * np.arange(1, GRID - len(points) + 1)])


def _on_grid(table: Table, loads: Floats, slews: Floats) -> Floats:
    return np.array([[table.at(load, slew) for slew in slews] for load in loads])


class TimingAnalysis:
    """The timing of one netlist; the tables are read once."""

    def __init__(self, netlist: Netlist, tables: CellTables | None = None) -> None:
        self.netlist = netlist
        self.tables = tables or CellTables(netlist.kinds)

    @cached_property
    def load_pf(self) -> Floats:
        """Input capacitance that every net drives."""
        netlist = self.netlist
        load = np.zeros(netlist.nets)
        pins = np.zeros((len(netlist.kinds), PINS))
        for kind, cell in enumerate(netlist.kinds):
            pins[kind, : len(cell.inputs)] = [cell.capacitance_pf[name] for name in cell.inputs]
        np.add.at(load, netlist.gate_inputs, pins[netlist.gate_kind])
        np.add.at(load, netlist.data, pins[netlist.flip_flop_kind, 0])
        for nets in netlist.outputs.values():
            np.add.at(load, nets, OUTPUT_LOAD_PF)
        return load

    def run(self) -> Timing:
        netlist, tables, load = self.netlist, self.tables, self.load_pf
        arrival, slew = np.zeros((netlist.nets, 2)), np.full((netlist.nets, 2), SHARP_NS)
        cause = np.full((netlist.nets, 2), -1, np.int64)
        arrival[[ZERO, ONE]] = -1.0
        for place, (kind, net) in enumerate(zip(netlist.flip_flop_kind.tolist(), netlist.state.tolist(), strict=True)):
            arc = netlist.kinds[kind].arcs[netlist.kinds[kind].clock]
            for edge in (RISE, FALL):
                arrival[net, edge] = arc.delay[edge].at(load[net], SHARP_NS)
                slew[net, edge] = arc.transition[edge].at(load[net], SHARP_NS)
            cause[net] = -2 - place
        settle_times(
            netlist.gate_kind, netlist.gate_inputs, netlist.gate_output, tables.widths, tables.sense, tables.loads, tables.slews,
            tables.delay, tables.transition, load, arrival, slew, cause,
        )  # fmt: skip
        time, net, edge, ends_at = max(self._ends(arrival, slew), default=(0.0, ZERO, RISE, "nothing"))
        path = self._path(net, edge, arrival, cause)
        return Timing(critical_path_ns=time, path=path, ends_at=ends_at, load_pf=load, slew_ns=slew)

    def _ends(self, arrival: Floats, slew: Floats) -> list[tuple[float, int, int, str]]:
        """The latest end at a flip-flop and the latest at an output."""
        netlist = self.netlist
        ends: list[tuple[float, int, int, str]] = []
        for edge in (RISE, FALL):
            if len(netlist.data):
                setup = np.array([self._setup(kind, edge, slew[net, edge]) for kind, net in zip(
                    netlist.flip_flop_kind.tolist(), netlist.data.tolist(), strict=True)])  # fmt: skip
                times = arrival[netlist.data, edge] + setup
                last = int(times.argmax())
                ends.append((float(times[last]), int(netlist.data[last]), edge, "a flip-flop"))
            for name, nets in netlist.outputs.items():
                last = int(nets[arrival[nets, edge].argmax()])
                ends.append((float(arrival[last, edge]), last, edge, f"output {name}"))
        return ends

    def _setup(self, kind: int, edge: int, slew: float) -> float:
        tables = self.netlist.kinds[kind].setup
        return 0.0 if tables is None else tables[edge].at(SHARP_NS, slew)

    def _path(self, net: int, edge: int, arrival: Floats, cause: npt.NDArray[np.int64]) -> tuple[PathStep, ...]:
        netlist = self.netlist
        steps: list[PathStep] = []
        while (why := int(cause[net, edge])) != -1:
            time = float(arrival[net, edge])
            if why < -1:
                place = -2 - why
                kind, owner = netlist.kinds[netlist.flip_flop_kind[place]].name, netlist.modules[netlist.flip_flop_owner[place]]
                steps.append(PathStep(owner, kind, EDGES[edge], time))
                break
            gate, pin = why // 8, why % 8 // 2
            kind, owner = netlist.kinds[netlist.gate_kind[gate]].name, netlist.modules[netlist.gate_owner[gate]]
            steps.append(PathStep(owner, kind, EDGES[edge], time))
            net, edge = int(netlist.gate_inputs[gate, pin]), why % 2
        return tuple(reversed(steps))
