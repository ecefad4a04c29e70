"""The element and its parts against the simulator's, on dot products with random and with recorded zeros."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth")


from trainyard.errors import BadInput, UnknownName
from trainyard.papers.tensordash.models import NAMES
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.tensordash import element as element_module
from trainyard.rtl.tensordash import row_scheduler
from trainyard.rtl.tensordash.baseline import BaselineDesign
from trainyard.rtl.tensordash.element import ElementDesign
from trainyard.rtl.tensordash.recorded import recorded_blocks
from trainyard.rtl.tensordash.staging_buffer import PromotionMultiplexers, refilled
from trainyard.rtl.verilator import CompiledDesign, compiled_outputs, missing_tools

NARROW = ElementDesign(lanes=3, depth=3)
LONG = 10_000


@pytest.mark.parametrize(
    ("design", "cycles"),
    [
        (ElementDesign(depth=2, skips="both", number="int16"), 80),
        (ElementDesign(lanes=5, depth=3, pipeline=3), 80),
        (ElementDesign(depth=3, banks=1), 80),
        (ElementDesign(lanes=2, depth=2, number="bf16"), 60),
        (ElementDesign(lanes=2, depth=3, number="fp16", skips="both", pipeline=2), 60),
        pytest.param(ElementDesign(), 150, marks=pytest.mark.slow),
        pytest.param(ElementDesign(depth=4, banks=3, pipeline=1), 100, marks=pytest.mark.slow),
        pytest.param(ElementDesign(lanes=3, depth=2, number="bf16"), 80, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_dot_products_take_the_simulators_cycles_and_give_its_bits(design: ElementDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=3)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == cycles


def test_outputs_follow_each_other_without_an_idle_cycle() -> None:
    bench = ElementDesign().bench
    draw = np.random.default_rng(0)
    blocks = [draw.random((1, steps, 4)) < 0.5 for steps in (3, 1, 7, 2, 9)]
    stimulus = bench.inputs([bench.valued(block, draw) for block in blocks], 60, NoGaps())
    working = [row["working"] for row in amaranth_outputs(ElementDesign().build(), stimulus)]
    cycles = sum(bench.simulated(bench.valued(block, draw)).cycles for block in blocks)
    assert working == [0] + [1] * cycles + [0] * (59 - cycles)


class NoGaps(Random):
    """Random numbers that let every output in at once."""

    def random(self) -> float:
        return 1.0


def test_recorded_zeros_give_the_simulators_outputs() -> None:
    design = ElementDesign()
    stimulus = design.bench.masked(recorded_blocks("NCF", lanes=4, rows=1, most_steps=30), 150, seed=0)
    comparison = compare(amaranth_outputs(design.build(), stimulus), design.expected(stimulus))
    assert comparison.equal, comparison.difference
    assert sum(row.get("done", 0) for row in design.expected(stimulus)) >= 5


def test_a_swapped_multiplexer_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(options: Any, **sizes: Any) -> PromotionMultiplexers:
        return PromotionMultiplexers(options=(options[0], options[2], options[1], *options[3:]), **sizes)

    monkeypatch.setattr(element_module, "PromotionMultiplexers", swapped)
    assert not check_equality(NARROW, 80).equal


def test_a_dropped_pipeline_register_is_caught() -> None:
    piped = ElementDesign(lanes=3, depth=3, pipeline=1)
    assert not check_equality(piped, 60, component=NARROW.build()).equal


def test_pairs_that_are_not_marked_as_multiplied_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmarked(rows: Any, incoming: Any, shift: Any, kept: Any) -> Any:
        forgotten = [row.cases[0][1] for row in rows[1:]]  # the input of the multiplexer that holds Z as it was
        return refilled([rows[0], *forgotten], incoming, shift, kept)

    monkeypatch.setattr(row_scheduler, "refilled", unmarked)
    assert not check_equality(NARROW, 100).equal


def test_the_dense_baseline_gives_the_simulators_dense_schedule() -> None:
    for design in (BaselineDesign(rows=2, columns=2), BaselineDesign(rows=1, columns=1, lanes=3, number="int16", pipeline=3)):
        comparison = check_equality(design, 150)
        assert comparison.equal, comparison.difference


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
@pytest.mark.parametrize(
    "design",
    [
        ElementDesign(),
        ElementDesign(number="bf16"),
        ElementDesign(number="fp16", skips="both", depth=3),
        ElementDesign(lanes=16, depth=3, levels="grouped", number="bf16", pipeline=3),
        ElementDesign(depth=2, banks=1),
        BaselineDesign(number="bf16", rows=2, columns=2),
    ],
    ids=str,
)
def test_ten_thousand_cycles_are_equal(design: ElementDesign | BaselineDesign) -> None:
    comparison = check_equality(design, LONG, seed=11, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == LONG


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
def test_ten_thousand_cycles_of_each_recorded_run_are_equal(tmp_path: Path) -> None:
    design = ElementDesign(number="bf16")
    compiled = CompiledDesign(design.build(), tmp_path)
    for model in NAMES:
        stimulus = design.bench.masked(recorded_blocks(model, lanes=4, rows=1, most_steps=100), LONG, seed=0)
        comparison = compare(compiled.outputs(stimulus), design.expected(stimulus))
        assert comparison.equal, (model, comparison.difference)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: ElementDesign(banks=5), "banks=5"),
        (lambda: ElementDesign(pipeline=4), "pipeline=4"),
        (lambda: ElementDesign(skips="a"), "skips"),
        (lambda: ElementDesign(lanes=0), "lanes"),
        (lambda: BaselineDesign(columns=0), "columns"),
    ],
)
def test_a_bad_size_is_refused_in_one_line(build: Callable[[], object], problem: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=problem) as error:
        build()
    assert "\n" not in str(error.value)


def test_an_unknown_number_format_offers_the_known() -> None:
    with pytest.raises(UnknownName, match="bf16"):
        ElementDesign(number="bfloat")
