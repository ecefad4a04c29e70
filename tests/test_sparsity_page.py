"""docs/sparsity.md and examples/sparse_training.py: the page's blocks run one after the other, its commands as they are typed."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from trainyard import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "sparsity.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```\n(trainyard .*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
MINE = """
def build():
    return step


def train():
    return train_step, model
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """The page's Python run as one program, in an empty folder: the folder, what was printed, what it left."""
    folder, names, printed = tmp_path_factory.mktemp("page"), dict[str, Any](), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for block in BLOCKS:
            exec(block, names)
    return folder, printed.getvalue(), names


def test_the_blocks_of_the_page_run_as_one_program(read: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, names = read
    assert (folder / "mine.safetensors").exists()
    assert "tensordash" in (folder / "walk.html").read_text().lower()
    assert names["recipe"].density == pytest.approx(0.1, abs=1e-3)
    assert names["recipe"].epochs >= 2
    assert "64 steps" in printed
    assert "cycle 1:" in printed


def test_the_array_is_faster_with_the_zeros_of_the_page(read: tuple[Path, str, dict[str, Any]]) -> None:
    _, printed, names = read
    speedups = [(float(array), float(step)) for array, step in re.findall(r"array (\S+) x, step (\S+) x", printed)]
    assert len(speedups) == 3
    assert all(1.2 < array <= 4 and 1 <= step < array for array, step in speedups)
    dense, sparse = names["dense"], names["sparse"]
    assert sparse.array_cycles < dense.array_cycles < dense.cycles


def test_whole_rows_and_anywhere_are_reported_apart(read: tuple[Path, str, dict[str, Any]]) -> None:
    _, printed, _ = read
    cycles = {name: int(count) for name, count in re.findall(r"^(none|channel|row) (\d+)$", printed, re.MULTILINE)}
    assert len(set(cycles.values())) == 3


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first = "\n".join(BLOCKS[:2])
    build = next(line for line in "\n".join(BLOCKS).splitlines() if line.startswith("step = ty.capture("))
    (tmp_path / "mine.py").write_text(f"{first}\n{build}\n{MINE}")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) == 3
    recorded = ""
    for command in COMMANDS:
        program, *words = shlex.split(command.replace("--steps-per-epoch 100", "--steps-per-epoch 4").replace("--at 42", recorded))
        assert program == "trainyard"
        assert cli.main(words) == 0, f"{command}: {capsys.readouterr().err}"
        shown = capsys.readouterr().out
        if steps := re.search(r"at each of steps \d+, (\d+),", shown):
            recorded = f"--at {steps[1]}"
    assert "array busy" in shown
    assert recorded


def test_the_example_tells_the_array_from_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "sparse_training.py"))
    names = example["main"].__globals__
    names["BATCHES"], names["RECORDED"] = 2, (0, 1)
    example["main"]()
    told = capsys.readouterr().out
    found = [tuple(map(float, pair)) for pair in re.findall(r"cycles \((\S+) x\), step .*?\((\S+) x\)", told)]
    assert len(found) == 3
    assert all(array > 1.2 for array, _ in found)
    assert found[-1][1] > found[-2][1] >= 1
