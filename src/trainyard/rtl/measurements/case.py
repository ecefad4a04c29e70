"""One measurement: a circuit in gates, on inputs that keep it busy, with area and energy of its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput
from trainyard.rtl.catalogue import Design, Inputs, Outputs, Value
from trainyard.rtl.equality import compare
from trainyard.rtl.synthesis.activity import Activity, energy, run_gates
from trainyard.rtl.synthesis.netlist import Netlist
from trainyard.rtl.synthesis.report import netlist_of, path_lines, tables
from trainyard.rtl.synthesis.timing import Timing, TimingAnalysis

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

Stimulus = Callable[[], Sequence[Inputs]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A circuit and its inputs under one or more loads, the first of which is the one that figures are taken from.

    `expected` gives what the simulator says of a load, where the circuit is a design of the catalogue; submodules whose names
    begin with one of `keep` are synthesised apart, so that area and energy are known by part. Loads named in `unchecked` keep a
    circuit busy in a way that the simulator does not follow; their outputs are not compared. `about` says what it is.
    """

    key: str
    about: str
    build: Callable[[], Component]
    loads: Mapping[str, Stimulus]
    expected: Callable[[Sequence[Inputs]], list[Outputs]] | None = None
    keep: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)


def case_of(
    design: Design, key: str, cycles: int, *, keep: tuple[str, ...] = (), seed: int = 1, busy: Stimulus | None = None
) -> Case:
    """A design of the catalogue on its own random inputs, and on those that keep it `busy`."""
    loads: dict[str, Stimulus] = {} if busy is None else {"busy": busy}
    return Case(
        key=key, about=design.word, build=design.build, loads={**loads, "random": lambda: design.stimulus(cycles, seed)},
        expected=design.expected, keep=keep, unchecked=("busy",), parameters={"design": design.name, **design.parameters},
    )  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """Cells, area, slowest path and energy of a case, as JSON; a circuit whose gates differ from the simulator is refused."""
    netlist = netlist_of(case.build(), case.keep)
    timing = TimingAnalysis(netlist, tables()).run()
    loads = {name: _energy(case, name, netlist, timing) for name in case.loads}
    return {
        "about": case.about,
        "parameters": dict(case.parameters),
        "gates": len(netlist.gate_kind),
        "flip_flops": len(netlist.state),
        "area_um2": round(netlist.area_um2, 1),
        "area_by_part": {part: round(value, 1) for part, value in by_part(netlist.area_by_module).items()},
        "critical_path_ns": round(timing.critical_path_ns, 3),
        "path": path_lines(timing),
        "leakage_nw": round(netlist.leakage_nw, 2),
        "energy": loads,
    }


def _energy(case: Case, load: str, netlist: Netlist, timing: Timing) -> dict[str, Any]:
    stimulus = case.loads[load]()
    toggles, outputs = run_gates(netlist, stimulus)
    compared = 0
    if case.expected is not None and load not in case.unchecked:
        comparison = compare(outputs, case.expected(stimulus))
        if not comparison.equal:
            raise BadInput(f"{case.key}, {load}: the gates differ from the simulator: {comparison.difference}")
        compared = comparison.values
    activity = energy(netlist, timing, toggles, len(stimulus), tables())
    return {
        "cycles": len(stimulus),
        "values_compared": compared,
        "pj_per_cycle": round(activity.total_pj, 3),
        "clock_pj": round(activity.clock_pj, 3),
        "inputs_pj": round(activity.inputs_pj, 3),
        "by_part": {part: round(value, 3) for part, value in by_part(_with_inputs(activity)).items()},
    }


def _with_inputs(activity: Activity) -> dict[str, float]:
    return {**activity.by_module, "inputs": activity.inputs_pj}


def by_part(modules: Mapping[str, float]) -> dict[str, float]:
    """Sums over instances that differ in their numbers only.

    >>> by_part({"top": 1.0, "element0_1": 2.0, "element1_1": 3.0, "tree.c4": 5.0})
    {'top': 1.0, 'element': 5.0, 'tree': 5.0}
    """
    sums: dict[str, float] = {}
    for name, value in modules.items():
        part = re.sub(r"[\d_]+$", "", name.partition(".")[0])
        sums[part] = sums.get(part, 0.0) + value
    return sums
