"""The harness of coverage: it sees what it claims to see, and a case that crashes or hangs is one failed case."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from coverage_cases.case import FAMILIES, Case, Training, cases_of  # noqa: E402
from coverage_cases.examination import Record, examine, run_in_torch  # noqa: E402
from coverage_cases.report import line, page, rows, summary  # noqa: E402
from coverage_cases.snapshot import differences, snapshot  # noqa: E402
from coverage_cases.workers import Worker  # noqa: E402
from torch import nn  # noqa: E402

FAILING = "benchmarks.failing_cases"


@pytest.fixture
def failing() -> dict[str, Case]:
    return {case.name: case for case in cases_of(FAILING)}


@pytest.mark.slow
def test_a_crash_and_a_hang_fail_one_case_each(failing: dict[str, Case]) -> None:
    worker = Worker(time_limit_s=10)
    try:
        crashed = worker.examine(failing["crashing"], real=False, machines=())
        hung = worker.examine(failing["hanging"], real=False, machines=())
        sound = worker.examine(failing["linear"], real=False, machines=())
    finally:
        worker.stop()
    assert "exit code 7" in crashed.default_error
    assert "longer than 10 s" in hung.default_error
    assert not crashed.default
    assert not hung.default
    assert sound.default, sound.default_error


def test_a_sound_case_is_captured_counted_and_run(failing: dict[str, Case]) -> None:
    record = examine(failing["linear"], machines=("h200", "mcdla-b"))
    assert record.default
    assert record.real
    assert record.rebatchable
    assert record.flops == record.flops_real == record.counted == 2 * (2 * 3 * 4 * 2)  # forward and dW; the input needs no gradient
    assert record.parameters == record.model_parameters == 10
    assert record.machines == {"h200": "", "mcdla-b": ""}
    assert record.changed == []
    assert Record(**json.loads(json.dumps(asdict(record)))) == record


def test_a_case_that_is_not_built_or_does_not_train_says_so(failing: dict[str, Case]) -> None:
    assert "no such width" in examine(failing["unbuildable"]).broken
    record = examine(failing["untrainable"], machines=())
    assert record.broken.startswith("does not train in torch")
    assert not record.default
    assert record.real is False


class NeedsGpu(nn.Linear):
    """Has no kernel for values on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta:
            raise NotImplementedError("no kernel for this device")
        return super().forward(x)


def test_a_step_that_only_shapes_can_run_is_not_asked_for_values() -> None:
    case = Case("training", "gpu", lambda: Training(NeedsGpu(4, 2), torch.randn(3, 4), loss=lambda output: output.sum()))
    record = examine(case, machines=())
    assert record.default, record.default_error
    assert record.real is None
    assert record.broken == ""
    assert "on a CPU" in record.counter_error


def test_grouped_convolutions_are_counted_by_their_groups() -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(32, 2))
        return Training(model, torch.randn(2, 8, 4, 4), torch.tensor([0, 1]), loss=nn.functional.cross_entropy)

    record = examine(Case("training", "grouped", build), real=False, machines=())
    weight_gradient = 2 * (2 * 8 * 2 * 2) * (2 * 9)
    assert record.counted == record.flops
    assert record.overcounted == 3 * weight_gradient  # torch counts it with one group: four times as much


def _weight(training: Training) -> None:
    with torch.no_grad():
        training.model[0].weight[0, 0] += 1e-6


def _running_mean(training: Training) -> None:
    training.model[1].running_mean[0] = 3.0


def _moment(training: Training) -> None:
    assert training.optimizer is not None
    next(iter(training.optimizer.state.values()))["exp_avg"].add_(1.0)


def _replaced_parameter(training: Training) -> None:
    training.model[0].weight = nn.Parameter(training.model[0].weight.detach().clone())


CHANGES: dict[str, tuple[Callable[[Training], object], str]] = {
    "a weight": (_weight, "/state/0.weight"),
    "a buffer": (_running_mean, "/state/1.running_mean"),
    "an optimizer's moment": (_moment, "/optimizer/state"),
    "the parameter itself": (_replaced_parameter, "/identity/0.weight"),
    "a gradient": (lambda t: t.model[0].weight.grad.zero_(), "/grad/0.weight"),
    "a frozen weight": (lambda t: t.model[0].weight.requires_grad_(False), "/requires_grad/0.weight"),
    "an attribute": (lambda t: setattr(t.model[0], "calls", 2), "/attributes/0/calls"),
    "the mode": (lambda t: t.model.eval(), "/attributes//training"),
    "a configuration": (lambda t: t.model.config.clear(), "/attributes//config"),
    "a hook": (lambda t: t.model.register_forward_hook(print), "/attributes//_forward_hooks"),
    "an input": (lambda t: t.inputs.add_(1), "/inputs"),
    "torch's random state": (lambda t: torch.rand(1), "/random/0"),
    "Python's random state": (lambda t: random.random(), "/random/1"),
    "the environment": (lambda t: os.environ.update(COVERAGE_TEST="1"), "/environment/COVERAGE_TEST"),
    "the default type": (lambda t: torch.set_default_dtype(torch.float64), "/torch/default dtype"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.config = {"width": 4}  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters())
    training = Training(model, torch.randn(3, 4), torch.tensor([0, 1, 1]), loss=nn.functional.cross_entropy, optimizer=optimizer)
    run_in_torch(training)
    before = snapshot(training)
    assert list(differences(before, snapshot(training))) == []
    apply, path = CHANGES[change]
    monkeypatch.delenv("COVERAGE_TEST", raising=False)
    try:
        apply(training)
        assert any(found.startswith(path) for found in differences(before, snapshot(training)))
    finally:
        torch.set_default_dtype(torch.float32)
        os.environ.pop("COVERAGE_TEST", None)


def record(**fields: object) -> Record:
    made = {
        "family": "timm",
        "name": "a",
        "default": True,
        "real": True,
        "flops": 200,
        "counted": 200,
        "seconds": {"default": 1.0},
        **fields,
    }
    return Record(**made)  # type: ignore[arg-type]


def test_the_table_counts_by_family_and_over_all() -> None:
    records = [
        record(),
        record(name="b", default=False, default_error="needs values", flops=201),
        record(family="training", default=False, real=False, counted=None, machines={}),
        record(family="training", name="b", machines={"npu": "", "tpu": "too small"}, changed=["/random/0"], flops=400),
    ]
    heading, *cells = rows(records)
    first, second, everything = (dict(zip(heading, row, strict=True)) for row in cells)
    assert (first["by default"], first["only real=True"], first["not at all"]) == ("1", "1", "0")
    assert (first["FLOPs equal"], first["within 1 %"]) == ("1 of 2", "2 of 2")
    assert (second["by default"], second["not at all"], second["unchanged"], second["machine runs"]) == (
        "1",
        "1",
        "1 of 2",
        "1 of 2",
    )
    assert (everything["cases"], everything["with real=True"]) == ("4", "3 of 4")
    assert "4 cases in 2.0 minutes" in summary(records, 120)
    assert "needs values" in line(records[1])


def test_the_page_names_every_failure_and_every_difference() -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("the page states the versions of the extra coverage")
    broken = record(name="broken", default=False, real=False, default_error="a|b <c>")
    text = page([record(), broken, record(name="other", flops=300)], 60)
    assert "| timm: broken | no | a\\|b &lt;c> |" in text
    assert "| timm: other | 300 | 200 | 1.5000 | not explained |" in text
    assert "2 of 3 are captured by default" in text


def test_every_family_has_cases_with_names_of_their_own_and_imports_its_library_late() -> None:
    count = 0
    for family in FAMILIES:
        names = [case.name for case in cases_of(family)]
        assert len(set(names)) == len(names) > 0, family
        assert {case.family for case in cases_of(family)} == {family}
        count += len(names)
    assert count >= 250


def test_the_script_does_not_stand_in_for_the_package_of_its_name() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage", script)
    assert spec is not None
    assert spec.loader is not None
    before = list(sys.path)
    with pytest.raises(ImportError, match="script"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert sys.path == before


def test_the_page_of_the_manual_has_every_family_and_its_rows_add_up() -> None:
    text = (Path(__file__).parents[2] / "docs" / "coverage.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]
    families = {row[0]: [int(cell) for cell in row[1:5]] for row in table if row[0] in (*FAMILIES, "all") and row[1].isdigit()}
    assert tuple(families) == (*FAMILIES, "all")
    total = families.pop("all")
    assert total == [sum(column) for column in zip(*families.values(), strict=True)]
    cases, by_default, *others = total
    assert cases == by_default + sum(others) >= 250
    assert by_default >= 0.95 * cases
    assert f"{by_default} of {cases} are captured by default" in text
    assert "not explained" not in text
