"""Exchanges of models: what a step does last where workers average their parameters instead of their gradients.

Local SGD (S. U. Stich, ICLR 2019), PIM-Opt's MA-SGD and ADMM, DIRECT's clusters: a parameter is exchanged as soon as its update is
done, alone or in buckets, as gradients are (`mapping.parallel.data`); nothing in the step waits for it, the next step does.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.errors import BadInput
from trainyard.ir import Collective, Op, Phase, Role, Step, TensorSpec, Update


def average_models(step: Step, devices: int, *, bucket_bytes: int = 0) -> Step:
    """The step with an all-reduce of every parameter that it updates.

    >>> import trainyard as ty
    >>> step = ty.zoo.load("alexnet", batch=8)
    >>> last = average_models(step, devices=4)
    >>> sum(op.body.elements for op in last.ops if isinstance(op.body, Collective)) == step.parameters
    True
    """
    tensors, ops = list(step.tensors), list[Op]()
    bucket: list[int] = []

    def send(after: Op) -> None:
        if not bucket:
            return
        first = len(tensors)
        tensors.extend(replace(tensors[tensor], view_of=step.base(tensor)) for tensor in bucket)
        ops.append(
            Op(
                body=Collective("all_reduce", sum(tensors[tensor].elements for tensor in bucket), devices),
                name="all_reduce",
                layer=after.layer,
                call=after.call,
                phase=Phase.UPDATE,
                inputs=tuple(bucket),
                outputs=tuple(range(first, len(tensors))),
            )
        )
        bucket.clear()

    for op in step.ops:
        ops.append(op)
        for tensor in _updated(step, op):
            if bucket and tensors[bucket[0]].dtype != tensors[tensor].dtype:
                send(op)
            bucket.append(tensor)
            if _bytes(tensors, bucket) >= bucket_bytes:
                send(op)
    send(ops[-1])
    if len(ops) == len(step.ops):
        raise BadInput(f"step {step.name!r} updates no parameters, so there are no models to average: capture it with an optimizer")
    return replace(step, ops=tuple(ops), tensors=tuple(tensors))


def _updated(step: Step, op: Op) -> tuple[int, ...]:
    return tuple(t for t in op.outputs if step.tensors[t].role is Role.PARAMETER) if isinstance(op.body, Update) else ()


def _bytes(tensors: list[TensorSpec], bucket: list[int]) -> int:
    return sum(tensors[tensor].bytes for tensor in bucket)
