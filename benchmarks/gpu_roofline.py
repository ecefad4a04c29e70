"""The GPU roofline held against a real GPU: measure there, predict anywhere.

python benchmarks/gpu_roofline.py --measure FOLDER             on a machine with a CUDA GPU, about three minutes
python benchmarks/gpu_roofline.py --pack FOLDER [FOLDER ...]   anywhere: runs, oldest first, into benchmarks/data/h200.json.gz
python benchmarks/gpu_roofline.py --predict [FILE]             anywhere: predicted, measured, ratio; writes docs/gpu.md
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", metavar="FOLDER", type=Path, help="where the measurements go")
    parser.add_argument("--pack", metavar="FOLDER", type=Path, nargs="+", help="folders of measurements, oldest first")
    parser.add_argument("--predict", metavar="FILE", type=Path, nargs="?", const=Path(), help="packed measurements")
    parser.add_argument("--page", type=Path, default=Path("docs/gpu.md"), help="page that --predict writes")
    parser.add_argument("--seconds", type=float, default=420.0, help="no model is begun after this time")
    parser.add_argument("--repeats", type=int, default=40, help="timed steps of each model")
    parser.add_argument("--device", default="cuda", help="'cpu' tries the measuring itself, on small models")
    parser.add_argument("--only", default="", help="comma-separated zoo names")
    chosen = parser.parse_args()
    if chosen.measure is None and chosen.pack is None and chosen.predict is None:
        parser.error("give --measure FOLDER, --pack FOLDER ... or --predict")
    if chosen.measure is not None:
        measure(chosen)
    if chosen.pack is not None:
        from gpu_data import pack

        pack(chosen.pack)
    if chosen.predict is not None:
        from gpu_predictions import DATA, predict

        predict(DATA if chosen.predict == Path() else chosen.predict, chosen.page)


def measure(chosen: argparse.Namespace) -> None:
    import gpu_machine
    import gpu_measurements

    deadline = time.perf_counter() + chosen.seconds
    chosen.measure.mkdir(parents=True, exist_ok=True)
    names = [name for name in chosen.only.split(",") if name]
    steps = [row for row in gpu_measurements.STEPS if not names or row[0] in names]
    if chosen.device == "cuda":
        gpu_machine.machine(chosen.measure)
    else:
        steps = [(name, 2, None, {}) for name in names or ("bert-tiny",)]
    gpu_measurements.models(chosen.measure, deadline, chosen.device, steps, chosen.repeats)


if __name__ == "__main__":
    main()
