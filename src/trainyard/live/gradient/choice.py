"""How the two gradients of a layer are computed: in one pass over dY, or as the library's pair of products.

The choice is measured. The first call of a shape times both, as in a training loop: calls follow each other, so kernels that the
host cannot issue fast enough are charged for it. The result is cached for the process, and in the JSON file that the environment
variable TRAINYARD_GRADIENT_CHOICES names, if it is set. One pass must be faster by 3 %; otherwise the pair is used.

Nothing is measured where one pass cannot gain (`bound`), or while a graph is captured or a model compiled: then the cached choice
is used, or the bound alone, which may be wrong. While compiling, rows are rounded down to a power of two (`function`), and a
measurement with rows of the same power of two is used. So it pays to run a few steps before a model is compiled.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trainyard.live.gradient import kernels
from trainyard.live.gradient.reference import pair
from trainyard.reading import read_json

GradientPath = Literal["fused", "pair"]
FILE = "TRAINYARD_GRADIENT_CHOICES"
MARGIN = 0.97  # one pass must take at most this share of the pair's time
WORTH_A_TRIAL = 1.1  # bound of the speedup below which nothing is measured
SURE = 1.3  # bound above which one pass is taken unmeasured
WIDEST_UNMEASURED = 256  # outputs of a weight that one pass holds whole: docs/gpu.md, every such layer above SURE gains
SMALLEST_BYTES = 2**24  # below, both ways are over before the host has issued the next call
LARGEST_BYTES = 2**30  # of a trial's operands: of longer ones, a part tells as much
# FLOP that fit into the time of one byte from DRAM. bf16: measured, docs/gpu.md (784 TFLOP/s, 4.28 TB/s); tf32: half of it;
# fp32: three tf32 products for one.
BALANCE = {torch.bfloat16: 183.0, torch.float16: 183.0, torch.float32: 30.0}

_CACHE: dict[tuple[Any, ...], GradientPath] = {}


def choose(
    rows: int,
    outputs: int,
    inputs: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    bias: bool = False,
    deterministic: bool = False,
    positions: int = 0,
) -> GradientPath:
    """The faster path for dY (rows, outputs) and X (rows, inputs); `positions` per image with channels first, 0 for rows."""
    torch_device = torch.device(device)
    if not kernels.available(torch_device) or dtype not in kernels.DTYPES:
        return "pair"
    key = (rows, outputs, inputs, str(dtype), _device_name(torch_device), bias, deterministic, positions, _tf32())
    if not _CACHE:
        _CACHE.update(_read_file())
    cached = _CACHE.get(key)
    if cached is not None:
        return cached
    speedup_bound = bound(rows, outputs, inputs, dtype)
    size = dtype.itemsize
    if speedup_bound < WORTH_A_TRIAL or size * rows * (outputs + 2 * inputs) < SMALLEST_BYTES or torch_device.type == "cpu":
        return _store(key, "pair")
    if (
        torch.compiler.is_compiling()
        or torch.cuda.is_current_stream_capturing()
        or not _room(rows, outputs, inputs, size, torch_device)
    ):
        return _similar(key) or (
            "fused" if speedup_bound >= SURE and dtype != torch.float32 and outputs <= WIDEST_UNMEASURED else "pair"
        )
    return _store(key, _measured(rows, outputs, inputs, dtype, torch_device, bias, deterministic, positions))


def bound(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> float:
    """How much faster one pass can be: the pair's bytes and FLOP, each product by itself, against the pass's.

    >>> round(bound(802816, 64, 64, torch.bfloat16), 2), round(bound(32768, 4096, 16, torch.bfloat16), 2)
    (1.33, 1.99)
    >>> bound(4096, 4096, 4096, torch.bfloat16)
    1.0
    """
    balance = BALANCE[dtype] * (3 if dtype == torch.float32 and _tf32() else 1)
    product = 2.0 * rows * outputs * inputs / balance  # bytes that fit into the time of one product
    dy, x, w = (dtype.itemsize * count for count in (rows * outputs, rows * inputs, outputs * inputs))
    return 2 * max(dy + x + w, product) / max(dy + 2 * x + 2 * w, 2 * product)


def _similar(key: tuple[Any, ...]) -> GradientPath | None:
    """A choice measured with the same weight, and with rows and positions of the same powers of two."""
    powers = _powers(key)
    return next((path for measured_key, path in _CACHE.items() if _powers(measured_key) == powers), None)


def _powers(key: tuple[Any, ...]) -> tuple[Any, ...]:
    rows, *others, positions, tf32 = key
    return (rows.bit_length(), *others, positions.bit_length(), tf32)


def _measured(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, bias: bool, deterministic: bool, positions: int
) -> GradientPath:
    rows = min(rows, max(2**14, LARGEST_BYTES // (dtype.itemsize * (outputs + 2 * inputs))))
    with torch.cuda.device(device), torch.no_grad(), torch.random.fork_rng(devices=[device]):
        if positions:
            items, shape = max(1, rows // positions), (min(positions, rows),)
            dy, x = (torch.randn(items, count, *shape, device=device, dtype=dtype) for count in (outputs, inputs))
            library: Callable[..., Any] = partial(_convolution_backward, bias=bias)
            fused: Callable[..., Any] = kernels.fused_batched
        else:
            dy, x = (torch.randn(rows, count, device=device, dtype=dtype) for count in (outputs, inputs))
            library, fused = partial(pair, bias=bias), kernels.fused
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
        one_pass = partial(fused, dy, x, weight, bias=bias, deterministic=deterministic)
        pair_s, pass_s = _rounds([partial(library, dy, x, weight), one_pass], device)
    return "fused" if pass_s < MARGIN * pair_s else "pair"


def _convolution_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: bool) -> tuple[Tensor, ...]:
    """The library's pair for images: its convolution's own backward pass."""
    images, kernel = (dy.unsqueeze(2), x.unsqueeze(2)), weight[:, :, None, None]
    sizes = [weight.shape[0]] if bias else None
    results: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        *images, kernel, sizes, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, bias]
    )
    return results


def _rounds(works: list[Callable[[], Any]], device: torch.device, rounds: int = 5) -> list[float]:
    """Median seconds per call of each function; the functions take turns of several calls."""
    spans: list[list[float]] = [[] for _ in works]
    for work in works:
        for _ in range(2):
            work()  # compiles, tunes, fills caches
    calls = 8
    for turn in range(rounds + 1):
        for work, seconds in zip(works, spans, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(device)
            start.record()
            for _ in range(calls):
                work()
            end.record()
            end.synchronize()
            if turn:  # the first one warms up
                seconds.append(start.elapsed_time(end) * 1e-3 / calls)
    return [statistics.median(seconds) for seconds in spans]


def _room(rows: int, outputs: int, inputs: int, size: int, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return 4 * min(LARGEST_BYTES, size * rows * (outputs + 2 * inputs)) < free


def _tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _store(key: tuple[Any, ...], chosen: GradientPath) -> GradientPath:
    _CACHE[key] = chosen
    path = os.environ.get(FILE)
    if path:
        table = {json.dumps(key): chosen for key, chosen in _CACHE.items()}
        fresh = Path(f"{path}.{os.getpid()}")
        fresh.write_text(json.dumps({"torch": torch.__version__, "choices": table}, indent=0))
        fresh.replace(path)
    return chosen


def _read_file() -> dict[tuple[Any, ...], GradientPath]:
    """Choices of earlier processes, if the file exists and was written with this version of torch."""
    path = os.environ.get(FILE)
    if not path or not Path(path).is_file():
        return {}
    saved = read_json(path, "choices", "result_bytes")
    if saved.get("torch") != torch.__version__:
        return {}
    return {tuple(json.loads(key)): chosen for key, chosen in saved["choices"].items()}
