"""A small step by hand and a small accelerator."""

from __future__ import annotations

import pytest

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update


@pytest.fixture
def device() -> Accelerator:
    return Accelerator(array=Systolic(rows=8, columns=8), scratchpad="64 KiB", dram="1 GB/s", clock="100 MHz")


@pytest.fixture
def step() -> Step:
    """Two linear layers: forward, the gradients of both weights, an update of each."""
    batch, width = 24, 16
    rows = [
        TensorSpec((batch, width), role=Role.INPUT, name="x", slope=(1, 0)),
        TensorSpec((width, width), role=Role.PARAMETER, name="a.weight"),
        TensorSpec((width, width), role=Role.PARAMETER, name="b.weight"),
        TensorSpec((batch, width), slope=(1, 0)),
        TensorSpec((batch, width), slope=(1, 0)),
        TensorSpec((batch, width), slope=(1, 0)),
        TensorSpec((batch, width), role=Role.GRADIENT, slope=(1, 0)),
        TensorSpec((width, width), role=Role.PARAMETER_GRADIENT, name="b.weight"),
        TensorSpec((batch, width), role=Role.GRADIENT, slope=(1, 0)),
        TensorSpec((width, width), role=Role.PARAMETER_GRADIENT, name="a.weight"),
        TensorSpec((width, width), role=Role.PARAMETER, name="b.weight", view_of=2),
        TensorSpec((width, width), role=Role.PARAMETER, name="a.weight", view_of=1),
    ]
    product, weight = MatMul(batch, width, width), MatMul(width, width, batch)
    tanh, loss, sgd = ElementWise("tanh", batch * width), ElementWise("loss", batch * width), Update("SGD", width * width)
    grows, deepens = (1, 0, 0, 0), (0, 0, 1, 0)
    table = (
        # body, name, layer, phase, inputs, outputs, letters, slope
        (product, "mm", "a", Phase.FORWARD, (0, 1), (3,), ("A", "W"), grows),
        (tanh, "tanh", "act", Phase.FORWARD, (3,), (4,), (), (width, 0)),
        (product, "mm", "b", Phase.FORWARD, (4, 2), (5,), ("A", "W"), grows),
        (loss, "loss", "loss", Phase.LOSS, (5,), (6,), (), (width, 0)),
        (weight, "mm", "b", Phase.GRAD_WEIGHT, (4, 6), (7,), ("A", "G"), deepens),
        (product, "mm", "b", Phase.GRAD_INPUT, (6, 2), (8,), ("G", "W"), grows),
        (weight, "mm", "a", Phase.GRAD_WEIGHT, (0, 8), (9,), ("A", "G"), deepens),
        (sgd, "sgd", "b", Phase.UPDATE, (2, 7), (10,), (), ()),
        (sgd, "sgd", "a", Phase.UPDATE, (1, 9), (11,), (), ()),
    )
    columns = ("body", "name", "layer", "phase", "inputs", "outputs", "letters", "slope")
    ops = tuple(Op(**dict(zip(columns, row, strict=True))) for row in table)
    return Step("two layers", batch, ops, tuple(rows))
