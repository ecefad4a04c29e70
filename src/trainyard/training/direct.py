"""DIRECT's Algorithm 1 executed: clusters with a model each, gradients reduced inside in every step, exchanges by token.

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Algorithm 1.

*Staleness* of a cluster: its local steps, or seconds, since its last global update. With w a cluster's model and g the mean
gradient of its members' batches:

- `averaging`: a step is w -= eta g. A cluster whose staleness exceeds tau requests the token, which permits it to enter the round.
  When all clusters have entered, every model becomes the mean of all models.
- `literal`: as printed, without a barrier. A step whose staleness does not exceed tau is w -= eta g. Otherwise the cluster takes
  the token, the latest gradients of all clusters are averaged into G, and w - eta G overwrites *every* cluster's model. Steps that
  other clusters took since their last global update are lost; a step in progress ends with the gradient of the old weights.
  Clusters that wait for the token exchange when they receive it, with the same gradients again; with `recheck` those that were
  updated meanwhile go on without an exchange.

The priority of a request (order="priority") is by how many times tau its staleness exceeds tau, in steps or, with tau in seconds,
in picoseconds.

Events at the same time happen in this order: steps end, a due exchange completes, the token is granted, steps begin. Clusters whose
events coincide are computed as one array. The evaluated model is the mean of the models, or the last broadcast of `literal`.

Compression (QSGD): `averaging` sends the change of each model since the last round and receives the mean change, both quantized;
`literal` sends quantized gradients and receives unquantized weights.

Adaptive: at every exchange, before models are averaged, their drift sets the next tau (`hardware.dsc.sync_interval`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import NotModelled
from trainyard.hardware.dsc.sync_interval import drift
from trainyard.hardware.dsc.token_arbiter import Arbiter, Request
from trainyard.hardware.formats.qsgd import Qsgd
from trainyard.mapping.algorithms import Direct
from trainyard.training.clock import grant_times, request
from trainyard.training.shards import Whole
from trainyard.training.workspace import Workspace, mean_of
from trainyard.units import PICOSECONDS_PER_SECOND

Array = npt.NDArray[Any]
MOST_DRIFT = 1e30
"""Upper limit of the drift, which is infinite where the mean of the models is zero."""


class Clusters:
    """One model per cluster, and its local steps."""

    def __init__(self, workspace: Workspace, algorithm: Direct) -> None:
        self.workspace, self.algorithm = workspace, algorithm
        self.count = workspace.workers // workspace.cluster_size
        self.global_weights = workspace.initial_weights()
        self.weights = np.tile(self.global_weights, (self.count, 1))
        self.velocity = np.zeros_like(self.weights) if workspace.momentum else None
        self.batches = np.zeros(self.count, np.int64)
        self.arbiter = Arbiter(order=algorithm.order)
        self.turn = 0
        self.random = np.random.default_rng((workspace.seed, 4))
        self.next_evaluation = workspace.evaluate_every
        self.tau = algorithm.tau
        if algorithm.adaptive and algorithm.unit != "steps":
            raise NotModelled("Direct: an adaptive interval counts local steps: write unit='steps', or adaptive=False")

    def gradients(self, clusters: Whole) -> Array:
        """Gradients of each cluster's next batch; clusters count their batches separately."""
        gradients = np.empty((len(clusters), self.weights.shape[1]), self.weights.dtype)
        rows = self._rows(clusters)

        def work(chunk: slice) -> None:
            gradients[chunk] = self.workspace.gradients(self.weights[clusters[chunk]], rows[chunk])

        self.workspace.map_chunks(len(gradients), rows.shape[1], work)
        self.batches[clusters] += 1
        return gradients

    def _rows(self, clusters: Whole) -> Whole:
        size, numbers = self.workspace.cluster_size, self.batches[clusters]
        if len(clusters) == self.count and (numbers == numbers[0]).all():
            rows = self.workspace.feed.rows(int(numbers[0]), slice(0, self.workspace.workers))
        else:
            pairs = zip(clusters.tolist(), numbers.tolist(), strict=True)
            rows = np.concatenate([self.workspace.feed.rows(n, slice(size * c, size * (c + 1))) for c, n in pairs])
        return rows.reshape(len(clusters), -1)

    def apply(self, clusters: Whole, gradients: Array) -> None:
        if self.velocity is not None:
            self.velocity[clusters] = self.workspace.momentum * self.velocity[clusters] + gradients
            gradients = self.velocity[clusters]
        self.weights[clusters] -= self.workspace.learning_rate * gradients

    def evaluate_if_due(self, weights: Array, now: int, *, last: bool = False) -> None:
        """Evaluates `weights` if `evaluate_every` steps, averaged over clusters, have passed since the last evaluation."""
        done = self.workspace.recorder.gradients // self.count
        if last or done >= self.next_evaluation:
            self.workspace.evaluate(weights, now)
            self.workspace.on_progress(min(done, self.workspace.steps), self.workspace.steps)
            self.next_evaluation = (done // self.workspace.evaluate_every + 1) * self.workspace.evaluate_every

    def received(self, vectors: Array) -> Array:
        """Each vector as received: quantized if the algorithm compresses."""
        bits = self.algorithm.compression_bits
        return vectors if bits is None else Qsgd(bits=bits).applied(vectors, self.random).astype(vectors.dtype)

    @property
    def threshold(self) -> float:
        """Tau in the unit of staleness: steps or picoseconds."""
        return round(self.tau * PICOSECONDS_PER_SECOND) if self.algorithm.unit == "s" else self.tau

    def adapt(self) -> None:
        """Sets tau for the next exchange from the drift of the models."""
        if self.algorithm.adaptive and self.count > 1:
            interval, steps = self.workspace.interval, int(self.tau) + 1
            bounded = replace(interval, largest=max(interval.largest, steps), smallest=min(interval.smallest, steps))
            self.tau = bounded.next(steps, min(drift(self.weights), MOST_DRIFT)) - 1


class Averaging(Clusters):
    """Rounds: local steps, the token to enter the round, the mean of all models."""

    def run(self) -> Array:
        workspace, step_ps = self.workspace, self.workspace.clock.step_ps
        left, now, contributed_ps = workspace.steps * self.count, 0, 0
        workspace.evaluate(self.global_weights, 0)
        while left:
            quota = truncated(self.local_steps(), step_ps, left)
            for number in range(1, int(quota.max()) + 1):
                active = np.nonzero(quota >= number)[0]
                self.apply(active, self.gradients(active))
                ended = now + number * step_ps[active]
                ages = ended - contributed_ps
                workspace.recorder.gradient(number, int(ages[0]) if (ages == ages[0]).all() else ages, len(active))
                if number < quota.max():
                    self.evaluate_if_due(mean_of(self.weights), int(ended.max()))
            left -= int(quota.sum())
            arrivals = now + quota * step_ps
            stale = quota if self.algorithm.unit == "steps" else arrivals - now
            token_ps = workspace.clock.token_ps
            granted, self.turn = grant_times(self.arbiter, arrivals, stale, self.threshold, token_ps, self.turn)
            contributed_ps, now = self.exchange(quota, arrivals, granted, arrivals - contributed_ps)
            self.evaluate_if_due(self.global_weights, now, last=not left)
        return self.global_weights

    def local_steps(self) -> Whole:
        """Steps of each cluster until its staleness exceeds tau."""
        if self.algorithm.unit == "s":
            return np.asarray(int(self.threshold) // self.workspace.clock.step_ps + 1)
        return np.full(self.count, int(self.threshold) + 1)

    def exchange(self, steps: Whole, arrivals: Whole, granted: Whole, ages: Whole) -> tuple[int, int]:
        """Ends a round; returns the time of the last contribution and the time at which all clusters go on."""
        clock = self.workspace.clock
        start, closed = int(arrivals.max()), int(granted.max()) + clock.token_ps
        self.average()
        self.workspace.recorder.exchange(
            start=start,
            end=closed + clock.exchange_ps,
            size_bytes=clock.exchange_bytes,
            age_steps=steps,
            age_ps=ages,
            token_wait=int((granted - arrivals).sum()),
            barrier_wait=int((closed - clock.token_ps - granted).sum()),
        )
        return start, closed + clock.exchange_ps

    def average(self) -> None:
        """Replaces all models by their mean."""
        self.adapt()
        if self.algorithm.compression_bits is None:
            self.global_weights = mean_of(self.weights)
        else:
            moved = mean_of(self.received(self.weights - self.global_weights))
            self.global_weights = self.global_weights + self.received(moved[None])[0]
        self.weights[:] = self.global_weights


def truncated(quota: Whole, step_ps: Whole, left: int) -> Whole:
    """The steps of each cluster in a last round that ends with the `left`-th step of all clusters.

    >>> truncated(np.array([4, 2]), np.array([1, 2]), 3).tolist()
    [2, 1]
    """
    if quota.sum() <= left:
        return quota
    ends = sorted((int(n * step_ps[c]), c) for c in range(len(quota)) for n in range(1, int(quota[c]) + 1))
    return np.bincount([cluster for _, cluster in ends[:left]], minlength=len(quota))


@dataclass(slots=True)
class TokenHolder:
    """The cluster with the token, and the weights it broadcasts when it releases it; None if it was updated while it waited."""

    cluster: int
    requested: int
    granted: int
    end: int
    weights: Array | None
    staleness: Whole
    ages: Whole


class LiteralUpdate(Clusters):
    """Algorithm 1 as printed."""

    def __init__(self, workspace: Workspace, algorithm: Direct) -> None:
        super().__init__(workspace, algorithm)
        self.pending = np.zeros_like(self.weights)  # gradients of steps in progress
        self.latest = np.zeros_like(self.weights)
        self.has_gradient = np.zeros(self.count, bool)
        self.since = np.zeros(self.count, np.int64)  # steps ended since the last global update
        self.applied = np.zeros(self.count, np.int64)  # of them, those that changed the model
        self.updated_ps = np.zeros(self.count, np.int64)  # when that update arrived
        self.contributed_ps = np.zeros(self.count, np.int64)  # when the gradients of that update were read
        self.at_start = np.zeros((2, self.count), np.int64)  # since and contributed_ps when the step in progress began
        self.waiting: tuple[Request, ...] = ()
        self.requested_ps = np.zeros(self.count, np.int64)
        self.ends: list[tuple[int, int]] = []
        self.holder: TokenHolder | None = None
        self.ready: list[int] = []
        self.left = workspace.steps * self.count

    def run(self) -> Array:
        self.workspace.evaluate(self.global_weights, 0)
        self.ready = list(range(self.count))
        now = 0
        while self.left or self.ends or self.holder is not None:
            self._begin(now)
            next_end = [self.ends[0][0]] if self.ends else []
            now = min([*next_end, self.holder.end] if self.holder is not None else next_end)
            self._end_steps(now)
            while self.holder is None or self.holder.end == now:
                self._complete_exchange(now)
                if not self.waiting:
                    break
                self._grant(now)
            self.evaluate_if_due(self.global_weights, now, last=not self.left and not self.ends and self.holder is None)
        return self.global_weights

    def _staleness(self, now: int) -> Whole:
        return now - self.updated_ps if self.algorithm.unit == "s" else self.since

    def _begin(self, now: int) -> None:
        starting = np.array(sorted(self.ready)[: self.left], np.int64)
        self.ready = []
        if not len(starting):
            return
        self.left -= len(starting)
        self.pending[starting] = self.gradients(starting)
        self.at_start[:, starting] = self.since[starting], self.contributed_ps[starting]
        for cluster in starting.tolist():
            heapq.heappush(self.ends, (now + int(self.workspace.clock.step_ps[cluster]), cluster))

    def _end_steps(self, now: int) -> None:
        ended = []
        while self.ends and self.ends[0][0] == now:
            ended.append(heapq.heappop(self.ends)[1])
        if not ended:
            return
        clusters = np.array(ended)
        since, contributed_ps = self.at_start[:, clusters]
        self.workspace.recorder.gradient(since + 1, now - contributed_ps, len(ended))
        self.latest[clusters] = self.pending[clusters]
        self.has_gradient[clusters] = True
        self.since[clusters] += 1
        staleness = self._staleness(now)
        stale = staleness[clusters] > self.threshold
        local = clusters[~stale]
        if len(local):
            self.apply(local, self.latest[local])
            self.applied[local] += 1
        self.ready += local.tolist()
        for cluster in clusters[stale].tolist():
            self.requested_ps[cluster] = now
            self.waiting += (request(self.arbiter, cluster, int(staleness[cluster]), self.threshold),)

    def _grant(self, now: int) -> None:
        chosen = self.arbiter.choose(self.waiting, self.turn)
        self.waiting = self.arbiter.aged(tuple(other for other in self.waiting if other is not chosen))
        cluster, clock = chosen.cluster, self.workspace.clock
        self.turn = (cluster + 1) % self.count
        weights, takes = None, clock.token_ps
        if not self.algorithm.recheck or self._staleness(now)[cluster] > self.threshold:
            gradient = mean_of(self.received(self.latest[self.has_gradient]))
            weights, takes = self.weights[cluster] - self.workspace.learning_rate * gradient, clock.token_ps + clock.exchange_ps
            self.adapt()
        requested = int(self.requested_ps[cluster])
        self.holder = TokenHolder(cluster, requested, now, now + takes, weights, self.since.copy(), now - self.contributed_ps)

    def _complete_exchange(self, now: int) -> None:
        holder, self.holder = self.holder, None
        if holder is None:
            return
        self.ready.append(holder.cluster)
        wait = holder.granted - holder.requested
        if holder.weights is None:
            self.workspace.recorder.token_wait_ps += wait
            return
        self.workspace.recorder.exchange(
            start=holder.requested,
            end=now,
            size_bytes=self.workspace.clock.exchange_bytes,
            age_steps=holder.staleness,
            age_ps=holder.ages,
            token_wait=wait,
        )
        self.workspace.recorder.lost_steps += int(self.applied.sum() - self.applied[holder.cluster])
        self.weights[:] = self.global_weights = holder.weights
        self.applied[:] = self.since[:] = 0
        self.updated_ps[:], self.contributed_ps[:] = now, holder.granted


def run(workspace: Workspace, algorithm: Direct) -> Array:
    """Runs all steps; returns the evaluated model."""
    return np.array((LiteralUpdate if algorithm.update == "literal" else Averaging)(workspace, algorithm).run())
