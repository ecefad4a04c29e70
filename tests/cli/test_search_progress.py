"""A long search on a terminal (a pseudo-terminal) says how far it has come; piped, it prints nothing of that."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from trainyard.progress import counted, listening, report
from trainyard.report.terminal import Bar

SCRIPT = """
import time
from trainyard.progress import counted
from trainyard.report import terminal
terminal.MOMENT_S = 0.0
with terminal.progress("layers") as on_progress:
    on_progress(0, 1, "npu")
    for _ in counted(["conv1", "conv2", "fc"], "blocks of layers"):
        time.sleep(0.3)
"""


def run_on(stderr: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL, env=environment, cwd=Path(__file__).parent)


def test_a_search_shows_on_a_terminal_how_far_it_has_come() -> None:
    mine, theirs = pty.openpty()
    process = run_on(theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            read = os.read(mine, 4096)
        except OSError:  # the other end was closed
            break
        if not read:
            break
        text += read
    os.close(mine)
    assert process.wait() == 0
    assert b"npu (blocks of layers: 1 of 3)" in text


def test_a_search_that_is_piped_prints_no_progress() -> None:
    process = run_on(subprocess.PIPE)
    assert process.communicate()[1] == b""
    assert process.returncode == 0


def test_a_bar_names_the_innermost_loop_that_is_compiled_and_then_what_was_under_way() -> None:
    bar = Bar("")
    bar.show(0, 1, "npu")
    assert described(bar) == ("npu", 0, None)  # it moves to and fro: nobody knows how much there is to do
    bar.compile_begins("mapping.outer")
    bar.compile_begins("mapping.inner")
    assert described(bar)[0] == "npu (first run: compiling loop 2, mapping.inner)"
    bar.compile_ends("mapping.inner")
    assert described(bar)[0] == "npu (first run: compiling loop 2, mapping.outer)"
    bar.compile_ends("mapping.outer")
    assert described(bar)[0] == "npu"


def test_what_is_counted_inside_a_piece_of_work_moves_the_bar() -> None:
    bar = Bar("claims")
    bar.show(2, 5, "igo")
    assert described(bar) == ("2/5 claims igo", 2, 5)
    with listening(bar.inside):
        for _ in counted(["conv1", "fc"], "layers"):
            pass
        assert described(bar) == ("2/5 claims igo (layers: 1 of 2)", 2.5, 5)
        report(1234, "tensors captured")
    assert described(bar) == ("2/5 claims igo (1,234 tensors captured)", 2, 5)


def test_a_capture_reports_its_tensors() -> None:
    import torch

    import trainyard as ty

    reported: list[tuple[int, int, str]] = []
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(12)))
    with listening(lambda done, total, message="", /: reported.append((done, total, message))):
        ty.capture(model, torch.ones(2, 4), torch.ones(2, 4), loss=torch.nn.functional.mse_loss)
    assert reported[0] == (64, 0, "tensors captured")


def described(bar: Bar) -> tuple[str, float, float | None]:
    (task,) = bar._progress.tasks
    return task.description, task.completed, task.total
