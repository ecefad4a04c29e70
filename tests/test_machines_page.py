"""docs/machines.md and examples/: every command and every file of theirs runs."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from trainyard import cli
from trainyard.cli import request
from trainyard.machines import machine, preset

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "machines.md").read_text()
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the repository's, with the examples in it and nothing else."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("ranges", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_command_of_the_page_runs(
    ranges: bool, yard: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the quick tier without the range of a headline, which takes a dozen runs more; as printed in the slow one."""
    assert len(COMMANDS) > 12
    if not ranges:  # of those that are compared
        monkeypatch.setattr(request, "with_range", lambda result, on_progress: result)
    for command in COMMANDS:
        program, *words = shlex.split(command)
        assert program == "trainyard"
        words, target = (words[:-2], words[-1]) if ">" in words else (words, None)
        if not ranges and words[0] == "run" and "--no-range" not in words:
            words.append("--no-range")
        assert cli.main(words) == 0, f"{command}: {capsys.readouterr().err}"
        shown = capsys.readouterr().out
        assert shown
        if target is not None:
            (yard / target).write_text(shown)


def test_the_python_of_the_page_runs(yard: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, {})


def test_the_example_machine_changes_what_it_names() -> None:
    edge, npu = machine(ROOT / "examples" / "edge.toml"), preset("npu")
    assert (edge.array.rows, edge.array.columns, edge.array.dataflow) == (64, 64, "os")
    assert (edge.clock_hz, edge.scratchpad_bytes, edge.dram_bytes_per_s) == (800e6, 2 * 2**20, 25.6e9)
    assert edge.vector_lanes == npu.vector_lanes


def test_the_custom_loop_runs(yard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("examples/custom_loop.py", run_name="__main__")
    shown = capsys.readouterr().out
    assert "decoder.2" in shown
    assert "batch 1024" in shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links {link}"
