"""The DSC's state machine: what it refuses, and long random runs of up to 256 clusters against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oracles.dsc_controller import Controller
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dsc.controller import Rules, priority_of
from trainyard.hardware.dsc.token_arbiter import Arbiter, Request

ORDERS = ("round_robin", "priority", "first_come")


class Crowd(RuleBasedStateMachine):
    """Any sequence of messages; a plain model beside it knows who waits since when and how often it was passed over."""

    @initialize(
        clusters=st.integers(1, 6) | st.integers(1, 256), tokens=st.integers(1, 3), order=st.sampled_from(ORDERS),
        levels=st.integers(1, 6), ageing=st.integers(1, 3),
    )  # fmt: skip
    def build(self, clusters, tokens, order, levels, ageing) -> None:
        self.rules = Rules(clusters=clusters, tokens=tokens, order=order, levels=levels, ageing=ageing, fan_in=4)
        self.dsc = Controller(self.rules)
        self.waiting: dict[int, list[int]] = {}  # cluster: its priority, and grants to others since it asked
        self.holding: list[int] = []
        self.steps = [0] * clusters
        self.updated = [0.0] * clusters
        self.arrived: set[int] = set()
        self.last_winner = -1

    def take(self, winners) -> None:
        """Each winner is the right one, and nobody was passed over more often than promised."""
        for winner in winners:
            assert winner == self.expected()
            del self.waiting[winner]
            for passed in self.waiting.values():
                passed[1] += 1
            self.holding.append(winner)
            self.last_winner = winner
        for priority, passed in self.waiting.values():
            assert passed <= self.rules.arbiter.most_passed_over(self.rules.clusters, priority)

    def expected(self) -> int:
        if self.rules.order == "first_come":
            return next(iter(self.waiting))
        if self.rules.order == "round_robin":
            around = range(self.last_winner + 1, self.last_winner + 1 + self.rules.clusters)
            return next(cluster % self.rules.clusters for cluster in around if cluster % self.rules.clusters in self.waiting)
        top = (self.rules.levels - 1) * self.rules.ageing

        def rank(cluster):
            priority, passed = self.waiting[cluster]
            return min(priority * self.rules.ageing + passed, top)

        return max(self.waiting, key=rank)

    @rule(data=st.data())
    def asks(self, data) -> None:
        cluster = data.draw(st.integers(0, self.rules.clusters - 1))
        priority = data.draw(st.integers(0, self.rules.levels - 1))
        if cluster in self.holding or cluster in self.waiting:
            with pytest.raises(BadInput, match=f"cluster {cluster} asks"):
                self.dsc.request(cluster, priority)
            return
        free = len(self.holding) < self.rules.tokens
        self.waiting[cluster] = [priority, 0]
        assert self.dsc.request(cluster, priority) == free
        self.take([cluster] if free else [])

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def releases(self, data) -> None:
        cluster = data.draw(st.sampled_from(self.holding))
        self.holding.remove(cluster)
        winners = self.dsc.release(cluster)
        assert bool(winners) == bool(self.waiting)
        self.take(winners)

    @precondition(lambda self: len(self.holding) < self.rules.clusters)
    @rule(data=st.data())
    def releases_what_it_does_not_hold(self, data) -> None:
        others = [cluster for cluster in range(self.rules.clusters) if cluster not in self.holding]
        with pytest.raises(BadInput, match="does not hold"):
            self.dsc.release(data.draw(st.sampled_from(others)))

    @rule(data=st.data(), now_s=st.floats(0, 1e6))
    def steps_and_updates(self, data, now_s) -> None:
        cluster = data.draw(st.integers(0, self.rules.clusters - 1))
        self.dsc.step(cluster)
        self.steps[cluster] += 1
        if data.draw(st.booleans()):
            served = data.draw(st.one_of(st.none(), st.sets(st.integers(0, self.rules.clusters - 1), max_size=4)))
            self.dsc.broadcast(now_s, served)
            for other in range(self.rules.clusters) if served is None else served:
                self.steps[other], self.updated[other] = 0, now_s

    @rule(data=st.data())
    def meets(self, data) -> None:
        cluster = data.draw(st.integers(0, self.rules.clusters - 1))
        if cluster in self.arrived:
            with pytest.raises(BadInput, match="has arrived already"):
                self.dsc.arrive(cluster)
            return
        self.arrived.add(cluster)
        last = len(self.arrived) == self.rules.clusters
        assert self.dsc.arrive(cluster) == last
        if last:
            self.arrived.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "dsc"):
            return
        assert sorted(self.dsc.holders) == sorted(self.holding)
        assert len(self.holding) <= self.rules.tokens
        assert self.dsc.waiting == tuple(self.waiting)
        assert self.dsc.state.steps == tuple(self.steps)
        assert [self.dsc.staleness(cluster, 1e6) for cluster in (0, self.rules.clusters - 1)] == [
            1e6 - self.updated[0],
            1e6 - self.updated[-1],
        ]
        assert {cluster for cluster in range(self.rules.clusters) if self.dsc.waits(cluster)} == self.arrived


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=20, stateful_step_count=40)


@pytest.mark.oracle
@settings(max_examples=20)
@given(clusters=st.integers(2, 256), order=st.sampled_from(ORDERS), seed=st.randoms(use_true_random=False))
def test_under_full_load_every_cluster_is_served_within_the_bound(clusters, order, seed) -> None:
    """All ask again as soon as they can, priorities at random; the longest wait of all is within its bound."""
    dsc = Controller(Rules(clusters=clusters, order=order, levels=4))
    passed, priorities = {}, {}
    bounds = [dsc.rules.arbiter.most_passed_over(clusters, priority) for priority in range(4)]
    for cluster in seed.sample(range(clusters), clusters):
        priorities[cluster] = seed.randrange(4)
        passed[cluster] = 0
        dsc.request(cluster, priorities[cluster])
    for _ in range(2 * clusters):
        (holder,) = dsc.holders
        (winner,) = dsc.release(holder)
        for cluster in dsc.waiting:
            passed[cluster] += 1
        for cluster in (*dsc.waiting, winner):
            assert passed[cluster] <= bounds[priorities[cluster]]
        passed[holder], priorities[holder] = 0, seed.randrange(4)
        dsc.request(holder, priorities[holder])


@pytest.mark.probe
def test_a_rank_reaches_the_top_after_exactly_as_many_grants_as_its_levels_are_worth() -> None:
    arbiter = Arbiter(order="priority", levels=3, ageing=2)
    waiting = (Request(0, arbiter.rank(0)),)
    fresh = Request(1, arbiter.rank(2))
    for _ in range(4):
        assert arbiter.choose((*waiting, fresh)) == fresh
        waiting = arbiter.aged(waiting)
    assert arbiter.choose((*waiting, fresh)).cluster == 0
    assert arbiter.aged(waiting) == waiting  # the counter saturates


@pytest.mark.probe
def test_staleness_must_exceed_tau() -> None:
    dsc = Controller(Rules(clusters=2))
    for _ in range(3):
        dsc.step(1)
    assert not dsc.exceeds(1, tau=3)
    dsc.step(1)
    assert dsc.exceeds(1, tau=3)
    assert not dsc.exceeds(0, tau=0)
    dsc.broadcast(now_s=2.0)
    assert not dsc.exceeds(1, tau=0.5, now_s=2.5)
    assert dsc.exceeds(1, tau=0.5, now_s=2.75)


@pytest.mark.unit
def test_local_barriers_are_of_one_cluster_each() -> None:
    dsc = Controller(Rules(clusters=2), dpus_per_cluster=2)
    assert not dsc.arrive(0, dpu=0)
    assert not dsc.arrive(1, dpu=0)
    assert dsc.arrive(0, dpu=1)
    assert not dsc.waits(0, dpu=0)
    assert dsc.waits(1, dpu=0)
    assert not dsc.waits(1)


@pytest.mark.unit
def test_invalid_arguments_raise() -> None:
    dsc = Controller(Rules(clusters=2))
    for call in (dsc.request, dsc.release, dsc.step, dsc.staleness, dsc.arrive):
        for cluster in (2, -1, True, 1.0):
            with pytest.raises(BadInput, match=r"unknown cluster .*: write 0 to 1"):
                call(cluster)
    with pytest.raises(BadInput, match="unknown cluster 2"):
        dsc.broadcast(to=[0, 2])
    with pytest.raises(BadInput, match="priority must be a whole number of 0 to 3, got 4"):
        dsc.request(0, 4)
    with pytest.raises(BadInput, match="tokens are all free"):
        dsc.release(0)
    with pytest.raises(BadInput, match="nothing to grant"):
        dsc.rules.grant(dsc.state)
    with pytest.raises(UnknownName, match="did you mean 'first_come'"):
        Rules(clusters=2, order="first")
    with pytest.raises(BadInput, match="clusters must be a positive whole number"):
        Rules(clusters=0)


@pytest.mark.unit
@given(tau=st.integers(0, 50), levels=st.integers(1, 8), stale=st.lists(st.integers(0, 500), min_size=2))
def test_priority_grows_with_staleness(tau, levels, stale) -> None:
    actual = [priority_of(steps, tau, levels) for steps in sorted(stale)]
    assert actual == sorted(actual)
    assert actual[0] >= 0
    assert actual[-1] < levels
