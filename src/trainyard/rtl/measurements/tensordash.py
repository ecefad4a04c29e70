"""TensorDash's tile and the dense one with the same arithmetic: the rows of Table IV, other depths, lanes and formats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import numpy.typing as npt

from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.measurements.case import Case, case_of
from trainyard.rtl.tensordash.baseline import BaselineDesign
from trainyard.rtl.tensordash.tile import TileDesign

PARTS = ("element", "row", "buffer", "multiplexers", "control")
"""Submodules of a tile that are told apart: arithmetic, schedulers, staging buffers, multiplexers, what moves them."""
CYCLES = 200
SPARSITY = 0.5
"""Of the scheduled operand, in the load that energies are taken from."""
STEPS = 48


def streams(design: TileDesign, sparsity: float, cycles: int = CYCLES) -> list[Inputs]:
    """Outputs of 48 steps one behind the other, with independent zeros in the scheduled operand."""
    draw = np.random.default_rng(7)

    def blocks() -> Iterator[npt.NDArray[np.bool_]]:
        while True:
            yield draw.random((design.rows, STEPS, design.lanes)) >= sparsity

    bench = design.bench
    outputs = (bench.valued(block, draw) for block in blocks())
    table = bench.inputs(outputs, cycles, _NeverWaits(0))
    last = max(cycle for cycle, row in enumerate(table) if row["available"])  # no idle cycles at the end but those of the pipeline
    return table[: last + 2 * design.depth + design.pipeline + 4]


class _NeverWaits(Random):
    """No gaps between outputs."""

    def random(self) -> float:
        return 1.0


def tile_case(key: str, design: TileDesign) -> Case:
    return Case(
        key=key, about=design.word, build=design.build, expected=design.expected, keep=PARTS,
        loads={f"{round(100 * share)} % zeros": partial(streams, design, share) for share in (SPARSITY, 0.0, 0.9)},
        parameters={"design": design.name, **design.parameters},
    )  # fmt: skip


# fmt: off
CASES = (
    tile_case("tile/fp16",            TileDesign(number="fp16")),
    tile_case("tile/bf16",            TileDesign(number="bf16")),
    tile_case("tile/fp16/depth2",     TileDesign(number="fp16", depth=2)),
    tile_case("tile/fp16/depth3",     TileDesign(number="fp16", depth=3)),
    tile_case("tile/fp16/depth5",     TileDesign(number="fp16", depth=5)),
    tile_case("tile/fp16/lanes16",    TileDesign(number="fp16", lanes=16, depth=3, levels="grouped")),
    case_of(BaselineDesign(number="fp16"), "dense/fp16", CYCLES, keep=PARTS),
    case_of(BaselineDesign(number="bf16"), "dense/bf16", CYCLES, keep=PARTS),
    case_of(design_of("tensordash-scheduler"), "scheduler", 400),
    case_of(design_of("tensordash-scheduler", {"lanes": 16, "depth": 3, "levels": "grouped"}), "scheduler/lanes16", 400),
)
# fmt: on
