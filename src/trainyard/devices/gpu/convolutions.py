"""Convolutions of NCHW maps in cuDNN and torch: the fastest of the applicable algorithms.

By image: a pointwise convolution is one product for each image, without copies. NHWC: maps are transposed to NHWC, multiplied, and
transposed back; maps that are channels-last already (`TensorSpec.channels_last`) need no copies. Vector lanes: without copies,
which pays for images of three channels. Depthwise convolutions: `depthwise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trainyard.devices.gpu.depthwise import depthwise
from trainyard.devices.gpu.products import PARTIAL_BYTES, WORD_BYTES, Matrices, best_tiling, elements_per_load, product_seconds
from trainyard.devices.gpu.traffic import Kernel, Traffic, element_type, finish
from trainyard.ir import Convolution, Op, Step
from trainyard.ir.step import operand_order

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu, Kind

CHANNEL_BYTES = 16  # tensor cores read channels in vectors of 16 bytes: fewer are padded
VECTOR_DEPTH = 32  # taps x channels of a filter up to which cuDNN was seen to choose the vector lanes
NARROW_GROUP, MERGED_CHANNELS = 32, 128  # groups of up to 32 channels are merged into products of 128 (ResNeXt's; fits their times)
TRANSPOSE_TILE = 32  # channels that a transposition processes at a time, padded if there are fewer


class Algorithm(NamedTuple):
    """A product and the transpositions around it: their elements, those in padded tiles, and their kernels."""

    matrices: Matrices
    kind: Kind
    transposed: int = 0
    tiled: int = 0
    copies: int = 0


def convolution(gpu: Gpu, step: Step, op: Op, traffic: Traffic) -> Kernel:
    body = op.body
    assert isinstance(body, Convolution)
    dtype, width = element_type(gpu, step, op)
    native = gpu.layout == "native" or _channels_last(step, op)
    if body.groups > 1 and body.in_channels == body.groups:
        kernel = depthwise(gpu, body, dtype, traffic, channels_last=native)
        return _with_bias(gpu, op, body, width, kernel) if native else kernel
    kind = gpu.kind(dtype, convolution=True)
    algorithm = min(_algorithms(body, kind, width, native=native), key=lambda candidate: _seconds(gpu, candidate, width))
    tiled = best_tiling(algorithm.matrices, gpu.limits(algorithm.kind))
    traffic.reads()
    traffic.writes()
    launches = float(tiled.kernels + algorithm.copies)
    serial_s = _copies_s(gpu, algorithm, width)
    if body.product == "forward" and len(op.inputs) > 2:  # torch adds the bias in a separate kernel
        launches += 1
        serial_s += _elementwise_s(gpu, body.output_elements, body.output_elements, width)
    if body.product == "grad_weight":
        launches += algorithm.matrices.batch > body.groups
        serial_s += (algorithm.matrices.out_bytes - body.weight_elements * width) / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    spill_s = 2 * tiled.partial_bytes / gpu.l2_bytes_per_s
    kernel = finish(
        gpu, traffic, compute_s=tiled.compute_s, l2_s=tiled.l2_s, launches=launches, macs=body.macs, serial_s=serial_s + spill_s
    )
    traffic.moves(algorithm.transposed * width, algorithm.transposed * width)  # their time is in serial_s
    return kernel


def _channels_last(step: Step, op: Op) -> bool:
    """Whether a convolution runs in channels-last: by the format of its input map and its filter, as torch decides it.

    The gradient of the input is returned in the format that the input has.
    """
    body = op.body
    assert isinstance(body, Convolution)
    deciding = op.outputs[:1] + op.inputs[1:2]
    if body.product == "forward":
        deciding = op.inputs[:2]
    elif body.product == "grad_weight":
        deciding = (
            *(op.inputs[position] for position in operand_order(step, op)[:1] if position < len(op.inputs)),
            *op.outputs[:1],
        )
    return any(step.tensors[tensor].channels_last for tensor in deciding)


def _with_bias(gpu: Gpu, op: Op, body: Convolution, width: int, kernel: Kernel) -> Kernel:
    """The kernel and the one behind it that adds a bias: cuDNN's forward convolutions have none."""
    if body.product != "forward" or len(op.inputs) < 3:
        return kernel
    bias_s = _elementwise_s(gpu, body.output_elements, body.output_elements, width) + gpu.ramp_s + gpu.gap_s
    return kernel._replace(seconds=kernel.seconds + bias_s, launches=kernel.launches + 1)


def _algorithms(body: Convolution, kind: Kind, width: int, *, native: bool) -> Iterator[Algorithm]:
    if kind == "fp32" or kind == "fp64":
        yield Algorithm(matrices(body, width), kind)
        return
    strided = {"forward": (False, False), "grad_input": (False, True), "grad_weight": (True, True)}[body.product]
    nhwc = _with_strides(_padded(body, width), kind, *strided)
    if native:
        yield Algorithm(nhwc, kind)
        return
    pointwise = math.prod(body.kernel) == 1 and body.groups == 1 and body.size == body.out_size
    if pointwise:
        strided = {"forward": (False, True), "grad_input": (True, True), "grad_weight": (False, False)}[body.product]
        yield Algorithm(_with_strides(_by_image(body, width), kind, *strided), kind)
    yield Algorithm(nhwc, kind, *_transpositions(body))
    if body.in_channels // body.groups * math.prod(body.kernel) <= VECTOR_DEPTH:
        yield Algorithm(matrices(body, width), "fp32")


def _with_strides(product: Matrices, kind: Kind, a_strided: bool, b_strided: bool) -> Matrices:
    """Strides matter to TF32 tensor cores, which need operands that are contiguous along the reduction (NHWC: channels)."""
    return product._replace(a_strided=a_strided, b_strided=b_strided) if kind == "tf32" else product


def _seconds(gpu: Gpu, algorithm: Algorithm, width: int) -> float:
    limits = gpu.limits(algorithm.kind)
    return product_seconds(best_tiling(algorithm.matrices, limits), algorithm.matrices, limits) + _copies_s(gpu, algorithm, width)


def _copies_s(gpu: Gpu, algorithm: Algorithm, width: int) -> float:
    return _elementwise_s(gpu, algorithm.transposed, algorithm.tiled, width)


def _elementwise_s(gpu: Gpu, elements: int, processed: int, width: int) -> float:
    """Time of a transposition or an addition of a bias to maps, without vector loads: bound by DRAM or by instructions."""
    bytes_s = 2 * elements * width / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    return max(bytes_s, gpu.instructions_s(processed * gpu.heavy_instructions))


def _transpositions(body: Convolution) -> tuple[int, int, int]:
    """Elements of the two maps, and of the filter unless it is pointwise; the same in padded tiles of channels; kernels."""
    maps = ((body.input_elements, body.in_channels), (body.output_elements, body.out_channels))
    filters = body.weight_elements if math.prod(body.kernel) > 1 else 0
    tiled = sum(elements // channels * max(channels, TRANSPOSE_TILE) for elements, channels in maps)
    return sum(elements for elements, _ in maps) + filters, tiled + filters, 3 if filters else 2


def matrices(body: Convolution, width: int) -> Matrices:
    """The implicit product over NHWC maps: no zeros are inserted for a stride, no columns are written to memory."""
    deep, wide = body.in_channels // body.groups, body.out_channels // body.groups
    positions, taps = body.batch * math.prod(body.out_size), math.prod(body.kernel)
    x, w, y = (count * width for count in (body.input_elements, body.weight_elements, body.output_elements))
    if body.product == "forward":
        return Matrices(positions, wide, deep * taps, body.groups, x, w, y, width)
    if body.product == "grad_weight":
        return Matrices(deep * taps, wide, positions, body.groups, x, y, w, width)
    inputs = body.batch * math.prod(body.size)
    return Matrices(inputs, deep, max(1, round(wide * taps * positions / inputs)), body.groups, y, w, x, width)


def _merged(body: Convolution) -> Convolution:
    """Narrow groups side by side in one product, whose filters are zero outside of the blocks of its groups: cuDNN's way."""
    deep, wide = body.in_channels // body.groups, body.out_channels // body.groups
    merged = math.gcd(body.groups, MERGED_CHANNELS // deep) if deep == wide <= NARROW_GROUP and not deep & (deep - 1) else 1
    return replace(body, groups=body.groups // merged)


def _padded(body: Convolution, width: int) -> Matrices:
    """The implicit product with the input channels of each group padded to a vector; narrow groups are merged."""
    body = _merged(body) if body.groups > 1 else body
    step = max(1, CHANNEL_BYTES // width)
    deep = body.in_channels // body.groups
    padded = math.ceil(deep / step) * step
    product = matrices(body, width)
    if padded == deep:
        return product
    product = product._replace(row=max(1, WORD_BYTES // width))  # loads of words, but no bulk copies: taps are gathered
    if body.product == "forward":
        return product._replace(K=product.K * padded // deep)
    return product._replace(M=product.M * padded // deep) if body.product == "grad_weight" else product._replace(N=padded)


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
