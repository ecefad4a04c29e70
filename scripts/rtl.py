"""`make rtl`: the tools, equality of all designs with the simulator, formal checks, and the measurements in gates.

python scripts/rtl.py tools                 # installs what is missing as root, or says what to install
python scripts/rtl.py equality [NAME ...]   # every design (or these) on at least 10,000 cycles, by Verilator
python scripts/rtl.py formal                # properties by a SAT solver
python scripts/rtl.py gates [KEY ...]       # synthesis, written to src/trainyard/papers/from_gates.json
python scripts/rtl.py all
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from trainyard.errors import TrainyardError

CYCLES = 10_000
WORKERS = 2
PROGRAMS = {"yosys": "yosys", "verilator": "verilator", "g++": "g++", "make": "make"}  # program: Debian's package


def tools() -> None:
    """What is missing is installed where this may be done, else named in one line."""
    from trainyard.rtl.synthesis.yosys import LIBERTY

    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not LIBERTY.is_file() and not os.environ.get("TRAINYARD_LIBERTY"):
        packages.append("qflow-tech-osu018")
    if not packages:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() or shutil.which("apt-get") is None:
        raise SystemExit(f"make rtl needs {', '.join(packages)}: sudo {' '.join(command)}")
    print(f"installing {', '.join(packages)}", flush=True)
    for refresh in (False, True):  # lists of packages may be missing or old
        if refresh:
            subprocess.run(["apt-get", "update"], stdout=subprocess.DEVNULL, check=False)
        if not subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            return
    raise SystemExit(f"apt-get could not install {', '.join(packages)}: its message stands above")


def equality(names: list[str]) -> None:
    """Every design with its default parameters; the first difference ends it."""
    from trainyard.rtl.catalogue import designs
    from trainyard.rtl.measurements import table

    known, found = list(designs()), {}
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_equal, name) for name in names or known]):
            name, values, difference, seconds = done.result()
            if difference:
                raise SystemExit(f"{name} differs from the simulator: {difference}")
            found[name] = {"cycles": CYCLES, "values": values}
            print(f"  {name:<24} {CYCLES:,} cycles, {values:,} values equal ({seconds:.0f} s)", flush=True)
    table.write_section("equality", {name: found[name] for name in known if name in found}, keep=bool(names))


def _equal(name: str) -> tuple[str, int, str, float]:
    from trainyard.rtl.catalogue import design_of
    from trainyard.rtl.equality import check_equality
    from trainyard.rtl.verilator import compiled_outputs

    began = time.monotonic()
    comparison = check_equality(design_of(name), CYCLES, seed=2, runner=compiled_outputs)
    return name, comparison.values, str(comparison.difference or ""), time.monotonic() - began


def formal() -> None:
    """Every property that the room has; a counterexample ends it."""
    from trainyard.rtl.formal.properties import properties
    from trainyard.rtl.measurements import table

    found = []
    for checked in properties():
        began = time.monotonic()
        verdict = checked.check()
        if not verdict.holds:
            raise SystemExit(f"{checked.design} ({checked.sizes}): not so, {checked.says}\n{verdict.counterexample}")
        reach = "all inputs" if checked.cycles is None else f"{checked.cycles} cycles"
        found.append({"design": checked.design, "says": checked.says, "sizes": checked.sizes, "reach": reach})
        print(f"  {checked.design} ({checked.sizes}, {reach}): {checked.says} ({time.monotonic() - began:.0f} s)", flush=True)
    table.write_section("formal", found)


def gates(keys: list[str]) -> None:
    """Measures and writes the file."""
    from trainyard.rtl.measurements import table

    began = time.monotonic()

    def show(done: int, total: int, message: str = "", /) -> None:
        print(f"  {done}/{total} {message} ({time.monotonic() - began:.0f} s)", flush=True)

    for key, found in table.measured(keys or None, show, WORKERS):
        table.write({key: found})
    print(f"wrote {table.PATH.name}")


def main(words: list[str]) -> int:
    what, *rest = words or ["all"]
    steps = {"tools": tools, "equality": lambda: equality(rest), "formal": formal, "gates": lambda: gates(rest)}
    if what != "all" and what not in steps:
        raise SystemExit(f"what is '{what}'? one of {', '.join(steps)}, all")
    try:
        for name, step in steps.items():
            if what in ("all", name):
                print(f"{name}:", flush=True)
                step()
    except TrainyardError as error:
        raise SystemExit(f"rtl: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
