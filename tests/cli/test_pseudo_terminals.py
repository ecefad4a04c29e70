"""Every command on a pseudo-terminal, wide and narrow: it ends as it should, bars and all, and no line is wider than the terminal.

All commands run one after the other in one process, on a terminal that changes its width: a start costs more than they do.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from trainyard import cli

STUDY = """
name = "terminal"
workloads = ["linear"]
machine = "npu(dram_capacity=1 MB)"
objectives = { samples_per_s = "max" }
[axes]
batch = [1, 8, 4096]
"""
SEARCH = STUDY.replace('"terminal"', '"searched"') + '[search]\ntrials = 4\nsampler = "random"\n'
TRAIN = """
import torch
def train():
    model = torch.nn.Linear(4, 2)
    return lambda: model(torch.ones(3, 4)).sum().backward(), model
def build():
    model = torch.nn.Linear(4, 2)
    return model, torch.ones(3, 4), torch.ones(3, 2), torch.nn.functional.mse_loss
"""
COMMANDS = {
    "run linear --on npu": 0,
    "run linear --on tensordash --masks sparsity(A=0.5) --html run.html --json run.json --no-range": 0,
    "run linear --on npu --samples 1281167 --epochs 90": 0,
    "run mine.py:build --on npu": 0,
    "run linear --on nqu": 2,
    "run linear": 2,
    "run linear --on npu --batch 99999999999999999999": 2,
    "compare linear --on npu,h200,tpu,sigma,mcdla-b": 0,
    "diff run.json run.json": 0,
    "explain linear fc --on npu": 0,
    "explain igo": 0,
    "memory linear --on npu": 0,
    "whatif linear --on npu --pairs 2": 0,
    "sweep terminal.toml --workers 1": 0,
    "sweep searched.toml --workers 1": 0,
    "sweep terminal.toml --dry-run": 0,
    "serve --port 0 --no-open": 0,
    "reproduce direct --figure 99": 2,
    "reproduce direct --figure 'Table I' --context": 0,
    "record mine.py:train -o masks.safetensors": 0,
    "export linear --to step -o step.json": 0,
    "rtl --list": 0,
    "rtl fan --lanes 16": 0,
    "rtl fam": 2,
    "show tpu": 0,
    "show linear": 0,
    "list": 0,
    "warm-up --processes 1": 0,
    "--help": 0,
    "run --help": 0,
}
"""Each with its exit code."""
UNBROKEN = re.compile(r"^\S{50,}$|^store: |^(wrote|trainyard serves) ")
"""Lines that are one long word or end in a path: breaking these would make them useless."""
WIDTHS = (140, 60)
SCRIPT = """
import fcntl, os, shlex, struct, sys, termios
import uvicorn
from trainyard import cli, warm_up
from trainyard.report import terminal

terminal.MOMENT_S = 0.0  # every bar is shown, however short its work
uvicorn.Server.run = lambda server, sockets: None
warm_up.STAGES = (warm_up.Stage("tiles", (("linear", "npu", {}),)),)
commands = sys.stdin.read().splitlines()
for folder in sys.argv[1:]:
    os.chdir(folder)
    os.environ["TRAINYARD_CACHE"] = os.path.join(folder, "cache")
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, int(os.path.basename(folder)), 0, 0))
    print(f"\\n#columns {os.get_terminal_size().columns}", flush=True)
    for line in commands:
        print(f"\\n#begin {line}", flush=True)
        code = cli.main(shlex.split(line))
        print(f"\\n#end {code}", flush=True)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """By width, what all commands write to stdout and stderr of a terminal of so many columns; they are read from a pipe."""
    folders = [tmp_path_factory.mktemp("terminal") / str(columns) for columns in WIDTHS]
    for folder in folders:
        folder.mkdir()
        (folder / "terminal.toml").write_text(STUDY)
        (folder / "searched.toml").write_text(SEARCH)
        (folder / "mine.py").write_text(TRAIN)
    mine, theirs = pty.openpty()
    kept_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in kept_out}
    environment |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, folders)], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    assert process.stdin is not None
    process.stdin.write("\n".join(COMMANDS).encode())
    process.stdin.close()
    text = b""
    while True:
        try:
            read = os.read(mine, 65536)
        except OSError:  # the other end was closed
            break
        if not read:
            break
        text += read
    os.close(mine)
    assert process.wait() == 0, text.decode()
    parts = re.split(r"#columns (\d+)\r?\n", text.decode())
    assert parts[1::2] == [str(columns) for columns in WIDTHS]
    return dict(zip(WIDTHS, parts[2::2], strict=True))


def lines_of(text: str) -> list[str]:
    """What stands on each line in the end: of a bar that was drawn over, what was drawn last."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in plain.split("\n")]


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_command_on_a_terminal(printed: dict[int, str], columns: int) -> None:
    assert "Traceback" not in printed[columns]
    parts = re.findall(r"#begin (.*?)\r?\n(.*?)\r?\n#end (\d+)", printed[columns], re.DOTALL)
    assert {command: int(code) for command, _, code in parts} == COMMANDS
    for command, text, _ in parts:
        wide = [line for line in lines_of(text) if len(line) > columns and not UNBROKEN.match(line)]
        assert not wide, f"{command}: {wide}"
        assert "a fault of trainyard" not in text
    by_command = {command: text for command, text, _ in parts}
    bar = "━"
    for command in (
        "run linear --on npu",
        "sweep terminal.toml --workers 1",
        "sweep searched.toml --workers 1",
        "whatif linear --on npu --pairs 2",
    ):
        assert bar in by_command[command], command
    assert (
        "layers and phases: "
        in by_command["run linear --on tensordash --masks sparsity(A=0.5) --html run.html --json run.json --no-range"]
    )
    assert "1 point needs more memory" in by_command["sweep terminal.toml --workers 1"]
    assert "for example: trainyard run resnet50 --on npu" in " ".join(by_command["run linear"].split())


def test_no_command_is_left_out() -> None:
    names = {command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands}
    assert {line.split()[0] for line in COMMANDS} >= names
