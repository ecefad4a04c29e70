"""The choice of tau and cluster size is the least simulated time of all that were tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.hardware.dsc.unit import Dsc
from trainyard.mapping.algorithms import Direct
from trainyard.systems.pim.systems import DpuToDpu, HostMediated
from trainyard.training import LogisticRegression, train
from trainyard.training.choice import CLUSTER_SIZES, TAUS, choose, cluster_sizes_of
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
    cheap = choose(MODEL, DATA, machine=MACHINE, target=0.9, cluster_sizes=(8,), **OPTIONS).best  # type: ignore[arg-type]
    dear = choose(MODEL, DATA, machine=slow, target=0.9, cluster_sizes=(8,), **OPTIONS).best  # type: ignore[arg-type]
    assert dear.tau >= cheap.tau
    assert dear.tau > 0


def test_choose_refuses_wrong_arguments_and_unreached_targets() -> None:
    with pytest.raises(BadInput, match=r"none of 3 pairs reaches 0\.999"):
        choose(MODEL, DATA, machine=MACHINE, target=0.999, cluster_sizes=(8,), **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="talk to each other"):
        choose(MODEL, DATA, machine=HostMediated(), target=0.9, **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="accuracy between 0 and 1"):
        choose(MODEL, DATA, machine=MACHINE, target=90, **OPTIONS)  # type: ignore[arg-type]


def test_by_default_every_size_that_fits_is_tried_with_every_tau() -> None:
    options = {name: value for name, value in OPTIONS.items() if name != "taus"}
    choice = choose(MODEL, DATA, machine=MACHINE, target=0.85, **options)  # type: ignore[arg-type]
    assert {(trial.cluster_size, trial.tau) for trial in choice.trials} == {(size, tau) for size in (8, 16) for tau in TAUS}
    assert choice.best.time_s == min(trial.time_s for trial in choice.trials if trial.time_s is not None)


@pytest.mark.probe
def test_sizes_leave_two_clusters_and_fit_the_dsc() -> None:
    assert cluster_sizes_of(DpuToDpu()) == CLUSTER_SIZES
    assert cluster_sizes_of(DpuToDpu(dpus=15)) == (15,)
    assert cluster_sizes_of(DpuToDpu(dpus=16)) == (8, 16)  # its own is one cluster of 16
    assert cluster_sizes_of(DpuToDpu(dsc=Dsc(entries=128))) == (16, 32, 64, 128)
    assert cluster_sizes_of(DpuToDpu(dsc=Dsc(entries=127))) == (32, 64, 128)
    assert cluster_sizes_of(DpuToDpu(dsc=None)) == CLUSTER_SIZES
    assert cluster_sizes_of(DpuToDpu(speeds=(1, 0.5))) == (64,)  # every second cluster is slow: a rank of 64
    for machine in (DpuToDpu(), DpuToDpu(dpus=16), DpuToDpu(dsc=Dsc(entries=128))):
        for size in cluster_sizes_of(machine):
            replace(machine, cluster_size=size)  # none is refused
