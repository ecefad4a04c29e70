"""The choice of tau and cluster size is the least simulated time of all that were tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.mapping.algorithms import Direct
from trainyard.parts.dsc import Dsc
from trainyard.systems.pim import DpuToDpu, HostMediated
from trainyard.training import LogisticRegression, train
from trainyard.training.choice import choose
from trainyard.training.data import linear_problem

STEP = ty.zoo.load("linear", batch=8)
DATA = linear_problem(samples=4096, features=24, noise=0.02, seed=3)
MODEL = LogisticRegression(24)
MACHINE = DpuToDpu(dpus=32, cluster_size=8)
OPTIONS = {"step": STEP, "learning_rate": 0.5, "epochs": 3, "evaluate_every": 4, "taus": (0, 3, 15)}


def test_the_best_pair_is_the_one_that_brute_force_finds() -> None:
    sizes = (4, 8, 16)
    choice = choose(MODEL, DATA, machine=MACHINE, target=0.9, cluster_sizes=sizes, **OPTIONS)  # type: ignore[arg-type]
    times = {}
    for size in sizes:
        for tau in (0, 3, 15):
            machine = replace(MACHINE, cluster_size=size, algorithm=Direct(tau))
            history = train(
                MODEL, DATA, algorithm=machine.algorithm, rates=machine.rates(STEP), workers=32, batch=8, learning_rate=0.5,
                epochs=3, evaluate_every=4,
            )  # fmt: skip
            times[tau, size] = history.time_to(0.9)
    assert {(trial.tau, trial.cluster_size): trial.time_s for trial in choice.trials} == times
    assert choice.best.time_s == min(time for time in times.values() if time is not None)
    assert choice.machine.cluster_size == choice.best.cluster_size
    assert choice.machine.algorithm == Direct(choice.best.tau)
    assert len(choice.rows()) == 9


def test_dear_tokens_make_a_larger_tau_the_better_one() -> None:
    slow = replace(MACHINE, dsc=Dsc(clock_hz=1e4))  # an exchange costs as much as many steps
    cheap = choose(MODEL, DATA, machine=MACHINE, target=0.9, **OPTIONS).best  # type: ignore[arg-type]
    dear = choose(MODEL, DATA, machine=slow, target=0.9, **OPTIONS).best  # type: ignore[arg-type]
    assert dear.tau >= cheap.tau
    assert dear.tau > 0


def test_what_cannot_be_chosen_is_said() -> None:
    with pytest.raises(BadInput, match=r"none of 3 pairs reaches 0\.999"):
        choose(MODEL, DATA, machine=MACHINE, target=0.999, **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="talk to each other"):
        choose(MODEL, DATA, machine=HostMediated(), target=0.9, **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="accuracy between 0 and 1"):
        choose(MODEL, DATA, machine=MACHINE, target=90, **OPTIONS)  # type: ignore[arg-type]
