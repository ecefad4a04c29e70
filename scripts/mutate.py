"""Mutation testing of one room: `python scripts/mutate.py devices --count 80`, or `make mutate ROOM=devices`.

Works on a copy of the tree (out/mutation/ROOM), with a cache of compiled loops of its own. What is found is appended to
benchmarks/mutation/ROOM.jsonl; a second run goes on with what is missing. A mutant meets the tests of the folder that mirrors its
own; `--survivors` tries again what none of these had noticed, with all tests of the room.
`--page` writes docs/mutation.md from all rooms' results.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import accumulate
from pathlib import Path

import pytest
from mutation import page, records
from mutation.lines import LineCache, TestRun, Tracer
from mutation.sample import PACKAGE, ROOMS, Drawn, all_of_room, in_drawn_order
from mutation.trial import Forks, Outcome, limit_of, say

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "examples", "scripts", "benchmarks", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "mkdocs.yml")


def copy_of_the_tree(room: str) -> Path:
    """Files that git knows or would add, with their times: numba looks at these."""
    tree = ROOT / "out" / "mutation" / room / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *COPIED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    shutil.rmtree(tree, ignore_errors=True)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def copy_of_the_compiled_loops(tree: Path) -> Path:
    """numba names a folder of its cache by the hash of the source folder's path: the copies get the names of the copied tree."""
    cache = tree.parent / "numba"
    shared = Path(os.environ.get("NUMBA_CACHE_DIR", ROOT / ".numba_cache"))
    for folder in {path.parent for path in (ROOT / PACKAGE).rglob("*.py")}:
        ours = tree / folder.relative_to(ROOT)
        kept, to = (f"{folder.name}_{hashlib.sha1(str(path).encode()).hexdigest()}" for path in (folder, ours))
        if (shared / kept).is_dir():
            shutil.copytree(shared / kept, cache / to, dirs_exist_ok=True)
    return cache


class Run:
    """A pytest plugin that takes the place of the loop over all tests."""

    def __init__(self, options: argparse.Namespace, tree: Path) -> None:
        self.options, self.tree = options, tree
        self.results = ROOT / records.FOLDER / f"{options.room}.jsonl"
        self.killers: dict[str, set[str]] = {}
        self.cache = LineCache(tree.parent / "lines.json", tree, tree / PACKAGE / options.room)
        self.traced: dict[str, TestRun] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._import_all()
        forks = Forks(session, self.tree)
        room_mutants = all_of_room(self.tree, self.options.room)
        found = records.read(self.results, room_mutants)
        for one in found.values():
            self.killers.setdefault(one.drawn.mutant.path, set()).add(one.test)
        for number, drawn in enumerate(self._chosen(room_mutants, found), 1):
            outcome, count = self._try(drawn, forks, self._tests(forks, drawn))
            if not self.options.at and not (self.options.match and outcome.kind in ("survived", "uncovered")):
                records.append(self.results, drawn, outcome, count)
            mutant, took = drawn.mutant, f"{outcome.seconds:5.1f} s {count:4d} tests"
            say(
                f"{number:3d} {outcome.kind:9s} {took}  {drawn.name} {mutant.path}:{mutant.line} "
                f"{mutant.before[:60]} -> {mutant.after[:60]}"
            )
        return True

    def _import_all(self) -> None:
        """Imports what each trial would import at its first use: the room, the compiled loops, numba's compiler."""
        for room in (self.options.room, "kernels"):
            for path in sorted((self.tree / PACKAGE / room).rglob("*.py")):
                import_module(".".join(path.relative_to(self.tree / "src").with_suffix("").parts).removesuffix(".__init__"))
        import numba

        numba.njit(lambda number: number + 1)(1)

    def _chosen(self, room_mutants: list[Drawn], found: dict[str, records.Found]) -> list[Drawn]:
        within_folder = f"{PACKAGE.as_posix()}/{self.options.room}/{self.options.folder}"
        if self.options.only:
            return [drawn for drawn in room_mutants if drawn.name in self.options.only]
        if self.options.at:
            places = [f"{PACKAGE.as_posix()}/{self.options.room}/{place}" for place in self.options.at]
            return [drawn for drawn in room_mutants if f"{drawn.mutant.path}:{drawn.mutant.line}" in places]
        if self.options.survivors:
            reasons = records.equivalents(ROOT)
            survivors = [one.drawn for name, one in found.items() if one.last in ("survived", "uncovered") and name not in reasons]
            return [drawn for drawn in survivors if drawn.mutant.path.startswith(within_folder)]
        order = in_drawn_order(room_mutants, self.options.seed)[: self.options.count]
        return [drawn for drawn in order if drawn.name not in found and drawn.mutant.path.startswith(within_folder)]

    def _tests(self, forks: Forks, drawn: Drawn) -> dict[str, TestRun]:
        """Tests in the folder that mirrors the mutant's, or all of the room when survivors are tried again."""
        folder = Path(drawn.mutant.path).parent.relative_to(PACKAGE)
        everywhere = self.options.survivors or self.options.at or self.options.only
        names = [
            name
            for name in forks.items
            if everywhere or {PACKAGE / folder, Path("tests") / folder} & {Path(name.partition("::")[0]).parent}
        ]
        self._trace(forks, [name for name in names if name not in self.traced])
        return {name: self.traced[name] for name in names if self.traced[name].passed}

    def _trace(self, forks: Forks, names: list[str]) -> None:
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(name.partition("::")[0], []).append(name)
        for test_file, names in by_file.items():
            runs = self.cache.get(test_file)
            if runs is None or not set(names) <= set(runs):
                runs = forks.trace(names, Tracer(self.tree / PACKAGE / self.options.room))
                self.cache.put(test_file, runs)
                say(f"lines of {test_file}: {len(names)} tests, {sum(run.seconds for run in runs.values()):.1f} s")
            self.traced |= runs
            for name in names:
                if not runs[name].passed:
                    say(f"left out, fails without any change: {name}")

    def _try(self, drawn: Drawn, forks: Forks, tests: dict[str, TestRun]) -> tuple[Outcome, int]:
        names = covering(drawn, tests)
        killers = self.killers.setdefault(drawn.mutant.path, set())
        names.sort(key=lambda name: name not in killers)  # what has noticed a mutant of this file before is tried first
        names = names[: within(self.options.seconds, [tests[name].seconds for name in names])]
        if not names:
            return Outcome("uncovered"), 0
        while names:
            outcome = forks.run(names, [limit_of(tests[name].seconds) for name in names], drawn.mutant)
            killers.add(outcome.test)
            if outcome.kind in ("survived", "inapplicable") or forks.confirmed(outcome, limit_of(tests[outcome.test].seconds)):
                break
            say(f"left out, fails by itself without any change: {outcome.test}")
            names.remove(outcome.test)
        return outcome, len(names)


def within(most: float, seconds: list[float]) -> int:
    """How many tests, at least one, take no longer than `most` together.

    >>> within(30, [5.0, 20.0, 10.0]), within(30, [50.0, 1.0])
    (2, 1)
    """
    return max(1, sum(total <= most for total in accumulate(seconds)))


def covering(drawn: Drawn, tests: dict[str, TestRun]) -> list[str]:
    """Tests that run a line of the mutant, the quickest first."""
    mutant = drawn.mutant
    for first, last in ((mutant.line, mutant.end_line), mutant.statement_lines):
        wanted = set(range(first, last + 1))
        names = [name for name, run in tests.items() if wanted & set(run.lines.get(mutant.path, ()))]
        if names:
            break
    return sorted(names, key=lambda name: (round(tests[name].seconds, 1), name.partition("::")[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", nargs="?", choices=ROOMS)
    parser.add_argument("--count", type=int, default=80, help="mutants of this room in all, those of earlier runs included")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--folder", default="", help="a folder of the room, as dsc: its mutants and its tests alone")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of usual time of the tests that a mutant meets, quickest first"
    )
    parser.add_argument("--match", default="", help="tests whose names match, as pytest's -k: those just written for survivors")
    parser.add_argument("--survivors", action="store_true", help="try again those that no test had noticed")
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--at", nargs="*", help="all mutants of these lines, as dsc/unit.py:65; shown, not recorded")
    parser.add_argument("--page", action="store_true", help="write docs/mutation.md")
    options = parser.parse_args()
    if options.page:
        return page.write(ROOT)
    if options.room is None:
        parser.error("which room? one of " + ", ".join(ROOMS))
    (ROOT / "out" / "mutation" / options.room).mkdir(parents=True, exist_ok=True)
    lock = (ROOT / "out" / "mutation" / options.room / "lock").open("w")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        parser.error(f"another run is at work on {options.room}: its copy of the tree is in use")
    tree = copy_of_the_tree(options.room)
    os.environ["NUMBA_CACHE_DIR"] = str(copy_of_the_compiled_loops(tree))
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.path.insert(0, str(tree / "src"))
    sys.dont_write_bytecode = True
    os.chdir(tree)
    folders = [
        path for path in (PACKAGE / options.room / options.folder, Path("tests") / options.room / options.folder) if path.is_dir()
    ]
    arguments = ["--doctest-modules", *map(str, folders), "-m", "not slow and not gpu", "-s"]
    arguments += ["--timeout", "120", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:terminal", "--rootdir", str(tree)]
    arguments += ["-k", options.match] if options.match else []
    arguments += ["-o", "addopts=--strict-markers --import-mode=importlib"]
    return int(pytest.main(arguments, plugins=[Run(options, tree)]))


if __name__ == "__main__":
    raise SystemExit(main())
