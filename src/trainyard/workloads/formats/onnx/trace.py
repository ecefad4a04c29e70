"""The forward pass of an ONNX graph as ops, traced node by node with shapes alone.

A tensor is a shape with strides, as in PyTorch: a transpose, a slice or a reshape that the strides allow is a view and no op; a
product or a reshape that they do not allow copies first. What is computed from constants (shapes, scalars) is a constant and no op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Body, Copy, ElementWise, Letter, MatMul, Op, Phase, Reduction, Role, TensorSpec
from trainyard.workloads.formats.onnx.graph import Node, checked

Shape = tuple[int, ...]
FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8")
OPS = 1_000_000
"""Ops of one step: a recurrent layer is unrolled."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The value of an ONNX name. `tensor` is its number in the step, `numbers` its elements where they do not depend on data."""

    shape: Shape
    dtype: str
    tensor: int | None = None
    strides: Shape = ()
    numbers: npt.NDArray[Any] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def scalar(self) -> bool:
        """A constant that a kernel takes as an argument: no memory is read for it."""
        return self.numbers is not None and self.elements <= 1


def contiguous(shape: Shape) -> Shape:
    """
    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def viewed(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """The strides of a view of shape `new_shape`, or None where a copy is needed.

    >>> viewed((2, 9, 16), (144, 16, 1), (18, 4, 4)), viewed((2, 4, 9, 4), (144, 4, 16, 1), (8, 9, 4))
    ((16, 4, 1), None)
    """
    old = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    runs: list[tuple[int, int]] = []  # neighbouring dimensions that are one run of memory: their size, and the inner step
    for size, step in old:
        if runs and runs[-1][1] == step * size:
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))
    new_strides: list[int] = []
    position = len(runs) - 1
    remaining, step = runs[position] if runs else (1, 1)
    for size in reversed(new_shape):
        if size == 1:
            new_strides.append(step * remaining)
            continue
        while remaining == 1 and position > 0:
            position -= 1
            remaining, step = runs[position]
        if remaining % size:
            return None
        new_strides.append(step)
        remaining, step = remaining // size, step * size
    return tuple(reversed(new_strides))


def broadcast(*shapes: Shape) -> Shape:
    """
    >>> broadcast((2, 1, 4), (3, 1))
    (2, 3, 4)
    """
    rank = max(map(len, shapes), default=0)
    result = []
    for position in range(1, rank + 1):
        sizes = {shape[-position] for shape in shapes if position <= len(shape)}
        if len(sizes - {1}) > 1:
            raise BadInput(f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast")
        result.append(next(iter(sizes - {1}), 1))
    return tuple(reversed(result))


@dataclass
class Trace:
    """The step so far. `training` lets dropout drop and normalisation keep its statistics."""

    training: bool = True
    tensors: list[TensorSpec] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    layer: str = ""
    phase: Phase = Phase.FORWARD

    def tensor(self, shape: Shape, dtype: str, role: Role = Role.ACTIVATION, name: str = "", view_of: int | None = None) -> int:
        checked(shape, f"layer {self.layer!r}: a result")
        self.tensors.append(TensorSpec(shape, dtype, role, name, view_of))
        return len(self.tensors) - 1

    def new(self, shape: Sequence[int], dtype: str, role: Role = Role.ACTIVATION, name: str = "") -> Value:
        """A new contiguous tensor."""
        sizes = tuple(shape)
        return Value(sizes, dtype, self.tensor(sizes, dtype, role, name), contiguous(sizes))

    def view(self, value: Value, shape: Shape, strides: Shape) -> Value:
        """The same memory under another shape."""
        if value.tensor is not None and shape == value.shape and strides == value.strides:
            return value
        number = self.number(value)
        spec = self.tensors[number]
        tensor = self.tensor(shape, value.dtype, spec.role, spec.name, number if spec.view_of is None else spec.view_of)
        return Value(shape, value.dtype, tensor, strides)

    def number(self, value: Value) -> int:
        """The tensor of a value; constants that an op reads become a buffer."""
        return value.tensor if value.tensor is not None else self.tensor(value.shape, value.dtype, Role.BUFFER, "constant")

    def emit(self, body: Body, name: str, reads: Sequence[Value | None], writes: Sequence[Value], letters: tuple[Letter, ...] = (),
             fused: int | None = None) -> None:  # fmt: skip
        if len(self.ops) >= OPS:
            raise NotModelled(f"layer {self.layer!r}: more than {OPS} ops in one step")
        inputs = tuple(self.number(v) for v in reads if v is not None and not v.scalar)
        outputs = tuple(self.number(v) for v in writes)
        self.ops.append(
            Op(
                body=body,
                name=name,
                layer=self.layer,
                phase=self.phase,
                inputs=inputs,
                outputs=outputs,
                letters=letters,
                fused=fused,
            )
        )

    def pointwise(self, function: str, reads: Sequence[Value], operations: int = 1, dtype: str | None = None) -> Value:
        shape = broadcast(*(v.shape for v in reads))
        out = self.new(shape, dtype or reads[0].dtype)
        if out.elements:
            self.emit(ElementWise(function, out.elements, operations), function, reads, (out,))
        return out

    def reshape(self, value: Value, shape: Shape) -> Value:
        """A view where the strides allow one, else a copy and a view of it."""
        if math.prod(shape) != value.elements:
            raise BadInput(
                f"{list(value.shape)} cannot be reshaped to {list(shape)}: {value.elements} elements and {math.prod(shape)}"
            )
        strides = viewed(value.shape, value.strides or contiguous(value.shape), shape)
        return self.view(self.copied(value), shape, contiguous(shape)) if strides is None else self.view(value, shape, strides)

    def copied(self, value: Value) -> Value:
        return self.copy("clone", (value,), value.shape, value.dtype) if value.elements else value

    def copy(self, function: str, reads: Sequence[Value], shape: Sequence[int], dtype: str, name: str = "") -> Value:
        """A new tensor that a copy or a fill writes; no op for an empty one."""
        out = self.new(shape, dtype)
        if out.elements:
            self.emit(Copy(function, out.elements), name or function, reads, (out,))
        return out

    def reduce(self, function: str, value: Value, shape: Sequence[int], dtype: str, passes: int = 1, name: str = "") -> Value:
        """A new tensor that a reduction of `value` writes; no op for an empty one."""
        out = self.new(shape, dtype)
        if out.elements and value.elements:
            self.emit(Reduction(function, value.elements, out.elements, passes), name or function, (value,), (out,))
        return out

    def narrowed(self, value: Value, axis: int, size: int) -> Value:
        """Some of the rows along an axis."""
        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
        return self.view(value, shape, value.strides)

    def dropped(self, value: Value, axis: int) -> Value:
        """One index along an axis, without the axis (`select`)."""
        row = self.narrowed(value, axis, 1)
        return self.view(row, (*row.shape[:axis], *row.shape[axis + 1 :]), (*row.strides[:axis], *row.strides[axis + 1 :]))

    def permuted(self, value: Value, order: Sequence[int]) -> Value:
        strides = value.strides or contiguous(value.shape)
        return self.view(value, tuple(value.shape[i] for i in order), tuple(strides[i] for i in order))

    def product(self, a: Value, b: Value, bias: Value | None = None) -> Value:
        """(M,K) x (K,N), or a batch of them; a bias rides along."""
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            raise BadInput(f"{list(a.shape)} and {list(b.shape)} do not multiply")
        out = self.new((*a.shape[:-1], b.shape[-1]), a.dtype)
        if not (out.elements and a.elements):
            raise NotModelled(f"a product of {list(a.shape)} and {list(b.shape)} has nothing to multiply")
        body = MatMul(a.shape[-2], b.shape[-1], a.shape[-1], math.prod(a.shape[:-2]))
        self.emit(body, "addmm" if bias is not None else "bmm" if a.shape[:-2] else "mm", (a, b, bias), (out,), self.letters(a, b))
        return out

    def letters(self, a: Value, b: Value) -> tuple[Letter, ...]:
        """Operand letters of a product: A and W for an activation and a parameter, empty otherwise."""
        weights = [v.tensor is not None and self.tensors[v.tensor].role is Role.PARAMETER for v in (a, b)]
        if weights[0] == weights[1]:
            return "", ""
        return ("W", "A") if weights[0] else ("A", "W")


@dataclass(slots=True)
class Call:
    """One node as its rule sees it."""

    node: Node
    trace: Trace
    inputs: Sequence[Value | None]
    opset: int

    def input(self, position: int) -> Value:
        value = self.optional_input(position)
        if value is None:
            raise BadInput(f"its input {position} is missing")
        return value

    def optional_input(self, position: int) -> Value | None:
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def present(self) -> list[Value]:
        return [value for value in self.inputs if value is not None]

    def integer(self, name: str, default: int) -> int:
        number = self.node.attributes.get(name, default)
        if isinstance(number, bool) or not isinstance(number, int):
            raise BadInput(f"attribute {name} must be a whole number, got {number!r}")
        return number

    def string(self, name: str, default: str) -> str:
        text = self.node.attributes.get(name, default)
        return text if isinstance(text, str) else default

    def integers(self, name: str, default: Shape = ()) -> Shape:
        numbers = self.node.attributes.get(name, default)
        if not isinstance(numbers, tuple) or any(not isinstance(number, int) for number in numbers):
            raise BadInput(f"attribute {name} must be a list of whole numbers, got {numbers!r}")
        return numbers

    def numbers(self, position: int, name: str) -> Shape | None:
        """Whole numbers that older opsets write as an attribute and newer ones as an input."""
        value = self.optional_input(position)
        if value is not None:
            return self.constants(value, f"input {position} ({name})")
        return self.integers(name) if name in self.node.attributes else None

    def constants(self, value: Value, subject: str) -> Shape:
        if value.numbers is None:
            raise NotModelled(f"{subject} depends on data: its numbers must be constants or come from shapes")
        return tuple(int(number) for number in value.numbers.reshape(-1))

    def axis(self, number: int, rank: int) -> int:
        if not -rank <= number < max(rank, 1):
            raise BadInput(f"axis {number} of {rank} dimensions")
        return number % rank if rank else 0


def constant(numbers: Any, dtype: str) -> Value:
    """A value whose elements are constants."""
    array = np.asarray(numbers)
    return Value(array.shape, dtype, None, contiguous(array.shape), array)


NUMPY: Mapping[str, str] = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "float32", "fp8": "float32", "int64": "int64",
    "int32": "int64", "int16": "int64", "int8": "int64", "uint8": "int64", "bool": "bool",
}  # fmt: skip
