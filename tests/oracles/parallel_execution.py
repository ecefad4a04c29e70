"""A step that `parallel` has made, really computed: all devices op by op, with arrays for tensors and sums for exchanges.

Each device starts with its piece of the parameters and its samples or all of the inputs, and does the ops of the transformed step,
no more: what it reads must have been computed or exchanged before. It ends with the parameters that one device would have computed
from the whole step. Pieces are nearly equal, the first ones larger, so that of device 0 is the one that the step describes.

This is the definition, for readers and tests; it knows layers of products, biases, ReLU and a squared error. A matrix seen as a
matrix with its extents changed over is its transpose, any other view reshapes it; what is smaller than its memory is a piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.lowering import execute_product
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Collective, Convolution, ElementWise, Op, Reduction, Step, Update
from trainyard.ir.step import operand_order

Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class Execution:
    """All devices at work. `memory[device][tensor]` holds what a device has of each tensor that owns its memory."""

    whole: Step
    step: Step
    devices: int
    rate: Any = 1
    memory: list[dict[int, Array]] = field(default_factory=list)
    exchanged: dict[str, int] = field(default_factory=dict)
    cuts: dict[tuple[int, int], npt.NDArray[np.int64]] = field(default_factory=dict)

    def run(self, values: Mapping[int, Array]) -> Execution:
        """From whole inputs, targets, parameters (by tensor number) to updated parameters; what has no value is 1 (as dL is)."""
        self.memory = [{} for _ in range(self.devices)]
        for tensor, value in values.items():
            if value.shape != self.whole.tensors[tensor].shape:
                raise BadInput(f"tensor {tensor} is {self.whole.tensors[tensor].shape}, got values of shape {value.shape}")
            axis = _cut_axis(value.shape, self.step.tensors[tensor].shape)
            for device, memory in enumerate(self.memory):
                piece = value if axis is None else self._pieces(value, axis, self.step.tensors[tensor].shape)[device]
                memory[tensor] = piece.copy()
        originals = iter(self.whole.ops)
        for op in self.step.ops:
            self._op(op, None if isinstance(op.body, Collective) else next(originals))
        return self

    def joined(self, tensor: int) -> Array:
        """The whole of a tensor from all devices' pieces."""
        pieces = [memory[tensor] for memory in self.memory]
        axis = _cut_axis(self.whole.tensors[tensor].shape, self.step.tensors[tensor].shape)
        if axis is not None:
            return np.concatenate(pieces, axis)
        if any(not np.array_equal(piece, pieces[0]) for piece in pieces[1:]):
            raise BadInput(f"tensor {tensor} ({self.step.tensors[tensor].name}) should be the same on all devices, and is not")
        return pieces[0]

    def _op(self, op: Op, original: Op | None) -> None:
        if isinstance(op.body, Collective):
            results = self._exchange(op, op.body, [self._read(device, op.inputs[0], None) for device in range(self.devices)])
        else:
            assert original is not None
            read = list(zip(op.inputs, original.inputs, strict=True))
            inputs = ([self._read(device, tensor, of) for tensor, of in read] for device in range(self.devices))
            results = [self._compute(op, each) for each in inputs]
        for device, result in enumerate(results):
            self._write(device, op.outputs[0], result)

    # -- memory --

    def _read(self, device: int, tensor: int, original: int | None) -> Array:
        """A device's value of a tensor that stands for one of the whole step: seen in its memory as that is, then cut."""
        base = self.step.base(tensor)
        if base not in self.memory[device]:
            if base >= len(self.whole.tensors) or any(base in map(self.whole.base, op.outputs) for op in self.whole.ops):
                raise BadInput(f"tensor {base} is read on device {device} before it is there")
            self.memory[device][base] = np.ones(self.step.tensors[base].shape)
        value, home, seen = self.memory[device][base], self.step.tensors[base].shape, self.step.tensors[tensor].shape
        original = tensor if original is None else original
        if original < len(self.whole.tensors) and self.whole.tensors[original].view_of is not None:
            view, owner = (self.whole.tensors[t].shape for t in (original, self.whole.base(original)))
            if len(view) == len(owner) == 2:
                if view[0] == view[1]:
                    raise NotModelled(f"tensor {original} is a square matrix seen in a square matrix: turned or not?")
                value, home = (value.T, home[::-1]) if view == owner[::-1] else (value, home)
            else:
                axis = _cut_axis(view, seen) if np.prod(home) == np.prod(seen) else None
                home = view if axis is None else seen
                value = value.reshape([-1 if place == axis else size for place, size in enumerate(home)])
        axis = _cut_axis(home, seen)
        if axis is None and home != seen:
            raise NotModelled(f"tensor {tensor} {seen} is no piece of {home}")
        return value if axis is None else self._pieces(value, axis, seen)[device]

    def _write(self, device: int, tensor: int, value: Array) -> None:
        if device == 0 and value.shape != self.step.tensors[tensor].shape:
            raise BadInput(f"tensor {tensor} should be {self.step.tensors[tensor].shape}, was computed as {value.shape}")
        base = self.step.base(tensor)
        if self.step.tensors[base].elements != self.step.tensors[tensor].elements:
            raise NotModelled(f"tensor {tensor} is a part of what tensor {base} holds")
        self.memory[device][base] = value

    def _pieces(self, value: Array, axis: int, first: tuple[int, ...]) -> list[Array]:
        """Nearly equal pieces, the first as long as given; where pieces of that kind were gathered before (channels of a flattened
        image do not come in single elements), as those were."""
        size = value.shape[axis]
        equal = np.cumsum([len(part) for part in np.array_split(np.arange(size), self.devices)])[:-1]
        return np.split(value, self.cuts.get((size, first[axis]), equal), axis)

    # -- ops --

    def _exchange(self, op: Op, body: Collective, parts: Sequence[Array]) -> Sequence[Array]:
        """What each device has afterwards; what it is of is counted as it comes in."""
        result = self.step.tensors[op.outputs[0]].shape
        if body.kind == "all_gather":
            axis = _cut_axis(result, self.step.tensors[op.inputs[0]].shape)
            axis = 0 if axis is None else axis
            whole = np.concatenate(parts, axis)
            self.cuts[result[axis], parts[0].shape[axis]] = np.cumsum([part.shape[axis] for part in parts])[:-1]
            after: Sequence[Array] = [whole] * len(parts)
        elif body.kind in ("all_reduce", "reduce_scatter"):
            whole = np.sum(np.stack(parts), axis=0)
            axis = _cut_axis(whole.shape, result)
            after = [whole] * len(parts) if axis is None else self._pieces(whole, axis, result)
        else:
            raise NotModelled(f"{body.kind} is not what parallel makes")
        self.exchanged[body.kind] = self.exchanged.get(body.kind, 0) + whole.size
        return after

    def _compute(self, op: Op, inputs: Sequence[Any]) -> Any:
        body = op.body
        if op.is_product:
            return self._product(op, inputs)
        if isinstance(body, Update):
            return inputs[0] - self.rate * inputs[1].reshape(inputs[0].shape)
        function = getattr(body, "function", "")
        if isinstance(body, ElementWise) and function == "relu":
            return np.maximum(inputs[0], 0)
        if isinstance(body, ElementWise) and function == "threshold_backward":
            return inputs[0] * (inputs[1] > 0)
        if isinstance(body, ElementWise) and function == "add":
            return inputs[0] + inputs[1]
        if isinstance(body, ElementWise) and function == "squared_error_backward":  # of half the sum of squares
            return inputs[0] - inputs[1]
        if isinstance(body, ElementWise) and function == "mse_loss_backward":  # of the mean over all devices' elements
            return inputs[0] * 2 * (inputs[1] - inputs[2]) / self.whole.tensors[op.outputs[0]].elements
        if isinstance(body, Reduction) and function in ("mse_loss", "squared_error"):
            return np.asarray(((inputs[0] - inputs[1]) ** 2).sum())
        if isinstance(body, Reduction) and function == "sum":
            axes = tuple(axis for axis in range(inputs[0].ndim) if axis != 1)
            return inputs[0].sum(axis=axes).reshape((1, -1)[-len(self.step.tensors[op.outputs[0]].shape) :])
        raise NotModelled(f"{op.name or function} is not computed here")

    def _product(self, op: Op, inputs: Sequence[Any]) -> Any:
        body, bias = op.body, inputs[2] if len(inputs) > 2 else None
        if not isinstance(body, Convolution):
            result = inputs[0] @ inputs[1]
            return result if bias is None else result + bias
        first, second = (inputs[place] for place in operand_order(self.step, op))
        image = first if body.product != "grad_input" else None
        out = second if body.product == "grad_weight" else first if body.product == "grad_input" else None
        weight = second if body.product != "grad_weight" else None
        channels = weight.shape[0] if weight is not None else out.shape[1]  # type: ignore[union-attr]  # one of the two is there
        deep = image.shape[1] if image is not None else weight.shape[1]  # type: ignore[union-attr]
        mine = replace(body, batch=first.shape[0], out_channels=channels, in_channels=deep)
        result = execute_product(mine, first, second)
        return result if bias is None else result + bias.reshape(1, -1, *(1,) * (result.ndim - 2))


def _cut_axis(whole: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    """The one axis in which a shape is a piece of another; None where there is none, or more than one."""
    if len(whole) != len(part):
        return None
    axes = [axis for axis, (size, piece) in enumerate(zip(whole, part, strict=True)) if size != piece]
    return axes[0] if len(axes) == 1 and part[axes[0]] < whole[axes[0]] else None


def execute(whole: Step, step: Step, devices: int, values: Mapping[int, Array], *, rate: Any = 1) -> Execution:
    """What `devices` devices compute together by a step that `parallel` made of `whole` (itself, for one device)."""
    return Execution(whole=whole, step=step, devices=devices, rate=rate).run(values)
