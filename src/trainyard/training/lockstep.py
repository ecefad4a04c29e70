"""Algorithms in which every worker takes every step (all but Direct): what each does in a step and in an exchange.

With w_i, g_i a worker's model and batch gradient, eta the learning rate, N workers:

| algorithm         | a step                                                  | the exchange after `period` steps            |
|-------------------|---------------------------------------------------------|----------------------------------------------|
| Synchronous       | G += mean g_i(w)                                        | w -= eta G; G = 0 (every step)               |
| GradientAveraging | G += mean g_i(w)                                        | w -= eta G; G = 0                            |
| ModelAveraging    | w_i -= eta g_i                                          | w_i = mean w                                 |
| ADMM              | w_i -= eta (g_i + rho (w_i - z + u_i))                  | z = mean (w_i + u_i); u_i += w_i - z         |
| ElasticAveraging  | w_i -= eta g_i                                          | d_i = a (w_i - c); w_i -= d_i; c += sum d_i  |
| DecentralizedSgd  | w_i = mean (w_i, w_i-1, w_i+1) - eta g_i(w_i before)    | in every step                                |

Momentum v = m v + g, w -= eta v, belongs to the model to which the gradient is applied. A shorter last round ends in an exchange,
too, so that training results in one model. The evaluated model is the shared one, the mean of the models, ADMM's consensus z or
EASGD's centre c.

A simplification: EASGD's numbers are computed in rounds (its synchronous form), its times are not: the centre serves one request
after another, first come first served, without a barrier. Workers of equal speed are served in the order of rounds. A faster worker
is served for later rounds before slower ones for earlier rounds; its numbers then include contributions that by the clock have not
been made yet: their age counts as 0, and a round ends when the last worker has been served for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.mapping.algorithms import (
    ADMM,
    Algorithm,
    DecentralizedSgd,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Synchronous,
)
from trainyard.training.clock import service_times
from trainyard.training.workspace import Workspace, mean_of

Array = npt.NDArray[Any]
STABLE = 0.9
"""Zhang et al., NeurIPS 2015: beta, the fraction of the distance to the workers' mean by which the centre moves."""


class SharedModel:
    """Synchronous SGD and GA-SGD: one model; gradients are accumulated until the exchange."""

    def __init__(self, workspace: Workspace, algorithm: Algorithm) -> None:
        self.workspace = workspace
        self.weights = workspace.initial_weights()
        self.accumulated = np.zeros_like(self.weights)
        self.velocity = np.zeros_like(self.weights)

    def step(self, number: int) -> None:
        rows = self.workspace.feed.rows(number, slice(0, self.workspace.workers))
        self.accumulated += self.workspace.shared_gradient(self.weights, rows)

    def exchange(self) -> None:
        self.velocity = self.workspace.momentum * self.velocity + self.accumulated
        self.weights = self.weights - self.workspace.learning_rate * self.velocity
        self.accumulated[:] = 0

    def result(self) -> Array:
        return np.asarray(self.weights)


class OwnModels:
    """MA-SGD: one model per worker."""

    def __init__(self, workspace: Workspace, algorithm: Algorithm) -> None:
        self.workspace = workspace
        start = workspace.initial_weights()
        self.weights = np.tile(start, (workspace.workers, 1))
        self.velocity = np.zeros_like(self.weights) if workspace.momentum else None

    def update(self, chunk: slice, rows: Array) -> Array:
        """What a step subtracts from the models of a chunk of workers."""
        gradients = self.workspace.gradients(self.weights[chunk], rows[chunk])
        self.add_penalty(chunk, gradients)
        if self.velocity is not None:
            self.velocity[chunk] = self.workspace.momentum * self.velocity[chunk] + gradients
            return np.asarray(self.workspace.learning_rate * self.velocity[chunk])
        gradients *= self.workspace.learning_rate
        return gradients

    def add_penalty(self, chunk: slice, gradients: Array) -> None:
        """Adds a penalty term to the gradients of a chunk of workers; none here."""

    def step(self, number: int) -> None:
        rows = self.workspace.feed.rows(number, slice(0, self.workspace.workers))

        def work(chunk: slice) -> None:
            self.weights[chunk] -= self.update(chunk, rows)

        self.workspace.map_chunks(len(rows), rows.shape[1], work)

    def exchange(self) -> None:
        self.weights[:] = mean_of(self.weights)

    def result(self) -> Array:
        return mean_of(self.weights)


class ConsensusModels(OwnModels):
    """ADMM in scaled form: duals u pull each model towards the consensus z."""

    def __init__(self, workspace: Workspace, algorithm: ADMM) -> None:
        super().__init__(workspace, algorithm)
        self.rho = algorithm.rho
        self.consensus = self.weights[0].copy()
        self.duals = np.zeros_like(self.weights)

    def add_penalty(self, chunk: slice, gradients: Array) -> None:
        penalty = self.weights[chunk] - self.consensus
        penalty += self.duals[chunk]
        penalty *= self.rho
        gradients += penalty

    def exchange(self) -> None:
        def contribution(chunk: slice) -> Array:
            return np.asarray((self.weights[chunk] + self.duals[chunk]).sum(0, dtype=np.float64))

        def update_duals(chunk: slice) -> None:
            self.duals[chunk] += self.weights[chunk] - self.consensus

        total = sum(self.workspace.map_chunks(len(self.weights), 1, contribution))
        self.consensus = (total / len(self.weights)).astype(self.weights.dtype)
        self.workspace.map_chunks(len(self.weights), 1, update_duals)

    def result(self) -> Array:
        return np.asarray(self.consensus)


class ElasticModels(OwnModels):
    """EASGD, Zhang et al. Eq. 5 and 6: all workers of a round move relative to the centre before the round."""

    def __init__(self, workspace: Workspace, algorithm: ElasticAveraging) -> None:
        super().__init__(workspace, algorithm)
        self.elasticity = STABLE / workspace.workers if algorithm.elasticity is None else algorithm.elasticity
        self.centre = self.weights[0].copy()

    def exchange(self) -> None:
        def move(chunk: slice) -> Array:
            moved = self.elasticity * (self.weights[chunk] - self.centre)
            self.weights[chunk] -= moved
            return np.asarray(moved.sum(0, dtype=np.float64))

        moved = sum(self.workspace.map_chunks(len(self.weights), 1, move))
        self.centre = (self.centre + moved).astype(self.weights.dtype)

    def result(self) -> Array:
        return np.asarray(self.centre)


class RingModels(OwnModels):
    """D-PSGD: the gradient is that of the model before it is averaged with its neighbours'."""

    def __init__(self, workspace: Workspace, algorithm: DecentralizedSgd) -> None:
        super().__init__(workspace, algorithm)
        self.mixed = np.empty_like(self.weights)

    def step(self, number: int) -> None:
        rows = self.workspace.feed.rows(number, slice(0, self.workspace.workers))
        workers = len(self.weights)
        neighbourhood = min(workers, 3)

        def work(chunk: slice) -> None:
            total = self.weights[chunk].copy()
            for offset in (1, -1)[: neighbourhood - 1]:
                first, end = chunk.start + offset, chunk.stop + offset
                inside = first >= 0 and end <= workers
                total += self.weights[first:end] if inside else self.weights[np.arange(first, end) % workers]
            total /= neighbourhood
            np.subtract(total, self.update(chunk, rows), out=self.mixed[chunk])

        self.workspace.map_chunks(len(rows), rows.shape[1], work)
        self.weights, self.mixed = self.mixed, self.weights

    def exchange(self) -> None:
        """Nothing: models were averaged with their neighbours in the step."""


# fmt: off
RULES: dict[type[Algorithm], Callable[[Workspace, Any], Any]] = {
    Synchronous:       SharedModel,
    GradientAveraging: SharedModel,
    ModelAveraging:    OwnModels,
    ADMM:              ConsensusModels,
    ElasticAveraging:  ElasticModels,
    DecentralizedSgd:  RingModels,
}
# fmt: on


class LockstepClock:
    """Simulated time of each worker, and the age of the other workers' contributions to its model."""

    def __init__(self, workspace: Workspace, algorithm: Algorithm) -> None:
        self.workspace, self.between = workspace, algorithm.between
        self.now = np.zeros(workspace.workers, np.int64)
        self.done = 0
        self.contributed = (0, 0)  # (time, steps) of the farthest worker's newest contribution to the models
        self.exchanged: list[tuple[int, int]] = []
        full, rest = divmod(workspace.steps, algorithm.local_steps)
        rounds = [algorithm.local_steps] * full + [rest] * bool(rest)
        self.service_times = service_times(workspace.clock.step_ps, rounds, workspace.clock.update_ps)
        self.delay = {"centre": 1, "neighbours": workspace.workers // 2}.get(self.between, 0)
        """Exchanges until a contribution arrives: one more through a centre (read before it moves); one per hop of a ring."""

    def step(self) -> None:
        self.now += self.workspace.clock.step_ps
        self.done += 1
        ages = self.ages()
        self.workspace.recorder.gradient(
            self.done - self.contributed[1], int(ages[0]) if (ages == ages[0]).all() else ages, len(self.now)
        )

    def ages(self) -> Array:
        """Time since the newest contribution; never negative, see the simplification above."""
        return np.maximum(self.now - self.contributed[0], 0)

    def exchange(self) -> None:
        clock, requested, ages = self.workspace.clock, self.now, self.ages()
        start = int(requested.max())
        if self.between == "centre":
            self.now = next(self.service_times)
            wait = self.now - clock.update_ps - requested
        elif self.between == "neighbours":
            ready = np.maximum(requested, np.maximum(np.roll(requested, 1), np.roll(requested, -1)))
            self.now = ready + clock.update_ps
            wait = ready - requested
        else:
            self.now = np.full_like(requested, start + clock.exchange_ps)
            wait = start - requested
        self.workspace.recorder.exchange(
            start=start,
            end=int(self.now.max()),
            size_bytes=clock.exchange_bytes,
            age_steps=self.done - self.contributed[1],
            age_ps=ages[0] if (ages == ages[0]).all() else ages,
            barrier_wait=int(wait.sum()),
        )
        self.exchanged.append((start, self.done))
        if len(self.exchanged) > self.delay:
            self.contributed = self.exchanged[len(self.exchanged) - 1 - self.delay]


def run(workspace: Workspace, algorithm: Algorithm) -> Array:
    """Runs all steps; returns the evaluated model."""
    rule, pace = RULES[type(algorithm)](workspace, algorithm), LockstepClock(workspace, algorithm)
    workspace.evaluate(rule.result(), 0)
    for number in range(1, workspace.steps + 1):
        rule.step(number - 1)
        pace.step()
        last = number == workspace.steps
        if number % algorithm.local_steps == 0 or last:
            rule.exchange()
            pace.exchange()
        if number % workspace.evaluate_every == 0 or last:
            workspace.evaluate(rule.result(), int(pace.now.max()))
            workspace.on_progress(number, workspace.steps)
    return np.array(rule.result())
