"""`sweep`: every point of a study file, with a bar, the best so far, and the front at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.cli.faults import INTERRUPTED
from trainyard.cli.options import Html, Json, makeable, writable
from trainyard.report.terminal import new_console, progress, say, write, write_json
from trainyard.units import parse

if TYPE_CHECKING:
    from trainyard.sweep.executors import Executor
    from trainyard.sweep.records import Record
    from trainyard.sweep.running import Summary
    from trainyard.sweep.study import Study

MOST_ROWS = 20


def sweep(
    study: Annotated[str, typer.Argument(help="Study file (.toml); see docs/sweep.md.", show_default=False)],
    store: Annotated[str | None, typer.Option(callback=makeable, help="Folder of results; beside the study by default.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core by default.")] = None,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most points that a study may have.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run points again that failed before.")] = False,
    point_timeout: Annotated[
        str | None, typer.Option(help="Most time that one point may take, as in '30 s'; a longer one is recorded as failed.")
    ] = None,
    any_memory: Annotated[
        bool, typer.Option("--any-memory", help="Rank points too that do not fit their machine's memory.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many points there are, and run none.")] = False,
    json_path: Json = None,
    csv: Annotated[str | None, typer.Option(callback=writable, help="Write the points as CSV.")] = None,
    html: Html = None,
) -> None:
    """Run every point of a study, or search it.

    Points that the store has are not run again: started again after any end, a sweep goes on where it was.
    """
    from trainyard.sweep import running
    from trainyard.sweep.study import LIMIT, Study

    loaded, folder = Study.load(study), store or running.store_of(study)
    loaded = replace(loaded, any_memory=loaded.any_memory or any_memory)
    if dry_run:
        _show_size(loaded, str(folder), LIMIT if limit is None else limit, json_path)
        return
    point_s = None if point_timeout is None else parse(point_timeout, "s", "--point-timeout")
    with progress() as on_progress:
        summary = running.sweep(
            loaded,
            folder,
            _executor(ray, workers, point_s),
            on_progress,
            workers=None if ray else workers,
            point_timeout_s=None if ray else point_s,
            limit=LIMIT if limit is None else limit,
            retry_failed=retry_failed,
        )
    for note in summary.notes:
        say(f"note: {note}")
    if csv is not None:
        from trainyard.sweep.store import write_csv

        write_csv(summary.records, csv)
        say(f"wrote {csv}")
    if html is not None:
        from trainyard.sweep import page

        page.write(loaded, summary.records, html, planned=summary.points)
        say(f"wrote {html}")
    if json_path is not None:
        write_json(summary.as_dict(), json_path)
    if json_path != "-":
        _show(loaded, summary)
    if summary.interrupted:
        have = summary.computed + summary.reused
        say(f"{have} of {summary.points} points are in {summary.store}; the same command goes on from there")
        raise typer.Exit(INTERRUPTED)


def _executor(ray: str | None, workers: int | None, point_s: float | None) -> Executor | None:
    if ray is None:
        return None
    from trainyard.sweep.on_ray import Cluster

    return Cluster(ray, workers=workers, point_s=point_s)


def _show_size(study: Study, folder: str, limit: int, json_path: str | None) -> None:
    import os

    from trainyard.sweep.points import Materials
    from trainyard.sweep.store import MANIFEST, Store

    materials = Materials.of(study)
    if study.plan is not None:
        if json_path is not None:
            write_json({"trials": study.plan.trials, "workloads": len(study.workloads), "store": folder}, json_path)
        if json_path != "-":
            write(f"{study.name}: a search of {study.plan.trials} trials, whose points follow from each other")
        return
    keys = [point.key for point in materials.keyed(study.points(limit))]
    store = Store(folder) if os.path.exists(os.path.join(folder, MANIFEST)) else None
    there = 0 if store is None else sum(key in store.keys() for key in keys)  # noqa: SIM118  # keys() is the store's own
    if json_path is not None:
        write_json({"points": len(keys), "settings": study.size, "stored": there, "store": folder}, json_path)
    if json_path != "-":
        same = "" if len(keys) == study.size else f" ({study.size} settings, of which some build the same machine)"
        write(f"{study.name}: {len(keys)} points{same}, {there} of them in {folder}, {len(keys) - there} to run")


def _show(study: Study, summary: Summary) -> None:
    from rich.table import Table
    from rich.text import Text

    from trainyard.sweep.metrics import shown

    console = new_console()
    stopped = f" ({summary.timed_out} over the time limit)" if summary.timed_out else ""
    failed = f", {summary.failed} failed{stopped}" if summary.failed else ""
    console.print(
        Text(f"{study.name}: {summary.points} points, {summary.computed} computed, {summary.reused} from before{failed}", "bold")
    )
    rows = summary.front[:MOST_ROWS]
    if rows:
        more = f", {MOST_ROWS} of {len(summary.front)}" if len(summary.front) > MOST_ROWS else ""
        what = "Pareto front" if len(study.objectives) > 1 else "best"
        console.print(f"{what} of {', '.join(f'{name} ({direction})' for name, direction in study.objectives.items())}{more}")
        names = _columns(study, summary.records)
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for head in (*names.values(), *study.objectives):
            table.add_column(head, justify="right" if head in study.objectives else "left", no_wrap=head in study.objectives)
        for record in rows:
            cells = [_setting(record, name) for name in names]
            table.add_row(*map(Text, cells), *(shown(name, record.metrics.get(name)) for name in study.objectives))
        console.print(table)
    if summary.overfull:
        console.print(Text(_overfull(study, summary), "yellow"))
    if summary.failed:
        first = next(record for record in summary.records if record.failed)
        console.print(Text(f"first failure: {dict(first.settings)}: {first.error}", "dim"), soft_wrap=True)
    console.print(Text(f"store: {summary.store}"), soft_wrap=True)


def _overfull(study: Study, summary: Summary) -> str:
    """How many points need more memory than their machine has, and whether they were ranked."""
    worst = max(record.metrics.get("memory_share", 0.0) for record in summary.records)
    count = "1 point needs" if summary.overfull == 1 else f"{summary.overfull} points need"
    need = f"{count} more memory than the machine has (up to {worst:.3g} times as much)"
    return f"{need}: ranked all the same" if study.any_memory else f"{need}: not ranked (--any-memory ranks them too)"


def _columns(study: Study, records: Sequence[Record]) -> dict[str, str]:
    """What tells points apart, by path, and what the study calls it; what is tied to another axis is not shown."""
    called = {axis.path: axis.name for axis in study.axes}
    names = {"workload": "workload", "machine": "machine", "batch": "batch", **called}
    return {path: name for path, name in names.items() if len({_setting(record, path) for record in records}) > 1} or called


def _setting(record: Record, name: str) -> str:
    from trainyard.sweep.metrics import shown

    return getattr(record, name) if name in ("workload", "machine") else shown(name, record.settings.get(name))
