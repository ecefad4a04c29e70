"""A training step of ResNet-50 on TensorDash from full masks of every layer, lowering included, beside the plain-Python scheduler.

One sample of generated masks (60 % zeros in A and G): every window of every convolution in all three products is gathered,
scheduled and dealt out. The peer is the plain twin of the scheduler on a few row groups of one layer, scaled to the same positions.

python benchmarks/tensordash_resnet50.py
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from trainyard.ir import Step

SECONDS, MEGABYTES = 3.0, 600.0


def positions(step: Step) -> int:
    """Lane positions of all scheduled streams, where operand a is the scheduled one."""
    from trainyard.ir import Convolution, MatMul
    from trainyard.mapping.lowering import lower

    found = 0
    for op in step.ops:
        if isinstance(op.body, Convolution | MatMul):
            product = lower(op.body, "dilated").product
            found += product.M * product.K * product.count
    return found


def plain_seconds_per_position(groups: int = 20, steps: int = 144) -> float:
    from trainyard.arrays import TensorDash

    array = TensorDash()
    bits = np.random.default_rng(0).random((groups, 4, steps, 4)) < 0.4
    begun = time.perf_counter()
    for group in bits:
        assert array.scheduler.plain(group, "lockstep", 4) == array.schedule(group)
    return (time.perf_counter() - begun) / bits.size


def main() -> int:
    import trainyard as ty
    from trainyard.arrays.tensordash import groups
    from trainyard.masks.generated import generated_masks

    step, device = ty.zoo.load("resnet50", batch=1), ty.machine("tensordash")
    masks = generated_masks(step, sparsity={"A": 0.6, "G": 0.6}, seed=0)
    for work in device.works(step):
        device.cost(step, work, masks)  # compiles, and makes the masks up
    times = []
    for _ in range(3):
        groups.clear_cache()
        begun = time.perf_counter()
        for work in device.works(step):
            device.cost(step, work, masks)
        times.append(time.perf_counter() - begun)
    seconds, count = min(times), positions(step)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    plain = plain_seconds_per_position() * count
    print(f"ResNet-50, one sample, {count / 1e6:.0f} million positions: {seconds:.2f} s (target {SECONDS:g} s)")
    print(f"peak memory {memory:.0f} MB (bound {MEGABYTES:g} MB)")
    print(f"plain scheduler alone, scaled: {plain:.0f} s, {plain / seconds:,.0f} times longer")
    return 0 if seconds < SECONDS and memory < MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
