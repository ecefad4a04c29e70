"""The fused kernel through autograd, torch.compile and opcheck. It runs where Triton interprets its kernels:
`test_gradient_kernels.py` starts such a process, for this file and its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainyard.live.gradient import convolution, gradients, kernels, linear
from trainyard.live.gradient.reference import pair

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not kernels.interpreted(), reason="runs in the interpreter's process")


def close(found: Any, expected: Any, atol: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("sizes", [(37, 20, 33), (1, 1, 1), (64, 16, 16), (5, 70, 3)])
def test_gradients_are_those_of_the_reference(sizes: tuple[int, int, int], deterministic: bool) -> None:
    torch.manual_seed(0)
    rows, outputs, inputs = sizes
    dy, x, w = torch.randn(rows, outputs), torch.randn(inputs, rows).t(), torch.randn(outputs, inputs)
    found = gradients(dy, x, w, bias=True, kernel="fused", deterministic=deterministic)
    close(found, pair(dy, x, w, bias=True), 1e-4)


def gradients_through(function: Callable[..., Tensor], shapes: Any, layout: Any, options: dict[str, Any]) -> tuple[Tensor, Any]:
    torch.manual_seed(1)
    leaves = [torch.randn(shape) for shape in shapes]
    leaves[0] = leaves[0].contiguous(memory_format=layout)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y = function(*leaves, **options)
    return y, torch.autograd.grad(y.square().sum(), leaves)


@pytest.mark.parametrize("shapes", [((2, 9, 18), (20, 18), (20,)), ((0, 18), (20, 18), (20,))])
def test_autograd_of_a_linear_layer_is_torchs(shapes: Any) -> None:
    y, found = gradients_through(linear, shapes, torch.contiguous_format, {"kernel": "fused"})
    assert type(y.grad_fn).__name__ == "_LinearBackward"
    close(found, gradients_through(F.linear, shapes, torch.contiguous_format, {})[1], 1e-3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("options", "shapes"),
    [({}, ((2, 18, 5, 4), (20, 18, 1, 1), (20,))), ({"stride": (2, 2)}, ((2, 18, 5, 4), (20, 18, 1, 1)))],
)
def test_autograd_of_a_convolution_is_torchs(options: dict[str, Any], shapes: Any, layout: Any) -> None:
    y, found = gradients_through(convolution, shapes, layout, {**options, "kernel": "fused"})
    assert type(y.grad_fn).__name__ == "_ConvolutionBackward"
    close(found, gradients_through(F.conv2d, shapes, layout, options)[1], 1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_into_one_graph(dynamic: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(9, 18, requires_grad=True), torch.randn(20, 18, requires_grad=True)
    torch._dynamo.reset()
    run = torch.compile(lambda x, w: linear(x, w, kernel="fused"), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    found, expected = (torch.autograd.grad(function(x, w).square().sum(), (x, w)) for function in (run, F.linear))
    close(found, expected, 1e-3)


def test_the_operator_passes_torchs_opcheck() -> None:
    operands = torch.randn(9, 20), torch.randn(9, 18), torch.randn(20, 18)
    kinds = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.trainyard.gradient_pair, (*operands, True, "fused", True), test_utils=kinds)
