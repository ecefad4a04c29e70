"""A training run takes the time that `ty.run` says: one clock, whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import trainyard as ty
from trainyard.mapping.algorithms import (
    ADMM,
    Algorithm,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Synchronous,
)
from trainyard.systems.pim.systems import DpuToDpu, HostMediated
from trainyard.training import LogisticRegression, train
from trainyard.training.clock import Clock, service_times
from trainyard.training.data import linear_problem
from trainyard.units import PICOSECONDS_PER_SECOND

STEP = ty.zoo.load("linear", batch=8)
DATA = linear_problem(samples=16 * 8 * 16, features=12, noise=0.02, seed=3)
MODEL = LogisticRegression(12)
ALGORITHMS = [Synchronous(), GradientAveraging(4), ModelAveraging(4), ADMM(4), DecentralizedSgd()]


def both(machine: DpuToDpu | HostMediated, steps: int) -> tuple[float, float]:
    """Seconds of so many steps, trained and planned."""
    history = train(
        MODEL, DATA, algorithm=machine.algorithm, rates=machine.rates(STEP), workers=machine.dpus, batch=8, learning_rate=0.5,
        steps=steps,
    )  # fmt: skip
    return history.time_s, ty.run(STEP, on=machine).time_s * steps


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("machine", [DpuToDpu(dpus=16, cluster_size=4), HostMediated(dpus=16)], ids=["direct", "pim-opt"])
def test_lockstep_algorithms(machine: Any, algorithm: Algorithm) -> None:
    trained, planned = both(replace(machine, algorithm=algorithm), 8)
    assert trained == pytest.approx(planned, rel=1e-9)


@pytest.mark.parametrize("changes", [{}, {"speeds": (1.0, 0.5)}, {"dsc": None}, {"agau": None}, {"cluster_size": 16}], ids=str)
def test_direct_averaging(changes: dict[str, Any]) -> None:
    machine = replace(DpuToDpu(dpus=16, cluster_size=4, algorithm=Direct(3)), **changes)
    trained, planned = both(machine, 8)
    assert trained == pytest.approx(planned, rel=1e-8)


def test_direct_literal_where_one_cluster_is_alone_with_the_token() -> None:
    machine = DpuToDpu(dpus=16, cluster_size=4, algorithm=Direct(3, update="literal", recheck=True))
    trained, planned = both(machine, 16)
    assert trained == pytest.approx(planned, rel=0.01)


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize(("dpus", "speeds"), [(16, (1.0,)), (64, (1.0,)), (128, (1.0, 0.5))])
def test_elastic_averaging_serves_one_worker_after_another(dpus: int, speeds: tuple[float, ...], period: int) -> None:
    """The plan ends when its last exchange does: the same one, in a training run, ends at the same time."""
    machine = HostMediated(dpus=dpus, algorithm=ElasticAveraging(period), speeds=speeds)
    rates, result = machine.rates(STEP), ty.run(STEP, on=machine)
    rounds, clock = result.steps // period, Clock.of(rates, dpus)
    ends = np.sort(np.concatenate(list(service_times(clock.step_ps, [period] * rounds, clock.update_ps)))) / PICOSECONDS_PER_SECOND
    planned = result.samples // (8 * period)
    assert planned > dpus
    assert result.time_s * result.steps == pytest.approx(ends[planned - 1], rel=1e-9)
    trained, _ = both(machine, result.steps)
    assert trained == pytest.approx(ends[-1], rel=1e-9)
    if len(set(rates.step_s)) == 1:
        alone, saturated = period * rates.step_s[0] + rates.update_s, dpus * rates.update_s
        assert trained == pytest.approx(alone + saturated - rates.update_s + (rounds - 1) * max(alone, saturated), rel=1e-6)
