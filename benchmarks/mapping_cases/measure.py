"""Maps cases with the trainyard that is imported here, and prints what it chose: the same program asks two versions.

Reads one JSON object from the standard input, {"products": [...], "steps": [...], "pairs": [...], "arrays": [...]}, and answers
with the same keys, and what halos are worth on the steps.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import trainyard as ty
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import Convolution, MatMul, Op, Step
from trainyard.mapping.lowering import lower
from trainyard.mapping.profile import profile
from trainyard.mapping.tiling import Problem, Supply, search

try:
    from trainyard.mapping.tiling import Goal
except ImportError:  # an earlier version, which has no objectives
    Goal = None  # type: ignore[assignment, misc]

Json = dict[str, Any]


def convolution_of(case: Json) -> Convolution:
    return Convolution(**{name: tuple(value) if isinstance(value, list) else value for name, value in case["convolution"].items()})


def problem_of(case: Json) -> Problem:
    element = case["element_bytes"]
    if "dims" in case:
        return Problem.dense(MatMul(*case["dims"]), element)
    lowered = lower(convolution_of(case))
    return Problem(
        op=lowered.product,
        a_bytes=lowered.a.elements * element,
        b_bytes=lowered.b.elements * element,
        out_bytes=lowered.out.elements * element,
        sum_bytes=min(lowered.out.elements, lowered.out.matrix) * max(4, element),
    )


def answer(problem: Problem, array: Systolic, supply: Supply) -> Json:
    op = problem.op
    asked = {
        "dims": [op.M, op.N, op.K], "count": op.count, "rates": list(problem.rates), "held": list(problem.sram_rates),
        "array": {"rows": array.rows, "columns": array.columns, "dataflow": array.dataflow},
        "room": supply.resident_bytes, "speed": supply.bytes_per_cycle, "latency": supply.latency_cycles,
    }  # fmt: skip
    try:
        (tiled,) = search([problem], array, supply)
    except BadInput:
        return {**asked, "cycles": None}
    tile = tiled.tiling
    return {
        **asked, "tile": [tile.m, tile.n, tile.k], "order": tile.order, "cycles": tiled.cycles, "compute": tiled.compute_cycles,
        "bytes": tiled.dram_bytes, "bytes_for_traffic": None if Goal is None else _for_traffic(problem, array, supply),
    }  # fmt: skip


def _for_traffic(problem: Problem, array: Systolic, supply: Supply) -> int:
    """DRAM bytes where traffic, not time, is to be small."""
    (tiled,) = search([problem], array, supply, goal=Goal(objective="traffic", tolerance=0.0))
    return tiled.dram_bytes


def of_product(case: Json) -> Json:
    supply = Supply(resident_bytes=case["room"], bytes_per_cycle=case["speed"], latency_cycles=case["latency"])
    problem, array = problem_of(case), Systolic(**case["array"])
    told = answer(problem, array, supply)
    if Goal is not None and told["cycles"] is not None and case.get("convolution", {}).get("product") == "forward":
        from trainyard.mapping.halo import halo_of

        (without,) = search([replace(problem, halo=halo_of(convolution_of(case)))], array, supply)
        told["bytes_without_line_buffer"] = without.dram_bytes
    return told


def of_step(case: Json) -> list[Json]:
    """Every distinct product of a training step, and how often it is there."""
    device = ty.machine(case["on"])
    demands = profile(ty.zoo.load(case["model"]), device.policy)  # type: ignore[union-attr]  # an accelerator
    times = Counter(demands.number.values())
    return [
        {**answer(demand.problem, device.array, device.supply), "times": times[number]}  # type: ignore[union-attr]
        for number, demand in enumerate(demands.demands)
        if hasattr(demand, "problem")
    ]


def of_halos(case: Json) -> Json | None:
    """Image bytes without a line buffer over those with one, for tiles chosen with it and without; and the time of the step."""
    device = ty.machine(case["on"])
    if not hasattr(device, "line_buffer"):
        return None
    without = replace(device, line_buffer=False)  # type: ignore[type-var]  # an accelerator
    step = ty.zoo.load(case["model"])
    problems = [demand.problem for demand in profile(step, without.policy).demands if hasattr(demand, "problem")]
    overlapping = [problem for problem in problems if problem.halo is not None]
    with_buffer = search([replace(problem, halo=None) for problem in overlapping], device.array, device.supply)
    chosen_without = search(overlapping, device.array, device.supply)

    def more(problem: Problem, size: int) -> float:
        extent = problem.op.M if problem.halo.axis == "m" else problem.op.K
        return -(-extent // size) * (problem.halo.spread(size) - size) / extent + 1

    return {
        name: [more(problem, tiled.tiling.size(problem.halo.axis)) for problem, tiled in zip(overlapping, chosen, strict=True)]
        for name, chosen in (("with", with_buffer), ("without", chosen_without))
    } | {"times": [ty.run(step, on=machine).time_s for machine in (device, without)]}


def _device(machine: Json) -> Accelerator:
    return Accelerator(array=Systolic(**machine["array"]), scratchpad_bytes=machine["scratchpad"], dram_bytes_per_s=machine["dram"])


def _time(op: MatMul, machine: Json) -> float:
    step = Step(name="product", batch=1, ops=(Op(body=op, name="product"),), tensors=())
    return ty.run(step, on=_device(machine)).time_s


def of_pair(case: Json) -> Json:
    """Seconds on each machine, and how often the first one's array fills and drains."""
    op, machine = MatMul(*case["dims"]), case["machines"][0]
    array, device = Systolic(**machine["array"]), _device(machine)
    (tiled,) = search([Problem.dense(op, 4)], array, device.supply)
    sides = zip((op.M, op.N, op.K), (tiled.tiling.m, tiled.tiling.n, tiled.tiling.k), strict=True)
    kinds = [Counter(min(size, extent - start) for start in range(0, extent, size)) for extent, size in sides]
    folds = sum(
        array.folds[0].count(m, n, k) * rows * columns * deep
        for (m, rows), (n, columns), (k, deep) in itertools.product(*(kind.items() for kind in kinds))
    )
    return {"times": [_time(op, machine) for machine in case["machines"]], "folds": folds}


def speeds(turns: int) -> Json:
    """Steps of ResNet-50 a second of a core: one field of the machine changes each time."""
    step, npu = ty.zoo.load("resnet50"), ty.machine("npu")
    changes = {
        "clock": lambda turn: f"npu(clock={1000 + turn} MHz)",
        "scratchpad": lambda turn: f"npu(scratchpad={4096 + 8 * turn} KiB)",
        "rows": lambda turn: f"npu(array=systolic(rows={64 + turn},columns=128))",
        "order=interleaved": lambda turn: f"npu(order=interleaved,scratchpad={4096 + 8 * turn} KiB)",
        "order=cost": lambda turn: f"npu(order=cost,scratchpad={4096 + 8 * turn} KiB)",
        "sigma": lambda turn: f"sigma(dram={100 + turn} GB/s)",
    }
    assert npu is not None
    rates = {}
    for name, machine in changes.items():
        seconds = []
        for turn in range(3 if name.startswith("order") else turns):
            begun = time.process_time()
            assert ty.run(step, on=machine(turn)).time_s > 0
            seconds.append(time.process_time() - begun)
        rates[name] = 1 / sorted(seconds[1:])[(len(seconds) - 1) // 2]
    begun, batches = time.process_time(), range(65, 65 + turns)
    for batch in batches:
        ty.run("resnet50", on="npu", batch=batch)
    rates["batch"] = len(batches) / (time.process_time() - begun)
    return rates


def main() -> None:
    asked = json.load(sys.stdin)
    told: Json = {
        "products": [of_product(case) for case in asked.get("products", ())],
        "steps": [of_step(case) for case in asked.get("steps", ())],
        "pairs": [of_pair(case) for case in asked.get("pairs", ())],
        "halos": [of_halos(case) for case in asked.get("steps", ())],
    }
    if turns := asked.get("speeds"):
        told["speeds"] = speeds(turns)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
