"""Depthwise convolutions by memory format, window and element type, against micro-benchmarks of an H200."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
