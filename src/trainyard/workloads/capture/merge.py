"""One step from captures at two batch sizes: every dimension becomes d + slope * (n - batch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from trainyard.ir import Body, Op, Phase, TensorSpec
from trainyard.ir.ops import dimensions
from trainyard.ir.routing import divided
from trainyard.workloads.capture.recorder import RawOp
from trainyard.workloads.capture.tensor_table import RawTensor


@dataclass(slots=True)
class Recording:
    """One captured pass. `complete` is False for a pass that left the optimizer out."""

    batch: int
    ops: Sequence[RawOp]
    tensors: Sequence[RawTensor]
    complete: bool = True
    notes: Sequence[str] = ()


class NotAffine(Exception):
    """The two passes differ in more than their sizes; the message names the difference."""


def merged(first: Recording, others: Sequence[Recording]) -> tuple[tuple[Op, ...], tuple[TensorSpec, ...]]:
    """Ops and tensors of `first` with slopes; without others there are none."""
    op_slopes: list[tuple[int, ...]] = [()] * len(first.ops)
    tensor_slopes: list[tuple[int, ...]] = [()] * len(first.tensors)
    for index, other in enumerate(others):
        _check_lengths(first, other)
        of_tensors = [_tensor_slope(first, other, *pair) for pair in zip(first.tensors, other.tensors, strict=False)]
        of_ops = [_op_slope(first, other, *pair) for pair in zip(first.ops, other.ops, strict=False)]
        if index and (of_tensors != tensor_slopes[: len(of_tensors)] or of_ops != op_slopes[: len(of_ops)]):
            raise NotAffine("dimensions do not grow by the same amount with each sample")
        tensor_slopes[: len(of_tensors)], op_slopes[: len(of_ops)] = of_tensors, of_ops
    if others:
        _check_products_of_batches(first, tensor_slopes)
    tensors = tuple(
        TensorSpec(t.shape, t.dtype, t.role, t.name, t.view_of, slope, t.channels_last)
        for t, slope in zip(first.tensors, tensor_slopes, strict=True)
    )
    ops = tuple(
        Op(
            body=op.body, name=op.name, layer=op.frame.path, call=op.frame.call, phase=op.phase, recompute=op.recompute,
            inputs=op.inputs, outputs=op.outputs, letters=op.letters, fused=op.fused, slope=slope, routing=op.routing,
            host_waits=op.host_waits, layout=op.layout,
        )
        for op, slope in zip(first.ops, op_slopes, strict=True)
    )  # fmt: skip
    return divided(ops, tensors)


def _check_lengths(first: Recording, other: Recording) -> None:
    if other.complete and len(first.ops) != len(other.ops):
        raise NotAffine(f"{len(first.ops)} ops at batch {first.batch}, {len(other.ops)} at batch {other.batch}")
    if len(other.ops) > len(first.ops) or len(other.tensors) > len(first.tensors):
        raise NotAffine(f"more ops at batch {other.batch} than at batch {first.batch}")
    if any(op.phase is not Phase.UPDATE for op in first.ops[len(other.ops) :]):
        raise NotAffine(f"fewer ops at batch {other.batch} than at batch {first.batch}")


def _slope(
    first: Recording, other: Recording, sizes: Sequence[int], other_sizes: Sequence[int], subject: str, minimum: int = 1
) -> tuple[int, ...]:
    if sizes == other_sizes:
        return ()
    if len(sizes) != len(other_sizes):
        raise NotAffine(
            f"{subject} has {len(sizes)} dimensions at batch {first.batch} and {len(other_sizes)} at batch {other.batch}"
        )
    change = other.batch - first.batch
    slopes = []
    for here, there in zip(sizes, other_sizes, strict=True):
        slope, rest = divmod(there - here, change)
        if rest or (slope and here - slope * (first.batch - 1) < minimum):
            raise NotAffine(f"{subject} is {here} at batch {first.batch} and {there} at batch {other.batch}")
        slopes.append(slope)
    return tuple(slopes)


def _tensor_slope(first: Recording, other: Recording, here: RawTensor, there: RawTensor) -> tuple[int, ...]:
    if (here.dtype, here.role, here.name, here.view_of) != (there.dtype, there.role, there.name, there.view_of):
        raise NotAffine(f"tensor {here.name!r} of shape {here.shape} stands where another one does at batch {other.batch}")
    return _slope(first, other, here.shape, there.shape, "a tensor's extent", minimum=0)


def _op_slope(first: Recording, other: Recording, here: RawOp, there: RawOp) -> tuple[int, ...]:
    if _identity(here) != _identity(there):
        raise NotAffine(f"{here.name} of layer {here.frame.path!r} is {there.name} of {there.frame.path!r} at batch {other.batch}")
    if here.body is there.body or here.body == there.body:
        return ()
    return _slope(first, other, dimensions(here.body), dimensions(there.body), f"{here.name} of layer {here.frame.path!r}")


def _identity(op: RawOp) -> tuple[object, ...]:
    return (
        op.name, op.frame.path, op.frame.call, op.phase, op.recompute, op.inputs, op.outputs, op.letters, op.fused, _words(op.body),
    )  # fmt: skip


def _words(body: Body) -> tuple[object, ...]:
    """What of a body is not a whole number."""
    values = (getattr(body, field.name) for field in fields(body))
    return (type(body), *(value for value in values if isinstance(value, str | bool)))


def _check_products_of_batches(first: Recording, slopes: Sequence[tuple[int, ...]]) -> None:
    """A tensor with the batch along two dimensions has a number of elements that is not affine."""
    for tensor, slope in zip(first.tensors, slopes, strict=True):
        if sum(bool(s) for s in slope) > 1:
            raise NotAffine(f"a tensor of shape {tensor.shape} grows with the batch along two dimensions")
