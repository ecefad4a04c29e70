"""Fused attention and norms on an H200: predicted kernel times against micro-benchmarks."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.ir import MatMul, Op, Phase, Reduction, Step, TensorSpec
from trainyard.machines.presets.gpus import H200

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "h200_models.json.gz"
KERNELS = replace(H200, graphs=True, gap_s=1e-15)


@cache
def measured() -> list[Any]:
    with gzip.open(DATA, "rt") as stream:
        return list(json.load(stream)["kernels"])


def seconds(step: Step) -> float:
    return sum(KERNELS.cost(step, work).cycles for work in KERNELS.works(step)) / KERNELS.clock_hz


def attention(
    batch: int, heads: int, queries: int, keys: int, width: int, dtype: str, *, causal: bool = False, masked: bool = False,
    backward: bool = False,
) -> Step:  # fmt: skip
    """One fused kernel: the products of queries, scores and values; backward five products, with the scores made again."""
    kernel = f"{'causal_' if causal else ''}flash_attention"
    q, k, s = (batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, queries, keys)
    tensors = [TensorSpec(shape, dtype) for shape in (q, k, k, s, s, q, q, q, k, k, s, s)]
    mask = (len(tensors),) if masked else ()
    tensors += [TensorSpec((batch, 1, queries, keys), dtype)] if masked else []
    count = batch * heads
    scores, values, gradient = (
        MatMul(queries, keys, width, count),
        MatMul(queries, width, keys, count),
        MatMul(keys, width, queries, count),
    )
    softmax = Reduction("softmax", count * queries * keys, count * queries * keys, 3)
    rows: list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]] = [
        ("scores", scores, (0, 1, *mask), (3,)), ("softmax", softmax, (3,), (4,)), ("values", values, (4, 2), (5,)),
    ]  # fmt: skip
    if backward:
        rows = [
            ("scores", scores, (0, 1, *mask), (3,)), ("softmax", softmax, (3,), (4,)), ("grad_values", gradient, (4, 6), (9,)),
            ("grad_probabilities", scores, (6, 2), (10,)), ("grad_softmax", softmax, (10, 4), (11,)),
            ("grad_queries", values, (11, 1), (7,)), ("grad_keys", gradient, (11, 0), (8,)),
        ]  # fmt: skip
    phase = Phase.GRAD_INPUT if backward else Phase.FORWARD
    ops = tuple(
        Op(body=body, name=f"{kernel}.{name}", layer="attention", phase=phase, inputs=inputs, outputs=outputs, fused=0)
        for name, body, inputs, outputs in rows
    )
    return Step("attention", batch, ops, tuple(tensors))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("backward", [False, True])
def test_predicted_times_of_fused_attention_are_near_the_measured_ones(dtype: str, backward: bool) -> None:
    """But for heads that share keys in fp32, which torch does not fuse."""
    ratios = []
    for op, kind, shape, microseconds in measured():
        if op != ("attention backward" if backward else "attention") or kind != dtype:
            continue
        batch, heads, groups, queries, keys, width, causal, masked = shape
        if groups == heads or dtype != "fp32":
            step = attention(batch, heads, queries, keys, width, dtype, causal=causal, masked=masked, backward=backward)
            ratios.append(seconds(step) / microseconds * 1e6)
    assert len(ratios) >= 14
    assert 0.85 < statistics.geometric_mean(ratios) < 1.1
    assert statistics.median(abs(ratio - 1.0) for ratio in ratios) < 0.12
    assert min(ratios) > 0.4
    assert max(ratios) < 1.25


@given(
    queries=st.integers(1, 3000), keys=st.integers(1, 3000), width=st.sampled_from((8, 20, 40, 64, 96, 128, 256)),
    dtype=st.sampled_from(("bf16", "fp16", "fp32")), backward=st.booleans(),
)  # fmt: skip
def test_a_causal_kernel_is_never_slower_and_a_mask_never_faster(
    queries: int, keys: int, width: int, dtype: str, backward: bool
) -> None:
    plain = seconds(attention(2, 8, queries, keys, width, dtype, backward=backward))
    assert seconds(attention(2, 8, queries, keys, width, dtype, causal=True, backward=backward)) <= plain
    assert seconds(attention(2, 8, queries, keys, width, dtype, masked=True, backward=backward)) >= plain


def test_lengths_of_one_block_take_the_same_time() -> None:
    """129 to 256 tokens are two blocks of 128: 197 tokens of a vision transformer cost as many scores as 256."""
    times = [seconds(attention(64, 12, length, length, 64, "bf16")) for length in (128, 129, 197, 256, 257)]
    assert times[0] < times[1] == pytest.approx(times[2], rel=0.05)
    assert times[2] == pytest.approx(times[3], rel=0.05)
    assert times[3] < times[4]


def norm(function: str, shape: tuple[int, ...], dtype: str, *, backward: bool, channels_last: bool = False) -> Step:
    elements = TensorSpec(shape, dtype).elements
    tensors = (TensorSpec(shape, dtype, channels_last=channels_last),) * 3
    inputs, outputs = ((0, 1), (2,)) if backward else ((0,), (2,))
    phase = Phase.GRAD_INPUT if backward else Phase.FORWARD
    name = f"{function}_backward" if backward else function
    op = Op(body=Reduction(name, elements, elements, 2), name=name, inputs=inputs, outputs=outputs, phase=phase)
    return Step(name, shape[0], (op,), tensors)


@pytest.mark.parametrize("function", ["layer_norm", "group_norm", "batch_norm"])
@pytest.mark.parametrize("backward", [False, True])
def test_predicted_times_of_norms_are_near_the_measured_ones(function: str, backward: bool) -> None:
    ratios: dict[str, list[float]] = {}
    for op, kind, shape, microseconds in measured():
        if op == (f"{function} backward" if backward else function):
            dtype, _, form = kind.partition(" ")
            step = norm(function, tuple(shape), dtype, backward=backward, channels_last=form == "nhwc")
            ratios.setdefault(kind, []).append(seconds(step) / microseconds * 1e6)
    assert len(ratios) == (4 if function == "batch_norm" else 2)
    for kind, found in ratios.items():
        assert 0.7 < statistics.geometric_mean(found) < 1.3, (kind, found)


def test_batch_norm_of_few_channels_is_faster_in_channels_last() -> None:
    first, last = (
        seconds(norm("batch_norm", (64, 64, 112, 112), "bf16", backward=True, channels_last=form)) for form in (False, True)
    )
    assert first > 3 * last
