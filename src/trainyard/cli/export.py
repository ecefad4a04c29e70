"""`export`: a step, or what a machine does with it, in the files of other tools."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.cli import request
from trainyard.cli.options import Batch, Forward, Parallel, Settings, Workload
from trainyard.cli.request import RunRequest
from trainyard.errors import BadInput, UnknownName
from trainyard.files import require_folder, require_writable, write_bytes
from trainyard.report.terminal import say, status

if TYPE_CHECKING:
    from trainyard.devices import Accelerator
    from trainyard.ir import Step

FORMATS = {
    "step": "a Step as JSON (.json, .json.gz)",
    "scalesim": "a SCALE-Sim topology (.csv)",
    "timeloop": "a folder of Timeloop problems, one for each product; with --on the mappings that an accelerator chose",
    "chakra": "Chakra execution traces for ASTRA-sim, OUTPUT.0.et and so on; needs --on",
    "ramulator": "the DRAM accesses of one accelerator, packed if OUTPUT ends in .gz; needs --on",
}
RUN_ON, MAY_RUN_ON = ("chakra", "ramulator"), ("timeloop",)


def export(
    workload: Workload,
    to: Annotated[str, typer.Option("--to", help=f"Format: {', '.join(FORMATS)}.", show_default=False)],
    output: Annotated[str, typer.Option("--output", "-o", help="File, folder or beginning of names to write.", show_default=False)],
    on: Annotated[str, typer.Option("--on", help="Machine, for chakra and ramulator; for the mappings of timeloop.")] = "",
    batch: Batch = None,
    parallel: Parallel = None,
    inference: Forward = False,
    settings: Settings = None,
    layer: Annotated[str | None, typer.Option(help="One layer alone (scalesim, timeloop, ramulator).")] = None,
    phase: Annotated[str | None, typer.Option(help="One phase alone; scalesim: forward by default, or all.")] = None,
    style: Annotated[str, typer.Option(help="Of ramulator: load_store (LD/ST lines) or classic (R/W lines).")] = "load_store",
    lines: Annotated[int, typer.Option(min=1, help="The most lines that a ramulator trace may have.")] = 20_000_000,
) -> None:
    """Write a step, or a machine's work on it, for another tool."""
    if to not in FORMATS:
        raise UnknownName("value of --to", to, FORMATS)
    if to in RUN_ON and not on:
        raise BadInput(f"--to {to} is what a machine does: add --on, as in --on npu")
    if to in MAY_RUN_ON and settings and not on:
        raise BadInput("--set changes a machine: add --on, as in --on npu")
    if (to not in (*RUN_ON, *MAY_RUN_ON) and (on or settings)) or (to not in RUN_ON and parallel):
        raise BadInput(f"--to {to} needs no machine: leave out --on, --parallel and --set")
    if to in ("step", "chakra") and (layer or phase):
        raise BadInput(f"--to {to} writes the whole step: leave out --layer and --phase")
    _require_output(to, output)
    if to == "chakra":
        _chakra(workload, on, output, batch, parallel, inference, settings)
        return
    step = _step(workload, batch, inference)
    if to == "ramulator":
        _ramulator(step, on, output, parallel, settings, layer, phase, style, lines)
    elif to == "timeloop" and on:
        _mappings(step, on, output, settings, layer, phase)
    elif to == "timeloop":
        from trainyard.workloads.formats.timeloop import write_timeloop

        say(f"wrote {len(write_timeloop(step, output, layer=layer, phase=phase))} problems to {output}")
    elif to == "scalesim":
        from trainyard.workloads.formats import write_topology

        write_topology(step, output, phase=phase or "forward", layer=layer)
        say(f"wrote {output}")
    else:
        _write_step(step, output)


def _require_output(to: str, output: str) -> None:
    """What cannot be written is refused before a step is read or run."""
    if to == "step" and not output.endswith((".json", ".json.gz")):
        raise BadInput(f"-o {output}: a Step is written to .json or .json.gz")
    if to == "timeloop":
        require_folder(output)
    else:
        require_writable(f"{output}.0.et" if to == "chakra" else output)


def _step(workload: str, batch: int | None, inference: bool) -> Step:
    from trainyard.ir import Phase

    with status(f"reading {os.path.basename(workload)}"):
        step = request.step_of(workload, batch)
        return step.only(Phase.FORWARD) if inference else step


def _write_step(step: Step, output: str) -> None:
    content = step.to_json().encode()
    write_bytes(output, gzip.compress(content, mtime=0) if output.endswith(".gz") else content)
    say(f"wrote {output}")


def _chakra(
    workload: str, on: str, output: str, batch: int | None, parallel: str | None, inference: bool, settings: list[str] | None
) -> None:
    from trainyard.report.traces.chakra import write_chakra

    run_request = RunRequest(workload=workload, batch=batch, parallel=parallel, inference=inference, settings=settings)
    (result,) = run_request.results([request.one_machine(on)])
    files = write_chakra(result, output)
    say(f"wrote {files[0]}" if len(files) == 1 else f"wrote {files[0]} to {files[-1].name}, {len(files)} ranks")


def _ramulator(
    step: Step, on: str, output: str, parallel: str | None, settings: list[str] | None, layer: str | None, phase: str | None,
    style: str, lines: int,
) -> None:  # fmt: skip
    from trainyard.report.traces.memory_trace import write_memory_trace

    if parallel:
        raise BadInput("--to ramulator traces one accelerator: leave out --parallel")
    device = _accelerator(on, settings, "--to ramulator traces one accelerator")
    with status("tracing"):
        traced = write_memory_trace(step, device, output, layer=layer, phase=phase, style=style, most_lines=lines)  # type: ignore[arg-type]
    lines_written = f"{traced.loads:,} loads and {traced.stores:,} stores of {traced.line_bytes} bytes"
    say(f"wrote {output}: {lines_written}, for {traced.total_bytes:,} bytes that the tiles move")


def _accelerator(on: str, settings: list[str] | None, what: str) -> Accelerator:
    from trainyard.devices import Accelerator
    from trainyard.machines import machine, with_overrides

    selected = with_overrides(machine(request.one_machine(on)), request.overrides_of(settings))
    device = getattr(selected, "device", selected)
    if not isinstance(device, Accelerator) or getattr(selected, "devices", 1) > 1:
        raise BadInput(f"{what}, {on} is none: write --on npu, or another array behind a scratchpad")
    return device


def _mappings(step: Step, on: str, output: str, settings: list[str] | None, layer: str | None, phase: str | None) -> None:
    from trainyard.report.mapping.timeloop import write_mappings

    device = _accelerator(on, settings, "--to timeloop writes the mappings of one accelerator")
    with status("mapping"):
        files, left = write_mappings(step, device, output, layer=layer, phase=phase)
    say(f"wrote {len(files)} mappings to {output}, for timeloop-model")
    for sentence in left:
        say(sentence)
