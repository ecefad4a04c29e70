"""One pass over dY against the gradients of torch: random shapes and layouts, dtypes, autocast, compilers, derivatives, errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainyard.errors import BadInput, UnknownName
from trainyard.live.gradient import convolution, gradients, linear
from trainyard.live.gradient.function import convolution_path, linear_path
from trainyard.live.gradient.reference import one_pass, pair

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the largest entry


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(actual: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    if expected is None:
        assert actual is None
        return
    assert actual is not None
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=TOLERANCE[dtype] * scale)


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values in other strides."""
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "every other":
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "inside a larger one":
        larger = torch.randn(*tensor.shape[:-2], tensor.shape[-2] + 3, tensor.shape[-1] + 5).to(tensor.dtype)
        larger[..., 1:-2, 2:-3] = tensor
        return larger[..., 1:-2, 2:-3]
    return tensor.contiguous()


LAYOUTS = st.sampled_from(["contiguous", "transposed", "every other", "inside a larger one"])
DTYPES = st.sampled_from(list(TOLERANCE))
SIZES = st.integers(0, 24)


@pytest.mark.oracle
@given(
    st.tuples(SIZES, SIZES, SIZES),
    DTYPES,
    st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    st.booleans(),
    st.integers(1, 300),
    st.integers(0, 99),
)
def test_one_pass_equals_the_products_in_float64(
    sizes: tuple[int, int, int], dtype: torch.dtype, layouts: tuple[str, str, str], bias: bool, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rows, outputs, inputs = sizes
    dy, x, weight = (
        laid_out(torch.randn(*shape).to(dtype), layout)
        for shape, layout in zip(((rows, outputs), (rows, inputs), (outputs, inputs)), layouts, strict=True)
    )
    expected = pair(dy.double(), x.double(), weight.double(), bias=bias)
    for actual in (one_pass(dy, x, weight, bias=bias, block_elements=block), gradients(dy, x, weight, bias=bias)):
        for one, other in zip(actual, expected, strict=True):
            close(one, other, dtype)


@pytest.mark.oracle
@given(st.tuples(st.integers(0, 4), SIZES, SIZES, st.integers(0, 9)), DTYPES, LAYOUTS, st.integers(1, 300), st.integers(0, 99))
def test_one_pass_over_images_equals_one_over_their_rows(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, layout: str, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    samples, outputs, inputs, places = sizes
    dy = laid_out(torch.randn(samples, outputs, places).to(dtype), layout)
    x, weight = torch.randn(samples, inputs, places).to(dtype), torch.randn(outputs, inputs).to(dtype)
    dx, dweight, dbias = one_pass(dy, x, weight, bias=True, block_elements=block)
    rows = [tensor.double().transpose(1, 2).reshape(samples * places, tensor.shape[1]) for tensor in (dy, x)]
    expected = pair(*rows, weight.double(), bias=True)
    close(dx.transpose(1, 2).reshape(expected[0].shape), expected[0], dtype)
    close(dweight, expected[1], dtype)
    close(dbias, expected[2], dtype)


def test_sums_of_sixteen_bit_numbers_are_kept_in_thirty_two() -> None:
    """4096 ones added one after the other in bfloat16 would stop at 256."""
    dy, x, weight = (
        torch.ones(4096, 1, dtype=torch.bfloat16),
        torch.ones(4096, 1, dtype=torch.bfloat16),
        torch.ones(1, 1, dtype=torch.bfloat16),
    )
    _, dweight, dbias = one_pass(dy, x, weight, bias=True, block_elements=1)
    assert dweight.item() == dbias.item() == 4096  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 1, 3, 2), (0,), (2, 0, 3)])
def test_gradients_accept_any_number_of_leading_dimensions(shape: tuple[int, ...]) -> None:
    dy, x, weight = torch.randn(*shape, 4), torch.randn(*shape, 3), torch.randn(4, 3)
    dx, dweight, dbias = gradients(dy, x, weight, bias=True)
    expected = pair(dy.reshape(-1, 4), x.reshape(-1, 3), weight, bias=True) if dy.numel() else None
    assert dx.shape == x.shape
    close(dweight, expected[1] if expected else torch.zeros(4, 3), torch.float32)
    close(dbias, expected[2] if expected else torch.zeros(4), torch.float32)


def test_expanded_gradients_are_read_as_they_are() -> None:
    """y.sum().backward() hands dY down with strides of zero."""
    x, weight = torch.randn(6, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    linear(x, weight).sum().backward()
    close(weight.grad, x.detach().sum(0).expand(4, 3), torch.float32)


@pytest.mark.parametrize(("operands", "message"), [
    ((torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(3, 4)), r"do not fit: dy must be \(..., 3\) and x \(..., 4\)"),
    ((torch.zeros(2, 4), torch.zeros(5, 3), torch.zeros(4, 3)), "same leading dimensions"),
    ((torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(4, 3, 1, 1)), r"weight as \(N, K\)"),
    ((torch.zeros(2, 4), torch.zeros(2, 3).half(), torch.zeros(4, 3)), "dy is float32, x is float16, weight is float32: one of"),
    ((torch.zeros(2, 4).int(), torch.zeros(2, 3).int(), torch.zeros(4, 3).int()), "dy is int32"),
    ((torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(4, 3, device="meta")), "weight is on meta: move all three"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_named(operands: tuple[Tensor, Tensor, Tensor], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        gradients(*operands)


def test_a_kernel_that_is_unknown_or_cannot_run_here() -> None:
    operands = torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(4, 3)
    with pytest.raises(UnknownName, match="did you mean 'fused'"):
        gradients(*operands, kernel="fuse")
    if not os.environ.get("TRITON_INTERPRET"):
        with pytest.raises(BadInput, match="runs on a CUDA GPU"):
            gradients(*operands, kernel="fused")


def test_mixed_dtypes_are_what_autocast_makes_of_them() -> None:
    dy, x, weight = torch.randn(6, 4), torch.randn(6, 3).bfloat16(), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        actual = gradients(dy, x, weight)
    close(actual.weight, pair(dy.bfloat16().double(), x.double(), weight.double(), bias=False)[1], torch.bfloat16)


# --- linear and convolution as torch.nn.functional has them


def torch_gradients(
    function: Callable[..., Tensor], operands: tuple[Tensor, ...], contiguous: bool = False, **options: Any
) -> tuple[Tensor, ...]:
    """The output and every gradient; dY is laid out as the output is, or contiguous."""
    leaves = [operand.detach().clone(memory_format=torch.preserve_format).requires_grad_() for operand in operands]
    y = function(*leaves, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    dy = dy.contiguous() if contiguous else torch.empty_like(y).copy_(dy)
    return y, *torch.autograd.grad(y, leaves, dy)


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.booleans(), DTYPES, LAYOUTS)
@settings(max_examples=25)
def test_linear_equals_torchs_forward_and_gradients(
    rows: int, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, layout: str
) -> None:
    operands = laid_out(torch.randn(2, rows, inputs), layout).to(dtype), torch.randn(outputs, inputs).to(dtype)
    operands += (torch.randn(outputs).to(dtype),) if bias else ()
    forward, *backward = torch_gradients(F.linear, operands)
    found_forward, *actual = torch_gradients(linear, operands)
    assert torch.equal(forward, found_forward)
    for one, other in zip(actual, backward, strict=True):
        close(one, other, dtype)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 1, 4, 4), (1, 6, 1, 1), (2, 5, 1, 7)])
def test_convolution_equals_torchs_forward_and_gradients(
    shape: tuple[int, ...], layout: torch.memory_format, stride: tuple[int, int], contiguous: bool
) -> None:
    torch.manual_seed(0)
    operands = torch.randn(shape).contiguous(memory_format=layout), torch.randn(4, shape[1], 1, 1), torch.randn(4)
    forward, *backward = torch_gradients(F.conv2d, operands, contiguous, stride=stride)
    found_forward, *actual = torch_gradients(convolution, operands, contiguous, stride=stride)
    assert torch.equal(forward, found_forward)
    for one, other in zip(actual, backward, strict=True):
        close(one, other, torch.float32)
    assert contiguous or actual[0].is_contiguous(memory_format=layout)


def test_only_calls_that_need_both_gradients_take_the_one_pass() -> None:
    x, weight, bias = torch.randn(6, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True), torch.randn(4)

    def path(x: Tensor = x, weight: Tensor = weight, bias: Tensor | None = bias, kernel: str = "auto") -> str:
        return linear_path(x, weight, bias, kernel=kernel, deterministic=None)

    assert path() == path(bias=None) == path(kernel="reference") == "reference"
    alone = {
        "no gradient of x": path(x=x.detach()),
        "frozen": path(weight=weight.detach()),
        "a vector": path(x=x[0]),
        "by name": path(kernel="pair"),
        "dtypes differ": path(bias=bias.double()),
        "shapes differ": path(weight=weight.mT),
        "complex": path(x.cfloat(), weight.cfloat(), None),
    }
    assert set(alone.values()) == {"pair"}, alone
    with torch.no_grad():
        assert path() == "pair"
    images = torch.randn(2, 3, 4, 4, requires_grad=True), weight[..., None, None], bias
    assert convolution_path(*images, stride=(2, 2), kernel="auto", deterministic=None) == "reference"
    assert convolution_path(images[0][0], *images[1:], stride=(1, 1), kernel="auto", deterministic=None) == "pair"


def test_operands_that_torch_refuses_are_refused_in_its_own_words() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x, torch.randn(4, 5, requires_grad=True))
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_a_single_needed_gradient_is_right() -> None:
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((6, 3), (4, 3), (4,)))
    images, kernels = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(4, 3, 1, 1, requires_grad=True)
    for function, other, leaves in ((linear, F.linear, (x, weight, bias)), (convolution, F.conv2d, (images, kernels, bias))):
        for wanted in leaves:
            (actual,) = torch.autograd.grad(function(*leaves).square().sum(), wanted)
            (expected,) = torch.autograd.grad(other(*leaves).square().sum(), wanted)
            close(actual, expected, torch.float32)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_first_and_second_derivatives_by_finite_differences(stride: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (2, 4), (2,)))
    assert torch.autograd.gradcheck(linear, (x, weight, bias))
    assert torch.autograd.gradgradcheck(linear, (x, weight, bias))
    assert torch.autograd.gradgradcheck(linear, (x, weight))
    for layout in (torch.contiguous_format, torch.channels_last):
        images = torch.randn(2, 4, 3, 2, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
        kernels = weight.detach()[..., None, None].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda *of: convolution(*of, stride=stride), (images, kernels, bias))
        assert torch.autograd.gradgradcheck(lambda *of: convolution(*of, stride=stride), (images, kernels, bias))


def test_gradients_can_be_differentiated_themselves() -> None:
    dy, x, weight = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (3, 4), (2, 4)))
    assert torch.autograd.gradcheck(lambda *of: gradients(*of, bias=True)[:3], (dy, x, weight))


def test_transforms_of_torch_func() -> None:
    weight, x = torch.randn(4, 3), torch.randn(5, 2, 3)

    def loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda weight, x: function(x, weight).square().sum()

    for transform in (
        lambda f: torch.func.grad(f)(weight, x),
        lambda f: torch.func.vmap(torch.func.grad(f), (None, 0))(weight, x),
        lambda f: torch.func.hessian(f)(weight, x),
        lambda f: torch.func.jvp(f, (weight, x), (weight, x))[1],
    ):
        torch.testing.assert_close(transform(loss(linear)), transform(loss(F.linear)))


def test_operations_are_counted_as_torch_counts_them() -> None:
    x, weight = torch.randn(6, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    counts = []
    for kernel in ("reference", "pair"):
        with FlopCounterMode(display=False) as counter:
            linear(x, weight, kernel=kernel).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 6 * 3 * 4] * 2


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("function", ["linear", "convolution"])
def test_autocast_casts_as_torch_does(function: str, inside: bool) -> None:
    ours, theirs = (linear, F.linear) if function == "linear" else (convolution, F.conv2d)
    shape = (6, 3) if function == "linear" else (2, 3, 4, 4)
    actual = []
    for run in (ours, theirs):
        torch.manual_seed(0)
        x, weight, bias = (torch.randn(*sizes, requires_grad=True) for sizes in (shape, (4, 3), (4,)))
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x, weight if function == "linear" else weight[..., None, None], bias)
            if inside:
                y.float().square().sum().backward()
        if not inside:
            y.float().square().sum().backward()
        actual.append((y, x.grad, weight.grad, bias.grad))
    (y, *ours_), (expected, *theirs_) = actual
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)
    for one, other in zip(ours_, theirs_, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))


class Layers(nn.Module):
    """A convolution of each stride and a linear layer, written with the functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1, stride=2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = convolution(x, self.first.weight, self.first.bias).relu()
        x = convolution(x, self.second.weight, self.second.bias, stride=(2, 2)).relu()
        return linear(x.flatten(2).mT, self.last.weight, self.last.bias)


BACKENDS = [pytest.param("eager", marks=pytest.mark.slow), "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_into_one_graph(backend: str, dynamic: bool) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor on a CPU needs a C++ compiler")
    torch.manual_seed(0)
    model = Layers()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for samples in (2, 3) if dynamic else (2,):
        x = torch.randn(samples, 3, 6, 6, requires_grad=True)
        leaves = [x, *model.parameters()]
        expected = torch.autograd.grad(model(x).square().sum(), leaves)
        for one, other in zip(torch.autograd.grad(compiled(x).square().sum(), leaves), expected, strict=True):
            close(one, other, torch.float32)


@pytest.mark.parametrize("kind", ["matrices", "images"])
def test_the_operator_passes_torchs_opcheck(kind: str) -> None:
    shapes = ((5, 4), (5, 3), (4, 3)) if kind == "matrices" else ((2, 4, 5), (2, 3, 5), (4, 3))
    operands = [torch.randn(*shape) for shape in shapes]
    for bias in (False, True):
        torch.library.opcheck(
            torch.ops.trainyard.gradient_pair, (*operands, bias, "reference", True), test_utils=("test_schema", "test_faketensor")
        )
