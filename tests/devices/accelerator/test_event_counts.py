"""Events of all products of a step against those of `Costing`, over more tilings than are kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import trainyard as ty
from trainyard.arrays import Sigma, Systolic, TensorCore
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.event_counts import MOST_TILINGS, TilingEvents
from trainyard.devices.accelerator.step_shape import step_shape
from trainyard.ir import Array, MatMul, Op, Phase, Step

SIDES = ((37, 50, 64), (5, 21, 30), (100, 7, 90))
STEP = Step("three", 1, tuple(Op(body=MatMul(*s), name=f"mm{s[0]}", layer="fc", phase=Phase.FORWARD) for s in SIDES), ())
ARRAYS = [Systolic(rows=4, columns=6), TensorCore(tiles=4, rows=4, columns=2), Sigma(dpes=4, multipliers=8, bandwidth=16)]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_known_and_new_tilings_count_what_the_twin_counts(array: Array, precision: str) -> None:
    device = Accelerator(array=array, scratchpad="1 MiB", dram="10 GB/s", precision=precision)
    sizes = [*product((3, 5, 16, 40), (2, 7, 64), (1, 9, 32))]
    for tiling in [*sizes, *reversed(sizes[:5])]:
        on = replace(device, tiling=tiling)
        costs = on.batch_costs(STEP)
        assert costs is not None
        for group in costs.counts.groups:
            for column, row in enumerate(group.rows.tolist()):
                work = next(work for work in on.works(STEP) if costs.shape.number[work.ops] == row)
                twin = dict(on.cost(STEP, work).events)
                twin["mac"] -= twin[f"mac_{precision}"]
                assert dict(zip(group.events, group.counts[:, column].tolist(), strict=True)) == twin


def test_tilings_are_kept_within_a_bound_and_older_tables_do_not_change() -> None:
    array = ARRAYS[0]
    shape = step_shape(STEP, ty.machine("npu").policy, "all")
    assert shape is not None
    table, which = TilingEvents.of(array, shape.products), np.arange(3)
    first = table
    for size in range(1, 3 * MOST_TILINGS):
        before = table.sizes.copy()
        more, place = table.with_tilings(which, np.full((3, 10), size))
        assert (table.sizes == before).all()
        assert (more.sizes[which, place] == size).all()
        table = more
    assert table.sizes.shape[1] == MOST_TILINGS
    assert not first.sizes.any()
