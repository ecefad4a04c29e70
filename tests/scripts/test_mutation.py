"""The mutation tool: its changes, its drawing, its memory, and that it tells a good test from a bad one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import records
from mutation.lines import LineCache, TestRun, Tracer
from mutation.operators import mutants, mutated_tree
from mutation.sample import all_of_room, in_drawn_order
from mutation.trial import Outcome

SCRIPTS = Path(__file__).parents[2] / "scripts"


def changes(body: str, hint: str = "int") -> set[str]:
    source = f"def f(x, y, *, z=7) -> {hint}:\n    '''A text with 3 < 4.'''\n    {body}\n"
    return {f"{one.before} -> {one.after}" for one in mutants("m.py", source)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if x < y: return x", {"x < y -> x <= y", "return x -> return x + 1"}),
        (
            "if x is None or not y: pass",
            {"x is None -> x is not None", "x is None or not y -> x is None and (not y)", "not y -> y"},
        ),
        ("x += y", {"x += y -> x -= y", "x += y -> pass"}),
        ("x.y = y // z", {"x.y = y // z -> pass", "y // z -> y * z"}),
        ("k: dict[int, int] = {}", set()),
        ("k = x + 'text'", set()),
        ("raise ValueError(f'{x} is above {3 + 4}')", {"raise ValueError(f'{x} is above {3 + 4}') -> pass"}),
        ("k = g(x, y)", {"g(x, y) -> g(y, x)"}),
        ("k = max(x, y)", {"max(x, y) -> min(x, y)"}),
        ("k = isinstance(x, y)", set()),
        ("k = x[1:]", {"1 -> 2", "1 -> 0"}),
        ("k = -x", {"-x -> x"}),
        ("for k in x: continue", {"continue -> pass"}),
    ],
)
def test_changes_of_a_statement(body: str, expected: set[str]) -> None:
    assert changes(body) == expected


def test_return_values_change_by_the_hint_of_the_function() -> None:
    assert "return x -> return not x" in changes("return x", "bool")
    assert "return x -> return None" in changes("return x", "str | None")
    assert not changes("return x", "str")


def test_a_mutated_module_differs_in_one_place_alone() -> None:
    source = "class A:\n    def f(self, x):\n        if x < 1:\n            return x * 2\n        return g(x, 3)\n"
    plain = ast.dump(ast.parse(source))
    found = mutants("m.py", source)
    trees = {ast.unparse(mutated_tree(source, one.position)) for one in found}
    assert len(trees) == len(found) > 6
    assert plain not in {ast.dump(mutated_tree(source, one.position)) for one in found}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    room = tmp_path / "src" / "trainyard" / "engine"
    room.mkdir(parents=True)
    (room / "steps.py").write_text("def steps(x):\n    return x // 4 + 1\n\n\ndef last(x):\n    return steps(x) - 1\n")
    return tmp_path


def test_an_edit_elsewhere_keeps_names_and_order_and_at_most_one_is_drawn_from_a_line(tree: Path) -> None:
    path = tree / "src" / "trainyard" / "engine" / "steps.py"
    before = in_drawn_order(all_of_room(tree, "engine"), seed=1)
    path.write_text("# a line\n" + path.read_text())
    after = in_drawn_order(all_of_room(tree, "engine"), seed=1)
    assert [(one.name, one.digest, one.mutant.line + 1) for one in before] == [
        (one.name, one.digest, one.mutant.line) for one in after
    ]
    assert len({one.mutant.line for one in after}) == len(after) == 2
    assert {one.name for one in before} != {one.name for one in in_drawn_order(all_of_room(tree, "engine"), seed=2)}


def test_results_keep_the_first_and_the_last_outcome_until_the_function_changes(tree: Path) -> None:
    drawn = all_of_room(tree, "engine")
    first, other = drawn[0], drawn[-1]
    results = tree / "engine.jsonl"
    records.append(results, first, Outcome("survived"), 3)
    records.append(results, other, Outcome("uncovered"), 0)
    records.append(results, first, Outcome("caught", "tests/test_a.py::test_b"), 4)
    found = records.read(results, drawn)
    assert [(one.first, one.last) for one in found.values()] == [("survived", "caught"), ("uncovered", "uncovered")]
    path = tree / "src" / "trainyard" / "engine" / "steps.py"
    path.write_text(path.read_text().replace("def last(x):\n", "def last(x):\n    x = int(x)\n"))
    assert list(records.read(results, all_of_room(tree, "engine"))) == [first.name]


def test_lines_of_a_room_are_seen_for_each_test_and_cached_until_a_file_changes(tree: Path) -> None:
    path = tree / "src" / "trainyard" / "engine" / "steps.py"
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    tracer = Tracer(path.parent)
    tracer.start()
    names["last"](8)  # type: ignore[operator]
    assert {2, 6} <= tracer.stop()[1][str(path)]
    tracer.start()
    names["steps"](8)  # type: ignore[operator]
    assert 6 not in tracer.stop()[1][str(path)]

    (tree / "test_a.py").write_text("pass\n")
    LineCache(tree / "lines.json", tree, path.parent).put("test_a.py", {"test_a.py::test": TestRun(True, 0.1, {"m.py": [2]})})
    kept = LineCache(tree / "lines.json", tree, path.parent).get("test_a.py")
    assert kept == {"test_a.py::test": TestRun(True, 0.1, {"m.py": [2]})}
    (tree / "test_a.py").write_text("pass  # edited\n")
    assert LineCache(tree / "lines.json", tree, path.parent).get("test_a.py") is None


TRIALS = """
import sys
from pathlib import Path
import pytest
from mutation.operators import mutants
from mutation.trial import Forks
root = Path(sys.argv[1])
sys.path.insert(0, str(root / "src"))
class Loop:
    def pytest_runtestloop(self, session):
        forks = Forks(session, root)
        path = "src/trainyard/engine/steps.py"
        found = {f"{one.before} -> {one.after}": one for one in mutants(path, (root / path).read_text())}
        names = list(forks.items)
        for change in ("x < 4 -> x <= 4", "x += 1 -> pass", "4 -> 3", "x += 1 -> x -= 1"):
            print(change, forks.run(names, [0.5] * len(names), found[change]).kind)
        print(forks.run(names, [0.5] * len(names)).kind)
        return True
arguments = [str(root), "-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--rootdir", str(root), "-c", str(root / "none.ini")]
pytest.main([*arguments, "--import-mode=importlib"], plugins=[Loop()])
"""


def test_a_trial_tells_caught_from_survived_from_endless(tmp_path: Path) -> None:
    room = tmp_path / "src" / "trainyard" / "engine"
    room.mkdir(parents=True)
    for folder in (room, room.parent):
        (folder / "__init__.py").touch()
    (tmp_path / "none.ini").write_text("[pytest]\n")
    (room / "steps.py").write_text("def steps(x):\n    while x < 4:\n        x += 1\n    return x\n")
    tests = "def test_above(): assert steps(5) == 5\ndef test_below(): assert steps(2) > 2\ndef test_at(): assert steps(4) < 5\n"
    (tmp_path / "test_steps.py").write_text(f"from trainyard.engine.steps import steps\n\n{tests}")
    run = subprocess.run(
        [sys.executable, "-c", TRIALS, str(tmp_path)], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SCRIPTS)}
    )
    outcomes = ["x < 4 -> x <= 4 caught", "x += 1 -> pass time", "4 -> 3 survived", "x += 1 -> x -= 1 time", "survived"]
    assert run.stdout.splitlines() == outcomes, run.stderr
    assert "while x < 4" in (room / "steps.py").read_text()
