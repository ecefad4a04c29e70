"""Composite calls with products: fused attention, recurrent layers, a product with its epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.convolutions import matrices as convolution_matrices
from trainyard.devices.gpu.products import Limits, Matrices, best_tiling, elements_per_load, product_seconds
from trainyard.devices.gpu.traffic import Kernel, Traffic, element_type, finish
from trainyard.ir import DTYPE_BYTES, Convolution, Copy, ElementWise, MatMul, Op, Phase, Step

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu, Kind

# Fused attention, 16-bit types and fp32: edge of a block of scores, steps in which a head is padded.
FLASH_BLOCK = (128, 64)
HEAD_STEP = (32, 64)
HEAD_ALIGNMENT = 8  # cuDNN takes heads of a multiple of 8; others go to an older kernel, whose scores cost more
UNALIGNED_SCORE = 1.75
LARGEST_HEAD = 256  # of flash kernels; the memory-efficient kernel takes larger ones
SPILLED_SUMS = 5.0  # how much longer it then takes for a score, forward (one shape: a head of 512)
WIDE_ATTENTION = (0.92, 0.61)  # share of the vector lanes' peak, forward and backward: the kernel multiplies in three TF32 passes
SCORE = ((1.0, 2.7), (11.7, 11.7))  # a score in units of `score_instructions`, forward and backward
MASK_INSTRUCTIONS = (14.0, 30.0)  # more for a score with an additive mask, forward and backward
DROPOUT_INSTRUCTIONS = 30.0  # more for a score with dropout: a random number takes longer than an exponential
SIDE_TENSORS = 8.0  # tensors of the size of Q that the kernels beside the backward kernel move: output x gradient, dQ in fp32
STEP_TILES = ((64, 64, 32),)  # cuDNN multiplies a time step in tiles of 64 x 64 without split-K (from its kernels' names)
STEP_KERNELS = (2, 3)  # a time step's kernels, forward and backward: product, gates; a memset before a backward product
RECURRENT_CALLS = (5.0, 9.0)  # host time of the cuDNN call, launches apart, in torch calls: measured on an LSTM of 25 steps
CELL_TENSORS = 2  # a fused cell reads its gates once and writes as much: gates for the backward pass, cell, output


def matmul_matrices(body: MatMul, width: int, kind: Kind, phase: Phase) -> Matrices:
    """The product of a layer in a phase. For dX the weights are strided along the reduction, for dW both operands are.

    The vector lanes load single words, so that alignment does not matter to them.
    """
    M, N, K, count = body.M, body.N, body.K, body.count
    row = 0 if kind == "fp32" else elements_per_load(width, *((M, N) if phase is Phase.GRAD_WEIGHT else (N, K)))
    a_strided = kind == "tf32" and phase is Phase.GRAD_WEIGHT
    b_strided = kind == "tf32" and phase.backward
    sizes = (count * M * K * width, count * K * N * width, count * M * N * width)
    return Matrices(M, N, K, count, *sizes, width, row, a_strided, b_strided)


def attention(gpu: Gpu, step: Step, call: Call, ops: Sequence[Op], traffic: Traffic) -> Kernel:
    """A flash kernel: MACs of the products, then softmax, mask and dropout of each score; scores stay on chip.

    Blocks of queries and keys are padded, and so are heads. A causal kernel leaves out the blocks above the diagonal. Backward, a
    first kernel sums output x gradient along each row, a last one converts dQ, which is summed in fp32.
    """
    products = [op.body for op in ops if isinstance(op.body, MatMul)]
    dtype, width = element_type(gpu, step, next(op for op in ops if op.is_product))
    backward = len(products) > 2
    tensor_bytes = min(body.M * body.N * body.count for body in products) * width  # about that of Q, K, V, O and their gradients
    if ops[0].fused is not None:
        tensor_bytes = gpu.bytes_of(step.tensors[next(op for op in ops if op.is_product).inputs[0]])
        traffic.moves(traffic.distinct_bytes(ops), sum(traffic.written.values()))
    else:  # reads Q, K, V (O, dO), writes O (dQ, dK, dV)
        read, written = (5.0, 3.0) if backward else (3.0, 1.0)
        traffic.moves(read * tensor_bytes, written * tensor_bytes)
    serial_s = SIDE_TENSORS * tensor_bytes / (gpu.dram_bytes_per_s * gpu.copy_fraction) if backward else 0.0
    shape = max(products, key=lambda body: body.M * body.N * body.count)
    masked = any(getattr(op.body, "function", "") == "add" for op in ops if not backward) or _has_mask(step, ops, shape)
    head = min(min(body.K, body.N) for body in products)
    if head % HEAD_ALIGNMENT and width < 4:  # Q, K, V and their gradients are copied to padded heads and back
        serial_s += gpu.instructions_s((5 if backward else 3) * tensor_bytes / width * gpu.heavy_instructions)
    compute_s = _flash_s(gpu, shape, head, dtype, call, backward=backward, masked=masked)
    fraction = 0.5 if call.causal else 1.0
    macs = sum(body.macs for body in products)
    launches = 4.0 if backward else 1.0 if width == 4 else 3.0
    return finish(gpu, traffic, compute_s=compute_s, launches=launches, macs=round(fraction * macs), serial_s=serial_s)


def _has_mask(step: Step, ops: Sequence[Op], shape: MatMul) -> bool:
    """Whether a fused kernel reads a tensor with an element for each score of at least one head: an additive mask."""
    produced = {step.base(tensor) for op in ops for tensor in op.outputs}
    outside = {step.base(tensor) for op in ops for tensor in op.inputs} - produced
    return ops[0].fused is not None and any(step.tensors[base].shape[-2:] == (shape.M, shape.N) for base in outside)


def _flash_s(gpu: Gpu, scores: MatMul, head: int, dtype: str, call: Call, *, backward: bool, masked: bool) -> float:
    """Seconds of the main kernel for all heads; `scores` is the product of queries and keys, `head` the size of a head."""
    width = DTYPE_BYTES[dtype]
    block = FLASH_BLOCK[width == 4]
    rows, columns = math.ceil(scores.M / block), math.ceil(scores.N / block)
    blocks = scores.count * rows * columns
    if call.causal:
        blocks = scores.count * sum(min(columns, max(1, columns - rows + row + 1)) for row in range(rows))
    padded = math.ceil(head / HEAD_STEP[width == 4]) * HEAD_STEP[width == 4]
    along, across = math.ceil(head / 8) * 8 if width == 4 else padded, padded  # heads are reduced (Q K, dO V), or are the result
    macs = 2 * along + 3 * across if backward else along + across
    if width == 4:
        rate = gpu.sms * gpu.fp32_macs * gpu.clock_hz * WIDE_ATTENTION[backward]
    else:
        rate = gpu.sms * gpu.limits(gpu.kind(dtype, convolution=False)).macs_per_sm * gpu.attention_fraction
    instructions = gpu.score_instructions * SCORE[width == 4][backward]
    if head % HEAD_ALIGNMENT and width < 4:
        instructions *= UNALIGNED_SCORE
    instructions += MASK_INSTRUCTIONS[backward] * masked + DROPOUT_INSTRUCTIONS * call.dropout
    seconds = blocks * block**2 * (macs / rate + gpu.instructions_s(instructions))
    tiles = scores.count * rows  # a tile of queries is one block of threads, two of which share a multiprocessor
    if head > LARGEST_HEAD and backward:  # one block of threads walks over all scores of a head
        tiles = scores.count
    elif head > LARGEST_HEAD:  # the sums do not fit the registers
        seconds *= SPILLED_SUMS
    fills = math.ceil(tiles / (2 * gpu.sms)) * (4 if backward else 1)
    return seconds * max(1.0, gpu.sms / tiles) + fills * gpu.fill_s


def recurrent(gpu: Gpu, step: Step, ops: Sequence[Op], traffic: Traffic) -> Kernel:
    """cuDNN's LSTM and GRU: one product for the inputs of all time steps, then a product and one fused kernel for each step.

    The gradient of each weight is one product over all steps; products with the state of the step before stay in sequence.
    """
    dtype, width = element_type(gpu, step, next(op for op in ops if op.is_product))
    kind = gpu.kind(dtype, convolution=True)  # cuDNN's switch, not cuBLAS's
    states = {step.base(t) for op in ops if isinstance(op.body, ElementWise) for t in (*op.inputs, *op.outputs)}
    states |= {step.base(t) for op in ops if isinstance(op.body, Copy) and op.body.function == "fill" for t in op.outputs}
    batched: dict[tuple[Phase, int, int, int], int] = {}
    seconds, steps = 0.0, 0
    for op in ops:
        if not isinstance(op.body, MatMul):
            continue
        state = op.outputs[0] if op.phase is Phase.GRAD_INPUT else op.inputs[0]
        if op.phase is Phase.GRAD_WEIGHT or step.base(state) not in states:
            key = (op.phase, op.body.M, op.body.N, op.body.K)
            batched[key] = batched.get(key, 0) + 1
        else:
            steps += 1
            cached = matmul_matrices(op.body, width, kind, op.phase)._replace(a_bytes=0, b_bytes=0)  # weights and state in the L2
            seconds += _product_s(cached, gpu.limits(kind)._replace(tiles=STEP_TILES, splits=(1,)))
            gates = op.body.M * max(op.body.N, op.body.K) * width
            seconds += CELL_TENSORS * gates / (gpu.l2_bytes_per_s * gpu.l2_fraction)
    for (phase, M, N, K), count in batched.items():
        product = MatMul(M, N, K * count) if phase is Phase.GRAD_WEIGHT else MatMul(M * count, N, K)
        seconds += _product_s(matmul_matrices(product, width, kind, phase), gpu.limits(kind))
    traffic.reads()
    traffic.writes()
    backward = any(op.phase.backward for op in ops)
    launches = STEP_KERNELS[backward] * steps + len(batched)
    macs = sum(op.macs for op in ops)
    return finish(gpu, traffic, compute_s=seconds, launches=launches, macs=macs, calls=RECURRENT_CALLS[backward])


def _product_s(product: Matrices, limits: Limits) -> float:
    return product_seconds(best_tiling(product, limits), product, limits)


def cell(gpu: Gpu, ops: Sequence[Op], traffic: Traffic) -> Kernel:
    """The gates of one step of an LSTM or GRU cell in one kernel; backward, a second kernel sums the gradient of the bias."""
    operations = sum(op.body.elements * op.body.operations for op in ops if isinstance(op.body, ElementWise))
    traffic.reads()
    traffic.writes()
    return finish(gpu, traffic, compute_s=gpu.instructions_s(operations), launches=2.0 if ops[0].phase.backward else 1.0)


def one_kernel(gpu: Gpu, step: Step, ops: Sequence[Op], traffic: Traffic) -> Kernel:
    """Several ops in one kernel (an epilogue, or `Op.fused`): times of products add, intermediate tensors stay on chip."""
    compute_s = l2_s = 0.0
    for op in ops:
        if not isinstance(op.body, MatMul | Convolution):
            continue
        dtype, width = element_type(gpu, step, op)
        kind = gpu.kind(dtype, isinstance(op.body, Convolution))
        if isinstance(op.body, MatMul):
            matrices = matmul_matrices(op.body, width, kind, op.phase)
        else:
            matrices = convolution_matrices(op.body, width)
        tiled = best_tiling(matrices, gpu.limits(kind))
        compute_s += tiled.compute_s
        l2_s += tiled.l2_s if op.fused is None else 0.0
    operations = sum(getattr(op.body, "elements", 0) * getattr(op.body, "operations", 1) for op in ops if not op.is_product)
    traffic.reads()
    traffic.writes()
    compute_s += gpu.instructions_s(operations)
    return finish(gpu, traffic, compute_s=compute_s, l2_s=l2_s, launches=1.0, macs=sum(op.macs for op in ops))


def rms_rows(step: Step, ops: Sequence[Op]) -> tuple[int, int]:
    """Rows and row length of the largest input of an RMS norm."""
    shape = max((step.tensors[t].shape for op in ops for t in op.inputs), key=math.prod)
    return math.prod(shape[:-1]), shape[-1]
