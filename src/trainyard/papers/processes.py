"""Processes for runs that do not depend on each other: one pool for all experiments of a program."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

MOST_WORKERS = 8


@cache
def workers() -> ProcessPoolExecutor | None:
    """New processes, not copies of this one, which may have threads. None where there is one core, or a script without a guard."""
    cores = os.cpu_count() or 1
    if cores == 1 or not guarded(getattr(sys.modules["__main__"], "__file__", None)):
        return None
    return ProcessPoolExecutor(min(cores, MOST_WORKERS), mp_context=get_context("spawn"))


def guarded(program: str | None) -> bool:
    """Whether a new process can import the program that runs without running it; a shell has none."""
    if program is None:
        return True
    try:
        return "__name__" in Path(program).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
