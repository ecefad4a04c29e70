"""How much a metric depends on each assumption and each parameter, one change at a time and in pairs.

A *change* replaces one value: an assumption takes an alternative, a parameter is halved or doubled, a choice takes another value.
A *study* lists the changes and measures the metric with any of them applied. Two changes *interact* by what both together do beyond
the product of their single effects: after(both) * before / (after(first) * after(second)) - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, overload

from trainyard.errors import BadInput, TrainyardError, UnknownKeyword
from trainyard.progress import ProgressCallback, no_progress
from trainyard.results.metrics import metric_of
from trainyard.runs import Machine, Workload, run

if TYPE_CHECKING:
    import os

    import plotly.graph_objects as go

Kind = Literal["assumption", "parameter"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FACTOR = 2.0
PAIRED = 6
"""All pairs of this many changes, those with the largest effects, are measured by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value replaced by another. Changes of one `group` can be combined; `payload` is what the study's `measure` applies."""

    name: str
    meaning: str
    value: Any
    alternative: Any
    payload: Any = field(compare=False)
    kind: Kind = "assumption"
    group: str = ""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEffect:
    """The metric before and after one change; `error` says why the change could not be measured."""

    name: str
    meaning: str
    value: Any
    alternative: Any
    before: float
    after: float
    error: str = ""
    kind: Kind = "assumption"

    @property
    def change(self) -> float:
        """Relative change of the metric."""
        return self.after / self.before - 1.0 if self.before else 0.0

    @property
    def size(self) -> float:
        """Absolute value of the relative change; of a metric that was 0, the value after."""
        return abs(self.change) if self.before else abs(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityStudy:
    """The changes to apply and how to measure them: `measure(group, changes)`, where no changes give the baseline."""

    title: str
    metric: str
    changes: Sequence[Change]
    measure: Callable[[str, Sequence[Change]], float]
    prefetch: Callable[[Sequence[tuple[str, Sequence[Change]]]], None] = lambda trials: None
    """Called with the measurements to come, so that costly ones can run in several processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two changes applied together."""

    first: ChangeEffect
    second: ChangeEffect
    after: float
    error: str = ""

    @property
    def change(self) -> float:
        return self.after / self.first.before - 1.0

    @property
    def interaction(self) -> float:
        """Relative excess over the product of both single effects; 0 where the changes are independent."""
        return self.after * self.first.before / (self.first.after * self.second.after) - 1.0


@dataclass(frozen=True, slots=True)
class SensitivityResult(Sequence[ChangeEffect]):
    """Effects of single changes, the largest first, and `pairs`, the strongest interaction first."""

    title: str
    metric: str
    effects: tuple[ChangeEffect, ...]
    pairs: tuple[Pair, ...] = ()

    @overload
    def __getitem__(self, number: int) -> ChangeEffect: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[ChangeEffect, ...]: ...
    def __getitem__(self, number: int | slice) -> ChangeEffect | tuple[ChangeEffect, ...]:
        return self.effects[number]

    def __len__(self) -> int:
        return len(self.effects)

    def table(self) -> None:
        from trainyard.report.terminal import show_sensitivity

        show_sensitivity(self)

    def figure(self) -> go.Figure:
        """The tornado: the widest swing on top."""
        from trainyard.report.tornado import tornado

        return tornado(self, self.title, self.metric)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report.tornado import write

        write(self, path)


def run_study(study: SensitivityStudy, on_progress: ProgressCallback = no_progress, *, paired: int = PAIRED) -> SensitivityResult:
    """Measures every change alone, then all pairs of the `paired` names with the largest effects, each at its strongest value."""
    total = len(study.changes) + paired * (paired - 1) // 2
    on_progress(0, total)
    study.prefetch([(change.group, (change,)) for change in study.changes])
    baselines = {group: study.measure(group, ()) for group in dict.fromkeys(change.group for change in study.changes)}
    effects: list[ChangeEffect] = []
    for change in study.changes:
        on_progress(len(effects), total)
        effects.append(_effect(study, change, baselines[change.group]))
    ranked = sorted(zip(study.changes, effects, strict=True), key=lambda ranked: -ranked[1].size)
    strongest: dict[str, tuple[Change, ChangeEffect]] = {}
    for change, effect in ranked:
        if not effect.error and effect.size:
            strongest.setdefault(effect.name, (change, effect))
    candidates = list(strongest.values())[:paired]
    couples = [(a, b) for a, b in combinations(candidates, 2) if _compatible(a[0], b[0])]
    study.prefetch([(first.group, (first, second)) for (first, _), (second, _) in couples])
    pairs: list[Pair] = []
    for (first, first_effect), (second, second_effect) in couples:
        on_progress(len(effects) + len(pairs), len(effects) + len(couples))
        pairs.append(_pair(study, (first, second), first_effect, second_effect))
    pairs.sort(key=lambda pair: -abs(pair.interaction))
    return SensitivityResult(study.title, study.metric, tuple(effect for _, effect in ranked), tuple(pairs))


def _compatible(first: Change, second: Change) -> bool:
    """Whether both changes can be combined: same group, and neither names the other's field or a part that holds it."""
    nested = any(f"{a.name}.".startswith(f"{b.name}.") for a, b in ((first, second), (second, first)))
    return first.group == second.group and not nested


def _effect(study: SensitivityStudy, change: Change, before: float) -> ChangeEffect:
    after, error = before, ""
    try:
        after = study.measure(change.group, (change,))
    except TrainyardError as problem:
        error = str(problem)
    return ChangeEffect(
        name=change.title, meaning=change.meaning, value=change.value, alternative=change.alternative, before=before, after=after,
        error=error, kind=change.kind,
    )  # fmt: skip


def _pair(study: SensitivityStudy, changes: tuple[Change, Change], first: ChangeEffect, second: ChangeEffect) -> Pair:
    after, error = first.after * second.after / first.before, ""
    try:
        after = study.measure(changes[0].group, changes)
    except TrainyardError as problem:
        error = str(problem)
    return Pair(first=first, second=second, after=after, error=error)


OWN_KEYWORDS = ("metric", "kinds", "factor", "paired", "on_progress")
"""Of `whatif`, beside those of `ty.run`."""


def whatif(
    workload: Workload,
    on: Machine,
    *,
    metric: str = "time_s",
    kinds: Sequence[Kind] = KINDS,
    factor: float = FACTOR,
    paired: int = PAIRED,
    on_progress: ProgressCallback = no_progress,
    **options: Any,
) -> SensitivityResult:
    """How a metric responds to every assumption and every parameter of a machine, one at a time and in pairs.

    An assumption takes each of its alternatives, a number is divided and multiplied by `factor`, a choice takes its other values.

    - `workload`, `on` and `options`: as of `ty.run`.
    - `metric`: a number of the result: `time_s`, `energy_j`, `energy_delay_js`, `area_m2`, `traffic_bytes.dram` ...
    - `kinds`: what is changed: `assumption`, `parameter`, both by default.
    - `paired`: of the most valuable changes, so many are also tried in pairs; 0 for none.
    - `on_progress`: called with runs done, runs in all.
    """
    try:
        study = machine_study(workload, on, metric=metric, kinds=kinds, factor=factor, **options)
    except UnknownKeyword as error:
        raise UnknownKeyword("keyword", error.given, {*error.known, *OWN_KEYWORDS}) from None
    return run_study(study, on_progress, paired=paired)


def machine_study(
    workload: Workload,
    on: Machine,
    *,
    metric: str = "time_s",
    kinds: Sequence[Kind] = KINDS,
    factor: float = FACTOR,
    **options: Any,
) -> SensitivityStudy:
    """The changes of one machine, measured by running the step again; a change that cannot affect the metric is not run."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise BadInput(f"kinds: {unknown[0]!r} is neither assumption nor parameter")
    if not 1.0 < factor < inf:
        raise BadInput(f"factor: parameters are divided and multiplied by a number above 1, got {factor!r}")
    result = run(workload, on, **options)
    rerun, before = result.rerun, metric_of(result, metric)
    assert rerun is not None  # it was just run
    unaffecting = {assumption.path for assumption in result.assumptions if not assumption.changes(metric)}
    changes = [
        Change(
            name=assumption.path, meaning=assumption.meaning, value=assumption.value, alternative=alternative, payload=alternative
        )
        for assumption in result.assumptions
        if assumption.open and "assumption" in kinds
        for alternative in assumption.alternatives
    ]
    if "parameter" in kinds:
        changes += parameters(result.on, factor)

    def measure(_: str, applied: Sequence[Change]) -> float:
        overrides = {change.name: change.payload for change in applied if change.name not in unaffecting}
        return metric_of(rerun(overrides), metric) if overrides else before

    return SensitivityStudy(title=f"{result.workload} on {result.machine}", metric=metric, changes=changes, measure=measure)


def parameters(part: Any, factor: float = FACTOR, prefix: str = "") -> list[Change]:
    """Changes of every field of a machine's parts that is no assumption: numbers up and down, choices and switches to other values.

    >>> import trainyard as ty
    >>> [(change.name, change.alternative) for change in parameters(ty.arrays.Systolic(rows=4, columns=8))][:4]
    [('rows', 2), ('rows', 8), ('columns', 4), ('columns', 16)]
    """
    return list(_parameters(part, factor, prefix))


def _parameters(part: Any, factor: float, prefix: str) -> Iterator[Change]:
    from trainyard.machines.fields import hints, members

    kind: type = type(part)
    for part_field in fields(part):
        value, path = getattr(part, part_field.name), f"{prefix}{part_field.name}"
        if not part_field.init or "meaning" in part_field.metadata:
            continue
        if is_dataclass(value) and not isinstance(value, type):
            yield from _parameters(value, factor, f"{path}.")
            continue
        for other in _other_values(value, members(hints(kind)[part_field.name]), factor):
            yield Change(name=path, meaning="a parameter", value=value, alternative=other, payload=other, kind="parameter")


def has_field(part: Any, path: str) -> bool:
    """Whether a machine has the field that a path names.

    >>> import trainyard as ty
    >>> [has_field(ty.machine("npu"), path) for path in ("array.rows", "clock_hz", "array.lanes", "array.rows.first")]
    [True, True, False, False]
    """
    head, _, rest = path.partition(".")
    exists = is_dataclass(part) and any(part_field.name == head for part_field in fields(part))
    return exists and (not rest or has_field(getattr(part, head), rest))


def _other_values(value: Any, options: Sequence[Any], factor: float) -> Iterator[Any]:
    """Other values that a field may take.

    >>> [list(_other_values(value, (), 2.0)) for value in (3, 1, 0.5, None, True)]
    [[2, 6], [2], [0.25, 1.0], [], [False]]
    """
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float) and value > 0:
        less, more = value / factor, value * factor
        if isinstance(value, int):
            less, more = max(1, round(less)), max(value + 1, round(more))
        yield from (other for other in (less, more) if other != value)
    elif isinstance(value, str):
        choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
        yield from (choice for choice in choices if choice != value and value in choices)
