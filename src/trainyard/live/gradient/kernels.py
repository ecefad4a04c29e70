"""The fused pass over dY on a GPU: what can be launched, for which operands, in which configuration.

`fused` takes rows, dY (M, N) and X (M, K), in any strides; `fused_batched` takes images, dY (B, N, P) and X (B, K, P), as a 1x1
convolution in NCHW has them. Both compute in fp32 whatever the operands' type, and read dY from DRAM once. Without a `config` the
fastest of a short list is measured once for each kind of call, outside any graph capture, and remembered.
"""

from __future__ import annotations

import importlib.util
import math
import os
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from trainyard.errors import BadInput, MissingExtra
from trainyard.live.gradient.configs import Config, candidates
from trainyard.live.gradient.timing import fastest

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DxMode = Literal["store", "atomic", "partial", "none"]


def interpreted() -> bool:
    """Whether Triton runs its programs in Python on the CPU, one after the other."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def available(device: torch.device | str) -> bool:
    """A CUDA device of compute capability 8.0 or more with triton installed, or Triton's interpreter for fp32 on the CPU.

    >>> available("meta")
    False
    """
    torch_device = torch.device(device)
    if not _installed():
        return False
    if torch_device.type == "cpu":
        return interpreted()
    return torch_device.type == "cuda" and torch.version.hip is None and _capability(torch_device) >= (8, 0)


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=1)
def _programs() -> Any:
    try:
        from trainyard.live.gradient import programs
    except ModuleNotFoundError as error:
        if error.name == "triton":
            raise MissingExtra("triton", "triton", "the fused gradient kernel") from None
        raise
    return programs


def fused(
    dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool, deterministic: bool, need_dx: bool = True, config: Config | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dX (M, K), dW (N, K) and the bias gradient (N,) or None, from dY (M, N), X (M, K), W (N, K); dY is read once."""
    if dy.dim() != 2:
        raise BadInput(f"fused takes matrices, got dy of shape {tuple(dy.shape)}; images go to fused_batched")
    return _run(dy, x, weight, bias, deterministic, need_dx, config)


def fused_batched(
    dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool, deterministic: bool, need_dx: bool = True, config: Config | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same from dY (B, N, P) and X (B, K, P); dX is (B, K, P)."""
    if dy.dim() != 3:
        raise BadInput(f"fused_batched takes (B, N, P) and (B, K, P), got dy of shape {tuple(dy.shape)}")
    return _run(dy, x, weight, bias, deterministic, need_dx, config)


def _run(
    dy: Tensor, x: Tensor, weight: Tensor, bias: bool, deterministic: bool, need_dx: bool, config: Config | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    key = (
        dy.shape, dy.stride(), x.shape, x.stride(), weight.shape, weight.stride(), dy.dtype, x.dtype, weight.dtype, dy.device,
        config, (dy.data_ptr() | x.data_ptr() | weight.data_ptr()) % 16, bias, deterministic, need_dx,
        dy.dtype == torch.float32 and _tf32(),
    )  # fmt: skip
    plan = _PLANS.get(key, _UNKNOWN)
    if plan is _UNKNOWN:
        plan = _prepared(dy, x, weight, bias, deterministic, need_dx, config)
        if not _capturing(dy):  # what is taken inside a graph is not measured
            _PLANS[key] = plan
    outputs, inputs = weight.shape
    dx = x.new_empty(x.shape if need_dx else (0,))
    dw_db = weight.new_empty(outputs * (inputs + 1)) if bias else weight.new_empty((outputs, inputs))
    if plan is None:
        dx.zero_()
        dw_db.zero_()
        if bias and not inputs:  # no weights, but a bias
            dw_db.copy_((dy.transpose(1, 2).flatten(0, 1) if dy.dim() == 3 else dy).sum(0))
    else:
        elsewhere = dy.is_cuda and dy.device.index != torch.cuda.current_device()
        with torch.cuda.device(dy.device) if elsewhere else nullcontext():
            launch(plan, dy, x, weight, dx if need_dx else x, dw_db)
    if not bias:
        return dx, dw_db, None
    return dx, dw_db[: outputs * inputs].view(outputs, inputs), dw_db[outputs * inputs :]


def _prepared(
    dy: Tensor, x: Tensor, weight: Tensor, bias: bool, deterministic: bool, need_dx: bool, config: Config | None
) -> Plan | None:
    """Operands checked, the configuration tuned and laid out; None where there is nothing to add up."""
    if weight.dim() != 2 or x.dim() != dy.dim():
        raise BadInput(
            f"dy {tuple(dy.shape)}, x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit: write weight as (N, K)"
        )
    images = dy.dim() == 3
    rows_dy, rows_x = (tensor.transpose(1, 2) if images else tensor.unsqueeze(0) for tensor in (dy, x))
    _check(rows_dy, rows_x, weight)
    if 0 in (*dy.shape, *weight.shape):
        return None
    dx = x.new_empty(x.shape)
    rows_dx = (dx.transpose(1, 2) if images else dx.unsqueeze(0)) if need_dx else None
    dw_db = weight.new_empty(weight.numel() + (weight.shape[0] if bias else 0))
    call = Call(dy=rows_dy, x=rows_x, weight=weight, dx=rows_dx, dw_db=dw_db, bias=bias, deterministic=deterministic)
    with torch.cuda.device(dy.device) if dy.is_cuda else nullcontext():
        return plan_for(call, config or tuned(call))


def _check(dy: Tensor, x: Tensor, weight: Tensor) -> None:
    outputs, inputs = weight.shape
    if dy.shape != (*x.shape[:2], outputs) or x.shape[2] != inputs:
        raise BadInput(
            f"dy {tuple(dy.shape)} and x {tuple(x.shape)} (items, rows, channels) do not fit a weight of {outputs} x {inputs}"
        )
    if len({dy.dtype, x.dtype, weight.dtype}) > 1 or x.dtype not in DTYPES:
        raise BadInput(f"dy, x and weight must be of one type, fp32, fp16 or bf16, got {dy.dtype}, {x.dtype} and {weight.dtype}")
    if not available(dy.device) or not (dy.device == x.device == weight.device):
        raise BadInput(
            f"the fused kernel needs all operands on one CUDA GPU (capability 8.0), got {dy.device}, {x.device}, {weight.device}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One pair of gradients to compute: operands as (items, rows, channels), and where the results go."""

    dy: Tensor  # (B, M, N)
    x: Tensor  # (B, M, K)
    weight: Tensor  # (N, K)
    dx: Tensor | None  # (B, M, K), dense in some order of its dimensions
    dw_db: Tensor  # (N * K,) or, with a bias, (N * K + N,)
    bias: bool
    deterministic: bool

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a configuration depends on; rows only by their binary logarithm, so that batches of many lengths share one."""
        layout = tuple(_alignment(tensor) for tensor in (self.dy, self.x, self.weight))
        shape = (self.dy.shape[0] > 1, (self.dy.shape[0] * self.dy.shape[1]).bit_length(), *self.weight.shape)
        return self.dy.device, self.dy.dtype, _tf32(), shape, layout, self.bias, self.deterministic, self.dx is not None

    @property
    def describable(self) -> bool:
        """Whether bulk tensor copies can fetch the operands: one item, unit inner strides, rows that begin at 16 bytes."""
        matrices = [self.dy, self.x, self.weight.unsqueeze(0), *([] if self.dx is None else [self.dx])]
        return (
            (self.dy.is_cuda and _capability(self.dy.device) >= (9, 0)) or interpreted()
        ) and all(_describable(matrix) for matrix in matrices)  # fmt: skip


def _describable(matrix: Tensor) -> bool:
    step = matrix.element_size() * matrix.stride(1)
    return matrix.shape[0] == 1 and matrix.stride(2) == 1 and step % 16 == 0 and step > 0 and matrix.data_ptr() % 16 == 0


def _alignment(tensor: Tensor) -> tuple[int, ...]:
    """Which stride is 1 and how far the others are multiples of 16 bytes."""
    aligned = 16 // tensor.element_size()
    return tuple(1 if step == 1 else 16 if step % aligned == 0 else 2 for step in tensor.stride())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration laid out over the device for calls of one shape, and the program compiled for them."""

    programs: int
    groups: int
    barrier: bool
    mode: DxMode
    added: bool  # dW by atomics
    layers: int  # of partial dX
    numbers: tuple[int, ...]  # the program's integers
    constants: tuple[Any, ...]  # and its constants, in the order of its parameters
    described: tuple[Any, ...]  # descriptors of dY, X, W and dX, or of the sum of its slices: all but the address
    options: dict[str, Any]
    compiled: list[Any]  # filled by the first launch: the next ones need not look for it


_UNKNOWN: Any = object()
_PLANS: dict[tuple[Any, ...], Plan | None] = {}


def plan_for(call: Call, config: Config) -> Plan:
    dy, x, weight, dx = call.dy, call.x, call.weight, call.x if call.dx is None else call.dx
    (items, rows, outputs), inputs = dy.shape, weight.shape[1]
    slices_n, slices_k = -(-outputs // config.slice_n), -(-inputs // config.slice_k)
    tiles_of_item = -(-rows // config.block_m)
    resident = _multiprocessors(dy.device) * config.programs_per_multiprocessor
    groups = max(1, min(items * tiles_of_item, resident // (slices_n * slices_k)))
    programs = groups * slices_n * slices_k
    mode: DxMode = "none" if call.dx is None else "store" if slices_n == 1 else "atomic" if config.atomic_dx else "partial"
    if call.deterministic and (config.atomic_dw or mode == "atomic"):
        raise BadInput("atomic sums come in any order: a deterministic pass needs a config without atomic_dx and atomic_dw")
    barrier = config.barrier and programs <= resident and not interpreted()
    described = _descriptors(call, config, mode) if config.descriptors and call.describable else ()
    if interpreted() and mode == "atomic":
        described = ()  # the interpreter has no bulk addition
    tf32 = dy.dtype == torch.float32 and _tf32()
    sizes = (
        rows,
        outputs,
        inputs,
        items * tiles_of_item,
        tiles_of_item,
        groups,
        slices_n,
        slices_k,
        dx.numel(),
        call.dw_db.numel(),
    )
    options: dict[str, Any] = {"num_warps": config.warps}
    if barrier:
        options["launch_cooperative_grid"] = True
    return Plan(
        programs=programs, groups=groups, barrier=barrier, mode=mode, added=config.atomic_dw and barrier,
        layers={"atomic": 1, "partial": slices_n}.get(mode, 0),
        numbers=(*sizes, *dy.stride(), *x.stride(), *weight.stride(), *dx.stride()),
        constants=(
            config.block_m, config.slice_n, config.slice_k, config.stages,
            outputs % config.slice_n != 0, inputs % config.slice_k != 0, max(map(_reach, (dy, x, weight, dx))) >= 2**31,
            bool(described), mode, call.bias, barrier, "tf32" if tf32 else config.precision,
            *_sum_tile(groups, call.dw_db.numel(), programs, config.warps), _positions_aligned(dy, x, dx), config.transposed,
            config.atomic_dw and barrier,
        ),
        described=described, options=options, compiled=[],
    )  # fmt: skip


def launch(plan: Plan, dy: Tensor, x: Tensor, weight: Tensor, dx: Tensor, dw_db: Tensor) -> None:
    """Runs a pass as planned; operands by their addresses alone."""
    part = _zeros(dy.device, dw_db.numel()) if plan.added else dy.new_empty((plan.groups, dw_db.numel()), dtype=torch.float32)
    dx_sum = part
    if plan.layers:
        make = dy.new_zeros if plan.mode == "atomic" else dy.new_empty
        dx_sum = make((plan.layers, dx.numel()), dtype=torch.float32)
    counter = _zeros(dy.device, 1, torch.int32) if plan.barrier else part
    operands: tuple[Any, ...] = (dy, x, weight, dx)
    dx_add: Any = dx_sum
    if plan.described:
        stored = 4 if plan.mode == "store" else 3
        operands = (*map(_at, plan.described[:stored], operands), *operands[stored:])
        if plan.mode == "atomic":
            dx_add = _at(plan.described[3], dx_sum)
    arguments = (*operands, dx_sum, dx_add, part, dw_db, counter, *plan.numbers, *plan.constants)
    if plan.compiled:
        plan.compiled[0][(plan.programs, 1, 1)](*arguments)
    else:
        kernel = _programs().gradient_pass[(plan.programs,)](*arguments, **plan.options)
        plan.compiled.extend([kernel] if kernel is not None else [])
    if not plan.barrier:
        _sum(part, dw_db)
        if plan.layers:
            _sum(dx_sum, dx)


def _at(descriptor: Any, matrix: Tensor) -> Any:
    """The same descriptor for another address."""
    moved = copy(descriptor)
    moved.base = matrix
    return moved


def _sum(part: Tensor, out: Tensor) -> None:
    """Rows of `part` added up into the memory of `out`, which is dense."""
    parts, size = part.shape
    rows, width = _sum_tile(parts, size, _multiprocessors(out.device), 8)
    grid = (min(-(-size // width), 8 * _multiprocessors(out.device)),)
    _programs().sum_partials[grid](part, out, parts, size, size, ROWS=rows, WIDTH=width, num_warps=8)


def _sum_tile(parts: int, size: int, programs: int, warps: int) -> tuple[int, int]:
    """Rows and columns that a program sums at a time: all rows if registers hold them, few enough columns for all programs."""
    width = min(1024, max(32, 1 << (-(-size // programs) - 1).bit_length()))
    return min(1 << (parts - 1).bit_length(), 4096 * warps // width), width


def _positions_aligned(*images: Tensor) -> int:
    """The power of two up to 16 at which rows of positions begin, if positions (axis 1) are contiguous in all; else 1."""
    if any(image.stride(1) != 1 or image.shape[2] == 1 or image.shape[0] == 1 for image in images):
        return 1
    return math.gcd(16, images[0].shape[1], *(image.stride(axis) for image in images for axis in (0, 2)))


def _reach(tensor: Tensor) -> int:
    """The largest offset of an element, and of a tile's edge behind it."""
    return sum((size + 512) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _descriptors(call: Call, config: Config, mode: DxMode) -> tuple[Any, ...]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def describe(matrix: Tensor, rows: int, columns: int) -> Any:
        return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])

    operands = [
        describe(call.dy[0], config.block_m, config.slice_n),
        describe(call.x[0], config.block_m, config.slice_k),
        describe(call.weight, config.slice_n, config.slice_k),
    ]
    if mode in ("store", "atomic") and call.dx is not None:
        operands.append(describe(call.dx[0], config.block_m, config.slice_k))
    for descriptor in operands:
        descriptor.base = None  # keeps no memory
    return tuple(operands)


_ZEROS: dict[tuple[torch.device, int, torch.dtype], Tensor] = {}


def _zeros(device: torch.device, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory that is zero before a pass and that the pass leaves zero: the barrier's counter, a sum of dW.

    Each stream has its own, as two passes may run at once; a pass inside a graph, which may run anywhere, gets new one.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=dtype, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream, dtype)
    zeros = _ZEROS.get(key)
    if zeros is None or len(zeros) < size:
        zeros = _ZEROS[key] = torch.zeros(size, dtype=dtype, device=device)
    return zeros


def _tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


_TUNED: dict[tuple[Any, ...], Config] = {}
TRIALS = 7


def tuned(call: Call) -> Config:
    """The fastest of the first candidates for this kind of call, measured once; inside a graph capture the first one."""
    outputs, inputs = call.weight.shape
    key = call.kind
    if key not in _TUNED:
        size = call.dy.element_size()
        options = candidates(outputs, inputs, size, deterministic=call.deterministic, describable=call.describable)[:TRIALS]
        if interpreted() or _capturing(call.dy) or len(options) == 1:
            return options[0]
        dx = call.x if call.dx is None else call.dx
        trials = {
            config: partial(launch, plan_for(call, config), call.dy, call.x, call.weight, dx, call.dw_db) for config in options
        }
        seconds = fastest(trials, call.dy.device)[1]  # the host takes longer to describe the operands of bulk copies
        _TUNED[key] = min(seconds, key=lambda config: seconds[config] * (1.02 if config.descriptors else 1.0))
    return _TUNED[key]


def tuned_for(dy: Tensor, x: Tensor, weight: Tensor, *, bias: bool = False, deterministic: bool = False) -> Config:
    """The configuration that `fused` takes for such operands."""
    dw_db = weight.new_empty(weight.numel() + (weight.shape[0] if bias else 0))
    call = Call(
        dy=dy[None], x=x[None], weight=weight, dx=torch.empty_like(x)[None], dw_db=dw_db, bias=bias, deterministic=deterministic
    )
    return tuned(call)
