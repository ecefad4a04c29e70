"""The adaptive interval: within bounds, monotone, at rest at its target; and the two measures of drift."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.dsc.sync_interval import Interval, drift, drift_bound

intervals = st.builds(
    lambda smallest, more, target, gain, fastest: Interval(smallest, smallest + more, target, gain, fastest),
    st.integers(1, 50),
    st.integers(0, 500),
    st.floats(1e-6, 10),
    st.floats(0.1, 1),
    st.floats(1.05, 8),
)
drifts = st.floats(0, 1e6) | st.just(math.inf)


@pytest.mark.unit
@given(interval=intervals, current=st.integers(1, 1000), one=drifts, other=drifts)
def test_bounded_and_monotone_in_drift(interval, current, one, other) -> None:
    less, more = (interval.next(current, each) for each in sorted((one, other)))
    assert interval.smallest <= more <= less <= interval.largest


@pytest.mark.unit
@given(interval=intervals, data=st.data())
def test_drift_at_the_target_changes_nothing_and_any_other_moves_one_step_at_least(interval, data) -> None:
    current = data.draw(st.integers(interval.smallest, interval.largest))
    assert interval.next(current, interval.target) == current
    more, less = interval.next(current, interval.target * 1.5), interval.next(current, interval.target / 1.5)
    assert more < current or more == interval.smallest
    assert less > current or less == interval.largest
    assert math.floor(current / interval.fastest) <= max(more, 1)
    assert less <= math.ceil(current * interval.fastest)


@pytest.mark.oracle
@given(interval=intervals, rate=st.floats(1e-7, 1e2), begin=st.integers(1, 500))
def test_drift_in_proportion_to_the_interval_settles_at_the_target(interval, rate, begin) -> None:
    """Where target / rate steps would meet the target, within one step of that, or at the limit that is nearest."""
    ideal = min(max(interval.target / rate, interval.smallest), interval.largest)
    current = begin
    for _ in range(600):
        current = interval.next(current, rate * current)
    for _ in range(10):
        assert math.floor(ideal) - 1 <= current <= math.ceil(ideal) + 1
        current = interval.next(current, rate * current)


@pytest.mark.oracle
@given(
    clusters=st.integers(1, 6), parameters=st.integers(1, 8), seed=st.integers(0, 2**32 - 1),
    steps=st.lists(st.integers(0, 5), min_size=6, max_size=6),
)  # fmt: skip
def test_drift_never_exceeds_its_bound_from_one_number_of_each_cluster(clusters, parameters, seed, steps) -> None:
    generator = np.random.default_rng(seed)
    start = generator.normal(size=parameters) + 3
    models, norms = np.repeat(start[None], clusters, axis=0), np.zeros(clusters)
    for cluster in range(clusters):
        for _ in range(steps[cluster]):
            gradient = generator.normal(size=parameters)
            norms[cluster] = max(norms[cluster], np.linalg.norm(gradient))
            models[cluster] -= 0.1 * gradient
    length = float(np.linalg.norm(models.mean(axis=0)))
    bound = drift_bound(norms.tolist(), steps[:clusters], learning_rate=0.1, model_norm=length)
    by_hand = math.sqrt(sum(np.linalg.norm(model - models.mean(axis=0)) ** 2 for model in models) / clusters) / length
    assert drift(models) == pytest.approx(by_hand)
    assert drift(models) <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.unit
def test_models_that_agree_have_not_drifted_and_a_mean_of_nothing_is_infinitely_far() -> None:
    assert drift(np.ones((4, 3))) == 0
    assert drift(np.zeros((4, 3))) == 0
    assert drift(np.array([[1.0], [-1.0]])) == math.inf
    assert Interval(1, 64).next(32, math.inf) == 16


@pytest.mark.unit
def test_invalid_arguments_raise() -> None:
    for arguments, message in (
        ((0, 4), "smallest must be a positive"),
        ((5, 4), "smallest=5 is above largest=4"),
        ((1, 4, 0.0), "target must be above 0"),
        ((1, 4, 0.1, 0.5, 1.0), "fastest must be above 1"),
    ):
        with pytest.raises(BadInput, match=message):
            Interval(*arguments)
    for value in (-0.1, math.nan):
        with pytest.raises(BadInput, match="drift must be"):
            Interval().next(4, value)
    with pytest.raises(BadInput, match="current must be a positive"):
        Interval().next(0, 0.1)
    with pytest.raises(BadInput, match="models must be"):
        drift(np.ones(3))
    with pytest.raises(BadInput, match="2 gradient norms and 1 stalenesses"):
        drift_bound([1.0, 1.0], [1], learning_rate=0.1, model_norm=1.0)
