"""The page of models of other libraries: its measurements are the stored ones, its bounds hold, its steps can be repeated."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "gpu_models.md"
MODULES = ("silicon_cases", "silicon_data", "silicon_predictions", "gpu_predictions", "gpu_data")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def table() -> dict[str, list[str]]:
    rows = [row.strip("| ").split(" | ") for row in PAGE.read_text(encoding="utf-8").splitlines() if ", batch " in row]
    return {title: cells for title, *cells in rows if len(cells) == 10}


def test_the_page_has_every_stored_measurement(benchmarks: None) -> None:
    from silicon_data import load

    document, measured = load()
    rows = table()
    assert set(rows) == set(measured)
    assert len(rows) >= 55
    for title, (library, _, step_ms, *_, kernels_ms, _, _, _) in rows.items():
        assert library == measured[title].library
        assert float(step_ms) == pytest.approx(measured[title].seconds * 1e3, abs=0.006)
        assert float(kernels_ms) == pytest.approx(measured[title].kernels_s * 1e3, abs=0.006)
    assert document["device"]["name"] == "NVIDIA H200"
    assert len(document["kernels"]) > 1200


def test_nine_of_ten_steps_are_within_a_quarter_and_kernels_within_an_eighth_in_the_median() -> None:
    rows = table()
    ratios = {title: float(cells[4]) for title, cells in rows.items()}
    kernels = [float(cells[7]) for cells in rows.values()]
    assert sum(0.75 <= ratio <= 1.25 for ratio in ratios.values()) >= 0.9 * len(ratios)
    assert statistics.median(abs(ratio - 1.0) for ratio in kernels) < 0.125
    assert 0.9 < ratios["convnext_base, batch 64, fp32"] < ratios["convnext_base, batch 64, bf16"] < 1.2


def test_the_ratios_of_the_page_are_those_of_its_times() -> None:
    for cells in table().values():
        predicted, measured, ratio = (float(cells[place]) for place in (1, 2, 4))
        assert predicted / measured == pytest.approx(ratio, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "title"),
    [
        ("torchvision", "convnext_tiny, batch 128, fp16"), ("torchvision", "resnet50, channels last, batch 64, bf16"),
        ("transformers", "bert-base, batch 64, bf16-mixed"), ("transformers", "llama, batch 8, bf16"),
        ("diffusers", "unet, images, batch 64, fp32"), ("timm", "timm convmixer_768_32, batch 32, bf16"),
    ],
)  # fmt: skip
def test_the_page_shows_the_present_prediction(benchmarks: None, library: str, title: str) -> None:
    """Within a few percent: another release of a library may run other ops."""
    from coverage_cases.torchvision_ops import provide

    provide()
    pytest.importorskip(library)
    from silicon_cases import CASES, HELD_OUT
    from silicon_data import load
    from silicon_predictions import rows

    case: Any = next(case for case in (*CASES, *HELD_OUT) if case.title == title)
    failures: dict[str, str] = {}
    (row,) = rows([case], load()[1], failures.__setitem__)
    assert row.predicted_s * 1e3 == pytest.approx(float(table()[title][1]), rel=0.05)
    assert row.inside
