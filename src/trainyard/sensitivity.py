"""What each assumption and each parameter is worth, alone and two at a time.

A *change* puts one value in the place of another: an alternative of an assumption, a parameter halved or doubled, a choice made
otherwise. A weighing knows the changes and how to measure with any of them made. Two changes *interact* by as much as they do
together beyond what they do one by one: after(both) * before / (after(first) * after(second)) - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, overload

from trainyard.errors import BadInput, TrainyardError
from trainyard.progress import ProgressCallback, no_progress
from trainyard.runs import Machine, Worth, metric_of, run

if TYPE_CHECKING:
    import os

    import plotly.graph_objects as go

    from trainyard.ir import Step

Kind = Literal["assumption", "parameter"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FACTOR = 2.0
PAIRED = 6
"""Of so many changes, the most valuable ones, all pairs are measured unless more are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value in the place of another. Changes of one `group` can be made together; `made` is what the measure understands."""

    name: str
    meaning: str
    value: Any
    alternative: Any
    made: Any = field(compare=False)
    kind: Kind = "assumption"
    group: str = ""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """What may be changed, and how to measure: `measure(group, changes)`, with no changes as it stands."""

    title: str
    metric: str
    changes: Sequence[Change]
    measure: Callable[[str, Sequence[Change]], float]
    ahead: Callable[[Sequence[tuple[str, Sequence[Change]]]], None] = lambda trials: None
    """Told of measurements to come, so that what is costly may be run in several processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two changes at once."""

    first: Worth
    second: Worth
    after: float
    error: str = ""

    @property
    def change(self) -> float:
        return self.after / self.first.before - 1.0

    @property
    def interaction(self) -> float:
        """Relative excess over both one by one; 0 where each does what it does alone."""
        return self.after * self.first.before / (self.first.after * self.second.after) - 1.0


@dataclass(frozen=True, slots=True)
class Weighed(Sequence[Worth]):
    """Worths of single changes, the most valuable first, and `pairs`, the strongest interaction first."""

    title: str
    metric: str
    worths: tuple[Worth, ...]
    pairs: tuple[Pair, ...] = ()

    @overload
    def __getitem__(self, number: int) -> Worth: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Worth, ...]: ...
    def __getitem__(self, number: int | slice) -> Worth | tuple[Worth, ...]:
        return self.worths[number]

    def __len__(self) -> int:
        return len(self.worths)

    def table(self) -> None:
        from trainyard.report.terminal import show_weighed

        show_weighed(self)

    def figure(self) -> go.Figure:
        """The tornado: the widest swing on top."""
        from trainyard.report.tornado import tornado

        return tornado(self, self.title, self.metric)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report.tornado import write

        write(self, path)


def weigh(weighing: Weighing, on_progress: ProgressCallback = no_progress, *, paired: int = PAIRED) -> Weighed:
    """Every change alone, then all pairs of the `paired` things that matter most, each at its most valuable alternative."""
    single, most = len(weighing.changes), len(weighing.changes) + paired * (paired - 1) // 2
    on_progress(0, most)
    weighing.ahead([(change.group, (change,)) for change in weighing.changes])
    before = {group: weighing.measure(group, ()) for group in dict.fromkeys(change.group for change in weighing.changes)}
    alone: dict[int, Worth] = {}
    for number, change in enumerate(weighing.changes):
        on_progress(number, most)
        alone[number] = _worth(weighing, change, before[change.group])
    ranked = sorted(alone, key=lambda number: -alone[number].size)
    best: dict[str, int] = {}
    for number in ranked:
        if not alone[number].error and alone[number].size:
            best.setdefault(alone[number].name, number)
    able = list(best.values())[:paired]
    couples = [(one, other) for one, other in combinations(able, 2) if _apart(weighing.changes[one], weighing.changes[other])]
    weighing.ahead([(weighing.changes[one].group, (weighing.changes[one], weighing.changes[other])) for one, other in couples])
    pairs = []
    for done, (one, other) in enumerate(couples):
        on_progress(single + done, single + len(couples))
        pairs.append(_pair(weighing, (weighing.changes[one], weighing.changes[other]), alone[one], alone[other]))
    pairs.sort(key=lambda pair: -abs(pair.interaction))
    return Weighed(weighing.title, weighing.metric, tuple(alone[number] for number in ranked), tuple(pairs))


def _apart(one: Change, other: Change) -> bool:
    """Whether both can be made at once: in one group, and not two values of one field, or of a part and a field inside it."""
    inside = any(f"{a.name}.".startswith(f"{b.name}.") for a, b in ((one, other), (other, one)))
    return one.group == other.group and not inside


def _worth(weighing: Weighing, change: Change, before: float) -> Worth:
    after, error = before, ""
    try:
        after = weighing.measure(change.group, (change,))
    except TrainyardError as problem:
        error = str(problem)
    return Worth(
        name=change.title, meaning=change.meaning, value=change.value, alternative=change.alternative, before=before, after=after,
        error=error, kind=change.kind,
    )  # fmt: skip


def _pair(weighing: Weighing, made: tuple[Change, Change], first: Worth, second: Worth) -> Pair:
    after, error = first.after * second.after / first.before, ""
    try:
        after = weighing.measure(made[0].group, made)
    except TrainyardError as problem:
        error = str(problem)
    return Pair(first=first, second=second, after=after, error=error)


def whatif(
    workload: Step | str,
    on: Machine,
    *,
    metric: str = "time_s",
    kinds: Sequence[Kind] = KINDS,
    factor: float = FACTOR,
    paired: int = PAIRED,
    on_progress: ProgressCallback = no_progress,
    **options: Any,
) -> Weighed:
    """Every assumption and every parameter of a machine: what it is worth in a metric, alone and two at a time.

    An assumption takes each of its alternatives, a number is divided and multiplied by `factor`, a choice takes its other values.
    """
    return weigh(of_machine(workload, on, metric=metric, kinds=kinds, factor=factor, **options), on_progress, paired=paired)


def of_machine(
    workload: Step | str,
    on: Machine,
    *,
    metric: str = "time_s",
    kinds: Sequence[Kind] = KINDS,
    factor: float = FACTOR,
    **options: Any,
) -> Weighing:
    """The changes of one machine, measured by running the step again. Nothing is run for what cannot change the metric."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise BadInput(f"kinds: {unknown[0]!r} is neither assumption nor parameter")
    if not 1.0 < factor < inf:
        raise BadInput(f"factor: parameters are divided and multiplied by a number above 1, got {factor!r}")
    result = run(workload, on, **options)
    rerun, before = result.rerun, metric_of(result, metric)
    assert rerun is not None  # it was just run
    idle = {one.path for one in result.assumptions if not one.changes(metric)}
    changes = [
        Change(name=one.path, meaning=one.meaning, value=one.value, alternative=other, made=other)
        for one in result.assumptions
        if one.open and "assumption" in kinds
        for other in one.alternatives
    ]
    if "parameter" in kinds:
        changes += parameters(result.on, factor)

    def measure(_: str, made: Sequence[Change]) -> float:
        live = {change.name: change.made for change in made if change.name not in idle}
        return metric_of(rerun(live), metric) if live else before

    return Weighing(title=f"{result.workload} on {result.machine}", metric=metric, changes=changes, measure=measure)


def parameters(part: Any, factor: float = FACTOR, prefix: str = "") -> list[Change]:
    """Every field of a machine's parts that is no assumption: numbers both ways, choices and switches the other way.

    >>> import trainyard as ty
    >>> [(one.name, one.alternative) for one in parameters(ty.arrays.Systolic(rows=4, columns=8))][:4]
    [('rows', 2), ('rows', 8), ('columns', 4), ('columns', 16)]
    """
    return list(_parameters(part, factor, prefix))


def _parameters(part: Any, factor: float, prefix: str) -> Iterator[Change]:
    from trainyard.machines.fields import hints, members

    kind: type = type(part)
    for one in fields(part):
        value, path = getattr(part, one.name), f"{prefix}{one.name}"
        if not one.init or "meaning" in one.metadata:
            continue
        if is_dataclass(value) and not isinstance(value, type):
            yield from _parameters(value, factor, f"{path}.")
            continue
        for other in _others(value, members(hints(kind)[one.name]), factor):
            yield Change(name=path, meaning="a parameter", value=value, alternative=other, made=other, kind="parameter")


def has_field(part: Any, path: str) -> bool:
    """Whether a machine holds the field that a path names.

    >>> import trainyard as ty
    >>> [has_field(ty.machine("npu"), path) for path in ("array.rows", "clock_hz", "array.lanes", "array.rows.first")]
    [True, True, False, False]
    """
    head, _, rest = path.partition(".")
    found = is_dataclass(part) and any(one.name == head for one in fields(part))
    return found and (not rest or has_field(getattr(part, head), rest))


def _others(value: Any, options: Sequence[Any], factor: float) -> Iterator[Any]:
    """What else a field may hold.

    >>> [list(_others(value, (), 2.0)) for value in (3, 1, 0.5, None, True)]
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
