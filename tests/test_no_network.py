"""At run time nothing leaves this computer: every command is run while any look-up or connection beyond loopback is an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUARDED = """
import shlex, socket, sys

def refused(what):
    def refuse(*given, **named):
        print(f"network: {what} {given[-1:]}", file=sys.stderr)
        import os; os._exit(99)
    return refuse

real_connect = socket.socket.connect

def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
        refused("connect")(address)
    return real_connect(self, address)

socket.socket.connect = connect
socket.socket.connect_ex = refused("connect_ex")
socket.getaddrinfo = refused("getaddrinfo")
socket.gethostbyname = refused("gethostbyname")

if sys.argv[1] == "probe":
    socket.create_connection(("192.0.2.1", 80), timeout=1)

from trainyard.cli import main

for command in sys.argv[1].splitlines():
    code = main(shlex.split(command))
    if code:
        sys.exit(f"{code} from {command}")
"""
STUDY = """
name = "quiet"
workloads = ["linear"]
machine = "npu"
[axes]
"array.rows" = [32, 64]
"""


COMMANDS = """
run linear --on npu --html r.html --parquet r.parquet
compare linear --on npu,h200
explain linear --on npu
whatif linear --on npu --html w.html
show mcdla-b --svg n.svg
list
export linear --to timeloop -o problems
sweep study.toml --workers 1 --html s.html
reproduce mcdla --figure 'Table IV'
"""


def guarded(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    file = folder / "guarded.py"
    file.write_text(GUARDED)
    (folder / "study.toml").write_text(STUDY)
    environment = {**os.environ, "TRAINYARD_CACHE": str(folder / "kept")}
    return subprocess.run(
        [sys.executable, str(file), commands], capture_output=True, text=True, cwd=folder, env=environment, timeout=240
    )


def test_the_guard_sees_a_connection(tmp_path: Path) -> None:
    assert guarded(tmp_path, "probe").returncode == 99


def test_commands_stay_at_home_and_what_they_write_loads_nothing(tmp_path: Path) -> None:
    """Pages are one file each: no address outside stands where a browser would fetch it."""
    done = guarded(tmp_path, COMMANDS.strip())
    assert done.returncode == 0, done.stderr
    assert "network:" not in done.stderr
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)\s*=\s*[\"']?(?:https?:)?//", re.IGNORECASE)
    pages = sorted(tmp_path.glob("*.html"))
    assert [page.name for page in pages] == ["r.html", "s.html", "w.html"]
    for page in pages:
        assert not fetched.search(page.read_text(encoding="utf-8")), page.name
