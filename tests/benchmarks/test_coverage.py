"""Models of other people's libraries: seventeen in every run of the tests, all of them in the slow tier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LIBRARIES = ("torch", "timm", "torchvision", "transformers", "diffusers", "torch_geometric", "peft", "accelerate", "lightning")
if missing := [library for library in LIBRARIES if find_spec(library) is None]:
    pytest.skip(f"the extra coverage is not installed: no {', '.join(missing)}", allow_module_level=True)

from coverage_cases.case import FAMILIES, cases_of  # noqa: E402
from coverage_cases.examination import examine  # noqa: E402
from coverage_cases.report import differs, parameters_differ  # noqa: E402
from coverage_cases.torchvision_ops import provide  # noqa: E402
from coverage_cases.workers import ENVIRONMENT  # noqa: E402

ROOT = Path(__file__).parents[2]
SAMPLE = {
    "timm": ("mobilenetv3_small_050", "vit_tiny_patch16_224"),
    "torchvision": ("squeezenet1_1", "fasterrcnn_mobilenet_v3_large_320_fpn"),
    "transformers": ("bert-mlm", "t5", "wav2vec2-ctc", "yolos", "clip"),
    "decoders": ("llama: mask, no cache", "qwen2: ids, no cache", "mamba: ids"),
    "experts": ("mixtral: float32, grouped_mm", "deepseek_v3: bfloat16, eager"),
    "diffusers": ("conditional unet", "flux"),
    "geometric": ("gat, training mask",),
    "training": ("Trainer", "peft: LoRA", "autocast cuda bf16"),
}
"""Family -> cases of the sample: twenty, of every family."""
LARGE = ("fasterrcnn_mobilenet_v3_large_320_fpn", "conditional unet", "yolos")  # others of their kind hold the line in every run


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    provide()


def test_the_sample_is_of_twenty_cases_of_every_family() -> None:
    assert tuple(SAMPLE) == FAMILIES
    assert sum(map(len, SAMPLE.values())) == 20


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=pytest.mark.slow if name in LARGE else ())
        for family, names in SAMPLE.items()
        for name in names
    ],
)
def test_a_case_of_the_sample_is_captured_by_default(family: str, name: str) -> None:
    case = next(case for case in cases_of(family) if case.name == name)
    record = examine(case, real=False, machines=("h200",))
    assert record.default, record.default_error
    assert not record.broken
    assert not differs(record), f"{record.flops} FLOPs, torch counts {record.counted}"
    assert record.counted, record.counter_error
    assert not parameters_differ(record)
    assert record.changed == []
    assert record.machines == {"h200": ""}


@pytest.mark.slow
def test_the_whole_harness_reaches_its_bounds(tmp_path: Path) -> None:
    results = tmp_path / "coverage.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "coverage.py"), "--json", str(results)]
    subprocess.run(command, cwd=tmp_path, timeout=3500)
    records = json.loads(results.read_text(encoding="utf-8"))["records"]
    assert len(records) == sum(len(cases_of(family)) for family in FAMILIES) >= 250
    assert [record["name"] for record in records if record["broken"]] == []
    assert sum(record["default"] for record in records) >= 0.95 * len(records)
    assert sum(bool(record["real"]) for record in records) >= 0.99 * len(records)
    assert [record["name"] for record in records if record["changed"]] == []
    runs = [error for record in records for error in record["machines"].values()]
    assert sum(not error for error in runs) >= 0.99 * len(runs)
