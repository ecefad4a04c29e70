"""The backward pass of a forward-only step, derived by rule: for formats without training (SCALE-Sim, ONNX).

Y(M,N) = A(M,K) B(K,N) gives dA = dY B^T and dB = A^T dY; a convolution gives its two other products; the rules of the other ops are
in `workloads/formats/gradients.py`. Nothing is computed for what needs no gradient, so the first layer has no dX. Names, order of
operands and saved tensors are those of PyTorch, so that a derived step equals a captured one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import (
    Body,
    Collective,
    Convolution,
    Copy,
    ElementWise,
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
from trainyard.ir.ops import dimensions


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
Elements = Callable[[int], int]
"""How many elements a tensor has, at one batch size or another."""


def with_backward(forward: Step, *, optimizer: str | None = "sgd") -> Step:
    """The training step whose forward pass (and loss) is `forward`; `optimizer=None` leaves the update out."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    if any(op.phase not in (Phase.FORWARD, Phase.LOSS) for op in forward.ops):
        raise BadInput(f"step {forward.name!r} has more than a forward pass: its backward pass cannot be derived again")
    work = Derivation(forward)
    work.seed()
    for op in reversed(forward.ops):
        work.reverse(op)
    if optimizer is not None:
        work.update(optimizer)
    return replace(forward, ops=(*forward.ops, *work.ops), tensors=tuple(work.tensors))


@dataclass
class Derivation:
    """The growing step: new tensors, new ops, and the gradient pieces that have reached each tensor so far."""

    forward: Step
    tensors: list[TensorSpec] = field(init=False)
    ops: list[Op] = field(default_factory=list)
    pieces: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    needs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors = list(self.forward.tensors)
        self.needs = {i for i, spec in enumerate(self.tensors) if spec.view_of is None and spec.role is Role.PARAMETER}
        for op in self.forward.ops:
            if any(self.forward.base(t) in self.needs for t in op.inputs):
                self.needs.update(map(self.forward.base, op.outputs))

    def seed(self) -> None:
        """Starts the backward pass with a gradient of the loss; without a loss, of every result that no op reads."""
        read = {self.forward.base(t) for op in self.forward.ops for t in op.inputs}
        has_loss = any(op.phase is Phase.LOSS for op in self.forward.ops)
        for op in self.forward.ops:
            for out in op.outputs[:1] if has_loss else op.outputs:
                if self.forward.base(out) not in read and self.needed(out) and (op.phase is Phase.LOSS or not has_loss):
                    self.reach(out, self.new(out))

    def needed(self, tensor: int) -> bool:
        return self.forward.base(tensor) in self.needs

    def new(self, tensor: int, view_of: int | None = None) -> int:
        """A gradient of the shape of `tensor`."""
        spec = self.tensors[tensor]
        role = Role.PARAMETER_GRADIENT if spec.role in (Role.PARAMETER, Role.PARAMETER_GRADIENT) else Role.GRADIENT
        name = spec.name if spec.role in GRADIENT else f"{spec.name}.grad"
        self.tensors.append(replace(spec, role=role, name=name, view_of=view_of))
        return len(self.tensors) - 1

    def reach(self, tensor: int, piece: int) -> None:
        """Adds a piece of the gradient of `tensor`."""
        self.pieces.setdefault(self.forward.base(tensor), {}).setdefault(tensor, []).append(piece)

    def sized(self, of: Callable[[Elements], Body]) -> tuple[Body, tuple[int, ...]]:
        """A body made of the sizes of tensors, and how it grows with the batch."""
        body = of(lambda t: self.tensors[t].elements)
        larger = of(lambda t: self.tensors[t].elements + growth(self.tensors[t]))
        return body, tuple(b - a for a, b in zip(dimensions(body), dimensions(larger), strict=True))

    def emit(
        self, op: Op, suffix: str, of: Callable[[Elements], Body], reads: Sequence[int], writes: Sequence[int], phase: Phase
    ) -> None:
        """An op over gradients, in the layer of the forward op `op`."""
        body, slope = self.sized(of)
        self._append(op, suffix, body, slope, reads, writes, phase)

    def _append(self, op: Op, suffix: str, body: Body, slope: tuple[int, ...], reads: Sequence[int], writes: Sequence[int],
                phase: Phase, letters: tuple[Letter, ...] = ()) -> None:  # fmt: skip
        self.ops.append(
            replace(op, body=body, name=f"{op.name}.{suffix}", phase=phase, inputs=tuple(reads), outputs=tuple(writes),
                    letters=letters, slope=slope, fused=None)
        )  # fmt: skip

    def phase_of(self, *tensors: int) -> Phase:
        """The phase of an op that computes the gradients of these tensors."""
        return Phase.GRAD_WEIGHT if all(map(self.is_parameter, tensors)) else Phase.GRAD_INPUT

    def gradient(self, tensor: int, op: Op) -> int | None:
        """The gradient of a tensor: the pieces for it and for views of it, concatenated and summed; None without pieces."""
        base, elements = self.forward.base(tensor), self.tensors[tensor].elements
        parts: list[int] = []
        cuts: list[tuple[int, int]] = []
        phase = self.phase_of(base)
        for reached, pieces in self.pieces.pop(base, {}).items():
            piece = self.added(reached, pieces, op, phase)
            size = self.tensors[reached].elements
            if size == elements:
                parts.append(piece if reached == tensor else self.new(tensor, view_of=piece))
            elif size > elements:
                parts.append(self.summed(op, piece, tensor, phase))
            else:
                cuts.append((reached, piece))
        if cuts and sum(self.tensors[reached].elements for reached, _ in cuts) == elements:
            parts.append(self._copied(op, "cat", [piece for _, piece in cuts], tensor, phase))
        else:
            parts.extend(self._copied(op, "slice_backward", [piece], tensor, phase) for _, piece in cuts)
        return self.added(tensor, parts, op, phase) if parts else None

    def added(self, tensor: int, pieces: Sequence[int], op: Op, phase: Phase) -> int:
        """Emits the additions that accumulate the pieces of one gradient."""
        total = pieces[0]
        for piece in pieces[1:]:
            out = self.new(tensor)
            self.emit(op, "accumulate", lambda e, out=out: ElementWise("add", e(out)), (total, piece), (out,), phase)  # type: ignore[misc]
            total = out
        return total

    def summed(self, op: Op, piece: int, tensor: int, phase: Phase) -> int:
        """A gradient of a broadcast result, summed to the size of what was broadcast."""
        out = self.new(tensor)
        self.emit(op, "sum", lambda e: Reduction("sum", e(piece), e(out)), (piece,), (out,), phase)
        return out

    def _copied(self, op: Op, function: str, pieces: Sequence[int], tensor: int, phase: Phase) -> int:
        out = self.new(tensor)
        self.emit(op, function, lambda e: Copy(function, e(out)), pieces, (out,), phase)
        return out

    def reverse(self, op: Op) -> None:
        from trainyard.workloads.formats.gradients import reverse_other

        if isinstance(op.body, Collective | Update):
            raise NotModelled(
                f"op {op.name!r}: the backward pass of a {type(op.body).__name__} is not derived by rule: capture the step"
            )
        if not any(map(self.needed, op.outputs)):
            return
        gradients = [self.gradient(out, op) for out in op.outputs]
        if gradients[0] is None and all(g is None for g in gradients):
            return
        if isinstance(op.body, MatMul | Convolution):
            assert gradients[0] is not None
            self.reverse_product(op, gradients[0])
        else:
            reverse_other(self, op, gradients)

    def reverse_product(self, op: Op, gradient: int) -> None:
        if len(op.inputs) < 2:
            raise BadInput(f"op {op.name!r}: a product needs its two operands as inputs")
        left, right = op.inputs[:2]
        for of, first in ((left, True), (right, False)):
            if not self.needed(of):
                continue
            other = right if first else left
            phase = self.phase_of(of)
            is_transposed = isinstance(op.body, MatMul) and self._is_transposed(of)
            body, slope, gradient_first = _reversed(op, first=first, is_transposed=is_transposed)
            reads = (gradient, other) if gradient_first else (other, gradient)
            target = self.forward.base(of) if is_transposed else of
            piece = self.new(target)
            letters: tuple[Letter, ...] = ()
            if op.letters:
                letter = op.letters[op.inputs.index(other)]
                letters = ("", "") if op.letters[0] == op.letters[1] == "" else ("G", letter) if gradient_first else (letter, "G")
            self._append(op, str(phase), body, slope, reads, (piece,), phase, letters)
            self.reach(target, piece)
        for bias in op.inputs[2:]:
            if self.needed(bias):
                if self.tensors[bias].elements == self.tensors[gradient].elements:
                    self.reach(bias, gradient)
                else:
                    self.reach(bias, self.summed(op, gradient, bias, self.phase_of(bias)))

    def _is_transposed(self, operand: int) -> bool:
        """Whether a parameter is read transposed: its gradient is then computed in the layout of its memory."""
        base = self.forward.base(operand)
        if base == operand or not self.is_parameter(operand):
            return False
        stored = tuple(size for size in self.tensors[base].shape if size != 1)
        read_shape = tuple(size for size in self.tensors[operand].shape if size != 1)
        return len(self.tensors[operand].shape) == 2 and stored == read_shape[::-1]

    def update(self, optimizer: str) -> None:
        rule = OPTIMIZERS[optimizer]
        owners: dict[int, Op] = {}
        for op in self.forward.ops:
            for base in map(self.forward.base, op.inputs):
                owners.setdefault(base, op)
        for parameter in sorted(t for t in self.needs if self.is_parameter(t) and t in owners):
            spec, owner = self.tensors[parameter], owners[parameter]
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

    def is_parameter(self, tensor: int) -> bool:
        return self.forward.tensors[self.forward.base(tensor)].role is Role.PARAMETER


def _reversed(op: Op, *, first: bool, is_transposed: bool) -> tuple[Body, tuple[int, ...], bool]:
    """The product of the gradient of a product's first or second operand, its growth, and whether dY is its first operand."""
    if isinstance(op.body, Convolution):
        transposed = op.body.product == "grad_input"  # the forward pass of a transposed convolution
        if first:
            return op.body.as_product("forward" if transposed else "grad_input"), op.slope, True
        return op.body.as_product("grad_weight"), op.slope, not transposed
    assert isinstance(op.body, MatMul)
    # Of M, N, K, count: dA = dY B^T is (M, K, N), dB = A^T dY is (K, N, M); transposed they are B dY^T and dY^T A.
    order = ((2, 0, 1, 3) if is_transposed else (0, 2, 1, 3)) if first else ((1, 2, 0, 3) if is_transposed else (2, 1, 0, 3))
    sizes = (op.body.M, op.body.N, op.body.K, op.body.count)
    slope = tuple(op.slope[i] for i in order) if op.slope else ()
    return MatMul(*(sizes[i] for i in order)), slope, first != is_transposed


def growth(spec: TensorSpec) -> int:
    """Elements that one more sample adds."""
    if not any(spec.slope):
        return 0
    larger = replace(spec, shape=tuple(d + s for d, s in zip(spec.shape, spec.slope, strict=True)))
    return larger.elements - spec.elements
