"""Gradients of a convolution in turn, where dX multiplies windows of dY: tiles of channels and samples, with real numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d, conv_transpose2d

from trainyard.arrays import Systolic, TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.masked_tiles import TileCosts
from trainyard.devices.accelerator.ordered import pair_of
from trainyard.ir import Convolution, Op, Phase, Step, Work
from trainyard.ir.folds import AXES
from trainyard.mapping.demand import PairDemand
from trainyard.mapping.gradient_order.tile_streams import ORDERS, grid, stream
from trainyard.mapping.lowering import lower
from trainyard.mapping.profile import demand
from trainyard.masks.densities import Densities

SAME = Convolution(batch=6, in_channels=5, out_channels=7, size=(8, 8), kernel=(3, 3), padding=(1, 1))
STRIDED = replace(SAME, stride=(2, 2))
POINTS = replace(SAME, kernel=(1, 1), padding=(0, 0), stride=(2, 2))
CHIP = Accelerator(
    array=Systolic(rows=4, columns=4), scratchpad_bytes=16384, dram_bytes_per_s=4e9, order="cost", grad_input="dilated",
    scope="products", precision="fp16",
)  # fmt: skip


def layer(body: Convolution) -> Step:
    dx = Op(body=body.as_product("grad_input"), layer="conv", letters=("G", "W"), phase=Phase.GRAD_INPUT)
    dw = Op(body=body.as_product("grad_weight"), layer="conv", letters=("A", "G"), phase=Phase.GRAD_WEIGHT)
    return Step(name="one", batch=body.batch, ops=(dx, dw), tensors=())


def gradients_of(body: Convolution, **fields: Any) -> tuple[Accelerator, Step, list[Work]]:
    device, step = replace(CHIP, **fields), layer(body)
    return device, step, [work for work in device.works(step) if work.grouping == "gradient_pair"]


@pytest.mark.parametrize("body", [SAME, STRIDED, POINTS], ids=["same", "strided", "points"])
@pytest.mark.parametrize("order", ORDERS[:4])
def test_tiles_of_samples_and_channels_add_up_to_the_gradients(body: Convolution, order: Any) -> None:
    """m is cut into whole samples; each tile operation touches dY of its samples and output channels alone."""
    device, step, (work,) = gradients_of(body)
    asked = demand(step, work, device.policy)
    assert isinstance(asked, PairDemand)
    pair = pair_of(asked.dx, asked.dw)
    positions = pair.op.M // body.batch
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (body.batch, body.in_channels, *body.size)).double().requires_grad_()
    w = torch.randint(-3, 4, (body.out_channels, body.in_channels, *body.kernel)).double().requires_grad_()
    y = conv2d(x, w, stride=body.stride, padding=body.padding)
    dy = torch.randint(-3, 4, y.shape).double()
    y.backward(dy)
    dx, dw = torch.zeros_like(x), torch.zeros_like(w)
    cut = grid(pair.op, (2 * positions, 3, 2), None)
    begin = {axis: [sum(cut.sizes(axis)[:number]) for number in range(len(cut.sizes(axis)))] for axis in AXES}
    rest = [s + 2 * p - k for s, p, k in zip(body.size, body.padding, body.kernel, strict=True)]
    extra = tuple(r % s for r, s in zip(rest, body.stride, strict=True))
    for (op,) in stream(cut, order):
        m, n, k = (
            slice(begin[axis][at], begin[axis][at] + cut.sizes(axis)[at]) for axis, at in zip(AXES, (op.m, op.n, op.k), strict=True)
        )
        samples = slice(m.start // positions, m.stop // positions)
        if op.gradient == "dX":
            dx[samples, k] += conv_transpose2d(
                dy[samples, n], w.detach()[n, k], stride=body.stride, padding=body.padding, output_padding=extra
            )
        else:
            part = x.detach()[samples, k]
            dw[n, k] += torch.nn.grad.conv2d_weight(
                part, (n.stop - n.start, part.shape[1], *body.kernel), dy[samples, n], stride=body.stride, padding=body.padding
            )
    assert torch.equal(dx, x.grad)  # type: ignore[arg-type]
    assert torch.equal(dw, w.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [SAME, STRIDED, POINTS], ids=["same", "strided", "points"])
def test_a_pair_has_the_products_and_the_bytes_of_its_gradients(body: Convolution) -> None:
    device, step, (work,) = gradients_of(body)
    asked = demand(step, work, device.policy)
    assert isinstance(asked, PairDemand)
    pair = pair_of(asked.dx, asked.dw)
    products = [lower(body.as_product(which), "dilated").product for which in ("grad_input", "grad_weight")]
    op = pair.op
    whole = [pair.products.of(gradient, op.M, op.N, op.K) for gradient in ("dX", "dW")]
    assert [product.macs for product in whole] == [product.macs for product in products]
    assert whole[0] == products[0]
    assert sorted((whole[1].M, whole[1].N)) == sorted((products[1].M, products[1].N))
    assert pair.moved == tuple(
        2 * elements
        for elements in (
            body.output_elements, body.weight_elements, lower(body.as_product("grad_weight")).a.elements, body.input_elements,
            body.weight_elements,
        )
    )  # fmt: skip
    cost = device.cost(step, work)
    assert cost.events["mac_fp16"] == sum(product.macs for product in products)


def test_output_gradients_are_read_once_where_there_is_room() -> None:
    reads = {}
    for order in ("sequential", "cost"):
        device = replace(CHIP, order=order, objective="traffic", scratchpad_bytes=12288)
        step = layer(replace(SAME, batch=64))
        reads[order] = sum(device.cost(step, work).bytes.get(("dY", "read"), 0) for work in device.works(step))
    assert reads["sequential"] == 2 * reads["cost"] == 2 * 2 * 64 * 7 * 64


def test_positions_that_are_no_multiple_stay_apart() -> None:
    """6 x 6 windows of 8 x 8 rows: rows of dX and of dY do not belong together."""
    assert not gradients_of(replace(SAME, padding=(0, 0)))[2]


def test_a_fixed_tile_keeps_whole_windows() -> None:
    device, step, (work,) = gradients_of(SAME, order="interleaved", tiling=(64, 3, 9 * 2))
    (choice,) = device.cost(step, work).chosen
    assert choice.ordered.tile == (64, 3, 2)


@pytest.mark.parametrize("body", [replace(SAME, batch=7), STRIDED], ids=["same", "strided"])
@pytest.mark.parametrize("tiling", [(100, 3, 18), (64, 7, 45)])
def test_tiles_with_equal_shares_of_zeros_are_costed_once_for_each_size(
    body: Convolution, tiling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = TensorDash(lanes=4, rows=4, columns=4, tiles=2)
    device, step, (work,) = gradients_of(body, order="interleaved", array=array, tiling=tiling)
    masks = Densities("half", {("conv", 0, "A"): 0.5, ("conv", 0, "G"): 0.4})
    once = device.cost(step, work, masks)
    monkeypatch.setattr(TileCosts, "known_by_shares", property(lambda self: False))
    one_by_one = replace(device).cost(step, work, masks)
    assert (once.cycles, once.compute_cycles, once.bytes) == (one_by_one.cycles, one_by_one.compute_cycles, one_by_one.bytes)
    assert dict(once.events) == pytest.approx(dict(one_by_one.events))
    assert once.compute_cycles < device.cost(step, work).compute_cycles
