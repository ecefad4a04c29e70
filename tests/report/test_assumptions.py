"""Which assumptions a range spans, which are shown, and whose machine a table speaks of."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.ir.assumptions import trials
from trainyard.report import assumptions


@pytest.fixture(scope="module")
def resnet() -> ty.Result:
    return ty.run("resnet18", "npu", batch=1).ranged()


def test_the_range_is_that_of_its_spans(resnet: ty.Result) -> None:
    assert set(resnet.range_by) == {path for path, _ in trials(resnet.assumptions, "time_s")}
    assert resnet.range_s == (min(low for low, _ in resnet.range_by.values()), max(high for _, high in resnet.range_by.values()))
    assert all(low <= resnet.time_s <= high for low, high in resnet.range_by.values())
    path = max(resnet.range_by, key=lambda path: resnet.range_by[path][1])
    (alternative,) = (other for name, other in trials(resnet.assumptions, "time_s") if name == path)
    assert ty.run("resnet18", "npu", batch=1, **{path: alternative}).time_s == resnet.range_by[path][1]
    assert resnet.as_dict()["time_range_by"][path] == list(resnet.range_by[path])
    assert (resnet + resnet).range_by == {}


def test_the_sentence_names_what_the_range_spans_and_what_it_leaves(resnet: ty.Result) -> None:
    text = assumptions.range_text(resnet)
    assert text.startswith("the range is over the alternatives of im2col (")
    assert "fusion (" in text
    assert "scope is a choice and stays as set" in text
    assert "scope" not in resnet.range_by
    assert assumptions.range_text(ty.run("linear", "npu")) == ""  # no range was asked for
    assert assumptions.range_text(ty.run("linear", "npu").ranged()).startswith("no range: 2 assumptions move the time by less")


def test_assumptions_that_matter_come_first_and_the_others_are_counted(resnet: ty.Result) -> None:
    shown, others = assumptions.that_matter(resnet)
    assert [assumption.path for assumption in shown][:2] == ["im2col", "fusion"]
    assert {"scope", "technology_nm", "dram_kind"} <= {assumption.path for assumption in shown}
    used = [assumption for assumption in resnet.assumptions if not assumption.unused]
    assert f"{len(used) - len(shown)} that move the time by less than 0.1 %" in others
    many = replace(resnet, range_s=None, range_by={}, assumptions=resnet.assumptions * 4)
    assert len(assumptions.that_matter(many)[0]) == assumptions.MOST_SHOWN


def test_a_table_says_whose_machine_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    ty.run("linear", "tpu").table(ranged=False)
    assert "SIGMA's baseline" in capsys.readouterr().out.splitlines()[1]
    ty.compare("linear", on=["tpu(dram=75 GB/s)", "npu"]).table()
    out = " ".join(capsys.readouterr().out.split())
    assert "tpu(dram=75 GB/s): 128x128 weight-stationary systolic array: SIGMA's baseline; changed here;" in out
    assert "npu: 128x128 systolic array, 8 MiB, 150 GB/s: IGO's large NPU;" in out
    assert ty.run("linear", ty.machine("tpu")).about == "128x128 weight-stationary systolic array: SIGMA's baseline"
    assert ty.run("linear", ty.machine("tpu(dram=75 GB/s)")).about == ""
