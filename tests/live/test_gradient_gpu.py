"""The fused gradient kernel on a real GPU: every type, layout and way of adding up, against fp64; and the measured choice."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from trainyard.live.gradient import choice, kernels
from trainyard.live.gradient.configs import Config, candidates

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not kernels.available("cuda") if torch.cuda.is_available() else True, reason="needs a CUDA GPU and triton"),
]
# Relative error in the norm: rounding of the results, and of the products' operands in fp32 (three tf32 products; lanes are exact).
ERROR = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
DTYPES = tuple(ERROR)


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def near(actual: Tensor | None, wanted: Tensor, dtype: torch.dtype) -> None:
    assert actual is not None
    assert actual.shape == wanted.shape
    assert actual.dtype == dtype
    error = float((actual.double() - wanted).norm() / wanted.norm())
    assert error < ERROR[dtype], error


def first(weight: Tensor, deterministic: bool = False) -> Config:
    """Some configuration, untuned: each one is compiled."""
    outputs, inputs = weight.shape
    return candidates(outputs, inputs, weight.element_size(), deterministic=deterministic, describable=False)[0]


def check(dy: Tensor, x: Tensor, weight: Tensor, config: Config | None = None, deterministic: bool = False) -> None:
    config = config or first(weight, deterministic)
    dx, dweight, dbias = kernels.fused(dy, x, weight, bias=True, deterministic=deterministic, config=config)
    wide_dy = dy.double()
    near(dx, wide_dy @ weight.double(), x.dtype)
    near(dweight, wide_dy.t() @ x.double(), x.dtype)
    near(dbias, wide_dy.sum(0), x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(5000, 64, 64), (4999, 200, 72), (3001, 37, 19), (777, 1030, 8), (1, 1, 1)]
)
def test_rows_of_any_size(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    operands = normal(rows, outputs, dtype=dtype), normal(rows, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    check(*operands)
    check(*operands, deterministic=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    check(normal(96, 2000, dtype=dtype).t(), normal(2000, 80, dtype=dtype)[:, ::2], normal(40, 96, dtype=dtype).t())
    check(normal(2000, 104, dtype=dtype)[:, 3:99], normal(40, 2000, dtype=dtype).t(), normal(96, 40, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", [3136, 196, 49])
def test_images(places: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    dy, x, weight = normal(6, 96, places, dtype=dtype), normal(6, 40, places, dtype=dtype), normal(96, 40, dtype=dtype)
    dx, dweight, dbias = kernels.fused_batched(dy, x, weight, bias=True, deterministic=True, config=first(weight, True))
    near(dx, weight.double().t() @ dy.double(), dtype)
    near(dweight, torch.einsum("bnp,bkp->nk", dy.double(), x.double()), dtype)
    near(dbias, dy.double().sum((0, 2)), dtype)


@pytest.mark.parametrize(("outputs", "inputs"), [(256, 64), (1024, 16)])
def test_every_candidate(outputs: int, inputs: int) -> None:
    torch.manual_seed(3)
    dtype = torch.bfloat16
    operands = normal(3000, outputs, dtype=dtype), normal(3000, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    for config in candidates(outputs, inputs, 2, deterministic=False, describable=True)[: kernels.TRIALS]:
        try:
            check(*operands, config=config)
        except RuntimeError as error:  # more programs than this device holds at once: the tuner leaves it out
            assert "cooperative" in str(error)  # noqa: PT017


@pytest.mark.parametrize(("outputs", "inputs"), [(256, 64), (2048, 16)])
def test_deterministic_passes_agree_to_the_bit(outputs: int, inputs: int) -> None:
    torch.manual_seed(4)
    dtype = torch.bfloat16
    operands = normal(20000, outputs, dtype=dtype), normal(20000, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    first = kernels.fused(*operands, bias=True, deterministic=True)
    for _ in range(3):
        again = kernels.fused(*operands, bias=True, deterministic=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True) if a is not None and b is not None)


def test_inside_a_graph_and_on_two_streams() -> None:
    torch.manual_seed(5)
    dtype = torch.bfloat16
    dy, x, weight = normal(8192, 128, dtype=dtype), normal(8192, 64, dtype=dtype), normal(128, 64, dtype=dtype)
    wanted = kernels.fused(dy, x, weight, bias=False, deterministic=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = kernels.fused(dy, x, weight, bias=False, deterministic=True)
    for _ in range(3):
        graph.replay()
    assert torch.equal(actual[0], wanted[0])
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for number in range(8):
        with torch.cuda.stream(streams[number % 2]):
            results.append(kernels.fused(dy, x, weight, bias=False, deterministic=True))
    torch.cuda.synchronize()
    assert all(torch.equal(result[1], wanted[1]) for result in results)


def test_choose_takes_the_faster_path() -> None:
    chosen = partial(choice.choose, dtype=torch.bfloat16, device="cuda")
    assert chosen(4096, 4096, 4096) == "pair"  # arithmetic
    assert chosen(512, 64, 64) == "pair"  # over before the next call is issued
    assert chosen(2**21, 64, 64) == "fused"
    assert chosen(2**21, 64, 64) == "fused"  # remembered
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        assert chosen(2**20 + 64, 128, 32) == "fused"  # the bound alone
        assert chosen(2**20 + 64, 4096, 64) == "pair"


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_large_pointwise_convolution_by_the_measured_rule(channels_last: bool) -> None:
    """The rule times images as images; whichever way it takes, the gradients are torch's."""
    from trainyard.live.gradient import convolution

    torch.manual_seed(6)
    form = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(32, 64, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=form).requires_grad_()
    weight = torch.randn(256, 64, 1, 1, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(32, 256, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=form)
    actual = torch.autograd.grad(convolution(x, weight), (x, weight), dy)
    wanted = torch.autograd.grad(torch.nn.functional.conv2d(x.double(), weight.double()), (x, weight), dy.double())
    for mine, theirs in zip(actual, wanted, strict=True):
        near(mine, theirs.double(), torch.bfloat16)
