"""Shares of zeros instead of masks: arrays cost what generated masks of these shares cost, nobody is told where the zeros are."""

from __future__ import annotations

import pytest
from tests.systems.node.networks import chain

import trainyard as ty
from trainyard.errors import BadInput, MaskError
from trainyard.ir import Density, Phase
from trainyard.masks.densities import Densities

STEP = chain((256, 512, 256), 128)
SHARES = {(layer, 0, letter): share for layer in ("l0", "l1") for letter, share in (("A", 0.4), ("G", 0.5), ("W", 1.0))}


@pytest.mark.parametrize("array", ["tensordash", "sigma"])
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_densities_cost_what_masks_of_that_density_cost(array: str, order: str) -> None:
    machine = f"npu-small(array={array},order={order},reuse=lru,dram=1 TB/s)"
    masks = ty.generated_masks(STEP, {"A": 0.6, "G": 0.5})
    exact, expected, dense = (ty.run(STEP, on=machine, masks=zeros) for zeros in (masks, Densities("told", SHARES), None))
    assert expected.array_cycles == pytest.approx(exact.array_cycles, rel=0.03)
    assert expected.energy_j == pytest.approx(exact.energy_j, rel=0.03)
    assert expected.array_cycles < dense.array_cycles  # type: ignore[operator]  # an accelerator counts them


def test_every_device_of_a_node_has_the_same_densities() -> None:
    options = Densities("told", SHARES)
    node = ty.run(STEP, on="mcdla-b(device=npu-small(array=tensordash),overlay=off)", masks=options)
    alone = ty.run(STEP.rebatch(STEP.batch // 8), on="npu-small(array=tensordash)", masks=options)
    assert node.group("kind")[("compute",)].busy_s == pytest.approx(alone.time_s, rel=1e-6)


def test_zero_rows_become_channels_where_rows_are_reduced() -> None:
    options = Densities("padded", {("fc", 0, "G"): 0.25}, rows=frozenset("G"))
    assert options.operand(("fc", 0, "G"), Phase.GRAD_INPUT) == Density(0.25, "row")
    assert options.operand(("fc", 0, "G"), Phase.GRAD_WEIGHT) == Density(0.25, "channel")
    assert Densities("w", {("fc", 0, "W"): 0.5}).density(("fc", 3, "W")) == 0.5  # one weight for all calls


def test_bits_of_densities_raise() -> None:
    options = Densities("told", SHARES)
    with pytest.raises(MaskError, match="how many zeros there are, not where"):
        options.bits(("l0", 0, "A"))
    with pytest.raises(BadInput, match="between 0 and 1"):
        Densities("wrong", {("l0", 0, "A"): 1.5})
    with pytest.raises(MaskError, match="know no layer"):
        ty.run(STEP, on="npu", masks=Densities("other", {("conv1", 0, "A"): 0.5}))
    assert options.digest != Densities("told", {**SHARES, ("l0", 0, "A"): 0.41}).digest
