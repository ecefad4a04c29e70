"""Several systolic arrays: the closed form against arrays that really multiply, cell by cell, fold by fold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Systolic, SystolicUnits
from trainyard.ir import Array, MatMul

sizes = st.integers(1, 9)
dataflows = st.sampled_from(["ws", "os", "is"])


@pytest.mark.oracle
@given(m=sizes, n=sizes, k=sizes, units=st.integers(1, 4), dataflow=dataflows, pipelined=st.booleans())
def test_execution_multiplies_in_the_cycles_of_the_closed_form(m, n, k, units, dataflow, pipelined):
    array = SystolicUnits(units=units, rows=3, columns=2, dataflow=dataflow, pipelined=pipelined)
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.integers(-9, 9, (m, k)).astype(float), random.integers(-9, 9, (k, n)).astype(float)
    ran = array.execute(a, b)
    assert (ran.product == a @ b).all()
    assert ran.cycles == array.tile_cycles(m, n, k) == array.cost(MatMul(m, n, k)).cycles + 1


@given(m=sizes, n=sizes, k=sizes, count=st.integers(1, 3), dataflow=dataflows, pipelined=st.booleans())
def test_one_unit_is_a_systolic_array_and_more_never_cost_time(m, n, k, count, dataflow, pipelined):
    op, shape = MatMul(m, n, k, count), {"rows": 3, "columns": 2, "dataflow": dataflow, "pipelined": pipelined}
    single = Systolic(**shape).cost(op)
    assert SystolicUnits(units=1, **shape).cost(op) == single
    cycles = [SystolicUnits(units=units, **shape).cost(op).cycles for units in (1, 2, 4, 8)]
    assert cycles == sorted(cycles, reverse=True)
    assert SystolicUnits(units=4, **shape).cost(op).events == single.events


def test_it_is_an_array_with_a_name_and_runs_in_a_machine():
    assert isinstance(SystolicUnits(units=2, rows=4, columns=4), Array)
    one, four = (ty.run("alexnet", on=f"npu(array=systolic-units(units={units},rows=64,columns=64))") for units in (1, 4))
    assert four.time_s < one.time_s
    assert four.peaks.macs_per_s == ty.machine("npu").peaks.macs_per_s
    ordered = ty.run("alexnet", on="npu(array=systolic-units(units=4,rows=64,columns=64))", order="cost")
    assert ordered.time_s <= four.time_s * 1.001
