"""IGO's nine networks on both NPUs in four orders with both baselines (fixed tall tile, tiles searched): time of all of them.

Each of the 144 runs is a whole training step, every Work costed by the machine; the forward pass is part of it. The plain twin
executes the same tile operations on real numbers, one by one (`mapping.gradient_order.execution`), on one layer.

python benchmarks/igo_networks.py [--one]        --one: in one process
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

SECONDS = 45.0
ORDERS = ("sequential", "interleaved", "dx_major", "dw_major")
TWIN = (1024, 1024, 1024)
TILE = (128, 64, 64)
ROOM = 2**18


def run(job: tuple[str, str]) -> tuple[str, str, dict[tuple[str, str], float], float]:
    """All orders and baselines of one network on one NPU; milliseconds of a step, and the seconds that it took to find them."""
    from trainyard.papers.igo.baselines import CASES, TILES
    from trainyard.papers.igo.measuring import step_cost

    npu, network = job
    case = CASES[npu]  # type: ignore[index]  # one of the two
    begun = time.perf_counter()
    found: dict[tuple[str, str], float] = {
        (tile, order): 1e3 * step_cost(case, network, tile, order=order).seconds for tile, order in product(TILES, ORDERS)
    }
    return npu, network, found, time.perf_counter() - begun


def warm() -> None:
    """Compiled kernels are read from their cache in every process."""
    run(("small", "ncf"))


def twin() -> tuple[float, float]:
    """Seconds of the model and of its plain twin, for one layer's gradients in one order; both move the same bytes."""
    from trainyard.ir import MatMul
    from trainyard.mapping.gradient_order.execution import execute
    from trainyard.mapping.gradient_order.scratchpad import traffic

    m, n, k = TWIN
    rng = np.random.default_rng(0)
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    begun = time.perf_counter()
    plain = execute(x, w, dy, tile=TILE, capacity_bytes=ROOM, order="interleaved")
    slow = time.perf_counter() - begun
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        ours = traffic(MatMul(m, n, k), tile=TILE, capacity_bytes=ROOM, element_bytes=4, order="interleaved")
        times.append(time.perf_counter() - begun)
    assert sum(plain.bytes.values()) == ours.total_bytes, (plain.bytes, ours.bytes)
    return min(times), slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", action="store_true", help="one process")
    workers = 1 if parser.parse_args().one else min(2, os.cpu_count() or 1)
    from trainyard.papers.igo.baselines import CASES
    from trainyard.papers.igo.networks import ABBREVIATIONS

    jobs = [*product(CASES, ABBREVIATIONS)]
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
    for npu, network, times, spent in found:
        told = "  ".join(f"{tile[0]}:{order[:6]} {value:.1f}" for (tile, order), value in times.items())
        print(f"{npu:5} {network:5} {spent:5.1f} s   ms: {told}")
    runs = sum(len(times) for *_, times, _ in found)
    print(f"{runs} steps on {workers} processes: {seconds:.1f} s (bound {SECONDS:g} s)")
    fast, slow = twin()
    print(
        f"gradients of {TWIN} in tiles {TILE}: {1e3 * fast:.1f} ms; plain twin {1e3 * slow:.0f} ms, {slow / fast:.0f} times longer"
    )
    return 0 if seconds < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
