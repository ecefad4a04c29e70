"""Processes that begin together on a cold cache of compiled loops: what they compile, and what that costs.

    python benchmarks/cold_cache.py --json benchmarks/data/cold_cache.json

Each process runs one training step that needs some sixty loops, in a cache folder that is empty. CPU seconds are the measure, since
wall time depends on what else runs: with and without the lock by which one process compiles a loop and the others read it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, sys, time
from numba.core.dispatcher import Dispatcher
plain = Dispatcher.compile
import trainyard as ty
from trainyard.kernels.compilation import observed
if sys.argv[1] == "without":
    Dispatcher.compile = plain
loops = []
begin = time.time()
with observed(loops.append):
    ty.run("linear", on="npu").as_dict()
times = os.times()
print(json.dumps({"loops": len(loops), "cpu_s": times.user + times.system, "wall_s": time.time() - begin}))
"""


def measure(processes: int, lock: str) -> dict[str, Any]:
    """So many processes on one cold cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "TRAINYARD_CACHE": f"{folder}/trainyard"}
        begin = time.monotonic()
        running = [
            subprocess.Popen([sys.executable, "-c", PROGRAM, lock], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        each = [json.loads(process.communicate()[0]) for process in running]
    return {
        "processes": processes,
        "lock": lock,
        "wall_s": round(time.monotonic() - begin, 1),
        "cpu_s": round(sum(one["cpu_s"] for one in each), 1),
        "loops_compiled": [one["loops"] for one in each],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    rows = [measure(1, "with"), measure(options.processes, "without"), measure(options.processes, "with")]
    content = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "rows": rows}
    if options.json:
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
