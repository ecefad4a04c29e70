"""Multiplications per second of functional SIGMA runs (Benes switches, multipliers, FAN adders), and of a plain-Python twin.

A multiplication is one of two non-zeros. The twin takes the same settings and pushes every value through every switch and adder;
both products must be equal. Seconds are processor time of the thread that computes, best of a few. Rows with a target fail the run
where it is missed.

python benchmarks/sigma_execute.py [size]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trainyard.arrays import Sigma
from trainyard.arrays.sigma.controller import Controller
from trainyard.arrays.sigma.execution import Fabric, Vectors, execute, ports
from trainyard.arrays.sigma.walkthrough import stride
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import MatMul

TARGET = 1e6  # multiplications per second on 128 x 128 multipliers
TWIN_SIZE = 40
LIMITED = Sigma(streaming="limited")
# fmt: off
CASES = (
    # array                                  stationary  MK non-zero  KN non-zero  target
    (Sigma(),                                "a",        1.0,         1.0,         TARGET),
    (Sigma(),                                "b",        1.0,         1.0,         TARGET),
    (Sigma(),                                "a",        0.2,         0.7,         TARGET),
    (Sigma(),                                "b",        0.2,         0.7,         TARGET),
    (LIMITED,                                "a",        0.2,         0.7,         TARGET),
    (Sigma(),                                "none",     0.2,         0.7,         TARGET),
    (Sigma(dpes=512, multipliers=32),        "a",        0.2,         0.7,         None),
    (Sigma(dpes=32, multipliers=512),        "a",        0.2,         0.7,         None),
    (Sigma(across="chain"),                  "a",        0.2,         0.7,         TARGET),
    (Sigma(across="buffer"),                 "a",        0.2,         0.7,         TARGET),
)
# fmt: on


def seconds(action: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        begun = time.thread_time()
        action()
        best = min(best, time.thread_time() - begun)
    return best


def matrices(size: int, left: float, right: float) -> list[np.ndarray]:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(size)
    return [(rng.integers(1, 16, (size, size)) * (rng.random((size, size)) < share)).astype(np.float32) for share in (left, right)]


def plain(array: Sigma, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same product switch by switch and adder by adder, on the same settings."""
    controller, fabric = Controller.of(array), Fabric(array)
    met = controller.gather(Bitmap.of(a), Bitmap.of(b))
    placement = controller.place(controller.prune(met.stationary, controller.row_or(met.streaming)))
    vectors, out = Vectors.of(np.ascontiguousarray(b.T), controller.chunk), np.zeros((len(a), b.shape[1]), np.float32)
    for which in placement.passes:
        for unit in controller.flex_dpes(placement, which):
            sources, inputs, _ = ports(unit, which, vectors)
            settings, schedule = fabric.benes.route(sources), fabric.fan.schedule(unit.vec_ids)
            steps = list(zip(schedule.targets.tolist(), schedule.sources.tolist(), strict=True))
            for bits, enable, vector in zip(settings.bits.tolist(), settings.enable, settings.row, strict=True):
                heard = switched(bits, inputs[vector])
                slots = dict(
                    enumerate(heard[lane] * a[unit.row[lane], unit.k[lane]] if enable[lane] else 0 for lane in range(len(heard)))
                )
                for target, operands in steps:
                    slots[target] = sum(slots[slot] for slot in operands if slot >= 0)
                for vec_id, slot in zip(schedule.ids, schedule.outlets.tolist(), strict=True):
                    out[vec_id % len(a), vector] += slots[slot]
    return out


def switched(bits: list[list[int]], values: np.ndarray) -> list[float]:
    """Values at the outputs of a Benes network, level by level."""
    vertical, diagonal = list(values), [np.float32(0)] * len(values)
    for level, row in enumerate(bits):
        down, slant = ([(diagonal if one >> output & 1 else vertical)[at] for at, one in enumerate(row)] for output in (0, 1))
        reach = stride(level, len(bits)) if level + 1 < len(bits) else 0
        vertical, diagonal = down, [slant[at ^ reach] for at in range(len(slant))]
    return vertical


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", nargs="?", type=int, default=256)
    size, missed = parser.parse_args().size, 0
    print(f"{'array':44s}{'non-zero':>12s}{'cycles':>9s}{'multiplications/s':>19s}{'plain/s':>10s}{'ratio':>8s}")
    for array, stationary, left, right, target in CASES:
        a, b = matrices(size, left, right)
        done = execute(array, a, b, stationary)  # compiles, or loads what was compiled
        assert np.array_equal(done.product, a @ b)
        assert done.cycles == array.cost(MatMul(size, size, size), a=a, b=b, stationary=stationary).cycles
        rate = done.multiplications / seconds(lambda: execute(array, a, b, stationary), 3)  # noqa: B023
        few = matrices(TWIN_SIZE, left, right)
        small = replace(array, dpes=4)
        found: list[np.ndarray] = []
        twin = seconds(lambda: found.append(plain(small, *few)), 1)  # noqa: B023
        assert np.array_equal(found[0], execute(small, *few, "a").product)
        slow = int(np.count_nonzero(few[0], axis=0) @ np.count_nonzero(few[1], axis=1)) / twin
        name = f"{array.dpes} x {array.multipliers} {array.streaming}, {stationary} stationary, {array.across}"
        verdict = "" if target is None else f"  target {target:.0e}" + ("" if rate >= target else " MISSED")
        missed += target is not None and rate < target
        print(f"{name:44s}{left:6.0%}{right:6.0%}{done.cycles:9d}{rate:19.2e}{slow:10.1e}{rate / slow:7.0f}x{verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
