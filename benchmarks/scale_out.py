"""A ResNet-50 step on up to 1024 devices (32 samples each): planes of switches and an InfiniBand cluster, with and without paging.

One device stands for all; the same step with every device simulated (`fold=False`) runs beside it for 64 devices, and with
--unfolded for 1024 too. Graph, backing memories and collectives are found anew each time: every case is a process of its own.

python benchmarks/scale_out.py [--unfolded]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from dataclasses import replace

SECONDS = 60.0
PER_DEVICE = 32
PPM = 5.0
CASES = [
    (system, overlay, devices, True) for system in ("planes", "cluster") for overlay in ("off", "all") for devices in (64, 1024)
]


def run(case: tuple[str, str, int, bool]) -> tuple[float, float, float]:
    """Seconds of the simulated step, seconds that it took to find them (imports and kernels read before), largest memory in MB."""
    import trainyard as ty
    from trainyard.machines.presets.mcdla import INFINIBAND, PLANES

    system, overlay, devices, fold = case
    node = replace({"planes": PLANES, "cluster": INFINIBAND}[system], overlay=overlay, fold=fold)
    ty.run("alexnet", batch=16, on=replace(node, devices=16))
    begun = time.perf_counter()
    result = ty.run("resnet50", batch=PER_DEVICE * devices, on=replace(node, devices=devices))
    seconds = time.perf_counter() - begun
    return result.time_s, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unfolded", action="store_true", help="1024 devices one by one too")
    sizes = (64, 1024) if parser.parse_args().unfolded else (64,)
    cases = CASES + [(system, overlay, devices, False) for system, overlay, devices, _ in CASES if devices in sizes]
    found = {}
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[case] = pool.apply(run, (case,))
        system, overlay, devices, fold = case
        step_s, seconds, megabytes = found[case]
        told = f"{system:8} paging {overlay:4} {devices:5} devices, {'folded' if fold else 'every device':12}"
        print(f"{told}: step {1e3 * step_s:8.3f} ms, found in {seconds:6.2f} s, {megabytes:6.0f} MB", flush=True)
    apart = max(1e6 * abs(found[*case[:3], True][0] / found[case][0] - 1) for case in found if not case[3])
    slowest = max(seconds for case, (_, seconds, _) in found.items() if case[3])
    print(f"folded and unfolded differ by {apart:.3f} ppm at most (bound {PPM:g})")
    print(f"slowest folded run {slowest:.1f} s (bound {SECONDS:g} s)")
    return 0 if slowest < SECONDS and apart < PPM else 1


if __name__ == "__main__":
    sys.exit(main())
