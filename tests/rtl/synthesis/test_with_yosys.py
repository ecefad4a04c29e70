"""Small components through Yosys and abc: the gates give what the RTL gives, and the slowest path is the one that abc prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainyard.errors import BadInput

pytest.importorskip("amaranth")
from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.rtl.equality import amaranth_outputs
from trainyard.rtl.synthesis import yosys
from trainyard.rtl.synthesis.activity import run_gates
from trainyard.rtl.synthesis.hierarchy import merge_equal_modules
from trainyard.rtl.synthesis.report import netlist_of, rtlil_of
from trainyard.rtl.synthesis.timing import TimingAnalysis
from trainyard.rtl.synthesis.yosys import library, map_design

needs_tools = pytest.mark.skipif(
    shutil.which("yosys") is None or not yosys.LIBERTY.is_file(), reason="yosys or qflow-tech-osu018 is not installed"
)


class Square(Component):  # type: ignore[misc]  # amaranth has no types
    """The square of a number, in a register."""

    def __init__(self, width: int) -> None:
        super().__init__({"a": In(width), "y": Out(2 * width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held = Signal(len(self.y), init=3)
        m.d.sync += held.eq(self.a * self.a)
        m.d.comb += self.y.eq(held)
        return m


class Squares(Component):  # type: ignore[misc]  # amaranth has no types
    """The sum of so many squares, kept while `hold` is 1."""

    def __init__(self, width: int, many: int) -> None:
        super().__init__({"x": In(width * many), "hold": In(1), "total": Out(2 * width + many)})
        self.width, self.many = width, many

    def elaborate(self, platform: object) -> Module:
        m = Module()
        units = [Square(self.width) for _ in range(self.many)]
        for place, unit in enumerate(units):
            m.submodules[f"square_{place}"] = unit
            m.d.comb += unit.a.eq(self.x.word_select(place, self.width))
        with m.If(~self.hold):
            m.d.sync += self.total.eq(sum(unit.y for unit in units))
        return m


def stimulus(width: int, cycles: int = 60) -> list[dict[str, int]]:
    import random

    draw = random.Random(3)
    return [{"x": draw.getrandbits(width), "hold": int(draw.random() < 0.2)} for _ in range(cycles)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    return tmp_path


def test_equal_modules_become_one_and_others_stay() -> None:
    merged = merge_equal_modules(rtlil_of(Squares(8, 4)))
    squares = [name for name in merged.bits if name != "top"]
    assert [merged.instances[name] for name in squares] == [4]
    assert merged.repeated(least_bits=1) == tuple(squares)
    assert merged.repeated(least_bits=merged.bits[squares[0]] + 1) == ()
    with pytest.raises(BadInput, match="no module other"):
        merge_equal_modules(merged.text, top="other")


@needs_tools
@pytest.mark.parametrize("least", [1, 10**9])  # squares synthesised once, or with all else
def test_gates_give_what_the_component_gives(cache: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(yosys, "LEAST_BITS", least)
    component, inputs = Squares(5, 3), stimulus(15)
    netlist = netlist_of(component)
    assert len(netlist.modules) == (4 if least == 1 else 1)
    _, outputs = run_gates(netlist, inputs)
    assert outputs == amaranth_outputs(Squares(5, 3), inputs)
    assert outputs[0]["total"] == 0
    assert outputs[1]["total"] == 9  # every square begins with 3
    assert list(cache.glob("synthesis/*.json.gz"))
    monkeypatch.setattr(yosys, "_run", lambda folder: pytest.fail("the netlist was not read from the cache"))
    assert netlist_of(Squares(5, 3)).cells == netlist.cells


class Sum(Component):  # type: ignore[misc]  # amaranth has no types
    """Two numbers added, without a register."""

    def __init__(self, width: int) -> None:
        super().__init__({"a": In(width), "b": In(width), "y": Out(width + 1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.y.eq(self.a + self.b)
        return m


@needs_tools
def test_the_slowest_path_is_the_one_that_abc_prints(cache: Path) -> None:
    mapped = map_design(rtlil_of(Sum(24)))
    ours = TimingAnalysis(netlist_of(Sum(24))).run().critical_path_ns
    assert ours == pytest.approx(mapped.abc_delay_ns["top"], rel=0.03)
    assert library().cells["OAI21X1"].area_um2 == library().cells["NAND3X1"].area_um2 == 32
