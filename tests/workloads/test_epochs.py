"""One random batch of each epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.workloads.epochs import random_batches


@given(epochs=st.integers(1, 50), steps=st.integers(1, 10_000), seed=st.integers(0, 2**31))
def test_one_step_of_each_epoch_in_order(epochs: int, steps: int, seed: int) -> None:
    numbers = random_batches(epochs, steps, seed)
    assert [number // steps for number in numbers] == list(range(epochs))
    assert numbers == random_batches(epochs, steps, seed)
    assert numbers[: epochs - 1] == random_batches(max(1, epochs - 1), steps, seed)[: epochs - 1], "a longer run begins alike"


def test_every_place_of_an_epoch_can_be_drawn() -> None:
    assert {number % 5 for number in random_batches(200, 5, seed=1)} == set(range(5))
    assert random_batches(8, 1000, seed=1) != random_batches(8, 1000, seed=2)


@pytest.mark.parametrize("wrong", [(0, 5), (5, 0), (True, 5), (2.0, 5), (5, -1)])
def test_wrong_counts_are_refused(wrong: tuple) -> None:
    with pytest.raises(BadInput, match="must be a whole number of at least 1"):
        random_batches(*wrong)
