"""The DSC as a state machine: tokens, staleness counters, the global barrier.

DIRECT, Sec. III-B and Algorithm 1: `StalenessCheck`, `AcquireToken`, `BroadcastUpdate`, `ReleaseToken`.

`Rules` are pure: they map one immutable `State` to the next, so that all states can be explored. A request and its grant are two
moves, because arbitration takes time.
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
    """The state of the DSC.

    `holders` in order of their grants, `waiting` in order of arrival; `turn` is the cluster that round robin tries first. `steps`
    are the local steps of each cluster since its last global update, and `updated_s` the time of that.
    """

    holders: tuple[int, ...]
    waiting: tuple[Request, ...]
    turn: int
    steps: tuple[int, ...]
    updated_s: tuple[float, ...]
    barrier: BarrierState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The effect of each message on the state; an impossible message is an error.

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
        """AcquireToken, first half: the cluster's request is queued."""
        self._require_cluster(cluster)
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
            raise BadInput("DSC: nothing to grant: no cluster waits, or no token is free")
        winner = self.arbiter.choose(state.waiting, state.turn)
        left = tuple(request for request in state.waiting if request is not winner)
        return state._replace(
            holders=(*state.holders, winner.cluster),
            waiting=self.arbiter.aged(left),
            turn=(winner.cluster + 1) % self.clusters if self.order == "round_robin" else 0,
        )

    def release(self, state: State, cluster: int) -> State:
        """ReleaseToken."""
        if self._require_cluster(cluster) not in state.holders:
            held = f"held by {', '.join(map(str, state.holders))}" if state.holders else "all free"
            raise BadInput(f"DSC: cluster {cluster} releases a token that it does not hold (tokens are {held}): acquire it first")
        return state._replace(holders=tuple(holder for holder in state.holders if holder != cluster))

    def step(self, state: State, cluster: int) -> State:
        """Counts a local step of a cluster."""
        self._require_cluster(cluster)
        steps = (*state.steps[:cluster], state.steps[cluster] + 1, *state.steps[cluster + 1 :])
        return state._replace(steps=steps)

    def broadcast(self, state: State, now_s: float = 0.0, to: Iterable[int] | None = None) -> State:
        """BroadcastUpdate: all clusters (or those in `to`) receive a global update, their staleness becomes 0."""
        steps, updated_s = list(state.steps), list(state.updated_s)
        for cluster in range(self.clusters) if to is None else map(self._require_cluster, to):
            steps[cluster], updated_s[cluster] = 0, now_s
        return state._replace(steps=tuple(steps), updated_s=tuple(updated_s))

    def staleness(self, state: State, cluster: int, now_s: float | None = None) -> float:
        """StalenessCheck: local steps since the last global update, or seconds if `now_s` is given."""
        self._require_cluster(cluster)
        return state.steps[cluster] if now_s is None else now_s - state.updated_s[cluster]

    def arrive(self, state: State, cluster: int) -> State:
        """A cluster arrives at the global barrier."""
        return state._replace(barrier=self.barrier.arrive(state.barrier, self._require_cluster(cluster)))

    def waits(self, state: State, cluster: int) -> bool:
        """Whether a cluster waits at the global barrier."""
        return self.barrier.waits(state.barrier, cluster)

    def _require_cluster(self, cluster: int) -> int:
        if isinstance(cluster, bool) or not isinstance(cluster, int) or not 0 <= cluster < self.clusters:
            raise BadInput(f"DSC: unknown cluster {cluster!r}: write 0 to {self.clusters - 1}")
        return cluster


def priority_of(staleness: float, tau: float, levels: int) -> int:
    """The priority of a request: by how many times tau its staleness exceeds tau; the paper does not define priority.

    >>> [priority_of(steps, tau=8, levels=4) for steps in (9, 15, 16, 25, 100)]
    [0, 0, 1, 2, 3]
    """
    require_positive("priority_of", levels=levels)
    require_quantity("priority_of", zero=True, staleness=staleness, tau=tau)
    return min(int(max(staleness - tau, 0) // (tau or 1)), levels - 1)
