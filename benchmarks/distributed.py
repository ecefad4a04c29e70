"""Sweeps on a Ray cluster of several nodes on this computer, whose nodes and head are killed; and a study of a million points.

    python benchmarks/distributed.py --points 10000 --million 1000000 --json benchmarks/data/distributed.json

Nodes are separate raylets with object stores of their own, as on several computers; only the network between them is missing.

| part | what |
|---|---|
| `one_process` | the study without a cluster: the bytes that all others must give |
| `node_killed` | three nodes, one of them killed (SIGKILL) after a third of the points, a new one added after two thirds |
| `head_killed` | the command in a process of its own; the head is killed in the middle, the command run again on a new cluster |
| `million` | a million points planned (all keys in memory), a part of them run, a store of as many records written and opened |
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainyard.sweep.executors import Inline
from trainyard.sweep.points import Materials
from trainyard.sweep.records import Record
from trainyard.sweep.running import Summary, sweep
from trainyard.sweep.store import Store
from trainyard.sweep.study import Study

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: bind to loopback
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's own is 15: on a busy computer its workers would starve
OBJECT_STORE_BYTES = 80_000_000
OPEN = """
import json, sys, time
def peak_bytes():
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
from trainyard.sweep.store import Store
before = peak_bytes()
records = len(Store(sys.argv[1]))
most_bytes = peak_bytes() - before
print(json.dumps({"records": records, "seconds": round(time.process_time(), 1), "bytes_per_point": most_bytes // records}))
"""
"""A new process that opens a store and reads all of it."""
GONE_S = 300.0
"""A driver whose head is gone must have ended by then."""


def table(points: int) -> dict[str, Any]:
    """Clocks by bandwidths, every machine another."""
    clocks = max(2, round(points**0.5))
    return {
        "name": f"points-{points}",
        "workloads": ["linear"],
        "machine": "npu",
        "objectives": {"time_s": "min", "energy_j": "min"},
        "axes": {
            "clock_hz": {"from": 0.5e9, "to": 2.0e9, "steps": clocks},
            "dram_bytes_per_s": {"from": 50e9, "to": 900e9, "steps": max(2, points // clocks)},
        },
    }


def digest(store: Path) -> str:
    return hashlib.sha256((store / "points.parquet").read_bytes()).hexdigest()


def folder_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


def cluster(nodes: int) -> Any:
    """A head that runs nothing and so many nodes of one CPU."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        made.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
    made.wait_for_nodes()
    return made


def figures(summary: Summary, seconds: float) -> dict[str, Any]:
    return {
        "points": summary.points,
        "computed": summary.computed,
        "failed": summary.failed,
        "seconds": round(seconds, 2),
        "points_per_s": round(summary.computed / seconds, 1),
        "digest": digest(summary.store),
    }


def one_process(study: Study, folder: Path) -> dict[str, Any]:
    begin = time.monotonic()
    return figures(sweep(study, folder / "one.sweep", Inline()), time.monotonic() - begin)


def node_killed(study: Study, folder: Path) -> dict[str, Any]:
    """A node is killed in the middle of its points, and another joins."""
    from trainyard.sweep.on_ray import Cluster

    made = cluster(3)
    victims = list(made.worker_nodes)[:1]
    events: list[dict[str, Any]] = []

    def on_progress(done: int, total: int, message: str = "", /) -> None:
        if victims and done > total / 3:
            events.append({"done": done, "event": "a node is killed"})
            made.remove_node(victims.pop(), allow_graceful=False)
        elif len(events) == 1 and done > 2 * total / 3:
            events.append({"done": done, "event": "a node joins"})
            made.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    try:
        executor, begin = Cluster(made.address), time.monotonic()
        nodes = executor.nodes
        summary = sweep(study, folder / "node.sweep", executor, on_progress)
        return {"nodes": nodes, **figures(summary, time.monotonic() - begin), "events": events}
    finally:
        made.shutdown()


def command(study: Path, store: Path, address: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "trainyard", "sweep", str(study), "--store", str(store), "--ray", address]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def head_killed(study: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is safe when the head dies is found again by the same command on a new cluster."""
    file, store = folder / "study.toml", folder / "head.sweep"
    file.write_text(toml(study))
    made = cluster(2)
    driver = command(file, store, made.address)
    while driver.poll() is None and sum(1 for _ in store.glob("segments/*.parquet")) < 2:
        time.sleep(0.05)
    killed = time.monotonic()
    made.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    try:
        driver.wait(GONE_S)
        ended: float | None = time.monotonic() - killed
    except subprocess.TimeoutExpired:
        ended = None
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    said = (driver.stderr.read() if driver.stderr else "").strip().splitlines()
    made.shutdown()
    safe = len(Store(store))
    made, begin = cluster(2), time.monotonic()
    try:
        again = command(file, store, made.address)
        again.communicate()
    finally:
        made.shutdown()
    return {
        "safe_after_the_kill": safe,
        "driver_ended_after_s": None if ended is None else round(ended, 1),
        "driver_exit": driver.returncode,
        "driver_said": said[-1:],
        "second_exit": again.returncode,
        "second_seconds": round(time.monotonic() - begin, 2),
        "points": len(Store(store)),
        "digest": digest(store),
    }


def toml(study: dict[str, Any]) -> str:
    axes = "\n".join(
        f"{name} = {{ {', '.join(f'{key} = {value!r}' for key, value in axis.items())} }}" for name, axis in study["axes"].items()
    )
    objectives = ", ".join(f'{name} = "{direction}"' for name, direction in study["objectives"].items())
    head = f'name = "{study["name"]}"\nworkloads = ["linear"]\nmachine = "npu"\nobjectives = {{ {objectives} }}\n'
    return f"{head}[axes]\n{axes}\n"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def million(points: int, part: int, folder: Path) -> dict[str, Any]:
    """Planned whole, run in part, and a store of as many records as the whole. Rates are by CPU time: other work does not count."""
    study = Study.from_table(table(points))
    materials = Materials.of(study)
    before, begin = resident_bytes(), time.process_time()
    planned = list(materials.keyed(study.points(limit=2 * points)))
    planned_s, planned_bytes = time.process_time() - begin, resident_bytes() - before
    for point in planned[-100:]:
        materials.run(point)  # loops are compiled, or read
    begin = time.process_time()
    records = [materials.run(point) for point in planned[:part]]
    run_s = time.process_time() - begin
    store = Store.begin(folder / "part.sweep", study.table, points=len(planned))
    begin = time.process_time()
    with store.writing():
        for first in range(0, len(records), 4096):
            store.append(records[first : first + 4096])
        segments = folder_bytes(store.path)
        appended_s = time.process_time() - begin
        store.compact()
    figures = {
        "planned_points": len(planned),
        "planned_per_s": round(len(planned) / planned_s),
        "planned_bytes_per_point": round(planned_bytes / len(planned)),
        "run_points": len(records),
        "run_per_s_and_core": round(len(records) / run_s),
        "appended_per_s": round(len(records) / appended_s),
        "segment_bytes_per_point": round(segments / len(records), 1),
        "store_bytes_per_point": round(folder_bytes(store.path) / len(records), 1),
    }
    keys = [point.key for point in planned]
    del planned, materials
    return {**figures, "whole_store": whole_store(study, records, keys, folder)}


def whole_store(study: Study, records: list[Record], keys: list[str], folder: Path) -> dict[str, Any]:
    """A store with a record for every key: the records of the part over and over, each under its own key."""
    store = Store.begin(folder / "whole.sweep", study.table, points=len(keys))
    begin = time.process_time()
    with store.writing():
        for first in range(0, len(keys), 65536):
            store.append(_copies(records, keys[first : first + 65536]))
        store.compact()
    written_s, size = time.process_time() - begin, folder_bytes(store.path)
    del store, keys
    words = [sys.executable, "-c", OPEN, str(folder / "whole.sweep")]
    opened = subprocess.run(words, capture_output=True, text=True, check=True)
    return {"write_seconds": round(written_s, 1), "bytes_on_disk": size, "opened": json.loads(opened.stdout)}


def _copies(records: list[Record], keys: list[str]) -> list[Record]:
    from dataclasses import replace

    return [replace(records[number % len(records)], key=key) for number, key in enumerate(keys)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--million", type=int, default=0, help="points of the large study; 0 leaves it out")
    parser.add_argument("--part", type=int, default=20_000, help="points of the large study that are run")
    parser.add_argument("--no-cluster", action="store_true", help="the large study alone")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    content: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder, study = Path(name), table(options.points)
        if not options.no_cluster:
            content["one_process"] = one_process(Study.from_table(study), folder)
            content["node_killed"] = node_killed(Study.from_table(study), folder)
            content["head_killed"] = head_killed(study, folder)
            parts = [content[part]["digest"] for part in ("one_process", "node_killed", "head_killed")]
            content["identical"] = len(set(parts)) == 1
        if options.million:
            content["million"] = million(options.million, options.part, folder)
    content["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.json:
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
    if not content.get("identical", True):
        sys.exit("the bytes differ")


if __name__ == "__main__":
    main()
