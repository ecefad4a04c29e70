"""A search in place of the grid: optuna asks for settings, points answer, several objectives give a front.

    [search]
    trials = 400                 # settings that are tried
    sampler = "nsga2"            # nsga2 (default of several objectives), tpe (default of one), random
    generation = 40              # asked for at a time, whatever the number of workers
    seed = 0

A generation is asked for as a whole, run on whatever workers there are, and told in the order in which it was asked: so the search
is the same for one worker and for a hundred, and started again it walks the same way through the points that are in the store.
With several workloads, a setting's objective is the geometric mean over them. What fails, or does not fit its machine's memory, is
no parent of later settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.sweep.axes import Axis

if TYPE_CHECKING:
    from trainyard.sweep.records import Record
    from trainyard.sweep.running import Run

Sampler = Literal["nsga2", "tpe", "random"]
DEFAULTS = {"trials": 200, "generation": 20, "seed": 0}
KEYS = (*DEFAULTS, "sampler")
MOST_TRIALS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study's [search] says, checked."""

    trials: int
    sampler: Sampler
    generation: int
    seed: int

    @classmethod
    def of(
        cls, table: Mapping[str, Any], axes: Sequence[Axis], objectives: Mapping[str, str], knobs: Sequence[str], source: str
    ) -> Plan:
        """The plan of a table; `axes` must leave something to choose."""
        for key in table:
            if key not in KEYS:
                raise UnknownName("key", str(key), KEYS, f"{source}: search")
        sampler = table.get("sampler", "nsga2" if len(objectives) > 1 else "tpe")
        if sampler not in get_args(Sampler):
            raise UnknownName("sampler", str(sampler), get_args(Sampler), f"{source}: search.sampler")
        numbers = dict(DEFAULTS)
        for key in numbers:
            value, least = table.get(key, numbers[key]), 0 if key == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TRIALS:
                raise BadInput(f"{source}: search.{key}: expected a whole number from {least} to {MOST_TRIALS}, got {value!r}")
            numbers[key] = value
        if not axes:
            raise BadInput(f"{source}: search: there is nothing to choose: give [axes]")
        for axis in axes:
            if not axis.values and axis.path in knobs:
                raise BadInput(f"{source}: axes.{axis.name}: a search takes a list, or a range with steps, of this")
            if not axis.values and any(follower.range is None for follower in axis.followers):
                raise BadInput(f"{source}: axes.{axis.name}: what is tied to a range without steps takes the same values")
        if sampler == "nsga2" and numbers["generation"] < 2:
            raise BadInput(f"{source}: search.generation: nsga2 needs at least 2")
        return cls(sampler=sampler, **numbers)


def search(run: Run) -> None:
    """All generations of a run's study."""
    study = run.study
    plan = study.plan
    assert plan is not None  # the study has a [search]
    trials = _study(plan, list(study.objectives.values()))
    total = plan.trials * len(study.workloads)
    for first in range(0, plan.trials, plan.generation):
        generation = [trials.ask() for _ in range(min(plan.generation, plan.trials - first))]
        settings = [_settings(trial, study.axes) for trial in generation]
        points = [study.point(workload, chosen) for chosen in settings for workload in study.workloads]
        records = run.evaluate(points, total=total)
        per_setting = len(study.workloads)
        for number, trial in enumerate(generation):
            own = records[number * per_setting : (number + 1) * per_setting]
            fit = study.any_memory or all(record.fits for record in own)
            values = objective(own, list(study.objectives)) if fit else None
            if values is None:
                trials.tell(trial, state=_failed())
            else:
                trials.tell(trial, values)


def objective(records: Sequence[Record], names: Sequence[str]) -> list[float] | None:
    """Each objective's geometric mean over the workloads; None where a point failed or has no such number.

    >>> from trainyard.sweep.records import Record
    >>> one = Record(key="a", workload="w", machine="m", settings={}, metrics={"time_s": 2.0})
    >>> other = Record(key="b", workload="v", machine="m", settings={}, metrics={"time_s": 8.0})
    >>> objective([one, other], ["time_s"])
    [4.0]
    """
    means = []
    for name in names:
        values = [record.metrics.get(name, math.nan) for record in records]
        if any(record.failed for record in records) or not all(math.isfinite(value) for value in values):
            return None
        if len(values) == 1:
            means.append(values[0])
        elif min(values) > 0:
            means.append(math.exp(math.fsum(map(math.log, values)) / len(values)))
        else:
            means.append(0.0)
    return means


def _settings(trial: Any, axes: Sequence[Axis]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for axis in axes:
        chosen.update(_suggested(trial, axis))
    return chosen


def _suggested(trial: Any, axis: Axis) -> dict[str, Any]:
    """A value of the list by its number, so that neighbours are near each other; words have no neighbours."""
    if axis.values:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)
        places = range(len(axis.values))
        if numbers:
            order = sorted(places, key=lambda index: axis.values[index])
            return axis.at(order[trial.suggest_int(axis.name, 0, len(order) - 1)])
        return axis.at(trial.suggest_categorical(axis.name, list(places)))
    spread = axis.range
    assert spread is not None  # an axis has values or a range
    log = spread.scale == "log"
    if spread.integer:
        return axis.of(trial.suggest_int(axis.name, int(spread.low), int(spread.high), log=log))
    return axis.of(float(f"{trial.suggest_float(axis.name, spread.low, spread.high, log=log):.12g}"))


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise MissingExtra("optuna", "sweep", "a search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _failed() -> Any:
    return _optuna().trial.TrialState.FAIL


def _study(plan: Plan, directions: Sequence[str]) -> Any:
    optuna = _optuna()
    samplers = {
        "nsga2": lambda: optuna.samplers.NSGAIISampler(population_size=plan.generation, seed=plan.seed),
        "tpe": lambda: optuna.samplers.TPESampler(seed=plan.seed, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=plan.seed),
    }
    words = {"min": "minimize", "max": "maximize"}
    return optuna.create_study(sampler=samplers[plan.sampler](), directions=[words[direction] for direction in directions])
