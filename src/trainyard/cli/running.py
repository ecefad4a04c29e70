"""`run`, `compare`, `explain`: a step on machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard.cli import request
from trainyard.cli.options import (
    Axis,
    Batch,
    Dpus,
    Epochs,
    Fixed,
    Forward,
    Html,
    Json,
    Machine,
    Mapping,
    MasksAt,
    Parallel,
    Samples,
    Settings,
    Top,
    Training,
    Workload,
    World,
    Zeros,
    writable,
)
from trainyard.cli.request import RunRequest
from trainyard.errors import BadInput
from trainyard.report.terminal import progress, say, write_json, write_text_lines

if TYPE_CHECKING:
    from trainyard.results.result import Result


def run(
    workload: Workload,
    on: Machine,
    batch: Batch = None,
    world: World = None,
    parallel: Parallel = None,
    dpus: Dpus = None,
    algorithm: Training = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
    mapping_file: Fixed = None,
    samples: Samples = None,
    epochs: Epochs = None,
    json_path: Json = None,
    html: Html = None,
    perfetto: Annotated[str | None, typer.Option(callback=writable, help="Write a gzipped timeline for ui.perfetto.dev.")] = None,
    csv: Annotated[str | None, typer.Option(callback=writable, help="Write the rows as CSV.")] = None,
    parquet: Annotated[str | None, typer.Option(callback=writable, help="Write the rows as Parquet.")] = None,
    by: Axis = "layer",
    top: Top = 20,
    explain: Annotated[
        str | None, typer.Option(help="Explain one layer: what binds it, what more of each resource is worth.")
    ] = None,
    mapping: Mapping = False,
    ranged: Annotated[bool, typer.Option("--range/--no-range", help="The headline's range over the open assumptions.")] = True,
) -> None:
    """Run a training step on a machine.

    Time, energy, traffic and memory, by layer and phase.
    """
    request.require_axis(by)
    request.require_samples(samples, epochs)
    run_request = RunRequest(
        workload=workload,
        batch=batch,
        world=world,
        parallel=parallel,
        dpus=dpus,
        algorithm=algorithm,
        masks=masks,
        at=at,
        inference=inference,
        settings=settings,
        mapping_file=mapping_file,
    )
    (result,) = run_request.results([request.one_machine(on)], ranged=ranged)
    if html is not None:
        result.to_html(html, ranged=ranged)
        say(f"wrote {html}")
    for path, write in ((perfetto, result.to_perfetto), (csv, result.to_csv), (parquet, result.to_parquet)):
        if path is not None:
            write(path)
            say(f"wrote {path}")
    if json_path is not None:
        write_json(_with_training(result, samples, epochs), json_path)
    if json_path != "-":
        if mapping:
            write_text_lines(_loop_nests(result, explain or ""))
        elif explain is None:
            result.table(by=by, top=top, ranged=ranged)  # type: ignore[arg-type]  # checked above
            _print_training([result], samples, epochs)
        else:
            write_text_lines(result.explain(explain))


def compare(
    workload: Workload,
    on: Annotated[str, typer.Option("--on", help="Machines, separated by commas: tpu,npu(dram=75 GB/s),h200.", show_default=False)],
    batch: Batch = None,
    world: World = None,
    parallel: Parallel = None,
    dpus: Dpus = None,
    algorithm: Training = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
    mapping_file: Fixed = None,
    samples: Samples = None,
    epochs: Epochs = None,
    json_path: Json = None,
    html: Html = None,
) -> None:
    """Run the same step on several machines."""
    from trainyard.machines import split
    from trainyard.runs import Comparison

    request.require_samples(samples, epochs)
    run_request = RunRequest(
        workload=workload,
        batch=batch,
        world=world,
        parallel=parallel,
        dpus=dpus,
        algorithm=algorithm,
        masks=masks,
        at=at,
        inference=inference,
        settings=settings,
        mapping_file=mapping_file,
    )
    results = Comparison(run_request.results(split(on)))
    if json_path is not None:
        write_json([_with_training(result, samples, epochs) for result in results], json_path)
    if html is None and json_path == "-":
        return
    with progress() as on_progress:
        results = Comparison(request.with_range(result, on_progress) for result in results)
    if html is not None:
        results.to_html(html)
        say(f"wrote {html}")
    if json_path != "-":
        results.table()
        _print_training(results, samples, epochs)


def explain(
    workload: Workload,
    layer: Annotated[str, typer.Argument(help="A layer of it, with --mapping also a pattern; the whole step by default.")] = "",
    on: Machine = "",
    batch: Batch = None,
    world: World = None,
    parallel: Parallel = None,
    dpus: Dpus = None,
    algorithm: Training = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
    mapping_file: Fixed = None,
    mapping: Mapping = False,
    json_path: Annotated[
        str | None, typer.Option("--json", callback=writable, help="With --mapping: write the loop nests as JSON, - for stdout.")
    ] = None,
    html: Annotated[str | None, typer.Option(callback=writable, help="Write a paper's walk-through as a drawing.")] = None,
) -> None:
    """Say what a step or a layer waits for.

    And what the next 10 % of each resource is worth. Of a paper (explain tensordash): its mechanism at work, cycle by cycle.
    """
    from trainyard.papers import bench, ledger

    if workload in ledger.papers() and not on:
        text, drawing = bench.walkthrough(workload, layer)
        if html is not None:
            from trainyard.report.walkthroughs import page

            page.write(drawing(), text, html)
            say(f"wrote {html}")
        write_text_lines(text)
        return
    if html is not None:
        raise BadInput(
            f"--html draws a paper's walk-through; for a report: trainyard run {workload} --on {on or 'MACHINE'} --html {html}"
        )
    run_request = RunRequest(
        workload=workload,
        batch=batch,
        world=world,
        parallel=parallel,
        dpus=dpus,
        algorithm=algorithm,
        masks=masks,
        at=at,
        inference=inference,
        settings=settings,
        mapping_file=mapping_file,
    )
    if json_path is not None and not mapping:
        raise BadInput("--json writes loop nests: add --mapping; the costs of a step are in trainyard run ... --json")
    (result,) = run_request.results([request.one_machine(on)])
    if json_path is not None:
        from trainyard.results.loop_nests import chosen

        write_json([nest.as_dict() for nest in chosen(result.mapping, layer)], json_path)
    if json_path != "-":
        write_text_lines(_loop_nests(result, layer) if mapping else result.explain(layer))


def _loop_nests(result: Result, pattern: str) -> str:
    from trainyard.report.mapping.loop_nests import text

    return text(result, pattern)


def _with_training(result: Result, samples: int | None, epochs: int | None) -> dict[str, Any]:
    """The JSON object of a result, with the time to train where it was asked for."""
    training = {} if samples is None else {"training": result.training(samples, epochs or 1).as_dict()}
    return {**result.as_dict(), **training}


def _print_training(results: Sequence[Result], samples: int | None, epochs: int | None) -> None:
    """A line for each machine, folded between words; nothing where no samples were given."""
    if samples is None:
        return
    from rich.text import Text

    from trainyard.report.summaries.grid import console_of

    console, width = console_of(), max(len(result.machine) for result in results)
    for result in results:
        console.print(Text(f"time to train on {result.machine + ':':<{width + 1}} {result.training(samples, epochs or 1)}"))
