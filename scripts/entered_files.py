"""Prints how much of trainyard five typical runs touch: the files they enter and the modules they load.

    python scripts/entered_files.py             # the table
    python scripts/entered_files.py -v          # and the files and modules by name
    python scripts/entered_files.py npu direct  # these runs alone

Each run has a process of its own, like a user's. `loaded` counts the trainyard modules that it imports. `entered` counts the files
of which a function is called; what runs while a module is imported (tables, presets) and compiled loops (kernels/) do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

LIMITS = {"npu": (32, 118), "h200": (33, 110)}
"""The most files entered and modules loaded, where a limit is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalRun:
    """The arguments of `trainyard.run`."""

    workload: str
    on: str
    masks: str | None = None


# fmt: off
RUNS = {
    "npu":        TypicalRun(workload="resnet50", on="npu"),
    "tensordash": TypicalRun(workload="resnet50", on="tensordash", masks="sparsity(A=0.6,G=0.5)"),
    "mcdla-b":    TypicalRun(workload="resnet50", on="mcdla-b"),
    "direct":     TypicalRun(workload="linear",   on="direct"),
    "h200":       TypicalRun(workload="resnet50", on="h200"),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The files of trainyard that a run enters, relative to the package, and the modules that it loads."""

    entered: tuple[str, ...]
    loaded: tuple[str, ...]


@contextmanager
def called_functions(codes: set[CodeType]) -> Iterator[None]:
    """Adds the code of every Python function that is called inside, but not by an import, to `codes`."""

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code not in codes and frame.f_code.co_flags & CO_OPTIMIZED and not importing(frame):
            codes.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def importing(frame: FrameType | None) -> bool:
    """Whether the body of a module runs below this frame."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def footprint_here(run: TypicalRun) -> Footprint:
    """The footprint of a run in this process, which must not have imported trainyard before."""
    import trainyard as ty

    codes: set[CodeType] = set()
    with called_functions(codes):
        ty.run(run.workload, on=run.on, masks=run.masks)
    package = Path(ty.__file__).parent
    paths = {Path(code.co_filename) for code in codes}
    entered = sorted(str(path.relative_to(package)) for path in paths if path.is_relative_to(package))
    return Footprint(
        entered=tuple(name for name in entered if not name.startswith("kernels/")),
        loaded=tuple(sorted(name for name in sys.modules if name.partition(".")[0] == "trainyard")),
    )


def footprint(name: str) -> Footprint:
    """The footprint of one of RUNS, in a process of its own."""
    command = [sys.executable, __file__, "--here", name]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Footprint(**{key: tuple(value) for key, value in json.loads(output).items()})


def show(names: Iterable[str], *, verbose: bool) -> None:
    print(f"{'run':<12} {'entered':>8} {'limit':>6} {'loaded':>8} {'limit':>6}")
    for name in names:
        result = footprint(name)
        files, modules = LIMITS.get(name, ("", ""))
        print(f"{name:<12} {len(result.entered):>8} {files:>6} {len(result.loaded):>8} {modules:>6}")
        if verbose:
            for title, lines in (("entered", result.entered), ("loaded", result.loaded)):
                print(f"  {title}:", *lines, sep="\n    ")


def main() -> None:
    parser = argparse.ArgumentParser(description="The files of trainyard that typical runs enter, and the modules that they load.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"which runs (default: all): {', '.join(RUNS)}")
    parser.add_argument("-v", "--verbose", action="store_true", help="the files and modules by name")
    parser.add_argument("--here", choices=RUNS, help="one run in this process, as JSON")
    options = parser.parse_args()
    if options.here:
        result = footprint_here(RUNS[options.here])
        print(json.dumps({"entered": result.entered, "loaded": result.loaded}))
        return
    unknown = [name for name in options.runs if name not in RUNS]
    if unknown:
        parser.error(f"no run {unknown[0]!r}: choose from {', '.join(RUNS)}")
    show(options.runs or RUNS, verbose=options.verbose)


if __name__ == "__main__":
    main()
