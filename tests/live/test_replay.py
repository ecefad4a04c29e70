"""Replay: a Step without a model, measured; times sum, products are the real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainyard as ty
from trainyard.errors import NotModelled
from trainyard.ir import Collective, Convolution, Gather, MatMul, Op, Phase, Step, TensorSpec
from trainyard.live.measurement.replay import _Builder


def test_a_step_is_measured_without_its_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    inputs, labels = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    optimizer = torch.optim.Adam(model.parameters())
    step = ty.capture(model, inputs, labels, loss=nn.functional.cross_entropy, optimizer=optimizer)
    result = ty.measure(step, device="cpu", repeats=3, warmup=1)
    assert result.macs == step.macs
    assert result.time_s > 0
    assert sum(cost.time_s for cost in result.by_layer.values()) == pytest.approx(result.time_s)
    assert {"forward", "grad_weight", "update"} <= set(result.by_phase)
    assert any("stand-ins" in note for note in result.notes)


@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
def test_convolutions_have_the_shapes_of_their_geometry(product: str) -> None:
    body = Convolution(
        batch=2, in_channels=4, out_channels=6, size=(7, 5), kernel=(3, 2), stride=(2, 1), padding=(1, 0), groups=2, product=product
    )
    step = Step("one", 1, (Op(body=body),), ())
    actual = _Builder(step, torch.device("cpu")).call(step.ops[0])()
    shapes = {
        "forward": (2, 6, *body.out_size),
        "grad_input": (2, 4, 7, 5),
        "grad_weight": (6, 2, 3, 2),
    }
    tensor = actual if product == "forward" else next(t for t in actual if t is not None)
    assert tuple(tensor.shape) == shapes[product]


def test_products_and_lookups_have_their_shapes() -> None:
    step = Step("some", 1, (Op(body=MatMul(3, 4, 5)), Op(body=MatMul(3, 4, 5, count=2)), Op(body=Gather(7, 4, 9))), ())
    builder = _Builder(step, torch.device("cpu"))
    assert [tuple(builder.call(op)().shape) for op in step.ops] == [(3, 4), (2, 3, 4), (7, 4)]


def test_a_collective_cannot_be_replayed_on_one_device() -> None:
    op = Op(body=Collective("all_reduce", 8, 4), name="all_reduce", layer="fc", phase=Phase.GRAD_WEIGHT, inputs=(0,), outputs=(0,))
    with pytest.raises(NotModelled, match="'fc' is a collective"):
        ty.measure(Step("ddp", 1, (op,), (TensorSpec((8,)),)), device="cpu", repeats=1)
