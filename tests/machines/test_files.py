from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.machines import load_toml, machine, names, preset, save_toml, with_overrides


@pytest.mark.parametrize("name", names())
def test_saved_machines_load_again(name: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    save_toml(preset(name), file)
    assert load_toml(file) == preset(name)
    assert machine(str(file)) == preset(name)
    assert machine(file) == preset(name)


def test_a_file_with_overrides(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "npu"\ndram = "75 GB/s"\n[array]\nrows = 64\n')
    mine = with_overrides(preset("npu"), {"dram": "75 GB/s", "array.rows": 64})
    assert load_toml(file) == mine
    assert machine(f"{file}(clock=2 GHz)") == with_overrides(mine, {"clock": "2 GHz"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "npu"\nclock = "1 GHz"\nclock = "2 GHz"\n', ", line 3: 'clock' is given twice"),
        ('base = "npu"\n[array]\nrows = 4\n[array]\nrows = 5\n', ", line 4: '[array]' is given twice"),
        ('base = "npu"\nclock = \n', ", line 2, column 9: "),
        ('base = "npu"\nclok = "1 GHz"\n', "did you mean 'clock'"),
        ('base = "npu"\n[array]\nrows = "many"\n', ": array.rows: "),
        ('clock = "1 GHz"\n', ": no type given"),
    ],
)
def test_faults_are_one_line_with_the_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "faulty.toml"
    file.write_text(text)
    with pytest.raises((BadInput, UnknownName)) as caught:
        load_toml(file)
    assert says in str(caught.value)
    assert "faulty.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file() -> None:
    with pytest.raises(BadInput, match=r"cannot read machine file .*nowhere\.toml"):
        machine("nowhere.toml")


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write"):
        save_toml(preset("npu"), tmp_path / "no" / "such" / "folder.toml")
    assert list(tmp_path.iterdir()) == []


def test_a_file_starts_from_another_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a, b (c)").mkdir()
    (tmp_path / "a, b (c)" / "mine.toml").write_text('base = "common.toml"\ndram = "75 GB/s"\n')
    (tmp_path / "a, b (c)" / "common.toml").write_text('base = "npu"\nclock = "2 GHz"\n')
    assert load_toml(tmp_path / "a, b (c)" / "mine.toml") == with_overrides(preset("npu"), {"clock": "2 GHz", "dram": "75 GB/s"})


def test_a_base_inside_lends_its_part(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "npu"\n[array]\nbase = "npu-small"\ndataflow = "os"\n')
    assert load_toml(file).array == with_overrides(preset("npu-small").array, {"dataflow": "os"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "mine.toml"\n', "starts from itself (mine.toml -> mine.toml)"),
        ('base = "other.toml"\n', "starts from itself (mine.toml -> other.toml -> mine.toml)"),
        ('base = "npo"\n', "mine.toml, line 1: base: unknown machine 'npo': did you mean 'npu'"),
        ('base = "none.toml"\n', "cannot read machine file"),
        ('base = "npu"\n[array]\nbase = "v100"\n', "has no array to lend"),
        ('base = "npu"\narray = "replicas"\n', "array: expected an array, 'replicas' is a system"),
        ('base = "npu"\ntiling = [64, 64]\n', "a list of 3"),
    ],
)
def test_a_base_that_leads_nowhere(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "other.toml").write_text('base = "mine.toml"\n')
    with pytest.raises((BadInput, UnknownName)) as caught:
        load_toml(tmp_path / "mine.toml")
    assert says in str(caught.value)
    assert "mine.toml" in str(caught.value)
