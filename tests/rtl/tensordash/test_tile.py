"""The tile in lockstep against the simulator's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module, Value

from oracles.circuit_mutants import mutants
from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare, one_cycle_late
from trainyard.rtl.tensordash import tile as module
from trainyard.rtl.tensordash.recorded import recorded_blocks
from trainyard.rtl.tensordash.tile import TileDesign
from trainyard.rtl.verilator import CompiledDesign, compiled_outputs, missing_tools

SMALL = TileDesign(lanes=3, depth=3, rows=2, columns=2)
LONG = 10_000


@pytest.mark.parametrize(
    ("design", "cycles"),
    [(SMALL, 100), (TileDesign(rows=3, columns=1, pipeline=1), 80), (TileDesign(lanes=2, depth=2, rows=2, columns=1, banks=1), 80)],
    ids=str,
)
def test_output_blocks_take_the_simulators_cycles_and_give_its_bits(design: TileDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=5)
    assert comparison.equal, comparison.difference


def test_recorded_zeros_give_the_simulators_outputs() -> None:
    design = TileDesign(rows=4, columns=1)
    stimulus = design.bench.masked(recorded_blocks("NCF", lanes=4, rows=4, most_steps=16), 80, seed=0)
    comparison = compare(amaranth_outputs(design.build(), stimulus), design.expected(stimulus))
    assert comparison.equal, comparison.difference


def test_outputs_one_cycle_late_are_caught() -> None:
    assert not check_equality(SMALL, 40, component=one_cycle_late(SMALL.build())).equal


def test_a_row_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(m: Module, name: str, values: Sequence[Value]) -> Value:
        return values[0]

    monkeypatch.setattr(module, "smallest", first)
    assert not check_equality(SMALL, 60).equal


def test_cycles_of_a_block_are_those_of_the_array() -> None:
    design = TileDesign(rows=4, columns=1)
    block = next(recorded_blocks("NCF", lanes=4, rows=4, most_steps=20))
    stimulus = design.bench.masked([block], 40, seed=0)
    working = sum(row["working"] for row in amaranth_outputs(design.build(), stimulus))
    assert working == Scheduler(lanes=4, depth=4).plain(block)


@pytest.mark.slow
def test_each_dropped_register_and_each_swapped_multiplexer_is_caught() -> None:
    design = TileDesign(lanes=2, depth=3, rows=2, columns=2, banks=2)
    stimulus = design.stimulus(200, 0)
    expected = design.expected(stimulus)
    survivors = [mutant.what for mutant in mutants(design.build) if compare(amaranth_outputs(mutant, stimulus), expected).equal]
    assert survivors == [f"/element{place}: register (sig done) dropped" for place in ("0_1", "1_0", "1_1")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
@pytest.mark.parametrize(
    "design", [TileDesign(), TileDesign(rows=2, columns=1, number="bf16"), TileDesign(rows=3, columns=2, depth=3, banks=2)], ids=str
)
def test_ten_thousand_cycles_are_equal(design: TileDesign) -> None:
    comparison = check_equality(design, LONG, seed=13, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == LONG


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
def test_ten_thousand_cycles_of_recorded_runs_are_equal(tmp_path: Path) -> None:
    design = TileDesign(rows=4, columns=1)
    compiled = CompiledDesign(design.build(), tmp_path)
    for model in ("VGG16", "img2txt", "BERT"):
        stimulus = design.bench.masked(recorded_blocks(model, lanes=4, rows=4, most_steps=100), LONG, seed=0)
        comparison = compare(compiled.outputs(stimulus), design.expected(stimulus))
        assert comparison.equal, (model, comparison.difference)


def test_a_tile_without_rows_is_refused() -> None:
    with pytest.raises(BadInput, match="rows"):
        TileDesign(rows=0)
