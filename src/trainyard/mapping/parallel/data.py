"""Data parallelism: every device has all weights and its share of the batch; gradients of parameters are summed over devices.

A gradient is exchanged as soon as its last addition is done, alone or in buckets (S. Li et al.: PyTorch Distributed. VLDB 2020),
and only those that read the sum wait for it: the optimizer's update, as a rule. A recurrent layer adds a gradient of the same
weights at every time step; `every_call` exchanges each of them before it is added, `once` the sum alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from trainyard.ir import Collective, ElementWise, Op, Phase, Role, Step, TensorSpec, Update

Reduce = Literal["once", "every_call"]


def reduce_gradients(
    step: Step, devices: int, *, bucket_bytes: int, reduce: Reduce, only: Collection[int] | None = None, group: str = "world"
) -> tuple[list[Op], list[TensorSpec]]:
    """The ops with an all-reduce of each gradient of a parameter put in (of those in `only`, where given; between `group`).

    Each is summed in place: the sum is a new version of the same memory, under a number behind the step's own tensors.
    """
    ready = _ready(step, reduce, only)
    tensors = list(step.tensors)
    ops: list[Op] = []
    version: dict[int, int] = {}
    bucket: list[tuple[int, Op]] = []

    def send() -> None:
        if not bucket:
            return
        summed = tuple(tensor for tensor, _ in bucket)
        first = len(tensors)
        tensors.extend(replace(tensors[tensor], view_of=tensor) for tensor in summed)
        version.update({tensor: first + place for place, tensor in enumerate(summed)})
        elements = sum(tensors[tensor].elements for tensor in summed)
        ops.append(
            Op(
                body=Collective("all_reduce", elements, devices, group),
                name="all_reduce",
                layer=bucket[-1][1].layer,
                call=bucket[-1][1].call,
                phase=Phase.GRAD_WEIGHT,
                inputs=summed,
                outputs=tuple(range(first, len(tensors))),
            )
        )
        bucket.clear()

    for index, op in enumerate(step.ops):
        if bucket and not {tensor for tensor, _ in bucket}.isdisjoint(map(step.base, op.inputs)):
            send()
        if version and not version.keys().isdisjoint(op.inputs):
            op = replace(op, inputs=tuple(version.get(tensor, tensor) for tensor in op.inputs))
        ops.append(op)
        for tensor in ready.get(index, ()):
            if bucket and tensors[bucket[0][0]].dtype != tensors[tensor].dtype:
                send()
            bucket.append((tensor, op))
            if sum(tensors[number].bytes for number, _ in bucket) >= bucket_bytes:
                send()
    send()
    return ops, tensors


def ready_gradients(step: Step) -> dict[int, list[int]]:
    """For each op the gradients of parameters that it completes."""
    return _ready(step, "once", None)


def _ready(step: Step, reduce: Reduce, only: Collection[int] | None) -> dict[int, list[int]]:
    """For each op the gradients that it completes: memories of parameters' gradients, or of each call's part of them."""
    last: dict[int, int] = {}
    sources: dict[int, list[tuple[int, int]]] = {}
    writer: dict[int, int] = {}
    for index, op in enumerate(step.ops):
        if isinstance(op.body, Update) or op.phase is Phase.UPDATE:  # clipping works on the sum
            continue
        if op.phase is Phase.GRAD_WEIGHT and reduce == "every_call":
            sources[index] = [(writer[base], base) for base in dict.fromkeys(map(step.base, op.inputs)) if base in writer]
        for base in map(step.base, op.outputs):
            writer[base] = index
            if step.tensors[base].role is Role.PARAMETER_GRADIENT and (only is None or base in only):
                last[base] = index
    if reduce == "every_call":
        return _parts(step, last, sources)
    completed_by: dict[int, list[int]] = {}
    for base, index in last.items():
        completed_by.setdefault(index, []).append(base)
    return completed_by


def _parts(step: Step, last: dict[int, int], sources: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """The summands of each gradient: what its tree of additions began with."""
    summands: dict[int, dict[int, None]] = {}
    visited: set[tuple[int, int]] = set()
    stack = [(index, base) for base, index in last.items()]
    while stack:
        index, base = stack.pop()
        if (index, base) in visited:
            continue
        visited.add((index, base))
        op = step.ops[index]
        added = sources.get(index, []) if isinstance(op.body, ElementWise) and op.body.function == "add" else []
        if added and len({step.ops[before].layer for before, _ in added}) == 1:  # tied weights of two layers are summed first
            stack.extend(added)
        else:
            summands.setdefault(index, {})[base] = None
    return {index: list(bases) for index, bases in summands.items()}
