"""The weight-stationary systolic array as a circuit: the simulator's sums in the cycles in which they leave their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainyard.arrays.dense.execution import weight_stationary_sums
from trainyard.arrays.dense.systolic import Systolic
from trainyard.errors import BadInput, UnknownName
from trainyard.rtl import systolic
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.equality import check_equality
from trainyard.rtl.verilator import compiled_outputs, missing_tools


@pytest.mark.parametrize("parameters", [
    {"rows": 1, "columns": 1}, {"rows": 2, "columns": 1, "number": "bf16"}, {"rows": 1, "columns": 2, "number": "bf16"},
    {"rows": 2, "columns": 2, "number": "bf16", "pipelined": True},
    *(pytest.param(each, marks=pytest.mark.slow) for each in (
        {"rows": 2, "columns": 2}, {"rows": 3, "columns": 2, "number": "bf16"},
        {"rows": 2, "columns": 3, "number": "bf16", "pipelined": True})),
], ids=str)  # fmt: skip
def test_random_folds_leave_the_simulators_sums_in_its_cycles(parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of("systolic", parameters), 60, seed=1)
    assert comparison.equal, comparison.difference
    assert comparison.values > 60


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")
@pytest.mark.parametrize("parameters", [
    {"rows": 4, "columns": 4}, {"rows": 4, "columns": 4, "number": "bf16", "pipelined": True},
], ids=str)  # fmt: skip
def test_ten_thousand_cycles_equal_the_simulator(parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of("systolic", parameters), 10_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 10_000


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_sums_that_leave_are_the_product_and_the_last_one_ends_it(pipelined: bool) -> None:
    """What the circuit is compared with: each sum once for every fold, the last in the last cycle of `execute`."""
    array = Systolic(rows=2, columns=3, dataflow="ws", pipelined=pipelined)
    a, b = np.arange(20.0).reshape(4, 5), np.arange(20.0).reshape(5, 4) - 7
    sums = list(weight_stationary_sums(array, a, b))
    product = np.zeros((4, 4))
    for leaving in sums:
        column = leaving.block[1].start + leaving.column
        if column < leaving.block[1].stop:
            product[leaving.position, column] += leaving.value
    assert (product == a @ b).all()
    assert sums[-1].cycle + 1 == array.execute(a, b).cycles


def is_caught(pipelined: bool = False) -> bool:
    return not check_equality(design_of("systolic", {"rows": 2, "columns": 2, "number": "bf16", "pipelined": pipelined}), 60).equal


def test_a_wire_of_a_cell_that_leads_to_the_wrong_register_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(systolic.SystolicCell):
        def elaborate(self, platform: object) -> Any:
            m = super().elaborate(platform)
            m.d.sync += self.input_out.eq(self.weight_in)  # the later assignment holds
            return m

    monkeypatch.setattr(systolic, "SystolicCell", Swapped)
    assert is_caught()


@pytest.mark.parametrize(("given", "says"), [
    ({"rows": 0}, "systolic: rows must be a positive whole number, got 0"),
    ({"pipelined": "maybe"}, "systolic: pipelined must be true or false, got 'maybe'"),
])  # fmt: skip
def test_parameters_that_cannot_be_built_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        design_of("systolic", given)
    assert str(caught.value) == says
    with pytest.raises(UnknownName, match="unknown number 'fp23' in systolic: did you mean 'fp32'"):
        design_of("systolic", {"number": "fp23"})
