"""Every algorithm against a plain-Python twin: loops over workers, lists, dictionaries, one event at a time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.hardware.dsc.sync_interval import Interval
from trainyard.hardware.dsc.token_arbiter import Arbiter
from trainyard.mapping.algorithms import (
    ADMM,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Rates,
    Synchronous,
)
from trainyard.training import Data, LinearSvm, LogisticRegression, Shards, train
from trainyard.training.clock import grant_times
from trainyard.training.shards import Feed

pytestmark = pytest.mark.oracle
FEATURES = 3
LEVELS = 4  # of priority that the arbiter tells apart


def data_of(seed: int, samples: int) -> Data:
    rng = np.random.default_rng(seed)
    features, targets = rng.standard_normal((samples + 5, FEATURES)), rng.integers(0, 2, samples + 5).astype(float)
    return Data(features=features[5:], targets=targets[5:], test_features=features[:5], test_targets=targets[:5])


class Plain:
    """Gradients by the definition, and a simulated machine in whole seconds."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.data = case, case["data"]
        self.model, self.rate, self.momentum = case["model"], case["learning_rate"], case["momentum"]
        self.workers, self.size = case["workers"], case["cluster_size"]
        parts = Shards(case["shards"]).deal(
            self.data.features, self.data.targets, workers=self.workers, cluster_size=self.size, seed=case["seed"]
        )
        self.feed = Feed(parts, case["batch"], case["seed"])
        self.ages: list[tuple[int, float]] = []
        self.exchanges: list[tuple[float, float]] = []
        self.waits = {"token": 0.0, "barrier": 0.0}
        self.lost = 0
        self.tau = getattr(case["algorithm"], "tau", 0)

    def adapt(self, models: list[list[float]]) -> None:
        """By the definition of drift and with the interval's own rule."""
        if self.case["algorithm"].adaptive and len(models) > 1:
            middle = mean(models)
            apart = sum(sum((w - m) ** 2 for w, m in zip(model, middle, strict=True)) for model in models) / len(models)
            length = math.sqrt(sum(m * m for m in middle))
            drift = math.sqrt(apart) / length if length else 1e30 * bool(apart)
            self.tau = Interval().next(self.tau + 1, drift) - 1

    def gradient(self, weights: list[float], worker: int, number: int) -> list[float]:
        rows = [int(row) for row in self.feed.rows(number, slice(worker, worker + 1))[0]]
        total = [0.0] * FEATURES
        for row in rows:
            sample, target = self.data.features[row].tolist(), float(self.data.targets[row])
            margin = sum(w * x for w, x in zip(weights, sample, strict=True))
            if isinstance(self.model, LogisticRegression):
                slope = 1 / (1 + math.exp(-margin)) - target
            else:
                sign = 2 * target - 1
                slope = -sign if sign * margin < 1 else 0.0
            total = [t + slope * x for t, x in zip(total, sample, strict=True)]
        return [t / len(rows) + self.model.l2 * w for t, w in zip(total, weights, strict=True)]

    def cluster_gradient(self, weights: list[float], cluster: int, number: int) -> list[float]:
        members = range(cluster * self.size, (cluster + 1) * self.size)
        return mean([self.gradient(weights, worker, number) for worker in members])

    def moved(self, weights: list[float], velocity: list[float], gradient: list[float]) -> list[float]:
        velocity[:] = [self.momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
        return [w - self.rate * v for w, v in zip(weights, velocity, strict=True)]


def mean(vectors: list[list[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def zeros() -> list[float]:
    return [0.0] * FEATURES


def centre_queue(case: dict[str, Any]) -> dict[tuple[int, int], float]:
    """When a centre begins to serve (a worker, after a step of this number): second by second, a queue and who is being served."""
    period, last, workers = case["algorithm"].local_steps, case["steps"] - 1, range(case["workers"])
    begun: dict[tuple[int, int], float] = {}
    queue: list[tuple[int, int]] = []
    steps, until = [0 for _ in workers], [case["step_s"][worker] for worker in workers]  # the step it is in, and its end
    busy, busy_until, now = -1, 0.0, 0.0
    while len(begun) < len(workers) * -(-case["steps"] // period) or busy >= 0:
        for worker in workers:
            if until[worker] == now:
                if steps[worker] == last or (steps[worker] + 1) % period == 0:
                    queue.append((worker, steps[worker]))
                    until[worker] = math.inf
                else:
                    steps[worker], until[worker] = steps[worker] + 1, now + case["step_s"][worker]
        while busy_until <= now and (busy >= 0 or queue):
            if busy >= 0:
                if steps[busy] < last:
                    steps[busy], until[busy] = steps[busy] + 1, now + case["step_s"][busy]
                busy = -1
            else:
                begun[first := queue.pop(0)] = now
                busy, busy_until = first[0], now + case["update_s"]
        now += 1
    return begun


def lockstep(case: dict[str, Any]) -> tuple[list[float], Plain]:
    plain, rule, workers = Plain(case), case["algorithm"], range(case["workers"])
    models, velocities, duals = [zeros() for _ in workers], [zeros() for _ in workers], [zeros() for _ in workers]
    centre, gathered, shared_velocity = zeros(), zeros(), zeros()
    shared = isinstance(rule, Synchronous | GradientAveraging)
    step_s, exchange_s, update_s = case["step_s"], case["exchange_s"], case["update_s"]
    now = [0.0 for _ in workers]
    served = centre_queue(case) if rule.between == "centre" else {}
    sent: list[tuple[float, int]] = []
    delay = {"centre": 1, "neighbours": case["workers"] // 2}.get(rule.between, 0)
    for number in range(case["steps"]):
        gradients = [plain.gradient(models[worker], worker, number) for worker in workers]
        for worker in workers:
            now[worker] += step_s[worker]
            when, after = sent[-1 - delay] if len(sent) > delay else (0.0, 0)
            plain.ages.append((number + 1 - after, max(0.0, now[worker] - when)))
        if isinstance(rule, ADMM):
            pulls = [[rule.rho * (w - z + u) for w, z, u in zip(models[i], centre, duals[i], strict=True)] for i in workers]
            gradients = [[g + p for g, p in zip(gradients[i], pulls[i], strict=True)] for i in workers]
        if shared:
            gathered = [a + b for a, b in zip(gathered, mean(gradients), strict=True)]
        else:
            before = [list(model) for model in models]
            models = [plain.moved(models[i], velocities[i], gradients[i]) for i in workers]
            if isinstance(rule, DecentralizedSgd):
                steps = [[b - a for a, b in zip(models[i], before[i], strict=True)] for i in workers]
                near = [{(i - 1) % len(workers), i, (i + 1) % len(workers)} for i in workers]
                mixed = [mean([before[j] for j in sorted(near[i])]) for i in workers]
                models = [[m - s for m, s in zip(mixed[i], steps[i], strict=True)] for i in workers]
        if (number + 1) % rule.local_steps and number + 1 < case["steps"]:
            continue
        sent.append((max(now), number + 1))
        if shared:
            models = [plain.moved(models[0], shared_velocity, gathered)] * len(workers)
            gathered = zeros()
        elif isinstance(rule, ADMM):
            sums = [[w + u for w, u in zip(models[i], duals[i], strict=True)] for i in workers]
            centre = mean(sums)
            duals = [[s - z for s, z in zip(sums[i], centre, strict=True)] for i in workers]
        elif isinstance(rule, ElasticAveraging):
            part = 0.9 / len(workers) if rule.elasticity is None else rule.elasticity
            moves = [[part * (w - c) for w, c in zip(models[i], centre, strict=True)] for i in workers]
            models = [[w - m for w, m in zip(models[i], moves[i], strict=True)] for i in workers]
            centre = [c + sum(column) for c, column in zip(centre, zip(*moves, strict=True), strict=True)]
        elif isinstance(rule, ModelAveraging):
            models = [mean(models)] * len(workers)
        asked = list(now)
        if rule.between == "centre":
            for worker in workers:
                begun = served[worker, number]
                plain.waits["barrier"] += begun - asked[worker]
                now[worker] = begun + update_s
        elif rule.between == "neighbours":
            for i in workers:
                met = max(asked[i], asked[i - 1], asked[(i + 1) % len(workers)])
                plain.waits["barrier"] += met - asked[i]
                now[i] = met + update_s
        else:
            plain.waits["barrier"] += sum(max(asked) - one for one in asked)
            now = [max(asked) + exchange_s] * len(workers)
        plain.exchanges.append((max(asked), max(now)))
    found = centre if isinstance(rule, ADMM | ElasticAveraging) else models[0] if shared else mean(models)
    return found, plain


class Tokens:
    """One token; who waits, since when, and how high it has risen."""

    def __init__(self, order: str, clusters: int, unit: str = "steps") -> None:
        self.order, self.clusters, self.turn = order, clusters, 0
        self.least = 1 if unit == "steps" else 1e-12
        self.waiting: dict[int, list[float]] = {}

    def ask(self, cluster: int, now: float, staleness: float, tau: float) -> None:
        """A level for each whole tau, or least unit of it, that the staleness has gone beyond tau."""
        reached = [level for level in range(LEVELS) if staleness >= tau + level * (tau or self.least)]
        self.waiting[cluster] = [now, max(reached, default=0)]

    def grant(self) -> tuple[int, float]:
        if self.order == "round_robin":
            cluster = next(c % self.clusters for c in range(self.turn, 2 * self.clusters) if c % self.clusters in self.waiting)
        elif self.order == "first_come":
            cluster = min(self.waiting, key=lambda one: (self.waiting[one][0], one))
        else:
            cluster = min(self.waiting, key=lambda one: (-self.waiting[one][1], self.waiting[one][0], one))
        asked = self.waiting.pop(cluster)[0]
        for other in self.waiting.values():
            other[1] = min(other[1] + 1, LEVELS - 1)
        self.turn = (cluster + 1) % self.clusters
        return cluster, asked


def averaging(case: dict[str, Any]) -> tuple[list[float], Plain]:
    plain, rule = Plain(case), case["algorithm"]
    clusters = range(case["workers"] // case["cluster_size"])
    common, now, born = zeros(), 0.0, 0.0
    velocities, begun = [zeros() for _ in clusters], [0 for _ in clusters]
    tokens = Tokens(rule.order, len(clusters), rule.unit)
    left = case["steps"] * len(clusters)
    while left:
        models, arrived, staleness = [list(common) for _ in clusters], dict.fromkeys(clusters, now), dict.fromkeys(clusters, 0)
        ends = {c: now + case["step_s"][c] for c in clusters}
        while ends and left:
            cluster = min(ends, key=lambda one: (ends[one], one))
            at = ends.pop(cluster)
            gradient = plain.cluster_gradient(models[cluster], cluster, begun[cluster])
            models[cluster] = plain.moved(models[cluster], velocities[cluster], gradient)
            begun[cluster] += 1
            staleness[cluster] += 1
            left -= 1
            arrived[cluster] = at
            plain.ages.append((staleness[cluster], at - born))
            if not (staleness[cluster] > plain.tau if rule.unit == "steps" else at - now > rule.tau):
                ends[cluster] = at + case["step_s"][cluster]
        coming, free = sorted(clusters, key=lambda one: (arrived[one], one)), 0.0
        entries: list[float] = []
        while coming or tokens.waiting:
            if not tokens.waiting:
                free = max(free, arrived[coming[0]])
            while coming and arrived[coming[0]] <= free:
                at = arrived[coming[0]]
                tokens.ask(coming[0], at, staleness[coming[0]] if rule.unit == "steps" else at - now, plain.tau)
                coming.pop(0)
            _, asked = tokens.grant()
            plain.waits["token"] += free - asked
            entries.append(free)
            free += case["token_s"]
        plain.waits["barrier"] += sum(entries[-1] - one for one in entries)
        plain.adapt(models)
        common, born, now = mean(models), max(arrived.values()), free + case["exchange_s"]
        plain.exchanges.append((born, now))
    return common, plain


def literal(case: dict[str, Any]) -> tuple[list[float], Plain]:
    plain, rule = Plain(case), case["algorithm"]
    clusters = range(case["workers"] // case["cluster_size"])
    state = {c: {"w": zeros(), "v": zeros(), "since": 0, "applied": 0, "taken": 0.0, "born": 0.0, "begun": 0} for c in clusters}
    latest: dict[int, list[float]] = {}
    tokens, common = Tokens(rule.order, len(clusters), rule.unit), zeros()
    stepping: dict[int, tuple[float, list[float], int, float]] = {}
    holder: dict[str, Any] | None = None
    left, now, ready = case["steps"] * len(clusters), 0.0, list(clusters)

    def stale(cluster: int) -> bool:
        own = state[cluster]
        return bool(own["since"] > plain.tau if rule.unit == "steps" else now - own["taken"] > rule.tau)

    while True:
        for cluster in sorted(ready):
            if left:
                own = state[cluster]
                gradient = plain.cluster_gradient(own["w"], cluster, own["begun"])
                stepping[cluster] = (now + case["step_s"][cluster], gradient, own["since"], own["born"])
                own["begun"] += 1
                left -= 1
        ready = []
        times = [one[0] for one in stepping.values()] + ([holder["end"]] if holder else [])
        if not times:
            return common, plain
        now = min(times)
        for cluster in [one for one in clusters if one in stepping and stepping[one][0] == now]:
            _, latest[cluster], since, born = stepping.pop(cluster)
            own = state[cluster]
            own["since"] += 1
            plain.ages.append((since + 1, now - born))
            if stale(cluster):
                tokens.ask(cluster, now, own["since"] if rule.unit == "steps" else now - own["taken"], plain.tau)
            else:
                own["w"] = plain.moved(own["w"], own["v"], latest[cluster])
                own["applied"] += 1
                ready.append(cluster)
        while True:
            if holder and holder["end"] == now:
                ready.append(holder["cluster"])
                if holder["w"] is not None:
                    plain.lost += sum(own["applied"] for c, own in state.items() if c != holder["cluster"])
                    common = list(holder["w"])
                    for own in state.values():
                        own.update(w=list(common), since=0, applied=0, taken=now, born=holder["granted"])
                    plain.exchanges.append((holder["asked"], now))
                holder = None
            if holder or not tokens.waiting:
                break
            cluster, asked = tokens.grant()
            plain.waits["token"] += now - asked
            holder = {"cluster": cluster, "asked": asked, "granted": now, "end": now + case["token_s"], "w": None}
            if not rule.recheck or stale(cluster):
                whole = mean(list(latest.values()))
                holder["w"] = [w - case["learning_rate"] * g for w, g in zip(state[cluster]["w"], whole, strict=True)]
                holder["end"] += case["exchange_s"]
                plain.adapt([own["w"] for own in state.values()])


WHOLE = st.integers(0, 3)
LOCKSTEP: dict[str, st.SearchStrategy[Any]] = {
    "synchronous": st.just(Synchronous()),
    "GA-SGD": st.builds(GradientAveraging, st.integers(1, 4)),
    "MA-SGD": st.builds(ModelAveraging, st.integers(1, 4)),
    "ADMM": st.builds(ADMM, st.integers(1, 4), rho=st.floats(0.01, 1)),
    "EASGD": st.builds(ElasticAveraging, st.integers(1, 4), elasticity=st.none() | st.floats(0.01, 0.2)),
    "D-PSGD": st.just(DecentralizedSgd()),
}
UNITS = st.sampled_from(["steps", "s"])


@st.composite
def cases(draw: st.DrawFn, algorithms: st.SearchStrategy[Any]) -> dict[str, Any]:
    algorithm = draw(algorithms)
    size = draw(st.integers(1, 3))
    workers = size * draw(st.sampled_from([1, 2, 3, 4, 4]))
    groups = workers // size if isinstance(algorithm, Direct) else workers
    paces = st.just([draw(st.integers(1, 3))] * groups) | st.lists(st.integers(1, 3), min_size=groups, max_size=groups)
    return {
        "algorithm": algorithm,
        "workers": workers,
        "cluster_size": size,
        "data": data_of(draw(st.integers(0, 100)), draw(st.integers(workers, 5 * workers))),
        "model": draw(st.sampled_from([LogisticRegression, LinearSvm]))(FEATURES, l2=draw(st.sampled_from([0.0, 0.1]))),
        "learning_rate": draw(st.sampled_from([0.1, 0.5])),
        "momentum": draw(st.sampled_from([0.0, 0.5])),
        "batch": draw(st.integers(1, 4)),
        "steps": draw(st.integers(1, 9)),
        "shards": draw(st.sampled_from(["iid", "label", "feature", "sizes"])),
        "seed": draw(st.integers(0, 100)),
        "step_s": tuple(float(pace) for pace in draw(paces)),
        "exchange_s": float(draw(WHOLE)),
        "update_s": float(draw(WHOLE)),
        "token_s": float(draw(WHOLE)),
    }


def run_both(case: dict[str, Any]) -> None:
    rule = case["algorithm"]
    twin = lockstep if not isinstance(rule, Direct) else literal if rule.update == "literal" else averaging
    rates = Rates(
        workers=case["workers"],
        cluster_size=case["cluster_size"],
        step_s=case["step_s"],
        reduce_s=0.0,
        exchange_s=case["exchange_s"],
        update_s=case["update_s"],
        token_s=case["token_s"],
        message_bytes=12,
        exchange_bytes=100,
        reduce_bytes=10,
    )
    given_to = ("algorithm", "workers", "cluster_size", "learning_rate", "momentum", "batch", "steps", "shards", "seed")
    history = train(case["model"], case["data"], rates=rates, **{name: case[name] for name in given_to})
    expected, plain = twin(case)
    assert history.weights == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert sorted(Counter(history.age_steps.counts).elements()) == sorted(float(steps) for steps, _ in plain.ages)
    assert sorted(Counter(history.age_s.counts).elements()) == sorted(at for _, at in plain.ages)
    assert [(one.start_s, one.end_s) for one in history.exchanges] == plain.exchanges
    assert history.token_wait_s == plain.waits["token"]
    assert history.barrier_wait_s == plain.waits["barrier"]
    assert history.lost_steps == plain.lost
    assert history.bytes_global == 100 * len(plain.exchanges)
    assert history.steps == case["steps"]


@pytest.mark.parametrize("name", LOCKSTEP)
@settings(max_examples=30, deadline=None)
@given(drawn=st.data())
def test_lockstep_algorithms_equal_their_twins(name: str, drawn: st.DataObject) -> None:
    run_both(drawn.draw(cases(LOCKSTEP[name])))


@pytest.mark.parametrize("order", ["round_robin", "priority", "first_come"])
@pytest.mark.parametrize("update", ["averaging", "literal"])
@settings(max_examples=50, deadline=None)
@given(drawn=st.data())
def test_direct_equals_its_twin(update: str, order: str, drawn: st.DataObject) -> None:
    recheck = st.booleans() if update == "literal" else st.just(False)
    rule = st.builds(Direct, st.integers(0, 5), unit=UNITS, order=st.just(order), update=st.just(update), recheck=recheck)
    run_both(drawn.draw(cases(rule)))


@settings(max_examples=60, deadline=None)
@given(cases(st.builds(Direct, st.integers(0, 6), update=st.sampled_from(["averaging", "literal"]), adaptive=st.just(True))))
def test_an_adaptive_interval_equals_its_twin(case: dict[str, Any]) -> None:
    run_both(case)


@pytest.mark.parametrize("order", ["round_robin", "priority", "first_come"])
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=6),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_grant_times_equal_a_step_by_step_queue(order: Any, groups: list[tuple[int, int]], tau: int, token: int, turn: int) -> None:
    """Sums of waits do not tell orders apart; the grants do."""
    tokens = Tokens(order, len(groups))
    tokens.turn = turn = turn % len(groups)
    arrivals, staleness = (np.array(column) for column in zip(*groups, strict=True))
    granted, after = grant_times(Arbiter(order=order), arrivals, staleness, tau, token, turn)
    coming, free, expected = sorted(range(len(groups)), key=lambda one: (arrivals[one], one)), 0, {}
    while coming or tokens.waiting:
        if not tokens.waiting:
            free = max(free, arrivals[coming[0]])
        while coming and arrivals[coming[0]] <= free:
            tokens.ask(coming[0], arrivals[coming[0]], staleness[coming.pop(0)], tau)
        expected[tokens.grant()[0]] = free
        free += token
    assert granted.tolist() == [expected[group] for group in range(len(groups))]
    assert after == tokens.turn
