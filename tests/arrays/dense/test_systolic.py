"""Systolic arrays: the closed forms against an array that really multiplies, cell by cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Array, Density, MatMul, Product

sizes = st.integers(1, 9)
dataflows = st.sampled_from(["ws", "os", "is"])


@pytest.mark.oracle
@given(m=sizes, n=sizes, k=sizes, rows=st.integers(1, 4), columns=st.integers(1, 4), dataflow=dataflows, pipelined=st.booleans())
def test_execution_multiplies_in_the_cycles_of_the_closed_form(m, n, k, rows, columns, dataflow, pipelined):
    array = Systolic(rows=rows, columns=columns, dataflow=dataflow, pipelined=pipelined)
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.integers(-9, 9, (m, k)).astype(float), random.integers(-9, 9, (k, n)).astype(float)
    ran = array.execute(a, b)
    assert (ran.product == a @ b).all()
    assert ran.cycles == array.tile_cycles(m, n, k) == array.cost(MatMul(m, n, k)).cycles + 1


@pytest.mark.parametrize(
    ("dataflow", "cycles"),
    [
        ("ws", 3 * 2 * (2 * 32 + 16 + 100 - 2) - 1),
        ("is", 3 * 7 * (2 * 32 + 16 + 20 - 2) - 1),
        ("os", 4 * 2 * (32 + 16 + 70 - 2) - 1),
    ],
)
def test_printed_closed_forms(dataflow, cycles):
    assert Systolic(rows=32, columns=16, dataflow=dataflow).cost(MatMul(100, 20, 70)).cycles == cycles


@given(m=sizes, n=sizes, k=sizes, count=st.integers(1, 5), dataflow=dataflows, pipelined=st.booleans())
def test_batched_products_follow_each_other_and_close_once(m, n, k, count, dataflow, pipelined):
    array = Systolic(rows=4, columns=4, dataflow=dataflow, pipelined=pipelined)
    one, many = array.cost(MatMul(m, n, k)), array.cost(MatMul(m, n, k, count))
    if pipelined:
        assert many.cycles <= count * (one.cycles + 1) - 1
    else:
        assert many.cycles == count * (one.cycles + 1) - 1
    assert many.events["mac"] == count * m * n * k
    assert many.events["array_pass"] == count * one.events["array_pass"]


@given(m=sizes, n=sizes, k=sizes, dataflow=dataflows)
def test_pipelining_never_costs_and_one_fold_is_the_same(m, n, k, dataflow):
    apart = Systolic(rows=4, columns=3, dataflow=dataflow)
    overlapped = Systolic(rows=4, columns=3, dataflow=dataflow, pipelined=True)
    assert overlapped.tile_cycles(m, n, k) <= apart.tile_cycles(m, n, k)
    if apart.cost(MatMul(m, n, k)).events["array_pass"] == 1:
        assert overlapped.tile_cycles(m, n, k) == apart.tile_cycles(m, n, k)


@given(m=sizes, n=sizes, k=sizes, dataflow=dataflows)
def test_scratchpad_events_count_what_the_cells_take_in(m, n, k, dataflow):
    """Every element that an operand port carries, counted fold by fold."""
    rows, columns = 4, 3
    events = Systolic(rows=rows, columns=columns, dataflow=dataflow).cost(MatMul(m, n, k)).events
    blocks = {"ws": (m, columns, rows), "is": (columns, n, rows), "os": (rows, columns, k)}[dataflow]
    reads_a = reads_b = writes = 0
    for i in range(0, m, blocks[0]):
        for j in range(0, n, blocks[1]):
            for q in range(0, k, blocks[2]):
                high, wide, deep = min(blocks[0], m - i), min(blocks[1], n - j), min(blocks[2], k - q)
                reads_a, reads_b, writes = reads_a + high * deep, reads_b + deep * wide, writes + high * wide
    assert (events["scratchpad_read_a"], events["scratchpad_read_b"], events["scratchpad_write_out"]) == (reads_a, reads_b, writes)
    assert events["scratchpad_read_out"] == writes - m * n


def test_utilisation_is_useful_macs_over_peak():
    array = Systolic(rows=8, columns=8, dataflow="os")
    op = MatMul(8, 8, 1000)
    assert array.utilisation(op) == op.macs / (array.cost(op).cycles * 64)
    assert 0.98 < array.utilisation(op) <= 1.0
    assert array.utilisation(MatMul(1, 1, 1)) < 0.01


def test_zeros_change_nothing_and_concurrent_is_one_after_another():
    array = Systolic(rows=4, columns=4)
    assert isinstance(array, Array)
    op = MatMul(5, 6, 7)
    assert array.cost(op, a=Density(0.1)).cycles == array.cost(op).cycles
    both = array.concurrent([Product(op=op), Product(op=op)])
    assert both.finish == (array.cost(op).cycles, 2 * array.cost(op).cycles)


def test_granule_is_a_multiple_of_the_array():
    assert Systolic(rows=8, columns=4, dataflow="ws").granule() == (8, 4, 8)
    assert math.prod(Systolic(rows=8, columns=4, dataflow="os").granule()) == 8 * 4 * 8


@pytest.mark.parametrize("bad", [{"rows": 0}, {"rows": -1}, {"columns": 2.5}, {"columns": True}, {"rows": float("nan")}])
def test_bad_sizes_are_refused(bad):
    with pytest.raises(BadInput, match="positive whole number"):
        Systolic(**{"rows": 4, "columns": 4, **bad})


def test_unknown_dataflow_is_named():
    with pytest.raises(UnknownName, match="known: is, os, ws"):
        Systolic(rows=4, columns=4, dataflow="row")
