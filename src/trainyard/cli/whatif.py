"""`whatif`: what the assumptions of a machine are worth."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from trainyard import terminal
from trainyard.cli import given
from trainyard.cli.options import Batch, Json, Machine, MasksAt, Parallel, Zeros
from trainyard.terminal import progress, status


def whatif(
    workload: Annotated[str, typer.Argument(help="A workload, or a paper.", show_default=False)],
    on: Machine = "",
    batch: Batch = None,
    parallel: Parallel = None,
    masks: Zeros = None,
    at: MasksAt = None,
    metric: Annotated[str | None, typer.Option(help="time_s (default), energy_j, samples_per_s, cycles or array_cycles.")] = None,
    json_path: Json = None,
) -> None:
    """Weigh each assumption of a machine.

    Every alternative in its place, one at a time, the most valuable first. A paper alone is weighed by its own measure.
    """
    from trainyard import runs
    from trainyard.papers import ledger

    if workload in ledger.papers() and not on:
        weigh = ledger.worths(workload)
        if weigh is not None and all(option is None for option in (batch, parallel, masks, at, metric)):
            with progress() as step_to:
                said, found = weigh(partial(given.alternatives, step_to, workload))
            terminal.tell_worths(found, workload, said, json_path)
            return
        workload, on, masks = ledger.case(workload, masks)
    metric = metric or "time_s"
    with status(f"reading {workload} for {given.one_machine(on)}"):
        step = given.step_of(workload, batch)
        zeros = given.masks_of(masks, at, step)
    with progress() as step_to:
        step_to(0, 1, f"machines: {on}")
        told = partial(given.alternatives, step_to, on)
        found = runs.whatif(step, on, metric=metric, told=told, parallel=parallel, masks=zeros)
    terminal.tell_worths(found, f"{workload} on {on}", metric, json_path)
