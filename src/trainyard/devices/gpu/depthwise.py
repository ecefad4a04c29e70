"""Depthwise convolutions: torch's own window kernels for NCHW maps, cuDNN's kernels for channels-last maps.

torch chooses by memory format: a map or filter in channels-last goes to cuDNN whatever its type. Of other maps only fp16 with a
square window of up to 5 x 5 and stride 1 does; the rest goes to torch's kernels, which are no faster in 16 bits. For channels-last
cuDNN has kernels for windows of up to 7 x 7, except for grad_weight of fp32 (up to 5 x 5); beyond those it falls back to a direct
kernel, a general one, and an implicit matrix product that pads each group.

Costs are instructions of one lane, measured with `benchmarks/silicon_kernels.py` on windows of 3 to 11 and maps of 7 to 112.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainyard.devices.gpu.traffic import Kernel, Traffic, finish
from trainyard.ir import DTYPE_BYTES, Convolution

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu

WARP = 32
# torch, NCHW. A thread computes one result; loops over windows of up to 5 x 5 are unrolled. (instructions, and for each tap)
UNROLLED = {"forward": (184.0, 16.0), "grad_input": (532.0, 5.2)}
LOOPED = {"forward": (0.0, 23.5), "grad_input": (520.0, 20.5)}
UNROLLED_WINDOW = 5
# torch's grad_weight: a block for each channel and tap, a warp for each image, whose lanes walk over its positions.
IMAGE, POSITION, RESULT = 115.0, 45.5, 67.0
# cuDNN: instructions for a result of a window of 9, 25 and 49 taps; between, in proportion.
TAPS = (9, 25, 49)
HALF = {"forward": (67.0, 125.0, 237.0), "grad_input": (112.0, 237.0, 585.0), "grad_weight": (79.0, 130.0, 194.0)}  # channels last
WIDE = {"forward": (94.0, 231.0, 622.0), "grad_input": (112.0, 241.0, 665.0), "grad_weight": (77.0, 190.0)}  # fp32, channels last
FP16 = {"forward": (107.0, 281.0), "grad_input": (107.0, 281.0), "grad_weight": (200.0, 270.0)}  # channels first
FP16_CHANNELS, FP16_COLUMNS = 32, 7  # at least so many for torch to choose cuDNN for NCHW maps
POSITIONS = 4  # rows and columns of a map that a thread's tile covers
FALLBACK = {"forward": 147.0, "grad_input": 41.0}  # for each tap of a larger window; forward, taps on the padding are skipped
GROUP = {True: 16 * 32, False: 32 * 32}  # channels that the implicit product of grad_weight pads a group to: in times out


def depthwise(gpu: Gpu, body: Convolution, dtype: str, traffic: Traffic, *, channels_last: bool) -> Kernel:
    """The time of one depthwise convolution without its bias."""
    width = DTYPE_BYTES[dtype]
    traffic.reads()
    traffic.writes()
    launches = 1.0
    if channels_last or _fp16_by_cudnn(body, dtype):
        instructions = _cudnn(body, FP16 if not channels_last else HALF if width < 4 else WIDE)
        launches = 2.0 if body.product == "grad_weight" else 1.0
    else:
        instructions = _torch(body)
    if instructions is None:  # an implicit product, between transpositions of both maps
        product_s = body.output_elements * math.prod(body.kernel) * GROUP[width < 4] / gpu.product_macs_per_s(width)
        copied = (body.input_elements + body.output_elements) * width
        serial_s = 2 * copied / (gpu.dram_bytes_per_s * gpu.copy_fraction)
        return finish(gpu, traffic, compute_s=product_s, launches=5.0, macs=body.macs, serial_s=serial_s)
    return finish(gpu, traffic, compute_s=gpu.instructions_s(instructions), launches=launches, macs=body.macs)


def _fp16_by_cudnn(body: Convolution, dtype: str) -> bool:
    """torch's condition for NCHW maps."""
    square = len(body.kernel) == 2 and body.kernel[0] == body.kernel[1] in (1, 3, 5)
    plain = set(body.stride) == set(body.dilation) == {1}
    return dtype == "fp16" and square and plain and body.in_channels >= FP16_CHANNELS and body.size[-1] >= FP16_COLUMNS


def _torch(body: Convolution) -> float:
    window = math.prod(min(kernel, size) for kernel, size in zip(body.kernel, body.size, strict=True))
    if body.product == "grad_weight":
        turns = math.ceil(math.prod(body.out_size) / WARP)
        images = body.batch * body.out_channels * math.prod(body.kernel)
        return images * WARP * (IMAGE + POSITION * turns) + RESULT * body.output_elements
    fixed, tap = (UNROLLED if max(body.kernel) <= UNROLLED_WINDOW else LOOPED)[body.product]
    results = body.input_elements if body.product == "grad_input" else body.output_elements
    return results * (fixed + tap * (window if body.product == "forward" else math.prod(body.kernel)))


def _cudnn(body: Convolution, kernels: Mapping[str, tuple[float, ...]]) -> float | None:
    """Instructions of cuDNN's kernel; None where it has none and multiplies matrices."""
    costs = kernels[body.product]
    taps = math.prod(body.kernel)
    if max(body.kernel) ** 2 > TAPS[len(costs) - 1]:
        if body.product == "grad_weight":
            return None
        if body.product == "forward":
            return body.output_elements * FALLBACK["forward"] * _inside(body)
        return body.input_elements * FALLBACK["grad_input"] * taps
    size, elements = body.size, float(body.input_elements)
    if body.product != "grad_input":  # reads windows that lie apart by the stride: between the sizes of both maps
        size, elements = body.out_size, math.sqrt(body.input_elements * body.output_elements)
    tiled = math.prod(math.ceil(extent / POSITIONS) * POSITIONS / extent for extent in size)
    return elements * tiled * _interpolated(taps, costs)


def _interpolated(taps: int, costs: tuple[float, ...]) -> float:
    """Piecewise linear in the number of taps.

    >>> _interpolated(25, (67.0, 125.0, 237.0)), _interpolated(17, (67.0, 125.0, 237.0)), _interpolated(1, (67.0, 125.0, 237.0))
    (125.0, 96.0, 38.0)
    """
    segment = 0 if taps <= TAPS[1] or len(costs) < 3 else 1
    slope = (costs[segment + 1] - costs[segment]) / (TAPS[segment + 1] - TAPS[segment])
    return costs[segment] + slope * (taps - TAPS[segment])


def _inside(body: Convolution) -> float:
    """Taps of a window that lie on the map, on average over its positions."""
    mean = 1.0
    for extent, out, kernel, stride, pad in zip(body.size, body.out_size, body.kernel, body.stride, body.padding, strict=True):
        inside = sum(0 <= place * stride + tap - pad < extent for place in range(out) for tap in range(kernel))
        mean *= inside / out
    return mean
