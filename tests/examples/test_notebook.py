"""examples/first_hour.ipynb: its cells run in order, and what each ends with can be shown. No notebook server is needed."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run(source: str, names: dict[str, Any]) -> Any:
    """Executes a cell as a notebook does: the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def shown(value: object) -> str:
    """What a notebook would display: HTML where the value has some, a figure's title, its text otherwise."""
    if hasattr(value, "layout"):
        return str(value.layout.title.text)
    html = getattr(value, "_repr_html_", None)
    return str(html()) if html is not None else repr(value)


def test_every_cell_runs_and_shows_something(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    texts = []
    for cell in CELLS:
        if cell["cell_type"] == "code":
            value = run("".join(cell["source"]), names)
            texts.append(capsys.readouterr().out if value is None else shown(value))
    assert all(texts)
    everything = "\n".join(texts)
    for said in (
        "61,100,840 parameters",
        "classifier.1",
        "next 10 %",
        "speedup",
        "tpu-v3",
        "90 epochs of 1,281,167 samples",
        "tensordash",
    ):
        assert said in everything, said


def test_the_notebook_holds_no_outputs_and_is_of_a_known_format() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert cell["cell_type"] in ("code", "markdown")
        assert not cell.get("outputs")
        assert cell["cell_type"] == "markdown" or cell["execution_count"] is None
