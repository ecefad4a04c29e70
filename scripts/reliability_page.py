"""Puts the measured figures and the limits of the readers into docs/reliability.md, from `benchmarks/data` and `trainyard.reading`.

python scripts/reliability_page.py            # writes the page anew
python scripts/reliability_page.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainyard.reading import LIMITS, VARIABLE
from trainyard.units import show

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
DATA = ROOT / "benchmarks" / "data"
SECTION = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MACHINES, CORES = 100, 32
"""The hundred machines on paper."""


def data(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def mb(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def cluster() -> str:
    found = data("distributed")
    one, node, head = (found[name] for name in ("one_process", "node_killed", "head_killed"))
    killed, joined = (event["done"] for event in node["events"])
    joins = f"one killed after {killed} points, one joined after {joined}"
    lost = f"{head['safe_after_the_kill']} points were safe; Ray ended the driver after {head['driver_ended_after_s']:.0f} s"
    rest_s = f"{head['second_seconds']:.0f} for the rest"
    rows = [
        ("one process, no cluster", one["points"], one["failed"], f"{one['seconds']:.0f}", ""),
        ("three nodes", node["points"], node["failed"], f"{node['seconds']:.0f}", joins),
        ("two nodes, the head killed", head["points"], 0, rest_s, lost),
    ]
    same = "All three stores have the same bytes" if found["identical"] else "The stores differ"
    return f"{table(('run', 'points', 'failed', 'seconds', 'what happened'), rows)}\n\n{same} (`{one['digest'][:16]}`)."


def million() -> str:
    found = data("distributed")["million"]
    whole, points = found["whole_store"], found["planned_points"]
    sizes = f"{found['segment_bytes_per_point']:.0f} B, {found['store_bytes_per_point']:.0f} B"
    rows = [
        ("planned: points with their keys", f"{points:,}"),
        ("planned a second", f"{found['planned_per_s']:,}"),
        ("memory of the plan, a point", f"{found['planned_bytes_per_point']} B"),
        ("run, of these", f"{found['run_points']:,}"),
        ("run a second and core", f"{found['run_per_s_and_core']:,}"),
        ("written to segments a second", f"{found['appended_per_s']:,}"),
        ("on disk, a point: segments, compacted", sizes),
        (f"a store of {whole['opened']['records']:,} records is written in", f"{whole['write_seconds']:.0f} s"),
        ("its size", mb(whole["bytes_on_disk"])),
        ("opened and read whole by a new process in", f"{whole['opened']['seconds']:.0f} s"),
        ("memory while it is read, a point", f"{whole['opened']['bytes_per_point']:,} B"),
    ]
    return f"{table(('figure', 'value (CPU seconds)'), rows)}\n\n{_on_paper(found)}"


def _on_paper(found: dict[str, Any]) -> str:
    """What the measured rates come to on a hundred machines."""
    points, whole, workers = found["planned_points"], found["whole_store"], MACHINES * CORES
    plan_s, run_s = points / found["planned_per_s"], points / found["run_per_s_and_core"]
    alone_s = plan_s + whole["write_seconds"]
    return (
        f"**On paper, a hundred machines of {CORES} cores.** At these rates the points take {run_s:,.0f} core-seconds: "
        f"{run_s / workers:.2g} s on {workers:,} cores. The driver does the rest alone: {plan_s:,.0f} s for the keys, "
        f"{whole['write_seconds']:.0f} s to write what comes back and the whole store at the end. "
        f"Points as cheap as these (one linear layer) gain nothing from more than about {max(1, round(run_s / alone_s))} cores: "
        f"planning is what would have to be spread. Points of a second each keep all {workers:,} cores busy for "
        f"{points / workers / 60:.1f} minutes, beside {alone_s / 60:.1f} minutes of the driver's. Not measured: the network, and a "
        f"driver that serves {workers:,} workers ({workers * 4:,} chunks a second, if a chunk is a quarter of a second)."
    )


def soak() -> str:
    found = data("soak")
    statuses = ", ".join(f"{number:,} x {status}" for status, number in found["statuses"].items())
    last = found["samples"][-1]
    rows = [
        ("time", f"{found['seconds']:,.0f} s"),
        ("requests", f"{found['requests']:,} ({statuses})"),
        ("memory of the server at the end", mb(last["server_bytes"])),
        ("its growth in the second half", f"{found['server_growth_bytes'] / 1e6:.2f} MB"),
        ("growth of its workers in the second half", f"{found['worker_growth_bytes'] / 1e6:.2f} MB"),
        ("open files, processes, temporary files at the end", f"{last['handles']}, {last['processes']}, {last['temporary_files']}"),
        ("processes and files left after its end", f"{found['left_processes']}, {len(found['left_files'])}"),
        ("problems", "; ".join(found["problems"]) or "none"),
    ]
    return table(("figure", "value"), rows)


def cold() -> str:
    rows = [
        (row["processes"], {"with": "yes", "without": "no"}[row["lock"]], row["cpu_s"], ", ".join(map(str, row["loops_compiled"])))
        for row in data("cold_cache")["rows"]
    ]
    return table(("processes", "lock", "CPU seconds of all together", "loops compiled by each"), rows)


def readers() -> str:
    rows = [
        (f"`{name}`", show(bound.default, bound.unit) if bound.unit else f"{bound.default:,}", bound.meaning)
        for name, bound in LIMITS.items()
    ]
    return (
        f'{table(("limit", "default", "of what"), rows)}\n\n`{VARIABLE}` raises one: `{VARIABLE}="step_bytes=1 GiB, values=5e7"`.'
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "cluster": cluster,
    "million": million,
    "soak": soak,
    "cold": cold,
    "readers": readers,
}


def renewed(text: str) -> str:
    return SECTION.sub(lambda match: f"{match[1]}{SECTIONS[match['name']]()}\n{match[3]}", text)


def main(arguments: list[str]) -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = renewed(old)
    if "--check" in arguments:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
