"""`trainyard serve` as a process that tests start, watch and kill."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, "-m", "trainyard", "serve")


def _descendants(pid: int) -> list[int]:
    """All processes below one, itself left out."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


@dataclass
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    address: str
    folder: Path

    def client(self) -> Any:
        import httpx

        return httpx.Client(base_url=self.address, timeout=60, trust_env=False)

    @property
    def workers(self) -> list[int]:
        """Its processes, all the way down."""
        return _descendants(self.process.pid)

    @property
    def handles(self) -> int:
        """Files, sockets and pipes that it holds open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def resident_bytes(self, pids: list[int]) -> int:
        """Memory of some of its processes."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def kept(self) -> list[Path]:
        return list(self.folder.glob("trainyard-serve-*"))


def start_server(folder: Path, *words: str) -> Served:
    """A server in a process of its own, whose temporary files and caches are in `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder), "TRAINYARD_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [*PROGRAM, "--port", "0", "--no-open", "--jobs", "1", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("trainyard serves http://127.0.0.1:"), line
    return Served(process, line.split()[2].rstrip("/"), folder)
