"""How cuDNN and torch run a convolution of NCHW maps: the fastest of the ways that apply.

In place: a pointwise convolution is one product for each image. Turned: maps are copied to NHWC, multiplied there, and copied back.
Plain: on the vector lanes, without copies, which pays for the three channels of an image. Depthwise: torch's own window kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from trainyard.devices.gpu.products import PARTIAL_BYTES, WORD_BYTES, Matrices, best_tiling, elements_per_load, product_seconds
from trainyard.devices.gpu.traffic import Kernel, Traffic, element_type, finish
from trainyard.ir import Convolution, Op, Step

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu, Kind

CHANNEL_BYTES = 16  # tensor cores take channels in vectors of 16 bytes: fewer are padded
PLAIN_DEPTH = 32  # products of a filter's taps and channels up to which cuDNN's choice fell on the vector lanes
TURN_TILE = 32  # channels that a transposition takes at a time, whether they are there or not
# Taps of a 3 x 3 window in units of a pooling thread; a gradient's thread tests each for stride and edge before it multiplies.
DEPTHWISE = {"forward": 1.15, "grad_input": 1.9, "grad_weight": 1.9}


class Way(NamedTuple):
    """One way to run it: the product, and what is copied around it: elements turned, and walked in tiles to turn them."""

    matrices: Matrices
    kind: Kind
    turned: int = 0
    walked: int = 0
    copies: int = 0


def convolution(gpu: Gpu, step: Step, op: Op, traffic: Traffic) -> Kernel:
    body = op.body
    assert isinstance(body, Convolution)
    dtype, width = element_type(gpu, step, op)
    if body.groups > 1 and body.in_channels == body.groups:
        return _depthwise(gpu, body, traffic)
    kind = gpu.kind(dtype, convolution=True)
    timed = [(_seconds(gpu, way, width), way) for way in _ways(gpu, body, kind, width)]
    _, way = min(timed, key=lambda pair: pair[0])
    tiled = best_tiling(way.matrices, gpu.limits(way.kind))
    traffic.reads()
    traffic.writes()
    launches = float(tiled.kernels + way.copies)
    serial_s = _copies_s(gpu, way, width)
    if body.product == "forward" and len(op.inputs) > 2:  # torch adds the bias in a kernel of its own
        launches += 1
        serial_s += _one_by_one_s(gpu, body.output_elements, body.output_elements, width)
    if body.product == "grad_weight":
        launches += way.matrices.batch > body.groups
        serial_s += (way.matrices.out_bytes - body.weight_elements * width) / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    spill_s = 2 * tiled.partial_bytes / gpu.l2_bytes_per_s
    kernel = finish(
        gpu, traffic, compute_s=tiled.compute_s, l2_s=tiled.l2_s, launches=launches, macs=body.macs, serial_s=serial_s + spill_s
    )
    traffic.moves(way.turned * width, way.turned * width)  # the copies' bytes, whose time is in serial_s
    return kernel


def _ways(gpu: Gpu, body: Convolution, kind: Kind, width: int) -> Iterator[Way]:
    if kind == "fp32" or kind == "fp64":
        yield Way(matrices(body, width), kind)
        return
    across = {"forward": (False, False), "grad_input": (False, True), "grad_weight": (True, True)}[body.product]
    in_rows = _lying(_padded(body, width), kind, *across)
    if gpu.layout == "native":
        yield Way(in_rows, kind)
        return
    pointwise = math.prod(body.kernel) == 1 and body.groups == 1 and body.size == body.out_size
    if pointwise:
        across = {"forward": (False, True), "grad_input": (True, True), "grad_weight": (False, False)}[body.product]
        yield Way(_lying(_by_image(body, width), kind, *across), kind)
    yield Way(in_rows, kind, *_turned(body))
    if body.in_channels // body.groups * math.prod(body.kernel) <= PLAIN_DEPTH:
        yield Way(matrices(body, width), "fp32")


def _lying(product: Matrices, kind: Kind, a_turned: bool, b_turned: bool) -> Matrices:
    """In NHWC channels lie innermost, in NCHW rows; TF32 tensor cores ask for operands that lie along the reduction."""
    return product._replace(a_turned=a_turned, b_turned=b_turned) if kind == "tf32" else product


def _seconds(gpu: Gpu, way: Way, width: int) -> float:
    limits = gpu.limits(way.kind)
    return product_seconds(best_tiling(way.matrices, limits), way.matrices, limits) + _copies_s(gpu, way, width)


def _copies_s(gpu: Gpu, way: Way, width: int) -> float:
    return _one_by_one_s(gpu, way.turned, way.walked, width)


def _one_by_one_s(gpu: Gpu, elements: int, walked: int, width: int) -> float:
    """Transpositions, and additions of a bias to maps, take their elements one by one: DRAM binds them, or instructions."""
    bytes_s = 2 * elements * width / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    return max(bytes_s, gpu.instructions_s(walked * gpu.heavy_instructions))


def _turned(body: Convolution) -> tuple[int, int, int]:
    """Elements of the two maps, and of the filter unless it is pointwise; the same in whole tiles of channels; copies."""
    maps = ((body.input_elements, body.in_channels), (body.output_elements, body.out_channels))
    filters = body.weight_elements if math.prod(body.kernel) > 1 else 0
    walked = sum(elements // channels * max(channels, TURN_TILE) for elements, channels in maps)
    return sum(elements for elements, _ in maps) + filters, walked + filters, 3 if filters else 2


def matrices(body: Convolution, width: int) -> Matrices:
    """The implicit product over NHWC maps: no zeros are multiplied for a stride, no columns are written out."""
    deep, wide = body.in_channels // body.groups, body.out_channels // body.groups
    positions, taps = body.batch * math.prod(body.out_size), math.prod(body.kernel)
    x, w, y = (count * width for count in (body.input_elements, body.weight_elements, body.output_elements))
    if body.product == "forward":
        return Matrices(positions, wide, deep * taps, body.groups, x, w, y, width)
    if body.product == "grad_weight":
        return Matrices(deep * taps, wide, positions, body.groups, x, y, w, width)
    inputs = body.batch * math.prod(body.size)
    return Matrices(inputs, deep, max(1, round(wide * taps * positions / inputs)), body.groups, y, w, x, width)


def _padded(body: Convolution, width: int) -> Matrices:
    """The same with each group's input channels filled up to a vector."""
    step = max(1, CHANNEL_BYTES // width)
    deep = body.in_channels // body.groups
    padded = math.ceil(deep / step) * step
    found = matrices(body, width)
    if padded == deep:
        return found
    found = found._replace(row=max(1, WORD_BYTES // width))  # whole words now, but no bulk copy: taps are gathered
    if body.product == "forward":
        return found._replace(K=found.K * padded // deep)
    return found._replace(M=found.M * padded // deep) if body.product == "grad_weight" else found._replace(N=padded)


def _by_image(body: Convolution, width: int) -> Matrices:
    """Y = W X for each image, rows of H x W elements; dW leaves a partial sum for each image."""
    extent = math.prod(body.size)
    deep, wide = body.in_channels, body.out_channels
    x, w, y = (count * width for count in (body.input_elements, body.weight_elements, body.output_elements))
    row = elements_per_load(width, extent)
    if body.product == "forward":
        return Matrices(wide, extent, deep, body.batch, w, x, y, width, row)
    if body.product == "grad_input":
        return Matrices(deep, extent, wide, body.batch, w, y, x, width, row)
    return Matrices(wide, deep, extent, body.batch, y, x, 2 * PARTIAL_BYTES * body.batch * body.weight_elements, width, row)


def _depthwise(gpu: Gpu, body: Convolution, traffic: Traffic) -> Kernel:
    """One filter per channel has nothing for a tensor core: a thread for each element walks its window.

    The input's gradient walks every input; the others every output.
    """
    walked = body.input_elements if body.product == "grad_input" else body.output_elements
    taps = DEPTHWISE[body.product] * math.prod(body.kernel) / 9
    traffic.reads()
    traffic.writes()
    compute_s = gpu.instructions_s(walked * taps * gpu.window_instructions)
    return finish(gpu, traffic, compute_s=compute_s, launches=1.0, macs=body.macs)
