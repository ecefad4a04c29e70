"""A worker with tasks that no real one has: they sleep, die, eat memory, start children, say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from trainyard.web import tasks, worker


def prepare(on_progress: Any, job: str, arguments: dict[str, Any]) -> dict[str, str]:
    return {"key": f"{job} {sorted(arguments.items())}", "title": job}


def sleep(on_progress: Any, seconds: float, mark: int = 0) -> dict[str, Any]:
    on_progress(1, 2, f"process {os.getpid()}")
    time.sleep(seconds)
    return {"pid": os.getpid(), "mark": mark}


def child(on_progress: Any) -> None:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    on_progress(0, 1, str(started.pid))
    time.sleep(60)


def die(on_progress: Any) -> None:
    os._exit(3)


def eat(on_progress: Any, size: int) -> dict[str, int]:
    return {"eaten": len(bytearray(size))}


def large(on_progress: Any, size: int) -> list[str]:
    return [os.urandom(16).hex() for _ in range(size)]


def nothing(on_progress: Any) -> None:
    pass


tasks.TASKS = {  # type: ignore[misc]
    "prepare": prepare, "sleep": sleep, "child": child, "die": die, "eat": eat, "large": large, "warm": nothing, "look": nothing,
}  # fmt: skip

if __name__ == "__main__":
    worker.main()
