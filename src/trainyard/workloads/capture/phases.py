"""The phase of backward ops that no operand decides: an op whose results end in parameter gradients belongs to grad_weight.

Only within one layer and not through a product: the gradient that flows on to an earlier layer is that layer's grad_input, even
if all that comes of it in the end is an embedding's gradient, and what a weight's product reads is the gradient of an activation.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.ir import Convolution, MatMul, Phase, Role
from trainyard.workloads.capture.recorder import RawOp
from trainyard.workloads.capture.tensor_table import RawTensor


def settle_phases(ops: Sequence[RawOp], tensors: Sequence[RawTensor]) -> None:
    """Visits backward ops from the last to the first: the phases of all readers of a result are final before that of its writer."""
    readers: dict[int, list[RawOp]] = {}
    for op in reversed(ops):
        if not op.phase_is_final and _ends_in_weights(op, tensors, readers):
            op.phase = Phase.GRAD_WEIGHT
        op.phase_is_final = True
        if op.phase.backward:
            for tensor in op.inputs:
                readers.setdefault(_base(tensors, tensor), []).append(op)


def _ends_in_weights(op: RawOp, tensors: Sequence[RawTensor], readers: dict[int, list[RawOp]]) -> bool:
    for tensor in op.outputs:
        base = _base(tensors, tensor)
        reading = readers.get(base, [])
        if not reading and tensors[base].role is not Role.PARAMETER_GRADIENT:
            return False
        if not all(_is_weight_work(reader) and reader.frame.path == op.frame.path for reader in reading):
            return False
    return bool(op.outputs)


def _is_weight_work(op: RawOp) -> bool:
    return op.phase is Phase.GRAD_WEIGHT and not isinstance(op.body, MatMul | Convolution)


def _base(tensors: Sequence[RawTensor], tensor: int) -> int:
    view_of = tensors[tensor].view_of
    return tensor if view_of is None else view_of
