"""Yosys and abc: a design's RTLIL becomes a netlist of the library's cells, kept on disk by the content that it was made of.

The library is found at `$TRAINYARD_LIBERTY`, or where Debian's qflow-tech-osu018 puts it: the 0.18 um library of Oklahoma State
University. Two of its cells have a wrong area in the liberty file (OAI21X1 23 and NAND3X1 36 square microns; both layouts have 32),
so areas are read from the LEF file that lies beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput
from trainyard.files import cache_folder, write_bytes
from trainyard.rtl.synthesis.hierarchy import merge_equal_modules
from trainyard.rtl.synthesis.liberty import Library, file_text, read_library
from trainyard.rtl.verilator import MissingTool

LIBERTY = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
INSTALL = "apt-get install --no-install-recommends yosys qflow-tech-osu018"
SECONDS = 1800
PERIOD_PS = 10_000
"""The clock that the mapper sizes gates for: 100 MHz, an easy one in 0.18 um, the same for every design."""
DRIVER, LOAD_FF = "BUFX2", 10.0
"""What drives the inputs of a module, and the load at its outputs (about a flip-flop's input), while abc sizes gates."""
LEAST_BITS = 250
"""A repeated module of at least so many operator bits is synthesised once (a floating-point adder is, a mux is not)."""
STEADY_SCRIPT = f"""strash
ifraig
scorr
balance
rewrite
refactor
balance
rewrite
rewrite -z
balance
refactor -z
rewrite -z
balance
dc2
strash
dch -f
map -B 0.9 -D {PERIOD_PS}
buffer
upsize -D {PERIOD_PS}
dnsize -D {PERIOD_PS}
stime -p
"""
"""For arithmetic units: three ways to prepare an FP32 adder give areas within 3 % of each other, where Yosys's own script varies by
a tenth when an unused wire is removed."""
SCRIPT = """
read_rtlil design.il
{keep}
synth -top top -flatten -noshare
dfflibmap -liberty cells.lib
abc -liberty cells.lib -constr abc.constr -D {period}{script}
opt_clean -purge
check -mapped
write_json mapped.json
"""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The modules of the netlist as Yosys writes them (JSON), and the delay that abc printed for each, in ns."""

    modules: dict[str, Any]
    abc_delay_ns: dict[str, float]


def liberty_path() -> Path:
    """The library's file; one line where it is missing."""
    path = Path(os.environ.get("TRAINYARD_LIBERTY") or LIBERTY)
    if not path.is_file():
        raise MissingTool(
            f"synthesis needs a standard-cell library, {path} is none: {INSTALL}, or set TRAINYARD_LIBERTY to a .lib file"
        )
    return path


@cache
def library() -> Library:
    """The library, areas of its layouts."""
    with tempfile.TemporaryDirectory(prefix="trainyard-liberty-") as folder:
        corrected = Path(folder) / "cells.lib"
        corrected.write_text(_corrected(liberty_path()))
        return read_library(corrected)


def yosys_program() -> str:
    program = shutil.which("yosys")
    if program is None:
        raise MissingTool(f"synthesis needs yosys: {INSTALL}")
    return program


@cache
def versions() -> dict[str, str]:
    """Of the tools, and which library."""
    text = subprocess.run([yosys_program(), "-V"], capture_output=True, text=True, check=True).stdout
    return {"yosys": text.split("(")[0].removeprefix("Yosys").strip(), "library": library().name}


def map_design(
    rtlil: str, *, keep: tuple[str, ...] = (), black_boxes: str = "", steady: bool = False, cached: bool = True
) -> Mapped:
    """The netlist of a design's RTLIL (top module `top`).

    Repeated large modules, and those whose names begin with one of `keep`, stay modules of their own. `black_boxes` is RTLIL of
    modules that have ports alone: they stay out of the netlist, for the caller to put in. `steady` takes the mapper whose result
    depends least on names (`STEADY_SCRIPT`), for units that many designs share.
    """
    hierarchy = merge_equal_modules(rtlil)
    kept = [*hierarchy.repeated(LEAST_BITS), *(name for name in hierarchy.bits if name.startswith(keep) and name != "top")]
    marks = f"setattr -mod -set keep_hierarchy 1 {' '.join(sorted(set(kept)))}" if kept else ""
    script = SCRIPT.format(keep=marks, period=PERIOD_PS, script=" -script steady.abc" if steady else "")
    cells = _corrected(liberty_path())
    constraints = f"set_driving_cell {DRIVER}\nset_load {LOAD_FF}\n"
    text = f"{hierarchy.text}\n{black_boxes}"
    parts = (text, script, cells, constraints, versions()["yosys"], *([STEADY_SCRIPT] if steady else []))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    stored = cache_folder() / "synthesis" / f"{key[:32]}.json.gz"
    if cached:
        with suppress(OSError, ValueError, KeyError):
            content = json.loads(gzip.decompress(stored.read_bytes()))
            return Mapped(content["modules"], content["abc_delay_ns"])
    with tempfile.TemporaryDirectory(prefix="trainyard-yosys-") as folder:
        files = {"design.il": text, "run.ys": script, "cells.lib": cells, "abc.constr": constraints, "steady.abc": STEADY_SCRIPT}
        for name, text in files.items():
            Path(folder, name).write_text(text)
        log = _run(Path(folder))
        mapped = Mapped(_compact(json.loads(Path(folder, "mapped.json").read_text())["modules"]), _delays(log))
    with suppress(OSError, BadInput):
        stored.parent.mkdir(parents=True, exist_ok=True)
        content = {"modules": mapped.modules, "abc_delay_ns": mapped.abc_delay_ns}
        write_bytes(stored, gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 1, mtime=0))
    return mapped


def _run(folder: Path) -> str:
    command = [yosys_program(), "-s", "run.ys"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"synthesis took longer than {SECONDS} s: give the design smaller parameters") from None
    if done.returncode:
        error = next(
            (line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")), "it ended without a word"
        )
        raise BadInput(f"yosys refused the design: {error}")
    return done.stdout


def _delays(log: str) -> dict[str, float]:
    """What abc's `stime` printed for each module."""
    delays: dict[str, float] = {}
    module = ""
    for line in log.splitlines():
        if match := re.match(r".*Extracting gate netlist of module `\\?(\S+?)' to", line):
            module = match[1]
        elif match := re.match(r"ABC: WireLoad.*Delay =\s*([\d.]+) ps", line):
            delays[module] = float(match[1]) / 1000
    return delays


def _compact(modules: dict[str, Any]) -> dict[str, Any]:
    """Ports, cells and initial values alone."""
    return {
        name: {
            "ports": {port: [each["direction"], each["bits"]] for port, each in module["ports"].items()},
            "cells": [[cell["type"], cell["connections"]] for cell in module["cells"].values()],
            "names": list(module["cells"]),
            "init": [
                [net["bits"], net["attributes"]["init"]] for net in module["netnames"].values() if "init" in net["attributes"]
            ],
        }
        for name, module in modules.items()
        if "blackbox" not in module["attributes"]
    }


@cache
def _corrected(path: Path) -> str:
    """The liberty file with the areas of the LEF file beside it, if there is one."""
    text = file_text(path)
    layout = path.with_suffix(".lef")
    if not layout.is_file():
        return text
    sizes: dict[str, float] = {}
    for macro in re.findall(r"^MACRO\s+(\w+)(.*?)^END \1", file_text(layout), re.DOTALL | re.MULTILINE):
        if size := re.search(r"SIZE\s+([\d.]+)\s+BY\s+([\d.]+)", macro[1]):
            sizes[macro[0]] = float(size[1]) * float(size[2])
    pattern = re.compile(r"(cell\s*\((\w+)\)\s*\{.*?\barea\s*:\s*)([\d.]+)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{sizes.get(match[2], float(match[3])):g}", text)
