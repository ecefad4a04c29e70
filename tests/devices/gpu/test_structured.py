"""Products with weights of 2:4 structure on sparse tensor cores: which they are, their bytes, and their MACs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu.structured import sparse_products
from trainyard.ir import Masks, MatMul, Op, Role, Step, Structured, TensorSpec
from trainyard.machines.presets.gpus import A100, V100
from trainyard.masks.generated import generated_masks

GPU = replace(A100, precision="bf16", graphs=True)


def layer(left: bool) -> Step:
    """A linear layer of 64 x 32 weights, which stand on the left or on the right of the product."""
    weight, maps = TensorSpec((64, 32), role=Role.PARAMETER), TensorSpec((16, 32))
    op = (
        Op(body=MatMul(64, 16, 32), name="mm", layer="fc", inputs=(0, 1), outputs=(2,), letters=("W", "A"))
        if left
        else Op(body=MatMul(16, 64, 32), name="mm", layer="fc", inputs=(1, 0), outputs=(2,), letters=("A", "W"))
    )
    return Step("layer", 16, (op,), (weight, maps, TensorSpec((64, 16) if left else (16, 64))))


def masks_of(step: Step, kept: int = 2, of: int = 4) -> Masks:
    return generated_masks(step, weights=Structured(kept, of))


@pytest.mark.parametrize("left", [True, False])
def test_a_structured_weight_on_either_side_is_stored_as_values_and_two_bits_of_place(left: bool) -> None:
    step = layer(left)
    found = sparse_products(GPU, step, masks_of(step))
    assert found is not None
    assert found.ops == {0}
    assert found.applies_to((0,))
    assert not found.applies_to((0, 1))
    assert [spec.elements for spec in found.step.tensors] == [64 * 32 // 2 + 64 * 32 // 2 * 2 // 16, 16 * 32, 64 * 16]


@pytest.mark.parametrize("left", [True, False])
def test_half_of_the_macs_are_done(left: bool) -> None:
    step = layer(left)
    (work,) = GPU.works(step)
    assert GPU.cost(step, work, masks_of(step)).events["mac"] == step.macs / 2
    assert GPU.cost(step, work).events["mac"] == step.macs


def test_other_patterns_other_units_and_other_boards_gain_nothing() -> None:
    step = layer(left=False)
    assert sparse_products(GPU, step, None) is None
    assert sparse_products(GPU, step, masks_of(step, 1, 4)) is None
    assert sparse_products(replace(GPU, precision="fp32"), step, masks_of(step)) is None  # vector lanes
    assert sparse_products(replace(V100, precision="fp16"), step, masks_of(step)) is None
