"""Clusters that train and the DSC that orders them, as processes whose every interleaving is explored.

DIRECT's Algorithm 1. A cluster steps as long as its staleness is at most tau, then asks for the token. With it,

- `literal`: it updates, broadcasts (which makes all clusters' staleness 0) and gives the token back; with `recheck` it gives the
  token back at once if somebody else's broadcast has served it meanwhile.
- `averaging`: it enters the round at the global barrier and gives the token back; when all have entered, all are updated, and each
  goes on when it gets to see that.

With `epoch` steps, clusters of the literal kind also meet at the barrier after so many steps. The DSC is a process too: when it
grants is up to it. Under `priority` a request may have any priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from oracles.exploration import Explored, Finding, Move, explore
from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import Rules, State

Phase = Literal["computes", "asks", "holds", "updated", "entered", "meets"]
DSC = "dsc"
T = TypeVar("T")


class Clusters(NamedTuple):
    """The DSC, what each cluster is at, its steps in the epoch, and by how many barriers it is ahead of the last."""

    dsc: State
    phases: tuple[Phase, ...]
    done: tuple[int, ...]
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A small machine to explore.

    >>> training = Training(rules=Rules(clusters=2, order="first_come"), tau=1)
    >>> explored = training.explore()
    >>> len(explored.states), explored.finding, training.starved(explored), training.most_passed_over(explored)
    (67, None, None, 1)
    """

    rules: Rules
    tau: int = 0
    update: Literal["literal", "averaging"] = "literal"
    recheck: bool = False
    epoch: int | None = None

    def __post_init__(self) -> None:
        if self.update == "averaging" and (self.epoch is not None or self.recheck):
            raise BadInput("Training: averaging has its own barrier and never rechecks: leave epoch and recheck out")

    def start(self) -> Clusters:
        many = self.rules.clusters
        computes: Phase = "computes"
        return Clusters(self.rules.start(), (computes,) * many, (0,) * many, (0,) * many)

    def moves(self, state: Clusters) -> Iterator[tuple[Move, Clusters]]:
        if self.rules.can_grant(state.dsc):
            granted = self.rules.grant(state.dsc)
            yield (DSC, "grants", granted.holders[-1]), state._replace(dsc=granted)
        for cluster, phase in enumerate(state.phases):
            yield from getattr(self, f"_{phase}")(state, cluster)

    def _computes(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        rules, stale = self.rules, state.dsc.steps[cluster] > self.tau
        if stale:
            for priority in range(rules.levels if rules.order == "priority" else 1):
                requested = rules.request(state.dsc, cluster, priority)
                yield (cluster, "asks", priority), _to(state, cluster, "asks", requested)
        elif state.done[cluster] == self.epoch:
            yield (cluster, "arrives"), _to(state, cluster, "meets", rules.arrive(state.dsc, cluster))
        else:
            done = state.done if self.epoch is None else _with(state.done, cluster, state.done[cluster] + 1)
            yield (cluster, "steps"), state._replace(dsc=rules.step(state.dsc, cluster), done=done)

    def _asks(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        if cluster in state.dsc.holders:
            yield (cluster, "takes"), _to(state, cluster, "holds")

    def _holds(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        rules = self.rules
        if self.update == "averaging":
            entered = rules.arrive(state.dsc, cluster)
            complete = entered.barrier.sense != state.dsc.barrier.sense
            yield (cluster, "enters"), _to(state, cluster, "entered", rules.broadcast(entered) if complete else entered)
        elif self.recheck and state.dsc.steps[cluster] <= self.tau:
            yield (cluster, "releases"), _to(state, cluster, "computes", rules.release(state.dsc, cluster))
        else:
            yield (cluster, "broadcasts"), _to(state, cluster, "updated", rules.broadcast(state.dsc))

    def _updated(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        yield (cluster, "releases"), _to(state, cluster, "computes", self.rules.release(state.dsc, cluster))

    def _entered(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        yield (cluster, "releases"), _to(state, cluster, "meets", self.rules.release(state.dsc, cluster))

    def _meets(self, state: Clusters, cluster: int) -> Iterator[tuple[Move, Clusters]]:
        if not self.rules.waits(state.dsc, cluster):
            rounds = _with(state.rounds, cluster, state.rounds[cluster] + 1)
            rounds = tuple(number - min(rounds) for number in rounds)
            left = state._replace(done=_with(state.done, cluster, 0), rounds=rounds)
            yield (cluster, "goes on"), _to(left, cluster, "computes")

    @property
    def invariants(self) -> Mapping[str, Callable[[Clusters], bool]]:
        return {
            "a token is held twice": self._tokens_are_few,
            "a cluster acts as holder and holds nothing": _holders_hold,
            "staleness exceeds tau + 1": lambda state: max(state.dsc.steps) <= self.tau + 1,
            "a cluster is past a barrier that another has not reached": _rounds_apart,
        }

    def _tokens_are_few(self, state: Clusters) -> bool:
        acting = sum(phase in ("holds", "updated", "entered") for phase in state.phases)
        return max(acting, len(state.dsc.holders)) <= self.rules.tokens and len(set(state.dsc.holders)) == len(state.dsc.holders)

    def explore(self) -> Explored[Clusters]:
        """All states; `.finding` is the first that breaks an invariant or is a deadlock."""
        return explore(self.start(), self.moves, invariants=self.invariants)

    def starved(self, explored: Explored[Clusters]) -> Finding[Clusters] | None:
        """A fair run in which a cluster waits for ever: for the token, or at the barrier."""
        for cluster in range(self.rules.clusters):
            for phase in ("asks", "meets"):
                actual = explored.starvation(partial(_is_at, cluster, phase), f"cluster {cluster} starves")
                if actual:
                    return actual
        return None

    def most_passed_over(self, explored: Explored[Clusters], cluster: int = 0, priority: int = 0) -> int | None:
        """Grants to others while a cluster that asked with this priority waits, over all runs."""
        return explored.most_passed_over(
            lambda state: any(request.cluster == cluster for request in state.dsc.waiting),
            passes=lambda move: move[1] == "grants" and move[2] != cluster,
            since=lambda move: move == (cluster, "asks", priority),
        )


def _is_at(cluster: int, phase: Phase, state: Clusters) -> bool:
    return state.phases[cluster] == phase


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _to(state: Clusters, cluster: int, phase: Phase, dsc: State | None = None) -> Clusters:
    return state._replace(phases=_with(state.phases, cluster, phase), dsc=state.dsc if dsc is None else dsc)


def _holders_hold(state: Clusters) -> bool:
    return all(
        cluster in state.dsc.holders for cluster, phase in enumerate(state.phases) if phase in ("holds", "updated", "entered")
    )


def _rounds_apart(state: Clusters) -> bool:
    """Who has gone on is one round ahead at most, and those behind have arrived and need only look."""
    ahead = max(state.rounds)
    behind = (phase for number, phase in zip(state.rounds, state.phases, strict=True) if number < ahead)
    return ahead == 0 or (ahead == 1 and all(phase in ("meets", "entered") for phase in behind))
