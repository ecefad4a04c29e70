"""The command line. Every error of a user is one line on stderr and exit code 2; `--json -` prints nothing but JSON on stdout.

Heavy imports stay inside the commands: `trainyard --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard import cli_options, terminal
from trainyard._version import VERSION
from trainyard.cli_options import (
    Axis,
    Batch,
    Dpus,
    Forward,
    Html,
    Json,
    Machine,
    MasksAt,
    Parallel,
    Settings,
    Top,
    Training,
    Workload,
    Zeros,
    writable,
)
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.files import write_text
from trainyard.terminal import StepTo, progress, say, status, write_json

if TYPE_CHECKING:
    from trainyard.ir import Step
    from trainyard.papers.ledger import Row
    from trainyard.results import Result

app = typer.Typer(
    help="Run one training step of your PyTorch model on an accelerator that does not exist yet.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


INTERRUPTED = 130
PARALLEL = ("data", "model", "mixed")
KINDS = ("machines", "models", "papers", "parts")
OWN_OPTIONS = ("batch", "parallel", "dpus", "algorithm", "masks")
PAPER_DOCUMENT = os.path.join("docs", "reproduction.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program: its exit code is 0, 1 (an experiment failed, or a bug), 2 (the user can mend it) or 130 (interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in words
    terminal.speak_plainly()
    try:
        code = app([word for word in words if word != "--debug"], prog_name="trainyard", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer has caught it
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError):  # typer and rich end with the latter
            terminal.close_stdout()
            return 0  # `trainyard list | head`: what was read is enough
        return _fail(f"a function of yours ended the program with exit({end.code})", 2)
    except Exception as error:
        if debug:
            raise
        return _fail(*_reason(error))


def _reason(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, TrainyardError):
        cause = error.__cause__
        without_torch = isinstance(cause, ModuleNotFoundError) and cause.name == "torch"
        return f"{error}: pip install 'trainyard[torch]'" if without_torch else str(error), 2
    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    if callable(usage := getattr(error, "format_message", None)):
        return usage() or "what to do? see trainyard --help", 2
    if isinstance(error, OSError) and error.filename is None:  # files have been named by whoever opened them
        terminal.close_stdout()
        return f"cannot write to stdout: {error.strerror or error}", 2
    if isinstance(error, OverflowError):
        return f"a size of the workload or the machine is too large to count with ({error})", 2
    return f"{type(error).__name__}: {error} (a fault of trainyard; --debug shows where)", 1


def _fail(message: str, code: int) -> int:
    print(f"trainyard: {' '.join(message.split())}", file=sys.stderr)
    return code


def _version(asked: bool) -> None:
    if asked:
        print(f"trainyard {VERSION}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    pass


@app.command()
def run(
    workload: Workload,
    on: Machine,
    batch: Batch = None,
    parallel: Parallel = None,
    dpus: Dpus = None,
    algorithm: Training = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
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
    ranged: Annotated[bool, typer.Option("--range/--no-range", help="The headline's range over the open assumptions.")] = True,
) -> None:
    """Run a training step on a machine.

    Time, energy, traffic and memory, by layer and phase.
    """
    _known_axis(by)
    asked = (parallel, dpus, algorithm)
    (result,) = _results(workload, [_machine_given(on)], batch, asked, masks, at, inference, settings, ranged=ranged)
    if html is not None:
        result.to_html(html, ranged=ranged)
        say(f"wrote {html}")
    for path, write in ((perfetto, result.to_perfetto), (csv, result.to_csv), (parquet, result.to_parquet)):
        if path is not None:
            write(path)
            say(f"wrote {path}")
    if json_path is not None:
        write_json(result.as_dict(), json_path)
    if json_path != "-":
        if explain is None:
            result.table(by=by, top=top, ranged=ranged)  # type: ignore[arg-type]  # checked above
        else:
            print(result.explain(explain))


@app.command()
def compare(
    workload: Workload,
    on: Annotated[str, typer.Option("--on", help="Machines, separated by commas: tpu,npu(dram=75 GB/s),h200.", show_default=False)],
    batch: Batch = None,
    parallel: Parallel = None,
    dpus: Dpus = None,
    algorithm: Training = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
    json_path: Json = None,
    html: Html = None,
) -> None:
    """Run the same step on several machines."""
    from trainyard.machines import split
    from trainyard.runs import Comparison

    results = Comparison(_results(workload, split(on), batch, (parallel, dpus, algorithm), masks, at, inference, settings))
    if json_path is not None:
        write_json([result.as_dict() for result in results], json_path)
    if html is None and json_path == "-":
        return
    with progress() as step_to:
        results = Comparison(_ranged(result, step_to) for result in results)
    if html is not None:
        results.to_html(html)
        say(f"wrote {html}")
    if json_path != "-":
        results.table()


@app.command()
def explain(
    workload: Workload,
    layer: Annotated[str, typer.Argument(help="A layer of it; the whole step by default.")] = "",
    on: Machine = "",
    batch: Batch = None,
    parallel: Parallel = None,
    masks: Zeros = None,
    at: MasksAt = None,
    inference: Forward = False,
    settings: Settings = None,
    html: Annotated[str | None, typer.Option(callback=writable, help="Write a paper's walk-through as a drawing.")] = None,
) -> None:
    """Say what a step or a layer waits for.

    And what the next 10 % of each resource is worth. Of a paper (explain tensordash): its mechanism at work, cycle by cycle.
    """
    from trainyard.papers import ledger

    if workload in ledger.papers() and not on:
        text, drawing = ledger.walkthrough(workload, layer)
        if html is not None:
            drawing().write_html(html, include_plotlyjs=True)
            say(f"wrote {html}")
        print(text)
        return
    if html is not None:
        raise BadInput(
            f"--html draws a paper's walk-through; for a report: trainyard run {workload} --on {on or 'MACHINE'} --html {html}"
        )
    (result,) = _results(
        workload, [_machine_given(on)], batch, (parallel, None, None), masks, at, inference, settings, ranged=False
    )
    print(result.explain(layer))


@app.command()
def whatif(
    workload: Annotated[str, typer.Argument(help="A workload, or a paper.", show_default=False)],
    on: Machine = "",
    batch: Batch = None,
    parallel: Parallel = None,
    masks: Zeros = None,
    at: MasksAt = None,
    metric: Annotated[str | None, typer.Option(help="time_s (default), energy_j, samples_per_s, cycles or array_cycles.")] = None,
    json_path: Json = None,
) -> None:
    """Weigh each assumption of a machine.

    Every alternative in its place, one at a time, the most valuable first. A paper alone is weighed by its own measure.
    """
    from trainyard import runs
    from trainyard.papers import ledger

    if workload in ledger.papers() and not on:
        weigh = ledger.worths(workload)
        if weigh is not None and all(option is None for option in (batch, parallel, masks, at, metric)):
            with progress() as step_to:
                said, found = weigh(partial(_alternatives, step_to, workload))
            terminal.tell_worths(found, workload, said, json_path)
            return
        workload, on, masks = ledger.case(workload, masks)
    metric = metric or "time_s"
    with status(f"reading {workload} for {_machine_given(on)}"):
        step = _step(workload, batch)
        zeros = _masks(masks, at, step)
    with progress() as step_to:
        step_to(0, 1, f"machines: {on}")
        told = partial(_alternatives, step_to, on)
        found = runs.whatif(step, on, metric=metric, told=told, parallel=parallel, masks=zeros)
    terminal.tell_worths(found, f"{workload} on {on}", metric, json_path)


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="One paper; all by default.", show_default=False)] = None,
    figure: Annotated[str | None, typer.Option(help="One figure or table of it: 12, 12a, 'Table II'.")] = None,
    context: Annotated[bool, typer.Option("--context", help="Show the papers' parameters in the table too.")] = False,
    json_path: Json = None,
    html: Html = None,
    markdown: Annotated[str | None, typer.Option(callback=writable, help="Write the ledger as Markdown.")] = None,
) -> None:
    """Hold the papers' figures against ours.

    What a paper prints, what a simulation here gives, their ratio and a verdict.
    Walked as a whole inside trainyard's own repository, it also renews docs/reproduction.md and .html.
    """
    from trainyard.papers import ledger, pages, tables

    with progress("claims") as step_to:
        rows = ledger.walk(paper, figure, step_to)
    if paper is None and figure is None and markdown is None and os.path.isfile(PAPER_DOCUMENT):
        markdown, html = PAPER_DOCUMENT, html or PAPER_DOCUMENT.replace(".md", ".html")
    for path, write in ((html, pages.write_html), (markdown, pages.write_markdown)):
        if path is not None:
            write(rows, path)
            say(f"wrote {path}")
    if json_path is not None:
        write_json([row.as_dict() for row in rows], json_path)
    if json_path != "-":
        tables.show_rows(rows, context=context)
    _end_if_failed(rows)


def _end_if_failed(rows: Iterable[Row]) -> None:
    if failed := [row.id for row in rows if row.failed]:
        say(f"{len(failed)} experiments failed: {', '.join(failed)}")
        raise typer.Exit(1)


@app.command(name="list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help="machines, models, papers or parts.", show_default=False)] = None,
    json_path: Json = None,
) -> None:
    """List machines, models, papers, parts.

    `trainyard show NAME` prints every field of a machine.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("list", kind, KINDS)
    found = {name: _names(name) for name in KINDS if kind in (None, name)}
    if json_path is not None:
        write_json(found if kind is None else found[kind], json_path)
    if json_path != "-":
        terminal.show_names(found)


def _names(kind: str) -> dict[str, str]:
    """Names of a kind with one line about each."""
    if kind == "machines":
        from trainyard.machines import names

        return names()
    if kind == "models":
        from trainyard.workloads.zoo.catalogue import ENTRIES

        return {name: f"{entry.parameters:,} parameters, batch {entry.batch}; {entry.source}" for name, entry in ENTRIES.items()}
    if kind == "papers":
        from trainyard.papers import ledger

        return {paper: f"{len(ledger.select(paper))} claims" for paper in ledger.papers()}
    from trainyard.machines import about_parts

    return about_parts()


@app.command()
def show(
    machine: Annotated[str, typer.Argument(help="Machine: name, name(key=value,...), .toml or .cfg file.", show_default=False)],
    json_path: Json = None,
    svg: Annotated[str | None, typer.Option(callback=writable, help="Write a drawing of a node: its graph and its rings.")] = None,
) -> None:
    """Show every field of a machine.

    Printed as a machine file to start from, with the source of each number of a preset and the alternatives of what is open.
    """
    from trainyard.machines import describe, to_toml
    from trainyard.machines import machine as built
    from trainyard.papers.provenance import remarks

    found = built(machine)
    if svg is not None:
        from trainyard.report.nodes import drawing

        write_text(svg, drawing(found, machine)[0])
        say(f"wrote {svg}")
    if json_path is not None:
        write_json(describe(found), json_path)
    if json_path != "-":
        print(to_toml(found, remarks(machine, found)), end="")


@app.command()
def record(
    function: Annotated[str, typer.Argument(help="file.py:function that returns (train_step, model).", show_default=False)],
    output: Annotated[str, typer.Option("--output", "-o", help="File of masks to write.")] = "masks.safetensors",
    steps: Annotated[str | None, typer.Option(help="Training steps to record: 0,100,200 or 0:1000:100; 0 by default.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Record one random step of each of this many epochs.")] = None,
    steps_per_epoch: Annotated[int | None, typer.Option(min=1, help="Training steps of an epoch, with --epochs.")] = None,
    layers: Annotated[list[str] | None, typer.Option("--layer", help="Record these layers only. May repeat.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Keep this many samples of each batch.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of samples and of steps.")] = 0,
) -> None:
    """Record the zeros of a real training run.

    The exact masks of activations, weights and gradients, for `run --masks`.
    """
    from trainyard.workloads.epochs import recorded_steps
    from trainyard.workloads.named import called
    from trainyard.workloads.recording import record_masks

    numbers = recorded_steps(steps, epochs, steps_per_epoch, seed)
    returned = called(function)
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and callable(returned[0])):
        raise BadInput(f"{function} must return (train_step, model), got {type(returned).__name__}")
    train_step, model = returned
    masks = record_masks(train_step, model, numbers, path=output, layers=layers, samples=samples, seed=seed)
    print(f"wrote {output}: {len(masks.specs)} masks at each of steps {', '.join(map(str, masks.steps))}")


def _results(
    workload: str,
    machines: Sequence[str],
    batch: int | None,
    system: tuple[str | None, int | None, str | None],
    masks: str | None,
    at: int | None,
    inference: bool,
    settings: Sequence[str] | None,
    *,
    ranged: bool = False,
) -> list[Result]:
    from trainyard import runs
    from trainyard.ir import Phase
    from trainyard.machines import machine, with_overrides

    parallel, dpus, algorithm = system
    if parallel not in (None, *PARALLEL):
        raise UnknownName("value of --parallel", str(parallel), PARALLEL)
    overrides = _overrides(settings)
    overrides.update({name: value for name, value in (("dpus", dpus), ("algorithm", algorithm)) if value is not None})
    for name in machines:  # a fault of the last must not cost a run of the first
        chosen = machine(name)
        cli_options.require_pim(name, chosen, dpus, algorithm)
        try:
            with_overrides(chosen, overrides)
        except TrainyardError as error:
            raise BadInput(f"{name}: {error}") from None
    with status(f"reading {workload}"):
        step = _step(workload, batch)
        zeros = _masks(masks, at, step)
        step = step.only(Phase.FORWARD) if inference else step
    results = []
    with progress() as step_to:
        for number, name in enumerate(machines):
            step_to(number, len(machines), f"machines: {name}")
            result = runs.run(step, name, masks=zeros, parallel=parallel, **overrides)
            result = _ranged(result, step_to) if ranged else result
            changed = cli_options.changes(dpus, algorithm, settings)
            results.append(replace(result, machine=f"{name} with {changed}") if changed else result)
    return results


def _ranged(result: Result, step_to: StepTo) -> Result:
    """Its time with a range: the machine once more with each alternative."""
    return result.ranged(partial(_alternatives, step_to, result.machine))


def _alternatives(step_to: StepTo, machine: str, done: int, total: int) -> None:
    step_to(done, total, f"alternatives of {machine}")


def _overrides(settings: Sequence[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in settings or ():
        path, equals, value = setting.partition("=")
        path = path.strip()
        if not equals or not all(map(str.strip, path.split("."))) or not value.strip():
            raise BadInput(f"--set {setting}: write path=value, as in --set array.rows=64")
        if path in OWN_OPTIONS:
            raise BadInput(f"--set {setting}: write --{path} {value}")
        if path in found:
            raise BadInput(f"--set {setting}: '{path}' is given twice")
        found[path] = value
    return found


def _step(workload: str, batch: int | None) -> Step:
    from trainyard.workloads.named import load

    return load(workload, batch)


def _masks(text: str | None, at: int | None, step: Step) -> Any:
    from trainyard.workloads.named_masks import load

    return load(text, step, at)


def _machine_given(on: str) -> str:
    from trainyard.machines import split

    if not on:
        raise BadInput("on which machine? add --on, as in --on npu (see trainyard list machines)")
    if len(split(on)) > 1:
        raise BadInput(f"one machine at a time, not {on}: trainyard compare takes several")
    return on


def _known_axis(by: str) -> None:
    from trainyard.results import AXES

    if by not in AXES:
        raise UnknownName("value of --by", by, AXES)


if __name__ == "__main__":
    sys.exit(main())
