"""A step of logistic regression on tasklets: its numbers against numpy's, its program against the twin of the pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from dpu_linear_step import TABLE_ENTRIES, TABLE_RANGE, LinearStep, sigmoid_table, to_fixed
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.dpu_pipeline import plain
from trainyard.errors import BadInput
from trainyard.hardware.dpu.pipeline import Pipeline

SHAPES = {
    "features": st.integers(1, 700), "batch": st.integers(1, 12), "tasklets": st.integers(1, 24), "seed": st.integers(0, 99),
}  # fmt: skip


def drawn(features: int, batch: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.uniform(-1, 1, (batch, features)), random.integers(0, 2, batch), random.normal(0, 0.2, features)


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_fixed_point_is_bit_equal_to_integers_of_numpy(features: int, batch: int, tasklets: int, seed: int) -> None:
    bits = 12
    rows, labels, weights = (to_fixed(given) for given in drawn(features, batch, seed))
    found = LinearStep(features=features, batch=batch, tasklets=tasklets).execute(rows, labels, weights, 0.1)

    def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        low = (a.astype(np.int64) * b) & 0xFFFFFFFF
        return ((low ^ 0x80000000) - 0x80000000) >> bits

    z = times(rows, weights).sum(axis=1).astype(np.int32).astype(np.int64)
    place = np.minimum(np.abs(z) * TABLE_ENTRIES // (TABLE_RANGE << bits), TABLE_ENTRIES - 1)
    half = sigmoid_table(bits)[place]
    errors = np.where(z >= 0, half, (1 << bits) - half) - labels
    gradient = times(rows, errors[:, None]).sum(axis=0)
    new = weights - times(gradient, np.int64(round(0.1 / batch * 2**bits)))
    assert np.array_equal(found.errors, errors)
    assert np.array_equal(found.weights, new.astype(np.int32))


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_float_is_numpy_within_rounding(features: int, batch: int, tasklets: int, seed: int) -> None:
    rows, labels, weights = drawn(features, batch, seed)
    found = LinearStep(features=features, batch=batch, tasklets=tasklets, number="fp32").execute(rows, labels, weights, 0.1)
    errors = 1 / (1 + np.exp(-rows @ weights)) - labels
    assert found.errors.dtype == np.float32
    assert np.allclose(found.errors, errors, atol=1e-5)
    assert np.allclose(found.weights, weights - 0.1 / batch * (errors @ rows), atol=1e-5)


def test_the_table_is_the_sigmoid_to_its_step() -> None:
    """Half a step of the table at the steepest place, and half a unit of the last place."""
    z = np.linspace(0, TABLE_RANGE, 5000, endpoint=False)
    place = (z * TABLE_ENTRIES / TABLE_RANGE).astype(int)
    worst = np.abs(sigmoid_table(12)[place] / 4096 - 1 / (1 + np.exp(-z))).max()
    assert worst < 0.25 * TABLE_RANGE / TABLE_ENTRIES / 2 + 0.5 / 4096


@pytest.mark.oracle
@settings(max_examples=15, deadline=None)
@given(features=st.integers(1, 60), batch=st.integers(1, 4), tasklets=st.integers(1, 24))
def test_its_program_runs_the_same_compiled_and_plain(features: int, batch: int, tasklets: int) -> None:
    step, pipeline = LinearStep(features=features, batch=batch, tasklets=tasklets), Pipeline()
    twin = plain(pipeline, step.program())
    assert pipeline.simulate(step.program(), issues=1_000_000) == twin


@settings(max_examples=60, deadline=None)
@given(features=st.integers(1, 9000), tasklets=st.integers(1, 24))
def test_every_feature_has_one_tasklet_and_blocks_fit(features: int, tasklets: int) -> None:
    step = LinearStep(features=features, tasklets=tasklets)
    blocks = [block for tasklet in range(tasklets) for block in step.blocks(tasklet)]
    assert [low for low, _ in blocks] == [0, *(high for _, high in blocks[:-1])]
    assert blocks[-1][1] == features
    assert tasklets * (3 * 4 * step.block + step.stack_bytes) <= step.wram_bytes
    assert all(low % 2 == 0 and high - low <= step.block for low, high in blocks)


def test_stacks_that_fill_wram_are_refused() -> None:
    with pytest.raises(BadInput, match="give fewer tasklets"):
        LinearStep(features=64, tasklets=24, wram_bytes=24 * 1024)
