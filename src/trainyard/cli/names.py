"""`list` and `show`: what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainyard.cli.options import Batch, Json, writable
from trainyard.errors import BadInput, UnknownName
from trainyard.files import write_text
from trainyard.report import terminal
from trainyard.report.terminal import say, status, write_json

WORKLOAD_FILES = (".json", ".json.gz", ".csv", ".onnx", ".py")
KINDS = ("machines", "models", "papers", "parts")


def list_names(
    kind: Annotated[str | None, typer.Argument(help="machines, models, papers or parts.", show_default=False)] = None,
    json_path: Json = None,
) -> None:
    """List machines, models, papers, parts.

    `trainyard show NAME` prints every field of a machine.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("list", kind, KINDS)
    names_by_kind = {name: _names(name) for name in KINDS if kind in (None, name)}
    if json_path is not None:
        write_json(names_by_kind if kind is None else names_by_kind[kind], json_path)
    if json_path != "-":
        terminal.show_names(names_by_kind)


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


def show(
    name: Annotated[str, typer.Argument(help="A machine or a workload, written as for `run`.", show_default=False)],
    batch: Batch = None,
    top: Annotated[int | None, typer.Option(min=1, help="Layers of a workload to print; all by default.")] = None,
    json_path: Json = None,
    svg: Annotated[str | None, typer.Option(callback=writable, help="Write a drawing of a node: its graph and its rings.")] = None,
) -> None:
    """Show every field of a machine, or every layer of a model.

    A machine is printed as a machine file to start from, with the source of each number of a preset, the alternatives of what is
    open, and the area of its components. A workload is printed layer by layer: shapes, parameters, multiply-accumulates and bytes
    of the forward pass, the backward pass and the update.
    """
    if _is_workload(name):
        _show_workload(name, batch, top, json_path, svg)
        return
    if batch is not None or top is not None:
        raise BadInput(f"--{'batch' if batch is not None else 'top'} is of a workload; {name} is read as a machine")
    from trainyard.machines import describe, to_toml
    from trainyard.papers.provenance import remarks

    shown = _machine(name)
    if svg is not None:
        from trainyard.report.nodes import drawing

        write_text(svg, drawing(shown, name)[0])
        say(f"wrote {svg}")
    if json_path is not None:
        write_json(describe(shown), json_path)
    if json_path != "-":
        text = to_toml(shown, remarks(name, shown))
        terminal.write_settings(text)
        _print_area(shown)


def _is_workload(name: str) -> bool:
    from trainyard.workloads.zoo.catalogue import ENTRIES

    return name in ENTRIES or name.endswith(WORKLOAD_FILES) or any(f"{ending}:" in name for ending in (".py", ".onnx"))


def _machine(name: str) -> Any:
    """The machine of that name; where there is none, models are among the names that may be meant."""
    from trainyard.machines import machine
    from trainyard.workloads.zoo.catalogue import ENTRIES

    try:
        return machine(name)
    except UnknownName as error:
        if error.kind != "machine":
            raise
        raise UnknownName("machine or model", error.given, {*error.known, *ENTRIES}) from None


def _show_workload(name: str, batch: int | None, top: int | None, json_path: str | None, svg: str | None) -> None:
    from trainyard.runs import summary

    if svg is not None:
        raise BadInput(f"--svg draws a node such as mcdla-b; {name} is a workload")
    with status(f"reading {name}"):
        layers = summary(name, batch)
    if json_path is not None:
        write_json(layers.as_dict(), json_path)
    if json_path != "-":
        layers.table(top)


def _print_area(machine: object) -> None:
    """Square millimetres by component, as comments below the machine file; nothing of a machine that states no area."""
    from trainyard.ir.protocols import HasArea, HasDevice

    device = machine.device if isinstance(machine, HasDevice) and not isinstance(machine, HasArea) else machine
    areas = device.area() if isinstance(device, HasArea) else {}
    if not areas:
        return
    width, total = max(map(len, (*areas, "total"))), sum(areas.values())
    owner = "" if device is machine else " of one device"
    terminal.write_settings(f"\n# area{owner}: from tables of units and SRAM cells, or as its source has it\n")
    for name, m2 in sorted({**areas, "total": total}.items(), key=lambda part: (part[0] == "total", -part[1])):
        terminal.write(f"# {name:<{width}}  {m2 * 1e6:10.4g} mm2  {m2 / total:6.1%}")
