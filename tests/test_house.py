"""The house: what an import brings in, what the package says of itself, and that nothing speaks of another place."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trainyard
from trainyard.lazy import OLDEST_TORCH

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainyard"
MODULE_STRING = re.compile(r"(?P<package>trainyard\.)?(?P<module>[a-z_]+(\.[a-z_]+)*)(:(?P<name>[A-Za-z_]\w*))?")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import trainyard",
        "import trainyard.cli",
        "import trainyard.runs, trainyard.machines, trainyard.engine, trainyard.workloads.zoo, trainyard.masks.recorded",
    ],
)
def test_light_imports_stay_light(statement: str) -> None:
    heavy = {"torch", "numba", "plotly", "pandas", "pyarrow", "matplotlib"}
    assert not heavy & loaded_by(statement)


def test_the_oldest_torch_is_the_one_that_is_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {requirement for extra in extras.values() for requirement in extra if requirement.startswith("torch>")}
    assert asked == {"torch>=" + ".".join(map(str, OLDEST_TORCH))}


@pytest.mark.parametrize("run", ["npu", "h200"])
def test_a_run_on_one_device_enters_few_files_and_loads_no_system_of_many(run: str) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "entered_files.py"))
    most_files, most_modules = script["LIMITS"][run]
    footprint = script["footprint"](run)
    assert len(footprint.entered) <= most_files, "\n".join(footprint.entered)
    assert len(footprint.loaded) <= most_modules
    systems_of_many = ("trainyard.systems.node", "trainyard.systems.scale_out", "trainyard.systems.pim")
    assert not [name for name in footprint.loaded if name.startswith(systems_of_many)]


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in trainyard.__all__:
        assert getattr(trainyard, name) is not None
    assert set(dir(trainyard)) == set(trainyard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trainyard.nothing  # noqa: B018


def test_run_is_the_function_whatever_was_imported_before() -> None:
    import trainyard.runs

    assert callable(trainyard.run)
    assert trainyard.run is trainyard.runs.run


def test_every_room_says_what_lives_there() -> None:
    for init in (ROOT / "src" / "trainyard").rglob("__init__.py"):
        text = init.read_text()
        assert text.startswith('"""'), f"{init} has no docstring"


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def test_files_and_functions_stay_small() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert path.read_text().count("\n") <= 500, f"{path} holds two ideas"
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                assert node.end_lineno - node.lineno < 80, f"{path}: {node.name} does not fit a screen"


def layer_order() -> dict[str, int]:
    """Room -> its height, from the first contract of import-linter; a room may import those of lower height."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    return {name.removeprefix("trainyard."): -height for height, name in enumerate(contract["layers"])}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules_named_in(path: Path) -> Iterator[str]:
    """Modules of this package that a file names as "trainyard.room.module" or "room.module:name", the strings that are imported."""
    for node in nodes_of(path):
        match = isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_STRING.fullmatch(node.value)
        if match and (match["package"] or match["name"]):
            target = PACKAGE.joinpath(*match["module"].split("."))
            if target.with_suffix(".py").is_file() or (target / "__init__.py").is_file():
                yield match["module"]
            elif match["name"] and (PACKAGE / match["module"].partition(".")[0]).is_dir():
                pytest.fail(f"{node.value!r} names no module")


def test_every_room_stands_in_the_layer_order() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__", "_version"}
    assert rooms == set(layer_order())


def test_modules_imported_by_name_keep_the_layer_order() -> None:
    """import-linter reads import statements; registries and lazy tables name modules as strings."""
    heights, seen = layer_order(), 0
    for path in PACKAGE.rglob("*.py"):
        if (room := room_of(path)) not in heights:
            continue  # the package's own __init__ stands above all rooms
        for module in modules_named_in(path):
            seen += 1
            assert heights[module.partition(".")[0]] <= heights[room], f"{path} names trainyard.{module}, which stands above {room}"
    assert seen > 50  # the registry alone names more


def test_folders_stay_small_and_say_what_is_in_them() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        modules = sorted(path.stem for path in init.parent.glob("*.py") if not path.stem.startswith("_"))
        folders = sorted(path.parent.name for path in init.parent.glob("*/__init__.py"))
        assert len(modules) <= 22, f"{init.parent} has {len(modules)} modules: it holds two ideas"
        docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
        if init.parent != PACKAGE:
            missing = [name for name in (*modules, *folders) if not re.search(rf"(?<!\w){name}(?!\w)", docstring)]
            assert not missing, f"the docstring of {init.parent} does not name {', '.join(missing)}"


def test_small_numbers_are_compared_by_their_ratio() -> None:
    assert pytest.approx(2e-13) != 1e-13
    assert pytest.approx([1e-13]) != [2e-13]
    assert pytest.approx({"j": 1e-15}) == {"j": 1e-15 * (1 + 1e-9)}
    assert pytest.approx(0.0) == 1e-13
