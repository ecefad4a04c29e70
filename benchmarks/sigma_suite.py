"""SIGMA's suite, ten GEMMs by six pairs of sparsity, from exact masks: time, peak memory, and a plain numpy twin on one GEMM.

Masks of 1024 x 500000 and 36548 x 1024 elements are among them; all are drawn and stay packed. The twin prunes and counts the
same masks as arrays of bool. A sparse 256^3 product from two masks is timed by itself.

python benchmarks/sigma_suite.py
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import numpy.typing as npt

from trainyard.arrays import Sigma
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import MatMul

SECONDS, MEGABYTES, MILLISECONDS = 30.0, 2048.0, 10.0
TWIN = MatMul(1632, 36548, 1024)


def twin(array: Sigma, op: MatMul, a: npt.NDArray[np.bool_], b: npt.NDArray[np.bool_]) -> int:
    """Cycles by the rules of the paper, written out on matrices of bool."""
    found = []
    for mine, other, vectors in ((a, b.T, op.N), (b.T, a, op.M)):
        held = mine & other.any(axis=0)  # stationary': elements that meet a streaming value
        elements = int(np.count_nonzero(held))
        folds = -(-elements // array.peak_macs_per_cycle)
        found.append(-(-elements // array.bandwidth) + folds * (vectors + array.peak_macs_per_cycle.bit_length() - 1))
    return min(found)


def small(array: Sigma) -> float:
    """Seconds of a sparse 256^3 product, its masks drawn already; best of 20."""
    op = MatMul(256, 256, 256)
    times = []
    for seed in range(20):
        a, b = (Bitmap.random(256, 256, nonzero=share, seed=seed).bits() for share in (0.2, 0.7))
        begun = time.perf_counter()
        array.cost(op, a=a, b=b)
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> int:
    from trainyard.papers.sigma import suite

    begun = time.perf_counter()
    found = suite.evaluate()
    seconds = time.perf_counter() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(found)} products, masks drawn: {seconds:.2f} s (bound {SECONDS:g} s), peak {memory:.0f} MB (bound {MEGABYTES:g} MB)"
    )

    array = suite.sigma()
    masks = [suite.mask(TWIN, "a", 0.8), suite.mask(TWIN, "b", 0.3)]
    begun = time.perf_counter()
    ours = array.cost(TWIN, a=masks[0], b=masks[1])  # type: ignore[arg-type]
    packed = time.perf_counter() - begun
    plain = [mask.bits() for mask in masks]
    begun = time.perf_counter()
    cycles = twin(array, TWIN, *plain)
    slow = time.perf_counter() - begun
    assert cycles == ours.cycles, (cycles, ours.cycles)
    what = f"{TWIN.M}-{TWIN.N}-{TWIN.K}, masks there already"
    print(f"{what}: {1e3 * packed:.1f} ms; numpy twin {1e3 * slow:.0f} ms, {slow / packed:.0f} times longer, same cycles")

    milliseconds = 1e3 * small(array)
    print(f"sparse 256^3: {milliseconds:.2f} ms (bound {MILLISECONDS:g} ms)")
    return 0 if seconds < SECONDS and memory < MEGABYTES and milliseconds < MILLISECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
