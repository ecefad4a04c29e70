"""Captures every zoo model anew and writes the steps that ship in the package. Same models, same bytes.

python scripts/regenerate_zoo.py [name ...]
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

from trainyard.workloads import zoo
from trainyard.workloads.capture import capture_recipe

STEPS = Path(__file__).parents[1] / "src" / "trainyard" / "workloads" / "zoo" / "steps"


def main(names: list[str]) -> None:
    STEPS.mkdir(exist_ok=True)
    for name in names or zoo.names():
        start = time.perf_counter()
        step = capture_recipe(zoo.build(name), name, zoo.entry(name).batch)
        packed = gzip.compress(step.to_json().encode(), compresslevel=9, mtime=0)
        (STEPS / f"{name}.json.gz").write_bytes(packed)
        print(f"{name:18} {len(step.ops):6} ops  {len(packed) / 1e3:7.1f} KB  {time.perf_counter() - start:5.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
