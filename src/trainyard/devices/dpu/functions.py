"""Operations of ops that are no products: instructions in software, or MACs of lanes."""

from __future__ import annotations

from trainyard.errors import NotModelled
from trainyard.hardware.dpu.instructions import Arithmetic
from trainyard.ir import Body, Collective, Convolution, Copy, ElementWise, Gather, MatMul, Reduction, Update

# fmt: off
SELECTS = frozenset({
    "relu", "threshold_backward", "leaky_relu", "leaky_relu_backward", "eq", "ge", "gt", "lt", "le", "ne", "masked_fill", "maximum",
    "minimum", "neg", "abs", "clamp", "where", "tril", "triu", "floor", "upsample_nearest2d_backward", "bernoulli",
    "amax", "amin", "argmax", "max", "min", "max_pool2d", "max_pool2d_with_indices_backward", "topk", "nll_loss_forward",
    "nll_loss_backward",
})
SUMS = frozenset({
    "add", "sub", "rsub", "sum", "mean", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "bag",
    "mse_loss_backward", "smooth_l1_loss_backward",
})
MULTIPLICATIONS = frozenset({"mul", "prod"})
DIVISIONS = frozenset({"div", "floor_divide", "reciprocal"})
SERIES = frozenset({
    "sigmoid", "tanh", "exp", "exp2", "log", "log2", "gelu", "gelu_backward", "silu", "silu_backward", "glu", "glu_backward",
    "rsqrt", "sqrt", "pow", "atan", "erf", "hardswish", "hardswish_backward", "hardsigmoid", "hardsigmoid_backward",
    "softmax", "log_softmax", "binary_cross_entropy_with_logits",
})
# fmt: on


def operations(body: Body) -> int:
    """Arithmetic operations of an op; a lane does one in a cycle."""
    match body:
        case ElementWise() | Update():
            return body.elements * body.operations
        case Reduction():
            return body.elements * body.passes
        case Gather():
            return body.rows * body.width if body.scatter else 0
        case Copy() | Collective():
            return 0
        case MatMul() | Convolution():
            return body.macs
    raise NotModelled(f"{type(body).__name__} is not modelled on a DPU")


def software(body: Body, unit: Arithmetic) -> int:
    """Instructions of the arithmetic of an op, without loads, stores and loops.

    A function that is not listed takes a multiplication and an addition for each operation, as normalisations and optimizers do.
    """
    match body:
        case Update():
            return operations(body) * unit.multiply_add
        case Gather():
            return operations(body) * unit.add
        case ElementWise() | Reduction():
            return operations(body) * _per_operation(body.function, unit) if body.function not in SERIES else _series(body, unit)
    return 0


def _per_operation(function: str, unit: Arithmetic) -> int:
    if function in SELECTS:
        return unit.compare
    if function in SUMS:
        return unit.add
    if function in MULTIPLICATIONS:
        return unit.multiply + unit.rescale
    return unit.divide if function in DIVISIONS else unit.multiply_add


def _series(body: ElementWise | Reduction, unit: Arithmetic) -> int:
    if isinstance(body, ElementWise):
        return body.elements * unit.function(body.operations)
    return body.elements * (unit.function(4) + (body.passes - 1) * unit.add)  # 4: an exponential, as captured steps count it
