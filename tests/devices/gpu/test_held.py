"""Law 9: the H200's prediction beside its measurement, held at what the page says today."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.ir import MatMul, Op, Phase, Step, TensorSpec
from trainyard.machines.presets.gpus import H200

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "gpu.md"


@pytest.fixture(scope="module")
def benchmark(monkeypatch_module: pytest.MonkeyPatch) -> Any:
    monkeypatch_module.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_predictions

    return gpu_predictions


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    for name in ("gpu_predictions", "gpu_data"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def held(benchmark: Any) -> tuple[dict[str, Any], list[Any]]:
    kept, measured = benchmark.load()
    return kept, list(benchmark.rows(measured))


def test_the_page_is_what_is_predicted_today(benchmark: Any, held: tuple[dict[str, Any], list[Any]]) -> None:
    own = PAGE.read_text(encoding="utf-8").partition(f"\n{benchmark.GRADIENTS}")[0]
    assert own == benchmark.page(*held), "run: python benchmarks/gpu_roofline.py --predict"


def test_whole_steps(held: tuple[dict[str, Any], list[Any]]) -> None:
    _, rows = held
    assert len(rows) >= 36
    outside = {row.step.title: row.ratio for row in rows if not row.inside}
    assert set(outside) <= {"lstm-2, batch 128, bf16", "lstm-2, batch 128, fp32", "squeezenet, batch 8, fp32"}
    assert all(0.5 < ratio < 1.3 for ratio in outside.values())
    assert 0.9 < statistics.geometric_mean(row.ratio for row in rows) < 1.1


def test_at_least_five_models_are_within_a_quarter_in_every_step(held: tuple[dict[str, Any], list[Any]]) -> None:
    _, rows = held
    models = {row.step.model for row in rows}
    assert len(models - {row.step.model for row in rows if not row.inside}) >= 14


def test_device_time_of_steps_and_layers(held: tuple[dict[str, Any], list[Any]]) -> None:
    """Batches that fill the device: small ones are all launches, and cuDNN chooses other kernels for them."""
    _, rows = held
    large = [row for row in rows if row.step.batch > 8 or row.step.model in ("gpt2-small", "yolov5l")]
    assert len(large) >= 30
    assert all(0.75 < row.kernels_ratio < 1.25 for row in large)
    assert all(row.layer_error < 0.25 for row in large)
    assert statistics.median(row.layer_error for row in large) < 0.13


def test_the_host_is_predicted_within_its_own_spread(benchmark: Any, held: tuple[dict[str, Any], list[Any]]) -> None:
    """Steps that wait for the host: the prediction lies between the fastest and the slowest run, or within a quarter of one."""
    _, rows = held
    waiting = [row for row in rows if row.step.seconds > 1.2 * sum(row.step.cells.values()) and row.step.model != "lstm-2"]
    assert len(waiting) >= 8
    for row in waiting:
        assert 0.75 * min(row.step.step_s) < row.predicted_s < 1.25 * max(row.step.step_s), row.step.title


def product(kind: str, layout: str, count: int, M: int, N: int, K: int) -> Step:
    phase = {"nt": Phase.FORWARD, "nn": Phase.GRAD_INPUT, "tn": Phase.GRAD_WEIGHT}[layout]
    dtype = "bf16" if kind == "bf16" else "fp32"
    tensors = tuple(TensorSpec((count, *shape), dtype) for shape in ((M, K), (K, N), (M, N)))
    return Step("product", 1, (Op(body=MatMul(M, N, K, count), phase=phase, inputs=(0, 1), outputs=(2,)),), tensors)


@pytest.mark.parametrize(("kind", "low", "worst"), [("bf16", 0.95, 0.5), ("tf32", 0.8, 0.45), ("fp32", 0.85, 0.4)])
def test_products(held: tuple[dict[str, Any], list[Any]], kind: str, low: float, worst: float) -> None:
    kept, _ = held
    gpu = replace(H200, graphs=True, precision="tf32" if kind == "tf32" else None)
    ratios = []
    for row_kind, layout, count, M, N, K, measured in kept["machines"][-1]["products"]:
        if row_kind == kind:
            step = product(kind, layout, count, M, N, K)
            ratios.append(gpu.cost(step, gpu.works(step)[0]).cycles / gpu.clock_hz / measured)
    assert len(ratios) == 83
    assert low < statistics.geometric_mean(ratios) < 1.1
    assert worst < min(ratios)
    assert max(ratios) < 1.5


def test_copies(held: tuple[dict[str, Any], list[Any]]) -> None:
    kept, _ = held
    rates = [2 * size / seconds for work, size, _, seconds in kept["machines"][-1]["streams"] if work == "copy" and size >= 2**28]
    assert statistics.median(rates) == pytest.approx(H200.dram_bytes_per_s * H200.copy_fraction, rel=0.02)


def test_the_kept_measurements_are_small() -> None:
    assert (ROOT / "benchmarks" / "data" / "h200.json.gz").stat().st_size < 150_000
