"""Masks of a recurrent layer, step by step.

A recurrent layer is recorded as a whole: `A.input` and `A.output` are sequences, and each matrix has its name. The Step has its
products unrolled in the order in which they run: the matrix of an op is its parameter, and how often that matrix was used before
says the step. So the following are known exactly:

- the matrices;
- what `weight_ih_l0` multiplies: the input at that step (the last comes first in the reverse direction);
- what `weight_hh` of the last layer multiplies: the output of the step before, or nothing but zeros where the layer made its
  first state itself.

States between stacked layers, given first states and gradients of gates are not recorded: they count as dense. So do sequences as
long as the batch, of which a mask does not tell what is time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.ir import Masks, MaskSource, MatMul, Op, Phase, Step, TensorKey
from trainyard.masks.views import shape_of, unpacked

Bits = npt.NDArray[np.bool_]
Has = Callable[[TensorKey], bool]
MATRIX = re.compile(r"weight_(ih|hh)_l(\d+)(_reverse)?$")
WHOLE = -1
"""The time of an operand that holds all steps, one below the other (a layer may multiply its whole input at once)."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operand as a part of a recorded sequence: one step, and some of its features; zeros where there is no sequence."""

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
        found = unpacked(self.masks, self.key)
        found = found.reshape(*(found.shape[:-1] if found.ndim > 2 else (len(found), 1)), found.shape[-1])
        found = found if self.time_first else found.swapaxes(0, 1)
        if part.time == WHOLE:
            return np.ascontiguousarray(found[:, np.arange(part.batch) % found.shape[1]]).reshape(self.shape)
        found = found[part.time]
        return np.ascontiguousarray(found if part.columns is None else found[:, slice(*part.columns)])


def mask_of(step: Step, op: Op, side: int, letter: str, masks: Masks, has: Has) -> tuple[MaskSource, TensorKey] | None:
    """The mask of an operand of an unrolled layer; None where it is not known."""
    if letter == "W":
        name = _matrix(step, op, side)
        key = (op.layer, 0, f"W.{name}")
        return (masks, key) if name and has(key) else None
    part = _parts(_Same(step)).get((op.layer, op.call, op.inputs[side])) if len(op.inputs) > side else None
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
    """Whether a sequence is (time, batch, features) and not (batch, time, features); None where it cannot be told."""
    if len(shape) != 3 or part.steps == part.batch > 1:
        return None
    if shape[:2] == (part.steps, part.batch):
        return True
    return False if shape[1] == part.steps and 0 < shape[0] <= part.batch else None


def _matrix(step: Step, op: Op, side: int) -> str:
    """The name of a recurrent layer's own matrix, '' of any other."""
    if len(op.inputs) <= side:
        return ""
    owner, _, name = step.tensors[step.base(op.inputs[side])].name.rpartition(".")
    return name if owner == op.layer and re.match(r"weight_(ih|hh|hr)_l\d+(_reverse)?$", name) else ""


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A step by identity: comparing all its ops would cost more than looking at them."""

    step: Step

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.step is self.step

    def __hash__(self) -> int:
        return id(self.step)


@lru_cache(maxsize=2)
def _parts(same: _Same) -> dict[tuple[str, int, int], Part]:
    """(layer, call, tensor) -> the part that it is, of all recurrent layers of a step."""
    step = same.step
    layers: dict[tuple[str, int, bool], dict[tuple[str, int, bool], list[Op]]] = {}
    for op in step.ops:
        if op.phase is Phase.FORWARD and op.letters[:2] == ("A", "W") and (found := MATRIX.match(_matrix(step, op, 1))):
            uses = layers.setdefault((op.layer, op.call, op.recompute), {})
            uses.setdefault((found[1], int(found[2]), bool(found[3])), []).append(op)
    zeros = {step.base(op.outputs[0]) for op in step.ops if op.name in ("zeros", "zeros_like", "new_zeros") and op.outputs}
    parts: dict[tuple[str, int, int], Part | None] = {}
    for (layer, call, _), uses in layers.items():
        for tensor, part in _of_layer(step, uses, zeros):
            place = (layer, call, tensor)
            parts[place] = part if parts.get(place, part) == part else None
    return {place: part for place, part in parts.items() if part is not None}


def _of_layer(step: Step, uses: dict[Any, list[Op]], zeros: set[int]) -> Iterator[tuple[int, Part]]:
    """Tensors of one call of one layer."""
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
