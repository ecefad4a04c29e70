"""The accumulation unit against `Agau.reduce` and `Agau.cycles`, and against the twin that clocks registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth")

from oracles.agau_pipeline import Pipeline
from trainyard.errors import BadInput
from trainyard.rtl.agau import reduction_tree
from trainyard.rtl.agau.accumulation import AgauDesign
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.verilator import compiled_outputs, missing_tools

SMALL = AgauDesign(inputs=4, width_bits=64, number="int32", buffer_bytes=32)
LONG = 10_000


@pytest.mark.parametrize(
    ("design", "cycles"),
    [
        (SMALL, 300),
        (AgauDesign(inputs=3, width_bits=32, number="int32", buffer_bytes=16, ports=1, adder_cycles=2), 300),
        (AgauDesign(inputs=2, width_bits=32, number="int32", buffer_bytes=4, adder_cycles=1, multiplier_cycles=1), 200),
        (AgauDesign(inputs=5, width_bits=32, buffer_bytes=32, ports=2), 200),
        (AgauDesign(inputs=8, width_bits=32, number="int32", buffer_bytes=32, ports=3, adder_cycles=1), 200),
    ],
    ids=str,
)
def test_reductions_give_the_simulators_sums_in_its_cycles(design: AgauDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=2)
    assert comparison.equal, comparison.difference


@pytest.mark.parametrize(("contributions", "beats"), [(1, 1), (4, 9), (5, 1), (13, 2), (13, 11)])
def test_every_sum_leaves_in_the_cycle_of_the_clocked_twin(contributions: int, beats: int) -> None:
    agau = SMALL.agau
    rows = np.random.default_rng(0).integers(-(2**31), 2**31, (contributions, beats * agau.lanes), dtype=np.int32)
    outputs = amaranth_outputs(SMALL.build(), SMALL.reduction(rows.view(np.uint32)))
    twin, results = Pipeline(agau, rows), dict[int, Any]()
    while not twin.done:
        twin.step()
        for start, words in twin.result.items():
            results.setdefault(start, (twin.cycle, [int(word) & 0xFFFFFFFF for word in words]))
    started = 1
    seen = [
        (cycle - started, [row["total"] >> (32 * lane) & 0xFFFFFFFF for lane in range(agau.lanes)])
        for cycle, row in enumerate(outputs)
        if row["total_valid"]
    ]
    assert seen == [results[start] for start in sorted(results)]


@pytest.mark.parametrize("neutral", [0x80000000, 0])
def test_a_negative_zero_without_a_neighbour_keeps_its_sign_if_the_neutral_element_is_negative_zero(
    neutral: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reduction_tree.NEUTRAL, "fp32", neutral)
    design = AgauDesign(inputs=3, width_bits=32, buffer_bytes=32)
    stimulus = design.reduction(np.full((1, 1), -0.0, np.float32).view(np.uint32))
    outputs = amaranth_outputs(design.build(), stimulus)
    assert [row["total"] for row in outputs if row["total_valid"]] == [neutral]
    assert compare(outputs, design.expected(stimulus)).equal is (neutral != 0)


def test_an_adder_with_a_register_less_is_caught() -> None:
    faster = AgauDesign(inputs=4, width_bits=64, number="int32", buffer_bytes=32, adder_cycles=2)
    assert not check_equality(SMALL, 60, component=faster.build()).equal


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
@pytest.mark.parametrize("design", [AgauDesign(), AgauDesign(number="int32", inputs=16, ports=4, buffer_bytes=512)], ids=str)
def test_ten_thousand_cycles_are_equal(design: AgauDesign) -> None:
    comparison = check_equality(design, LONG, seed=7, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == LONG


@pytest.mark.parametrize(
    ("name", "value", "problem"), [("inputs", 1, "adds nothing"), ("width_bits", 40, "whole words"), ("adder_cycles", 5, "1 to 3")]
)
def test_a_bad_size_is_refused(name: str, value: int, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        design_of("agau", {name: value})
