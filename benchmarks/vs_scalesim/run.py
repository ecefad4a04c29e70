"""Ours against SCALE-Sim 3.0.0 on the same layers, side by side: identical stall-free cycles, and how much faster.

SCALE-Sim needs numpy < 2.3, so it runs in an environment of its own, made on the first run. What is timed on our side is the whole
tile-level path of an accelerator: lowering, tile search, DRAM traffic by tensor, energy events; nothing is remembered between runs.

python benchmarks/vs_scalesim/run.py [--environment build/vs_scalesim] [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import MatMul, Op, Step

HERE = Path(__file__).parent
REQUIREMENTS = ("scalesim==3.0.0", "numpy<2.3")
SIDE = 64
DATAFLOWS = ("ws", "os", "is")
TARGET = 10_000
# fmt: off
LAYERS = {  # ResNet-50, one image: forward, dX and dW as matrix products
    "layer2.0.conv2 forward": MatMul(784, 128, 1152),
    "layer2.0.conv2 dX":      MatMul(784, 1152, 128),
    "layer2.0.conv2 dW":      MatMul(1152, 128, 784),
    "layer3.0.conv3 forward": MatMul(196, 1024, 256),
    "layer4.0.conv2 forward": MatMul(49, 512, 4608),
    "fc forward":             MatMul(1, 1000, 2048),
}
# fmt: on


def environment(folder: Path) -> Path:
    """The interpreter of SCALE-Sim's own environment."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making an environment with {', '.join(REQUIREMENTS)} in {folder}")
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


def theirs(python: Path, layers: dict[str, MatMul]) -> list[dict[str, object]]:
    asked = {
        "rows": SIDE,
        "columns": SIDE,
        "dataflows": DATAFLOWS,
        "layers": [{"name": name, "M": op.M, "N": op.N, "K": op.K} for name, op in layers.items()],
    }
    ran = subprocess.run([python, HERE / "peer.py"], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers: list[dict[str, object]] = json.loads(ran.stdout)
    return answers


def ours(layers: dict[str, MatMul], dataflow: str, repeats: int = 20) -> float:
    """Seconds for all layers, each time on a machine that was not seen before; the median of a few."""
    device = Accelerator(
        array=Systolic(rows=SIDE, columns=SIDE, dataflow=dataflow), scratchpad="24 MiB", dram="100 GB/s", clock="1 GHz"
    )
    step = Step(name="layers", batch=1, ops=tuple(Op(body=op, name=name) for name, op in layers.items()), tensors=())
    times = []
    for turn in range(repeats + 1):
        other = replace(device, dram_bytes_per_s=100e9 + turn)
        begun = time.perf_counter()
        for work in other.works(step):
            cost = other.cost(step, work)
            other.energy(cost.events)
        times.append(time.perf_counter() - begun)
    return sorted(times[1:])[repeats // 2]  # the first one loads the compiled loops


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--environment", type=Path, default=HERE.parents[1] / "build" / "vs_scalesim")
    options.add_argument("--quick", action="store_true", help="the two smallest layers alone")
    given = options.parse_args()
    layers = {name: LAYERS[name] for name in ("fc forward", "layer3.0.conv3 forward")} if given.quick else LAYERS
    answers = theirs(environment(given.environment), layers)
    mine = {dataflow: ours(layers, dataflow) for dataflow in DATAFLOWS}
    wrong = 0
    print(f"{'layer':24} {'dataflow':8} {'SCALE-Sim cycles':>18} {'ours':>10} {'SCALE-Sim':>12}")
    for answer in answers:
        name, dataflow, seconds = str(answer["layer"]), str(answer["dataflow"]), float(str(answer["seconds"]))
        cycles = Systolic(rows=SIDE, columns=SIDE, dataflow=dataflow).cost(layers[name]).cycles  # type: ignore[arg-type]
        wrong += cycles != answer["cycles"]
        print(f"{name:24} {dataflow:8} {answer['cycles']!s:>18} {cycles:>10} {seconds:>10.2f} s")
    total = sum(float(str(answer["seconds"])) for answer in answers)
    ratio = total / sum(mine.values())
    print(f"cycles: {len(answers) - wrong} of {len(answers)} identical")
    print(f"time: SCALE-Sim {total:.1f} s, ours {sum(mine.values()) * 1e3:.2f} ms, ratio {ratio:,.0f} (target {TARGET:,})")
    return 0 if wrong == 0 and ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
