"""Masks of a recurrent layer, time step by time step.

A recurrent layer is recorded as one module: `A.input` and `A.output` are sequences, and each weight matrix has its name. The Step
has the layer's products unrolled, in the order in which they run: an op's matrix is its parameter, and the number of earlier uses
of that matrix is the time step. So these masks are exact:

- the matrices;
- what `weight_ih_l0` multiplies: the input at that step (the last comes first in the reverse direction);
- what `weight_hh` of the last layer multiplies: the output of the step before, or nothing but zeros where the layer made its
  first state itself.

States between stacked layers, first states passed by the caller, and gradients of gates are not recorded: they count as dense. So
do sequences as long as the batch, because their shape does not tell time and batch apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.caches import per_step
from trainyard.ir import Masks, MaskSource, MatMul, Op, Phase, Step, TensorKey
from trainyard.masks.views import shape_of, unpacked

Bits = npt.NDArray[np.bool_]
Has = Callable[[TensorKey], bool]
MATRIX = re.compile(r"weight_(ih|hh)_l(\d+)(_reverse)?$")
WHOLE = -1
"""The time of an operand that has all time steps as rows (a layer may multiply its whole input at once)."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operand as a part of a recorded sequence: one time step and a range of its features; all zeros without a sequence."""

    sequence: str
    time: int
    steps: int
    batch: int
    columns: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        cut = "" if self.columns is None else f"[{self.columns[0]}:{self.columns[1]}]"
        return f"{self.sequence}@{self.time}{cut}"


@dataclass(frozen=True, slots=True)
class StepMask:
    """A mask source of one part."""

    masks: Masks
    key: TensorKey
    part: Part
    shape: tuple[int, ...]
    time_first: bool

    @property
    def digest(self) -> str:
        return self.masks.digest

    def spec(self, key: TensorKey) -> StepMask:
        return self

    def density(self, key: TensorKey) -> float:
        return float(unpacked(self, key).mean())

    def bits(self, key: TensorKey) -> Bits:
        part = self.part
        if not part.sequence:
            return np.zeros(self.shape, dtype=np.bool_)
        sequence = unpacked(self.masks, self.key)
        sequence = sequence.reshape(*(sequence.shape[:-1] if sequence.ndim > 2 else (len(sequence), 1)), sequence.shape[-1])
        sequence = sequence if self.time_first else sequence.swapaxes(0, 1)
        if part.time == WHOLE:
            return np.ascontiguousarray(sequence[:, np.arange(part.batch) % sequence.shape[1]]).reshape(self.shape)
        sequence = sequence[part.time]
        return np.ascontiguousarray(sequence if part.columns is None else sequence[:, slice(*part.columns)])


def mask_of(step: Step, op: Op, side: int, letter: str, masks: Masks, has: Has) -> tuple[MaskSource, TensorKey] | None:
    """The mask of an operand of an unrolled layer; None where none was recorded."""
    if letter == "W":
        name = _matrix(step, op, side)
        key = (op.layer, 0, f"W.{name}")
        return (masks, key) if name and has(key) else None
    part = _parts(step).get((op.layer, op.call, op.inputs[side])) if len(op.inputs) > side else None
    if part is None or letter != "A":
        return None
    if not part.sequence:
        assert part.columns is not None
        return StepMask(masks, ("", 0, ""), part, (part.batch, part.columns[1]), True), (op.layer, op.call, part.name)
    key = (op.layer, op.call, part.sequence)
    if not has(key):
        return None
    shape = shape_of(masks, key)
    shape = shape if len(shape) > 2 else (shape[0], 1, *shape[1:])
    time_first = _time_first(shape, part)
    if time_first is None or (part.columns is not None and part.columns[1] > shape[-1]):
        return None
    rows = part.batch * part.steps if part.time == WHOLE else shape[1 if time_first else 0]
    wide = shape[-1] if part.columns is None else part.columns[1] - part.columns[0]
    return StepMask(masks, key, part, (rows, wide), time_first), (op.layer, op.call, part.name)


def _time_first(shape: tuple[int, ...], part: Part) -> bool | None:
    """Whether a sequence is (time, batch, features) and not (batch, time, features); None where its shape does not say."""
    if len(shape) != 3 or part.steps == part.batch > 1:
        return None
    if shape[:2] == (part.steps, part.batch):
        return True
    return False if shape[1] == part.steps and 0 < shape[0] <= part.batch else None


def _matrix(step: Step, op: Op, side: int) -> str:
    """The name of an operand that is a recurrent layer's weight matrix, '' for any other operand."""
    if len(op.inputs) <= side:
        return ""
    owner, _, name = step.tensors[step.base(op.inputs[side])].name.rpartition(".")
    return name if owner == op.layer and re.match(r"weight_(ih|hh|hr)_l\d+(_reverse)?$", name) else ""


@per_step
def _parts(step: Step) -> dict[tuple[str, int, int], Part]:
    """(layer, call, tensor) -> its part of a recorded sequence, for all recurrent layers of a step."""
    layers: dict[tuple[str, int, bool], dict[tuple[str, int, bool], list[Op]]] = {}
    for op in step.ops:
        if op.phase is Phase.FORWARD and op.letters[:2] == ("A", "W") and (match := MATRIX.match(_matrix(step, op, 1))):
            uses = layers.setdefault((op.layer, op.call, op.recompute), {})
            uses.setdefault((match[1], int(match[2]), bool(match[3])), []).append(op)
    zeros = {step.base(op.outputs[0]) for op in step.ops if op.name in ("zeros", "zeros_like", "new_zeros") and op.outputs}
    parts: dict[tuple[str, int, int], Part | None] = {}
    for (layer, call, _), uses in layers.items():
        for tensor, part in _layer_parts(step, uses, zeros):
            key = (layer, call, tensor)
            parts[key] = part if parts.get(key, part) == part else None
    return {key: part for key, part in parts.items() if part is not None}


def _layer_parts(step: Step, uses: dict[Any, list[Op]], zeros: set[int]) -> Iterator[tuple[int, Part]]:
    """The tensors of one call of one layer that are parts of a recorded sequence."""
    states = {key: ops for key, ops in uses.items() if key[0] == "hh"}
    sizes = {(len(ops), *{op.body.M for op in ops if isinstance(op.body, MatMul)}) for ops in states.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) != 2:  # every state has the same steps and the same batch
        return
    steps, batch = next(iter(sizes))
    last = max(number for _, number, _ in states)
    for (kind, number, reverse), ops in uses.items():
        if kind == "ih" and number == 0:
            if len(ops) == 1 and isinstance(ops[0].body, MatMul) and steps * batch == ops[0].body.M and steps > 1:
                yield ops[0].inputs[0], Part("A.input", WHOLE, steps, batch)
            elif len(ops) == steps:
                times = range(steps - 1, -1, -1) if reverse else range(steps)
                yield from ((op.inputs[0], Part("A.input", time, steps, batch)) for time, op in zip(times, ops, strict=True))
        elif kind == "hh":
            wide = ops[0].body.K if isinstance(ops[0].body, MatMul) else 0
            if step.base(ops[0].inputs[0]) in zeros:
                yield ops[0].inputs[0], Part("", 0, steps, batch, (0, wide))
            if number == last:
                cut = (wide, 2 * wide) if reverse else (0, wide)
                times = range(steps - 1, 0, -1) if reverse else range(steps - 1)
                yield from (
                    (op.inputs[0], Part("A.output", time, steps, batch, cut)) for time, op in zip(times, ops[1:], strict=True)
                )
