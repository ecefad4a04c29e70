"""Records as a line in a terminal, a table by family, and the page docs/coverage.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from textwrap import shorten

from coverage_cases.case import FAMILIES
from coverage_cases.differences import REASONS
from coverage_cases.examination import MACHINES, Record

LIBRARIES = ("torch", "transformers", "timm", "torchvision", "diffusers", "torch_geometric", "peft", "accelerate", "lightning")


def line(record: Record) -> str:
    """One case in a terminal."""
    how = "default" if record.default else "real=True" if record.real else "FAILED"
    time = record.seconds.get("default", 0) + record.seconds.get("real", 0)
    remarks = [
        *([f"BROKEN {record.broken}"] if record.broken else []),
        *([shorten(record.default_error, 150, placeholder=" ...")] if record.default_error else []),
        *([f"REAL {shorten(record.real_error, 150, placeholder=' ...')}"] if record.real_error else []),
        *([f"FLOPs {record.flops / record.counted:.4f} of torch's"] if differs(record) and record.counted else []),
        *([f"counter: {record.counter_error}"] if record.counter_error else []),
        *([f"parameters {record.parameters} of {record.model_parameters}"] if parameters_differ(record) else []),
        *([f"changed {' '.join(record.changed)}"] if record.changed else []),
        *(f"{machine}: {error}" for machine, error in record.machines.items() if error),
    ]
    return f"{record.family:13} {record.name:34} {how:10} {time:6.1f} s  {'; '.join(remarks)}"


def captured(record: Record) -> bool:
    return record.default or bool(record.real)


def differs(record: Record) -> bool:
    """Whether FLOPs were counted on both sides and are not equal."""
    return captured(record) and record.counted is not None and record.counted != record.flops


def within_one_percent(record: Record) -> bool:
    return record.counted is not None and abs(record.flops - record.counted) <= 0.01 * record.counted


def parameters_differ(record: Record) -> bool:
    return captured(record) and record.parameters != record.model_parameters


def rows(records: Sequence[Record]) -> Iterable[tuple[str, ...]]:
    """The table by family: a heading, a row for each family, a row for all."""
    yield ("family", "cases", "by default", "only real=True", "not at all", "with real=True", "rebatchable", "FLOPs equal",
           "within 1 %", "parameters equal", "unchanged", "machine runs", "median s")  # fmt: skip
    families = [family for family in FAMILIES if any(record.family == family for record in records)]
    for title, group in [*((family, [r for r in records if r.family == family]) for family in families), ("all", list(records))]:
        taken = [record for record in group if captured(record)]
        counted = [record for record in taken if record.counted is not None]
        runs = [error for record in taken for error in record.machines.values()]
        tried = [record for record in group if record.real is not None]
        seconds = [record.seconds["default"] for record in group if record.default]
        yield (
            title, str(len(group)),
            str(sum(record.default for record in group)),
            str(sum(not record.default and bool(record.real) for record in group)),
            str(len(group) - len(taken)),
            f"{sum(bool(record.real) for record in tried)} of {len(tried)}" if tried else "",
            str(sum(record.rebatchable for record in taken)),
            f"{sum(not differs(record) for record in counted)} of {len(counted)}",
            f"{sum(within_one_percent(record) for record in counted)} of {len(counted)}",
            f"{sum(not parameters_differ(record) for record in taken)} of {len(taken)}",
            f"{sum(not record.changed for record in group)} of {len(group)}",
            f"{sum(not error for error in runs)} of {len(runs)}",
            f"{statistics.median(seconds):.1f}" if seconds else "",
        )  # fmt: skip


def summary(records: Sequence[Record], seconds: float) -> str:
    """The table by family, for a terminal."""
    table = list(rows(records))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join([*lines, f"{len(records)} cases in {seconds / 60:.1f} minutes"])


def page(records: Sequence[Record], seconds: float, runs: int = 1) -> str:
    """The page of the manual, from one run of the harness or from the parts of several."""
    table = list(rows(records))
    every = table[-1]
    parts = [
        "# Which models can be captured\n",
        f"{len(records)} models of other people's libraries, with tiny configurations and random weights, each trained as its own "
        f"documentation trains it. {every[2]} of {every[1]} are captured by default, {every[5]} with `real=True`.\n",
        f"`python benchmarks/coverage.py --page docs/coverage.md` writes this page; here {_took(seconds, runs)} "
        f"({_versions()}). The cases are in `benchmarks/coverage_cases`, one file for each family; the extra `coverage` has the "
        "libraries.\n",
        "## By family\n",
        *_markdown(table),
        "- **by default**: `ty.capture(...)` without further arguments, on shapes; where sizes depend on data the step runs on the "
        f"example, and a note of the Step says so ({sum(_on_example(record) for record in records)} cases); "
        "**only real=True**: not by default, but "
        "with values; **with real=True**: of all cases, also those that are captured by default.",
        "- **rebatchable**: the Step can be given another batch size; the others keep that of the example.",
        "- **FLOPs equal**: two for each multiply-accumulate of the Step, beside `torch.utils.flop_counter.FlopCounterMode` on the "
        "same step run in torch on the CPU, with the attention kernels of a GPU. torch counts the weight gradient of a "
        "grouped convolution as if it had one group "
        f"({sum(record.overcounted > 0 for record in records)} cases have one); here that term is divided by the groups. Grouped "
        "products of experts, which torch does not count, are counted by their shapes.",
        "- **parameters equal**: elements of all parameters of the Step and of the model.",
        "- **unchanged**: parameters, buffers, gradients, attributes and configuration of every module, the optimizer's state, the "
        "inputs, the random states of torch, numpy and Python, `os.environ` and torch's settings are the same after both captures.",
        f"- **machine runs**: `ty.run` on {', '.join(f'`{machine}`' for machine in MACHINES)} (the node with eight times the "
        "batch; a Step that is not rebatchable runs on one of its devices, a Step with exchanges between ranks on the node "
        "alone).\n",
        *_failures(records),
        *_flops(records),
        *_others(records),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _took(seconds: float, runs: int) -> str:
    minutes = f"{seconds / 60:.0f} minutes of two worker processes"
    return f"one run took {minutes}" if runs == 1 else f"it has parts of {runs} runs beside other work, together {minutes}"


def _on_example(record: Record) -> bool:
    return record.default and any("ran on the example inputs" in note for note in record.notes)


def _markdown(table: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:], ""]


def _cell(text: str, width: int = 300) -> str:
    return shorten(text, width, placeholder=" ...").replace("|", "\\|").replace("<", "&lt;")


def _failures(records: Sequence[Record]) -> list[str]:
    failed = [record for record in records if not record.default or record.real is False]
    if not failed:
        return ["## What is not captured\n", "Nothing: every case is captured by default and with `real=True`.\n"]
    table = [("case", "captured", "why not")]
    for record in failed:
        how = "default only" if record.default else "`real=True` only" if record.real else "no"
        table.append((f"{record.family}: {record.name}", how, _cell(record.broken or record.default_error or record.real_error)))
    return ["## What is not captured\n", *_markdown(table)]


def _flops(records: Sequence[Record]) -> list[str]:
    different = [record for record in records if differs(record)]
    uncounted = [record for record in records if captured(record) and record.counted is None]
    parts = ["## FLOPs that differ from torch's counter\n"]
    table = [("case", "captured", "torch's counter", "ratio", "why")]
    for record in different:
        ratio = f"{record.flops / record.counted:.4f}" if record.counted else ""
        why = REASONS.get((record.family, record.name), "not explained")
        table.append((f"{record.family}: {record.name}", f"{record.flops:.4g}", f"{record.counted:.4g}", ratio, why))
    parts += _markdown(table) if different else ["None.\n"]
    if uncounted:
        names = ", ".join(f"{record.name} ({_cell(record.counter_error, 120)})" for record in uncounted)
        parts.append(f"Not counted by torch: {names}.\n")
    return parts


def _others(records: Sequence[Record]) -> list[str]:
    """Parameters, changes and machines that are not as they should be; nothing where all are."""
    table = [("case", "what", "")]
    for record in records:
        name = f"{record.family}: {record.name}"
        if parameters_differ(record):
            table.append((name, "parameters", f"{record.parameters} of {record.model_parameters}"))
        if record.changed:
            table.append((name, "changed", _cell(", ".join(record.changed))))
        table += [(name, machine, _cell(error)) for machine, error in record.machines.items() if error]
    return ["## Other findings\n", *_markdown(table)] if len(table) > 1 else []


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in LIBRARIES)
