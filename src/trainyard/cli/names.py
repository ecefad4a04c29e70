"""`list` and `show`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.options import Json, writable
from trainyard.errors import UnknownName
from trainyard.files import write_text
from trainyard.report import terminal
from trainyard.report.terminal import say, write_json

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

    shown = built(machine)
    if svg is not None:
        from trainyard.report.nodes import drawing

        write_text(svg, drawing(shown, machine)[0])
        say(f"wrote {svg}")
    if json_path is not None:
        write_json(describe(shown), json_path)
    if json_path != "-":
        print(to_toml(shown, remarks(machine, shown)), end="")
