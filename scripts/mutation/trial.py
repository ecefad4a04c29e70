"""One mutant against the tests of its line, in a process forked from one that has already imported and collected everything.

The mutated function's code object takes the place of the original's in the forked process, wherever the function is referred to:
nothing is imported again, nothing is written to a file, and the process ends with the trial. A test that takes ten times its usual
processor time (and at least five seconds) is ended: the mutant is caught by time.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from mutation.lines import TestRun, Tracer
from mutation.operators import Mutant, mutated_tree

TIMES_USUAL, LEAST_SECONDS = 10, 5.0
EXTRA_MEMORY_BYTES = 6 << 30
LONGEST_SILENCE_SECONDS = 400.0
INAPPLICABLE = 2
NICENESS = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """`caught`, `time`, `survived`, `uncovered` or `inapplicable`; `test` is the one that noticed."""

    kind: str
    test: str = ""
    seconds: float = 0.0


def function_index(folder: Path) -> dict[tuple[str, str, int], list[FunctionType]]:
    """File, name and first line -> the functions in memory with that code, whoever holds them: classes, properties, caches."""
    gc.unfreeze()
    index: dict[tuple[str, str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(f"{folder}/"):
            code = thing.__code__
            index.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    gc.freeze()
    return index


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def mutated_code(path: Path, mutant: Mutant) -> CodeType:
    module = compile(mutated_tree(path.read_text(), mutant.position), str(path), "exec", dont_inherit=True)
    for code in _codes(module):
        if code.co_qualname == mutant.function and code.co_firstlineno == mutant.first_line:
            return code
    raise LookupError(f"{mutant.path} has no function {mutant.function} at line {mutant.first_line}")


class Forks:
    """Runs chosen tests of a collected session in forked processes, one process at a time."""

    def __init__(self, session: pytest.Session, root: Path) -> None:
        self.items = {item.nodeid: item for item in session.items}
        self.root = root
        self.functions = function_index(root / "src" / "trainyard")
        self.passes_alone: dict[str, bool] = {}

    def run(self, tests: Sequence[str], limits: Sequence[float], mutant: Mutant | None = None) -> Outcome:
        """The first test that fails or takes too long."""

        def work(write: int) -> int:
            if mutant is not None:
                os.nice(max(0, NICENESS - os.nice(0)))
                if not self._apply(mutant):
                    return INAPPLICABLE
            return self._run_until_failure(tests, limits, write)

        began = time.monotonic()
        reached, status = _forked(work)
        seconds = time.monotonic() - began
        last = tests[len(reached) - 1] if reached else ""
        if os.WIFSIGNALED(status):  # ended from outside: by its timer, or crashed
            by_time = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL)
            return Outcome("time" if by_time else "caught", last, seconds)
        if os.WEXITSTATUS(status) == INAPPLICABLE:
            return Outcome("inapplicable")
        if not reached:
            raise RuntimeError(f"no test was begun for {mutant}")
        if os.WEXITSTATUS(status) != 0:
            return Outcome("caught", last, seconds)
        return Outcome("survived", seconds=seconds)

    def confirmed(self, outcome: Outcome, limit: float) -> bool:
        """Whether the test that noticed passes by itself when nothing was changed."""
        if outcome.test not in self.passes_alone:
            self.passes_alone[outcome.test] = self.run([outcome.test], [limit]).kind == "survived"
        return self.passes_alone[outcome.test]

    def trace(self, tests: Sequence[str], tracer: Tracer) -> dict[str, TestRun]:
        """Runs tests as they are: which of them passed, their seconds and lines."""
        to = Path(tempfile.mkdtemp(prefix="lines-")) / "lines.json"

        def work(write: int) -> int:
            runs: dict[str, TestRun] = {}
            with _failures(self.items[tests[0]].config) as failures:
                for test, following in zip(tests, [*tests[1:], None], strict=True):
                    os.write(write, b".")
                    item = self.items[test]
                    tracer.start()
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=self.items[following] if following else None)
                    seconds, lines = tracer.stop()
                    by_path = {os.path.relpath(path, self.root): sorted(numbers) for path, numbers in lines.items()}
                    runs[test] = TestRun(test not in failures, round(seconds, 3), by_path)
            to.write_text(json.dumps({test: asdict(run) for test, run in runs.items()}))
            return 0

        _forked(work)
        try:
            return {test: TestRun(**run) for test, run in json.loads(to.read_text()).items()}
        finally:
            shutil.rmtree(to.parent)

    def _apply(self, mutant: Mutant) -> bool:
        """Whether it could: code that no longer refers to a variable of the function around it cannot take the original's place."""
        path = self.root / mutant.path
        code = mutated_code(path, mutant)
        functions = self.functions[str(path), mutant.function, mutant.first_line]
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            return False
        for function in functions:
            function.__code__ = code
        return True

    def _run_until_failure(self, tests: Sequence[str], limits: Sequence[float], write: int) -> int:
        items = [self.items[test] for test in tests]
        with _failures(items[0].config) as failures:
            for item, following, limit in zip(items, [*items[1:], None], limits, strict=True):
                os.write(write, b".")
                signal.setitimer(signal.ITIMER_PROF, limit)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if failures:
                    return 1
        return 0


@contextmanager
def _failures(config: pytest.Config) -> Iterator[set[str]]:
    failed: set[str] = set()

    class Listener:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.add(report.nodeid)

    listener = Listener()
    config.pluginmanager.register(listener)
    yield failed
    config.pluginmanager.unregister(listener)


def _forked(work: Callable[[int], int]) -> tuple[bytes, int]:
    """What `work` has written to the descriptor it is given, and its exit status; it has a process and a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        code = 3
        try:
            os.setpgid(0, 0)
            os.close(read)
            _shut_in(folder)
            code = work(write)
        except BaseException:
            code = 4
        finally:
            os._exit(code)
    os.close(write)
    try:
        return _follow(read, process)
    finally:
        with suppress(ProcessLookupError):  # what its tests have started and left
            os.killpg(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _shut_in(folder: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + EXTRA_MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _follow(read: int, process: int) -> tuple[bytes, int]:
    """One byte for each test begun and the exit status; a process that begins no new test for too long is killed."""
    reached, heard = b"", time.monotonic()
    while True:
        if select.select([read], [], [], 0.25)[0] and (piece := os.read(read, 4096)):
            reached += piece
            heard = time.monotonic()
            continue
        if time.monotonic() > heard + LONGEST_SILENCE_SECONDS:
            os.kill(process, signal.SIGKILL)
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            os.close(read)
            return reached, status


def limit_of(seconds: float) -> float:
    return max(LEAST_SECONDS, TIMES_USUAL * seconds)


def say(text: str) -> None:
    print(text, flush=True)
