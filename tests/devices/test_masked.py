"""An array that looks at zeros gets each tile's own view of the masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from trainyard.devices import Accelerator
from trainyard.ir import DENSE, ArrayCost, Convolution, MaskView, MatMul, Op, Phase, Role, Step, TensorSpec, one_after_another
from trainyard.mapping.lowering import lower, matrix


@dataclass(frozen=True)
class Pairs:
    """One cycle for each pair of non-zeros (and one for an empty tile): the sum over tiles is a count that numpy can check."""

    peak_macs_per_cycle: int = 1

    def granule(self):
        return (2, 2, 2)

    def cost(self, op, *, a=DENSE, b=DENSE):
        left = matrix(a) if isinstance(a, MaskView) else np.ones((op.M, op.K), bool)
        right = matrix(b) if isinstance(b, MaskView) else np.ones((op.K, op.N), bool)
        assert left.shape == (op.M, op.K)
        assert right.shape == (op.K, op.N)
        pairs = int((left.astype(int) @ right.astype(int)).sum()) * op.count
        return ArrayCost(cycles=max(1, pairs), events={"mac": float(pairs)})

    def concurrent(self, products):
        return one_after_another(self, products)


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = "bits"

    def bits(self, key):
        assert key[:2] == ("layer", 0)
        return self.tensors[key[2]]


DEVICE = Accelerator(array=Pairs(), scratchpad_bytes=2000, dram="1 TB/s", dram_latency=0, tiling=(3, 2, 4), fusion="none")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
def test_tiles_of_a_convolution_see_exactly_their_zeros(product, groups):
    body = Convolution(
        batch=2,
        in_channels=4,
        out_channels=6,
        size=(5, 4),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 0),
        groups=groups,
        product=product,
    )
    random = np.random.default_rng(groups)
    masks = Bits(
        {
            "A": random.random((2, 4, 5, 4)) < 0.5,
            "W": random.random((6, 4 // groups, 3, 2)) < 0.5,
            "G": random.random((2, 6, *body.out_size)) < 0.5,
        }
    )
    first, second = {"forward": "AW", "grad_input": "GW", "grad_weight": "AG"}[product]
    a, b = lower(body).matrices(masks.tensors[first].astype(int), masks.tensors[second].astype(int))
    step = Step(name="made", batch=2, ops=(Op(body=body, layer="layer"),), tensors=())
    cost = DEVICE.cost(step, DEVICE.works(step)[0], masks)
    assert cost.events["mac"] == np.matmul(a, b).sum()
    assert cost.events["mac"] < DEVICE.cost(step, DEVICE.works(step)[0]).events["mac"]


@pytest.mark.parametrize(("rows", "wide", "deep"), [(6, 5, 7), (6, 6, 6)])
def test_tiles_of_a_linear_layer_see_exactly_their_zeros(rows, wide, deep):
    """nn.Linear keeps W as (out, in), so the forward product reads it turned, and dW comes from A turned."""
    random = np.random.default_rng(rows)
    a, w, g = random.random((rows, deep)) < 0.5, random.random((wide, deep)) < 0.5, random.random((rows, wide)) < 0.5
    masks = Bits({"A": a, "W": w, "G": g})
    tensors = (
        TensorSpec((rows, deep)), TensorSpec((wide, deep), role=Role.PARAMETER), TensorSpec((deep, wide), view_of=1),
        TensorSpec((rows, wide)), TensorSpec((rows, wide), role=Role.GRADIENT),
        TensorSpec((rows, deep), role=Role.GRADIENT), TensorSpec((wide, deep), role=Role.PARAMETER_GRADIENT),
    )  # fmt: skip
    backward = {"layer": "layer"}
    ops = (
        Op(body=MatMul(rows, wide, deep), layer="layer", inputs=(0, 2), outputs=(3,), letters=("A", "W")),
        Op(body=MatMul(rows, deep, wide), phase=Phase.GRAD_INPUT, inputs=(4, 1), outputs=(5,), letters=("G", "W"), **backward),
        Op(body=MatMul(wide, deep, rows), phase=Phase.GRAD_WEIGHT, inputs=(4, 0), outputs=(6,), letters=("G", "A"), **backward),
    )
    step = Step(name="made", batch=rows, ops=ops, tensors=tensors)
    a, w, g = a.astype(int), w.astype(int), g.astype(int)
    expected = [(a @ w.T).sum(), (g @ w).sum(), (g.T @ a).sum()]
    assert [DEVICE.cost(step, work, masks).events["mac"] for work in DEVICE.works(step)] == expected


def test_without_letters_or_masks_everything_is_dense():
    step = Step(name="made", batch=1, ops=(Op(body=MatMul(4, 4, 4, 2), layer="layer"),), tensors=())
    work = DEVICE.works(step)[0]
    assert DEVICE.cost(step, work, Bits({})).events["mac"] == DEVICE.cost(step, work).events["mac"] == 128


def test_masked_tiles_cost_at_most_dense_ones():
    body = MatMul(8, 8, 8)
    masks = Bits({"A": np.eye(8, dtype=bool), "W": np.ones((8, 8), bool)})
    step = Step(name="made", batch=1, ops=(Op(body=body, layer="layer", letters=("A", "W")),), tensors=())
    searched = replace(DEVICE, tiling="search", scratchpad_bytes=500)
    work = searched.works(step)[0]
    assert searched.cost(step, work, masks).cycles <= searched.cost(step, work).cycles
