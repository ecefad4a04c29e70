"""Depthwise convolutions by memory format, window and element type, against micro-benchmarks of an H200."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.devices.gpu.depthwise import HALF, WIDE, _cudnn, _fp16_by_cudnn, _torch, depthwise
from trainyard.devices.gpu.traffic import Cache, Kernel, Traffic
from trainyard.ir import Convolution, Op, Phase, Role, Step, TensorSpec
from trainyard.ir.ops import ProductOf
from trainyard.machines.presets.gpus import H200

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "h200_models.json.gz"
KERNELS = replace(H200, graphs=True, gap_s=1e-15)


def convolution(
    batch: int, channels: int, size: int, window: int, stride: int, dtype: str, product: ProductOf, *, channels_last: bool
) -> Step:
    body = Convolution(
        batch=batch, in_channels=channels, out_channels=channels, size=(size, size), kernel=(window, window),
        stride=(stride, stride), padding=(window // 2, window // 2), groups=channels, product=product,
    )  # fmt: skip
    tensors = (
        TensorSpec((batch, channels, size, size), dtype, channels_last=channels_last),
        TensorSpec((channels, 1, window, window), dtype, Role.PARAMETER),
        TensorSpec((batch, channels, *body.out_size), dtype, channels_last=channels_last),
    )
    inputs, outputs = {"forward": ((0, 1), (2,)), "grad_input": ((2, 1), (0,)), "grad_weight": ((2, 0), (1,))}[product]
    return Step("depthwise", batch, (Op(body=body, inputs=inputs, outputs=outputs, phase=Phase(product)),), tensors)


def seconds(step: Step) -> float:
    return KERNELS.cost(step, KERNELS.works(step)[0]).cycles / KERNELS.clock_hz


def measured() -> list[tuple[Step, float, str]]:
    with gzip.open(DATA, "rt") as stream:
        rows = [row for row in json.load(stream)["kernels"] if row[0].startswith("depthwise")]
    steps: list[tuple[Step, float, str]] = []
    for op, kind, (batch, channels, _, size, window, stride, _, _), microseconds in rows:
        dtype, form = kind.split()
        product: Any = op.removeprefix("depthwise").strip() or "forward"
        step = convolution(batch, channels, size, window, stride, dtype, product, channels_last=form == "nhwc")
        steps.append((step, microseconds * 1e-6, f"{kind} {product}"))
    return steps


def test_predicted_times_are_near_the_measured_ones_in_either_memory_format() -> None:
    ratios: dict[str, list[float]] = {}
    for step, spent, kind in measured():
        ratios.setdefault(kind, []).append(seconds(step) / spent)
    assert len(ratios) == 18
    for kind, found in ratios.items():
        assert len(found) == 31
        assert 0.75 < statistics.geometric_mean(found) < 1.3, kind  # fp16 in channels-last has faster kernels for some shapes
        assert statistics.median(abs(ratio - 1.0) for ratio in found) < 0.25, kind
    everything = [abs(ratio - 1.0) for found in ratios.values() for ratio in found]
    assert statistics.median(everything) < 0.1


@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
def test_a_seven_by_seven_window_in_bf16_is_several_times_faster_in_channels_last(product: ProductOf) -> None:
    first, last = (seconds(convolution(64, 128, 56, 7, 1, "bf16", product, channels_last=form)) for form in (False, True))
    assert 2.4 < first / last < 15.0


def test_sixteen_bits_help_a_window_of_torch_by_nothing_and_one_of_cudnn_by_much() -> None:
    def ratio(*, channels_last: bool) -> float:
        wide, narrow = (
            seconds(convolution(64, 128, 56, 7, 1, kind, "forward", channels_last=channels_last)) for kind in ("fp32", "bf16")
        )
        return wide / narrow

    assert ratio(channels_last=False) == pytest.approx(1.0, rel=0.01)
    assert ratio(channels_last=True) > 2.0


def test_a_weight_gradient_of_seven_by_seven_in_fp32_is_a_padded_product_and_slower_than_in_channels_first() -> None:
    first, last = (seconds(convolution(64, 128, 56, 7, 1, "fp32", "grad_weight", channels_last=form)) for form in (False, True))
    assert last > 2 * first


def test_a_map_that_is_not_channels_last_goes_to_cudnn_if_its_filter_is() -> None:
    plain = convolution(8, 64, 28, 7, 1, "bf16", "forward", channels_last=False)
    filters = replace(plain, tensors=(plain.tensors[0], replace(plain.tensors[1], channels_last=True), plain.tensors[2]))
    both = convolution(8, 64, 28, 7, 1, "bf16", "forward", channels_last=True)
    assert seconds(filters) == seconds(both) < seconds(plain)


@given(
    window=st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13)),
    size=st.integers(13, 64),
    stride=st.integers(1, 3),
    dtype=st.sampled_from(("fp32", "bf16", "fp16")),
    product=st.sampled_from(("forward", "grad_input", "grad_weight")),
    channels_last=st.booleans(),
)
def test_more_channels_never_take_less_time(
    window: int, size: int, stride: int, dtype: str, product: ProductOf, channels_last: bool
) -> None:
    few, many = (
        seconds(convolution(4, channels, size, window, stride, dtype, product, channels_last=channels_last))
        for channels in (64, 128)
    )
    assert 0 < few <= many


MAP = Convolution(batch=2, in_channels=32, out_channels=32, size=(8, 8), kernel=(3, 3), padding=(1, 1), groups=32)
ELEMENTS = 2 * 32 * 64


@pytest.mark.parametrize(
    ("body", "instructions"),
    [
        (MAP, ELEMENTS * (184 + 16 * 9)),
        (MAP.as_product("grad_input"), ELEMENTS * (532 + 5.2 * 9)),
        (replace(MAP, kernel=(7, 7), padding=(3, 3)), ELEMENTS * 23.5 * 49),  # not unrolled
        (replace(MAP, kernel=(11, 11), padding=(5, 5)), ELEMENTS * 23.5 * 64),  # no more taps than the map has elements
        (replace(MAP, kernel=(7, 7), padding=(3, 3)).as_product("grad_input"), ELEMENTS * (520 + 20.5 * 49)),
        (MAP.as_product("grad_weight"), 2 * 32 * 9 * 32 * (115 + 45.5 * 2) + 67 * ELEMENTS),  # 64 positions are two turns of a warp
        (replace(MAP, stride=(2, 2)), ELEMENTS / 4 * (184 + 16 * 9)),
    ],
)
def test_torchs_window_kernels_take_instructions_for_each_result_and_tap(body: Convolution, instructions: float) -> None:
    assert _torch(body) == pytest.approx(instructions)


@pytest.mark.parametrize(
    ("body", "instructions"),
    [
        (MAP, ELEMENTS * 67),
        (replace(MAP, kernel=(5, 5), padding=(2, 2)), ELEMENTS * 125),
        (replace(MAP, kernel=(7, 7), padding=(3, 3)).as_product("grad_input"), ELEMENTS * 585),
        (MAP.as_product("grad_weight"), ELEMENTS * 79),
        (replace(MAP, stride=(2, 2)), math.sqrt(ELEMENTS * ELEMENTS / 4) * 67),
        (replace(MAP, size=(6, 8)), 2 * 32 * 48 * (8 / 6) * 67),  # rows in tiles of four
        (replace(MAP, kernel=(9, 9), padding=(4, 4)).as_product("grad_input"), ELEMENTS * 41 * 81),
        (replace(MAP, kernel=(9, 9), padding=(4, 4)), ELEMENTS * 147 * ((5 + 6 + 7 + 8 + 8 + 7 + 6 + 5) / 8) ** 2),
    ],
)
def test_cudnns_kernels_take_instructions_by_taps_and_skip_those_on_the_padding(body: Convolution, instructions: float) -> None:
    assert _cudnn(body, HALF) == pytest.approx(instructions)


def test_a_weight_gradient_of_a_larger_window_is_a_matrix_product() -> None:
    assert _cudnn(replace(MAP, kernel=(9, 9), padding=(4, 4)).as_product("grad_weight"), HALF) is None
    assert _cudnn(replace(MAP, kernel=(7, 7), padding=(3, 3)).as_product("grad_weight"), WIDE) is None
    assert _cudnn(replace(MAP, kernel=(7, 7), padding=(3, 3)).as_product("grad_weight"), HALF) is not None


@pytest.mark.parametrize(
    ("change", "dtype", "chosen"),
    [
        ({}, "fp16", True),
        ({}, "bf16", False),
        ({"kernel": (5, 5)}, "fp16", True),
        ({"kernel": (7, 7)}, "fp16", False),
        ({"kernel": (3, 5)}, "fp16", False),
        ({"stride": (2, 2)}, "fp16", False),
        ({"dilation": (2, 2)}, "fp16", False),
        ({"in_channels": 31, "out_channels": 31, "groups": 31}, "fp16", False),
        ({"size": (8, 7)}, "fp16", True),
        ({"size": (8, 6)}, "fp16", False),
    ],
)
def test_torch_chooses_cudnn_for_small_square_windows_of_fp16_maps(change: dict[str, Any], dtype: str, chosen: bool) -> None:
    assert _fp16_by_cudnn(replace(MAP, **change), dtype) is chosen


SLOW = replace(
    H200, sms=10, fp32_macs=10, half_macs=100, clock_hz=1.0, tensor_fraction=0.5, dram_bytes_per_s=1000.0, copy_fraction=0.5
)


def kernel(body: Convolution, dtype: str, *, channels_last: bool) -> Kernel:
    x, w = (body.batch, body.in_channels, *body.size), (body.out_channels, 1, *body.kernel)
    tensors = tuple(TensorSpec(shape, dtype) for shape in (x, w, (body.batch, body.out_channels, *body.out_size)))
    inputs, outputs = {"forward": ((0, 1), (2,)), "grad_input": ((2, 1), (0,)), "grad_weight": ((2, 0), (1,))}[body.product]
    op = Op(body=body, inputs=inputs, outputs=outputs)
    traffic = Traffic(SLOW, Step("one", 1, (op,), tensors), (op,), Cache(0.0))
    return depthwise(SLOW, body, dtype, traffic, channels_last=channels_last)


def test_a_window_kernel_reads_its_operands_and_writes_its_result_once() -> None:
    small = replace(MAP, stride=(2, 2))
    for product, launches in (("forward", 1), ("grad_input", 1), ("grad_weight", 2)):
        body = small.as_product(product)  # type: ignore[arg-type]
        first, last = kernel(body, "bf16", channels_last=False), kernel(body, "bf16", channels_last=True)
        assert sum(first.bytes.values()) == sum(last.bytes.values()) == 2 * (ELEMENTS + ELEMENTS // 4 + 32 * 9)
        assert (first.launches, last.launches) == (1, launches)
        assert first.compute_s == pytest.approx(_torch(body) / 100)
        assert last.compute_s == pytest.approx((_cudnn(body, HALF) or 0) / 100)
        assert first.macs == last.macs == body.macs


def test_an_implicit_product_pads_its_groups_and_transposes_both_maps() -> None:
    """9 x 9 in 16 bits: a group is padded to 16 x 32 channels; maps of x and y go out and in again."""
    body = replace(MAP, kernel=(9, 9), padding=(4, 4), stride=(2, 2)).as_product("grad_weight")
    found = kernel(body, "bf16", channels_last=True)
    product = ELEMENTS / 4 * 81 * 16 * 32 / (10 * 100 * 0.5)
    copies = 2 * 2 * (ELEMENTS + ELEMENTS / 4) / 500
    assert found.compute_s == pytest.approx(product + copies)
    assert (found.launches, found.macs) == (5, body.macs)
