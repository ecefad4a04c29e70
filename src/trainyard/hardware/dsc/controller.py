"""The DSC as a state machine: tokens, staleness counters, the global barrier.

DIRECT, Sec. III-B and Algorithm 1: `StalenessCheck`, `AcquireToken`, `BroadcastUpdate`, `ReleaseToken`.

`Rules` are pure: they turn one immutable `State` into the next, so that all states can be explored. `Controller` holds a state and
changes it. A request and its grant are two moves, because an arbiter takes its time; a `Controller` grants at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput
from trainyard.hardware.dsc.barriers import Barrier, BarrierState
from trainyard.hardware.dsc.token_arbiter import Arbiter, Order, Request


class State(NamedTuple):
    """All that the DSC knows.

    `holders` in order of their grants, `waiting` in order of arrival; `turn` is whom round robin looks at first. `steps` are the
    local steps of each cluster since it last took in a global update, and `updated_s` when that was.
    """

    holders: tuple[int, ...]
    waiting: tuple[Request, ...]
    turn: int
    steps: tuple[int, ...]
    updated_s: tuple[float, ...]
    barrier: BarrierState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What each message does to the state; a message that cannot be meant is refused.

    >>> rules = Rules(clusters=3)
    >>> state = rules.request(rules.request(rules.start(), 2), 1)
    >>> state = rules.grant(state)
    >>> state.holders, rules.can_grant(state)
    ((1,), False)
    """

    clusters: int
    tokens: int = 1
    order: Order = "round_robin"
    levels: int = 4
    ageing: int | None = 1
    fan_in: int = 8
    arbiter: Arbiter = field(init=False, repr=False, compare=False)
    barrier: Barrier = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive("DSC", clusters=self.clusters, tokens=self.tokens)
        object.__setattr__(self, "arbiter", Arbiter(order=self.order, levels=self.levels, ageing=self.ageing))
        object.__setattr__(self, "barrier", Barrier(self.clusters, self.fan_in))

    def start(self) -> State:
        return State((), (), 0, (0,) * self.clusters, (0.0,) * self.clusters, self.barrier.start())

    def request(self, state: State, cluster: int, priority: int = 0) -> State:
        """AcquireToken, first half: the cluster stands in line."""
        self._known(cluster)
        if cluster in state.holders:
            raise BadInput(f"DSC: cluster {cluster} asks for a token and holds one: release it first")
        if any(request.cluster == cluster for request in state.waiting):
            raise BadInput(f"DSC: cluster {cluster} asks twice: its first request still waits")
        return state._replace(waiting=(*state.waiting, Request(cluster, self.arbiter.rank(priority))))

    def can_grant(self, state: State) -> bool:
        return bool(state.waiting) and len(state.holders) < self.tokens

    def grant(self, state: State) -> State:
        """AcquireToken, second half: the arbiter's choice is the last of `holders`."""
        if not self.can_grant(state):
            raise BadInput("DSC: nothing to grant: nobody waits, or no token is free")
        winner = self.arbiter.choose(state.waiting, state.turn)
        left = tuple(request for request in state.waiting if request is not winner)
        return state._replace(
            holders=(*state.holders, winner.cluster),
            waiting=self.arbiter.aged(left),
            turn=(winner.cluster + 1) % self.clusters if self.order == "round_robin" else 0,
        )

    def release(self, state: State, cluster: int) -> State:
        """ReleaseToken."""
        if self._known(cluster) not in state.holders:
            held = f"held by {', '.join(map(str, state.holders))}" if state.holders else "all free"
            raise BadInput(f"DSC: cluster {cluster} releases a token that it does not hold (tokens are {held}): acquire it first")
        return state._replace(holders=tuple(holder for holder in state.holders if holder != cluster))

    def step(self, state: State, cluster: int) -> State:
        """A local step is done."""
        self._known(cluster)
        steps = (*state.steps[:cluster], state.steps[cluster] + 1, *state.steps[cluster + 1 :])
        return state._replace(steps=steps)

    def broadcast(self, state: State, now_s: float = 0.0, to: Iterable[int] | None = None) -> State:
        """BroadcastUpdate: all clusters (or those named) take in a global update, their staleness is 0."""
        steps, updated_s = list(state.steps), list(state.updated_s)
        for cluster in range(self.clusters) if to is None else map(self._known, to):
            steps[cluster], updated_s[cluster] = 0, now_s
        return state._replace(steps=tuple(steps), updated_s=tuple(updated_s))

    def staleness(self, state: State, cluster: int, now_s: float | None = None) -> float:
        """StalenessCheck: local steps since the last global update, or seconds where the time is given."""
        self._known(cluster)
        return state.steps[cluster] if now_s is None else now_s - state.updated_s[cluster]

    def arrive(self, state: State, cluster: int) -> State:
        """At the global barrier."""
        return state._replace(barrier=self.barrier.arrive(state.barrier, self._known(cluster)))

    def waits(self, state: State, cluster: int) -> bool:
        """At the global barrier."""
        return self.barrier.waits(state.barrier, cluster)

    def _known(self, cluster: int) -> int:
        if isinstance(cluster, bool) or not isinstance(cluster, int) or not 0 <= cluster < self.clusters:
            raise BadInput(f"DSC: unknown cluster {cluster!r}: write 0 to {self.clusters - 1}")
        return cluster


class Controller:
    """A DSC at work: grants are given as soon as a token is free.

    >>> dsc = Controller(Rules(clusters=4, order="priority"))
    >>> dsc.request(0), dsc.request(1), dsc.request(2, priority=3)
    (True, False, False)
    >>> dsc.release(0), dsc.holders
    ((2,), (2,))
    >>> dsc.step(1); dsc.step(1); dsc.staleness(1), dsc.exceeds(1, tau=2)
    (2, False)
    """

    def __init__(self, rules: Rules, dpus_per_cluster: int = 1) -> None:
        require_positive("Controller", dpus_per_cluster=dpus_per_cluster)
        self.rules = rules
        self.state = rules.start()
        self._local = Barrier(dpus_per_cluster, rules.fan_in)
        self._local_states = [self._local.start()] * rules.clusters

    @property
    def holders(self) -> tuple[int, ...]:
        return self.state.holders

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(request.cluster for request in self.state.waiting)

    def request(self, cluster: int, priority: int = 0) -> bool:
        """Whether the cluster has the token at once."""
        self.state = self.rules.request(self.state, cluster, priority)
        return cluster in self._grants()

    def release(self, cluster: int) -> tuple[int, ...]:
        """Who has a token now that had none."""
        self.state = self.rules.release(self.state, cluster)
        return self._grants()

    def _grants(self) -> tuple[int, ...]:
        won = []
        while self.rules.can_grant(self.state):
            self.state = self.rules.grant(self.state)
            won.append(self.state.holders[-1])
        return tuple(won)

    def step(self, cluster: int) -> None:
        self.state = self.rules.step(self.state, cluster)

    def broadcast(self, now_s: float = 0.0, to: Iterable[int] | None = None) -> None:
        self.state = self.rules.broadcast(self.state, now_s, to)

    def staleness(self, cluster: int, now_s: float | None = None) -> float:
        return self.rules.staleness(self.state, cluster, now_s)

    def exceeds(self, cluster: int, tau: float, now_s: float | None = None) -> bool:
        """Line 4 of Algorithm 1."""
        require_quantity("StalenessCheck", zero=True, tau=tau)
        return self.staleness(cluster, now_s) > tau

    def arrive(self, cluster: int, dpu: int | None = None) -> bool:
        """At the global barrier, or a DPU at its cluster's; whether that was the last one and all may go on."""
        if dpu is None:
            self.state = self.rules.arrive(self.state, cluster)
        else:
            before = self._local_states[self.rules._known(cluster)]
            self._local_states[cluster] = self._local.arrive(before, dpu)
        return not self.waits(cluster, dpu)

    def waits(self, cluster: int, dpu: int | None = None) -> bool:
        if dpu is None:
            return self.rules.waits(self.state, cluster)
        return self._local.waits(self._local_states[self.rules._known(cluster)], dpu)


def priority_of(staleness: float, tau: float, levels: int) -> int:
    """The staler, the sooner: how many times tau a staleness is above it; the paper does not say what makes priority.

    >>> [priority_of(steps, tau=8, levels=4) for steps in (9, 15, 16, 25, 100)]
    [0, 0, 1, 2, 3]
    """
    require_positive("priority_of", levels=levels)
    require_quantity("priority_of", zero=True, staleness=staleness, tau=tau)
    return min(int(max(staleness - tau, 0) // (tau or 1)), levels - 1)
