"""Predictions for the H200 against stored measurements, within the bounds that docs/gpu.md states."""

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
Measurements = tuple[dict[str, Any], list[Any]]


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
def measurements(benchmark: Any) -> Measurements:
    stored, measured = benchmark.load()
    return stored, list(benchmark.rows(measured))


def test_the_page_shows_the_present_predictions(benchmark: Any, measurements: Measurements) -> None:
    own = PAGE.read_text(encoding="utf-8").partition(f"\n{benchmark.GRADIENTS}")[0]
    assert own == benchmark.page(*measurements), "run: python benchmarks/gpu_roofline.py --predict"


def test_predicted_step_times_are_within_a_quarter_but_for_three(measurements: Measurements) -> None:
    _, rows = measurements
    assert len(rows) >= 36
    outside = {row.step.title: row.ratio for row in rows if not row.inside}
    assert set(outside) <= {"lstm-1024, batch 128, bf16", "lstm-1024, batch 128, fp32", "squeezenet, batch 8, fp32"}
    assert all(0.5 < ratio < 1.3 for ratio in outside.values())
    assert 0.9 < statistics.geometric_mean(row.ratio for row in rows) < 1.1


def test_at_least_five_models_are_within_a_quarter_in_every_step(measurements: Measurements) -> None:
    _, rows = measurements
    models = {row.step.model for row in rows}
    assert len(models - {row.step.model for row in rows if not row.inside}) >= 14


def test_predicted_device_times_of_steps_and_layers_are_within_a_quarter(measurements: Measurements) -> None:
    """For batches that fill the device: small ones are dominated by launches, and cuDNN chooses other kernels for them."""
    _, rows = measurements
    large = [row for row in rows if row.step.batch > 8 or row.step.model in ("gpt2-small", "yolov5l")]
    assert len(large) >= 30
    assert all(0.75 < row.kernels_ratio < 1.25 for row in large)
    assert all(row.layer_error < 0.25 for row in large)
    assert statistics.median(row.layer_error for row in large) < 0.13


def test_predicted_times_of_host_bound_steps_are_within_their_measured_spread(benchmark: Any, measurements: Measurements) -> None:
    """Steps that wait for the host: the prediction lies between the fastest and the slowest run, or within a quarter of one."""
    _, rows = measurements
    waiting = [row for row in rows if row.step.seconds > 1.2 * sum(row.step.cells.values()) and row.step.model != "lstm-1024"]
    assert len(waiting) >= 8
    for row in waiting:
        assert 0.75 * min(row.step.step_s) < row.predicted_s < 1.25 * max(row.step.step_s), row.step.title


def product(kind: str, layout: str, count: int, M: int, N: int, K: int) -> Step:
    phase = {"nt": Phase.FORWARD, "nn": Phase.GRAD_INPUT, "tn": Phase.GRAD_WEIGHT}[layout]
    dtype = "bf16" if kind == "bf16" else "fp32"
    tensors = tuple(TensorSpec((count, *shape), dtype) for shape in ((M, K), (K, N), (M, N)))
    return Step("product", 1, (Op(body=MatMul(M, N, K, count), phase=phase, inputs=(0, 1), outputs=(2,)),), tensors)


@pytest.mark.parametrize(("kind", "low", "worst"), [("bf16", 0.95, 0.5), ("tf32", 0.8, 0.45), ("fp32", 0.85, 0.4)])
def test_predicted_times_of_products_are_near_the_measured_ones(
    measurements: Measurements, kind: str, low: float, worst: float
) -> None:
    stored, _ = measurements
    gpu = replace(H200, graphs=True, precision="tf32" if kind == "tf32" else None)
    ratios = []
    for row_kind, layout, count, M, N, K, measured in stored["machines"][-1]["products"]:
        if row_kind == kind:
            step = product(kind, layout, count, M, N, K)
            ratios.append(gpu.cost(step, gpu.works(step)[0]).cycles / gpu.clock_hz / measured)
    assert len(ratios) == 83
    assert low < statistics.geometric_mean(ratios) < 1.1
    assert worst < min(ratios)
    assert max(ratios) < 1.5


def test_the_copy_bandwidth_is_the_measured_one(measurements: Measurements) -> None:
    stored, _ = measurements
    rates = [2 * size / seconds for work, size, _, seconds in stored["machines"][-1]["streams"] if work == "copy" and size >= 2**28]
    assert statistics.median(rates) == pytest.approx(H200.dram_bytes_per_s * H200.copy_fraction, rel=0.02)


def test_the_file_of_measurements_is_small() -> None:
    assert (ROOT / "benchmarks" / "data" / "h200.json.gz").stat().st_size < 150_000
