"""Calls without a product: element-wise, reductions, normalisations, pooling, gathers, copies, updates, dropout.

Most are bound by DRAM. A slower kernel executes many instructions for each element (`heavy_instructions`), reads a window
(`window_instructions`), reads with a stride (`strided_instructions`), or processes each channel in one block (`block_share`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.devices.gpu.calls import function
from trainyard.devices.gpu.kernels import (
    CHANNELS_LAST_NORM,
    COLUMN_ROWS,
    ELEMENTS_PER_LAUNCH,
    FUSED_UPDATES,
    GAIN_ROWS,
    GAIN_SPLIT,
    GAIN_SPLIT_TRIPS,
    LONG_ROW,
    NORM_ROWS_PER_SM,
    SORT,
    SORT_TRIPS,
    SORTED_ABOVE,
    STREAMS,
    TAP,
    TENSORS_PER_LAUNCH,
    WINDOWS,
    Kernels,
    update_kernels,
)
from trainyard.devices.gpu.traffic import Kernel, Traffic, element_type, finish
from trainyard.errors import NotModelled
from trainyard.ir import Collective, Copy, ElementWise, Gather, Layout, Op, Reduction, Role, Step, TensorSpec, Update

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu


def stream(gpu: Gpu, step: Step, op: Op, traffic: Traffic) -> Kernel:
    """The kernels of one op that is no product."""
    body = op.body
    if isinstance(body, Collective):
        if body.ranks == 1:
            return Kernel(gpu.ramp_s, 0.0, 1.0, "launch", {})
        raise NotModelled(f"op {op.name!r} does {body.kind} between {body.ranks} ranks: one GPU has no links; run it on a node")
    if isinstance(body, Update):
        return _update(gpu, body, step, op, traffic)
    if isinstance(body, Gather):
        return _scatter(gpu, body, traffic) if body.scatter else _gather(gpu, body, step, op, traffic)
    if isinstance(body, Reduction):
        return _reduction(gpu, body, step, op, traffic)
    if isinstance(body, ElementWise):
        kernels = STREAMS.get(body.function, Kernels(heavy=float(_broadcasts(step, op, body))))
        instructions = max(body.elements * body.operations, _strided_passes(step, op) * body.elements * gpu.strided_instructions)
        return _plain(gpu, kernels, body.elements, traffic, instructions)
    if isinstance(body, Copy):
        return _copy(gpu, body, step, op, traffic)
    raise TypeError(f"{type(body).__name__} is not a streaming op")


def _broadcasts(step: Step, op: Op, body: ElementWise) -> bool:
    """Whether an operand is broadcast: the kernel then computes the address of each element, without vector loads."""
    sizes = (step.tensors[step.base(tensor)].elements for tensor in op.inputs)
    return any(1 < size < body.elements for size in sizes)


def _strided_passes(step: Step, op: Op) -> int:
    """How often elements are loaded one by one: all at once where tensors lie in different orders, and once more where neighbouring
    threads read an operand from places far apart while they write the result."""
    if op.layout is not Layout.TRANSPOSED:
        return int(op.layout is Layout.MIXED)
    result = max((step.tensors[tensor].elements for tensor in op.outputs), default=0)
    return 1 + (sum(step.tensors[tensor].elements == result for tensor in op.inputs) > 1)


def _plain(gpu: Gpu, kernels: Kernels, elements: int, traffic: Traffic, operations: float = 0.0, serial_s: float = 0.0) -> Kernel:
    traffic.reads(kernels.reads)
    traffic.writes(kernels.writes)
    instructions = max(kernels.heavy * elements * gpu.heavy_instructions, operations)
    return finish(gpu, traffic, compute_s=gpu.instructions_s(instructions), launches=kernels.launches, serial_s=serial_s)


def _copy(gpu: Gpu, body: Copy, step: Step, op: Op, traffic: Traffic) -> Kernel:
    """A clone of a view reads with a stride, element by element, as does any copy between tensors that lie differently, and a cast
    to a wider type; fills and other copies use vector loads."""
    strided = body.function == "clone" and op.inputs and step.tensors[op.inputs[0]].view_of is not None
    strided = strided or op.layout is not Layout.SAME or _widens(gpu, step, op)
    return _plain(
        gpu,
        STREAMS.get(body.function, Kernels()),
        body.elements,
        traffic,
        body.elements * gpu.strided_instructions if strided else 0.0,
    )


def _widens(gpu: Gpu, step: Step, op: Op) -> bool:
    return bool(op.inputs) and any(
        gpu.bytes_of(step.tensors[result]) > gpu.bytes_of(step.tensors[op.inputs[0]])
        for result in op.outputs
        if step.tensors[result].elements == step.tensors[op.inputs[0]].elements
    )


def _reduction(gpu: Gpu, body: Reduction, step: Step, op: Op, traffic: Traffic) -> Kernel:
    shape = step.tensors[op.inputs[0]].shape if op.inputs else ()
    if body.function in WINDOWS:
        return _window(gpu, WINDOWS[body.function], step, op, traffic)
    if body.function in ("batch_norm", "batch_norm_backward"):
        return _batch_norm(gpu, step, op, traffic)
    if body.function in ("layer_norm", "layer_norm_backward"):
        backward, copied = body.function == "layer_norm_backward", op.layout is not Layout.SAME
        return row_norm(gpu, traffic, math.prod(shape[:-1]), shape[-1], backward=backward, copied=copied)
    kernels = STREAMS.get(body.function, Kernels())
    if "softmax" in body.function and shape and shape[-1] > LONG_ROW:  # the row does not fit registers and is read again
        kernels = kernels._replace(reads=kernels.reads * (1.5 if "backward" in body.function else 2.0))
    if body.function == "sum" and body.results > 1:
        return _column_sum(gpu, body, shape, traffic)
    return _plain(gpu, kernels, body.elements, traffic)


def _column_sum(gpu: Gpu, body: Reduction, shape: Sequence[int], traffic: Traffic) -> Kernel:
    """The gradient of a bias. For rows, threads sum columns; for maps, elements are loaded one by one."""
    if len(shape) > 2 and shape[-1] * shape[1] != body.results and body.results == shape[1]:
        return _plain(gpu, Kernels(heavy=1.0), body.elements, traffic)._replace(calls=0.0)  # part of convolution_backward
    rows = body.elements // body.results
    return _plain(gpu, Kernels(2.0), 0, traffic, serial_s=(2 + rows / COLUMN_ROWS) * gpu.fill_s)


def _window(gpu: Gpu, launches: int, step: Step, op: Op, traffic: Traffic) -> Kernel:
    """Pooling: one thread for each element of the result, whose index arithmetic costs more than its taps."""
    body = op.body
    assert isinstance(body, Reduction)
    results = step.tensors[op.outputs[0]].elements
    taps = max(1.0, body.elements / results)
    traffic.reads()
    traffic.writes(float(launches))
    instructions = results * (gpu.window_instructions + TAP * taps * gpu.heavy_instructions)
    return finish(gpu, traffic, compute_s=gpu.instructions_s(instructions), launches=float(launches))


def _batch_norm(gpu: Gpu, step: Step, op: Op, traffic: Traffic) -> Kernel:
    """One block makes one or two passes over each channel: kernels of cuDNN, or of torch for 16-bit maps.

    cuDNN makes one pass over a channel that fits in half of a multiprocessor's memory. torch computes statistics by Welford's
    method (counted as two sums) and normalises in a second, element-wise kernel. In a channels-last map every block sums
    some positions of many channels, and no lane idles.
    """
    backward = function(op) == "batch_norm_backward"
    _, width = element_type(gpu, step, op)
    shape = step.tensors[op.inputs[0]].shape
    elements, channels = math.prod(shape), max(1, shape[1] if len(shape) > 1 else 1)
    tensors = 2 if backward else 1  # the map, and its gradient
    by_torch = width < 4
    if gpu.layout == "native" or any(step.tensors[tensor].channels_last for tensor in op.inputs):
        traffic.reads(2.0)
        traffic.writes()
        seconds = gpu.instructions_s(elements * gpu.heavy_instructions * CHANNELS_LAST_NORM[backward])
        return finish(gpu, traffic, compute_s=seconds, launches=3.0)
    one_pass = not by_torch and 2 * tensors * 4 * elements // channels <= gpu.on_chip_bytes
    passes = 1 if one_pass else 2
    traffic.reads(float(passes))
    traffic.writes()
    seconds = _by_blocks(gpu, channels, tensors * passes * elements / channels)
    if by_torch and not backward:
        seconds += gpu.instructions_s(elements * gpu.heavy_instructions)
    return finish(gpu, traffic, compute_s=seconds, launches=3.0 if by_torch and not backward else 1.0)


def _by_blocks(gpu: Gpu, blocks: int, elements: float) -> float:
    """Seconds of `blocks` blocks of `elements` each; a block alone on its multiprocessor leaves part of the lanes idle."""
    block_s = gpu.sms * gpu.instructions_s(elements * gpu.heavy_instructions)
    waves = math.ceil(blocks / gpu.sms)
    return max(waves * block_s, block_s / gpu.block_share) + waves * gpu.fill_s


def row_norm(gpu: Gpu, traffic: Traffic, rows: int, width: int, *, backward: bool, copied: bool = False) -> Kernel:
    """Layer and RMS norm: one block for each row; a second kernel sums the gradients of gain and bias by column.

    An operand that does not lie row by row is `copied` first.
    """
    if copied:
        norm = row_norm(gpu, traffic, rows, width, backward=backward)
        copy_s = gpu.instructions_s(rows * width * gpu.strided_instructions) + gpu.ramp_s
        return norm._replace(seconds=norm.seconds + copy_s, compute_s=norm.compute_s + copy_s, launches=norm.launches + 1)
    compute_s = gpu.instructions_s(rows * width * gpu.heavy_instructions)
    traffic.reads(2.0 if backward else 1.0)
    traffic.writes()
    serial_s = rows / (NORM_ROWS_PER_SM * gpu.sms) * gpu.fill_s
    if not backward:
        return finish(gpu, traffic, compute_s=compute_s, launches=1.0, serial_s=serial_s)
    many, narrow = GAIN_SPLIT
    if rows > many and width < narrow * gpu.sms:
        return finish(gpu, traffic, compute_s=2 * compute_s, launches=6.0, serial_s=serial_s / 2 + GAIN_SPLIT_TRIPS * gpu.fill_s)
    return finish(gpu, traffic, compute_s=compute_s, launches=2.0, serial_s=rows / GAIN_ROWS * gpu.fill_s)


def dropout(gpu: Gpu, step: Step, ops: Sequence[Op], traffic: Traffic) -> Kernel:
    """One kernel: random numbers, a scaled copy, and a mask of one byte per element for the backward pass."""
    _, width = element_type(gpu, step, ops[-1])
    elements = step.tensors[ops[-1].outputs[0]].elements
    traffic.cache.masks.update(step.base(tensor) for op in ops[:-1] for tensor in op.outputs)
    traffic.written.clear()
    traffic.reads()
    traffic.moves(0.0, elements * (width + 1))
    return finish(gpu, traffic, compute_s=gpu.instructions_s(elements * gpu.heavy_instructions), launches=1.0)


def _gather(gpu: Gpu, body: Gather, step: Step, op: Op, traffic: Traffic) -> Kernel:
    """Only the gathered rows are read, whatever the size of the table."""
    _, width = element_type(gpu, step, op)
    rows = body.rows * body.width * width
    traffic.read = {base: min(size, rows) for base, size in traffic.read.items()}
    return _plain(gpu, Kernels(), 0, traffic)


def _scatter(gpu: Gpu, body: Gather, traffic: Traffic) -> Kernel:
    """embedding_dense_backward compares few indices pairwise, and sorts many."""
    if body.rows <= SORTED_ABOVE:
        return _plain(gpu, Kernels(2.0, 1.0, 2.0), 0, traffic, serial_s=body.rows / GAIN_ROWS * gpu.fill_s)
    return _plain(gpu, SORT, 0, traffic, serial_s=SORT_TRIPS * gpu.fill_s)


def _update(gpu: Gpu, body: Update, step: Step, op: Op, traffic: Traffic) -> Kernel:
    states = len({step.base(t) for t in op.inputs if _is_state(step.tensors[t], body)})
    unfused = None if gpu.optimizer == "fused" else update_kernels(body, states)
    kernels = 1 if unfused is None else unfused.kernels
    times = 1.0
    if unfused is not None:
        fused_bytes = sum(traffic.read.values()) + sum(traffic.written.values())
        width = max(1, max(traffic.written.values(), default=body.elements) // body.elements)
        times = unfused.moved * body.elements * width / max(1, fused_bytes)
    traffic.all_through_dram(times)
    launches = float(kernels)
    if gpu.optimizer != "single":
        launches = kernels * max(1.0 / TENSORS_PER_LAUNCH, body.elements / ELEMENTS_PER_LAUNCH)
    heavy = kernels if unfused is not None else FUSED_UPDATES.get(body.optimizer.lower(), 1.0)
    compute_s = gpu.instructions_s(body.elements * heavy * gpu.heavy_instructions)  # each kernel of a list looks up its tensor
    return finish(gpu, traffic, compute_s=compute_s, launches=launches, calls=0.0, listed=float(kernels))


def _is_state(spec: TensorSpec, body: Update) -> bool:
    """Whether a tensor is a moment of the optimizer, not a step counter."""
    return spec.role is Role.STATE and spec.elements == body.elements
