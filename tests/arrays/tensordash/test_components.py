"""TensorDash's rows of Table IV: the chip of the paper comes back, others are predicted."""

from __future__ import annotations

import pytest

from trainyard.arrays import TensorCore
from trainyard.arrays.tensordash import components
from trainyard.arrays.tensordash.components import core_areas, core_components, tensordash_areas, tensordash_components
from trainyard.errors import BadInput
from trainyard.ir import MatMul

PAPER = {"lanes": 4, "depth": 4, "rows": 4, "columns": 4, "options": 8}
CHIP = {**PAPER, "tiles": 256, "scratchpads_bytes": 256 * 1024}
BASELINE = {name: CHIP[name] for name in ("lanes", "rows", "columns", "tiles", "scratchpads_bytes")}
SLOTS = {"core_slot": 16384, "transposer_cycle": 64, "scheduler_cycle": 1024, "mux_slot": 16384, "staging_slot": 32768}
"""Events of the paper's chip in one busy cycle."""


def watts(rows, number="fp16", nm=65):
    return {row.component: row.at(nm, number) * SLOTS[row.event] * 500e6 for row in rows}


def mm2(rows, number="fp16"):
    return {row.component: row.at(65, number) * 1e6 for row in rows}


def logic(areas):
    return sum(size for component, size in areas.items() if component != "local")


@pytest.mark.paper
def test_the_papers_chip_draws_the_rows_of_table_iv():
    drawn = watts(tensordash_components(**PAPER))
    rows = {"core": 23.748, "transposer": 0.0444, "scheduler": 0.1879, "mux": 0.2838, "staging": 1.6384}
    assert drawn == {name: pytest.approx(value) for name, value in rows.items()}
    assert watts(core_components()) == {name: pytest.approx(rows[name]) for name in ("core", "transposer")}
    assert sum(drawn.values()) == pytest.approx(25.9025)  # not the printed 26.144
    assert sum(drawn.values()) / sum(watts(core_components()).values()) == pytest.approx(1.0887, abs=1e-4)


@pytest.mark.paper
def test_the_papers_chip_takes_the_rows_of_table_iv():
    taken, before = mm2(tensordash_areas(**CHIP)), mm2(core_areas(**BASELINE))
    rows = {"core": 68.74, "transposer": 0.37, "scheduler": 1.37, "mux": 3.63, "staging": 4.91, "local": 5.9}
    assert taken == {name: pytest.approx(value) for name, value in rows.items()}
    assert before == {"core": pytest.approx(68.74), "transposer": pytest.approx(0.37), "local": pytest.approx(3.95)}
    assert logic(taken) / logic(before) == pytest.approx(1.14, rel=0.01)  # Table IV
    chip = components.MEMORIES_M2 * 1e6
    assert (sum(taken.values()) + chip) / (sum(before.values()) + chip) == pytest.approx(1.048, abs=0.001)  # Sec. IV-C


@pytest.mark.parametrize("tiles", [1, 16, 256, 1024])
def test_the_transposers_that_are_counted_are_those_that_take_room(tiles):
    array = TensorCore(tiles=tiles)
    cycles = array.cost(MatMul(8, 8, 8)).events["transposer_cycle"] / array.cost(MatMul(8, 8, 8)).cycles
    assert mm2(array.component_areas)["transposer"] == pytest.approx(0.37 * cycles / 64)


@pytest.mark.paper
def test_bfloat16_shrinks_the_cores_alone():
    """Sec. IV-D: 1.16x area and 1.1x power of the compute logic, 4.9 % of the chip; the ratio of the cores is our tables'."""
    taken, before = mm2(tensordash_areas(**CHIP), "bf16"), mm2(core_areas(**BASELINE), "bf16")
    assert taken["core"] < 68.74
    assert (taken["scheduler"], taken["mux"], taken["staging"]) == (pytest.approx(1.37), pytest.approx(3.63), pytest.approx(4.91))
    assert logic(taken) / logic(before) == pytest.approx(1.16, abs=0.01)
    chip = components.MEMORIES_M2 * 1e6
    assert (sum(taken.values()) + chip) / (sum(before.values()) + chip) == pytest.approx(1.049, abs=0.001)
    drawn, plain = watts(tensordash_components(**PAPER), "bf16"), watts(core_components(), "bf16")
    assert sum(drawn.values()) / sum(plain.values()) == pytest.approx(1.1, abs=0.015)


@pytest.mark.paper
def test_wide_elements_add_a_smaller_share():
    """16 lanes, 3 deep, the same multipliers: the paper says 10 % of the logic and 3.5 % of the chip."""
    wide = {**CHIP, "lanes": 16, "depth": 3, "tiles": 64}
    taken, before = mm2(tensordash_areas(**wide)), mm2(core_areas(**{**BASELINE, "lanes": 16, "tiles": 64}))
    chip = components.MEMORIES_M2 * 1e6
    assert 1.10 < logic(taken) / logic(before) < 1.13 < 1.143
    assert 1.035 < (sum(taken.values()) + chip) / (sum(before.values()) + chip) < 1.041 < 1.048


def test_a_mux_grows_with_its_inputs_and_a_scheduler_with_lanes_and_options():
    by_name = {row.component: row.joules for row in tensordash_components(**PAPER)}
    few = {row.component: row.joules for row in tensordash_components(**{**PAPER, "options": 4})}
    wide = {row.component: row.joules for row in tensordash_components(**{**PAPER, "lanes": 16})}
    assert few["mux"] / by_name["mux"] == pytest.approx(3 / 7)
    own = by_name["scheduler"] - 4 * by_name["mux"]  # a row's scheduler without its B muxes
    assert own > 0
    assert few["scheduler"] == pytest.approx(own / 2 + 4 * few["mux"], rel=1e-6, abs=0.0)
    assert wide["scheduler"] == pytest.approx(4 * by_name["scheduler"], rel=1e-6, abs=0.0)
    assert wide["mux"] == by_name["mux"]
    assert few["staging"] == by_name["staging"] == pytest.approx(0.05e-3 / 500e6, rel=1e-6, abs=0.0)  # 50 uW for each staged value
    assert few["core"] == by_name["core"]
    assert tensordash_components(**{**PAPER, "options": 1})[3].joules == 0  # no choice, no mux


def test_skipping_on_two_sides_takes_a_scheduler_and_buffers_in_each_element():
    one, two = mm2(tensordash_areas(**CHIP)), mm2(tensordash_areas(**CHIP, sides="two"))
    assert two["scheduler"] == pytest.approx(4 * one["scheduler"])
    assert two["staging"] == pytest.approx(4 * one["staging"])
    assert (two["core"], two["mux"]) == (one["core"], one["mux"])


def test_every_row_names_its_source():
    for row in (*tensordash_components(**PAPER), *tensordash_areas(**CHIP)):
        assert "MICRO 2020" in row.source
        assert row.nm == 65


def test_impossible_geometries_are_refused():
    with pytest.raises(BadInput, match="options must be a positive"):
        tensordash_components(**{**PAPER, "options": 0})
    with pytest.raises(BadInput, match="tiles must be a positive"):
        tensordash_areas(**{**CHIP, "tiles": 0})
