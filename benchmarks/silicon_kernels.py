"""Micro-benchmarks of single calls that models of others make: depthwise and channels-last convolutions, group norm, attention of
many head sizes, grouped products of experts, casts. Each row has the kernels that torch starts, by name, and their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from gpu_kernels import gradients, row
from torch import Tensor, nn
from torch.nn import functional as F

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# fmt: off
DEPTHWISE = (  # batch, channels, size, stride
    (64, 96, 56, 1), (64, 192, 28, 1), (64, 384, 14, 1), (64, 768, 7, 1), (32, 128, 56, 1), (64, 64, 112, 1), (64, 96, 56, 2),
)
WINDOWS = (3, 5, 7, 9, 11)
GROUPED = (  # batch, channels in, channels out, size, kernel, stride, groups: ResNeXt's and RegNet's kind
    (64, 128, 128, 56, 3, 1, 32), (64, 256, 256, 28, 3, 1, 32), (64, 512, 512, 14, 3, 1, 32), (64, 1024, 1024, 7, 3, 1, 32),
    (32, 224, 224, 56, 3, 1, 4), (32, 448, 448, 28, 3, 1, 8), (64, 256, 256, 56, 3, 2, 32),
)
DENSE = (  # batch, channels in, channels out, size, kernel, stride
    (64, 64, 64, 56, 3, 1), (64, 256, 64, 56, 1, 1), (64, 64, 256, 56, 1, 1), (64, 256, 256, 14, 3, 1), (64, 3, 64, 224, 7, 2),
    (64, 3, 96, 224, 4, 4), (64, 96, 192, 56, 2, 2), (16, 160, 160, 64, 3, 1), (16, 640, 640, 16, 3, 1), (64, 128, 128, 32, 3, 1),
    (64, 512, 1024, 14, 1, 1),
)
MAPS = ((64, 64, 112), (64, 256, 56), (64, 512, 28), (64, 1024, 14), (64, 2048, 7), (128, 96, 28))
GROUP_NORM = ((16, 160, 64), (16, 640, 16), (64, 128, 32), (16, 320, 32))
ATTENTION = (  # batch, heads, heads of keys, queries, keys, head size, causal, additive mask
    (8, 16, 16, 1024, 1024, 64, True, False), (8, 16, 8, 1024, 1024, 64, True, False), (4, 32, 32, 2048, 2048, 128, True, False),
    (64, 12, 12, 197, 197, 64, False, False), (8, 12, 12, 1500, 1500, 64, False, False), (8, 12, 12, 128, 1500, 64, False, False),
    (16, 8, 8, 4096, 4096, 20, False, False), (16, 8, 8, 1024, 1024, 40, False, False), (16, 8, 8, 4096, 77, 20, False, False),
    (8, 16, 16, 1024, 1024, 64, False, True), (32, 8, 8, 512, 512, 64, False, True), (64, 12, 12, 128, 128, 64, False, True),
    (4, 16, 16, 1024, 1024, 128, False, False), (2, 16, 16, 4096, 4096, 128, True, False), (32, 12, 12, 256, 256, 64, False, False),
)
EXPERTS = ((16384, 1024, 4096, 8), (16384, 2048, 1024, 8), (32768, 1024, 1024, 32), (32768, 512, 1024, 32), (8192, 1024, 1408, 64))
ROWS = ((8192, 1024), (8192, 2816), (200704, 128), (12544, 512), (12608, 768), (8192, 32000), (4096, 151936))
# fmt: on


def convolution_rows(op: str, kind: str, form: str, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Forward, grad_input and grad_weight of one convolution."""
    batch, deep, wide, size, kernel, stride, groups = shape
    x = torch.randn(batch, deep, size, size, device="cuda", dtype=TYPES[kind]).to(memory_format=FORMATS[form])
    w = torch.randn(wide, deep // groups, kernel, kernel, device="cuda", dtype=TYPES[kind])
    padding = 0 if kernel in (1, 2, 4) else kernel // 2
    dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding, groups=groups))
    yield row(op, f"{kind} {form}", (*shape, padding), F.conv2d, x, w, None, stride, padding, 1, groups)
    for name, mask in (("grad_input", [True, False, False]), ("grad_weight", [False, True, False])):
        arguments = (dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, mask)
        yield row(f"{op} {name}", f"{kind} {form}", (*shape, padding), torch.ops.aten.convolution_backward, *arguments)


def depthwise(kind: str) -> Iterator[dict[str, Any]]:
    for form in FORMATS:
        for kernel in WINDOWS:
            for batch, channels, size, stride in DEPTHWISE:
                if kernel <= 7 or (stride == 1 and size <= 56):
                    yield from convolution_rows(
                        "depthwise", kind, form, (batch, channels, channels, size, kernel, stride, channels)
                    )


def dense(kind: str) -> Iterator[dict[str, Any]]:
    for form in FORMATS:
        for shape in (*GROUPED, *((*shape, 1) for shape in DENSE)):
            yield from convolution_rows("convolution", kind, form, shape)


def norms(kind: str) -> Iterator[dict[str, Any]]:
    for batch, channels, size in MAPS:
        for form, layout in FORMATS.items():
            x = torch.randn(batch, channels, size, size, device="cuda", dtype=TYPES[kind]).to(memory_format=layout).requires_grad_()
            for name, dtype in (("batch_norm", torch.float32 if kind == "fp32" else TYPES[kind]), ("batch_norm, fp32 gain", None)):
                if dtype is None and kind == "fp32":
                    continue
                norm = nn.BatchNorm2d(channels, device="cuda", dtype=dtype)
                yield row(name, f"{kind} {form}", x.shape, norm, x.detach())
                yield row(f"{name} backward", f"{kind} {form}", x.shape, gradients(norm(x), x, norm.weight, norm.bias))
            yield row("relu", f"{kind} {form}", x.shape, F.relu, x.detach())
            yield row("average pool", f"{kind} {form}", x.shape, F.adaptive_avg_pool2d, x.detach(), 1)
    for batch, channels, size in GROUP_NORM:
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=TYPES[kind], requires_grad=True)
        norm_ = nn.GroupNorm(32, channels, device="cuda", dtype=TYPES[kind])
        yield row("group_norm", kind, x.shape, norm_, x.detach())
        yield row("group_norm backward", kind, x.shape, gradients(norm_(x), x, norm_.weight, norm_.bias))


def attention(kind: str) -> Iterator[dict[str, Any]]:
    for shape in ATTENTION:
        batch, heads, groups, queries, keys, width, causal, masked = shape
        q = torch.randn(batch, heads, queries, width, device="cuda", dtype=TYPES[kind], requires_grad=True)
        k, v = (torch.randn(batch, groups, keys, width, device="cuda", dtype=TYPES[kind], requires_grad=True) for _ in range(2))
        mask = torch.zeros(batch, 1, queries, keys, device="cuda", dtype=TYPES[kind]) if masked else None
        call = partial(F.scaled_dot_product_attention, attn_mask=mask, is_causal=causal, enable_gqa=groups != heads)
        yield row("attention", kind, shape, call, q, k, v)
        yield row("attention backward", kind, shape, gradients(call(q, k, v), q, k, v))


def experts(kind: str) -> Iterator[dict[str, Any]]:
    if kind != "bf16":
        return
    for tokens, deep, wide, count in EXPERTS:
        x = torch.randn(tokens, deep, device="cuda", dtype=TYPES[kind], requires_grad=True)
        w = torch.randn(count, wide, deep, device="cuda", dtype=TYPES[kind], requires_grad=True)
        weights = torch.rand(count, device="cuda") + 0.5
        cuts = (weights.cumsum(0) / weights.sum() * tokens).round().to(torch.int32)

        def call(x: Tensor, w: Tensor, cuts: Tensor = cuts) -> Tensor:
            return torch._grouped_mm(x, w.transpose(-2, -1), offs=cuts)

        yield row("grouped product", kind, (tokens, deep, wide, count), call, x, w)
        output = call(x, w)
        yield row("grouped product grad_input", kind, (tokens, deep, wide, count), gradients(output, x))
        yield row("grouped product grad_weight", kind, (tokens, deep, wide, count), gradients(output, w))


def streams(kind: str) -> Iterator[dict[str, Any]]:
    for rows, width in ROWS:
        x = torch.randn(rows, width, device="cuda", dtype=TYPES[kind], requires_grad=True)
        yield row("silu", kind, x.shape, F.silu, x.detach())
        yield row("silu backward", kind, x.shape, gradients(F.silu(x), x))
        yield row("gelu backward", kind, x.shape, gradients(F.gelu(x), x))
        yield row("multiply", kind, x.shape, torch.mul, x.detach(), x.detach())
        yield row("to fp32" if kind != "fp32" else "to bf16", kind, x.shape, partial(_cast, kind), x.detach())
        yield row("power", kind, x.shape, torch.pow, x.detach(), 2)
        yield row("row mean", kind, x.shape, partial(torch.mean, dim=-1, keepdim=True), x.detach())
        norm = nn.LayerNorm(width, device="cuda", dtype=TYPES[kind])
        if width <= 2816:
            yield row("layer_norm", kind, x.shape, norm, x.detach())
            yield row("layer_norm backward", kind, x.shape, gradients(norm(x), x, norm.weight, norm.bias))
            yield row("scale rows", kind, x.shape, torch.mul, x.detach(), norm.weight.detach())
        else:
            target = torch.randint(0, width, (rows,), device="cuda")
            yield row("cross entropy", kind, x.shape, F.cross_entropy, x.detach(), target)
            yield row("cross entropy backward", kind, x.shape, gradients(F.cross_entropy(x, target), x))
    for batch, channels, size in MAPS:
        y = torch.randn(batch, channels, size, size, device="cuda", dtype=TYPES[kind])
        yield row("to channels last", kind, y.shape, partial(y.contiguous, memory_format=torch.channels_last))
        z = y.to(memory_format=torch.channels_last)
        yield row("to channels first", kind, y.shape, z.contiguous)
        yield row("add, two formats", kind, y.shape, torch.add, y, z)
        yield row("scale channels", kind, y.shape, torch.mul, torch.ones(channels, 1, 1, device="cuda", dtype=y.dtype), z)


def _cast(kind: str, x: Tensor) -> Tensor:
    return x.to(torch.bfloat16 if kind == "fp32" else torch.float32)


def updates() -> Iterator[dict[str, Any]]:
    for kind in ("fp32", "bf16"):
        for count, size in ((64, 2**20), (300, 2**14), (8, 2**24)):
            parameters = [nn.Parameter(torch.randn(size, device="cuda", dtype=TYPES[kind])) for _ in range(count)]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
                "AdamW": torch.optim.AdamW, "fused AdamW": partial(torch.optim.AdamW, fused=True),
                "SGD": partial(torch.optim.SGD, momentum=0.9), "fused SGD": partial(torch.optim.SGD, momentum=0.9, fused=True),
            }  # fmt: skip
            for name, make in makers.items():
                yield row(name, kind, (count, size), make(parameters, lr=1e-4).step)


def kernels() -> Iterator[dict[str, Any]]:
    for part in (depthwise, dense, norms, attention, experts, streams):
        for kind in ("bf16", "fp32", "fp16") if part in (depthwise, attention) else ("bf16", "fp32"):
            yield from part(kind)
            torch.cuda.empty_cache()
    yield from updates()
