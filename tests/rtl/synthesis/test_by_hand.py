"""Liberty files, netlists, slowest paths and energies on designs of a few gates, whose figures can be computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import gate_netlist
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.tables.library_scaling import area_at, delay_at, energy_at
from trainyard.rtl.synthesis import yosys
from trainyard.rtl.synthesis.activity import energy, run_gates
from trainyard.rtl.synthesis.liberty import Library, read_library, truth_table
from trainyard.rtl.synthesis.netlist import Netlist, flat_netlist
from trainyard.rtl.synthesis.timing import CellTables, TimingAnalysis
from trainyard.rtl.synthesis.yosys import Mapped
from trainyard.rtl.verilator import MissingTool

# ---- a library of three cells: delays and energies that depend on the load alone

TABLE = 'index_1 ("0.0, 0.1, 0.2"); index_2 ("0.0, 1.0"); values ("{0}, {0}", "{1}, {1}", "{2}, {2}");'


def group(name: str, template: str, *values: float) -> str:
    return f"{name}({template}) {{ {TABLE.format(*values)} }}"


def arc(pin: str, sense: str, rise: float, fall: float, kind: str = "") -> str:
    """Delay: so much at no load, and as much again at 0.1 pF; energy 0.3 pJ rising, 0.1 falling; transitions 0.05 ns."""
    return f"""
    timing() {{ related_pin : "{pin}"; timing_sense : {sense}; {kind}
      {group("cell_rise", "t", rise, 2 * rise, 3 * rise)} {group("cell_fall", "t", fall, 2 * fall, 3 * fall)}
      {group("rise_transition", "t", 0.05, 0.05, 0.05)} {group("fall_transition", "t", 0.05, 0.05, 0.05)} }}
    internal_power() {{ related_pin : "{pin}";
      {group("rise_power", "e", 0.3, 0.3, 0.3)} {group("fall_power", "e", 0.1, 0.1, 0.1)} }}"""


def pin(name: str, capacitance: float, more: str = "") -> str:
    return f"pin({name}) {{ direction : input; capacitance : {capacitance}; {more} }}"


PASSIVE = 'index_1 ("0.0, 1.0"); values ("{0}, {0}");'
INTERNAL = f"internal_power() {{ rise_power(p) {{ {PASSIVE.format(0.02)} }} fall_power(p) {{ {PASSIVE.format(0.04)} }} }}"
LIBRARY = f"""/* by hand */
library(small) {{
  time_unit : "1ns"; voltage_unit : "1V"; leakage_power_unit : "1nW"; capacitive_load_unit (1,pf); nom_voltage : 2.0;
  cell (INV) {{ area : 2; cell_leakage_power : 0.5; {pin("A", 0.1)}
    pin(Y) {{ direction : output; function : "(!A)"; {arc("A", "negative_unate", 1.0, 2.0)} }} }}
  cell (NAND2) {{ area : 3; cell_leakage_power : 1.0; {pin("A", 0.1)} {pin("B", 0.2)}
    pin(Y) {{ direction : output; function : "(!(A B))";
      {arc("A", "negative_unate", 1.0, 1.0)} {arc("B", "negative_unate", 4.0, 4.0)} }} }}
  cell (DFF) {{ area : 10; cell_leakage_power : 2.0; ff (S, N) {{ next_state : "D"; clocked_on : "CLK"; }}
    pin(CLK) {{ direction : input; capacitance : 0.05; clock : true; {INTERNAL} }}
    pin(D) {{ direction : input; capacitance : 0.1; {INTERNAL}
      timing() {{ related_pin : "CLK"; timing_type : setup_rising;
        {group("rise_constraint", "s", 0.5, 0.5, 0.5)} {group("fall_constraint", "s", 0.5, 0.5, 0.5)} }} }}
    pin(Q) {{ direction : output; function : "S"; {arc("CLK", "non_unate", 1.0, 1.0, "timing_type : rising_edge;")} }} }}
  cell (LATCH) {{ area : 9; latch (S, N) {{ data_in : "D"; enable : "G"; }} {pin("D", 0.1)} {pin("G", 0.1)}
    pin(Q) {{ direction : output; function : "S"; }} }}
}}
"""

# ---- the tests


@pytest.fixture
def small(tmp_path: Path) -> Library:
    path = tmp_path / "small.lib"
    path.write_text(LIBRARY)
    return read_library(path)


def module(ports: dict[str, list[Any]], cells: list[Any], init: list[Any] | None = None) -> dict[str, Any]:
    return {"ports": ports, "cells": cells, "names": [f"c{place}" for place in range(len(cells))], "init": init or []}


def netlist_of(small: Library, **modules: Any) -> Netlist:
    return flat_netlist(Mapped(modules, {}), small)


TOGGLE = module(  # q toggles while en is 0: d = not (q and not en) ... of NAND(q, INV(en))
    {"clk": ["input", [2]], "en": ["input", [3]], "q": ["output", [4]]},
    [["INV", {"A": [3], "Y": [5]}], ["NAND2", {"A": [4], "B": [5], "Y": [6]}], ["DFF", {"CLK": [2], "D": [6], "Q": [4]}]],
    [[[4], "1"]],
)


def test_a_library_has_its_gates_and_flip_flops_and_no_latch(small: Library) -> None:
    assert list(small.cells) == ["INV", "NAND2", "DFF"]
    assert small.supply_v == 2.0
    assert small.flip_flops == {"DFF"}
    assert small.cells["NAND2"].truth == 0b0111
    assert small.cells["NAND2"].arcs["B"].delay[0].at(0.05, 0.3) == pytest.approx(6.0)
    assert small.cells["NAND2"].arcs["B"].delay[0].at(0.4, 0.3) == pytest.approx(20.0)  # the last cell prolonged


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LIBRARY.replace("1ns", "1ps"), "time_unit is 1ps"),
        (LIBRARY.replace("library(small)", "cells(small)"), "no liberty file"),
        (LIBRARY.replace("ff (S, N)", "latch (S, N)"), "flip-flop"),
        (LIBRARY[:400], "it ends inside"),
        (LIBRARY.replace("(!(A B))", "(!(A C))"), "'C' is no input"),
    ],
)
def test_a_liberty_file_that_cannot_be_read_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.lib"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_library(path)


@pytest.mark.parametrize(
    ("function", "table"), [("A*B+C", 0b11111000), ("(A^B)'", 0b1001_1001), ("!A & !B | C", 0b1111_0001), ("1", 0xFF)]
)
def test_functions_of_the_liberty_grammar(function: str, table: int) -> None:
    assert truth_table(function, ("A", "B", "C")) == table


def test_two_flip_flop_states_and_their_toggles(small: Library) -> None:
    netlist = netlist_of(small, top=TOGGLE)
    assert netlist.cells == {"INV": 1, "NAND2": 1, "DFF": 1}
    assert netlist.area_um2 == 15.0
    assert netlist.leakage_nw == 3.5
    stimulus = [{"en": bit} for bit in (0, 0, 0, 1, 1, 0)]
    toggles, outputs = run_gates(netlist, stimulus)
    assert [row["q"] for row in outputs] == [1, 0, 1, 0, 1, 1]
    plain_toggles, plain_outputs = gate_netlist.run(netlist, stimulus)
    assert (toggles.tolist(), outputs) == (plain_toggles, plain_outputs)


def test_energy_of_a_cycle_by_hand(small: Library) -> None:
    netlist = netlist_of(small, top=TOGGLE)
    tables = CellTables(netlist.kinds)
    timing = TimingAnalysis(netlist, tables).run()
    toggles, outputs = run_gates(netlist, [{"en": 0}] * 11)
    assert sum(row["q"] for row in outputs) == 6
    used = energy(netlist, timing, toggles, 11, tables)
    # q toggles in every cycle: half of (0.1 pF of the gate + 0.01 of the output) * 4 V^2, and 0.2 pJ inside; D takes 0.03 itself
    assert used.flip_flops_pj == pytest.approx(0.5 * 0.11 * 4 + 0.2 + 0.03)
    assert used.gates_pj == pytest.approx(0.5 * 0.1 * 4 + 0.2)  # the gate drives D
    assert used.clock_pj == pytest.approx(2 * 0.03 + 0.05 * 4)
    assert used.inputs_pj == 0
    assert used.by_module == {"top": pytest.approx(used.total_pj)}


def test_the_slowest_path_by_hand(small: Library) -> None:
    timing = TimingAnalysis(netlist := netlist_of(small, top=TOGGLE)).run()
    # en falls, INV (load 0.2 pF) rises after 3.0, NAND2 from B (load 0.1 pF) falls after 8.0, set-up 0.5;
    # en rises, INV falls after 6.0, NAND2 rises after 8.0
    assert timing.critical_path_ns == pytest.approx(6.0 + 8.0 + 0.5)
    assert [(step.kind, step.edge) for step in timing.path] == [("INV", "falls"), ("NAND2", "rises")]
    assert timing.ends_at == "a flip-flop"
    assert netlist.modules == ("top",)


def test_a_path_begins_at_a_flip_flop(small: Library) -> None:
    shift = module(
        {"clk": ["input", [2]], "d": ["input", [3]], "y": ["output", [5]]},
        [["DFF", {"CLK": [2], "D": [3], "Q": [4]}], ["INV", {"A": [4], "Y": [5]}]],
    )
    timing = TimingAnalysis(netlist_of(small, top=shift)).run()
    assert [step.kind for step in timing.path] == ["DFF", "INV"]
    assert timing.critical_path_ns == pytest.approx(2.0 + 2.2)  # clock to output at 0.1 pF; falling at 0.01 pF
    assert timing.ends_at == "output y"


def test_instances_of_a_module_are_written_out_with_wires_that_pass_through(small: Library) -> None:
    inner = module(
        {"a": ["input", [2]], "y": ["output", [3]], "same": ["output", [2]], "one": ["output", ["1"]]},
        [["INV", {"A": [2], "Y": [3]}]],
    )
    top = module(
        {"x": ["input", [2]], "y": ["output", [3, 4, 5]]},
        [["inner", {"a": [2], "y": [6]}], ["inner", {"a": [6], "y": [3], "same": [4], "one": [5]}]],
    )
    netlist = netlist_of(small, top=top, inner=inner)
    _, outputs = run_gates(netlist, [{"x": 0}, {"x": 1}])
    assert outputs == [{"y": 0b110}, {"y": 0b101}]
    assert netlist.modules == ("top", "c0", "c1")
    assert netlist.area_by_module == {"top": 0.0, "c0": 2.0, "c1": 2.0}


def test_random_gates_equal_plain_python(small: Library) -> None:
    random = np.random.default_rng(5)
    cells = [
        ["NAND2", {"A": [int(random.integers(2, 10 + place))], "B": [int(random.integers(2, 10 + place))], "Y": [10 + place]}]
        for place in range(60)
    ]
    flips = [["DFF", {"CLK": [99], "D": [60 + place], "Q": [6 + place]}] for place in range(4)]
    design = {"x": ["input", [2, 3, 4, 5]], "clk": ["input", [99]], "y": ["output", [66, 67, 68, 69]]}
    netlist = netlist_of(small, top=module(design, cells + flips))
    stimulus = [{"x": int(value)} for value in random.integers(0, 16, 50)]
    toggles, outputs = run_gates(netlist, stimulus)
    assert (toggles.tolist(), outputs) == gate_netlist.run(netlist, stimulus)
    free = netlist_of(small, top=module({"x": ["input", list(range(2, 10))], "y": design["y"]}, cells))
    analysis = TimingAnalysis(free)
    assert analysis.run().critical_path_ns == pytest.approx(gate_netlist.latest(free, small, analysis.load_pf.tolist()))


def test_a_loop_of_gates_and_an_unknown_cell_are_refused(small: Library) -> None:
    ring = module({"y": ["output", [2]]}, [["INV", {"A": [2], "Y": [2]}]])
    with pytest.raises(NotModelled, match="1 gates form a loop"):
        netlist_of(small, top=ring)
    with pytest.raises(NotModelled, match="TBUF"):
        netlist_of(small, top=module({"y": ["output", [2]]}, [["TBUF", {"A": [2], "Y": [2]}]]))


def test_scaling_to_a_node_is_monotone_and_keeps_the_source() -> None:
    for scale in (area_at, energy_at):
        assert 1.0 > scale(1.0, 65) > scale(1.0, 28) > scale(1.0, 7)
    assert 1.0 > delay_at(1.0, 65) > delay_at(1.0, 28)
    assert area_at(12.67, 65) == pytest.approx(1.0, rel=0.01)  # Stillmaker 2017: 65 nm over 180 nm is 1 / 12 (1.5 / 19)
    assert energy_at(1.0, 65) == pytest.approx((3.755 * 1.21 - 4.398 * 1.1 + 1.975) / (24.64 * 1.8 - 17.98))


def test_a_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_LIBERTY", str(tmp_path / "none.lib"))
    with pytest.raises(MissingTool, match="apt-get install --no-install-recommends yosys qflow-tech-osu018"):
        yosys.liberty_path()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="synthesis needs yosys: apt-get install"):
        yosys.yosys_program()


def test_areas_come_from_the_layouts_beside_the_liberty_file(tmp_path: Path) -> None:
    path = tmp_path / "small.lib"
    path.write_text(LIBRARY)
    (tmp_path / "small.lef").write_text("MACRO NAND2\n SIZE 1.5 BY 10 ;\nEND NAND2\n")
    assert "cell (NAND2) { area : 15;" in yosys._corrected(path)
    assert "cell (INV) { area : 2;" in yosys._corrected(path)
