"""The tile in lockstep against the simulator's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module, Value

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.tensordash import tile as module
from trainyard.rtl.tensordash.recorded import recorded_blocks
from trainyard.rtl.tensordash.tile import TileDesign
from trainyard.rtl.verilator import CompiledDesign, compiled_outputs, missing_tools

SMALL = TileDesign(lanes=3, depth=3, rows=2, columns=2)
LONG = 10_000


@pytest.mark.parametrize(
    ("design", "cycles"),
    [
        (SMALL, 60),
        (TileDesign(lanes=2, depth=2, rows=3, columns=1, banks=1, pipeline=1), 60),
        pytest.param(TileDesign(rows=3, columns=1, pipeline=1), 80, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_output_blocks_take_the_simulators_cycles_and_give_its_bits(design: TileDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=5)
    assert comparison.equal, comparison.difference


def test_recorded_zeros_give_the_simulators_outputs() -> None:
    design = TileDesign(depth=3, rows=2, columns=1)
    blocks = list(islice(recorded_blocks("NCF", lanes=4, rows=2, most_steps=16), 4))
    stimulus = design.bench.masked(blocks, 60, seed=0)
    outputs = amaranth_outputs(design.build(), stimulus)
    comparison = compare(outputs, design.expected(stimulus))
    assert comparison.equal, comparison.difference
    assert sum(row["working"] for row in outputs) == sum(Scheduler(lanes=4, depth=3).plain(block) for block in blocks)


def test_a_row_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(m: Module, name: str, values: Sequence[Value]) -> Value:
        return values[0]

    monkeypatch.setattr(module, "smallest", first)
    assert not check_equality(SMALL, 60).equal


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
