"""All measurements in one file: `papers/from_gates.json`, which the ledger's column "from gates" is computed from.

It is written by `make rtl` alone. Each entry is what `case.measure` found; the head has the tools, the library and what the figures
leave out, so that a reader of the file knows what was counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import trainyard.papers
from trainyard.errors import UnknownName
from trainyard.files import write_text
from trainyard.progress import ProgressCallback, no_progress
from trainyard.rtl.measurements.case import Case, measure
from trainyard.rtl.synthesis.yosys import PERIOD_PS, liberty_path, library, versions, yosys_program

PATH = Path(trainyard.papers.__file__).with_name("from_gates.json")
PAPERS = ("sigma", "tensordash", "direct")
LEFT_OUT = "wires, the clock's tree, glitches, SRAM"


def cases() -> dict[str, Case]:
    """All measurements, by key."""
    return {case.key: case for paper in PAPERS for case in import_module(f"trainyard.rtl.measurements.{paper}").CASES}


def measured(
    keys: Iterable[str] | None = None, on_progress: ProgressCallback = no_progress, workers: int = 2
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measurements of these cases (all by default) as they are done, largest first on `workers` processes."""
    yosys_program(), liberty_path()  # missing tools are said before anything is run
    known = cases()
    chosen = list(known if keys is None else keys)
    for key in chosen:
        if key not in known:
            raise UnknownName("measurement", key, known)
    with ProcessPoolExecutor(min(workers, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_measure, key): key for key in sorted(chosen, key=_size, reverse=True)}
        for count, done in enumerate(as_completed(running), 1):
            yield running[done], done.result()
            on_progress(count, len(chosen), running[done])


def _measure(key: str) -> dict[str, Any]:
    return measure(cases()[key])


def _size(key: str) -> int:
    """Larger designs take longer; a guess by the numbers in their names."""
    return max((int(word) for word in key.replace("x", "/").split("/") if word.isdigit()), default=60)


def head() -> dict[str, Any]:
    """What everything was measured with."""
    return {
        "tools": versions(),
        "library": {"name": library().name, "node_nm": 180, "supply_v": library().supply_v, "corner": "typical"},
        "mapped_for_ns": PERIOD_PS / 1000,
        "left_out": LEFT_OUT,
    }


def write(measurements: dict[str, Any], path: Path = PATH) -> None:
    """Replaces the measurements of the same keys, keeps the others, and drops those that no case has."""
    content = _content(path)
    merged = {**content.get("measurements", {}), **measurements}
    content |= {**head(), "measurements": {key: merged[key] for key in cases() if key in merged}}
    _write(content, path)


def write_section(name: str, found: Any, path: Path = PATH, *, keep: bool = False) -> None:
    """Replaces what `equality` or `formal` has found; with `keep`, entries of other names stay."""
    content = _content(path)
    content[name] = {**content.get(name, {}), **found} if keep else found
    _write(content, path)


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _write(content: dict[str, Any], path: Path) -> None:
    order = (*head(), "equality", "formal", "measurements")
    write_text(path, json.dumps({name: content[name] for name in order if name in content}, indent=1) + "\n")
