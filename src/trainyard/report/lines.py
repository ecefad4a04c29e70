"""What a table says, before it is drawn: headline facts, lines that sum to the total, and how machines differ.

The terminal, the HTML page and the notebook all print these, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.ir.assumptions import Assumption
from trainyard.ir.plan import TaskClass
from trainyard.report import nodes
from trainyard.results import memory
from trainyard.results.result import IDLE, PICOSECOND, Axis, Cost, Result
from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    from trainyard.sensitivity import ChangeEffect

DRAM = "dram"
OWN_PRECISION = "that of the step"
MOST_COMPONENTS = 4
"""Components of the area that the headline names."""
HOST, REMOTE = "host memory", "remote memory"
NOBODY = {"layer": "(outside any layer)", "phase": "(no phase)", "resource": "(no resource)", "bound": "(not said)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a breakdown: a group of rows, `share` its part of the step's time, `bound` what it mostly waits for."""

    label: str
    cost: Cost
    share: float
    bound: str
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """`lines`, largest first, then `rest`: together they sum to `total`."""

    by: str
    lines: tuple[Line, ...]
    rest: Line | None
    total: Line

    @property
    def all(self) -> tuple[Line, ...]:
        return self.lines if self.rest is None else (*self.lines, self.rest)


def breakdown(result: Result, by: Axis = "layer", top: int | None = None) -> Breakdown:
    """The result by one axis: the `top` groups that take most time (all of them when None), and one line for the others."""
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 0):
        raise BadInput(f"top must be a whole number of at least 0, got {top!r}")
    parts: dict[str, list[tuple[str, Cost]]] = {}
    axes: tuple[Axis, ...] = (by, "kind", "bound")
    for (label, kind, bound), cost in result.group(*axes).items():
        name = f"({IDLE})" if kind == IDLE else label or NOBODY.get(by, "(no name)")
        parts.setdefault(name, []).append((bound, cost))
    total_s = result.time_s
    lines = [
        _line(name, bounds, total_s) for name, bounds in parts.items() if name != f"({IDLE})" or any(c.time_s for _, c in bounds)
    ]
    lines.sort(key=lambda line: (-line.cost.time_s, -line.cost.busy_s, line.label))
    shown = len(lines) if top is None or len(lines) <= top + 1 else top  # a rest of one is better shown by name
    left = [pair for line in lines[shown:] for pair in parts[line.label]]
    rest = _line(f"rest: {len(lines) - shown} more", left, total_s, len(lines) - shown) if left else None
    total = _line("total", [pair for bounds in parts.values() for pair in bounds], total_s, len(lines))
    exact = replace(total, cost=total.cost._replace(time_s=total_s))  # a sum of floats may miss the last digit
    return Breakdown(by=by, lines=tuple(lines[:shown]), rest=rest, total=exact)


def _line(label: str, bounds: Sequence[tuple[str, Cost]], whole_s: float, groups: int = 1) -> Line:
    cost = added(cost for _, cost in bounds)
    return Line(label=label, cost=cost, share=cost.time_s / whole_s if whole_s else 0.0, bound=_bound(bounds), groups=groups)


def added(costs: Iterable[Cost]) -> Cost:
    time_s = busy_s = energy_j = 0.0
    macs, traffic = 0, dict[str, int]()
    for cost in costs:
        time_s += cost.time_s
        busy_s += cost.busy_s
        energy_j += cost.energy_j
        macs += cost.macs
        for level, count in cost.traffic_bytes.items():
            traffic[level] = traffic.get(level, 0) + count
    return Cost(time_s=time_s, busy_s=busy_s, energy_j=energy_j, traffic_bytes=traffic, macs=macs)


def bound_by(result: Result) -> str:
    """What a whole step mostly waits for."""
    return _bound([(bound, cost) for (bound,), cost in result.group("bound").items()])


def _bound(bounds: Sequence[tuple[str, Cost]]) -> str:
    """`dram`, or `dram 72 %` where other bounds take a tenth of the time or more; hidden work counts by its busy time."""
    times: dict[str, float] = {}
    hidden = not any(cost.time_s for _, cost in bounds)
    for name, cost in bounds:
        times[name] = times.get(name, 0.0) + (cost.busy_s if hidden else cost.time_s)
    total = sum(times.values())
    if not total:
        return ""
    name, most = max(times.items(), key=lambda pair: pair[1])
    name = name or "not said"
    return name if most >= 0.9 * total else f"{name} {most / total:.0%}".replace("%", " %")


def percent(share: float) -> str:
    """A share as text, never a rounded-away zero.

    >>> percent(0.4567), percent(0.0012), percent(0.00001), percent(0), percent(1)
    ('45.7 %', '0.1 %', '<0.1 %', '0 %', '100 %')
    """
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{share * 100:.1f} %".replace(".0 %", " %")


def rate(per_s: float) -> str:
    """Samples per second, without a prefix on the samples.

    >>> rate(12345.6), rate(87.65), rate(0.01234)
    ('12,346 samples/s', '87.7 samples/s', '0.0123 samples/s')
    """
    return f"{per_s:,.0f} samples/s" if per_s >= 100 else f"{per_s:.3g} samples/s"


def utilisation(result: Result) -> float | None:
    """MACs done over the MACs that the machine could have done in that time."""
    could = result.time_s * result.peaks.macs_per_s
    return result.macs / could if could else None


def dram_bytes(cost: Cost | Result) -> int:
    return cost.traffic_bytes.get(DRAM, 0)


def facts(result: Result) -> list[tuple[str, str]]:
    """The headline facts, each with its unit; of a system, whether of all its devices or of one."""
    used = utilisation(result)
    scope = ", all devices" if result.peaks.devices > 1 else ""
    rows = [
        ("time per step", result.headline),
        ("throughput", rate(result.samples_per_s)),
        (f"energy per step{scope}", energy_text(result)),
        (f"DRAM traffic per step{scope}", show(dram_bytes(result), "B")),
    ]
    others = {level: count for level, count in result.traffic_bytes.items() if level != DRAM}
    rows += [(f"{level} traffic per step{scope}", show(count, "B")) for level, count in others.items()]
    rows += [(f"peak memory, {name}", held_text(pool, binary=True)) for name, pool in peaks(result)]
    rows += [(f"{HOST} bandwidth used", text) for text in host_memory(result)]
    rows += classes(result)
    if used is not None:
        skipped = ", with the MACs of zeros that it skips" if used > 1 else ""
        rows.append(("utilisation", f"{percent(used)} of {show(result.peaks.macs_per_s, 'MAC/s')}{skipped}"))
    if result.cycles is not None:
        at = f" at {show(result.clock_hz, 'Hz', digits=4)}" if result.clock_hz else ""
        rows.append(("cycles", f"{result.cycles:,}{at}"))
    if result.cycles and result.array_cycles is not None:
        rows.append(("array busy", f"{result.array_cycles:,} cycles, {percent(result.array_cycles / result.cycles)} of them"))
    if result.area_m2:
        rows.append((f"area{scope}", area_text(result)))
    return rows


def energy_text(result: Result) -> str:
    """Joules of a step with what follows from them: mean power, joules of a sample, the energy-delay product."""
    if not result.columns.energy:
        return "not modelled"
    sample, delay = show(result.energy_per_sample_j, "J"), show(result.energy_delay_js, "J s")
    return f"{show(result.energy_j, 'J')} at {show(result.power_w, 'W')}; {sample} a sample; energy x delay {delay}"


def area_text(result: Result) -> str:
    """Square millimetres, by component, and what leaks in a step beside the energy of what is computed."""
    parts = sorted(result.area_by_component.items(), key=lambda part: -part[1])
    named = [f"{name} {show(m2, 'm2')}" for name, m2 in parts[:MOST_COMPONENTS]]
    if len(parts) > MOST_COMPONENTS:
        named.append(f"{len(parts) - MOST_COMPONENTS} more {show(sum(m2 for _, m2 in parts[MOST_COMPONENTS:]), 'm2')}")
    leaked = f"; leaks {show(result.leaked_j, 'J')} a step beside its energy" if result.leaked_j else ""
    return f"{show(result.area_m2 or 0.0, 'm2')}{': ' + ', '.join(named) if len(parts) > 1 else ''}{leaked}"


def overlap(result: Result) -> dict[str, tuple[float, float | None]]:
    """By class, compute first: seconds exposed, and seconds under way behind a class before it (None: no timeline tells)."""
    exposed, timeline = result.by_class, result.timeline
    classes_s: dict[str, tuple[float, float | None]] = {}
    for kind in TaskClass:
        cost = exposed.get(str(kind))
        if cost is None or not cost.busy_s:
            continue
        hidden = None
        if timeline is not None:  # a class by itself is exposed whenever one of its tasks runs
            alone = timeline.class_exposed(timeline.kinds == kind)[str(kind)] * PICOSECOND / result.steps
            hidden = max(0.0, alone - cost.time_s)
        classes_s[str(kind)] = cost.time_s, hidden
    return classes_s


def classes(result: Result) -> list[tuple[str, str]]:
    """Of a system of several streams: what of compute, synchronisation and copies the step waits for, and what hides."""
    by_class = overlap(result)
    if len(by_class) < 2:
        return []
    texts = [
        (name, f"{show(seen, 's')} exposed" + (f", {show(hidden, 's')} hidden" if hidden else ""))
        for name, (seen, hidden) in by_class.items()
    ]
    idle = result.by_class.get(IDLE)
    return [*texts, *([(IDLE, show(idle.time_s, "s"))] if idle is not None and idle.time_s else [])]


def paged_bytes(result: Result) -> int:
    """Bytes copied out to a second memory and back."""
    moved = result.traffic_bytes
    return moved.get(HOST, 0) + moved.get(REMOTE, 0)


def host_bytes_per_s(result: Result) -> float:
    """What devices that page to their host take of its memory's bandwidth, over the whole step."""
    return result.traffic_bytes.get(HOST, 0) / result.time_s if result.time_s else 0.0


def host_memory(result: Result) -> list[str]:
    """The same in words, of each socket where there are several; empty where nothing is paged to a host."""
    used, sockets = host_bytes_per_s(result), nodes.sockets(result.on)
    if not used:
        return []
    text = show(used, "B/s") + (f" over {len(sockets)} sockets" if len(sockets) > 1 else "")
    rates = {place.memory_bytes_per_s for place in sockets}
    if len(rates) == 1 and (most := rates.pop()) is not None:
        each = "each " if len(sockets) > 1 else ""
        text += f", {each}{percent(used / len(sockets) / most)} of {show(most, 'B/s')}"
    return [text]


def peaks(result: Result) -> list[tuple[str, memory.Held]]:
    """The most that each pool held; pools that differ in their number alone are one, named by how many they are."""
    alike: dict[str, list[memory.Held]] = {}
    for pool in memory.held(result.peak_memory_bytes, result.memory_capacity_bytes):
        alike.setdefault(pool.name, []).append(pool)
    texts = []
    folded = result.peaks.devices > 1 and len(result.peak_memory_bytes) == len(alike)  # one device stands for all
    for name, pools in alike.items():
        each, count = " (of each device)" if folded else "", sum(pool.pools for pool in pools)
        if count > 1:
            each = f" ({'each' if len(pools) == 1 else 'largest'} of {count})"
        texts.append((f"{name}{each}", max(pools, key=lambda pool: pool.peak_bytes)))
    return texts


def held_text(pool: memory.Held, *, binary: bool = False) -> str:
    """`710 GB of 141 GB: does not fit`; `binary` is for what has no capacity to be held against."""
    if pool.capacity_bytes is None:
        return show(pool.peak_bytes, "B", binary=binary)
    return f"{show(pool.peak_bytes, 'B')} of {show(pool.capacity_bytes, 'B')}{'' if pool.fits else ': does not fit'}"


def fullest(result: Result) -> memory.Held | None:
    """The memory that held the largest share of its capacity; the largest where none states one."""
    pools = memory.held(result.peak_memory_bytes, result.memory_capacity_bytes)
    return max(pools, key=lambda pool: (pool.peak_bytes / (pool.capacity_bytes or math.inf), pool.peak_bytes), default=None)


def title(result: Result) -> str:
    together = result.samples // result.steps
    batch = f"batch {result.batch}" if together == result.batch else f"batch {result.batch} of each worker ({together:,} a step)"
    return f"{result.workload}, {batch}, on {result.machine}"


def provenance(result: Result) -> str:
    seed = f", seed {result.seed}" if result.seed is not None else ""
    return f"trainyard {result.version}, machine config {result.config_hash}{seed}"


def assumption_text(assumption: Assumption) -> str:
    """`fusion = epilogue: what it means; alternatives: none`."""
    return assumption_sentence(assumption, *assumption_values(assumption))


def assumption_sentence(assumption: Assumption, value: str, others: Sequence[str]) -> str:
    """The same with its values as text."""
    text = f"{assumption.name} = {value}: {assumption.meaning}"
    if others:
        text += f"; alternatives: {', '.join(others)}"
    return f"{text}; chosen on {assumption.settles}" if assumption.settles else text


def assumption_values(assumption: Assumption) -> tuple[str, list[str]]:
    """Its value and its alternatives, with the unit that its field's name ends in."""
    name = assumption.path or assumption.name
    return value_text(name, assumption.value), [value_text(name, other) for other in assumption.alternatives]


def value_text(name: str, value: object) -> str:
    """A field's value with the unit that its name ends in; bytes that are a power of two by powers of two.

    >>> value_text("page_bytes", 65536), value_text("bucket_bytes", 25_000_000), value_text("link_latency_s", 5e-7)
    ('64 KiB', '25 MB', '500 ns')
    """
    unit = unit_of_field(name)
    if value is None or isinstance(value, bool):
        return str(value).lower()  # as one writes it in a machine's text
    if not isinstance(value, int | float):
        return str(value)
    if unit is None:
        return f"{value:g}"
    return show(value, unit, binary=unit == "B" and value > 0 and math.log2(value).is_integer())


def changed_text(effect: ChangeEffect) -> str:
    """A change in one line: its name and the value that it puts there."""
    return f"{effect.name} = {value_text(effect.name, effect.alternative)}"


def speedup(result: Result, baseline: Result) -> float:
    """Samples per second over the baseline's: equal to the ratio of times where both steps take the same samples."""
    return result.samples_per_s / baseline.samples_per_s


def array_s(result: Result) -> float | None:
    """Time in which the array multiplies, whatever the step waits for; None where that is not known."""
    return result.array_cycles / result.clock_hz / result.steps if result.array_cycles and result.clock_hz else None


def array_text(result: Result, baseline: Result) -> str:
    """That time, and how many times shorter it is for a sample than the baseline's."""
    own, other = array_s(result), array_s(baseline)
    if own is None:
        return "-"
    if other is None:
        return show(own, "s")
    own_per_sample, other_per_sample = own * result.steps / result.samples, other * baseline.steps / baseline.samples
    return f"{show(own, 's')} ({other_per_sample / own_per_sample:.2f} x)"


SLOWER = 0.95
"""Below this share of the first machine's samples per second, a comparison says why."""
RATES = {
    "dram": ("DRAM bandwidth", "dram_bytes_per_s", "B/s"),
    "compute": ("peak MACs", "macs_per_s", "MAC/s"),
}


def slower(results: Sequence[Result]) -> list[str]:
    """Of each machine that is slower than the first: what it waits for, and how much of that it has beside the first."""
    first, texts = results[0], []
    for result in results[1:]:
        ratio = result.samples_per_s / first.samples_per_s
        if not ratio < SLOWER:
            continue
        bound, _, share = (bound_by(result) or "nothing that is booked").partition(" ")
        bound += f" for {share} of its time" if share.endswith("%") else f" {share}".rstrip()
        known = [RATES[name] for name in sorted(RATES, key=lambda name: not bound.startswith(name))]
        reasons = [
            f"{getattr(result.peaks, field) / getattr(first.peaks, field):.2g} x the {what} "
            f"({show(getattr(result.peaks, field), unit)} against {show(getattr(first.peaks, field), unit)})"
            for what, field, unit in known
            if getattr(result.peaks, field) < getattr(first.peaks, field)
        ]
        waits = [
            f"{percent(cost.time_s / result.time_s)} of its step is exposed {name}"
            for name, cost in result.by_class.items()
            if name != "compute" and cost.time_s > 0.1 * result.time_s
        ]
        reason = " and ".join(([f"it has {' and '.join(reasons)}"] if reasons else []) + waits) or "its peaks are no lower"
        texts.append(f"{result.machine} does {ratio:.2g} x the samples/s of {first.machine}: it is bound by {bound}; {reason}")
    return texts


def precision(result: Result) -> str:
    """The element type of activations that the machine sets, or that the step keeps its own."""
    device = result.config.get("device")
    table = device if isinstance(device, Mapping) else result.config
    chosen = table.get("precision")
    if isinstance(chosen, Mapping):
        return str(chosen.get("activation", OWN_PRECISION))
    return OWN_PRECISION if chosen is None else str(chosen)


def conditions(result: Result) -> dict[str, str]:
    """What must be alike for a comparison to be fair, by what is said where it is not."""
    # fmt: off
    return {
        "results differ in workload":         result.workload,
        "results differ in samples per step": f"{result.samples / result.steps:g}",
        "machines differ in peak MACs":       show(result.peaks.macs_per_s, "MAC/s"),
        "machines differ in DRAM bandwidth":  show(result.peaks.dram_bytes_per_s, "B/s"),
        "machines differ in precision":       precision(result),
        "machines differ in technology":      result.peaks.technology or "not said",
        "machines differ in devices":         str(result.peaks.devices),
    }
    # fmt: on


def differences(results: Sequence[Result]) -> list[str]:
    """What makes a comparison unfair unless it is meant: one line for each thing that differs."""
    names, each = [result.machine for result in results], [conditions(result) for result in results]
    texts = [f"{result.machine}: {shortage}" for result in results for shortage in result.shortages]
    for what in each[0] if each else ():
        values = [one[what] for one in each]
        if len(set(values)) > 1:
            of = {value: name for name, value in reversed(list(zip(names, values, strict=True)))}
            texts.append(f"{what}: {' vs '.join(f'{value} ({of[value]})' for value in dict.fromkeys(values))}")
    return texts
