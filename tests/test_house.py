"""The house: what an import brings in, what the package says of itself, and that nothing speaks of another place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trainyard

ROOT = Path(__file__).parents[1]


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


@pytest.mark.parametrize(("machine", "most_modules"), [("npu", 110), ("h200", 110)])
def test_a_run_on_one_device_loads_few_modules_and_no_system_of_many(machine: str, most_modules: int) -> None:
    modules = {
        name for name in loaded_by(f"import trainyard\ntrainyard.run('resnet50', on='{machine}')") if name.startswith("trainyard")
    }
    assert len(modules) <= most_modules
    systems_of_many = ("trainyard.systems.node", "trainyard.systems.scale_out", "trainyard.systems.pim")
    assert not [name for name in modules if name.startswith(systems_of_many)]


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


def test_files_and_functions_stay_small() -> None:
    import ast

    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 500, f"{path} holds two ideas"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                assert node.end_lineno - node.lineno < 80, f"{path}: {node.name} does not fit a screen"
