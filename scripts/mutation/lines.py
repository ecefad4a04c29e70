"""Which test runs which line of a room, and how long each test takes: collected once, cached by test file.

A trace function is told of every call; it follows the lines of the room's own functions alone, and those of one function until all
its lines were seen in this test, or so many calls brought nothing new that the rest is not looked for (a test is then not tried
with mutants of a line that it runs once in a hundred calls). Loops compiled by numba are not seen, and need not be: they all live
in the room `kernels`, which is held by plain-Python twins instead (tests/kernels and tests/oracles). What a test starts in another
process is not seen either, and would run the unchanged code.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

CALLS_IN_VAIN = 100
Lines = dict[str, list[int]]


@dataclass(slots=True)
class TestRun:
    """What one test did with the code as it is."""

    __test__ = False
    passed: bool
    seconds: float
    lines: Lines = field(default_factory=dict)


class Tracer:
    """Lines of files under one folder that run between `start` and `stop`."""

    def __init__(self, folder: Path) -> None:
        self.prefix = f"{folder}/"
        self.left: dict[CodeType, set[int]] = {}  # lines of each function that this test has not run yet
        self.outside: set[CodeType] = set()
        self.in_vain: dict[CodeType, int] = {}  # calls since the last new line
        self.began = 0.0

    def start(self) -> None:
        self.left.clear()
        self.in_vain.clear()
        self.began = time.process_time()
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> tuple[float, dict[str, set[int]]]:
        sys.settrace(None)
        threading.settrace(None)
        lines: dict[str, set[int]] = {}
        for code, left in self.left.items():
            lines.setdefault(code.co_filename, set()).update(_lines_of(code) - left)
        return time.process_time() - self.began, lines

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code in self.outside:
            return None
        left = self.left.get(code)
        if left is None:
            if not code.co_filename.startswith(self.prefix):
                self.outside.add(code)
                return None
            left = self.left[code] = _lines_of(code)
        left.discard(frame.f_lineno)
        self.in_vain[code] = calls = self.in_vain.get(code, 0) + 1
        return self._line if left and calls < CALLS_IN_VAIN else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self.left.get(frame.f_code)
        if left is None:
            return None  # a frame that outlives the test it began in
        if frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.in_vain[frame.f_code] = 0
            if not left:
                frame.f_trace_lines = False
        return self._line


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


class LineCache:
    """Test file -> its tests, as long as neither the file nor the room's code has changed."""

    def __init__(self, path: Path, root: Path, room_folder: Path) -> None:
        self.path, self.root = path, root
        self.source = digest(room_folder.rglob("*.py"))
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.files: dict[str, Any] = stored.get("files", {}) if stored.get("source") == self.source else {}

    def get(self, test_file: str) -> dict[str, TestRun] | None:
        entry = self.files.get(test_file)
        if entry is None or entry["digest"] != digest([self.root / test_file]):
            return None
        return {name: TestRun(**run) for name, run in entry["tests"].items()}

    def put(self, test_file: str, tests: dict[str, TestRun]) -> None:
        runs = {name: asdict(run) for name, run in tests.items()}
        self.files[test_file] = {"digest": digest([self.root / test_file]), "tests": runs}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"source": self.source, "files": self.files}))
