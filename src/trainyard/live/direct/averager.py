"""Model averaging with a staleness threshold: Algorithm 1's `StalenessCheck() > tau` for real processes.

All ranks must come to the same decision: an averaging is an all_reduce, and one that some ranks enter and others do not makes gloo
wait for the missing ones, or pair it with their next collective of another size. Local steps are counted alike everywhere, so
`unit="steps"` needs no talk. Seconds differ from rank to rank: at every `check_every`th step the ranks take the largest age, by an
all_reduce of one number, and decide on that. An interval that adapts changes only at exchanges, by the drift between the models,
which is itself the result of an all_reduce and so the same number everywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters, get_params_to_average

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.dsc.sync_interval import Interval
from trainyard.live.direct.tokens import Tokens
from trainyard.mapping.algorithms import Direct

Parameters = Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]


class StalenessAverager(ModelAverager):
    """Averages the models of all ranks when their age exceeds `tau`, in local steps or seconds; call it after each optimizer step.

    With `unit="steps"` the step that finds the age above tau ends in the exchange: tau + 1 steps from one to the next, as
    `mapping.algorithms.Direct` counts them. `adaptive` takes the place of a fixed tau from the first exchange on. With `tokens`
    each rank takes the DSC's token, in turn, to enter an exchange. `clock` may be another, such as the simulated one. It takes the
    parameters of a model or the groups of an optimizer, hence also serves torch's `PostLocalSGDOptimizer`. Buffers stay local.
    """

    def __init__(
        self,
        tau: float = 31,
        *,
        unit: Literal["steps", "s"] = "steps",
        check_every: int = 1,
        adaptive: Interval | None = None,
        tokens: Tokens | None = None,
        process_group: dist.ProcessGroup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        Direct(tau=tau, unit=unit)  # checks tau and unit
        require_positive("StalenessAverager", check_every=check_every)
        if adaptive and unit != "steps":
            raise BadInput("StalenessAverager: an adaptive interval is counted in steps: leave unit='steps'")
        super().__init__(process_group)
        self.tau, self.unit, self.check_every, self.adaptive, self.tokens = tau, unit, check_every, adaptive, tokens
        self.exchanges = 0
        self.age_steps = 0
        """Local steps since the last exchange."""
        self._clock = clock
        self._updated_s = clock()

    def average_parameters(self, params: Parameters) -> bool:
        """One more local step is done; True if it ended in an exchange."""
        self.step += 1
        self.age_steps += 1
        stale = self._stale()
        if stale:
            self.exchange(params)
        return stale

    def exchange(self, params: Parameters) -> None:
        """All models become their mean now, as at the end of a run; all ranks call it."""
        parameters = get_params_to_average(params)
        before = _flat(parameters) if self.adaptive else None
        if self.tokens:
            with self.tokens:
                pass  # entered; who is last in finds all others at the all_reduce
        average_parameters(iter(parameters), self.process_group)
        if self.adaptive and before is not None and self.age_steps:
            self.tau = self.adaptive.next(self.age_steps, self._drift(before, _flat(parameters))) - 1
        self.exchanges += 1
        self.age_steps = 0
        self._updated_s = self._clock()

    def _stale(self) -> bool:
        if self.unit == "steps":
            return self.age_steps > self.tau
        if self.step % self.check_every:
            return False
        age = torch.tensor([self._clock() - self._updated_s], dtype=torch.float64)
        dist.all_reduce(age, dist.ReduceOp.MAX, group=self.process_group)
        return age.item() > self.tau

    def _drift(self, before: torch.Tensor, mean: torch.Tensor) -> float:
        """`hardware.dsc.sync_interval.drift`, of models that are on different ranks."""
        apart = (before - mean).double().square().sum()
        dist.all_reduce(apart, group=self.process_group)
        length = mean.double().norm().item()
        distance = math.sqrt(apart.item() / self.process_group.size())
        return distance / length if length else 0.0

    def state_dict(self) -> dict[str, float]:
        return {
            "step": self.step, "age_steps": self.age_steps, "exchanges": self.exchanges, "tau": self.tau,
            "age_s": self._clock() - self._updated_s,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.age_steps, self.exchanges = int(state["step"]), int(state["age_steps"]), int(state["exchanges"])
        self.tau = state["tau"]
        self._updated_s = self._clock() - state["age_s"]


def _flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
