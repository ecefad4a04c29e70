from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.sweep.pareto import best, front
from trainyard.sweep.records import Record

numbers = st.one_of(st.integers(0, 5).map(float), st.just(math.nan), st.just(math.inf), st.just(-math.inf))


@pytest.mark.oracle
@given(
    rows=st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=25),
    count=st.integers(1, 4),
    ways=st.lists(st.sampled_from(["min", "max"]), min_size=4, max_size=4),
)
def test_against_every_pair(rows: list[tuple[float, ...]], count: int, ways: list[str]) -> None:
    objectives = {f"m{i}": ways[i] for i in range(count)}
    named = [(str(n), {f"m{i}": row[i] for i in range(count)}) for n, row in enumerate(rows)]

    def cost(values: dict[str, float]) -> list[float]:
        return [values[name] if way == "min" else -values[name] for name, way in objectives.items()]

    def beats(a: list[float], b: list[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    whole = [(key, cost(values)) for key, values in named if not any(map(math.isnan, values.values()))]
    expected = [key for key, own in whole if not any(beats(other, own) for _, other in whole)]
    assert front(named, objectives) == expected


def test_failed_points_and_missing_numbers_are_left_out() -> None:
    done = Record(key="a", workload="w", machine="m", settings={}, metrics={"time_s": 2.0})
    failed = Record(key="b", workload="w", machine="m", settings={}, metrics={"time_s": 1.0}, error="no")
    other = Record(key="c", workload="w", machine="m", settings={}, metrics={"energy_j": 1.0})
    assert front([done, failed, other], {"time_s": "min"}) == ["a"]
    assert best([done, failed, other], {"time_s": "min", "energy_j": "max"}) == {"time_s": "a", "energy_j": "c"}
    with pytest.raises(BadInput, match="a front of what"):
        front([done], {})


def test_two_objectives_of_many_points_are_quick() -> None:
    rows = [(str(i), {"a": float(i), "b": float(-i)}) for i in range(20_000)]  # all on the front
    assert len(front(rows, {"a": "min", "b": "min"})) == 20_000
