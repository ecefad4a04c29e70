"""A training run takes the time that `ty.run` says: one clock, whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from trainyard.systems.pim import DpuToDpu, HostMediated
from trainyard.training import LogisticRegression, train
from trainyard.training.data import linear_problem

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


def test_elastic_averaging_serves_one_worker_after_another() -> None:
    machine = HostMediated(dpus=16, algorithm=ElasticAveraging(1))
    trained, planned = both(machine, 64)
    assert trained == pytest.approx(planned, rel=0.1)  # the plan shows four rounds of it
