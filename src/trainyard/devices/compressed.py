"""How full the tensors of a step are, so that a DMA engine that compresses zeros moves less of them.

Masks are recorded for the operands of products. A tensor that one op writes and a product reads later has its zeros from that
product's mask, whoever else reads it: a ReLU's output is the A of the layer behind it, what leaves a ReLU's backward pass is a G.
An op that writes over a whole tensor makes a new version of it, with zeros of its own. A weight ends the step as it began. What no
product reads has no mask, and crosses as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from trainyard.devices.masked import mask_of
from trainyard.ir import Direction, Masks, MaskSource, Op, Step, TensorKey
from trainyard.parts.operands import letter_of, operand_order
from trainyard.parts.views import unpacked
from trainyard.parts.zero_compression import compressed_bytes

Densities = Mapping[tuple[int, int, Direction], float]
"""(op, memory, read or write) -> share of elements that are not zero."""

Version = tuple[int, int]
"""A memory, and how often it has been written over."""


def densities(step: Step, masks: Masks) -> Densities:
    """Of every read and write whose tensor some product's mask tells of."""
    written: dict[int, int] = {}
    touched: list[tuple[int, Direction, Version]] = []
    known: dict[Version, list[float]] = {}
    shares: dict[TensorKey, float] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            touched.append((index, "read", (base, written.get(base, 0))))
        for tensor, share in _recorded(step, op, masks, shares):
            base = step.base(tensor)
            sums = known.setdefault((base, written.get(base, 0)), [0.0, 0.0])
            sums[0] += share * step.tensors[tensor].elements
            sums[1] += step.tensors[tensor].elements
        for base, whole in _written(step, op).items():
            written[base] = written.get(base, 0) + whole
            touched.append((index, "write", (base, written[base])))
    for base, times in written.items():
        if step.tensors[base].role.resident and (base, 0) in known:
            known.setdefault((base, times), known[base, 0])
    found = {version: nonzero / elements for version, (nonzero, elements) in known.items() if elements}
    return {(index, version[0], way): found[version] for index, way, version in touched if version in found}


def moved_bytes(size: int, element_bytes: int, density: float) -> int:
    """What crosses the pins of `size` bytes in the scratchpad.

    >>> moved_bytes(1000, 4, 0.5), moved_bytes(1000, 4, 1.0)
    (532, 1000)
    """
    elements = size // element_bytes
    return compressed_bytes(elements, round(density * elements), element_bytes)


def _recorded(step: Step, op: Op, masks: Masks, shares: dict[TensorKey, float]) -> Iterator[tuple[int, float]]:
    """Operands of a product that have a mask, with how full they are; each mask is counted once."""
    for side, position in enumerate(operand_order(step, op) if op.is_product else ()):
        letter = letter_of(step, op, side)
        found = mask_of(step, op, side, letter, masks) if letter and position < len(op.inputs) else None
        if found is not None:
            source, key = found
            if key not in shares:
                shares[key] = _share(source, key)
            yield op.inputs[position], shares[key]


def _share(source: MaskSource, key: TensorKey) -> float:
    counted: Callable[[TensorKey], float] | None = getattr(source, "density", None)
    return float(counted(key) if counted is not None else np.mean(unpacked(source, key)))


def _written(step: Step, op: Op) -> dict[int, bool]:
    """Memories that an op writes, and whether it writes over all of them: a part belongs to the version that is being made."""
    found: dict[int, bool] = {}
    for tensor in op.outputs:
        base = step.base(tensor)
        whole = step.tensors[tensor].elements >= step.tensors[base].elements
        found[base] = found.get(base, False) or whole
    return found
