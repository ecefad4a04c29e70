"""The README: its Python runs, its table of headlines is the ledger's, its commands exist."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "examples" / "quickstart.py"
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_second_block_is_the_quickstart() -> None:
    assert SECOND.strip() == QUICKSTART.read_text().strip()
    assert QUICKSTART.read_text().count("\n") < 40


def test_the_first_block_is_five_lines_and_runs_without_torch(tmp_path: Path) -> None:
    assert len([line for line in FIRST.splitlines() if line]) == 5
    program = f"import sys\nsys.modules['torch'] = None\n{FIRST}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "next 10 %" in done.stdout


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(QUICKSTART), run_name="__main__")
    shown = capsys.readouterr().out
    assert "npu" in shown
    assert "next 10 %" in shown


def test_the_headlines_are_those_of_the_ledger() -> None:
    ledger: dict[str, tuple[str, str, str]] = {}
    head: list[str] = []
    for line in (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if {"paper", "ours", "verdict"} <= set(cells):
            head = cells
        elif len(cells) == len(head) and "." in cells[1]:
            row = dict(zip(head, cells, strict=True))
            ledger[cells[1]] = row["paper"], row["ours"], row["verdict"]
    rows = re.findall(r"^\| [^|]*\| [^|]* \| `([\w.]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", README, re.MULTILINE)
    assert {name: tuple(cells) for name, *cells in rows} == {name: ledger[name] for name, *_ in rows}


def test_the_headlines_are_those_that_the_papers_declare() -> None:
    from trainyard.papers import bench

    listed = re.findall(r"^\| ([^|]*) ?\| ([^|]*) \| `([\w.]+)` \|", README, re.MULTILINE)
    declared = {paper: bench.headline(paper) for paper in bench.PAPERS}
    names = [(f"[{one.system}](docs/{paper}.md)", one.titles) for paper, one in declared.items() if one is not None]
    assert len(names) == len(bench.PAPERS)
    assert [(name.strip(), title, claim) for name, title, claim in listed] == [
        (name if place == 0 else "", title, claim) for name, titles in names for place, (claim, title) in enumerate(titles.items())
    ]


def test_every_link_and_command_of_the_readme_exists() -> None:
    from typer.main import get_command

    from trainyard.cli import app

    for target in re.findall(r"\]\(([\w./-]+?)(?:#[\w-]+)?\)", README):
        assert (ROOT / target).exists(), target
    (shell,) = re.findall(r"## Commands\n.*?```sh\n(.*?)```", README, re.DOTALL)
    commands = get_command(app).commands  # type: ignore[attr-defined]  # a group of commands
    assert set(re.findall(r"(?:^|&& )trainyard (\w+)", shell, re.MULTILINE)) <= set(commands)
