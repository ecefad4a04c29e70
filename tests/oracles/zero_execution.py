"""A step that `zero` has made, really computed: n devices with their parts of gradients, state and parameters.

A gathered parameter is there from its gather on, in arrays of its own; a device's part of everything else is flat and padded.
Optimizers: SGD, with momentum, and Adam, as torch defines them. For readers and tests, as `parallel_execution` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.parallel_execution import Execution
from trainyard.errors import NotModelled
from trainyard.ir import Collective, Op, Role, Step, Update

Array = npt.NDArray[Any]
MOMENTUM, BETAS, EPSILON = 0.9, (0.9, 0.999), 1e-8


def updated(optimizer: str, rate: float, count: int, parameter: Array, gradient: Array, state: list[Array]) -> tuple[Array, ...]:
    """New parameter and state after the `count`-th gradient (from 1)."""
    if optimizer == "sgd" and not state:
        return (parameter - rate * gradient,)
    if optimizer == "sgd" and len(state) == 1:
        moved = MOMENTUM * state[0] + gradient
        return parameter - rate * moved, moved
    if optimizer == "adam" and len(state) == 2:
        first = BETAS[0] * state[0] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * state[1] + (1 - BETAS[1]) * gradient**2
        size = np.sqrt(second / (1 - BETAS[1] ** count)) + EPSILON
        return parameter - rate * first / (1 - BETAS[0] ** count) / size, first, second
    raise NotModelled(f"{optimizer} with {len(state)} tensors of state is not computed here")


@dataclass(slots=True, kw_only=True)
class ZeroExecution(Execution):
    """All devices at work; `count` is the number of the optimizer step."""

    count: int = 1
    held: dict[str, int] = field(default_factory=dict)

    def start(self, values: Mapping[int, Array]) -> ZeroExecution:
        """From whole inputs, targets, parameters and state; each device gets its samples, and its parts of what is cut."""
        self.memory = [{} for _ in range(self.devices)]
        for tensor, value in values.items():
            mine = self.step.tensors[tensor]
            for device, memory in enumerate(self.memory):
                if mine.role in (Role.INPUT, Role.TARGET):
                    memory[tensor] = np.split(value, self.devices)[device]
                else:
                    cut = mine.shape != value.shape
                    memory[tensor] = self._parts(value, mine.elements)[device] if cut else value.copy()
        return self

    def step_once(self, inputs: Mapping[int, Array]) -> ZeroExecution:
        """One optimizer step on new inputs and targets; what is left of the last one is forgotten."""
        for device, memory in enumerate(self.memory):
            for base in list(memory):
                if not self.step.tensors[base].role.resident:
                    del memory[base]
            memory.update({tensor: np.split(value, self.devices)[device] for tensor, value in inputs.items()})
        originals = iter(self.whole.ops)
        for op in self.step.ops:
            original = None if isinstance(op.body, Collective) else next(originals)
            if isinstance(op.body, Collective):
                self._collective(op, op.body)
            elif isinstance(op.body, Update):
                self._update(op, op.body)
            else:
                self._op(op, original)
        self.count += 1
        return self

    def whole_of(self, tensor: int) -> Array:
        """A parameter or its state from all devices' parts."""
        shape = self.whole.tensors[tensor].shape
        if self.step.tensors[tensor].shape == shape:
            return self.joined(tensor)
        flat = np.concatenate([memory[tensor] for memory in self.memory])
        return flat[: int(np.prod(shape))].reshape(shape)

    def _parts(self, value: Array, size: int) -> list[Array]:
        flat = np.pad(value.reshape(-1), (0, size * self.devices - value.size))
        return np.split(flat, self.devices)

    def _collective(self, op: Op, body: Collective) -> None:
        """All tensors of a bucket; a tensor of no bytes is only waited for."""
        there = [tensor for tensor in op.inputs if self.step.tensors[tensor].elements]
        for tensor, result in zip(there, op.outputs, strict=True):
            target, spec = self.step.base(result), self.step.tensors[result]
            if body.kind == "all_gather":
                parts = [self._own(device, tensor) for device in range(self.devices)]
                whole = np.concatenate([part.reshape(-1) for part in parts])[: spec.elements].reshape(spec.shape)
                for memory in self.memory:
                    memory[target] = whole.copy()
                continue
            total = np.sum(np.stack([memory[self.step.base(tensor)] for memory in self.memory]), axis=0)
            parts = [total] * self.devices if body.kind == "all_reduce" else self._parts(total, spec.elements)
            for memory, part in zip(self.memory, parts, strict=True):
                memory[target] = part
            self.held[body.kind] = self.held.get(body.kind, 0) + total.size

    def _own(self, device: int, tensor: int) -> Array:
        """A device's part of a tensor: what it keeps, or its place in what all keep whole."""
        base, spec = self.step.base(tensor), self.step.tensors[tensor]
        value = self.memory[device][base]
        return value if value.size == spec.elements else self._parts(value, spec.elements)[device]

    def _update(self, op: Op, body: Update) -> None:
        for device, memory in enumerate(self.memory):
            parameter, gradient, *state = (self._own(device, tensor) for tensor in op.inputs)
            new = updated(body.optimizer.lower(), self.rate, self.count, parameter, gradient.reshape(parameter.shape), state)
            for tensor, value in zip(op.outputs, new, strict=True):
                base = self.step.base(tensor)
                if value.size == memory[base].size:
                    memory[base] = value.reshape(memory[base].shape)
                else:  # its part in memory that holds all: the others' come with the gather
                    flat = memory[base].reshape(-1).copy()
                    place = slice(device * value.size, min(flat.size, (device + 1) * value.size))
                    flat[place] = value[: place.stop - place.start] if place.stop > place.start else value[:0]
                    memory[base] = flat.reshape(memory[base].shape)


def start(whole: Step, step: Step, devices: int, values: Mapping[int, Array], *, rate: Any = 0.1) -> ZeroExecution:
    """Devices that will follow a step which `zero.sharded` made of `whole` (itself, for one device)."""
    return ZeroExecution(whole=whole, step=step, devices=devices, rate=rate).start(values)
