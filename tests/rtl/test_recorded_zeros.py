"""FAN, ART, the chain and the Benes network with groups and multicasts that zeros of a shipped training run make.

SIGMA lays the non-zeros of the stationary rows out on the lanes one after another: a row is a dot product, and every lane gets the
streaming element of its non-zero's column. Products and settings are those of the simulator's parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trainyard.hardware.benes.network import Benes
from trainyard.rtl.arithmetic.formats import format_of
from trainyard.rtl.arithmetic.stimulus import finite_bits
from trainyard.rtl.benes import select_words
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.equality import Runner, amaranth_outputs, compare
from trainyard.rtl.reduction.network import grouping_inputs
from trainyard.rtl.tensordash.recorded import recorded_blocks
from trainyard.rtl.verilator import compiled_outputs, missing_tools

RUNS: list[Any] = [
    pytest.param(4, 60, amaranth_outputs, id="60 cycles"),
    pytest.param(16, 10_000, compiled_outputs, id="10,000 cycles", marks=[
        pytest.mark.slow, pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make"),
    ]),
]  # fmt: skip


def placed(lanes: int) -> Iterator[tuple[list[int], list[int]]]:
    """Of one fold after another: the row of each lane's non-zero (-1: idle) and its column."""
    for block in recorded_blocks("NCF", lanes=lanes, rows=lanes, most_steps=1, seed=3):
        rows, columns = (indices.tolist() for indices in np.nonzero(block[:, 0]))
        for first in range(0, len(rows), lanes):
            idle = [-1] * max(0, first + lanes - len(rows))
            yield rows[first : first + lanes] + idle, columns[first : first + lanes] + idle


@pytest.mark.parametrize("name", ["fan", "art", "chain"])
@pytest.mark.parametrize(("lanes", "cycles", "runner"), RUNS)
def test_dot_products_of_recorded_rows_leave_as_in_the_simulator(name: str, lanes: int, cycles: int, runner: Runner) -> None:
    design, kind, chance = design_of(name, {"lanes": lanes, "number": "bf16"}), format_of("bf16"), random.Random(0)
    stimulus, sizes = list[Inputs](), set[int]()
    for rows, _ in placed(lanes):
        stimulus.append({"configure": 1, **grouping_inputs(rows)})
        sizes |= {rows.count(row) for row in rows if row >= 0}
        for _ in range(3):
            stimulus.append({**{f"product_{lane}": finite_bits(kind, chance) for lane in range(lanes)}, "valid": 1})
        stimulus += [{}] * lanes
        if len(stimulus) >= cycles:
            break
    comparison = compare(runner(design.build(), stimulus), design.expected(stimulus))
    assert comparison.equal, comparison.difference
    assert comparison.cycles >= cycles
    assert len(sizes) > 1  # dot products of several lengths


@pytest.mark.parametrize(("lanes", "cycles", "runner"), RUNS)
def test_multicasts_to_recorded_non_zeros_arrive_as_in_the_simulator(lanes: int, cycles: int, runner: Runner) -> None:
    design, chance = design_of("benes", {"ports": lanes, "width": 8}), random.Random(0)
    folds = placed(lanes)
    sources = [columns for (_, columns), _ in zip(folds, range(cycles), strict=False)]
    settings = Benes(ports=lanes).route(np.array(sources))
    stimulus: list[Inputs] = []
    for number, vector in enumerate(settings.row.tolist()):
        values = {f"value_{port}": chance.getrandbits(8) for port in range(lanes)}
        enable = sum(int(latches) << port for port, latches in enumerate(settings.enable[number]))
        start = number == 0 or vector != int(settings.row[number - 1])
        stimulus.append({**values, **select_words(settings.bits[number]), "enable": enable, "start": int(start)})
    comparison = compare(runner(design.build(), stimulus), design.expected(stimulus))
    assert comparison.equal, comparison.difference
    assert comparison.cycles >= cycles
    assert any(len(set(columns) - {-1}) < len(columns) - columns.count(-1) for columns in sources)  # some are read more than once
