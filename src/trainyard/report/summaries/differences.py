"""What changed between two results: the step's numbers, its layers with the largest change first, and the fields of the machine.

Both are taken as the JSON object of a result, so that a run of today is held against a file of last week.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput, quoted
from trainyard.reading import read_json, reader
from trainyard.report.frames import pandas_module
from trainyard.report.summaries.grid import console_of, html_grid, print_grid
from trainyard.report.terminal import one_line
from trainyard.results.result import Result
from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

NUMBERS = (
    "time_s", "samples_per_s", "cycles", "array_cycles", "macs", "energy_j", "power_w", "energy_per_sample_j", "energy_delay_js",
    "static_energy_j", "area_m2",
)  # fmt: skip
TABLES = ("traffic_bytes", "peak_memory_bytes", "energy_by_component_j")
NEEDED = ("workload", "machine", "batch", "time_s", "by_layer", "by_phase")
WRITTEN_BY = "trainyard run ... --json FILE writes one"
LARGEST = 1e300
"""Of a number in a result: more cannot be compared."""
OUTSIDE = "(outside any layer)"
NUMBER_HEADS = ("number", "before", "after", "change")
LEAST_NEEDED = ("energy change", "DRAM change", "of the step")
LAYER_HEADS = ("layer", "time before", "after", "change", "of the step", "DRAM change", "energy change")
MACHINE_HEADS = ("field of the machine", "before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange:
    """One number of both results; None where a result does not have it."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """Relative to before: -0.25 is a quarter less; None where one of them is missing, or the first is zero."""
        return self.after / self.before - 1 if self.before and self.after is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """A layer or phase of both results, zero where one does not have it; `share` is its change over the step's time before."""

    name: str
    time_before_s: float
    time_after_s: float
    share: float
    dram_bytes: int
    energy_j: float

    @property
    def time_s(self) -> float:
        return self.time_after_s - self.time_before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of the machine by its path; None where a machine does not have it."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`numbers` in a fixed order; `layers` and `phases` with the largest change of time first; `fields` of the machine."""

    before: str
    after: str
    numbers: tuple[NumberChange, ...]
    layers: tuple[GroupChange, ...]
    phases: tuple[GroupChange, ...]
    fields: tuple[FieldChange, ...]

    @property
    def same(self) -> bool:
        """Whether nothing that was simulated differs."""
        return not self.fields and all(number.before == number.after for number in self.numbers)

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON object of `trainyard diff --json`."""
        numbers = [{**asdict(number), "change": number.change} for number in self.numbers]
        groups = {
            name: [{**asdict(group), "time_s": group.time_s} for group in getattr(self, name)] for name in ("layers", "phases")
        }
        return {**asdict(self), "numbers": numbers, **groups}

    def to_frame(self) -> pd.DataFrame:
        """One line for each layer, the largest change first."""
        return pandas_module().DataFrame([{**asdict(layer), "time_s": layer.time_s} for layer in self.layers])

    def table(self, top: int = 20, console: Console | None = None) -> None:
        """Prints the numbers, the `top` layers and what differs in the machine."""
        from rich.text import Text

        console = console_of(console)
        console.print(Text(one_line(f"before: {self.before}")))
        console.print(Text(one_line(f"after:  {self.after}")))
        if self.same:
            console.print(Text("nothing differs", "bold"))
            return
        print_grid(console, NUMBER_HEADS, list(map(_number_cells, self.numbers)))
        for groups in (self.phases, self.layers):
            heads = ("phase" if groups is self.phases else "layer", *LAYER_HEADS[1:])
            moving = [group for group in groups if group.time_s or group.dram_bytes or group.energy_j]
            if moving:
                print_grid(console, heads, [*map(_group_cells, moving[:top]), *_rest(moving[top:])], least_needed=LEAST_NEEDED)
        if self.fields:
            print_grid(console, MACHINE_HEADS, [_field_cells(field) for field in self.fields], texts=3)

    def _repr_html_(self) -> str:
        tables = (
            (NUMBER_HEADS, list(map(_number_cells, self.numbers))),
            (LAYER_HEADS, list(map(_group_cells, self.layers[:20]))),
            (MACHINE_HEADS, list(map(_field_cells, self.fields))),
        )
        shown = "".join(html_grid(heads, rows) for heads, rows in tables if rows)
        return f"<div><p>before: <b>{escape(self.before)}</b><br>after: <b>{escape(self.after)}</b></p>{shown}</div>"


def read_result(result: Result | Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """A result as the object that its JSON has; a file may hold it alone, or as the only one of a list."""
    if isinstance(result, Result):
        plain: Mapping[str, Any] = json.loads(json.dumps(result.as_dict(mapping=False), default=str))
        return plain
    if isinstance(result, Mapping):
        return result
    stored = read_results(result)
    if len(stored) != 1:
        raise BadInput(f"{result} has {len(stored)} results: name a file with one, as trainyard run ... --json FILE writes it")
    return stored[0]


@reader("result")
def read_results(path: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """The results of a file: one of `run --json`, several of `compare --json`."""
    stored = read_json(path, "result", "result_bytes")
    results = stored if isinstance(stored, list) else [stored]
    for result in results:
        _require_result(result, str(path))
    return results


def _require_result(result: object, source: str) -> None:
    """Refuses what cannot be a result's JSON object."""
    if not isinstance(result, Mapping):
        raise BadInput(f"{source}: not the JSON of a result ({WRITTEN_BY})")
    if missing := [key for key in NEEDED if not result.get(key)]:
        raise BadInput(f"{source}: not the JSON of a result: no {', no '.join(missing)} ({WRITTEN_BY})")
    for place, number in _numbers_of(result):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < LARGEST:
            raise BadInput(f"{source}: the JSON of a result is damaged: {place} is {quoted(number, 40)}, no number ({WRITTEN_BY})")
    if result["time_s"] < 0:
        raise BadInput(f"{source}: the JSON of a result is damaged: time_s is {result['time_s']} ({WRITTEN_BY})")


def _numbers_of(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number that is compared, with its place; what should be a table and is none is a number that is none."""
    for name in NUMBERS:
        if result.get(name) is not None:
            yield name, result[name]
    for head in TABLES:
        yield from _numbers_in(result.get(head, {}), head)
    for table in ("by_layer", "by_phase"):
        if not isinstance(result[table], Mapping):
            yield table, result[table]
            continue
        for name, group in result[table].items():
            if not isinstance(group, Mapping):
                yield f"{table}.{name}", group
                continue
            for field in ("time_s", "energy_j"):
                yield f"{table}.{name}.{field}", group.get(field)
            yield from _numbers_in(group.get("traffic_bytes"), f"{table}.{name}.traffic_bytes")


def _numbers_in(table: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(table, Mapping):
        yield from ((f"{place}.{key}", number) for key, number in table.items() if number is not None)
    else:
        yield place, table


@reader("results", source="before")
def difference_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """What changed from one result's JSON object to another's."""
    for result, name in ((before, "before"), (after, "after")):
        _require_result(result, name)
    return Difference(
        before=_title(before),
        after=_title(after),
        numbers=tuple(_numbers(before, after)),
        layers=_groups(before, after, "by_layer"),
        phases=_groups(before, after, "by_phase"),
        fields=tuple(_fields(before.get("config", {}), after.get("config", {}))),
    )


def _title(result: Mapping[str, Any]) -> str:
    return f"{result['workload']}, batch {result['batch']}, on {result['machine']} (trainyard {result.get('version', 'unknown')})"


def _numbers(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[NumberChange]:
    for name in NUMBERS:
        if before.get(name) is not None or after.get(name) is not None:
            yield NumberChange(name=name, before=before.get(name), after=after.get(name))
    for head in TABLES:
        first, second = before.get(head, {}), after.get(head, {})
        for key in dict.fromkeys([*first, *second]):
            yield NumberChange(name=f"{head}.{key}", before=first.get(key), after=second.get(key))


def _groups(before: Mapping[str, Any], after: Mapping[str, Any], table: str) -> tuple[GroupChange, ...]:
    nothing: Mapping[str, Any] = {"time_s": 0.0, "energy_j": 0.0, "traffic_bytes": {}}
    changes = []
    for name in dict.fromkeys([*before[table], *after[table]]):
        first, second = before[table].get(name, nothing), after[table].get(name, nothing)
        changes.append(
            GroupChange(
                name=name or OUTSIDE,
                time_before_s=first["time_s"],
                time_after_s=second["time_s"],
                share=(second["time_s"] - first["time_s"]) / before["time_s"],
                dram_bytes=second["traffic_bytes"].get("dram", 0) - first["traffic_bytes"].get("dram", 0),
                energy_j=second["energy_j"] - first["energy_j"],
            )
        )
    return tuple(sorted(changes, key=lambda change: (-abs(change.time_s), -abs(change.dram_bytes), change.name)))


def _fields(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """Leaves of two nested tables that differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _fields(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif before != after:
        yield FieldChange(path=path, before=before, after=after)


def _quantity(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    unit = unit_of_field(name.partition(".")[0])
    return show(value, unit, digits=4) if unit else f"{value:,.5g}" if isinstance(value, float) else f"{value:,}"


def _percent(change: float | None) -> str:
    if change is None:
        return "-"
    return f"{100 * change:+.1f} %" if abs(change) >= 0.0005 else "<0.1 %" if change else "0 %"


def _signed(value: float, unit: str) -> str:
    return "-" if not value else f"{'+' if value > 0 else '-'}{show(abs(value), unit)}"


def _number_cells(number: NumberChange) -> list[str]:
    return [
        number.name,
        _quantity(number.name, number.before),
        _quantity(number.name, number.after),
        _percent(number.change),
    ]


def _group_cells(group: GroupChange) -> list[str]:
    return [
        group.name,
        show(group.time_before_s, "s"),
        show(group.time_after_s, "s"),
        _signed(group.time_s, "s"),
        _percent(group.share),
        _signed(group.dram_bytes, "B"),
        _signed(group.energy_j, "J"),
    ]


def _rest(groups: Sequence[GroupChange]) -> list[list[str]]:
    """One row for all further groups, none where there are none."""
    if not groups:
        return []
    before, after, share, energy = (
        sum(getattr(group, name) for group in groups) for name in ("time_before_s", "time_after_s", "share", "energy_j")
    )
    dram = sum(group.dram_bytes for group in groups)
    name = f"{len(groups)} more"
    together = GroupChange(
        name=name, time_before_s=before, time_after_s=after, share=share, dram_bytes=dram, energy_j=energy
    )  # fmt: skip
    return [_group_cells(together)]


def _field_cells(field: FieldChange) -> list[str]:
    return [field.path, _plain(field.path, field.before), _plain(field.path, field.after)]


def _plain(path: str, value: Any) -> str:
    unit = unit_of_field(path.rpartition(".")[2])
    if unit and isinstance(value, int | float) and not isinstance(value, bool):
        return show(value, unit, digits=4)
    return "-" if value is None else str(value)
