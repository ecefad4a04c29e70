"""Explanations: bounds, the critical path, and the worth of more, on a machine whose law is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.report.marginal import marginal_gains, raised, resources
from trainyard.results.result import Result

Make = Callable[..., Result]

# relative change of time for a tenth more of each; rows are refused, the clock makes it slower
LAW = {"dram_bytes_per_s": 0.94, "scratchpad_bytes": 1.0, "array.columns": 0.97, "clock_hz": 1.02}


def with_rerun(result: Result) -> tuple[Result, list[Mapping[str, Any]]]:
    asked: list[Mapping[str, Any]] = []

    def rerun(changes: Mapping[str, Any]) -> Result:
        asked.append(changes)
        ((path, _),) = changes.items()
        if path == "array.rows":
            raise BadInput("rows must be a power of two")
        scaled = (result.columns.time_ps * LAW[path]).astype("int64")
        return replace(result, columns=replace(result.columns, time_ps=scaled))

    return replace(result, rerun=rerun), asked


def test_resources_are_amounts_and_nothing_else(result: Result) -> None:
    assert dict(resources(result.config)) == {
        "clock_hz": 1.05e9,
        "dram_bytes_per_s": 150e9,
        "scratchpad_bytes": 8 * 2**20,
        "array.rows": 128,
        "array.columns": 64,
    }


@pytest.mark.parametrize(("value", "more"), [(1, 2), (10, 11), (128, 141), (8 * 2**20, 9227469), (1.0, 1.1), (150e9, 165e9)])
def test_a_tenth_more(value: float, more: float) -> None:
    assert raised(value) == more
    assert type(raised(value)) is type(value)


def test_worths_are_right_and_sorted(result: Result) -> None:
    runnable, asked = with_rerun(result)
    found = marginal_gains(runnable)
    assert [gain.path for gain in found] == ["dram_bytes_per_s", "array.columns", "scratchpad_bytes", "clock_hz", "array.rows"]
    for gain in found[:-1]:
        assert gain.change == pytest.approx(LAW[gain.path] - 1, abs=1e-6)
    assert found[-1].change is None
    assert found[-1].error == "rows must be a power of two"
    assert {"scratchpad_bytes": 9227469} in asked
    assert {"array.columns": 71} in asked


def test_the_text_tells_the_worth_in_order(result: Result) -> None:
    text = with_rerun(result)[0].explain()
    told = [line.strip() for line in text.splitlines() if " -> " in line]
    assert told[0].startswith("dram_bytes_per_s 150 GB/s -> 165 GB/s (+10 %)")
    assert told[0].endswith("-6 %")
    assert told[3].endswith("+2 %  slower: the mapping policy is a heuristic")
    assert told[4].endswith("refused: rows must be a power of two")


def test_bounds_sum_to_the_step(result: Result) -> None:
    text = result.explain()
    told = text.splitlines()
    first = told.index("bound by (share of exposed time)") + 1
    shares = [line.split() for line in told[first : first + 3]]
    assert {share[0] for share in shares} == {"compute", "ring", "dram"}
    assert sum(float(share[-2]) for share in shares) == pytest.approx(100, abs=0.2)


def test_the_critical_path_is_the_timelines(result: Result) -> None:
    text = result.explain()
    assert result.timeline is not None
    path = result.timeline.critical_path()
    assert f"{len(path)} tasks, each of which began when the one before it ended" in text
    assert "compute on device 0" in text
    assert "synchronisation on ring" in text  # the last reduction holds the update back


def test_a_layer_is_explained_with_the_layers_below_it(result: Result) -> None:
    text = result.explain("encoder.layer3")
    cost = result.by_layer["encoder.layer3.conv"]
    assert text.splitlines()[0].endswith(": encoder.layer3")
    assert f"{cost.time_s / result.time_s * 100:.1f} % of the step" in text
    assert "2 of its 14 tasks are this layer's" in text
    assert "W read" in text
    assert "dW spill" in text
    assert "layer2" not in text


def test_what_is_not_known_is_said(result: Result) -> None:
    text = (result * 2).explain()
    assert "this result carries no timeline" in text
    assert "cannot be run again" in text


def test_an_unknown_layer_offers_the_nearest(result: Result) -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'encoder\.layer3\.conv'") as caught:
        result.explain("encoder.layer3.con")
    assert caught.value.nearest == "encoder.layer3.conv"
