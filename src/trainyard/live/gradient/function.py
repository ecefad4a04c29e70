"""Linear layers and 1x1 convolutions whose backward pass reads dY once, as functions that PyTorch differentiates and compiles.

The forward pass is torch's own, untouched (a compiler may still fuse it with what follows). Only the backward pass differs: it goes
through one `operator` that computes dX, dW and db together. torch.func and forward-mode derivatives get torch's own backward pass.

The kernel is chosen in the forward pass, where shapes, dtypes and needed gradients are known: `fused` (Triton, see `kernels`),
`reference` (`reference.one_pass`), or `pair`, which is torch's own backward pass and costs nothing extra.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.live.gradient.operator import by_rows, gradient_pair

Kernel = Literal["auto", "fused", "pair", "reference"]
KERNELS: tuple[str, ...] = get_args(Kernel)
_ORDINARY = (Tensor, torch.nn.Parameter)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # fused: all but float64


class Gradients(NamedTuple):
    """The results of a linear layer's backward pass: the gradients of its input, its weight and its bias."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


def gradients(
    dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool = False, deterministic: bool | None = None, kernel: str = "auto"
) -> Gradients:
    """dX = dY W, dW = dY^T X and, if `bias`, db = the sum of dY's rows, for y = F.linear(x, weight, bias); dY is read once.

    `x` is (..., K), `dy` (..., N) with the same leading dimensions, `weight` (N, K), all of one dtype on one device, in any layout.
    Results have the operands' dtype; sums are kept in fp32. Under autocast the operands are cast as F.linear's are.
    `deterministic=None` follows torch.use_deterministic_algorithms.

    >>> dy, x, weight = torch.ones(2, 3, 4), torch.ones(2, 3, 5), torch.ones(4, 5)
    >>> dx, dweight, dbias = gradients(dy, x, weight, bias=True)
    >>> dx.shape, dweight[0, 0].item(), dbias.tolist()
    (torch.Size([2, 3, 5]), 6.0, [6.0, 6.0, 6.0, 6.0])
    """
    checked_kernel(kernel)
    dy, x, weight = _autocast(dy, x, weight)
    _check(dy, x, weight)
    rows, columns = _rows(dy), _rows(x)
    path = _select_path(kernel, columns, weight, columns.shape[0], bias=bias, deterministic=deterministic)
    dx, dweight, dbias = gradient_pair(rows, columns, weight, bias, path, _deterministic(deterministic))
    return Gradients(dx.view(x.shape), dweight, dbias)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, kernel: str = "auto", deterministic: bool | None = None
) -> Tensor:
    """F.linear(x, weight, bias), to the bit; its backward pass reads dY once wherever that is faster.

    >>> layer, x = torch.nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    >>> bool((linear(x, layer.weight, layer.bias) == layer(x)).all())
    True
    """
    return linear_by(linear_path(x, weight, bias, kernel=kernel, deterministic=deterministic), x, weight, bias, deterministic)


def linear_by(path: str, x: Tensor, weight: Tensor, bias: Tensor | None, deterministic: bool | None) -> Tensor:
    """`linear` with a given path of its backward pass."""
    if path == "pair":
        return F.linear(x, weight, bias)
    x, weight, bias = _autocast(x, weight, bias)
    return _Linear.apply(x, weight, bias, path, _deterministic(deterministic))  # type: ignore[no-any-return, no-untyped-call]


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    kernel: str = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """F.conv2d of a 1x1 `weight` (N, K, 1, 1) without padding; its backward pass reads dY once wherever that is faster.

    >>> layer, x = torch.nn.Conv2d(3, 2, 1), torch.randn(4, 3, 5, 5, requires_grad=True)
    >>> bool((convolution(x, layer.weight, layer.bias) == layer(x)).all())
    True
    """
    path = convolution_path(x, weight, bias, stride=stride, kernel=kernel, deterministic=deterministic)
    return convolution_by(path, x, weight, bias, stride, deterministic)


def convolution_by(
    path: str, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], deterministic: bool | None
) -> Tensor:
    """`convolution` with a given path of its backward pass."""
    if path == "pair":
        return F.conv2d(x, weight, bias, tuple(stride))
    x, weight, bias = _autocast(x, weight, bias)
    return _Convolution.apply(x, weight, bias, tuple(stride), path, _deterministic(deterministic))  # type: ignore[no-any-return, no-untyped-call]


def linear_path(x: Tensor, weight: Tensor, bias: Tensor | None, *, kernel: str, deterministic: bool | None) -> str:
    """`fused`, `reference` or `pair`: how the gradients of `linear` with these operands are computed."""
    if checked_kernel(kernel) == "pair" or x.dim() < 2 or not _shares_dy(x, weight, bias):
        return "pair"
    return _select_path(kernel, x, weight, math.prod(x.shape[:-1]), bias=bias is not None, deterministic=deterministic)


def convolution_path(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Sequence[int], kernel: str, deterministic: bool | None
) -> str:
    """`fused`, `reference` or `pair`: how the gradients of `convolution` with these operands are computed."""
    if checked_kernel(kernel) == "pair" or x.dim() != 4 or not _shares_dy(x, weight, bias):
        return "pair"
    positions = -(-x.shape[2] // stride[0]) * -(-x.shape[3] // stride[1])
    rows, first = x.shape[0] * positions, x.shape[1] == 1 or x.stride(1) != 1  # channels first, or last: then positions are rows
    return _select_path(
        kernel, x, weight, rows, bias=bias is not None, deterministic=deterministic, positions=positions if first else 0
    )


def checked_kernel(kernel: str) -> str:
    if kernel not in KERNELS:
        raise UnknownName("kernel", str(kernel), KERNELS)
    return kernel


class _Linear(torch.autograd.Function):
    """Forward as ever; backward through the operator. What is saved is what F.linear saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, path: str, deterministic: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.path, ctx.deterministic = path, deterministic
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return *_requested_gradients(ctx, _rows(dy), _rows(x), weight, x.shape, weight.shape), None, None


class _Convolution(torch.autograd.Function):
    """The same for a 1x1 convolution: channels-last images are rows already, others stay as they are."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], path: str, deterministic: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.path, ctx.deterministic = stride, path, deterministic
        return F.conv2d(x, weight, bias, stride)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        down, right = ctx.stride
        read = x[:, :, ::down, ::right]  # what a strided 1x1 kernel reads
        if read.stride(1) == dy.stride(1) == 1 and read.shape[1] > 1:  # channels last
            shape = read.movedim(1, -1).shape
            dx, *others = _requested_gradients(
                ctx, _rows(dy.movedim(1, -1)), _rows(read.movedim(1, -1)), weight.flatten(1), shape, weight.shape
            )
            dx = None if dx is None else dx.movedim(-1, 1)
        else:
            dx, *others = _requested_gradients(ctx, dy.flatten(2), read.flatten(2), weight.flatten(1), read.shape, weight.shape)
        if dx is not None and (down, right) != (1, 1):
            spread = torch.zeros_like(x)
            spread[:, :, ::down, ::right] = dx
            dx = spread
        return dx, *others, None, None, None


def _requested_gradients(
    ctx: Any, dy: Tensor, x: Tensor, weight: Tensor, x_shape: Sequence[int], weight_shape: Sequence[int]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients that autograd needs; a single gradient is a plain product, since no other shares dY."""
    dx_wanted, dweight_wanted, bias_wanted = ctx.needs_input_grad[:3]
    if not (dx_wanted and dweight_wanted):
        rows = by_rows(dy)
        dx = None if not dx_wanted else (dy @ weight if dy.dim() == 2 else weight.t() @ dy).view(x_shape)
        dweight = (rows.t() @ by_rows(x)).view(weight_shape) if dweight_wanted else None
        return dx, dweight, rows.sum(0) if bias_wanted else None
    dx, dweight, dbias = gradient_pair(dy, x, weight, bias_wanted, ctx.path, ctx.deterministic)
    return dx.view(x_shape), dweight.view(weight_shape), dbias


def _select_path(
    kernel: str, x: Tensor, weight: Tensor, rows: int, *, bias: bool, deterministic: bool | None, positions: int = 0
) -> str:
    """The kernel by name or by measurement; a kernel requested by name that cannot run here is an error."""
    if kernel in ("pair", "reference"):
        return kernel
    if kernel == "auto" and x.device.type != "cuda":
        return "reference" if x.device.type == "cpu" else "pair"
    outputs, inputs = weight.shape[0], weight.shape[1]
    if torch.compiler.is_compiling():  # sizes may be symbolic: rows are fixed to a power of two, a weight's sizes by len
        rows, positions = _power_below(rows), _power_below(positions) if positions else 0
        outputs, inputs = len(range(outputs)), len(range(inputs))
    return _chosen(kernel, rows, outputs, inputs, _autocast_dtype(x), str(x.device), bias, _deterministic(deterministic), positions)


def _power_below(rows: int) -> int:
    """The largest power of two up to `rows`, by comparisons: a compiler that leaves `rows` open keeps one graph for each power."""
    power = 1
    while power * 2 <= rows and power < 1 << 24:
        power *= 2
    return power


def _chosen(*question: Any) -> str:
    return _choice(*question)


# A constant while tracing: torch.compiler.assume_constant_result, without its import of the compiler.
_chosen._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def _choice(
    kernel: str,
    rows: int,
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    device: str,
    bias: bool,
    deterministic: bool,
    positions: int,
) -> str:
    from trainyard.live.gradient import kernels

    if dtype not in kernels.DTYPES or not kernels.available(device):
        if kernel == "auto":
            return "pair"
        if importlib.util.find_spec("triton") is None:
            raise MissingExtra("triton", "triton", 'kernel="fused"')
        raise BadInput(
            f'kernel="fused" runs on a CUDA GPU in bf16, fp16 and fp32, not in {_short(dtype)} on {device}: write kernel="auto"'
        )
    if kernel == "fused":
        return "fused"
    if 0 in (rows, outputs, inputs):
        return "pair"
    from trainyard.live.gradient import choice

    return choice.choose(
        rows, outputs, inputs, dtype=dtype, device=device, bias=bias, deterministic=deterministic, positions=positions
    )


def _shares_dy(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether both gradients are needed and the operands are plain strided tensors of one floating dtype on one device."""
    if not (torch.is_grad_enabled() and x.requires_grad and weight.requires_grad):
        return False
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch._C._is_tracing()
    ):
        return False
    dtype, device = _autocast_dtype(x), x.device
    for operand in (x, weight, bias):
        if operand is not None and (
            type(operand) not in _ORDINARY or operand.is_nested or operand.device != device or _autocast_dtype(operand) != dtype
        ):
            return False
    return dtype in DTYPES and x.shape[-1 if weight.dim() == 2 else 1] == weight.shape[1]


def _autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that autocast has F.linear and F.conv2d take this operand in: float64 and integers stay."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor.dtype
    return torch.get_autocast_dtype(kind)


def _autocast(*operands: Any) -> tuple[Any, ...]:
    kind = operands[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return operands
    return tuple([operand if operand is None else operand.to(_autocast_dtype(operand)) for operand in operands])


def _deterministic(requested: bool | None) -> bool:
    return torch.are_deterministic_algorithms_enabled() if requested is None else requested


def _rows(tensor: Tensor) -> Tensor:
    return (
        tensor.reshape(-1, tensor.shape[-1]) if tensor.numel() else tensor.new_empty(math.prod(tensor.shape[:-1]), tensor.shape[-1])
    )


def _check(dy: Tensor, x: Tensor, weight: Tensor) -> None:
    operands = {"dy": dy, "x": x, "weight": weight}
    shapes = ", ".join(f"{name} {tuple(operand.shape)}" for name, operand in operands.items())
    if weight.dim() != 2 or min(dy.dim(), x.dim()) < 1:
        raise BadInput(f"{shapes}: write dy as (..., N), x as (..., K), weight as (N, K)")
    outputs, inputs = weight.shape
    if dy.shape[-1] != outputs or x.shape[-1] != inputs or dy.shape[:-1] != x.shape[:-1]:
        raise BadInput(f"{shapes} do not fit: dy must be (..., {outputs}) and x (..., {inputs}) with the same leading dimensions")
    if len({operand.dtype for operand in operands.values()}) > 1 or x.dtype not in DTYPES:
        dtypes = ", ".join(f"{name} is {_short(operand.dtype)}" for name, operand in operands.items())
        raise BadInput(f"{dtypes}: one of {', '.join(map(_short, DTYPES))} for all three (use .to, or torch.autocast)")
    if len({operand.device for operand in operands.values()}) > 1:
        devices = ", ".join(f"{name} is on {operand.device}" for name, operand in operands.items())
        raise BadInput(f"{devices}: move all three to one device")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
