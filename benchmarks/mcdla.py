"""MC-DLA's matrix: eight networks, two parallelisms, six designs: time of all of them.

Each of the 96 runs is a whole training step of one device among eight: the step cut for it, every Work costed, exchanges and copies
planned, the plan run. The designs of one network come one after the other, so that the device's costs are found once: what that
saves is printed beside it.

python benchmarks/mcdla.py [--one]        --one: in one process
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product

SECONDS = 10.0


def run(case: tuple[str, str]) -> tuple[str, str, dict[str, float], float]:
    """All designs of one network and parallelism; milliseconds of a step, and the seconds that it took to find them."""
    from trainyard.machines.presets.mcdla import DESIGNS
    from trainyard.papers.mcdla.measuring import job, run_job

    network, parallel = case
    begun = time.perf_counter()
    found = {name: 1e3 * run_job(job(node, network, parallel)).time_s for name, node in DESIGNS.items()}  # type: ignore[arg-type]
    return network, parallel, found, time.perf_counter() - begun


def warm() -> None:
    """Compiled kernels are read from their cache in every process."""
    run(("lstm-1", "data"))


def apart(network: str, parallel: str) -> tuple[float, float]:
    """Seconds of the first design of a network at a batch that nothing is remembered of, and of the next one."""
    from trainyard.machines.presets.mcdla import DESIGNS
    from trainyard.papers.mcdla.measuring import job, run_job

    spent = []
    for name in ("dc-dla", "mcdla-b"):
        begun = time.perf_counter()
        run_job(job(DESIGNS[name], network, parallel, 640))  # type: ignore[arg-type]  # one of the two
        spent.append(time.perf_counter() - begun)
    return spent[0], spent[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", action="store_true", help="one process")
    workers = 1 if parser.parse_args().one else min(2, os.cpu_count() or 1)
    from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL

    jobs = sorted(product(NETWORKS, PARALLEL), key=lambda job: job[0] != "gru")  # the longest first
    if workers == 1:
        warm()
        begun = time.perf_counter()
        found = [*map(run, jobs)]
        seconds = time.perf_counter() - begun
    else:
        with ProcessPoolExecutor(workers, initializer=warm) as pool:
            [*pool.map(abs, range(2 * workers))]  # processes are there, kernels read
            begun = time.perf_counter()
            found = [*pool.map(run, jobs)]
            seconds = time.perf_counter() - begun
    for network, parallel, times, spent in found:
        told = "  ".join(f"{name} {value:.1f}" for name, value in times.items())
        print(f"{network:10} {parallel:6} {spent:5.2f} s   ms: {told}")
    runs = sum(len(times) for *_, times, _ in found)
    print(f"{runs} steps on {workers} processes: {seconds:.1f} s (bound {SECONDS:g} s)")
    first, next_design = apart("resnet34", "data")
    told = f"first design {1e3 * first:.0f} ms, the next one {1e3 * next_design:.0f} ms"
    print(f"resnet34, data: {told} ({first / next_design:.1f} times)")
    return 0 if seconds < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
