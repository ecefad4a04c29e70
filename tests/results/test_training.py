"""Time to train: the steps of all epochs at the cost of one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import trainyard as ty
from trainyard import cli
from trainyard.errors import BadInput


@pytest.fixture(scope="module")
def result() -> ty.Result:
    return ty.run("linear", on="npu", batch=8)


def test_every_epoch_ends_with_a_whole_step(result: ty.Result) -> None:
    for samples, steps in ((8, 1), (9, 2), (80, 10), (1, 1)):
        cost = result.training(samples=samples, epochs=3)
        assert cost.steps == 3 * steps
        assert cost.time_s == pytest.approx(3 * steps * result.time_s)
        assert cost.energy_j == pytest.approx(3 * steps * result.energy_j)


def test_a_system_of_many_workers_takes_all_their_samples_in_a_step() -> None:
    machine = ty.run("linear", on="direct")
    per_step = machine.samples / machine.steps
    assert per_step > machine.batch
    assert machine.training(samples=round(10 * per_step)).steps == 10


def test_the_range_of_the_step_is_that_of_the_run(result: ty.Result) -> None:
    ranged = replace(result, range_s=(1.0, 2.0))
    assert ranged.training(samples=16).time_range_s == (2.0, 4.0)
    assert result.training(samples=16).time_range_s is None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.5, "500 ms"), (90.0, "90 s"), (600.0, "10 min"), (7200.0, "2 h"), (864000.0, "10 days")]
)
def test_durations_are_in_the_unit_that_suits_them(result: ty.Result, seconds: float, shown: str) -> None:
    assert replace(result.training(8), time_s=seconds).duration == shown


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"samples": 8, "epochs": -1}, {"samples": 1.5}])
def test_counts_must_be_positive_and_whole(result: ty.Result, wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="must be a positive whole number"):
        result.training(**wrong)


def test_the_commands_print_it_and_json_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["linear", "--on", "npu", "--batch", "8", "--samples", "100", "--epochs", "2"]
    assert cli.main(["run", *words, "--no-range"]) == 0
    assert "time to train on npu: 2 epochs of 100 samples: 26 steps" in capsys.readouterr().out
    assert cli.main(["compare", *words, "--json", "-"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["training"] == ty.run("linear", on="npu", batch=8).training(100, 2).as_dict()
    assert cli.main(["run", "linear", "--on", "npu", "--epochs", "2"]) == 2
    assert "of how many samples?" in capsys.readouterr().err
