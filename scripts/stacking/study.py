"""All 24 machines on one network: their times and joules, and the terms of each idea."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stacking.effects import IDEAS, Effects, Ideas, decomposed, subsets
from stacking.ideas import BASE, Combination, Setting, combinations, device, machine, require_equal
from stacking.networks import Network, network
from trainyard.ir import Masks, Step
from trainyard.progress import ProgressCallback, no_progress
from trainyard.results.result import Result
from trainyard.runs import run

SKIPPING = ("tensordash", "sigma")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One machine: of one optimizer step, all devices; `classes` is whose time it was, `bounds` what compute waited for."""

    chosen: Combination
    zeros: bool
    time_s: float
    energy_j: float
    samples_per_s: float
    classes: Mapping[str, float]
    bounds: Mapping[str, float]

    @classmethod
    def of(cls, chosen: Combination, result: Result, zeros: bool) -> Measured:
        return cls(
            chosen=chosen,
            zeros=zeros,
            time_s=result.time_s,
            energy_j=result.energy_j,
            samples_per_s=result.samples_per_s,
            classes={name: cost.time_s for name, cost in result.by_class.items()},
            bounds={bound: cost.time_s for (bound,), cost in result.group("bound").items()},
        )


@dataclass(frozen=True)
class Study:
    """What was measured; `dense` has the machines with a skipping array that is shown no zeros: its fabric alone."""

    network: Network
    setting: Setting
    rows: tuple[Measured, ...]
    dense: tuple[Measured, ...]
    capacity_bytes: int | None = None

    @cached_property
    def by_combination(self) -> Mapping[Combination, Measured]:
        return {row.chosen: row for row in self.rows}

    @property
    def base(self) -> Measured:
        return self.by_combination[Combination()]

    def best(self, array: str) -> Measured:
        """With all ideas."""
        return self.by_combination[Combination(array=array, order=True, memory=True, exchange=True)]  # type: ignore[arg-type]

    @property
    def better_array(self) -> str:
        """With all other ideas there."""
        return min(SKIPPING, key=lambda array: self.best(array).time_s)

    def costs(self, array: str, what: Callable[[Measured], float]) -> dict[Ideas, float]:
        return {row.chosen.ideas: what(row) for row in self.rows if row.chosen.array in ("systolic", array)}

    def effects(self, array: str) -> Effects:
        """Of time, with this array as the idea for the array's place."""
        return decomposed(self.costs(array, lambda row: row.time_s))

    def energy_effects(self, array: str) -> Effects:
        return decomposed(self.costs(array, lambda row: row.energy_j))

    def fabric(self, array: str, *, alone: bool, what: str = "time_s") -> tuple[float, float]:
        """What the array's place gives by its fabric alone, and by its zeros on top; with no other idea, or with all of them."""
        others = dict.fromkeys(("order", "memory", "exchange"), not alone)
        before: float = getattr(self.by_combination[Combination(**others)], what)  # type: ignore[arg-type]  # flags
        chosen = Combination(array=array, **others)  # type: ignore[arg-type]  # as above
        bare: float = getattr(next(row for row in self.dense if row.chosen == chosen), what)
        return before / bare, bare / getattr(self.by_combination[chosen], what)


def study(name: str | Network, setting: Setting = BASE, *, on_progress: ProgressCallback = no_progress) -> Study:
    """All 24 machines on a network of `NETWORKS`, or on one of your own."""
    chosen = network(name) if isinstance(name, str) else name
    return of_step(chosen, chosen.step(), chosen.zeros(), setting, on_progress)


def of_step(one: Network, step: Step, zeros: Masks, setting: Setting = BASE, on_progress: ProgressCallback = no_progress) -> Study:
    """All 24, and the arrays without zeros, alone and with all ideas."""
    capacity = capacity_of(step, setting)
    rest = [Combination(array=array, order=on, memory=on, exchange=on) for array in SKIPPING for on in (False, True)]  # type: ignore[arg-type]  # a name of ARRAYS
    jobs = [*((which, zeros) for which in combinations()), *((which, None) for which in rest)]
    found = measured(step, jobs, setting, capacity, on_progress)
    return Study(one, setting, found[: -len(rest)], found[-len(rest) :], capacity)


def measured(
    step: Step,
    jobs: Sequence[tuple[Combination, Masks | None]],
    setting: Setting = BASE,
    capacity_bytes: int | None = None,
    on_progress: ProgressCallback = no_progress,
) -> tuple[Measured, ...]:
    """Each machine on the step with the zeros that its array is shown."""
    nodes = [machine(which, setting, capacity_bytes) for which, _ in jobs]
    require_equal(nodes)
    found = []
    for number, ((which, seen), node) in enumerate(zip(jobs, nodes, strict=True)):
        on_progress(number, len(jobs))
        result = run(step, node, masks=None if which.array == "systolic" else seen)  # a dense array has no use for them
        found.append(Measured.of(which, result, seen is not None))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Each idea alone, and with all others, under another setting; `array` is the one for the array's place.

    `zeros` is the part of what the array gives with all others that is its zeros'; the rest is its fabric's.
    """

    setting: Setting
    array: str
    alone: Mapping[str, float]
    with_all: Mapping[str, float]
    total: float
    zeros: float


def sensitivity(name: str, setting: Setting, array: str, on_progress: ProgressCallback = no_progress) -> Sensitivity:
    """None of the ideas, each alone, all but each, and all: ten machines of the sixteen; and all without zeros."""
    one = network(name)
    step, zeros = one.step(), one.zeros()
    wanted = [some for some in subsets(IDEAS) if len(some) in (0, 1, len(IDEAS) - 1, len(IDEAS))]
    none, every = frozenset[str](), frozenset(IDEAS)
    jobs: list[tuple[Combination, Masks | None]] = [(_with(some, array), zeros) for some in wanted]
    *rows, bare = measured(step, [*jobs, (_with(every, array), None)], setting, capacity_of(step, setting), on_progress)
    time = {some: row.time_s for some, row in zip(wanted, rows, strict=True)}
    return Sensitivity(
        setting=setting,
        array=array,
        alone={idea: time[none] / time[frozenset({idea})] for idea in IDEAS},
        with_all={idea: time[every - {idea}] / time[every] for idea in IDEAS},
        total=time[none] / time[every],
        zeros=bare.time_s / time[every],
    )


def _with(ideas: Ideas, array: str) -> Combination:
    others = {name: name in ideas for name in IDEAS if name != "array"}
    return Combination(array=array if "array" in ideas else "systolic", **others)  # type: ignore[arg-type]  # a name of ARRAYS, flags


def capacity_of(step: Step, setting: Setting) -> int | None:
    return half_of(step) if setting.overlay == "as_needed" else None


def half_of(step: Step, devices: int = 8) -> int:
    """A memory in which a device's step fits with half of its samples: what its fullest moment then holds, nothing paged."""
    result = run(step.rebatch(step.batch // (2 * devices)), device("systolic", False))
    return max(result.peak_memory_bytes.values())
