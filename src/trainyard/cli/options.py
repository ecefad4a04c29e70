"""The options that several commands share: one meaning and one line of help each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from trainyard.errors import BadInput
from trainyard.files import require_folder, require_writable


def writable(option: typer.CallbackParam, path: str | None) -> str | None:
    """A file that cannot be written must not cost a run first."""
    if path is None or (path == "-" and option.name == "json_path"):
        return path
    if path in ("", "-"):
        raise BadInput(f"{option.opts[0]} '{path}': name a file (only --json prints to stdout with -)")
    require_writable(path)
    return path


def makeable(path: str | None) -> str | None:
    """A folder of results that cannot be made must not cost a run first."""
    if path is not None:
        require_folder(path)
    return path


# fmt: off
Workload = Annotated[str, typer.Argument(help="Zoo model, .json, .onnx, SCALE-Sim .csv or file.py:function.", show_default=False)]
Machine  = Annotated[str, typer.Option("--on", help="Machine: name, name(key=value,...), .toml or .cfg file.", show_default=False)]
World    = Annotated[int | None, typer.Option("--world", min=2, help="Ranks of the (fake) process group of a file.py:function.")]
Batch    = Annotated[int | None, typer.Option(min=1, help="Batch size; the workload's own by default.")]
Parallel = Annotated[str | None, typer.Option(help="How a system divides the work: data, model, mixed, pipeline or expert.")]
Dpus     = Annotated[int | None, typer.Option(min=1, help="Number of DPUs of a PIM system.")]
Training = Annotated[str | None, typer.Option("--algorithm", help="What workers exchange and when: model-averaging(period=8).")]
Zeros    = Annotated[str | None, typer.Option("--masks", help="Zeros: a file of `record`, or sparsity(A=0.6,G=0.5,seed=1).")]
MasksAt  = Annotated[int | None, typer.Option("--at", min=0, help="Training step of a masks file; its first by default.")]
Forward  = Annotated[bool, typer.Option("--inference", help="The forward pass alone.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Override a field: array.rows=64, dram='75 GB/s'. May repeat.")]
Mapping  = Annotated[bool, typer.Option("--mapping", help="Show the loop nest of each layer: tiles, order, what stays and moves.")]
Fixed    = Annotated[str | None, typer.Option("--mapping-file", help="Fixed tiles and loop orders by layer (.toml).")]
Json     = Annotated[str | None, typer.Option("--json", callback=writable, help="Write JSON: a file, or - for stdout alone.")]
Html     = Annotated[str | None, typer.Option("--html", callback=writable, help="Write a self-contained HTML page.")]
Samples  = Annotated[int | None, typer.Option("--samples", min=1, help="Samples of the data set: add the time to train on them.")]
Epochs   = Annotated[int | None, typer.Option("--epochs", min=1, help="Epochs over these samples; 1 by default.")]
Axis     = Annotated[str, typer.Option("--by", help="Group by layer, phase, resource, kind, op or bound.")]
Top      = Annotated[int, typer.Option(min=1, help="Rows of the table.")]
# fmt: on


def require_fields(name: str, machine: object, dpus: int | None, algorithm: str | None, parallel: str | None) -> None:
    """Only machines of several workers take these."""
    for option, value, field in (("--dpus", dpus, "dpus"), ("--algorithm", algorithm, "algorithm")):
        if value is not None and not hasattr(machine, field):
            others = ", and of nodes such as mcdla-b" if field == "algorithm" else ""
            raise BadInput(f"{name} has no {field}: {option} is of pim-opt and direct{others}")
    if parallel is not None and not hasattr(machine, "parallel"):
        instead = "; what its workers exchange is --algorithm" if hasattr(machine, "algorithm") else ""
        raise BadInput(f"{name} has no parallel: --parallel is of nodes such as mcdla-b{instead}")


def changes(dpus: int | None, algorithm: str | None, settings: Sequence[str] | None, mapping_file: str | None = None) -> str:
    """What was asked for beside the machine's name."""
    given = (("dpus", dpus), ("algorithm", algorithm), ("mapping-file", mapping_file))
    options = [f"{key}={value}" for key, value in given if value is not None]
    return ", ".join((*options, *(settings or ())))
