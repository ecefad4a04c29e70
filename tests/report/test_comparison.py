"""A comparison in a notebook, as a frame, as JSON and as plots."""

from __future__ import annotations

import inspect
import json

import pytest

import trainyard as ty
from trainyard.errors import UnknownKeyword, UnknownName
from trainyard.report import lines, plots
from trainyard.runs import KEYWORDS, Comparison


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return ty.compare("linear", on="npu,h200", batch=16)


def test_machines_that_compute_in_another_precision_are_warned_of() -> None:
    warnings = lines.differences(ty.compare("linear", on="npu,tpu-v3,mcdla-b(device=tensordash)", batch=16))
    assert "machines differ in precision: that of the step (npu) vs bf16 (tpu-v3) vs fp16 (mcdla-b(device=tensordash))" in warnings


def test_a_frame_has_a_line_for_each_machine_and_nothing_where_one_states_nothing(comparison: Comparison) -> None:
    frame = comparison.to_frame()
    assert list(frame["machine"]) == ["npu", "h200"]
    assert list(frame["time_s"]) == [result.time_s for result in comparison]
    assert frame["traffic_bytes.dram"][0] == comparison[0].traffic_bytes["dram"]
    assert frame["array_cycles"].isna().tolist() == [False, True]


def test_json_is_what_the_command_prints(comparison: Comparison) -> None:
    assert [entry["machine"] for entry in json.loads(comparison.to_json())] == ["npu", "h200"]
    assert json.loads(comparison.to_json())[0] == json.loads(comparison[0].to_json())


def test_a_notebook_shows_the_columns_of_the_table(comparison: Comparison) -> None:
    shown = comparison._repr_html_()
    assert shown.count("<tr>") == 3
    for text in ("speedup", "npu", "h200", "warning: machines differ in peak MACs"):
        assert text in shown


@pytest.mark.parametrize("which", plots.OF_MACHINES)
def test_every_plot_of_a_comparison_is_a_figure(comparison: Comparison, which: str) -> None:
    assert comparison.plot(which).layout.title.text


@pytest.mark.parametrize("which", plots.BY_NAME)
def test_every_plot_of_a_result_is_a_figure(comparison: Comparison, which: str) -> None:
    assert comparison[0].plot(which).layout.title.text


def test_every_plot_has_a_short_name() -> None:
    assert set(plots.BY_NAME.values()) == set(plots.ALL)


def test_an_unknown_plot_names_its_neighbour(comparison: Comparison) -> None:
    with pytest.raises(UnknownName, match="did you mean 'energy'"):
        comparison.plot("enrgy")
    with pytest.raises(UnknownName, match="did you mean 'roofline'"):
        comparison[0].plot("rooflne")


def test_a_wrong_keyword_names_its_neighbour() -> None:
    with pytest.raises(UnknownKeyword, match="did you mean 'batch'"):
        ty.run("linear", "npu", batchsize=4)
    with pytest.raises(UnknownKeyword, match="did you mean 'masks'"):
        ty.compare("linear", "npu,tpu", mask="x")
    with pytest.raises(UnknownName, match=r"did you mean 'array\.rows'"):
        ty.run("linear", "npu", rows=4)
    with pytest.raises(TypeError, match="unknown keyword of Systolic 'row': did you mean 'rows'"):
        ty.arrays.Systolic(row=8, columns=8)
    with pytest.raises(UnknownKeyword, match="did you mean 'metric'"):
        ty.whatif("linear", "npu", metrc="time_s")
    with pytest.raises(UnknownKeyword, match="did you mean 'batch'"):
        ty.plan_memory("linear", "npu", batc=4)
    with pytest.raises(UnknownKeyword, match="unknown keyword of sweep 'worker': did you mean 'workers'"):
        ty.sweep("study.toml", worker=2)
    with pytest.raises(AttributeError, match="did you mean 'Systolic'"):
        ty.arrays.Systolc  # noqa: B018


@pytest.mark.parametrize("function", [ty.run, ty.compare])
def test_the_arguments_are_all_named_and_run_says_what_each_is(function: object) -> None:
    assert set(inspect.signature(function).parameters) == {*KEYWORDS, "overrides"}  # type: ignore[arg-type]
    for name in (*KEYWORDS, "overrides"):
        assert f"- `{name}`:" in (ty.run.__doc__ or "")
