"""docs/capture_recipes.md and examples/capture_recipes.py: every block and every function runs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

import trainyard as ty
from trainyard.ir import Step
from trainyard.workloads import named
from trainyard.workloads.capture.ops.registry import USERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "capture_recipes.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "capture_recipes.py"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
LIBRARIES = ("transformers", "peft", "accelerate", "lightning", "diffusers")
NEEDS = {
    "transformers' Trainer": "a causal language model of transformers",
    "low-rank adapters of peft": "a causal language model of transformers",
}
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def code(text: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    from coverage_cases.torchvision_ops import provide

    provide()


def require_libraries(source: str) -> None:
    for library in LIBRARIES:
        if re.search(rf"^\s*(?:from|import) {library}\b", source, re.MULTILINE):
            pytest.importorskip(library)


@pytest.mark.parametrize("section", list(SECTIONS))
def test_the_blocks_of_a_section_make_a_step(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [PAGE.partition("\n## ")[0], SECTIONS[NEEDS[section]] if section in NEEDS else "", SECTIONS[section]]
    source = "\n".join(code(part) for part in parts)
    require_libraries(source)
    names: dict[str, Any] = {}
    monkeypatch.setattr(USERS, "handlers", dict(USERS.handlers))
    with contextlib.chdir(tmp_path):
        exec(source, names)
    step = names["step"]
    assert isinstance(step, Step)
    assert step.macs > 0
    if step.world_size == 1:
        assert ty.run(step, on="npu").time_s > 0


def test_every_section_has_a_block() -> None:
    assert len(SECTIONS) >= 15
    assert [name for name, text in SECTIONS.items() if not code(text)] == []


@pytest.mark.parametrize("function", re.findall(r"capture_recipes\.py:(\w+)", EXAMPLE.read_text(encoding="utf-8")))
def test_the_functions_of_the_example_are_workloads(function: str) -> None:
    body = EXAMPLE.read_text(encoding="utf-8").partition(f"def {function}(")[2].partition("\ndef ")[0]
    require_libraries(body)
    step = named.load(f"{EXAMPLE}:{function}", batch=2)
    assert (step.batch, step.rebatchable) == (2, True), step.source
