"""Plots over time: what every stream does when, and how full each memory is. The number of shapes is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainyard.report.colours import PHASES, SMALL_TASKS, SPARE, colours, empty, plain, scale, styled
from trainyard.report.lines import percent
from trainyard.report.tasks import Tasks, memory, tasks
from trainyard.results.result import PICOSECOND, Result
from trainyard.units import show

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.ir.plan import Integers, Pool

Span = tuple[int, int, int, str]
"""(track, start in ps, end in ps, what hovering says)"""
MOST_TASKS = 1500
MOST_TRACKS = 32
RUNS_PER_TRACK = 400
MOST_TIMES = 1000
NO_TIMELINE = "this result carries no timeline (it was added, scaled or read from a file)."


def timeline(result: Result, most: int = MOST_TASKS) -> go.Figure:
    """The largest tasks on their streams, coloured by phase; smaller ones are drawn together in grey beneath them."""
    import plotly.graph_objects as go

    table = tasks(result)
    if table is None or not table.span_ps:
        return empty("Timeline", f"Timeline: {NO_TIMELINE}")
    lasting = table.end_ps - table.start_ps
    busy = _occupied(table)
    tracks = np.sort(np.argsort(-busy, kind="stable")[:MOST_TRACKS])
    candidates = np.flatnonzero(np.isin(table.track, tracks) & (lasting > 0))
    ranked = candidates[np.argsort(-lasting[candidates], kind="stable")]
    large, small = np.sort(ranked[:most]), ranked[most:]
    row_of = {track: number for number, track in enumerate(tracks.tolist())}
    factor, unit = scale(table.span_ps * PICOSECOND, "s")
    figure = go.Figure()
    if len(small):
        _bars(figure, list(_runs(table, small)), row_of, factor, name=f"{len(small):,} smaller tasks", shade=SMALL_TASKS)
    by_phase: dict[str, list[Span]] = {}
    for number in large.tolist():
        phase, span = _span(table, number)
        by_phase.setdefault(phase, []).append(span)
    for phase, shade in colours(by_phase, PHASES).items():
        _bars(figure, by_phase[phase], row_of, factor, name=phase, shade=shade)
    figure.update_layout(barmode="overlay", bargap=0.3, showlegend=True)
    figure.update_yaxes(range=[len(row_of) - 0.5, -0.5], showgrid=False, zeroline=False, ticksuffix="  ")
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(row_of.values()),
        ticktext=[plain(table.tracks[track], 30) for track in row_of],
    )
    left = "" if len(row_of) == len(table.tracks) else f" ({len(row_of)} busiest of {len(table.tracks)} streams)"
    return styled(
        figure,
        f"Timeline{left}",
        _sentence(table, busy),
        x=f"time since the start [{unit}]",
        y="",
        height=190 + 34 * len(row_of),
    )


def _occupied(table: Tasks) -> Integers:
    """By track, for how long at least one of its tasks was under way."""
    busy = np.zeros(len(table.tracks), np.int64)
    for track in range(len(table.tracks)):
        mine = np.flatnonzero(table.track == track)
        mine = mine[np.argsort(table.start_ps[mine], kind="stable")]
        reach = np.maximum.accumulate(table.end_ps[mine])
        begins = np.maximum(table.start_ps[mine], np.concatenate([np.zeros(1, np.int64), reach[:-1]]) if len(mine) else reach)
        busy[track] = np.maximum(table.end_ps[mine] - begins, 0).sum()
    return busy


def _sentence(table: Tasks, busy: Integers) -> str:
    first = np.argsort(-busy, kind="stable")[:4].tolist()
    named = ", ".join(f"{table.tracks[track]} busy {percent(int(busy[track]) / table.span_ps)}" for track in first)
    streams = "one stream" if len(table.tracks) == 1 else f"{len(table.tracks)} streams"
    return f"Timeline: {len(table):,} tasks on {streams} in {show(table.span_ps * PICOSECOND, 's')}; {named}."


def _span(table: Tasks, task: int) -> tuple[str, Span]:
    """The phase that colours a task, and its bar."""
    who, start, end = table.who(task), int(table.start_ps[task]), int(table.end_ps[task])
    phase = table.rows.phase[who.rows[0]] if who.rows else table.kind_name(task)
    lines = [who.op or table.kind_name(task), who.layer, who.phase]
    lines.append(f"{show((end - start) * PICOSECOND, 's')} from {show(start * PICOSECOND, 's', digits=6)}")
    return phase, (int(table.track[task]), start, end, "<br>".join(plain(line) for line in lines if line))


def _runs(table: Tasks, chosen: Integers) -> Iterator[Span]:
    """Tasks that follow one another closely on a track, as one bar each."""
    gap = max(1, table.span_ps // RUNS_PER_TRACK)
    for track in np.unique(table.track[chosen]).tolist():
        mine = chosen[table.track[chosen] == track]
        mine = mine[np.argsort(table.start_ps[mine], kind="stable")]
        starts, ends = table.start_ps[mine], np.maximum.accumulate(table.end_ps[mine])
        first = np.flatnonzero(np.concatenate([[True], starts[1:] - ends[:-1] > gap]))
        last = np.concatenate([first[1:], [len(mine)]]) - 1
        for begin, finish in zip(first.tolist(), last.tolist(), strict=True):
            yield track, int(starts[begin]), int(ends[finish]), f"{finish - begin + 1:,} smaller tasks"


def _bars(figure: go.Figure, spans: list[Span], row_of: dict[int, int], factor: float, *, name: str, shade: str) -> None:
    figure.add_bar(
        orientation="h",
        y=[row_of[track] for track, _, _, _ in spans],
        base=[start * PICOSECOND / factor for _, start, _, _ in spans],
        x=[(end - start) * PICOSECOND / factor for _, start, end, _ in spans],
        width=0.7,
        customdata=[text for _, _, _, text in spans],
        hovertemplate="%{customdata}<extra></extra>",
        name=plain(name),
        marker={"color": shade, "line": {"width": 0.5, "color": "rgba(255,255,255,0.5)"}},
    )


def memory_over_time(result: Result, most: int = MOST_TIMES) -> go.Figure:
    """Bytes held in each pool; between two drawn times the largest is drawn, so that no peak disappears."""
    import plotly.graph_objects as go

    title = "Memory over time"
    pools = _different((pool, times, sizes) for pool, times, sizes in memory(result) if len(times))
    if not pools or not any(sizes.any() for _, _, sizes in pools):
        return empty(title, f"Memory over time: {'no pool was used.' if result.timeline is not None else NO_TIMELINE}")
    highest = max(int(sizes.max()) for _, _, sizes in pools)
    longest = result.timeline.end_ps if result.timeline is not None else 0
    bytes_factor, bytes_unit = scale(highest, "B", binary=True)
    time_factor, time_unit = scale(longest * PICOSECOND, "s")
    shades = (*PHASES.values(), *SPARE)
    figure = go.Figure()
    for number, (pool, times, sizes) in enumerate(pools):
        peak = int(sizes.max())
        drawn_times, drawn = _thinned(np.append(times, longest), np.append(sizes, sizes[-1]), most)
        figure.add_scatter(
            x=drawn_times * PICOSECOND / time_factor,
            y=drawn / bytes_factor,
            mode="lines",
            line={"shape": "hv", "color": shades[number % len(shades)], "width": 1.5},
            fill="tozeroy" if len(pools) == 1 else None,
            name=plain(_holds(pool, peak)),
            hovertemplate=f"%{{y:.4g}} {bytes_unit} at %{{x:.4g}} {time_unit}<extra></extra>",
        )
        if pool.capacity_bytes is not None and peak > pool.capacity_bytes / 4:
            figure.add_scatter(
                x=[0, longest * PICOSECOND / time_factor],
                y=[pool.capacity_bytes / bytes_factor] * 2,
                mode="lines",
                line={"dash": "dash", "color": shades[number % len(shades)]},
                name=plain(f"{pool.name}, capacity"),
                hoverinfo="skip",
            )
    figure.update_layout(showlegend=True)
    figure.update_yaxes(rangemode="tozero")
    sentence = "Memory over time: " + ", ".join(_holds(pool, int(sizes.max())) for pool, _, sizes in pools)
    return styled(figure, title, f"{sentence}.", x=f"time [{time_unit}]", y=f"memory held [{bytes_unit}]")


def _different(pools: Iterable[tuple[Pool, Integers, Integers]]) -> list[tuple[Pool, Integers, Integers]]:
    """Equal curves, such as those of devices that do the same, are one."""
    alike: dict[tuple[str, int | None, bytes, bytes], list[tuple[Pool, Integers, Integers]]] = {}
    for pool, times, sizes in pools:
        alike.setdefault((pool.name.rstrip(" 0123456789"), pool.capacity_bytes, times.tobytes(), sizes.tobytes()), []).append(
            (pool, times, sizes)
        )
    return [
        (replace(pool, name=f"{pool.name} ({len(same)} alike)") if len(same) > 1 else pool, times, sizes)
        for same in alike.values()
        for pool, times, sizes in same[:1]
    ]


def _holds(pool: Pool, peak: int) -> str:
    room = "" if pool.capacity_bytes is None else f" of {show(pool.capacity_bytes, 'B', binary=True)}"
    return f"{pool.name}, peak {show(peak, 'B', binary=True)}{room}"


def _thinned(times: Integers, sizes: Integers, most: int) -> tuple[Integers, Integers]:
    """At most about `most` points: of each group of neighbours the largest, and the last of all."""
    if len(times) <= most:
        return times, sizes
    firsts = np.linspace(0, len(times), most, endpoint=False).astype(np.intp)
    return np.append(times[firsts], times[-1]), np.append(np.maximum.reduceat(sizes, firsts), sizes[-1])
