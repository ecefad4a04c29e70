"""Composite calls with products: fused attention, recurrent layers, a product with its epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.convolutions import matrices as convolution_matrices
from trainyard.devices.gpu.products import Limits, Matrices, best_tiling, elements_per_load, product_seconds
from trainyard.devices.gpu.traffic import Kernel, Traffic, element_type, finish
from trainyard.ir import Convolution, Copy, ElementWise, MatMul, Op, Phase, Step

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu, Kind

DROPOUT_SCORES = 3  # a score with dropout costs as much as three: a random number takes longer than an exponential
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
    """A flash kernel: MACs of the products, then softmax and dropout of each score; scores stay on chip.

    A causal kernel computes the lower half. Backward, a first kernel sums output x gradient along each row; dQ is summed in fp32.
    """
    products = [op.body for op in ops if isinstance(op.body, MatMul)]
    dtype, width = element_type(gpu, step, next(op for op in ops if op.is_product))
    backward = len(products) > 2
    fraction = 0.5 if call.causal else 1.0
    scores = fraction * max(op.body.M * op.body.N * op.body.count for op in ops if isinstance(op.body, MatMul))
    tensor_bytes = min(body.M * body.N * body.count for body in products) * width  # about that of Q, K, V, O and their gradients
    serial_s = 0.0
    if ops[0].fused is not None:
        tensor_bytes = gpu.bytes_of(step.tensors[next(op for op in ops if op.is_product).inputs[0]])
        traffic.moves(sum(traffic.read.values()), sum(traffic.written.values()))
        serial_s = 4.0 * tensor_bytes / (gpu.dram_bytes_per_s * gpu.copy_fraction) if backward else 0.0
    elif backward:  # reads Q, K, V, O, dO, writes dQ, dK, dV; separate kernels for output x gradient and for dQ from fp32
        traffic.moves(5.0 * tensor_bytes, 3.0 * tensor_bytes)
        serial_s = 4.0 * tensor_bytes / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    else:
        traffic.moves(3.0 * tensor_bytes, 1.0 * tensor_bytes)
    # scores are recomputed: five products for the four of the step, unless the step itself has five
    recomputed = 1.25 if backward and ops[0].fused is None else 1.0
    macs = sum(body.macs for body in products)
    limits = gpu.limits("fp32" if width == 4 else gpu.kind(dtype, convolution=False))  # fp32: whatever `matmul_fp32` is
    compute_s = recomputed * fraction * macs / (gpu.sms * limits.macs_per_sm * gpu.attention_fraction)
    compute_s += gpu.instructions_s(scores * gpu.score_instructions * (DROPOUT_SCORES if call.dropout else 1))
    launches = 4.0 if backward else 1.0 if width == 4 else 3.0
    return finish(gpu, traffic, compute_s=compute_s, launches=launches, macs=round(fraction * macs), serial_s=serial_s)


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
