"""docs/mapping.md: every command and every Python block of the page runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from trainyard import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "mapping.md").read_text()
COMMANDS = [
    line.strip() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line.strip()
]


def test_every_command_and_python_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) > 6
    for command in COMMANDS:
        program, *words = shlex.split(command)
        assert program == "trainyard"
        assert cli.main(words) == 0, f"{command}: {capsys.readouterr().err}"
        shown = capsys.readouterr()
        assert shown.out or shown.err
    assert list((tmp_path / "mappings").glob("*.yaml"))
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, {})
