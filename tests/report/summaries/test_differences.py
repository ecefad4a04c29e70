"""What changed between two results: layers sum to the step's change, equal results differ in nothing, files and results agree."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import trainyard as ty
from trainyard import cli
from trainyard.errors import BadInput


@pytest.fixture(scope="module")
def results() -> tuple[ty.Result, ty.Result]:
    return ty.run("alexnet", on="npu"), ty.run("alexnet", on="npu(dram=300 GB/s)")


@pytest.fixture
def files(results: tuple[ty.Result, ty.Result], tmp_path: Path) -> list[str]:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, result in zip(paths, results, strict=True):
        path.write_text(result.to_json())
    return list(map(str, paths))


def test_layers_and_phases_sum_to_the_change_of_the_step(results: tuple[ty.Result, ty.Result]) -> None:
    before, after = results
    changed = ty.diff(before, after)
    for groups in (changed.layers, changed.phases):
        assert math.fsum(group.time_s for group in groups) == pytest.approx(after.time_s - before.time_s)
        assert math.fsum(group.share for group in groups) == pytest.approx(after.time_s / before.time_s - 1)
        assert math.fsum(group.energy_j for group in groups) == pytest.approx(after.energy_j - before.energy_j, abs=1e-9)
    sizes = [abs(group.time_s) for group in changed.layers]
    assert sizes == sorted(sizes, reverse=True)


def test_only_what_differs_in_the_machine_is_listed(results: tuple[ty.Result, ty.Result]) -> None:
    (field,) = ty.diff(*results).fields
    assert (field.path, field.before, field.after) == ("dram_bytes_per_s", 150e9, 300e9)
    numbers = {number.name: number for number in ty.diff(*results).numbers}
    assert numbers["time_s"].change == pytest.approx(results[1].time_s / results[0].time_s - 1)
    assert numbers["macs"].change == 0


def test_turned_round_every_change_is(results: tuple[ty.Result, ty.Result]) -> None:
    there, back = ty.diff(*results), ty.diff(*reversed(results))
    assert [-group.time_s for group in there.layers] == pytest.approx([group.time_s for group in back.layers])


def test_a_result_and_itself_differ_in_nothing(results: tuple[ty.Result, ty.Result], capsys: pytest.CaptureFixture[str]) -> None:
    same = ty.diff(results[0], results[0])
    assert same.same
    same.table()
    assert "nothing differs" in capsys.readouterr().out


def test_files_objects_and_results_give_the_same(results: tuple[ty.Result, ty.Result], files: list[str]) -> None:
    of_files = ty.diff(*files)
    assert of_files == ty.diff(*results)
    assert of_files == ty.diff(*(json.loads(Path(file).read_text()) for file in files))


def test_a_layer_that_one_of_them_does_not_have_counts_as_zero() -> None:
    changed = ty.diff(ty.run("linear", on="npu"), ty.run("alexnet", on="npu"))
    new = next(group for group in changed.layers if group.name == "features.0")
    assert new.time_before_s == 0
    assert new.time_after_s > 0


def test_the_command_prints_what_changed_and_json_alone(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--top", "3"]) == 0
    text = capsys.readouterr().out
    for part in ("before: alexnet, batch 8, on npu", "time_s", "classifier.1", "dram_bytes_per_s", " more "):
        assert part in text
    assert cli.main(["diff", *files, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ty.diff(*files).as_dict()))


def test_a_comparison_of_two_needs_no_second_file(
    results: tuple[ty.Result, ty.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "both.json"
    both.write_text(json.dumps([json.loads(result.to_json()) for result in results]))
    assert cli.main(["diff", str(both)]) == 0
    assert "dram_bytes_per_s" in capsys.readouterr().out
    with pytest.raises(BadInput, match="has 2 results"):
        ty.diff(str(both), results[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("3", "not the JSON of a result"),
        ("{}", "no workload"),
        ('{"workload":"w","machine":"m","batch":1,"time_s":1,"by_layer":[1],"by_phase":{"a":1}}', "damaged"),
    ],
)
def test_what_is_no_result_is_refused_in_words(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(text)
    assert cli.main(["diff", files[0], str(broken)]) == 2
    assert said in capsys.readouterr().err


def test_one_result_alone_is_not_enough(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", files[0]]) == 2
    assert "diff takes two results" in capsys.readouterr().err


def test_a_notebook_shows_the_tables(results: tuple[ty.Result, ty.Result]) -> None:
    shown = ty.diff(*results)._repr_html_()
    assert shown.count("<table>") == 3
    assert len(ty.diff(*results).to_frame()) == len(results[0].by_layer)
