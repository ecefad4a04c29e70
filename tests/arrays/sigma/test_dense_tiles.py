"""Columns of dense tiles against `Sigma.cost` of each tile alone: the same names in the same order, the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.arrays import Sigma
from trainyard.arrays.sigma.dense_tiles import _with_stationary
from trainyard.ir import MatMul
from trainyard.ir.folds import Tiles

arrays = st.builds(
    Sigma,
    dpes=st.integers(1, 9),
    multipliers=st.sampled_from([1, 2, 8, 16]),
    bandwidth=st.integers(1, 40),
    stationary=st.sampled_from(["a", "b", "best"]),
    streaming=st.sampled_from(["wide", "limited"]),
    drain=st.sampled_from(["fold", "pass"]),
)
sides = st.integers(1, 90)


@pytest.mark.oracle
@example(
    Sigma(dpes=4, multipliers=16, bandwidth=40, streaming="limited", stationary="a"), [(2, 3, 4)], 1
)  # one pass, no partial sums
@given(arrays, st.lists(st.tuples(sides, sides, sides), min_size=1, max_size=8), st.integers(1, 3))
def test_columns_are_the_events_of_each_tile(array: Sigma, sizes: list[tuple[int, int, int]], count: int) -> None:
    high, wide, deep = np.array(sizes, dtype=np.float64).T
    columns = array.tile_events(Tiles(high, wide, deep, np.full(len(sizes), count)))
    for row, size in enumerate(sizes):
        events = array.cost(MatMul(*size)).events
        assert [*columns] == [*events]
        assert {name: values[row] for name, values in columns.items()} == {name: done * count for name, done in events.items()}


@pytest.mark.oracle
@example(Sigma(dpes=1, multipliers=16, bandwidth=3, streaming="limited", drain="fold"), 20, 20, 20, "a")  # 27 passes, 25 folds
@given(arrays, sides, sides, sides, st.sampled_from(["a", "b"]))
def test_cycles_of_a_dense_tile_are_those_of_the_array_with_that_operand_stationary(
    array: Sigma, m: int, n: int, k: int, side: Literal["a", "b"]
) -> None:
    cycles, _ = _with_stationary(array, Tiles(*(np.array([float(size)]) for size in (m, n, k, 1))), side)
    assert cycles[0] == replace(array, stationary=side).cost(MatMul(m, n, k)).cycles


def test_a_caller_that_writes_into_its_events_changes_no_later_cost() -> None:
    array, op = Sigma(dpes=2, multipliers=4, bandwidth=4), MatMul(8, 8, 8)
    first = dict(array.cost(op).events)
    array.cost(op).events["mac"] = 0.0  # type: ignore[index]  # a plain dict
    assert array.cost(op).events == first
