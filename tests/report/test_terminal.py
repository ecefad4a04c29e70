"""Names that anyone may have written never steer a terminal: tables, messages, errors, progress."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.cli import main
from trainyard.report import terminal
from trainyard.report.terminal import UNSAFE, new_console, one_line, visible

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\r\x08\x7f\nenergy 0 J"
"""A new title, a cleared screen, a colour, a turned direction, a line of its own."""
SOURCE = Path(ty.__file__).parent
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_every_control_character_has_a_picture_and_other_text_is_left_alone() -> None:
    everything = "".join(map(chr, range(0x3000)))
    assert not UNSAFE.search(visible(everything))
    assert visible("ordinary café µ 日本 ≤ \n") == "ordinary café µ 日本 ≤ \n"
    assert "\n" not in one_line(HOSTILE)


def test_a_console_prints_no_control_character_of_a_text_a_cell_or_a_heading() -> None:
    from rich.table import Table
    from rich.text import Text

    stream = io.StringIO()
    printed = new_console(file=stream, force_terminal=True, width=100)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, "bold red"))
    printed.print(table)
    printed.print(Text(HOSTILE))
    printed.print(HOSTILE, markup=False)
    own_colours = re.compile(r"\x1b\[[0-9;]*m")
    assert own_colours.search(stream.getvalue())
    assert not STEERS.search(own_colours.sub("", stream.getvalue()))
    assert "\x1b[2J" not in stream.getvalue()


@pytest.fixture(scope="module")
def hostile_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    step = ty.zoo.load("linear")
    ops = tuple(replace(op, layer=f"{op.layer}{HOSTILE}", name=HOSTILE) for op in step.ops)
    path = tmp_path_factory.mktemp("hostile") / "net\x1b[31m.json"
    path.write_text(replace(step, name=f"net{HOSTILE}", ops=ops, notes=(HOSTILE,)).to_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["run", "STEP", "--on", "npu"],
        ["compare", "STEP", "--on", "npu,tpu"],
        ["show", "STEP"],
        ["run", "STEP", "--on", f"npu(array={HOSTILE})"],
        ["run", f"{HOSTILE}.json", "--on", "npu"],
        ["run", "STEP", "--on", f"{HOSTILE}.toml"],
        ["run", "STEP", "--on", "npu", "--set", f"array.{HOSTILE}=1"],
        ["show", HOSTILE],
        ["diff", f"{HOSTILE}.json", "x.json"],
        [f"command{HOSTILE}"],
    ],
)
def test_a_command_prints_no_control_character_of_a_name(hostile_step: Path, command: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main([str(hostile_step) if word == "STEP" else word for word in command])
    printed = out.getvalue() + err.getvalue()
    assert printed
    assert not STEERS.search(printed), STEERS.findall(printed)
    assert "\nenergy 0 J" not in printed


def test_json_and_machine_files_escape_them(capsys: pytest.CaptureFixture[str]) -> None:
    from trainyard.machines.files import _toml

    terminal.write_json({HOSTILE: HOSTILE}, "-")
    text = capsys.readouterr().out
    assert not STEERS.search(text)
    assert json.loads(text) == {HOSTILE: HOSTILE}
    assert not STEERS.search(_toml(HOSTILE.replace("\u202e", "")))


def test_nobody_prints_past_the_one_place() -> None:
    """`print` and rich's Console are of `terminal` alone, in all that commands use."""
    own = {"report/terminal.py"}
    for file in SOURCE.rglob("*.py"):
        place = file.relative_to(SOURCE).as_posix()
        if place in own or not place.startswith(("cli/", "report/", "sweep/", "papers/", "machines/", "runs.py")):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "Console"), f"{place}:{node.lineno}: use terminal.write or new_console"
