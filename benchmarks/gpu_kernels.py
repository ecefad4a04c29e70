"""Micro-benchmarks of single torch calls on a GPU: the kernels each starts and their times, and what the call costs the host.

None of the shapes is a layer of a zoo model's training step by name; what is calibrated here is tested there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
REPEATS = 5

# fmt: off
# batch, channels in, channels out, size, kernel, stride: deep and shallow, strided, pointwise, first layers of three channels
CONVOLUTIONS: tuple[tuple[int, int, int, int, int, int], ...] = (
    (32,   64,   64, 56, 3, 1), (32,  128,  128, 56, 3, 1), (32,  128,  128, 28, 3, 1), (32,  256,  256, 28, 3, 1),
    (64,  192,  384, 14, 3, 1), (128, 256,  256, 14, 3, 1), (128, 512,  512,  7, 3, 1), (32,  512,  512, 28, 3, 1),
    (16,   64,   64, 224, 3, 1), (64, 128,  256, 28, 3, 2), (64,  256,  512, 14, 3, 2), (64,   96,  192, 27, 5, 1),
    (32,   64,  256, 56, 1, 1), (32,  256,   64, 56, 1, 1), (64,  512,  256, 28, 1, 1), (64,  256, 1024, 14, 1, 1),
    (64, 1024,  512, 14, 1, 1), (64,  512, 2048,  7, 1, 1), (64,  256,  512, 56, 1, 2), (64,  512, 1024, 28, 1, 2),
    (32,    3,   64, 224, 7, 2), (32,   3,   64, 224, 3, 1), (128,  3,   96, 224, 11, 4), (64,  3,   32, 224, 3, 2),
)
DEPTHWISE: tuple[tuple[int, int, int, int], ...] = ((64, 64, 112, 1), (64, 256, 28, 1), (64, 512, 14, 1), (64, 128, 56, 2))
MAPS: tuple[tuple[int, int, int], ...] = (
    (64, 64, 112), (64, 64, 56), (64, 128, 56), (64, 256, 56), (64, 128, 28), (64, 512, 28), (64, 256, 14), (64, 1024, 14),
    (64, 2048, 7), (8, 256, 56),
)
ROWS: tuple[tuple[int, int], ...] = ((64, 1000), (1024, 768), (8192, 768), (8192, 3072), (16384, 512), (2048, 32000), (1024, 30522))
ATTENTION: tuple[tuple[int, int, int, bool, float], ...] = (  # batch, heads, length, causal, dropout
    (64, 12, 128, False, 0.1), (16, 16, 512, False, 0.0), (16, 16, 512, False, 0.1), (8, 12, 1024, True, 0.1),
    (8, 12, 1024, True, 0.0),
)
# fmt: on


def kernel_times(work: Callable[[], Any]) -> list[list[Any]]:
    """[name, launches, microseconds] of each kernel that one call starts."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name, []).append(event.device_time)
    return [[name, len(times) / REPEATS, round(sum(times) / REPEATS, 3)] for name, times in found.items()]


def row(op: str, kind: str, shape: tuple[Any, ...], call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    kernels = kernel_times(partial(call, *arguments))
    return {"op": op, "type": kind, "shape": shape, "microseconds": round(sum(us for *_, us in kernels), 3), "kernels": kernels}


def gradients(output: Tensor, *inputs: Tensor) -> Callable[[], Any]:
    seed = torch.randn_like(output)
    return partial(torch.autograd.grad, output, inputs, seed, retain_graph=True)


def convolutions(kind: str) -> Iterator[dict[str, Any]]:
    shapes = [(*shape, 1) for shape in CONVOLUTIONS]
    shapes += [(batch, channels, channels, size, 3, stride, channels) for batch, channels, size, stride in DEPTHWISE]
    for batch, deep, wide, size, kernel, stride, groups in shapes:
        x = torch.randn(batch, deep, size, size, device="cuda", dtype=TYPES[kind])
        w = torch.randn(wide, deep // groups, kernel, kernel, device="cuda", dtype=TYPES[kind])
        padding = 0 if kernel in (1, 7, 11) else kernel // 2
        shape = (batch, deep, wide, size, kernel, stride, padding, groups)
        dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding, groups=groups))
        yield row("convolution", kind, shape, F.conv2d, x, w, None, stride, padding, 1, groups)
        for name, mask in (("grad_input", [True, False, False]), ("grad_weight", [False, True, False])):
            arguments = (dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, mask)
            yield row(f"convolution {name}", kind, shape, torch.ops.aten.convolution_backward, *arguments)


def maps(kind: str) -> Iterator[dict[str, Any]]:
    for batch, channels, size in MAPS:
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=TYPES[kind], requires_grad=True)
        norm = nn.BatchNorm2d(channels, device="cuda", dtype=TYPES[kind])
        yield row("batch_norm", kind, x.shape, norm, x.detach())
        yield row("batch_norm backward", kind, x.shape, gradients(norm(x), x, norm.weight, norm.bias))
        for window in (3, 2):
            pool = partial(F.max_pool2d, kernel_size=window, stride=2)
            yield row("max_pool", kind, (*x.shape, window), pool, x.detach())
            yield row("max_pool backward", kind, (*x.shape, window), gradients(pool(x), x))
        yield row("bias sum", kind, x.shape, torch.sum, x.detach(), (0, 2, 3))


def row_reductions(kind: str) -> Iterator[dict[str, Any]]:
    for rows, width in ROWS:
        x = torch.randn(rows, width, device="cuda", dtype=TYPES[kind], requires_grad=True)
        norm = nn.LayerNorm(width, device="cuda", dtype=TYPES[kind])
        yield row("layer_norm", kind, x.shape, norm, x.detach())
        yield row("layer_norm backward", kind, x.shape, gradients(norm(x), x, norm.weight, norm.bias))
        yield row("log_softmax", kind, x.shape, F.log_softmax, x.detach(), -1)
        yield row("log_softmax backward", kind, x.shape, gradients(F.log_softmax(x, -1), x))
        yield row("softmax", kind, x.shape, F.softmax, x.detach(), -1)
        yield row("softmax backward", kind, x.shape, gradients(F.softmax(x, -1), x))
        yield row("column sum", kind, x.shape, torch.sum, x.detach(), 0)
        yield row("row mean", kind, x.shape, torch.mean, x.detach(), 1)
        yield row("dropout", kind, x.shape, F.dropout, x, 0.1)
        yield row("gelu", kind, x.shape, F.gelu, x.detach())
    for batch, heads, length in ((32, 8, 512), (64, 12, 128)):
        y = torch.randn(batch, length, heads, 64, device="cuda", dtype=TYPES[kind])
        yield row("permute heads", kind, y.shape, y.permute(0, 2, 1, 3).contiguous)
        yield row("transpose heads", kind, y.shape, y.permute(0, 2, 3, 1).contiguous)


def attention(kind: str) -> Iterator[dict[str, Any]]:
    for batch, heads, length, causal, dropout in ATTENTION:
        shape = (batch, heads, length, 64)
        q, k, v = (torch.randn(shape, device="cuda", dtype=TYPES[kind], requires_grad=True) for _ in range(3))
        call = partial(F.scaled_dot_product_attention, is_causal=causal, dropout_p=dropout)
        yield row("attention", kind, (*shape, causal, dropout), call, q, k, v)
        yield row("attention backward", kind, (*shape, causal, dropout), gradients(call(q, k, v), q, k, v))


def gathers(kind: str) -> Iterator[dict[str, Any]]:
    for table, width, count in ((32000, 768, 8192), (2, 768, 8192), (1024, 768, 1024)):
        weight = torch.randn(table, width, device="cuda", dtype=TYPES[kind], requires_grad=True)
        index = torch.randint(table, (count,), device="cuda")
        yield row("embedding backward", kind, (table, width, count), gradients(F.embedding(index, weight), weight))


def kernels() -> Iterator[dict[str, Any]]:
    for kind in TYPES:
        for part in (convolutions, maps, row_reductions, attention, gathers):
            yield from part(kind)
            torch.cuda.empty_cache()


class Residual(nn.Module):
    """One addition."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


class Heads(nn.Module):
    """Views alone: no kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 4, 2, 4).transpose(1, 2).transpose(1, 2).reshape(2, 4, 8)


class Attend(nn.Module):
    """Scaled dot-product attention of a tensor with itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


class Recurrent(nn.LSTM):
    """An LSTM that returns its outputs alone."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def modules() -> Iterator[tuple[str, Callable[[], nn.Module], Tensor]]:
    flat, maps_ = torch.randn(8, 64, device="cuda"), torch.randn(2, 16, 8, 8, device="cuda")
    yield "ReLU", nn.ReLU, flat
    yield "residual addition", Residual, flat
    yield "GELU", nn.GELU, flat
    yield "Dropout", partial(nn.Dropout, 0.1), flat
    yield "Linear", partial(nn.Linear, 64, 64, device="cuda"), flat
    yield "LayerNorm", partial(nn.LayerNorm, 64, device="cuda"), flat
    yield "Softmax", partial(nn.Softmax, -1), flat
    yield "Conv2d 3x3", partial(nn.Conv2d, 16, 16, 3, padding=1, bias=False, device="cuda"), maps_
    yield "Conv2d 1x1", partial(nn.Conv2d, 16, 16, 1, bias=False, device="cuda"), maps_
    yield "Conv2d 3x3, bias", partial(nn.Conv2d, 16, 16, 3, padding=1, device="cuda"), maps_
    yield "BatchNorm2d", partial(nn.BatchNorm2d, 16, device="cuda"), maps_
    yield "MaxPool2d", partial(nn.MaxPool2d, 3, 1, 1), maps_
    yield "four views", Heads, torch.randn(2, 4, 8, device="cuda")
    yield "attention", Attend, torch.randn(2, 2, 64, 64, device="cuda")
    yield "attention, bf16", Attend, torch.randn(2, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    yield "LSTM, 25 steps", partial(Recurrent, 64, 64, batch_first=True, device="cuda"), torch.randn(8, 25, 64, device="cuda")


def _there_and_back(chain: nn.Module, x: Tensor) -> None:
    chain(x).sum().backward()


def host_calls(length: int = 20, repeats: int = 25) -> Iterator[dict[str, Any]]:
    """Host time of one module call, forward and backward, in a chain of `length`, with the device idle; kernels of each."""
    for name, make, x in modules():
        chain = nn.Sequential(*(make() for _ in range(length)))
        x.requires_grad_()
        spans: tuple[list[float], list[float]] = ([], [])
        for number in range(repeats + 5):
            chain.zero_grad(set_to_none=True)
            x.grad = None
            torch.cuda.synchronize()
            start = time.perf_counter()
            output = chain(x)
            middle = time.perf_counter()
            total = output.sum()
            torch.cuda.synchronize()
            again = time.perf_counter()
            total.backward()
            done = time.perf_counter()
            torch.cuda.synchronize()
            if number >= 5:
                spans[0].append((middle - start) / length)
                spans[1].append((done - again) / length)
        forward = sum(count for _, count, _ in kernel_times(partial(chain, x))) / length
        both = sum(count for _, count, _ in kernel_times(partial(_there_and_back, chain, x))) / length
        for direction, times, count in (("forward", spans[0], forward), ("backward", spans[1], both - forward)):
            yield {
                "work": f"{name}, {direction}", "seconds": statistics.median(times), "fastest": min(times), "slowest": max(times),
                "kernels": round(count, 2), "parameters": len(list(chain[0].parameters())),
            }  # fmt: skip
