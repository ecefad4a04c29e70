"""The gradients of ops that are not products, as PyTorch computes them: which op, over which tensors, with which saved tensors.

A sum passes its gradient on. ReLU, sigmoid, tanh and softmax read their saved result, other functions their saved input. One kernel
computes all three gradients of a normalisation. The gradient of a broadcast operand is summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.ir import Copy, ElementWise, Gather, Op, Phase, Reduction

if TYPE_CHECKING:
    from trainyard.workloads.formats.backward import Derivation

# fmt: off
BY_RESULT: Mapping[str, tuple[str, int]] = {  # function: its gradient, operations for each element
    "relu": ("threshold_backward", 1), "sigmoid": ("sigmoid_backward", 3), "tanh": ("tanh_backward", 3), "exp": ("mul", 1),
    "sqrt": ("div", 2), "reciprocal": ("mul", 3),
}
BY_INPUT: Mapping[str, tuple[str, int]] = {
    "gelu": ("gelu_backward", 14), "silu": ("silu_backward", 10), "mish": ("mish_backward", 14), "elu": ("elu_backward", 4),
    "softplus": ("softplus_backward", 6), "hardswish": ("hardswish_backward", 4), "clamp": ("hardtanh_backward", 2),
    "log": ("div", 1), "erf": ("erf_backward", 7), "pow": ("pow_backward", 6), "abs": ("mul", 2), "sin": ("mul", 5),
    "cos": ("mul", 5),
}
BY_GRADIENT_ALONE = frozenset(("neg",))
WITHOUT_GRADIENT = frozenset("""
    floor ceil round sign eq lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf argmax argmin bernoulli
""".split())
# Whether the backward kernel of a normalisation is given the saved statistics before the weights.
NORMS: Mapping[str, bool] = {"batch_norm": False, "layer_norm": True, "group_norm": True, "fused_rms_norm": True}
# fmt: on


def reverse_other(work: Derivation, op: Op, gradients: Sequence[int | None]) -> None:
    """Emits the ops that compute the gradients of `op`'s inputs from those of its results."""
    gradient = next((g for g in gradients if g is not None), None)
    wanted = [t for t in dict.fromkeys(op.inputs) if work.needed(t)]
    if gradient is None or not wanted:
        return
    match op.body:
        case ElementWise():
            _pointwise(work, op, op.body, gradient, wanted)
        case Reduction():
            _reduction(work, op, op.body, gradient, wanted)
        case Gather():
            _gather(work, op, op.body, gradient, wanted)
        case Copy():
            _copy(work, op, op.body, gradient, wanted)


def _piece(work: Derivation, op: Op, function: str, operations: int, reads: Sequence[int], of: int, gradient: int) -> None:
    """A point-wise op over the gradient, summed where the operand was broadcast."""
    out = work.new(of) if work.tensors[of].elements == work.tensors[gradient].elements else work.new(gradient)
    phase = work.phase_of(of)
    work.emit(op, str(phase), lambda e: ElementWise(function, e(out), operations), reads, (out,), phase)
    work.reach(of, out if work.tensors[out].elements == work.tensors[of].elements else work.summed(op, out, of, phase))


def _pass_on(work: Derivation, op: Op, gradient: int, of: int) -> None:
    same = work.tensors[of].elements == work.tensors[gradient].elements
    work.reach(of, gradient if same else work.summed(op, gradient, of, work.phase_of(of)))


def _pointwise(work: Derivation, op: Op, body: ElementWise, gradient: int, wanted: Sequence[int]) -> None:
    function = body.function
    if function in WITHOUT_GRADIENT:
        return
    for of in wanted:
        others = tuple(t for t in op.inputs if t != of)
        twice = op.inputs.count(of) > 1  # x * x
        if function == "add" or (function == "sub" and of == op.inputs[0]):
            for _ in range(op.inputs.count(of)):
                _pass_on(work, op, gradient, of)
        elif function == "sub":
            _piece(work, op, "neg", 1, (gradient,), of, gradient)
        elif function == "mul":
            _piece(work, op, "mul", 2 if twice else 1, (gradient, *((of,) if twice else others)), of, gradient)
        elif function == "div" and of == op.inputs[0]:
            _piece(work, op, "div", 1, (gradient, *others), of, gradient)
        elif function == "div":
            _piece(work, op, "div_backward", 4, (gradient, *op.inputs), of, gradient)  # -g * (a / b) / b
        elif function == "where":
            _piece(work, op, "where", 1, (gradient, *op.inputs[:1]), of, gradient)
        elif function in BY_RESULT:
            _piece(work, op, *BY_RESULT[function], (gradient, op.outputs[0]), of, gradient)
        elif function in BY_GRADIENT_ALONE:
            _piece(work, op, function, body.operations, (gradient,), of, gradient)
        else:
            name, operations = BY_INPUT.get(function, (f"{function}_backward", body.operations + 1))
            if work.tensors[of].elements > work.tensors[gradient].elements or "upsample" in function:
                _resized(work, op, name, operations, gradient, of)
            else:
                _piece(work, op, name, operations, (gradient, *op.inputs), of, gradient)


def _resized(work: Derivation, op: Op, name: str, operations: int, gradient: int, of: int) -> None:
    out, phase = work.new(of), work.phase_of(of)
    work.emit(op, str(phase), lambda e: ElementWise(name, e(out), operations), (gradient,), (out,), phase)
    work.reach(of, out)


def _reduction(work: Derivation, op: Op, body: Reduction, gradient: int, wanted: Sequence[int]) -> None:
    function, x = body.function, op.inputs[0]
    if function in WITHOUT_GRADIENT:
        return
    if function in NORMS:
        _normalisation(work, op, function, gradient, wanted)
        return
    if x not in wanted:
        return
    if function in ("mean", "sum"):
        spread = work.new(x, view_of=gradient)
        if function == "sum":
            work.reach(x, spread)
        else:
            _piece(work, op, "div", 1, (spread,), x, spread)
        return
    reads: tuple[int, ...] = (gradient, x)
    name, passes = f"{function}_backward", body.passes
    if function in ("softmax", "log_softmax"):
        name, passes, reads = f"{function}_backward_data", 2, (gradient, op.outputs[0])
    elif function == "nll_loss_forward":
        name, reads = "nll_loss_backward", (gradient, *op.inputs, *op.outputs[1:])
    elif function.startswith("max_pool"):
        name, reads = f"{function}_with_indices_backward", (gradient, x, *op.outputs[1:])
    elif function == "mse_loss":
        _piece(work, op, "mse_loss_backward", 3, (gradient, *op.inputs), x, work.new(x, view_of=gradient))
        return
    elif not function.startswith(("avg_pool", "adaptive")):
        reads = (gradient, *op.inputs, *op.outputs)
    out, phase = work.new(x), work.phase_of(x)
    work.emit(op, str(phase), lambda e: Reduction(name, e(out), e(out), passes), reads, (out,), phase)
    work.reach(x, out)


def _normalisation(work: Derivation, op: Op, function: str, gradient: int, wanted: Sequence[int]) -> None:
    """One kernel for the gradients of x, weight and bias."""
    x, *rest = op.inputs
    saved = op.outputs[1:]
    reads = (gradient, x, *saved, *rest) if NORMS[function] else (gradient, x, rest[0], *rest[2:], *saved)
    outs = [work.new(t) for t in wanted]
    phase = Phase.GRAD_INPUT if x in wanted else Phase.GRAD_WEIGHT
    work.emit(op, str(phase), lambda e: Reduction(f"{function}_backward", e(x), e(x), 3), reads, outs, phase)
    for of, out in zip(wanted, outs, strict=True):
        work.reach(of, out)


def _gather(work: Derivation, op: Op, body: Gather, gradient: int, wanted: Sequence[int]) -> None:
    """A gather becomes a scatter and a scatter a gather; the table of a scatter gets the gradient unchanged."""
    for of in wanted:
        rest = tuple(t for t in op.inputs if not work.needed(t))
        if body.scatter and of == op.inputs[0]:
            work.reach(of, gradient)
            continue
        out, phase = work.new(of), work.phase_of(of)
        work._append(op, str(phase), replace(body, scatter=not body.scatter), op.slope, (gradient, *rest), (out,), phase)
        work.reach(of, out)


def _copy(work: Derivation, op: Op, body: Copy, gradient: int, wanted: Sequence[int]) -> None:
    for of in wanted:
        if body.function in ("cat", "stack"):
            for _ in range(op.inputs.count(of)):
                work.reach(of, work.new(of, view_of=gradient))
        elif body.function.startswith("repeat"):
            work.reach(of, work.summed(op, gradient, of, work.phase_of(of)))
        elif body.function.startswith("upsample"):
            _resized(work, op, f"{body.function}_backward", 1, gradient, of)
        else:
            same_name = ("clone", "cast", "constant_pad_nd")
            name = body.function if body.function in same_name else f"{body.function}_backward"
            out, phase = work.new(of), work.phase_of(of)
            work.emit(op, str(phase), lambda e, out=out, name=name: Copy(name, e(out)), (gradient,), (out,), phase)  # type: ignore[misc]
            work.reach(of, out)
