"""The brute force of benchmarks/mapping.py: its machine is that of `mapping.walk`, and its groups of steps are all steps."""

from __future__ import annotations

import random

import numpy as np
import pytest
from mapping_cases import brute_force, cases, ledger

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.mapping.tiling import ORDERS, Problem, Supply, Tiling, search
from trainyard.mapping.walk import walk


@pytest.mark.slow  # compiles for seconds
@pytest.mark.parametrize("seed", range(40))
def test_steps_walked_and_grouped_take_the_cycles_and_bytes_of_the_accelerator(seed):
    source = random.Random(seed)
    dims, count = [source.randint(1, 30) for _ in range(3)], source.randint(1, 4)
    size, order = [source.randint(1, extent) for extent in dims], source.randrange(6)
    array = {"rows": source.randint(1, 9), "columns": source.randint(1, 9), "dataflow": source.choice(cases.DATAFLOWS)}
    problem = Problem.dense(MatMul(*dims, count), source.choice((1, 2, 4)))
    supply = Supply(resident_bytes=1e9, bytes_per_cycle=source.choice((1.0, 4.0, 33.0)), latency_cycles=source.choice((0, 7)))
    systolic = Systolic(**array)
    tiled = walk(
        problem,
        Tiling(m=size[0], n=size[1], k=size[2], order=ORDERS[order]),
        supply,
        lambda tile: systolic.tile_cycles(tile.op.M, tile.op.N, tile.op.K),
    )
    numbers = (np.array(dims), np.array(size), brute_force.ORDERS[order])
    machine = (
        np.array(problem.rates),
        np.array([array["rows"], array["columns"], cases.DATAFLOWS.index(array["dataflow"])]),
        np.array([1e9, supply.bytes_per_cycle, supply.latency_cycles]),
    )
    assert brute_force.walk(*numbers, 0, *machine, count) == (tiled.cycles, tiled.dram_bytes)
    assert brute_force.computing(numbers[0], numbers[1], machine[1]) * count == tiled.compute_cycles
    for keep in range(8):
        cycles, moved = brute_force.walk(*numbers, keep, *machine, count)
        assert brute_force.grouped(*numbers, keep, *machine, count) == cycles
        assert brute_force.traffic(*numbers, keep, machine[0], count) == moved


MISSED = (
    ((670, 11, 84), 2, (3, 15, "is"), 31686.7, 3.6, 0, 38626),
    ((17, 4, 470), 2, (10, 67, "ws"), 6366.4, 1.12, 100, 18653),
    ((1009, 3, 21), 1, (7, 20, "os"), 11462.7, 1.01, 100, 24641),
    ((114, 214, 655), 2, (173, 14, "ws"), 1523576.7, 26.79, 0, 32669),
    ((80, 120, 439), 2, (70, 8, "ws"), 103413.9, 9.41, 0, 27104),
)
"""Products on odd arrays that the search once gave more than 1 % above the least cycles of brute force, which stand last."""


@pytest.mark.parametrize(("dims", "element", "array", "room", "speed", "latency", "least"), MISSED)
def test_sizes_between_useful_ones_are_found_where_the_last_tile_may_be_small(dims, element, array, room, speed, latency, least):
    supply = Supply(resident_bytes=room, bytes_per_cycle=speed, latency_cycles=latency)
    rows, columns, dataflow = array
    (found,) = search([Problem.dense(MatMul(*dims), element)], Systolic(rows=rows, columns=columns, dataflow=dataflow), supply)
    assert found.cycles <= 1.01 * least


def test_useful_sizes_are_the_least_for_each_number_of_tiles_and_whole_arrays():
    assert brute_force.sizes(10, 4).tolist() == [1, 2, 3, 4, 5, 8, 10]
    assert {-(-997 // size) for size in brute_force.sizes(997, 64)} >= {-(-997 // size) for size in range(1, 998)}


def test_cases_are_the_same_for_a_seed_and_have_room_for_something():
    assert cases.products(20) == cases.products(20)
    assert all(case["room"] >= 64 for case in cases.products(200))
    assert {case["class"] for case in cases.by_room(1)} == {"1-2", "2-4", "4-16", "16-64"}


def test_rows_of_the_ledger_and_their_largest_change():
    page = "| claim | paper | ours | verdict |\n|---|---|---|---|\n| igo.small.all | 14.5 | 14.3 | open |\nno row\n"
    assert ledger.rows_of(page) == {"igo.small.all": "14.3"}
    assert ledger.change("1,000 / 2.0", "1,010 / 1.9") == pytest.approx(0.05)
    assert ledger.change("0 / 3", "0 / 3") == 0


def test_the_page_has_the_rows_that_moved_with_the_search():
    if not all(ledger.is_known(commit) for stage in ledger.STAGES for commit in (stage.before, stage.after)):
        pytest.skip("a clone without the commits that the section is read from")
    assert ledger.section() in (ledger.ROOT / "docs" / "mapping_benchmark.md").read_text(encoding="utf-8")


def test_a_clone_without_the_history_says_so(monkeypatch):
    monkeypatch.setattr(ledger, "STAGES", (ledger.Stage("0" * 40, "", "none"),))
    assert "git fetch --unshallow" in ledger.section()
