"""Why a step or a layer takes its time: bound by what, the critical path, traffic by tensor, and what more of anything is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainyard.errors import UnknownName
from trainyard.ir.attention import attention_sentence, kernel_named
from trainyard.report import lines, tasks
from trainyard.report.lines import percent
from trainyard.report.marginal import MarginalGain, marginal_gains
from trainyard.results.result import IDLE, PICOSECOND, Result
from trainyard.units import show

LONGEST = 5
MOST_TENSORS = 12


def explain(result: Result, layer: str = "") -> str:
    """Plain text about the whole step, or about a layer and the layers below it."""
    chosen = _rows(result, layer)
    sections = [
        [f"{lines.title(result)}{f': {layer}' if layer else ''}"],
        list(_times(result, chosen, layer)),
        list(_attention(result, chosen)),
        list(_bounds(result, chosen)),
        list(_critical(result, chosen, layer)),
        list(_energy(result, chosen)),
        list(_traffic(result, chosen)),
        list(_worth(result, layer)),
        [lines.provenance(result)],
    ]
    return "\n".join(line for section in sections for line in section)


def _rows(result: Result, layer: str) -> Sequence[int]:
    if not layer:
        return range(len(result.rows))
    chosen = [row for row, name in enumerate(result.rows.layer) if name == layer or name.startswith(f"{layer}.")]
    if not chosen:
        raise UnknownName("layer", layer, {name for name in result.rows.layer if name}, where=result.workload)
    return chosen


def _times(result: Result, chosen: Sequence[int], layer: str) -> Iterator[str]:
    time_ps = int(result.columns.time_ps[list(chosen)].sum())
    busy_s = int(result.columns.busy_ps[list(chosen)].sum()) * PICOSECOND / result.steps
    time_s = time_ps * PICOSECOND / result.steps
    if not layer:
        yield f"time {result.headline}, {lines.rate(result.samples_per_s)}; busy {show(busy_s, 's')} over all resources"
        facts = [*lines.classes(result), *((lines.HOST, f"{text}") for text in lines.host_memory(result))]
        width = max((len(name) for name, _ in facts), default=0)
        yield from (f"  {name:<{width}}  {text}" for name, text in facts)
        return
    share = time_ps / result.time_ps if result.time_ps else 0.0
    yield f"time {show(time_s, 's')}, {percent(share)} of the step's {show(result.time_s, 's')}; busy {show(busy_s, 's')}"
    if busy_s > time_s:
        yield f"{show(busy_s - time_s, 's')} of its busy time is hidden behind other work or counted on several resources"


def _attention(result: Result, chosen: Sequence[int]) -> Iterator[str]:
    """The kernels of attention among these rows, where the step names them."""
    kernels = ((result.rows.layer[row], kernel_named(result.rows.op[row])) for row in chosen)
    forms = {layer: kernel[0] for layer, kernel in kernels if kernel is not None}
    if forms:
        yield attention_sentence(forms)


def _bounds(result: Result, chosen: Sequence[int]) -> Iterator[str]:
    kinds: dict[str, set[str]] = {}
    for row in chosen:
        kinds.setdefault(result.rows.bound[row], set()).add(result.rows.kind[row])
    times: dict[str, int] = {}
    for row in chosen:
        bound = result.rows.bound[row]
        name = bound or "(not said)"
        if len(kinds[bound]) > 1:  # a link that binds copies is another one than that of exchanges
            name += f" ({result.rows.kind[row]})"
        times[name] = times.get(name, 0) + int(result.columns.time_ps[row])
    yield "bound by (share of exposed time)"
    yield from _shares({name: time * PICOSECOND / result.steps for name, time in times.items()}, "s")


def _shares(values: dict[str, float], unit: str, most: int | None = None) -> Iterator[str]:
    """Aligned lines `name  value  share`, the largest first."""
    total = sum(values.values())
    named = sorted(((name, value) for name, value in values.items() if value), key=lambda pair: (-pair[1], pair[0]))
    if not named:
        yield "  nothing"
        return
    if most is not None and len(named) > most + 1:
        named = [*named[:most], (f"{len(named) - most} others", sum(value for _, value in named[most:]))]
    width = max(len(name) for name, _ in named)
    for name, value in named:
        yield f"  {name:<{width}}  {show(value, unit):>9}  {percent(value / total):>7}"


def _critical(result: Result, chosen: Sequence[int], layer: str) -> Iterator[str]:
    yield "critical path"
    task_table = tasks.tasks(result)
    if task_table is None or result.timeline is None:
        yield "  not known: this result carries no timeline"
        return
    path = result.timeline.critical_path()
    inside = set(chosen)
    places: dict[str, int] = {}
    owners: dict[str, int] = {}
    through = 0
    for number in path:
        lasted = int(task_table.end_ps[number] - task_table.start_ps[number])
        where = f"{task_table.kind_name(number)} on {task_table.track_name(number)}"
        places[where] = places.get(where, 0) + lasted
        who = task_table.who(number)
        if not layer or inside.intersection(who.rows):
            through += 1
            name = f"{who.layer or who.op} {who.phase}".strip() or where
            owners[name] = owners.get(name, 0) + lasted
    if layer:
        lasted = sum(owners.values())
        share = lasted / task_table.span_ps if task_table.span_ps else 0.0
        took = f"{show(lasted * PICOSECOND, 's')}, {percent(share)} of the timeline"
        yield f"  {through} of its {len(path)} tasks are this layer's: {took}"
    else:
        yield f"  {len(path)} tasks, each of which began when the one before it ended"
        waited = task_table.span_ps - sum(places.values())
        yield from _shares({name: lasted * PICOSECOND for name, lasted in {**places, IDLE: waited}.items()}, "s", LONGEST)
    yield "longest on the critical path"
    yield from _shares({name: lasted * PICOSECOND for name, lasted in owners.items()}, "s", LONGEST)


def _energy(result: Result, chosen: Sequence[int]) -> Iterator[str]:
    joules = {name: float(np.sum(values[list(chosen)])) / result.steps for name, values in result.columns.energy.items()}
    if not joules:
        yield "energy: not modelled by this machine"
        return
    yield f"energy by component, {show(sum(joules.values()), 'J')} in all"
    yield from _shares(joules, "J", MOST_TENSORS)


def _traffic(result: Result, chosen: Sequence[int]) -> Iterator[str]:
    by_level: dict[str, dict[str, float]] = {}
    for (level, tensor, direction), counts in result.columns.traffic.items():
        moved = by_level.setdefault(level, {})
        name = f"{tensor} {direction}"
        moved[name] = moved.get(name, 0.0) + float(np.sum(counts[list(chosen)])) / result.steps
    if not by_level:
        yield "traffic: none was booked"
    for level, moved in by_level.items():
        yield f"{level} traffic by tensor, {show(sum(moved.values()), 'B')} in all"
        yield from _shares(moved, "B", MOST_TENSORS)


def _worth(result: Result, layer: str) -> Iterator[str]:
    yield f"worth of the next 10 % of each resource (change of {'the layer' if layer else 'the step'}'s time)"
    if result.rerun is None:
        yield "  not known: this result cannot be run again (it was added, scaled, measured or read from a file)"
        return
    gains = marginal_gains(result, layer)
    if not gains:
        yield "  this machine's config names no resource"
        return
    width = max(len(gain.text()) for gain in gains)
    for gain in gains:
        yield f"  {gain.text():<{width}}  {_change(gain, layer)}"


def _change(gain: MarginalGain, layer: str) -> str:
    if gain.change is None or gain.step_change is None:
        return f"refused: {gain.error}"
    text = signed(gain.change)
    if layer:
        text += f"  (step {signed(gain.step_change)})"
    return f"{text}  slower: the mapping policy is a heuristic" if gain.step_change > 0.0005 else text


def signed(change: float) -> str:
    """A relative change with its sign.

    >>> signed(-0.0712), signed(0.00001), signed(0.031)
    ('-7.1 %', '0 %', '+3.1 %')
    """
    text = f"{change * 100:+.1f} %".replace(".0 %", " %")
    return "0 %" if text in ("+0 %", "-0 %") else text
