"""A long search on a terminal (a pseudo-terminal) says how far it has come; piped, it prints nothing of that."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

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
    assert b"npu (search of blocks of layers: 1 of 3)" in text


def test_a_search_that_is_piped_prints_no_progress() -> None:
    process = run_on(subprocess.PIPE)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
