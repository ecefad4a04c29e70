"""What changes are worth, alone and in pairs: against closed forms, against plain runs, and what is not run at all."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard import runs, sensitivity
from trainyard.errors import BadInput, UnknownName
from trainyard.machines import with_overrides
from trainyard.results.metrics import metric_of
from trainyard.sensitivity import Change, SensitivityStudy, parameters, run_study

STEP = ty.zoo.load("linear")
shares = st.floats(0.1, 10.0)


def product(factors: dict[str, float], extra: dict[tuple[str, str], float]) -> SensitivityStudy:
    """A measure that multiplies what each change does, and what pairs do beyond that."""

    def measure(_: str, made: Sequence[Change]) -> float:
        names = [change.name for change in made]
        both = math.prod(extra.get((a, b), extra.get((b, a), 1.0)) for a in names for b in names if a < b)
        return 5.0 * math.prod(factors[name] for name in names) * both

    changes = [Change(name=name, meaning="", value=0, alternative=1, payload=None) for name in factors]
    return SensitivityStudy(title="t", metric="m", changes=changes, measure=measure)


@given(st.lists(shares, min_size=2, max_size=5), st.floats(0.5, 2.0))
def test_interactions_are_found_and_only_where_they_are(each: list[float], both: float) -> None:
    factors = {f"f{number}": value for number, value in enumerate(each)}
    result = run_study(product(factors, {("f0", "f1"): both}), paired=len(each))
    assert [effect.after for effect in result] == pytest.approx([5.0 * factors[effect.name] for effect in result])
    sizes = [effect.size for effect in result]
    assert sizes == sorted(sizes, reverse=True)
    for pair in result.pairs:
        expected = both if {pair.first.name, pair.second.name} == {"f0", "f1"} else 1.0
        assert pair.interaction == pytest.approx(expected - 1.0, abs=1e-9)
        assert (1 + pair.change) == pytest.approx((1 + pair.first.change) * (1 + pair.second.change) * (1 + pair.interaction))


def test_pairs_are_of_different_fields_of_one_group() -> None:
    rows = [("a", "x"), ("a", "x"), ("b", "x"), ("a.inner", "x"), ("c", "y"), ("d", "y")]
    changes = [
        Change(name=name, meaning="", value=0, alternative=number, payload=number + 2.0, group=group)
        for number, (name, group) in enumerate(rows)
    ]
    found = run_study(
        SensitivityStudy(
            title="", metric="m", changes=changes, measure=lambda _, changes: math.prod(change.payload for change in changes)
        ),
        paired=9,
    )
    couples = {frozenset((pair.first.name, pair.second.name)) for pair in found.pairs}
    assert couples == {frozenset(two) for two in (("x: a", "x: b"), ("x: b", "x: a.inner"), ("y: c", "y: d"))}


def test_a_machine_s_worths_are_those_of_plain_runs() -> None:
    before = ty.run(STEP, "npu")
    result = ty.whatif(STEP, "npu", paired=3)
    assert {effect.before for effect in result} == {before.time_s}
    machine = ty.machine("npu")
    for effect in result:
        if not effect.error:
            assert effect.after == ty.run(STEP, with_overrides(machine, {effect.name: effect.alternative})).time_s
    for pair in result.pairs:
        both = {one.name: one.alternative for one in (pair.first, pair.second)}
        assert pair.after == ty.run(STEP, with_overrides(machine, both)).time_s
    assert len(result.pairs) == 3
    assert pickle.loads(pickle.dumps(result)) == result
    assert result[0] is result.effects[0]
    assert len(result[:2]) == 2


def test_every_field_is_an_assumption_a_parameter_or_not_a_number() -> None:
    def numbers(part: Any, prefix: str = "") -> set[str]:
        found = set()
        for one in fields(part):
            value = getattr(part, one.name)
            if is_dataclass(value):
                found |= numbers(value, f"{prefix}{one.name}.")
            elif isinstance(value, int | float) and value > 0 and one.init:
                found.add(prefix + one.name)
        return found

    for name in ("npu", "sigma", "tensordash", "mcdla-b", "direct"):
        machine = ty.machine(name)
        assumed = {one.path for one in ty.ir.assumptions_of(machine)}
        changed = {change.name for change in parameters(machine)}
        assert numbers(machine) <= assumed | changed
        assert not assumed & changed


@given(st.integers(1, 10_000), st.floats(1.01, 16.0))
def test_whole_numbers_stay_whole_positive_and_differ(value: int, factor: float) -> None:
    array = ty.arrays.Systolic(rows=value, columns=4)
    others = [change.alternative for change in parameters(array, factor) if change.name == "rows"]
    assert all(isinstance(other, int) and other >= 1 and other != value for other in others)
    assert any(other > value for other in others)


def test_what_cannot_change_the_metric_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step = STEP
    result = ty.run(step, "sigma")
    skipped = {one.path for one in result.assumptions if one.open and not one.changes("time_s")}
    assert skipped
    asked: list[str] = []
    again = runs.Rerun.__call__

    def counted(self: runs.Rerun, changes: Any) -> Any:
        asked.extend(changes)
        return again(self, changes)

    monkeypatch.setattr(runs.Rerun, "__call__", counted)
    effects = ty.whatif(step, "sigma", kinds=("assumption",), paired=0)
    assert not set(asked) & skipped
    assert {effect.name for effect in effects} == {one.path for one in result.assumptions if one.open}
    assert {effect.change for effect in effects if effect.name in skipped} == {0.0}
    asked.clear()
    ty.whatif(step, "sigma", metric="energy_j", kinds=("assumption",), paired=0)
    assert set(asked) & skipped


def test_what_a_machine_refuses_is_reported_and_never_paired() -> None:
    result = ty.whatif(STEP, "npu", paired=50)
    refused = {effect.name for effect in result if effect.error}
    assert refused
    assert all(effect.error and effect.change == 0 for effect in result if effect.error)
    assert not [pair for pair in result.pairs if pair.first.error or pair.second.error]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"metric": "speed"}, UnknownName, "unknown metric 'speed'"),
        ({"metric": "traffic_bytes.drum"}, UnknownName, "did you mean 'dram'"),
        ({"kinds": ("guess",)}, BadInput, "neither assumption nor parameter"),
        ({"factor": 1.0}, BadInput, "above 1"),
        ({"factor": float("nan")}, BadInput, "above 1"),
        ({"factor": float("inf")}, BadInput, "above 1"),
    ],
)
def test_bad_input_is_reported(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ty.whatif(STEP, "npu", **options)


def test_metrics_by_key() -> None:
    result = ty.run(STEP, "npu")
    assert metric_of(result, "traffic_bytes.dram") == result.traffic_bytes["dram"]
    effects = ty.whatif(STEP, "npu", metric="traffic_bytes.dram", kinds=("parameter",), paired=0)
    assert effects[0].before == result.traffic_bytes["dram"]


def test_the_tornado_shows_the_widest_swing_first_and_says_it_in_words() -> None:
    result = ty.whatif(STEP, "npu", paired=0)
    figure = result.figure()
    moving = list(dict.fromkeys(effect.name for effect in result if effect.size and not effect.error))
    assert list(figure.data[0].y) == moving[: len(figure.data[0].y)]
    assert moving[0] in figure.layout.meta["description"]
    lower, higher = (list(trace.x) for trace in figure.data)
    assert min(lower) == pytest.approx(100 * min(effect.change for effect in result if not effect.error))
    assert max(higher) == pytest.approx(100 * max(effect.change for effect in result if not effect.error))
    assert sensitivity.SensitivityResult("t", "m", ()).figure().layout.meta["description"].startswith("nothing")
