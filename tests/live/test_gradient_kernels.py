"""The fused gradient kernel against torch in fp64, through Triton's interpreter: small shapes, fp32, every way of adding up.

Triton decides when it is imported whether it interprets, so the tests below run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainyard.errors import BadInput
from trainyard.live.gradient import choice, kernels
from trainyard.live.gradient.choice import bound, choose
from trainyard.live.gradient.configs import SHARED_BYTES, Config, candidates

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(not kernels.interpreted(), reason="runs in the interpreter's process")
outside = pytest.mark.skipif(kernels.interpreted(), reason="runs outside the interpreter's process")

# fmt: off
CONFIGS = (
    Config(block_m=16, slice_n=16, slice_k=16, stages=2, barrier=False),
    Config(block_m=32, slice_n=32, slice_k=16, descriptors=True),
    Config(block_m=16, slice_n=16, slice_k=32, atomic_dx=True),
    Config(block_m=32, slice_n=64, slice_k=64, transposed=True),
    Config(block_m=16, slice_n=16, slice_k=64, transposed=True, atomic_dx=True, descriptors=True, programs_per_multiprocessor=2),
)
# fmt: on


@outside
def test_the_interpreter_runs_the_kernels() -> None:
    root = Path(__file__).parents[2]
    files = [__file__, str(Path(__file__).with_name("test_gradient_interpreted.py"))]
    command = [sys.executable, "-m", "pytest", "-vv", "-x", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    assert len(passed) > 20
    assert sum("test_gradient_interpreted.py" in line for line in passed) == 17


def same(actual: Tensor | None, wanted: Tensor) -> None:
    assert actual is not None
    assert actual.shape == wanted.shape
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=2e-5 * scale)


def check_rows(dy: Tensor, x: Tensor, weight: Tensor, bias: bool, config: Config | None) -> None:
    deterministic = config is None or not config.atomic_dx
    dx, dweight, dbias = kernels.fused(dy, x, weight, bias=bias, deterministic=deterministic, config=config)
    wide_dy, wide_x, wide_weight = dy.double(), x.double(), weight.double()
    same(dx, wide_dy @ wide_weight)
    same(dweight, wide_dy.t() @ wide_x)
    if bias:
        same(dbias, wide_dy.sum(0))
    else:
        assert dbias is None


sizes = st.integers(1, 70)


@interpreted
@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 90),
    outputs=sizes,
    inputs=sizes,
    bias=st.booleans(),
    config=st.sampled_from((None, *CONFIGS)),
    seed=st.integers(0, 99),
)
def test_rows_of_any_size(rows: int, outputs: int, inputs: int, bias: bool, config: Config | None, seed: int) -> None:
    torch.manual_seed(seed)
    check_rows(torch.randn(rows, outputs), torch.randn(rows, inputs), torch.randn(outputs, inputs), bias, config)


@interpreted
@pytest.mark.parametrize("config", [None, *CONFIGS])
def test_any_strides(config: Config | None) -> None:
    torch.manual_seed(1)
    dy, x, weight = torch.randn(40, 33).t(), torch.randn(33, 2 * 24)[:, ::2], torch.randn(24, 40).t()
    check_rows(dy, x, weight, True, config)
    check_rows(torch.randn(33, 1).expand(33, 40), torch.randn(1, 24).expand(33, 24), weight, True, config)


@interpreted
@pytest.mark.parametrize("config", [None, *CONFIGS])
@pytest.mark.parametrize("places", [18, 32])
def test_images(places: int, config: Config | None) -> None:
    torch.manual_seed(2)
    dy, x, weight = torch.randn(3, 40, places), torch.randn(3, 24, places), torch.randn(40, 24)
    deterministic = config is None or not config.atomic_dx
    dx, dweight, dbias = kernels.fused_batched(dy, x, weight, bias=True, deterministic=deterministic, config=config)
    same(dx, weight.double().t() @ dy.double())
    same(dweight, torch.einsum("bnp,bkp->nk", dy.double(), x.double()))
    same(dbias, dy.double().sum((0, 2)))


@interpreted
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(0, 3, 4), (5, 0, 4), (5, 3, 0), (0, 0, 0)])
def test_empty_operands_give_zero_gradients(rows: int, outputs: int, inputs: int) -> None:
    dx, dweight, dbias = kernels.fused(
        torch.ones(rows, outputs), torch.ones(rows, inputs), torch.ones(outputs, inputs), bias=True, deterministic=False
    )
    assert dx.shape == (rows, inputs)
    assert dweight.shape == (outputs, inputs)
    assert dbias is not None
    assert dbias.shape == (outputs,)
    assert not dx.any()
    assert not dweight.any()
    assert not dbias.any() or inputs == 0


@interpreted
def test_memory_next_to_the_operands_is_not_read() -> None:
    wide = torch.full((20, 48), float("nan"))
    wide[:, :20] = torch.randn(20, 20)
    check_rows(wide[:17, :20], wide[:17, :12], wide[:20, :12], True, CONFIGS[0])


@interpreted
def test_without_dx() -> None:
    dy, x, weight = torch.randn(50, 20), torch.randn(50, 12), torch.randn(20, 12)
    dx, dweight, _ = kernels.fused(dy, x, weight, bias=False, deterministic=True, need_dx=False)
    assert dx.numel() == 0
    same(dweight, dy.double().t() @ x.double())


@interpreted
def test_operands_that_do_not_fit_raise() -> None:
    dy, x, weight = torch.randn(8, 20), torch.randn(8, 12), torch.randn(20, 12)
    with pytest.raises(BadInput, match="do not fit"):
        kernels.fused(dy, x, weight.t(), bias=False, deterministic=True)
    with pytest.raises(BadInput, match="one type"):
        kernels.fused(dy, x.double(), weight, bias=False, deterministic=True)
    with pytest.raises(BadInput, match="matrices"):
        kernels.fused(dy[None], x[None], weight, bias=False, deterministic=True)
    with pytest.raises(BadInput, match="deterministic"):
        kernels.fused(dy, x, weight, bias=False, deterministic=True, config=CONFIGS[2])


@interpreted
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(70, 40, 50), (33, 130, 20), (20, 20, 100)])
def test_every_step_of_the_paper_computes_both_gradients(rows: int, outputs: int, inputs: int) -> None:
    import gradient_variants as variants

    dy, x, weight = torch.randn(rows, outputs), torch.randn(rows, inputs), torch.randn(outputs, inputs)
    for step in variants.STEPS:
        for parts in (1, 3):
            dx, dweight = variants.run(step, dy, x, weight, parts=parts)
            same(dx, dy.double() @ weight.double())
            same(dweight, dy.double().t() @ x.double())


@given(rows=st.integers(1, 5000), outputs=st.integers(1, 5000), inputs=st.integers(1, 5000))
def test_algorithm_1_equals_that_of_mapping_gradient_order(rows: int, outputs: int, inputs: int) -> None:
    import gradient_variants as variants

    from trainyard.ir import MatMul
    from trainyard.mapping.gradient_order import scratchpad as gradient_order

    chosen = variants.algorithm_1(rows, outputs, inputs)
    assert gradient_order.algorithm_1(MatMul(rows, outputs, inputs)) == ("interleaved" if chosen == "interleaving" else chosen)


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("outputs", [1, 24, 64, 100, 256, 1000, 11008])
@pytest.mark.parametrize("inputs", [1, 8, 96, 256, 4096])
def test_every_weight_has_candidates_that_fit(outputs: int, inputs: int, element_bytes: int) -> None:
    actual = candidates(outputs, inputs, element_bytes, deterministic=True, describable=False)
    assert actual
    assert not any(config.atomic_dx or config.atomic_dw or config.descriptors for config in actual)
    assert all(config.shared_bytes(element_bytes) <= SHARED_BYTES for config in actual)


def test_bound_of_the_speedup_by_traffic_and_arithmetic() -> None:
    half, whole = torch.bfloat16, torch.float32
    assert bound(10**6, 256, 64, half) == pytest.approx((2 * 256 + 2 * 64) / (256 + 2 * 64), rel=1e-2)  # traffic alone
    assert bound(4096, 4096, 4096, half) == 1  # arithmetic alone
    assert 1 < bound(10**6, 512, 256, half) < bound(10**6, 512, 128, half)  # the pass is bound by arithmetic, the pair is not
    assert bound(10**6, 256, 64, whole) < bound(10**6, 256, 64, half)


def test_a_measurement_with_rows_of_the_same_power_of_two_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = (200704, 512, 128, "torch.bfloat16", "NVIDIA H200", False, False, 0, False)
    monkeypatch.setattr(choice, "_CACHE", {key: "pair"})
    assert choice._similar((131072, *key[1:])) == "pair"
    assert choice._similar((65536, *key[1:])) is None  # another power of two
    assert choice._similar((131072, 256, *key[2:])) is None  # another weight
    assert choice._similar((131072, *key[1:7], 3136, False)) is None  # images


@outside
def test_without_a_gpu_the_pair_is_chosen() -> None:
    assert choose(10**6, 256, 64, dtype=torch.bfloat16, device="cpu") == "pair"
    assert not kernels.available("cpu")
