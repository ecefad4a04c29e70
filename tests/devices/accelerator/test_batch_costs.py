"""The demands of a step costed at once, against each of them costed by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainyard.arrays import OuterSpace, Sigma, Systolic, TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.batch_costs import BatchCosts
from trainyard.ir import Array, ElementWise, MatMul, Op, Reduction, Step, TensorSpec
from trainyard.masks.generated import generated_masks

SHAPES = (
    (24, 16), (16, 20), (24, 20), (24, 20), (24, 20), (24, 20),  # a layer, its activation and a sum with another tensor
    (3, 8, 6), (3, 6, 8), (3, 8, 8), (3, 8, 8), (3, 8, 6), (3, 8, 6),  # three heads
    (4, 2, 100), (4, 2, 100),  # a normalisation
)  # fmt: skip
STEP = Step(
    "several",
    1,
    (
        Op(body=MatMul(24, 20, 16), inputs=(0, 1), outputs=(2,), letters=("A", "W"), layer="fc", name="mm"),
        Op(body=ElementWise("gelu", 480, 9), inputs=(2,), outputs=(3,), layer="fc", name="gelu"),
        Op(body=ElementWise("add", 480), inputs=(3, 4), outputs=(5,), layer="fc", name="add"),
        Op(body=MatMul(8, 8, 6, 3), inputs=(6, 7), outputs=(8,), layer="scores", name="bmm"),
        Op(body=MatMul(8, 8, 6, 3), inputs=(6, 7), outputs=(8,), layer="attention", name="bmm", fused=1),
        Op(body=Reduction("softmax", 192, 192, 3), inputs=(8,), outputs=(9,), layer="attention", name="softmax", fused=1),
        Op(body=MatMul(8, 6, 8, 3), inputs=(9, 10), outputs=(11,), layer="attention", name="bmm", fused=1),
        Op(body=Reduction("batch_norm", 800, 800, 2), inputs=(12,), outputs=(13,), layer="norm", name="norm"),
    ),
    tuple(map(TensorSpec, SHAPES)),
)


def accelerator(array: Array, **fields: object) -> Accelerator:
    """Too small for a channel of the normalisation: 400 numbers of four bytes in half of the scratchpad."""
    given = {"scratchpad_bytes": 3000, "dram_bytes_per_s": 2e9, "clock_hz": 1e9, "dram_latency_s": 5e-9, "vector_lanes": 2}
    return Accelerator(**{"array": array, **given, **fields})


def columns(costs: BatchCosts, row: int) -> dict[tuple[str, str], int]:
    """Bytes over the pins of one demand."""
    moved = costs.moved[row].tolist()
    return {
        (label, way): round(size)
        for (level, label, way), size in zip(costs.shape.keys, moved, strict=True)
        if level == "dram" and size
    }


@pytest.mark.parametrize("array", [Systolic(rows=4, columns=6), Sigma(dpes=4, multipliers=8, bandwidth=16), OuterSpace(elements=4)])
@pytest.mark.parametrize("masked", [False, True])
def test_columns_have_the_cycles_bounds_shares_bytes_and_joules_of_each_demand_by_itself(array: Array, masked: bool) -> None:
    device = accelerator(array)
    masks = generated_masks(STEP, {"A": 0.5}) if masked else None
    costs = device.batch_costs(STEP, masks)
    assert costs is not None
    assert costs.exact
    rows, parts = costs.shares
    share_of = dict(zip(rows.tolist(), parts.tolist(), strict=True))
    for work in device.works(STEP):
        row, alone = costs.shape.number[work.ops], device.cost(STEP, work, masks)
        assert (costs.cycles[row], costs.compute_cycles[row], costs.bounds[row]) == (
            alone.cycles,
            alone.compute_cycles,
            alone.bound,
        )
        assert tuple(share_of.get(row, [1.0])[: len(work.ops)]) == pytest.approx(alone.share)
        assert sum(share_of.get(row, [1.0])) == pytest.approx(1.0)
        if row not in costs.apart:
            assert columns(costs, row) == alone.bytes
        joules = device.energy(alone.events)
        assert dict(zip(costs.components, costs.energy[:, row].tolist(), strict=True)) == pytest.approx(joules, rel=1e-6, abs=0.0)


def test_heads_of_an_array_that_can_be_divided_and_fused_kernels_are_costed_apart() -> None:
    apart = [accelerator(array).batch_costs(STEP) for array in (Systolic(rows=4, columns=6), Sigma(dpes=4, multipliers=8))]
    assert [sorted(costs.apart) for costs in apart if costs] == [[2], [1, 2]]


def test_errors_of_sampled_products_add_up_as_squares() -> None:
    layers = [
        Op(body=MatMul(512, 8, 64), inputs=(0, 1), outputs=(2,), letters=("A", "W"), layer=name) for name in ("first", "second")
    ]
    step = Step("two", 1, tuple(layers), tuple(map(TensorSpec, ((512, 64), (64, 8), (512, 8)))))
    device = accelerator(TensorDash(tiles=1, sample=16), scratchpad_bytes=2**20)
    masks = generated_masks(step, {"A": 0.5})
    costs = device.batch_costs(step, masks)
    assert costs is not None
    errors = [device.cost(step, work, masks).uncertainty for work in device.works(step)]
    assert min(errors) > 0
    assert costs.uncertainty_cycles == pytest.approx(math.hypot(*errors))


def test_what_is_too_large_to_be_counted_exactly_or_has_no_room_has_no_columns() -> None:
    large = Step("large", 1, (Op(body=MatMul(2**20, 2**20, 2**20)),), ())
    assert accelerator(Systolic(rows=4, columns=6)).batch_costs(large) is None
    assert accelerator(Systolic(rows=4, columns=6), scratchpad_bytes=8).batch_costs(STEP) is None
    costs = accelerator(Systolic(rows=4, columns=6)).batch_costs(Step("none", 1, STEP.ops[7:], STEP.tensors))
    assert costs is not None
    assert np.array_equal(costs.cycles, [5 + (3 * 3200) // 2])  # in twice, out once
