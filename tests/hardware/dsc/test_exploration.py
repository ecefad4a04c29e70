"""The DSC in every interleaving of small machines, and broken ones that must be found out."""

from __future__ import annotations

import pytest

from oracles.dsc_exploration import Training
from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import Rules

ORDERS = ("round_robin", "first_come", "priority")
KINDS = (
    {"tau": 0},
    {"tau": 2},
    {"tau": 0, "recheck": True},
    {"tau": 1, "recheck": True},
    {"tau": 0, "epoch": 1},
    {"tau": 1, "epoch": 2},
    {"tau": 0, "update": "averaging"},
    {"tau": 1, "update": "averaging"},
)


def check(clusters, tokens, order, kind, levels=2) -> int:
    training = Training(rules=Rules(clusters=clusters, tokens=tokens, order=order, levels=levels, fan_in=2), **kind)
    explored = training.explore()
    assert explored.finding is None, explored.finding
    assert training.starved(explored) is None
    for priority in range(levels if order == "priority" else 1):
        actual = training.most_passed_over(explored, 0, priority)
        assert actual == training.rules.arbiter.most_passed_over(clusters, priority)
    assert max(max(state.dsc.steps) for state in explored.states) == kind["tau"] + 1  # the bound is reached
    assert max(len(state.dsc.holders) for state in explored.states) == min(tokens, clusters)
    return len(explored.states)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokens", [1, 2])
def test_all_states_of_two_clusters_are_safe(tokens, order, kind) -> None:
    check(2, tokens, order, kind)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.get("epoch") != 2], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_all_states_of_three_clusters_are_safe(order, kind) -> None:
    check(3, 1, order, kind)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_all_states_of_three_clusters_with_two_tokens_are_safe(order, kind) -> None:
    check(3, 2, order, kind)


@pytest.mark.oracle
@pytest.mark.parametrize("order", ORDERS)
def test_all_states_of_four_clusters_are_safe(order) -> None:
    assert check(4, 1, order, {"tau": 0}) > 1000


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.get("epoch") != 2], ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokens", [1, 2])
def test_all_states_of_four_clusters_of_every_kind_are_safe(tokens, order, kind) -> None:
    check(4, tokens, order, kind)


@pytest.mark.probe
@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ageing", [1, 2])
@pytest.mark.parametrize("clusters", [2, 3])
def test_the_bound_on_waiting_under_priority_is_met_and_not_exceeded(clusters, ageing, levels) -> None:
    training = Training(rules=Rules(clusters=clusters, order="priority", levels=levels, ageing=ageing))
    explored = training.explore()
    for priority in range(levels):
        bound = clusters - 2 + max(1, ageing * (levels - 1 - priority))
        assert training.rules.arbiter.most_passed_over(clusters, priority) == bound
        assert training.most_passed_over(explored, clusters - 1, priority) == bound


@pytest.mark.unit
def test_priority_without_ageing_starves() -> None:
    training = Training(rules=Rules(clusters=3, order="priority", levels=2, ageing=None))
    explored = training.explore()
    assert explored.finding is None
    assert training.most_passed_over(explored, 0, priority=0) is None
    assert training.most_passed_over(explored, 0, priority=1) == 2
    starved = training.starved(explored)
    assert starved is not None
    assert starved.what == "cluster 0 starves"
    assert {move[2] for move in starved.cycle if move[1] == "grants"} <= {1, 2}
    assert any(move[1] == "grants" for move in starved.cycle)
    assert all(move[0] != 0 for move in starved.cycle)
    assert training.rules.arbiter.most_passed_over(3, 0) is None


class Forgetful(Rules):
    """Takes a token back and does not offer it again."""

    def can_grant(self, state):
        return not any(state.steps) and super().can_grant(state)


class Generous(Rules):
    """Looks at who waits, not at whether a token is free."""

    def can_grant(self, state):
        return bool(state.waiting)


class Careless(Rules):
    """Grants the oldest request and leaves it in the line."""

    def grant(self, state):
        return super().grant(state)._replace(waiting=state.waiting)

    def can_grant(self, state):
        return len(state.holders) < self.tokens and bool(state.waiting)


class Sleepy(Rules):
    """The release is lost."""

    def release(self, state, cluster):
        super().release(state, cluster)
        return state


class Miscounting(Rules):
    """A broadcast forgets the last cluster."""

    def broadcast(self, state, now_s=0.0, to=None):
        return super().broadcast(state, now_s, range(self.clusters - 1))

    def step(self, state, cluster):
        return super().step(super().step(state, cluster), cluster)


class Hasty(Rules):
    """The barrier lets everybody pass."""

    def waits(self, state, cluster):
        return False

    def arrive(self, state, cluster):
        return super().arrive(state, cluster) if not super().waits(state, cluster) else state


@pytest.mark.unit
def test_a_token_granted_twice_is_detected_in_the_fewest_moves() -> None:
    finding = Training(rules=Generous(clusters=3)).explore().finding
    assert finding is not None
    assert finding.what == "a token is held twice"
    assert len(finding.moves) == 6  # two steps, two requests, two grants
    assert len(finding.state.dsc.holders) == 2
    finding = Training(rules=Careless(clusters=2, tokens=2)).explore().finding
    assert finding is not None
    assert finding.what == "a token is held twice"
    assert finding.state.dsc.holders == (0, 0)
    assert len(finding.moves) == 4


@pytest.mark.unit
def test_a_lost_token_is_detected() -> None:
    finding = Training(rules=Sleepy(clusters=2, order="first_come"), update="averaging").explore().finding
    assert finding is not None
    assert finding.what == "deadlock"
    assert finding.moves[-1][1] in ("asks", "releases")
    finding = Training(rules=Forgetful(clusters=2)).explore().finding
    assert finding is not None
    assert finding.what == "deadlock"


@pytest.mark.unit
def test_staleness_beyond_the_bound_is_detected() -> None:
    finding = Training(rules=Miscounting(clusters=2), tau=0).explore().finding
    assert finding is not None
    assert finding.what == "staleness exceeds tau + 1"


@pytest.mark.unit
def test_a_barrier_that_does_not_wait_is_detected() -> None:
    finding = Training(rules=Hasty(clusters=2), update="averaging").explore().finding
    assert finding is not None
    assert finding.what == "a cluster is past a barrier that another has not reached"


class Holding(Training):
    """Averaging as it must not be done: a cluster waits for the others while it holds the token."""

    def _entered(self, state, cluster):
        if not self.rules.waits(state.dsc, cluster):
            yield from super()._entered(state, cluster)


@pytest.mark.probe
def test_waiting_at_the_barrier_with_the_token_deadlocks_unless_every_cluster_has_one() -> None:
    finding = Holding(rules=Rules(clusters=3, tokens=2), update="averaging").explore().finding
    assert finding is not None
    assert finding.what == "deadlock"
    assert Holding(rules=Rules(clusters=3, tokens=3), update="averaging").explore().finding is None


@pytest.mark.unit
def test_averaging_takes_no_epoch() -> None:
    with pytest.raises(BadInput, match="leave epoch and recheck out"):
        Training(rules=Rules(clusters=2), update="averaging", epoch=2)
