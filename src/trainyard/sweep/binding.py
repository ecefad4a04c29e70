"""From the words of a study to its workloads, machines and axes: which field a path means, which values fit it.

A path is looked up in the machines that points start from, with every part in place that another axis may put there: `array.rows`
may exist only where `array` is systolic. A value counts as fitting if one combination with values of the other axes can be built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from difflib import get_close_matches
from itertools import islice, product
from pathlib import Path
from typing import Any

from trainyard import machines as parts
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.machines.fields import field_named, hints, members
from trainyard.machines.grammar import parse
from trainyard.sweep.axes import RANGE, Axis, Range, range_of, values_of
from trainyard.sweep.study import KNOBS, Workload, resolved_paths
from trainyard.units import unit_of_field

MOST_VARIANTS = 64
MOST_TRIED = 256
SCALARS = (int, float, str, bool, type(None))


@dataclass(frozen=True, slots=True)
class BoundField:
    """A field: its whole path, its unit, and whether it holds whole numbers."""

    path: str
    unit: str | None
    integer: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads one study; files are looked for in `folder`."""

    folder: Path
    source: str

    def where(self, key: str) -> str:
        return f"{self.source}: {key}"

    def workloads(self, table: Mapping[str, Any]) -> tuple[Workload, ...]:
        raw = table.get("workloads")
        if not isinstance(raw, list) or not raw:
            raise BadInput(f'{self.where("workloads")}: expected a list of models, such as ["resnet50"], got {raw!r}')
        parsed = tuple(self._workload(item, f"workloads[{number}]") for number, item in enumerate(raw))
        for number, workload in enumerate(parsed):
            if workload in parsed[:number]:
                raise BadInput(f"{self.where(f'workloads[{number}]')}: {workload.model} is given twice")
        return parsed

    def _workload(self, raw: object, key: str) -> Workload:
        table = {"model": raw} if isinstance(raw, str) else raw
        if not isinstance(table, Mapping):
            raise BadInput(f"{self.where(key)}: expected the name of a model or a table with one, got {raw!r}")
        for name in table:
            if name not in ("model", *KNOBS):
                raise UnknownName("key", str(name), ("model", *KNOBS), self.where(key))
        model = table.get("model")
        if not isinstance(model, str) or not model:
            raise BadInput(f"{self.where(key)}: which model? write model = ...")
        knobs = {name: self.knob(name, table[name], f"{key}.{name}") for name in KNOBS if name in table}
        return Workload(model=model, **knobs)

    def knob(self, name: str, value: object, key: str) -> Any:
        """A value of something that is no field of the machine."""
        if name in ("batch", "at"):
            least = 1 if name == "batch" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInput(f"{self.where(key)}: expected a whole number of at least {least}, got {value!r}")
            return value
        if name == "inference":
            if not isinstance(value, bool):
                raise BadInput(f"{self.where(key)}: expected true or false, got {value!r}")
            return value
        if not isinstance(value, str) or not value:
            raise BadInput(f"{self.where(key)}: expected text, got {value!r}")
        return value

    def raw_axes(self, table: Mapping[str, Any]) -> dict[str, Any]:
        raw_axes = table.get("axes", {})
        if not isinstance(raw_axes, Mapping):
            raise BadInput(f"{self.where('axes')}: expected a table, got {raw_axes!r}")
        return _flat(raw_axes)

    def machines(self, table: Mapping[str, Any], raw_axes: Mapping[str, Any]) -> dict[str, Any]:
        """The machines that points start from."""
        key, text = "machine", table.get("machine")
        if "machine" in raw_axes:
            if text is not None:
                raise BadInput(f"{self.where('axes.machine')}: machine is given outside the axes too: keep one of them")
            key, listed = "axes.machine", raw_axes["machine"]
            if isinstance(listed, Mapping):
                raise BadInput(f"{self.where(key)}: expected a list of machines, not a range")
            values = values_of(listed, None, False, self.where(key))
        elif text is None:
            raise BadInput(f'{self.where("machine")}: on which machine? write machine = "npu"')
        else:
            values = (text,)
        return {self._name(value): self._machine(value, key) for value in values}

    def _machine(self, value: object, key: str) -> Any:
        try:
            if isinstance(value, Mapping):
                return parts.from_table(self.resolved_paths(value))
            if not isinstance(value, str):
                raise BadInput(f"expected the text of a machine, a file or a table, got {value!r}")
            return parts.machine(self.resolved_paths(value))
        except TrainyardError as error:
            raise BadInput(f"{self.where(key)}: {error}") from None
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise BadInput(f"{self.where(key)}: {type(error).__name__}: {error}") from None

    def _name(self, value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)

    def resolved_paths(self, value: Any) -> Any:
        return resolved_paths(value, self.folder)

    def axes(self, table: Mapping[str, Any], raw_axes: dict[str, Any], machines: Mapping[str, Any]) -> tuple[Axis, ...]:
        ties = self._ties(table, raw_axes)
        self._require_free(table, raw_axes, ties, machines)
        words = {name: self._raw(name, value) for name, value in raw_axes.items()}
        for follower, leader in ties.items():
            if follower not in raw_axes:
                raw_axes[follower], words[follower] = raw_axes[leader], words[leader]
        bound = _Binder(self, raw_axes, words, ties, machines)
        bound_axes = {name: bound.axis(name) for name in raw_axes}
        paths: dict[str, str] = {}
        for name, axis in bound_axes.items():
            if axis.path in paths:
                raise BadInput(f"{self.where(f'axes.{name}')}: {axis.path} is given twice, as {paths[axis.path]} too")
            paths[axis.path] = name
        for follower, leader in ties.items():
            if len(bound_axes[follower]) != len(bound_axes[leader]):
                counts = f"{len(bound_axes[follower])} values cannot move with the {len(bound_axes[leader])} of {leader}"
                raise BadInput(f"{self.where(f'tie.{follower}')}: {counts}")
        return tuple(
            replace(axis, followers=tuple(bound_axes[other] for other, leader in ties.items() if leader == name))
            for name, axis in bound_axes.items()
            if name not in ties
        )

    def _ties(self, table: Mapping[str, Any], raw_axes: Mapping[str, Any]) -> dict[str, str]:
        ties = table.get("tie", {})
        if not isinstance(ties, Mapping):
            raise BadInput(f"{self.where('tie')}: expected a table, got {ties!r}")
        ties = _flat(ties)
        for follower, leader in ties.items():
            if not isinstance(leader, str) or leader not in raw_axes:
                raise UnknownName("axis", str(leader), raw_axes, self.where(f"tie.{follower}"))
            if leader in ties or "machine" in (leader, follower):
                raise BadInput(f"{self.where(f'tie.{follower}')}: {leader} cannot be followed: tie both to one axis that is free")
        return ties

    def _require_free(
        self, table: Mapping[str, Any], raw_axes: Mapping[str, Any], ties: Mapping[str, str], machines: Mapping[str, Any]
    ) -> None:
        """An axis must not vary what the machine's own text sets."""
        text, machine = table.get("machine"), next(iter(machines.values()))
        if text is None:
            return
        own = dict(parse(self.resolved_paths(text)).arguments) if isinstance(text, str) else text
        fixed = {_path(machine, str(name)): name for name in own if name not in ("type", "base")}
        for name in (*raw_axes, *ties):
            if (path := _path(machine, name)) in fixed:
                raise BadInput(f"{self.where(f'axes.{name}')}: the machine gives {fixed[path]} too: keep one of them")

    def _raw(self, name: str, raw: object) -> tuple[Any, ...]:
        """The values as written, to see how many there are; a range is read in its unit later."""
        where = self.where(f"axes.{name}")
        if not isinstance(raw, Mapping):
            return values_of(raw, None, False, where)
        steps = raw.get("steps")
        return tuple(range(steps)) if isinstance(steps, int) and not isinstance(steps, bool) and 0 < steps < 10**6 else ()


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Paths as they are meant where their quotes were left out, which makes tables of them in TOML; a range stays one.

    >>> _flat({"array": {"rows": [32, 64]}, "dram": {"from": 1, "to": 2}})
    {'array.rows': [32, 64], 'dram': {'from': 1, 'to': 2}}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value and not any(word in RANGE for word in value):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _path(machine: Any, name: str) -> str:
    """The whole name of a field, or the name itself where the machine has none such."""
    try:
        return _resolved(machine, name).path
    except TrainyardError:
        return name


def _resolved(machine: Any, path: str, value: Any = None) -> BoundField:
    """The field that a path means in a machine; raises as `with_overrides` does where there is none."""
    part, names, words = machine, list[str](), path.split(".")
    for number, word in enumerate(words):
        if not is_dataclass(part):
            return BoundField(".".join((*names, *words[number:])), None, False)  # inside a table: its keys are free
        last = number == len(words) - 1
        owner: type = type(part)
        names.append(field_named(owner, word, value if last and isinstance(value, str) else None, ".".join(names)))
        part = getattr(part, names[-1])
    options = members(hints(owner)[names[-1]])
    return BoundField(".".join(names), unit_of_field(names[-1]), int in options and float not in options)


@dataclass(slots=True)
class _Binder:
    """Finds each axis's field and values among the machines that the other axes can make."""

    reading: Reading
    raw_axes: Mapping[str, Any]
    words: Mapping[str, tuple[Any, ...]]
    ties: Mapping[str, str]
    machines: Mapping[str, Any]

    def axis(self, name: str) -> Axis:
        key, raw = f"axes.{name}" if name not in self.ties else f"tie.{name}", self.raw_axes[name]
        where = self.reading.where(key)
        if name == "machine":
            return Axis(name=name, path=name, values=tuple(self.machines))
        if name in KNOBS:
            values = values_of(raw, None, name in ("batch", "at"), where)
            spread = range_of(raw, None, True, where) if isinstance(raw, Mapping) and name in ("batch", "at") else None
            if isinstance(raw, Mapping) and spread is None:
                raise BadInput(f"{where}: expected a list, not a range")
            return Axis(name=name, path=name, values=tuple(self.reading.knob(name, v, key) for v in values), range=spread)
        field, spread = self._field(name, raw, where), None
        if isinstance(raw, Mapping):
            if field is None:
                raise BadInput(f"{where}: a range needs one field of one unit, but the machines of the other axes have several")
            spread = range_of(raw, field.unit, field.integer, where)
            self._checked_value(name, field.path, raw["from"], 0, where)
        values = values_of(raw, field.unit if field else None, bool(field and field.integer), where)
        return self._fitted(name, field, values, spread, where)

    def _field(self, name: str, raw: Any, where: str) -> BoundField | None:
        """The field, if all machines in which there is one agree on it."""
        sample = raw.get("from") if isinstance(raw, Mapping) else raw[0]
        problem: TrainyardError | None = None
        seen: set[BoundField] = set()
        for machine in self._variants(name):
            try:
                seen.add(_resolved(machine, name, sample))
            except TrainyardError as error:
                problem = problem or error
        if not seen:
            if near := get_close_matches(name, KNOBS, 1):
                raise BadInput(f"{where}: the machine has no such field: did you mean '{near[0]}'?")
            self._checked_value(name, name, sample, 0, where)  # says where else the field may be
            raise BadInput(f"{where}: {problem}") from None
        return seen.pop() if len(seen) == 1 else None

    def _variants(self, name: str) -> Iterator[Any]:
        """The machines with each part in place that another axis may put above this field."""
        above = [other for other in self.raw_axes if other not in KNOBS and name.startswith(f"{other}.")]
        choices = product(self.machines.values(), *(self.words[other] for other in above))
        for machine, *values in islice(choices, MOST_VARIANTS):
            try:
                yield parts.with_overrides(machine, dict(zip(above, map(self.reading.resolved_paths, values), strict=True)))
            except (TrainyardError, TypeError, ValueError, ArithmeticError):
                continue

    def _fitted(self, name: str, field: BoundField | None, values: tuple[Any, ...], spread: Range | None, where: str) -> Axis:
        """Each value as the machine holds it, where that is plain."""
        path = field.path if field is not None else name
        ends = () if spread is None else (_to_integer(spread.low, spread), _to_integer(spread.high, spread))
        written = path if spread is not None else name  # a number of a range has been read in its unit
        checked = [self._checked_value(name, path, value, index, where, written) for index, value in enumerate(values or ends)]
        plain = field is not None and all(type(value) in SCALARS and is_plain for value, is_plain in checked)
        if plain and values:
            values = tuple(value for value, _ in checked)
            values_of(list(values), None, False, where)  # two spellings of one value are one value
        return Axis(name=name, path=path, values=values, range=spread, plain=plain)

    def _checked_value(self, name: str, path: str, value: Any, index: int, where: str, written: str = "") -> tuple[Any, bool]:
        """What the field holds when it is set to the value, and whether that is a number, a word or a flag."""
        problem: TrainyardError | None = None
        for machine, others in self._combinations(name, value, index):
            try:
                part = parts.with_overrides(machine, {**others, written or name: self.reading.resolved_paths(value)})
            except TrainyardError as error:
                problem = problem or error
                continue
            except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
                problem = problem or BadInput(f"{value!r}: {type(error).__name__}: {error}")
                continue
            for word in path.split("."):
                part = part.get(word) if isinstance(part, Mapping) else getattr(part, word, None)
            return (part, True) if type(part) in SCALARS else (value, False)
        raise BadInput(f"{where}: {problem}") from None

    def _combinations(self, name: str, value: Any, index: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The machine alone, then with what is tied, then with values of the other axes, as many as are worth a try."""
        leader = self.ties.get(name, name)
        tied = [other for other in self.raw_axes if other != name and leader in (other, self.ties.get(other))]
        together = {}
        for other in tied:
            if self.raw_axes[other] is self.raw_axes[name]:
                together[other] = self.reading.resolved_paths(value)
            elif not isinstance(self.raw_axes[other], Mapping) and index < len(self.words[other]):
                together[other] = self.reading.resolved_paths(self.words[other][index])
        for machine in self.machines.values():
            yield machine, {}
            if together:
                yield machine, together
        free = [o for o in self.raw_axes if o not in (name, "machine", *KNOBS, *tied) and not isinstance(self.raw_axes[o], Mapping)]
        for machine, *values in islice(product(self.machines.values(), *(self.words[other] for other in free)), MOST_TRIED):
            yield machine, {**together, **dict(zip(free, map(self.reading.resolved_paths, values), strict=True))}


def _to_integer(number: float, spread: Range) -> float:
    return int(number) if spread.integer else number
