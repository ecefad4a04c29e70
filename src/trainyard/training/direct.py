"""DIRECT's Algorithm 1 executed: clusters with a model each, gradients reduced inside in every step, exchanges by token.

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Algorithm 1.

*Staleness* of a cluster: its local steps, or seconds, since it last took in a global update. With w, g a cluster's model and the
mean gradient of its members' batches:

- `averaging`: a step is w -= eta g. A cluster whose staleness exceeds tau asks for the token, which is the permission to enter the
  round. When all have entered, every model becomes the mean of all, and all go on.
- `literal`: as printed, without a barrier. A step whose staleness does not exceed tau is w -= eta g. One whose staleness does takes
  the token; with it, the latest gradients of all clusters are averaged into G, and w - eta G overwrites *every* cluster's model.
  What the others have stepped since their last global update is lost; a step under way ends on the gradient of the old weights.
  Clusters that wait for the token meanwhile exchange when they get it, with the same gradients once more; with `recheck` those that
  were served go on instead.

The priority of a request (order="priority") is by how many times tau the staleness is above tau when it is made: in steps, or, with
tau in seconds, the age in picoseconds over tau in picoseconds.

Events of one instant happen in this order: steps end, the exchange that is due lands, the token is granted, steps begin. Clusters
whose events fall together are computed together, so that equal ones run as one array and different ones each at its time.
What is judged is the mean of the models, or what `literal` broadcast last.

Compressed (QSGD): averaging sends what each model has moved since the last round, and the mean of that comes back, both quantized;
literal sends quantized gradients, and the new weights come back as words.

Adaptive: at every exchange, before models become one, their drift sets tau for the next (`hardware.dsc.sync_interval`).
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
from trainyard.training.clock import entered, request
from trainyard.training.shards import Whole
from trainyard.training.workspace import Workplace, mean_of
from trainyard.units import PICOSECONDS_PER_SECOND

Array = npt.NDArray[Any]
MOST_DRIFT = 1e30
"""Models around a mean of nothing have come infinitely far apart."""


class Clusters:
    """A model for each cluster, and its local steps."""

    def __init__(self, place: Workplace, algorithm: Direct) -> None:
        self.place, self.algorithm = place, algorithm
        self.count = place.workers // place.cluster_size
        self.common = place.start()
        self.weights = np.tile(self.common, (self.count, 1))
        self.velocity = np.zeros_like(self.weights) if place.momentum else None
        self.begun = np.zeros(self.count, np.int64)
        self.arbiter = Arbiter(order=algorithm.order)
        self.turn = 0
        self.random = np.random.default_rng((place.seed, 4))
        self.judged_next = place.evaluate_every
        self.tau = algorithm.tau
        if algorithm.adaptive and algorithm.unit != "steps":
            raise NotModelled("Direct: an adaptive interval counts local steps: write unit='steps', or adaptive=False")

    def gradients(self, clusters: Whole) -> Array:
        """Of each cluster's next batch; each cluster counts its own."""
        found = np.empty((len(clusters), self.weights.shape[1]), self.weights.dtype)
        rows = self._rows(clusters)

        def work(chunk: slice) -> None:
            found[chunk] = self.place.gradients(self.weights[clusters[chunk]], rows[chunk])

        self.place.each(len(found), rows.shape[1], work)
        self.begun[clusters] += 1
        return found

    def _rows(self, clusters: Whole) -> Whole:
        size, numbers = self.place.cluster_size, self.begun[clusters]
        if len(clusters) == self.count and (numbers == numbers[0]).all():
            found = self.place.feed.rows(int(numbers[0]), slice(0, self.place.workers))
        else:
            pairs = zip(clusters.tolist(), numbers.tolist(), strict=True)
            found = np.concatenate([self.place.feed.rows(n, slice(size * one, size * (one + 1))) for one, n in pairs])
        return found.reshape(len(clusters), -1)

    def apply(self, clusters: Whole, gradients: Array) -> None:
        if self.velocity is not None:
            self.velocity[clusters] = self.place.momentum * self.velocity[clusters] + gradients
            gradients = self.velocity[clusters]
        self.weights[clusters] -= self.place.learning_rate * gradients

    def judge(self, weights: Array, now: int, *, last: bool = False) -> None:
        """Every `evaluate_every` steps, counted over all clusters."""
        done = self.place.recorder.gradients // self.count
        if last or done >= self.judged_next:
            self.place.evaluate(weights, now)
            self.place.on_progress(min(done, self.place.steps), self.place.steps)
            self.judged_next = (done // self.place.evaluate_every + 1) * self.place.evaluate_every

    def sent(self, vectors: Array) -> Array:
        """What arrives of each vector."""
        bits = self.algorithm.compression_bits
        return vectors if bits is None else Qsgd(bits=bits).applied(vectors, self.random).astype(vectors.dtype)

    @property
    def patience(self) -> float:
        """Tau in what staleness is compared in: steps, or picoseconds."""
        return round(self.tau * PICOSECONDS_PER_SECOND) if self.algorithm.unit == "s" else self.tau

    def adapt(self) -> None:
        """How far the models have come apart sets the steps to the next exchange."""
        if self.algorithm.adaptive and self.count > 1:
            interval, now = self.place.interval, int(self.tau) + 1
            within = replace(interval, largest=max(interval.largest, now), smallest=min(interval.smallest, now))
            self.tau = within.next(now, min(drift(self.weights), MOST_DRIFT)) - 1


class Averaging(Clusters):
    """Rounds: local steps, the token to enter, the mean for all."""

    def run(self) -> Array:
        place, step_ps = self.place, self.place.clock.step_ps
        left, now, born = place.steps * self.count, 0, 0
        place.evaluate(self.common, 0)
        while left:
            quota = cut(self.local_steps(), step_ps, left)
            for number in range(1, int(quota.max()) + 1):
                active = np.nonzero(quota >= number)[0]
                self.apply(active, self.gradients(active))
                ended = now + number * step_ps[active]
                ages = ended - born
                place.recorder.gradient(number, int(ages[0]) if (ages == ages[0]).all() else ages, len(active))
                if number < quota.max():
                    self.judge(mean_of(self.weights), int(ended.max()))
            left -= int(quota.sum())
            arrivals = now + quota * step_ps
            stale = quota if self.algorithm.unit == "steps" else arrivals - now
            granted, self.turn = entered(self.arbiter, arrivals, stale, self.patience, place.clock.token_ps, self.turn)
            born, now = self.exchange(quota, arrivals, granted, arrivals - born)
            self.judge(self.common, now, last=not left)
        return self.common

    def local_steps(self) -> Whole:
        """Until each cluster's staleness exceeds tau."""
        if self.algorithm.unit == "s":
            return np.asarray(int(self.patience) // self.place.clock.step_ps + 1)
        return np.full(self.count, int(self.patience) + 1)

    def exchange(self, steps: Whole, arrivals: Whole, granted: Whole, ages: Whole) -> tuple[int, int]:
        """One round: when the last contribution was there, and when all go on."""
        clock = self.place.clock
        start, closed = int(arrivals.max()), int(granted.max()) + clock.token_ps
        self.meet()
        self.place.recorder.exchange(
            start=start,
            end=closed + clock.exchange_ps,
            size_bytes=clock.exchange_bytes,
            age_steps=steps,
            age_ps=ages,
            token_wait=int((granted - arrivals).sum()),
            barrier_wait=int((closed - clock.token_ps - granted).sum()),
        )
        return start, closed + clock.exchange_ps

    def meet(self) -> None:
        """All models become their mean."""
        self.adapt()
        if self.algorithm.compression_bits is None:
            self.common = mean_of(self.weights)
        else:
            moved = mean_of(self.sent(self.weights - self.common))
            self.common = self.common + self.sent(moved[None])[0]
        self.weights[:] = self.common


def cut(quota: Whole, step_ps: Whole, left: int) -> Whole:
    """A round of which only the first `left` steps to end are still wanted.

    >>> cut(np.array([4, 2]), np.array([1, 2]), 3).tolist()
    [2, 1]
    """
    if quota.sum() <= left:
        return quota
    ends = sorted((int(n * step_ps[one]), one) for one in range(len(quota)) for n in range(1, int(quota[one]) + 1))
    return np.bincount([one for _, one in ends[:left]], minlength=len(quota))


@dataclass(slots=True)
class Holder:
    """Who has the token, and what will be everybody's model when it gives it back; None: it goes on as it was served."""

    cluster: int
    asked: int
    granted: int
    end: int
    weights: Array | None
    staleness: Whole
    ages: Whole


class Literal(Clusters):
    """Algorithm 1 as printed."""

    def __init__(self, place: Workplace, algorithm: Direct) -> None:
        super().__init__(place, algorithm)
        self.pending = np.zeros_like(self.weights)  # gradients of steps under way
        self.latest = np.zeros_like(self.weights)
        self.known = np.zeros(self.count, bool)
        self.since = np.zeros(self.count, np.int64)  # steps ended since the last global update
        self.applied = np.zeros(self.count, np.int64)  # of them, those that changed the model
        self.taken = np.zeros(self.count, np.int64)  # when it came
        self.born = np.zeros(self.count, np.int64)  # when its gradients were read
        self.based = np.zeros((2, self.count), np.int64)  # since and born of the weights that a step under way began with
        self.waiting: tuple[Request, ...] = ()
        self.asked = np.zeros(self.count, np.int64)
        self.ends: list[tuple[int, int]] = []
        self.holder: Holder | None = None
        self.ready: list[int] = []
        self.left = place.steps * self.count

    def run(self) -> Array:
        self.place.evaluate(self.common, 0)
        self.ready = list(range(self.count))
        now = 0
        while self.left or self.ends or self.holder is not None:
            self._begin(now)
            coming = [self.ends[0][0]] if self.ends else []
            now = min([*coming, self.holder.end] if self.holder is not None else coming)
            self._end_steps(now)
            while self.holder is None or self.holder.end == now:
                self._land(now)
                if not self.waiting:
                    break
                self._grant(now)
            self.judge(self.common, now, last=not self.left and not self.ends and self.holder is None)
        return self.common

    def _staleness(self, now: int) -> Whole:
        return now - self.taken if self.algorithm.unit == "s" else self.since

    def _begin(self, now: int) -> None:
        starting = np.array(sorted(self.ready)[: self.left], np.int64)
        self.ready = []
        if not len(starting):
            return
        self.left -= len(starting)
        self.pending[starting] = self.gradients(starting)
        self.based[:, starting] = self.since[starting], self.born[starting]
        for cluster in starting.tolist():
            heapq.heappush(self.ends, (now + int(self.place.clock.step_ps[cluster]), cluster))

    def _end_steps(self, now: int) -> None:
        ended = []
        while self.ends and self.ends[0][0] == now:
            ended.append(heapq.heappop(self.ends)[1])
        if not ended:
            return
        clusters = np.array(ended)
        since, born = self.based[:, clusters]
        self.place.recorder.gradient(since + 1, now - born, len(ended))
        self.latest[clusters] = self.pending[clusters]
        self.known[clusters] = True
        self.since[clusters] += 1
        staleness = self._staleness(now)
        stale = staleness[clusters] > self.patience
        local = clusters[~stale]
        if len(local):
            self.apply(local, self.latest[local])
            self.applied[local] += 1
        self.ready += local.tolist()
        for cluster in clusters[stale].tolist():
            self.asked[cluster] = now
            self.waiting += (request(self.arbiter, cluster, int(staleness[cluster]), self.patience),)

    def _grant(self, now: int) -> None:
        one = self.arbiter.choose(self.waiting, self.turn)
        self.waiting = self.arbiter.aged(tuple(other for other in self.waiting if other is not one))
        cluster, clock = one.cluster, self.place.clock
        self.turn = (cluster + 1) % self.count
        weights, takes = None, clock.token_ps
        if not self.algorithm.recheck or self._staleness(now)[cluster] > self.patience:
            gradient = mean_of(self.sent(self.latest[self.known]))
            weights, takes = self.weights[cluster] - self.place.learning_rate * gradient, clock.token_ps + clock.exchange_ps
            self.adapt()
        asked = int(self.asked[cluster])
        self.holder = Holder(cluster, asked, now, now + takes, weights, self.since.copy(), now - self.born)

    def _land(self, now: int) -> None:
        held, self.holder = self.holder, None
        if held is None:
            return
        self.ready.append(held.cluster)
        wait = held.granted - held.asked
        if held.weights is None:
            self.place.recorder.token_wait_ps += wait
            return
        self.place.recorder.exchange(
            start=held.asked,
            end=now,
            size_bytes=self.place.clock.exchange_bytes,
            age_steps=held.staleness,
            age_ps=held.ages,
            token_wait=wait,
        )
        self.place.recorder.lost_steps += int(self.applied.sum() - self.applied[held.cluster])
        self.weights[:] = self.common = held.weights
        self.applied[:] = self.since[:] = 0
        self.taken[:], self.born[:] = now, held.granted


def run(place: Workplace, algorithm: Direct) -> Array:
    """All steps; the model that is judged."""
    return np.array((Literal if algorithm.update == "literal" else Averaging)(place, algorithm).run())
