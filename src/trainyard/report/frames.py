"""Rows as data: a pandas frame, Parquet, CSV. One line per row of the result, units in the column names, numbers of one step."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.errors import MissingExtra
from trainyard.files import whole_file
from trainyard.results.metrics import BASE, DERIVED, metrics_of
from trainyard.results.result import AXES, PICOSECOND, Result

if TYPE_CHECKING:
    import pandas as pd


def columns(result: Result) -> dict[str, Any]:
    """Name -> values: op, layer, phase, resource, kind, bound, time_s, busy_s, energy_j, macs, and `<level>_<direction>_bytes`."""
    table: dict[str, Any] = {axis: list(result.rows.axis(axis)) for axis in ("op", *(axis for axis in AXES if axis != "op"))}
    numbers = result.columns
    table["time_s"] = numbers.time_ps * PICOSECOND / result.steps
    table["busy_s"] = numbers.busy_ps * PICOSECOND / result.steps
    table["energy_j"] = sum(numbers.energy.values(), np.zeros(len(result.rows))) / result.steps
    table["macs"] = _per_step(numbers.macs, result.steps)
    traffic: dict[str, Any] = {}
    for (level, _, direction), count in numbers.traffic.items():
        name = f"{level}_{direction}_bytes"
        traffic[name] = traffic.get(name, 0) + count
    table.update({name: _per_step(traffic[name], result.steps) for name in sorted(traffic)})
    return table


def _per_step(counts: Any, steps: int) -> Any:
    """Whole where one step was simulated; a mean of several need not be."""
    return counts if steps == 1 else counts / steps


def frame(result: Result) -> pd.DataFrame:
    return pandas_module().DataFrame(columns(result))


def pandas_module() -> Any:
    """pandas, or an error that says what brings it."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("pandas", "report", "a data frame") from None
    return pd


def comparison(results: Sequence[Result]) -> pd.DataFrame:
    """One line for each result, with every number of it that stands alone; what a machine does not state is missing."""
    pandas = pandas_module()
    about = ({"workload": result.workload, "machine": result.machine, "batch": result.batch} for result in results)
    numbers = (metrics_of(result, (*BASE, *DERIVED)) for result in results)
    return pandas.DataFrame([{**who, **metrics} for who, metrics in zip(about, numbers, strict=True)])


def write_parquet(result: Result, path: str | os.PathLike[str]) -> None:
    """One Parquet file; workload, machine, version and config hash stand in its schema's metadata."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("pyarrow", "report", "a Parquet file") from None
    about = {
        "workload": result.workload,
        "machine": result.machine,
        "batch": str(result.batch),
        "trainyard": result.version,
        "config_hash": result.config_hash,
    }
    table = pa.table(columns(result)).replace_schema_metadata(about)
    with whole_file(path) as part:
        pq.write_table(table, part)


def write_csv(result: Result, path: str | os.PathLike[str]) -> None:
    table = columns(result)
    values = [column if isinstance(column, list) else column.tolist() for column in table.values()]
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*values, strict=True))
