from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, TrainyardError
from trainyard.sweep.axes import Axis, Range, range_of, values_of


@given(low=st.integers(1, 10**6), span=st.integers(1, 10**6), steps=st.integers(2, 40), log=st.booleans(), whole=st.booleans())
def test_a_range_keeps_its_ends_rises_and_has_its_steps(low: int, span: int, steps: int, log: bool, whole: bool) -> None:
    given_range = {"from": low, "to": low + span, "steps": steps, "scale": "log" if log else "linear"}
    values = values_of(given_range, None, whole, "axes.x")
    assert values[0] == low
    assert values[-1] == low + span
    assert all(a < b for a, b in pairwise(values))
    if whole:
        assert all(isinstance(value, int) for value in values)
        assert len(values) <= steps
    else:
        assert len(values) == steps
        gaps = [math.log(b / a) if log else b - a for a, b in pairwise(values)]
        assert max(gaps) == pytest.approx(min(gaps), rel=1e-3, abs=1e-9)


@given(low=st.integers(-50, 50), count=st.integers(1, 30), tenths=st.integers(1, 9))
def test_a_step_is_exact_where_floats_are_not(low: int, count: int, tenths: int) -> None:
    step, high = Fraction(tenths, 10), low + Fraction(tenths, 10) * count
    values = values_of({"from": low, "to": float(high), "step": float(step)}, None, False, "axes.x")
    assert values == tuple(float(low + step * index) for index in range(count + 1))  # 0.3, not 0.30000000000000004


def test_a_logarithmic_step_is_a_factor_and_a_unit_is_read() -> None:
    given_range = {"from": "1 MiB", "to": "8 MiB", "step": 2, "scale": "log"}
    assert values_of(given_range, "B", True, "axes.scratchpad") == (1 << 20, 1 << 21, 1 << 22, 1 << 23)


def test_a_range_without_steps_is_for_a_search() -> None:
    assert values_of({"from": 1, "to": 8}, None, False, "axes.x") == ()
    axis = Axis(name="x", path="x", range=Range(low=1, high=8, integer=True), followers=(Axis(name="y", path="y"),))
    assert axis.of(2.7) == {"x": 3, "y": 3}
    with pytest.raises(BadInput, match="lies outside 1 to 8"):
        axis.of(9)


@pytest.mark.parametrize(
    ("given_value", "said"),
    [
        ([], "axes.x: an axis without values"),
        ([1, 2, 1], "axes.x: 1 is given twice"),
        (3, "expected a list, or a range such as"),
        ({"from": 1}, "a range needs 'to'"),
        ({"from": 1, "to": 4, "stpes": 3}, "did you mean 'steps'"),
        ({"from": 4, "to": 1, "steps": 3}, "from = 4 must be below to = 1"),
        ({"from": 0, "to": 1, "steps": 3, "scale": "log"}, "starts above 0"),
        ({"from": 1, "to": 2, "steps": 1}, "from 2 to"),
        ({"from": 1, "to": 2, "steps": True}, "from 2 to"),
        ({"from": 1, "to": 2, "steps": 2, "step": 1}, "not both"),
        ({"from": 1, "to": 2, "step": 0}, "must be above 0"),
        ({"from": 1, "to": 2, "step": 1, "scale": "log"}, "must be above 1"),
        ({"from": 1, "to": 2, "step": 1e-9}, "more than 1000000 values"),
        ({"from": 1, "to": 2, "steps": 2, "scale": "logg"}, "did you mean 'log'"),
        ({"from": "1 GB/s", "to": 2, "steps": 2}, "axes.x.from: '1 GB/s' is not a quantity in plain numbers"),
        ({"from": math.nan, "to": 2, "steps": 2}, "not a finite number"),
    ],
)
def test_what_cannot_be_meant(given_value: Any, said: str) -> None:
    with pytest.raises(TrainyardError) as error:
        values_of(given_value, None, False, "axes.x")
    assert said in str(error.value)


def test_whole_numbers_stay_whole() -> None:
    with pytest.raises(BadInput, match="whole numbers are needed"):
        range_of({"from": 1.5, "to": 4}, None, True, "axes.rows")
    assert values_of([1, True, "a"], None, False, "axes.x") == (1, True, "a")  # 1 and true are two values
