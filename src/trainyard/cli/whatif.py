"""`whatif`: what the assumptions and parameters of a machine are worth."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from trainyard.cli import request
from trainyard.cli.options import Batch, Html, Json, Machine, MasksAt, Parallel, Settings, Top, World, Zeros
from trainyard.errors import UnknownName
from trainyard.progress import with_message
from trainyard.report.terminal import progress, say, sensitivity_as_dict, show_sensitivity, status, write_json

if TYPE_CHECKING:
    from trainyard.sensitivity import Kind, SensitivityResult, SensitivityStudy


def whatif(
    workload: Annotated[str, typer.Argument(help="A workload, or a paper.", show_default=False)],
    on: Machine = "",
    batch: Batch = None,
    world: World = None,
    parallel: Parallel = None,
    masks: Zeros = None,
    at: MasksAt = None,
    settings: Settings = None,
    metric: Annotated[
        str | None,
        typer.Option(help="time_s (default), energy_j, power_w, energy_delay_js, area_m2, cycles, traffic_bytes.dram ..."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Weigh assumptions only, or parameters only: both by default.")] = None,
    factor: Annotated[float, typer.Option(help="Parameters are divided and multiplied by this.")] = 2.0,
    pairs: Annotated[int, typer.Option(min=0, help="Also all pairs of this many of the most valuable; 0 for none.")] = 6,
    json_path: Json = None,
    html: Html = None,
    top: Top = 25,
) -> None:
    """Weigh each assumption and parameter.

    Every alternative in its place, every number halved and doubled, one at a time and in pairs, the most valuable first.
    A paper's name alone weighs what its own experiments assume, by the paper's own measure.
    """
    from trainyard import sensitivity
    from trainyard.papers import bench, ledger

    kinds = _kinds(only)
    own = (batch, world, parallel, masks, at, metric, settings)
    study: SensitivityStudy | None = None
    if workload in ledger.papers() and not on:
        if all(option is None for option in own):
            study = bench.sensitivity_study(workload, kinds)
        if study is None:
            workload, on, masks = bench.case(workload, masks)
    name = workload if study is not None else request.one_machine(on)
    if study is None:
        with status(f"reading {os.path.basename(workload)}"):
            step = request.step_of(workload, batch, world)
            zeros = request.masks_of(masks, at, step)
    with progress() as on_progress:
        if study is None:
            on_progress(0, 1, on)
            options = {"parallel": parallel, "masks": zeros, **request.overrides_of(settings)}
            study = sensitivity.machine_study(step, on, metric=metric or "time_s", kinds=kinds, factor=factor, **options)
        result = sensitivity.run_study(study, with_message(on_progress, f"alternatives of {name}"), paired=pairs)
    _write_outputs(result, json_path, html, top)


def _kinds(only: str | None) -> tuple[Kind, ...]:
    from trainyard.sensitivity import Kind

    kinds: tuple[Kind, ...] = get_args(Kind)
    if only is None:
        return kinds
    chosen = tuple(kind for kind in kinds if only in (kind, f"{kind}s"))
    if not chosen:
        raise UnknownName("value of --only", only, [f"{kind}s" for kind in kinds])
    return chosen


def _write_outputs(result: SensitivityResult, json_path: str | None, html: str | None, top: int) -> None:
    if html is not None:
        result.to_html(html)
        say(f"wrote {html}")
    if json_path is not None:
        write_json(sensitivity_as_dict(result), json_path)
    if json_path != "-":
        show_sensitivity(result, top)
