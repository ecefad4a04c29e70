"""`warm-up`: compile all loops now."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainyard.report.terminal import progress, say


def warm_up(
    processes: Annotated[
        int | None, typer.Option(min=1, help="Compile on so many processes; by default one for each core, at most 4.")
    ] = None,
) -> None:
    """Compile the loops of all machines now.

    They are compiled once on a computer and cached on disk; without this command, when a run first needs them. `make demo` and
    `make install` call it.
    """
    from trainyard import warm_up as warming

    with progress("compiling", at_once=True) as on_progress:
        done = warming.warm_up(on_progress, processes or min(4, os.cpu_count() or 1))
    say(f"{len(done.compiled)} loops compiled, the others were in the cache" if done.compiled else "all loops were in the cache")
