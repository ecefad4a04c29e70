"""A DSC at work: holds one state, changes it by the rules of `hardware.dsc.controller`, grants at once."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.checks import require_positive, require_quantity
from trainyard.hardware.dsc.barriers import Barrier
from trainyard.hardware.dsc.controller import Rules


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
            before = self._local_states[self.rules._require_cluster(cluster)]
            self._local_states[cluster] = self._local.arrive(before, dpu)
        return not self.waits(cluster, dpu)

    def waits(self, cluster: int, dpu: int | None = None) -> bool:
        if dpu is None:
            return self.rules.waits(self.state, cluster)
        return self._local.waits(self._local_states[self.rules._require_cluster(cluster)], dpu)
