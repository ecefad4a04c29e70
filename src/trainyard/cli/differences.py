"""`diff`: what changed between two results."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.options import Json, Top
from trainyard.errors import BadInput
from trainyard.report.terminal import write_json

File = Annotated[str, typer.Argument(help="Result that `run --json FILE` has written.", show_default=False)]


def diff(
    before: File,
    after: Annotated[
        str | None,
        typer.Argument(help="Result to hold against it; not needed where the first file has two (`compare`).", show_default=False),
    ] = None,
    top: Top = 20,
    json_path: Json = None,
) -> None:
    """Say what changed between two results.

    Numbers of the step, then phases and layers with the largest change of time first, then the fields of the machine that differ.
    """
    from trainyard.report.summaries.differences import difference_of, read_results

    results = [result for path in (before, after) if path is not None for result in read_results(path)]
    if len(results) != 2:
        count = "one result" if len(results) == 1 else f"{len(results)} results"
        raise BadInput(f"diff takes two results, {' and '.join(path for path in (before, after) if path)} have {count}")
    changed = difference_of(*results)
    if json_path is not None:
        write_json(changed.as_dict(), json_path)
    if json_path != "-":
        changed.table(top)
