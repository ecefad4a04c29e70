"""The kernels of one call on a GPU: dispatch by kind of call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.composites import attention, cell, matmul_matrices, one_kernel, recurrent, rms_rows
from trainyard.devices.gpu.convolutions import convolution
from trainyard.devices.gpu.products import best_tiling
from trainyard.devices.gpu.streams import dropout, row_norm, stream
from trainyard.devices.gpu.traffic import Cache, Kernel, Traffic, element_type, finish
from trainyard.ir import Convolution, MatMul, Op, Step

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu


def kernel_of(gpu: Gpu, step: Step, call: Call, cache: Cache) -> Kernel:
    ops = [step.ops[index] for index in call.ops]
    traffic = Traffic(gpu, step, ops, cache)
    kernel = _by_kind(gpu, step, call, ops, traffic)
    traffic.update_cache()
    return kernel


def _by_kind(gpu: Gpu, step: Step, call: Call, ops: list[Op], traffic: Traffic) -> Kernel:
    if call.kind == "attention":
        return attention(gpu, step, call, ops, traffic)
    if call.kind == "recurrent":
        return recurrent(gpu, step, ops, traffic)
    if call.kind == "dropout":
        return dropout(gpu, step, ops, traffic)
    if call.kind == "rms_norm":
        return row_norm(gpu, traffic, *rms_rows(step, ops), backward=ops[0].phase.backward)
    if call.kind == "cell":
        return cell(gpu, ops, traffic)
    if len(ops) > 1:
        return one_kernel(gpu, step, ops, traffic)
    if isinstance(ops[0].body, Convolution):
        return convolution(gpu, step, ops[0], traffic)
    if isinstance(ops[0].body, MatMul):
        return _matmul(gpu, step, ops[0], ops[0].body, traffic)
    return stream(gpu, step, ops[0], traffic)


def _matmul(gpu: Gpu, step: Step, op: Op, body: MatMul, traffic: Traffic) -> Kernel:
    dtype, width = element_type(gpu, step, op)
    kind = gpu.kind(dtype, convolution=False)
    tiled = best_tiling(matmul_matrices(body, width, kind, op.phase), gpu.limits(kind))
    bases = [step.base(tensor) for tensor in op.inputs]
    times = dict(zip(bases, (tiled.a_reads, tiled.b_reads), strict=False))
    for base in dict.fromkeys(bases):
        traffic.reads(times.get(base, 1.0), only=base)
    traffic.writes()
    spill_s = 2 * tiled.partial_bytes / gpu.l2_bytes_per_s
    return finish(
        gpu, traffic, compute_s=tiled.compute_s, l2_s=tiled.l2_s, launches=float(tiled.kernels), macs=body.macs, serial_s=spill_s
    )
