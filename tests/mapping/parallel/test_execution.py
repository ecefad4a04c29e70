"""Devices that follow a transformed step compute what one device computes from the whole step, bit for bit in whole numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.parallel_execution import execute
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Collective, Convolution, ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec, Update
from trainyard.ir.ops import dimensions
from trainyard.mapping.parallel import transform as parallel

F, L, X, W, U = Phase.FORWARD, Phase.LOSS, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT, Phase.UPDATE


def network(batch, widths, image=None):
    """Fully connected layers with ReLU between them, behind a convolution of an image (channels in, channels out, size) if any."""
    now, later = (_network(samples, widths, image) for samples in (batch, batch + 1))
    tensors = tuple(replace(a, slope=_slope(a.shape, b.shape)) for a, b in zip(now.tensors, later.tensors, strict=True))
    ops = tuple(replace(a, slope=_slope(dimensions(a.body), dimensions(b.body))) for a, b in zip(now.ops, later.ops, strict=True))
    return replace(now, tensors=tensors, ops=ops)


def _slope(now, later):
    return tuple(b - a for a, b in zip(now, later, strict=True))


class _Making:
    def __init__(self):
        self.tensors, self.ops = [], []

    def tensor(self, *shape, role=Role.ACTIVATION, view_of=None, name=""):
        self.tensors.append(TensorSpec(shape, role=role, view_of=view_of, name=name))
        return len(self.tensors) - 1

    def op(self, body, layer, phase, inputs, output, letters=()):
        self.ops.append(
            Op(body=body, name=type(body).__name__, layer=layer, phase=phase, inputs=inputs, outputs=(output,), letters=letters)
        )
        return output


def _network(batch, widths, image):
    made = _Making()
    size = None
    parameters = []
    if image is not None:
        channels, maps, size = image
        body = Convolution(batch=batch, in_channels=channels, out_channels=maps, size=size, kernel=(3, 3), padding=(1, 1))
        x = made.tensor(batch, channels, *size, role=Role.INPUT)
        kernel = made.tensor(maps, channels, 3, 3, role=Role.PARAMETER, name="conv.weight")
        first = made.op(body, "conv", F, (x, kernel), made.tensor(batch, maps, *size), ("A", "W"))
        flat = made.tensor(batch, maps * size[0] * size[1], view_of=first)
        widths = (maps * size[0] * size[1], *widths)
        read = made.op(ElementWise("relu", batch * widths[0]), "conv", F, (flat,), made.tensor(batch, widths[0]))
        rectified = read
    else:
        read = made.tensor(batch, widths[0], role=Role.INPUT)
    layers = []
    for number, (wide, out) in enumerate(pairwise(widths)):
        layer = f"fc{number}"
        weight = made.tensor(out, wide, role=Role.PARAMETER, name=f"{layer}.weight")
        bias = made.tensor(out, role=Role.PARAMETER, name=f"{layer}.bias")
        turned = made.tensor(wide, out, role=Role.PARAMETER, view_of=weight)
        result = made.op(MatMul(batch, out, wide), layer, F, (read, turned, bias), made.tensor(batch, out), ("A", "W"))
        layers.append((layer, weight, bias, read, result))
        if number < len(widths) - 2:
            read = made.op(ElementWise("relu", batch * out), layer, F, (result,), made.tensor(batch, out))
    target = made.tensor(batch, widths[-1], role=Role.TARGET)
    elements = batch * widths[-1]
    made.op(Reduction("squared_error", elements, 1), "loss", L, (result, target), made.tensor())
    gradient = made.tensor(batch, widths[-1], role=Role.GRADIENT)
    made.op(ElementWise("squared_error_backward", elements), "loss", X, (result, target), gradient)
    for layer, weight, bias, read, _ in reversed(layers):
        out, wide = made.tensors[weight].shape
        if layer != "fc0" or image is not None:
            dx = made.tensor(batch, wide, role=Role.GRADIENT)
            made.op(MatMul(batch, wide, out), layer, X, (gradient, weight), dx, ("G", "W"))
        turned = made.tensor(out, batch, role=Role.GRADIENT, view_of=gradient)
        dw = made.tensor(out, wide, role=Role.PARAMETER_GRADIENT)
        made.op(MatMul(out, wide, batch), layer, W, (turned, read), dw, ("G", "A"))
        db = made.tensor(out, role=Role.PARAMETER_GRADIENT)
        made.op(Reduction("sum", batch * out, out), layer, W, (gradient,), db)
        parameters += [(layer, weight, dw), (layer, bias, db)]
        if layer != "fc0":
            below = made.tensor(batch, wide, role=Role.GRADIENT)
            gradient = made.op(ElementWise("threshold_backward", batch * wide), layer, X, (dx, read), below)
    if image is not None:
        below = made.op(
            ElementWise("threshold_backward", batch * widths[0]),
            "conv",
            X,
            (dx, rectified),
            made.tensor(batch, widths[0], role=Role.GRADIENT),
        )
        maps_gradient = made.tensor(batch, maps, *size, role=Role.GRADIENT, view_of=below)
        dw = made.tensor(maps, channels, 3, 3, role=Role.PARAMETER_GRADIENT)
        made.op(body.as_product("grad_weight"), "conv", W, (maps_gradient, x), dw, ("G", "A"))
        parameters.append(("conv", kernel, dw))
    for layer, weight, dw in parameters:
        shape = made.tensors[weight].shape
        new = made.tensor(*shape, role=Role.PARAMETER, view_of=weight)
        made.op(Update("SGD", made.tensors[weight].elements), layer, U, (weight, dw), new)
    return Step(name="made", batch=batch, ops=tuple(made.ops), tensors=tuple(made.tensors))


def given_values(step, seed, kind):
    draw = np.random.default_rng(seed)
    roles = (Role.INPUT, Role.TARGET, Role.PARAMETER)
    shapes = {t: spec.shape for t, spec in enumerate(step.tensors) if spec.role in roles and spec.view_of is None}
    if kind == "whole":
        return {t: draw.integers(-4, 5, shape) for t, shape in shapes.items()}
    return {t: draw.standard_normal(shape) for t, shape in shapes.items()}


def parameters(step):
    return [t for t, spec in enumerate(step.tensors) if spec.role is Role.PARAMETER and spec.view_of is None]


def ways(step, devices):
    """Every way of sharing a step, with every option."""
    yield "data", parallel.data(step, devices)
    yield "data in buckets", parallel.data(step, devices, bucket_bytes=10**6)
    layers = sorted({op.layer for op in step.ops if op.is_product})
    for exchange in ("all_reduce", "reduce_scatter"):
        for stored in ("shard", "whole"):
            yield f"model {exchange} {stored}", parallel.model(step, devices, exchange=exchange, stored=stored)
            for cut in range(1, len(layers)):
                for order in (("data", "model"), ("model", "data")):
                    choice = {layer: order[place >= cut] for place, layer in enumerate(layers)}
                    yield (
                        f"mixed {choice} {exchange} {stored}",
                        parallel.mixed(step, devices, choice=choice, exchange=exchange, stored=stored),
                    )
    yield "mixed auto", parallel.mixed(step, devices)


def check(step, devices, kind, seed=0):
    values = given_values(step, seed, kind)
    one = execute(step, step, 1, values)
    for way, mine in ways(step, devices):
        if "bucket" in way:
            assert sum(parallel.exchanged(mine).values()) == step.parameters
            continue  # a bucket is one exchange of several tensors; its sums are those of `data`
        together = execute(step, mine, devices, values)
        assert together.exchanged == parallel.exchanged(mine), way
        for tensor in parameters(step):
            if kind == "whole":
                assert np.array_equal(together.joined(tensor), one.joined(tensor)), (way, tensor)
            else:
                assert np.allclose(together.joined(tensor), one.joined(tensor), rtol=1e-12, atol=1e-9), (way, tensor)


@pytest.mark.oracle
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_devices_compute_what_one_computes(data):
    devices = data.draw(st.integers(2, 4))
    batch = devices * data.draw(st.integers(1, 3))
    odd = [size for size in range(2, 14) if size != batch]  # a square matrix does not tell whether it was turned
    widths = data.draw(st.lists(st.sampled_from(odd), min_size=3, max_size=4, unique=True))
    check(network(batch, tuple(widths)), devices, data.draw(st.sampled_from(["whole", "real"])), data.draw(st.integers(0, 99)))


@pytest.mark.oracle
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("maps", [6, 7])
def test_a_convolution_in_front(devices, maps):
    check(network(12, (11, 5), image=(3, maps, (4, 5))), devices, "whole")


def test_more_devices_than_features_leave_some_idle():
    check(network(8, (9, 13, 3)), 4, "whole")


def test_an_exchange_left_out_is_noticed():
    step = network(8, (9, 12, 6))
    mine = parallel.data(step, 4)
    without = replace(mine, ops=tuple(op for op in mine.ops if not isinstance(op.body, Collective)))
    values = given_values(step, 0, "whole")
    done = execute(step, without, 4, values)
    with pytest.raises(BadInput, match="same on all devices"):
        done.joined(parameters(step)[0])
    mine = parallel.model(step, 4)
    first = next(place for place, op in enumerate(mine.ops) if isinstance(op.body, Collective))
    with pytest.raises(BadInput, match="read on device 0 before"):
        execute(step, replace(mine, ops=mine.ops[:first] + mine.ops[first + 1 :]), 4, values)


def test_what_is_not_computed_is_said():
    step = network(4, (6, 5))
    strange = replace(
        step, ops=(replace(step.ops[0], body=ElementWise("gelu", 20), letters=(), name="gelu", slope=()), *step.ops[1:])
    )
    with pytest.raises(NotModelled, match="not computed here"):
        execute(step, strange, 1, given_values(step, 0, "whole"))
    with pytest.raises(BadInput, match="got values of shape"):
        execute(step, step, 1, {0: np.ones(3)})


def test_a_captured_network_gets_torch_s_own_gradients():
    """nn.Module -> capture -> transform -> four devices, against autograd in double precision."""
    torch = pytest.importorskip("torch")
    import trainyard as ty

    def model():
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.ReLU(), torch.nn.Linear(8 * 4 * 5, 12)]
        return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(12, 6)).double()

    network, inputs, targets = model(), torch.randn(4, 3, 4, 5).double(), torch.randn(4, 6).double()
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    step = ty.capture(network, inputs, targets, loss=loss, optimizer=optimizer)
    before = {name: value.detach().clone().numpy() for name, value in network.named_parameters()}
    loss(network(inputs), targets).backward()
    roles = {Role.INPUT: lambda _: inputs.numpy(), Role.TARGET: lambda _: targets.numpy(), Role.PARAMETER: before.__getitem__}
    values = {t: roles[spec.role](spec.name) for t, spec in enumerate(step.tensors) if spec.role in roles and spec.view_of is None}
    for way, mine in ways(step, 4):
        if "bucket" in way:
            continue
        done = execute(step, mine, 4, values)
        assert done.exchanged == parallel.exchanged(mine)
        for tensor in parameters(step):
            name = step.tensors[tensor].name
            gradient = dict(network.named_parameters())[name].grad.numpy()
            assert np.allclose(before[name] - done.joined(tensor), gradient, rtol=1e-9, atol=1e-12), (way, name)
