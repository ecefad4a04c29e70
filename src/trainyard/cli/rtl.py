"""`rtl`: hardware descriptions of the simulated mechanisms, as Verilog with vectors for a testbench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.cli.options import Json, writable
from trainyard.errors import BadInput
from trainyard.report import terminal
from trainyard.report.terminal import say, status, write_json

if TYPE_CHECKING:
    from trainyard.rtl.catalogue import Design
    from trainyard.rtl.synthesis.report import Synthesis

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Parameters of a design are options that only the design knows: --lanes 32."""


def rtl(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="DESIGN", help="A design of --list.", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the designs with their parameters.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", callback=writable, help="Verilog file to write: fan.v.")] = None,
    cycles: Annotated[int, typer.Option(min=1, help="Cycles of the vectors for the testbench.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of their inputs.")] = 0,
    gates: Annotated[bool, typer.Option("--gates", help="Synthesise it: area, slowest path, energy (needs yosys).")] = False,
    json_path: Json = None,
) -> None:
    """Write a simulated mechanism as Verilog, or count its gates.

    Parameters are options of the design: trainyard rtl fan --lanes 32 -o fan.v writes fan.v, and beside it fan.vectors and
    fan_testbench.v, which hold the circuit against the simulator cycle by cycle. Without -o and --gates its parameters are shown.
    """
    if listed or name is None:
        if name is not None or context.args:
            raise BadInput("--list shows all designs: leave out the rest")
        _list(json_path)
        return
    if name.startswith("-"):
        raise BadInput(f"the design comes first: trainyard rtl fan {name} ...")
    from trainyard.rtl.catalogue import design_of

    design = design_of(name, parameters_of(context.args))
    if output is not None:
        from trainyard.rtl.testbench import write_design

        with status(f"writing {name}"):
            files = write_design(design, Path(output), cycles=cycles, seed=seed)
        say(f"wrote {', '.join(map(str, files))}: {cycles} cycles")
    if gates:
        _gates(design, json_path)
    elif json_path is not None:
        write_json({"design": design.name, "word": design.word, "parameters": design.parameters}, json_path)
    elif output is None:
        _show(design)


def parameters_of(words: Sequence[str]) -> dict[str, str]:
    """Options that only the design knows.

    >>> parameters_of(["--lanes", "32", "--number=bf16"])
    {'lanes': '32', 'number': 'bf16'}
    """
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise BadInput(f"'{word}' is no parameter of a design: write --NAME VALUE, as in --lanes 32")
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise BadInput(f"{word} needs a value, as in --lanes 32")
            value = rest.pop(0)
        key = key.replace("-", "_")
        if key in given:
            raise BadInput(f"--{key} is given twice")
        given[key] = value
    return given


def _list(json_path: str | None) -> None:
    from trainyard.rtl.catalogue import designs, parameter_rows

    known = designs()
    if json_path is not None:
        write_json({
            name: {"word": design.word, "parameters": {key: {"default": value, "meaning": meaning} for key, value, meaning in
                                                       parameter_rows(design)}}
            for name, design in known.items()
        }, json_path)  # fmt: skip
    if json_path == "-":
        return
    names = {
        name: f"{design.word}; {' '.join(f'--{key} {value}' for key, value, _ in parameter_rows(design) if value != '')}"
        for name, design in known.items()
    }
    terminal.show_names({"designs": names})


def _show(design: Design) -> None:
    from trainyard.rtl.catalogue import parameter_rows

    terminal.write_settings(f"# {design.name}: {design.word}\n")
    for key, _, meaning in parameter_rows(type(design)):
        terminal.write_settings(f"--{key} {design.parameters[key]}  # {meaning}\n")
    say(f"trainyard rtl {design.name} -o {design.name}.v writes its Verilog, --gates counts its gates")


def _gates(design: Design, json_path: str | None) -> None:
    from trainyard.rtl.synthesis.report import synthesise

    with status(f"synthesising {design.name}"):
        counted = synthesise(design)
    if json_path is not None:
        write_json(counted.as_dict(), json_path)
    if json_path != "-":
        for line in lines_of(counted):
            terminal.write_text_lines(line)


def lines_of(counted: Synthesis) -> list[str]:
    """What a terminal shows of a synthesis."""
    cells = ", ".join(f"{many} {kind}" for kind, many in list(counted.cells.items())[:6])
    same = "equal to the simulator" if counted.gates_equal else "NOT equal to the simulator"
    activity = counted.activity
    assert activity is not None
    return [
        f"gates:        {counted.gates:,} and {counted.flip_flops:,} flip-flops ({cells}, ...)",
        f"area:         {counted.area_um2:,.0f} um2 of cells in 0.18 um",
        f"slowest path: {counted.critical_path_ns:.2f} ns; {counted.path[-1]}",
        f"energy:       {activity.total_pj:.2f} pJ a cycle, of which the clock {activity.clock_pj:.2f}; leakage "
        f"{counted.leakage_nw / 1000:.2f} uW",
        f"checked:      {activity.cycles} cycles of the gates are {same}",
    ]
