"""All that synthesis says of one design: cells, area, slowest path, energy of a cycle; whether its gates equal the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from trainyard.rtl.catalogue import Design, Inputs, Value
from trainyard.rtl.equality import Comparison, compare
from trainyard.rtl.synthesis.activity import Activity, energy, run_gates
from trainyard.rtl.synthesis.netlist import Netlist, flat_netlist
from trainyard.rtl.synthesis.timing import CellTables, Timing, TimingAnalysis
from trainyard.rtl.synthesis.yosys import Mapped, library, map_design

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

CYCLES, SEED = 400, 1
"""Of the run that counts toggles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A design in gates of the library: 0.18 um, 1.8 V, typical corner, no wires."""

    design: str
    parameters: dict[str, Value]
    cells: dict[str, int]
    flip_flops: int
    area_um2: float
    area_by_module: dict[str, float]
    critical_path_ns: float
    path: tuple[str, ...]
    leakage_nw: float
    activity: Activity | None
    gates_equal: bool | None
    """Whether the netlist gave what the simulator expects in every cycle; None where nothing was compared."""

    @property
    def gates(self) -> int:
        return sum(self.cells.values()) - self.flip_flops

    @property
    def energy_pj(self) -> float:
        """Dynamic energy of a cycle."""
        if self.activity is None:
            raise ValueError(f"{self.design}: synthesised without a stimulus")
        return self.activity.total_pj

    def as_dict(self) -> dict[str, Any]:
        """For the table of measurements."""
        return {
            "design": self.design,
            "parameters": self.parameters,
            "gates": self.gates,
            "flip_flops": self.flip_flops,
            "area_um2": round(self.area_um2, 1),
            "critical_path_ns": round(self.critical_path_ns, 4),
            "path": list(self.path),
            "energy_pj": None if self.activity is None else round(self.energy_pj, 4),
            "clock_pj": None if self.activity is None else round(self.activity.clock_pj, 4),
            "cycles": 0 if self.activity is None else self.activity.cycles,
            "leakage_nw": round(self.leakage_nw, 2),
            "gates_equal": self.gates_equal,
            "cells": self.cells,
        }


@cache
def tables() -> CellTables:
    return CellTables(tuple(library().cells.values()))


def rtlil_of(component: Component) -> str:
    from amaranth.back.rtlil import convert

    return str(convert(component, name="top", emit_src=False))


def netlist_of(component: Component, keep: tuple[str, ...] = ()) -> Netlist:
    """The component in gates; submodules whose names begin with one of `keep` stay apart in the sums by module."""
    return flat_netlist(mapped(component, keep), library())


def mapped(component: Component, keep: tuple[str, ...] = ()) -> Mapped:
    """All its modules, arithmetic units as the macros that all designs share."""
    from trainyard.rtl.synthesis.macros import UNITS, black_box, units_as_macros

    if isinstance(component, UNITS):
        return map_design(rtlil_of(component), steady=True)
    with units_as_macros() as used:
        rtlil = rtlil_of(component)
    around = map_design(rtlil, keep=keep, black_boxes="\n".join(black_box(name, unit) for name, unit in sorted(used.items())))
    units = {name: map_design(rtlil_of(unit), steady=True).modules["top"] for name, unit in used.items()}
    return Mapped({**around.modules, **units}, around.abc_delay_ns)


def synthesise(design: Design, *, cycles: int = CYCLES, seed: int = SEED, keep: tuple[str, ...] = ()) -> Synthesis:
    """A design in gates, on `cycles` of its own stimulus (0: neither energy nor a comparison)."""
    netlist = netlist_of(design.build(), keep)
    timing = TimingAnalysis(netlist, tables()).run()
    if not cycles:
        return _synthesis(design.name, design.parameters, netlist, timing, None, None)
    stimulus = design.stimulus(cycles, seed)
    activity, comparison = _run(netlist, timing, stimulus, design)
    return _synthesis(design.name, design.parameters, netlist, timing, activity, comparison.equal)


def _run(netlist: Netlist, timing: Timing, stimulus: Sequence[Inputs], design: Design) -> tuple[Activity, Comparison]:
    toggles, outputs = run_gates(netlist, stimulus)
    return energy(netlist, timing, toggles, len(stimulus), tables()), compare(outputs, design.expected(stimulus))


def _synthesis(
    name: str, parameters: dict[str, Value], netlist: Netlist, timing: Timing, activity: Activity | None, equal: bool | None
) -> Synthesis:
    return Synthesis(
        design=name,
        parameters=parameters,
        cells=netlist.cells,
        flip_flops=len(netlist.state),
        area_um2=netlist.area_um2,
        area_by_module=netlist.area_by_module,
        critical_path_ns=timing.critical_path_ns,
        path=path_lines(timing),
        leakage_nw=netlist.leakage_nw,
        activity=activity,
        gates_equal=equal,
    )


def path_lines(timing: Timing) -> tuple[str, ...]:
    """The instances along the path with the number of cells in each and when the last of them settles."""
    lines: list[str] = []
    module, count, end = "", 0, 0.0
    for step in (*timing.path, None):
        if step is None or step.module != module:
            if count:
                lines.append(f"{module}: {count} cells, {end:.2f} ns")
            module, count = ("", 0) if step is None else (step.module, 0)
        if step is not None:
            count, end = count + 1, step.ns
    return (*lines, f"ends at {timing.ends_at}, {timing.critical_path_ns:.2f} ns")
