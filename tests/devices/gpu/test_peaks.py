"""Utilisation of a GPU: against the peak of each op's own precision, and never above 100 %."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.devices.gpu.device import Gpu
from trainyard.ir import Convolution, MatMul, Op, Step, Structured, TensorSpec
from trainyard.machines.presets.gpus import A100, H200, V100
from trainyard.machines.presets.mcdla import DC_DLA
from trainyard.masks.generated import generated_masks
from trainyard.report.lines import utilisation
from trainyard.workloads import zoo

SIZE = 4096


def products(*dtypes: str, size: int = SIZE) -> Step:
    tensors = tuple(TensorSpec((size, size), dtype) for dtype in dtypes for _ in range(3))
    ops = tuple(
        Op(body=MatMul(size, size, size), name="mm", layer=f"fc{i}", inputs=(3 * i, 3 * i + 1), outputs=(3 * i + 2,))
        for i in range(len(dtypes))
    )
    return Step("products", 1, ops, tensors)


@pytest.mark.parametrize(
    ("dtype", "precision", "macs"),
    [
        ("fp32", None, 128), ("fp32", "tf32", 1024), ("bf16", None, 2048), ("fp16", None, 2048), ("fp8", None, 4096),
        ("fp32", "bf16", 2048), ("fp32", "fp8", 4096), ("bf16", "fp32", 128), ("fp64", None, 128),
    ],
)  # fmt: skip
def test_a_product_is_measured_against_the_peak_of_its_precision(dtype: str, precision: str | None, macs: int) -> None:
    result = ty.run(products(dtype), on=replace(H200, precision=precision, graphs=True))  # type: ignore[arg-type]
    assert result.peaks.macs_per_s == pytest.approx(H200.sms * macs * H200.clock_hz)
    used = utilisation(result)
    assert used is not None
    assert 0.4 < used <= 1.0


def test_the_peak_of_mixed_precision_is_weighted_by_the_time_of_each_op_at_its_own_peak() -> None:
    step = products("fp32", "bf16", "bf16")
    rate = H200.sms * H200.clock_hz
    seconds = SIZE**3 * (1 / (rate * 128) + 2 / (rate * 2048))
    assert ty.run(step, on=H200).peaks.macs_per_s == pytest.approx(3 * SIZE**3 / seconds)


def test_the_first_operand_decides_against_which_peak_a_product_is_measured() -> None:
    tensors = (TensorSpec((64, 32), "bf16"), TensorSpec((32, 16), "fp32"), TensorSpec((64, 16), "fp32"))
    step = Step("mixed", 1, (Op(body=MatMul(64, 16, 32), inputs=(0, 1), outputs=(2,)),), tensors)
    assert H200.peak_macs_per_s(step) == pytest.approx(H200.sms * 2048 * H200.clock_hz)
    bare = Step("bare", 1, (Op(body=MatMul(64, 16, 32)),), ())
    assert H200.peak_macs_per_s(bare) == pytest.approx(H200.sms * 128 * H200.clock_hz)
    assert H200.peak_macs_per_s(Step("empty", 1, (), ())) == 0.0


def test_a_fp32_convolution_is_measured_against_tf32_and_a_product_beside_it_against_fp32() -> None:
    body = Convolution(batch=8, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), padding=(1, 1))
    tensors = tuple(TensorSpec(shape) for shape in ((8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56)))
    step = Step("convolution", 8, (Op(body=body, inputs=(0, 1), outputs=(2,)),), tensors)
    assert ty.run(step, on=H200).peaks.macs_per_s == pytest.approx(H200.sms * 1024 * H200.clock_hz)
    assert ty.run(step, on=V100).peaks.macs_per_s == pytest.approx(V100.sms * 64 * V100.clock_hz)  # no TF32: vector lanes
    assert ty.run(products("fp32", size=512), on=H200).peaks.macs_per_s == pytest.approx(H200.sms * 128 * H200.clock_hz)


def test_structured_weights_double_the_peak_of_their_products() -> None:
    step = zoo.load("bert-tiny", batch=64)
    device = replace(A100, precision="bf16")
    dense, sparse = (ty.run(step, on=device, masks=masks) for masks in (None, generated_masks(step, weights=Structured(2, 4))))
    assert dense.peaks.macs_per_s < sparse.peaks.macs_per_s <= 2 * dense.peaks.macs_per_s
    assert (utilisation(sparse) or 0.0) <= 1.0


@pytest.mark.parametrize("precision", [None, "bf16", "fp16", "tf32", "fp8"])
def test_eight_gpus_have_eight_times_the_peak_of_one(precision: str | None) -> None:
    step = zoo.load("bert-tiny", batch=8)
    device = replace(H200, precision=precision)  # type: ignore[arg-type]
    one, eight = ty.run(step, on=device), ty.run(step, on=replace(DC_DLA, device=device, overlay="off"))
    assert eight.peaks.macs_per_s == pytest.approx(8 * one.peaks.macs_per_s)


@given(
    dtypes=st.lists(st.sampled_from(("fp32", "bf16", "fp16", "fp8", "fp64")), min_size=1, max_size=4),
    size=st.integers(16, 8192),
    ideal=st.booleans(),
    gpu=st.sampled_from((H200, replace(H200, matmul_fp32="tf32"), replace(H200, precision="bf16"))),
)
def test_utilisation_is_at_most_one_whatever_the_mix(dtypes: list[str], size: int, ideal: bool, gpu: Gpu) -> None:
    """Also for a device whose every product reaches its peak, without a host."""
    if ideal:
        gpu = replace(gpu, graphs=True, tensor_fraction=1.0, vector_fraction=1.0, fill_s=1e-12, ramp_s=1e-12, gap_s=1e-12)
    used = utilisation(ty.run(products(*dtypes, size=size), on=gpu))
    assert used is not None
    assert 0.0 < used <= 1.0
