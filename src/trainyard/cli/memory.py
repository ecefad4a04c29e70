"""`memory`: the least memory of a step on a device, and what each budget costs in time."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from trainyard.cli import request
from trainyard.cli.options import Batch, Json, Machine, World
from trainyard.errors import BadInput
from trainyard.report.terminal import status, write_json, write_text_lines


def memory(
    workload: Annotated[str, typer.Argument(help="Zoo model, .json, .onnx or file.py:function.", show_default=False)],
    on: Machine,
    batch: Batch = None,
    world: World = None,
    budget: Annotated[str | None, typer.Option(help="Device memory, such as '24 GB': the fastest way within it alone.")] = None,
    unit: Annotated[str, typer.Option(help="What is decided about: blocks (kept or checkpointed), or tensors.")] = "blocks",
    link: Annotated[str | None, typer.Option(help="Bandwidth to a second memory, for tensors: '55 GB/s'.")] = None,
    json_path: Json = None,
) -> None:
    """Say how little memory a step can do with.

    From the least device memory to the least time: repeated blocks are kept or checkpointed, or single tensors are kept, sent over
    a link and fetched back, or recomputed.
    """
    from trainyard.memory_plans import LINK, plan_memory

    for option, quantity, unit_shown in (("--budget", budget, "GB"), ("--link", link, "GB/s")):
        if quantity is not None and quantity.strip().replace(".", "", 1).isdigit():
            raise BadInput(f"{option} {quantity} has no unit: write {option} '{quantity.strip()} {unit_shown}'")
    with status(f"planning {os.path.basename(workload)} for {on}"):
        step = request.step_of(workload, batch, world)
        plan = plan_memory(step, request.one_machine(on), budget=budget, unit=unit, link=link or LINK)  # type: ignore[arg-type]
    if json_path is not None:
        write_json(asdict(plan), json_path)
    if json_path != "-":
        write_text_lines(str(plan))
