"""The backward pass of a forward-only list, derived by rule: for formats that know no training (SCALE-Sim, ONNX).

Y(M,N) = A(M,K) B(K,N) gives dA = dY B^T and dB = A^T dY; a convolution gives its two other products; everything else gives an op
of its own size. Nothing is computed for what needs no gradient, so the first layer has no dX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import (
    Body,
    Collective,
    Convolution,
    Copy,
    ElementWise,
    Gather,
    Letter,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Step,
    TensorSpec,
    Update,
)


class Optimizer(NamedTuple):
    """Arithmetic operations and state tensors of one parameter's update."""

    operations: int
    states: int


# fmt: off
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd":      Optimizer(operations=2,  states=0),  # p -= lr * g
    "momentum": Optimizer(operations=4,  states=1),  # m = mu * m + g; p -= lr * m
    "adam":     Optimizer(operations=12, states=2),  # two moving means, two bias corrections, a root, a division, the step
}
# fmt: on
GRADIENT = (Role.GRADIENT, Role.PARAMETER_GRADIENT)


def with_backward(forward: Step, *, optimizer: str | None = "sgd") -> Step:
    """The training step whose forward pass is `forward`; `optimizer=None` leaves the update out."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    if any(op.phase is not Phase.FORWARD for op in forward.ops):
        raise BadInput(f"step {forward.name!r} has more than a forward pass: its backward pass cannot be derived again")
    work = _Derivation(forward)
    work.seed()
    for op in reversed(forward.ops):
        work.reverse(op)
    if optimizer is not None:
        work.update(optimizer)
    return replace(forward, ops=(*forward.ops, *work.ops), tensors=tuple(work.tensors))


@dataclass
class _Derivation:
    """The growing step: new tensors, new ops, and the gradient pieces that have reached each tensor so far."""

    forward: Step
    tensors: list[TensorSpec] = field(init=False)
    ops: list[Op] = field(default_factory=list)
    pieces: dict[int, list[int]] = field(default_factory=dict)
    needs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors = list(self.forward.tensors)
        self.needs = {i for i, spec in enumerate(self.tensors) if spec.view_of is None and spec.role is Role.PARAMETER}
        for op in self.forward.ops:
            if any(self.forward.base(t) in self.needs for t in op.inputs):
                self.needs.update(map(self.forward.base, op.outputs))

    def seed(self) -> None:
        """What nothing reads is the loss's: its gradient is given."""
        read = {self.forward.base(t) for op in self.forward.ops for t in op.inputs}
        for op in self.forward.ops:
            for out in op.outputs:
                if self.forward.base(out) not in read and self.forward.base(out) in self.needs:
                    self.pieces[out] = [self.new(out)]

    def new(self, tensor: int, view_of: int | None = None) -> int:
        """A gradient of the shape of `tensor`."""
        spec = self.tensors[tensor]
        role = Role.PARAMETER_GRADIENT if spec.role is Role.PARAMETER else Role.GRADIENT
        self.tensors.append(replace(spec, role=role, name=f"{spec.name}.grad", view_of=view_of))
        return len(self.tensors) - 1

    def emit(self, op: Op, suffix: str, phase: Phase, body: Body, slope: tuple[int, ...], reads: tuple[int, ...], of: int) -> None:
        """An op that computes a piece of the gradient of tensor `of`."""
        piece = self.new(of)
        letters: tuple[Letter, ...] = ()
        if isinstance(body, MatMul | Convolution) and op.letters:
            letters = tuple("G" if self.tensors[t].role in GRADIENT else op.letters[op.inputs.index(t)] for t in reads)
        name = f"{op.name}.{suffix}"
        self.ops.append(
            replace(op, body=body, name=name, phase=phase, inputs=reads, outputs=(piece,), letters=letters, slope=slope, fused=None)
        )
        self.pieces.setdefault(of, []).append(piece)

    def gradient(self, tensor: int, op: Op) -> int | None:
        """The whole gradient of an output: pieces that reached it or views of it, added up."""
        base = self.forward.base(tensor)
        parts: list[int] = []
        for reached in [t for t in self.pieces if self.forward.base(t) == base]:
            for piece in self.pieces.pop(reached):
                parts.append(piece if reached == tensor else self.new(tensor, view_of=piece))
        if len(parts) <= 1:
            return parts[0] if parts else None
        total, elements = self.new(tensor), self.tensors[tensor].elements
        phase = Phase.GRAD_WEIGHT if self.tensors[base].role is Role.PARAMETER else Phase.GRAD_INPUT
        body = ElementWise("add", elements, len(parts) - 1)
        slope = (_growth(self.tensors[tensor]), 0)
        self.ops.append(
            replace(op, body=body, name=f"{op.name}.accumulate", phase=phase, inputs=tuple(parts), outputs=(total,), letters=(),
                    slope=slope if any(slope) else (), fused=None)
        )  # fmt: skip
        return total

    def reverse(self, op: Op) -> None:
        if isinstance(op.body, Collective | Update):
            raise NotModelled(
                f"op {op.name!r}: the backward pass of a {type(op.body).__name__} is not derived by rule: capture the step"
            )
        gradients = [g for g in (self.gradient(out, op) for out in op.outputs) if g is not None]
        if not gradients:
            return
        if isinstance(op.body, MatMul | Convolution):
            self.reverse_product(op, gradients[0])
        else:
            self.reverse_other(op, tuple(gradients))

    def reverse_product(self, op: Op, gradient: int) -> None:
        if len(op.inputs) < 2:
            raise BadInput(f"op {op.name!r}: a product needs its two operands as inputs")
        left, right = op.inputs[:2]
        for of, reads, first in ((left, (gradient, right), True), (right, (left, gradient), False)):
            if self.forward.base(of) in self.needs:
                body, slope = _reversed(op, first=first)
                phase = Phase.GRAD_WEIGHT if self._is_parameter(of) else Phase.GRAD_INPUT
                self.emit(op, str(phase), phase, body, slope, reads, of)
        for bias in op.inputs[2:]:
            if self.forward.base(bias) in self.needs:
                spec = self.tensors[gradient]
                body = Reduction("bias_grad", spec.elements, self.tensors[bias].elements)
                slope = (_growth(spec), 0, 0)
                self.emit(op, "grad_bias", Phase.GRAD_WEIGHT, body, slope, (gradient,), bias)

    def reverse_other(self, op: Op, gradients: tuple[int, ...]) -> None:
        """One op of the forward op's own size for each input that needs a gradient; a sum hands its gradient on."""
        for of in dict.fromkeys(op.inputs):
            if self.forward.base(of) not in self.needs:
                continue
            phase = Phase.GRAD_WEIGHT if self._is_parameter(of) else Phase.GRAD_INPUT
            if isinstance(op.body, ElementWise) and op.body.function == "add" and self._same_size(of, gradients[0]):
                self.pieces.setdefault(of, []).append(gradients[0])
                continue
            body: Body = op.body
            if isinstance(body, Gather):
                body = replace(body, scatter=not body.scatter)
            elif isinstance(body, ElementWise | Reduction | Copy):
                body = replace(body, function=f"{body.function}_grad")
            kept = tuple(t for t in op.inputs if not isinstance(body, Gather | Copy) and not self._is_parameter(t))
            self.emit(op, str(phase), phase, body, op.slope, (*gradients, *kept), of)

    def update(self, optimizer: str) -> None:
        rule = OPTIMIZERS[optimizer]
        for parameter in sorted(t for t in self.needs if self._is_parameter(t)):
            spec = self.tensors[parameter]
            owner = next(op for op in self.forward.ops if parameter in map(self.forward.base, op.inputs))
            gradient = self.gradient(parameter, owner)
            if gradient is None:
                continue
            states = range(len(self.tensors), len(self.tensors) + rule.states)
            self.tensors.extend(replace(spec, role=Role.STATE, name=f"{spec.name}.{optimizer}{i}") for i in range(rule.states))
            body = Update(optimizer, spec.elements, rule.operations)
            name = f"{spec.name or owner.name}.update"
            self.ops.append(
                Op(body=body, name=name, layer=owner.layer, phase=Phase.UPDATE, inputs=(parameter, gradient, *states),
                   outputs=(parameter, *states))
            )  # fmt: skip

    def _is_parameter(self, tensor: int) -> bool:
        return self.forward.tensors[self.forward.base(tensor)].role is Role.PARAMETER

    def _same_size(self, left: int, right: int) -> bool:
        return self.tensors[left].elements == self.tensors[right].elements


def _reversed(op: Op, *, first: bool) -> tuple[Body, tuple[int, ...]]:
    """The product that gives the gradient of a product's first or second operand, with its growth over the batch."""
    if isinstance(op.body, Convolution):
        return op.body.as_product("grad_input" if first else "grad_weight"), op.slope
    assert isinstance(op.body, MatMul)
    order = (0, 2, 1, 3) if first else (2, 1, 0, 3)  # of M, N, K, count: dA is (M, K, N), dB is (K, N, M)
    sizes = (op.body.M, op.body.N, op.body.K, op.body.count)
    return MatMul(*(sizes[i] for i in order)), tuple(op.slope[i] for i in order) if op.slope else ()


def _growth(spec: TensorSpec) -> int:
    """Elements that one more sample adds."""
    if not any(spec.slope):
        return 0
    larger = replace(spec, shape=tuple(d + s for d, s in zip(spec.shape, spec.slope, strict=True)))
    return larger.elements - spec.elements
