"""A machine's clock beside the numbers: when exchanges happen, what they cost, how old parameters are, and what is written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.dsc.sync_interval import Interval
from trainyard.hardware.dsc.token_arbiter import Arbiter
from trainyard.hardware.formats.qsgd import Qsgd
from trainyard.mapping.algorithms import (
    Algorithm,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Rates,
    Synchronous,
)
from trainyard.systems.pim.systems import DpuToDpu
from trainyard.training import Data, History, LogisticRegression, train
from trainyard.training.clock import grant_times
from trainyard.training.data import linear_problem

DATA = linear_problem(samples=960, features=8, test_samples=200, noise=0.0)
RATES = Rates(
    workers=8, cluster_size=2, step_s=(1.0,), reduce_s=0.25, exchange_s=4.0, update_s=0.5, token_s=0.125,
    message_bytes=32, exchange_bytes=1000, reduce_bytes=80,
)  # fmt: skip


def run(algorithm: Algorithm, **changes: Any) -> History:
    options: dict[str, Any] = {"workers": 8, "cluster_size": 2, "batch": 4, "learning_rate": 0.5, "steps": 12, "rates": RATES}
    options |= changes
    if isinstance(algorithm, Direct) and options["rates"] is not None:
        del options["cluster_size"]
    return train(LogisticRegression(8), options.pop("data", DATA), algorithm=algorithm, **options)


def test_synchronous_sgd_waits_for_every_exchange() -> None:
    history = run(Synchronous())
    assert history.time_s == 12 * (1.25 + 4)
    assert history.exchange_latency_s == 4
    assert history.age_steps.counts == {1: 96}
    assert history.age_s.counts == {1.25: 8, 5.25: 88}
    assert history.barrier_wait_s == 0
    assert (history.bytes_global, history.bytes_local) == (12 * 1000, 12 * 80)


def test_one_slow_worker_holds_up_all_the_others() -> None:
    slow = replace(RATES, step_s=(1.0,) * 7 + (3.0,))
    history = run(ModelAveraging(4), rates=slow)
    assert history.time_s == 3 * (4 * 3.25 + 4)
    assert history.barrier_wait_s == 3 * 7 * 4 * 2
    assert history.age_s.largest == 4 * 3.25 + 4


def test_averaging_clusters_enter_one_after_another() -> None:
    """Four clusters, 4 steps, the token four times, one exchange."""
    history = run(Direct(3))
    assert history.time_s == 3 * (4 * 1.25 + 4 * 0.125 + 4)
    assert history.exchange_latency_s == 4 * 0.125 + 4
    assert history.token_wait_s == 3 * (1 + 2 + 3) * 0.125
    assert history.barrier_wait_s == 3 * (1 + 2 + 3) * 0.125
    assert history.age_steps.counts == {1: 12, 2: 12, 3: 12, 4: 12}
    assert history.age_s.largest == 4 * 1.25 + 4.5
    assert [one.age_steps.tolist() for one in history.exchanges] == [[4] * 4] * 3


def test_literal_holds_the_token_through_its_exchange() -> None:
    """All four ask at 5 s; each exchanges alone, so the last of them waited for three exchanges."""
    history = run(Direct(3, update="literal"), steps=4)
    assert [one.end_s for one in history.exchanges] == [5 + turn * 4.125 for turn in (1, 2, 3, 4)]
    assert [one.token_wait_s for one in history.exchanges] == [turn * 4.125 for turn in range(4)]
    assert history.lost_steps == 3 * 3
    served = run(Direct(3, update="literal", recheck=True), steps=4)
    assert [one.end_s for one in served.exchanges] == [5 + 4.125]


def test_news_takes_a_round_by_way_of_a_centre_and_a_step_a_hop_in_a_ring() -> None:
    assert run(ElasticAveraging(3), rates=None).age_steps.largest == 6
    assert run(DecentralizedSgd(), rates=None).age_steps.largest == 8 // 2 + 1
    assert run(Synchronous(), rates=None).age_steps.largest == 1


def test_the_centre_serves_one_after_another_without_a_barrier() -> None:
    """All come at 3.75 s; the last of eight is served at 7.75 s, and the first is back for more by then."""
    history = run(ElasticAveraging(3), steps=6)
    assert [one.end_s for one in history.exchanges] == [3.75 + 8 * 0.5, 3.75 + 8 * 0.5 + 3.75 + 0.5]
    assert history.barrier_wait_s == sum(range(8)) * 0.5


@pytest.mark.parametrize("paces", [(1.0,), (0.25, 1.0), (1.0, 3.0, 0.5, 0.5)])
@pytest.mark.parametrize("period", [1, 2])
def test_the_centre_never_does_more_than_one_exchange_at_a_time(period: int, paces: tuple[float, ...]) -> None:
    """Eight workers keep it busy from when the first comes until all have been served, round after round."""
    rates = replace(RATES, reduce_s=0.0, update_s=1.0, step_s=paces)
    history = run(ElasticAveraging(period), rates=rates, steps=10)
    rounds = 10 // period
    assert history.time_s >= period * min(paces) + rounds * 8 * 1.0
    if len(paces) == 1:
        assert history.time_s == period * 1.0 + rounds * 8 * 1.0
        assert [one.end_s for one in history.exchanges] == [period + number * 8.0 for number in range(1, rounds + 1)]


def test_a_fast_worker_does_not_wait_for_the_slow_ones_at_the_centre() -> None:
    """Seven workers of 1 s keep it busy, from 1 s on, with their 70 exchanges; one of 100 s never finds anybody there."""
    history = run(ElasticAveraging(1), rates=replace(RATES, reduce_s=0.0, step_s=(1.0,) * 7 + (100.0,)), steps=10)
    assert history.time_s == 10 * 100.5
    served = [1 + 9 * 3.5 + turn * 0.5 for turn in range(1, 8)]
    assert history.barrier_wait_s == sum(served) - 7 * 10 * 1.5
    assert min(history.age_s.counts) == 0


@pytest.mark.probe
@pytest.mark.parametrize(("second", "first_granted"), [(61, 1), (62, 2)])
def test_priority_counts_how_many_times_tau_a_cluster_is_above_it(second: int, first_granted: int) -> None:
    """Clusters 1 and 2 come while 0 has the token, 1 before 2: only twice tau puts 2 before 1."""
    arbiter, arrivals = Arbiter(order="priority", ageing=None), np.array([0, 1, 2])
    granted, _ = grant_times(arbiter, arrivals, np.array([32, 61, second]), tau=31, token=5, turn=0)
    assert granted[first_granted] == 5
    assert sorted(granted.tolist()) == [0, 5, 10]


@pytest.mark.probe
@pytest.mark.parametrize("update", ["averaging", "literal"])
@pytest.mark.parametrize(("tau", "steps"), [(3.75 - 1e-12, 3), (3.75, 4), (5.0 - 1e-12, 4), (5.0, 5)])
def test_staleness_must_exceed_tau_by_a_picosecond(update: Any, tau: float, steps: int) -> None:
    """Steps of 1.25 s: tau of three steps lets a fourth pass, a picosecond less does not."""
    free = replace(RATES, exchange_s=0.0, token_s=0.0)
    history = run(Direct(tau, unit="s", update=update, recheck=True), rates=free, steps=60)
    assert [one.start_s for one in history.exchanges] == [1.25 * steps * number for number in range(1, 60 // steps + 1)]
    assert free.local_steps(Direct(tau, unit="s"))[0] == steps


def test_faster_clusters_take_more_steps_when_tau_is_in_seconds() -> None:
    rates = replace(RATES, step_s=(0.25, 0.75, 1.75, 2.75), exchange_s=0.0, token_s=0.0)
    history = run(Direct(5.9, unit="s"), rates=rates, steps=12)
    assert history.exchanges[0].age_steps.tolist() == list(rates.local_steps(Direct(5.9, unit="s"))) == [12, 6, 3, 2]
    assert history.steps == 12


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("update", ["averaging", "literal"])
def test_compressed_exchanges_send_the_bits_of_qsgd(bits: int, update: Any) -> None:
    data = linear_problem(samples=4096, features=64, test_samples=500, noise=0.0)
    options: dict[str, Any] = {"workers": 8, "cluster_size": 2, "batch": 8, "learning_rate": 0.5, "epochs": 4}
    plain, packed = (
        train(LogisticRegression(64), data, algorithm=Direct(7, update=update, recheck=True, compression_bits=one), **options)
        for one in (None, bits)
    )
    share = Qsgd(bits=bits).packed_bits(64) / (64 * 32)
    expected = share if update == "averaging" else (1 + share) / 2
    assert packed.bytes_global == pytest.approx(plain.bytes_global * expected, rel=1e-3)
    assert len(packed.exchanges) == len(plain.exchanges)
    assert (packed.weights != plain.weights).any()
    assert packed.accuracy > plain.accuracy - 0.05


def test_an_adaptive_interval_grows_where_clusters_agree_and_shrinks_where_they_drift() -> None:
    def intervals(shards: str) -> list[int]:
        history = run(Direct(7, adaptive=True), rates=None, steps=300, shards=shards, interval=Interval(1, 64, target=0.05))
        return [int(one.age_steps.max()) for one in history.exchanges]

    even, skewed = intervals("iid"), intervals("label")
    assert even[0] == skewed[0] == 8
    assert np.mean(even) > np.mean(skewed)
    with pytest.raises(NotModelled, match="write unit='steps'"):
        run(Direct(7, unit="s", adaptive=True))


def test_evaluations_are_where_they_were_asked_for() -> None:
    history = run(Direct(3), evaluate_every=5)
    assert history.curve()["step"] == [0, 5, 10, 12]
    assert history.curve()["time_s"] == [0, 4 * 1.25 + 4.5 + 1.25, 2 * 9.5 + 2.5, 3 * 9.5]
    assert history.curve()["epoch"] == [0, 160 / 960, 320 / 960, 384 / 960]
    assert run(Synchronous(), evaluate_every=5).curve()["step"] == [0, 5, 10, 12]
    assert run(Direct(3, update="literal"), evaluate_every=5, rates=None).curve()["step"] == [0, 5, 10, 12]
    assert history.time_to(0.0) == 0.0
    assert history.time_to(1.1) is None
    reached = history.evaluations[-1].accuracy
    assert history.time_to(reached) <= history.time_s
    assert set(history.exchange_table()) >= {"start_s", "latency_s", "bytes", "age_s_mean", "age_steps_largest"}
    assert history.row()["exchanges"] == 3


def test_progress_is_reported_from_first_to_last_step() -> None:
    told: list[tuple[int, int]] = []
    run(Direct(3), evaluate_every=6, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(6, 12), (12, 12)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers must be a positive whole number, got 0"),
        ({"cluster_size": 3, "rates": None}, "cluster_size=3 does not divide 8 workers: write cluster_size=2, say"),
        ({"cluster_size": 0, "rates": None}, "cluster_size must be a positive whole number"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"batch": 0}, "batch must be a positive"),
        ({"steps": None}, "give epochs or steps"),
        ({"epochs": 1}, "give epochs or steps"),
        ({"steps": 0}, "steps must be a positive"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"workers": 16}, "rates are of a machine with 8 workers: write workers=8"),
        ({"rates": replace(RATES, step_s=(1.0,) * 3)}, "step_s has 3 entries for 8 groups"),
        ({"rates": replace(RATES, step_s=(0.0,))}, "every step_s must be above 0"),
        ({"evaluate_every": 0}, "evaluate_every must be a positive"),
        ({"workers": 2048, "rates": None}, "960 samples for 2048 workers"),
    ],
)
def test_wrong_arguments_of_train_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run(Synchronous(), **changes)


def test_unknown_algorithms_and_wrong_rates_are_refused() -> None:
    class Mine(GradientAveraging):
        pass

    with pytest.raises(UnknownName, match="unknown algorithm 'Mine'"):
        run(Mine())
    with pytest.raises(BadInput, match=r"algorithm='direct' is none: write algorithm=ty\.algorithms\.Direct\(31\)"):
        run("direct")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"got DpuToDpu: write rates=machine\.rates\(step\)"):
        run(Direct(3), rates=DpuToDpu(dpus=8))
    with pytest.raises(BadInput, match="leave cluster_size=4 out"):
        train(LogisticRegression(8), DATA, algorithm=Direct(), workers=8, cluster_size=4, learning_rate=1, steps=1, rates=RATES)
    with pytest.raises(BadInput, match="2 samples and 1 targets"):
        Data(features=np.zeros((2, 1)), targets=np.zeros(1), test_features=np.zeros((1, 1)), test_targets=np.zeros(1))
    with pytest.raises(BadInput, match="leaves one part empty"):
        DATA.held_out(0.0)
    with pytest.raises(BadInput, match="give 0 to 100"):
        run(Synchronous()).age_s.percentile(101)
