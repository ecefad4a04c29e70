"""Algorithms in which every worker takes every step: all but Direct. What each does in a step and in an exchange.

With w_i, g_i a worker's model and batch gradient, eta the learning rate, N workers:

| algorithm         | a step                                                  | the exchange after `period` steps            |
|-------------------|---------------------------------------------------------|----------------------------------------------|
| Synchronous       | G += mean g_i(w)                                        | w -= eta G; G = 0 (every step)               |
| GradientAveraging | G += mean g_i(w)                                        | w -= eta G; G = 0                            |
| ModelAveraging    | w_i -= eta g_i                                          | w_i = mean w                                 |
| ADMM              | w_i -= eta (g_i + rho (w_i - z + u_i))                  | z = mean (w_i + u_i); u_i += w_i - z         |
| ElasticAveraging  | w_i -= eta g_i                                          | d_i = a (w_i - c); w_i -= d_i; c += sum d_i  |
| DecentralizedSgd  | w_i = mean (w_i, w_i-1, w_i+1) - eta g_i(w_i before)    | in every step                                |

Momentum v = m v + g, w -= eta v, is kept where the gradient is applied. A last round that is shorter ends in an exchange too: what
training gives is one model. What is judged is the model all have, the mean of models, ADMM's consensus z, EASGD's centre c.

A simplification: EASGD's numbers go in rounds (its synchronous form), its clock does not: the centre serves one request after
another, first come first served, and nobody waits for a round to be full. Workers of equal speed are served in the order of
rounds, round after round. A faster one is served for later rounds before slower ones for earlier ones, and its numbers hold what by
the clock these have yet to do: the age of that counts as 0, and a round has ended when the last worker was served for it.
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
from trainyard.training.clock import served
from trainyard.training.workspace import Workplace, mean_of

Array = npt.NDArray[Any]
STABLE = 0.9
"""Zhang et al., NeurIPS 2015: beta, the share of its distance to the workers' mean that the centre moves."""


class SharedModel:
    """Synchronous SGD and GA-SGD: one model, gradients added up until they go round."""

    def __init__(self, place: Workplace, algorithm: Algorithm) -> None:
        self.place = place
        self.weights = place.start()
        self.gathered = np.zeros_like(self.weights)
        self.velocity = np.zeros_like(self.weights)

    def step(self, number: int) -> None:
        rows = self.place.feed.rows(number, slice(0, self.place.workers))
        self.gathered += self.place.shared_gradient(self.weights, rows)

    def exchange(self) -> None:
        self.velocity = self.place.momentum * self.velocity + self.gathered
        self.weights = self.weights - self.place.learning_rate * self.velocity
        self.gathered[:] = 0

    def result(self) -> Array:
        return np.asarray(self.weights)


class OwnModels:
    """MA-SGD: a model for each worker."""

    def __init__(self, place: Workplace, algorithm: Algorithm) -> None:
        self.place = place
        start = place.start()
        self.weights = np.tile(start, (place.workers, 1))
        self.velocity = np.zeros_like(self.weights) if place.momentum else None

    def moves(self, chunk: slice, rows: Array) -> Array:
        """What is taken from some workers' models in a step."""
        gradients = self.place.gradients(self.weights[chunk], rows[chunk])
        self.pull(chunk, gradients)
        if self.velocity is not None:
            self.velocity[chunk] = self.place.momentum * self.velocity[chunk] + gradients
            return np.asarray(self.place.learning_rate * self.velocity[chunk])
        gradients *= self.place.learning_rate
        return gradients

    def pull(self, chunk: slice, gradients: Array) -> None:
        """What else goes into some workers' gradients."""

    def step(self, number: int) -> None:
        rows = self.place.feed.rows(number, slice(0, self.place.workers))

        def work(chunk: slice) -> None:
            self.weights[chunk] -= self.moves(chunk, rows)

        self.place.each(len(rows), rows.shape[1], work)

    def exchange(self) -> None:
        self.weights[:] = mean_of(self.weights)

    def result(self) -> Array:
        return mean_of(self.weights)


class ConsensusModels(OwnModels):
    """ADMM in scaled form: duals u pull each model towards the consensus z."""

    def __init__(self, place: Workplace, algorithm: ADMM) -> None:
        super().__init__(place, algorithm)
        self.rho = algorithm.rho
        self.consensus = self.weights[0].copy()
        self.duals = np.zeros_like(self.weights)

    def pull(self, chunk: slice, gradients: Array) -> None:
        away = self.weights[chunk] - self.consensus
        away += self.duals[chunk]
        away *= self.rho
        gradients += away

    def exchange(self) -> None:
        def give(chunk: slice) -> Array:
            return np.asarray((self.weights[chunk] + self.duals[chunk]).sum(0, dtype=np.float64))

        def take(chunk: slice) -> None:
            self.duals[chunk] += self.weights[chunk] - self.consensus

        total = sum(self.place.each(len(self.weights), 1, give))
        self.consensus = (total / len(self.weights)).astype(self.weights.dtype)
        self.place.each(len(self.weights), 1, take)

    def result(self) -> Array:
        return np.asarray(self.consensus)


class ElasticModels(OwnModels):
    """EASGD, Zhang et al. Eq. 5 and 6: all workers of a round move against the centre as it was before."""

    def __init__(self, place: Workplace, algorithm: ElasticAveraging) -> None:
        super().__init__(place, algorithm)
        self.elasticity = STABLE / place.workers if algorithm.elasticity is None else algorithm.elasticity
        self.centre = self.weights[0].copy()

    def exchange(self) -> None:
        def move(chunk: slice) -> Array:
            moved = self.elasticity * (self.weights[chunk] - self.centre)
            self.weights[chunk] -= moved
            return np.asarray(moved.sum(0, dtype=np.float64))

        moved = sum(self.place.each(len(self.weights), 1, move))
        self.centre = (self.centre + moved).astype(self.weights.dtype)

    def result(self) -> Array:
        return np.asarray(self.centre)


class RingModels(OwnModels):
    """D-PSGD: the gradient is that of the model before it is mixed with its neighbours'."""

    def __init__(self, place: Workplace, algorithm: DecentralizedSgd) -> None:
        super().__init__(place, algorithm)
        self.mixed = np.empty_like(self.weights)

    def step(self, number: int) -> None:
        rows = self.place.feed.rows(number, slice(0, self.place.workers))
        workers = len(self.weights)
        reach = min(workers, 3)

        def work(chunk: slice) -> None:
            total = self.weights[chunk].copy()
            for away in (1, -1)[: reach - 1]:
                first, end = chunk.start + away, chunk.stop + away
                inside = first >= 0 and end <= workers
                total += self.weights[first:end] if inside else self.weights[np.arange(first, end) % workers]
            total /= reach
            np.subtract(total, self.moves(chunk, rows), out=self.mixed[chunk])

        self.place.each(len(rows), rows.shape[1], work)
        self.weights, self.mixed = self.mixed, self.weights

    def exchange(self) -> None:
        """Nothing is left to do: models were mixed in the step."""


# fmt: off
RULES: dict[type[Algorithm], Callable[[Workplace, Any], Any]] = {
    Synchronous:       SharedModel,
    GradientAveraging: SharedModel,
    ModelAveraging:    OwnModels,
    ADMM:              ConsensusModels,
    ElasticAveraging:  ElasticModels,
    DecentralizedSgd:  RingModels,
}
# fmt: on


class Pace:
    """When each worker does what; how old what it knows of the others is."""

    def __init__(self, place: Workplace, algorithm: Algorithm) -> None:
        self.place, self.between = place, algorithm.between
        self.now = np.zeros(place.workers, np.int64)
        self.done = 0
        self.born = (0, 0)  # when, and after how many steps, what the models hold of the farthest worker was ready
        self.sent: list[tuple[int, int]] = []
        full, rest = divmod(place.steps, algorithm.local_steps)
        self.served = served(place.clock.step_ps, [algorithm.local_steps] * full + [rest] * bool(rest), place.clock.update_ps)
        self.delay = {"centre": 1, "neighbours": place.workers // 2}.get(self.between, 0)
        """Exchanges that news takes: one more by way of a centre, where it is read before it is moved; one for each hop."""

    def step(self) -> None:
        self.now += self.place.clock.step_ps
        self.done += 1
        ages = self.ages()
        self.place.recorder.gradient(self.done - self.born[1], int(ages[0]) if (ages == ages[0]).all() else ages, len(self.now))

    def ages(self) -> Array:
        """Above 0 but at a centre."""
        return np.maximum(self.now - self.born[0], 0)

    def exchange(self) -> None:
        clock, asked, ages = self.place.clock, self.now, self.ages()
        start = int(asked.max())
        if self.between == "centre":
            self.now = next(self.served)
            wait = self.now - clock.update_ps - asked
        elif self.between == "neighbours":
            met = np.maximum(asked, np.maximum(np.roll(asked, 1), np.roll(asked, -1)))
            self.now = met + clock.update_ps
            wait = met - asked
        else:
            self.now = np.full_like(asked, start + clock.exchange_ps)
            wait = start - asked
        self.place.recorder.exchange(
            start=start,
            end=int(self.now.max()),
            size_bytes=clock.exchange_bytes,
            age_steps=self.done - self.born[1],
            age_ps=ages[0] if (ages == ages[0]).all() else ages,
            barrier_wait=int(wait.sum()),
        )
        self.sent.append((start, self.done))
        if len(self.sent) > self.delay:
            self.born = self.sent[len(self.sent) - 1 - self.delay]


def run(place: Workplace, algorithm: Algorithm) -> Array:
    """All steps; the model that is judged."""
    rule, pace = RULES[type(algorithm)](place, algorithm), Pace(place, algorithm)
    place.evaluate(rule.result(), 0)
    for number in range(1, place.steps + 1):
        rule.step(number - 1)
        pace.step()
        last = number == place.steps
        if number % algorithm.local_steps == 0 or last:
            rule.exchange()
            pace.exchange()
        if number % place.evaluate_every == 0 or last:
            place.evaluate(rule.result(), int(pace.now.max()))
            place.on_progress(number, place.steps)
    return np.array(rule.result())
