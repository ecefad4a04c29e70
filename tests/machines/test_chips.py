"""Presets of real chips: their peaks are the printed ones, every number has a source, and they train."""

from __future__ import annotations

import pytest

import trainyard as ty
from trainyard.papers.provenance import literals, provenance

# chip, printed dense peak in TFLOP/s at the precision, printed memory bandwidth in GB/s, printed memory in GB
PRINTED = [
    ("tpu-v2", None, 46, 700, 16),
    ("tpu-v3", None, 123, 900, 32),
    ("tpu-v4", None, 275, 1200, 32),
    ("gaudi2", None, 432, 2450, 96),
    ("trainium", None, 183, 820, 32),
    ("h100", "fp32", 67, 3352, 80),
    ("mi300x", "bf16", 1307.4, 5300, 192),
    ("mi300x", "fp32", 163.4, 5300, 192),
    ("mi300x", "fp8", 2614.9, 5300, 192),
    ("b200", "fp32", 75, 8000, 180),
]


@pytest.mark.parametrize(("name", "precision", "tflops", "gbytes_per_s", "gbytes"), PRINTED)
def test_peaks_are_the_printed_ones(name: str, precision: str | None, tflops: float, gbytes_per_s: float, gbytes: float) -> None:
    machine = ty.machine(name if precision is None else f"{name}(precision={precision})")
    assert 2 * machine.peaks.macs_per_s == pytest.approx(tflops * 1e12, rel=0.01)
    assert machine.dram_bytes_per_s == gbytes_per_s * 1e9
    assert gbytes * 1e9 <= machine.dram_capacity_bytes <= gbytes * 2**30


@pytest.mark.parametrize(("name", "tflops"), [("b200", 2250), ("h100", 989.4)])
def test_tensor_cores_have_the_printed_rate_at_the_printed_clock(name: str, tflops: float) -> None:
    """Vendors print these at a lower clock than the highest one: 1.83 GHz of Hopper, 1.855 GHz of Blackwell."""
    board = ty.machine(name)
    clock = {"h100": 1.83e9, "b200": 1.855e9}[name]
    assert 2 * board.sms * board.half_macs * clock == pytest.approx(tflops * 1e12, rel=0.01)


@pytest.mark.parametrize("name", ["tpu-v2", "tpu-v3", "tpu-v4", "gaudi2", "trainium", "h100", "b200", "mi300x"])
def test_every_number_has_a_source_and_a_step_runs(name: str) -> None:
    assert all(literal.source for literal in literals(name) if literal.numeric)
    assert "dram_bytes_per_s" in provenance(name)
    result = ty.run("bert-tiny", on=name)
    assert 0 < result.macs / (result.time_s * result.peaks.macs_per_s) < 1


def test_generations_of_a_maker_get_faster() -> None:
    for chips in (("tpu-v2", "tpu-v3", "tpu-v4"), ("h100", "h200", "b200")):
        times = [ty.run("resnet18", on=f"{chip}", batch=64).time_s for chip in chips]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("name", "mm2"), [("v100", 815), ("a100", 826), ("h100", 814), ("h200", 814)])
def test_the_area_of_a_gpu_is_its_printed_die(name: str, mm2: float) -> None:
    assert ty.machine(name).area() == {"die": pytest.approx(mm2 * 1e-6)}
    assert ty.machine("mi300x").area() == {}
