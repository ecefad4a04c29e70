"""ONNX nodes that read their input more than once or shrink it: pooling, normalisation, softmax, sums, resizing, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainyard.errors import BadInput, NotModelled
from trainyard.ir import ElementWise, Reduction
from trainyard.workloads.formats.onnx.products import window
from trainyard.workloads.formats.onnx.trace import Call, Shape, Value

Rule = Callable[[Call], list[Value]]
INTERPOLATION = {
    ("linear", 1): ("upsample_linear1d", 3),
    ("linear", 3): ("upsample_trilinear3d", 15),
    ("cubic", 2): ("upsample_bicubic2d", 31),
}
"""By mode and spatial dimensions: the op and its operations for each result; bilinear is the common one."""


def pool(call: Call) -> list[Value]:
    """Each result reads its whole window; max pooling also writes the index of the maximum."""
    x, kernel = call.input(0), call.integers("kernel_shape")
    size = x.shape[2:]
    stride, dilation, before, after = window(call, size, kernel)
    up = bool(call.integer("ceil_mode", 0))
    out_size = []
    for extent, k, s, d, b, a in zip(size, kernel, stride, dilation, before, after, strict=True):
        room = extent + b + a - d * (k - 1) - 1
        steps = -(-room // s) if up else room // s
        out_size.append(steps + 1 - (up and steps * s >= extent + b))  # a window that begins in the padding behind is left out
    if not size or min(out_size, default=0) < 1:
        raise BadInput(f"a window {kernel} does not fit {list(x.shape)}")
    largest = call.node.op == "MaxPool"
    trace, out = call.trace, call.trace.new((*x.shape[:2], *out_size), x.dtype)
    results = [out, trace.new(out.shape, "int64")] if largest else [out]
    name = f"{'max' if largest else 'avg'}_pool{3 if len(size) == 3 else 2}d"
    if out.elements:
        body = Reduction(name, out.elements * math.prod(kernel), out.elements)
        trace.emit(body, f"{name}_with_indices" if largest else name, (x,), results)
    return results


def global_pool(call: Call) -> list[Value]:
    x = call.input(0)
    if len(x.shape) < 3:
        raise BadInput(f"a pool over all of {list(x.shape)}")
    out = call.trace.new((*x.shape[:2], *(1,) * (len(x.shape) - 2)), x.dtype)
    function = "mean" if call.node.op == "GlobalAveragePool" else "adaptive_max_pool2d"
    call.trace.emit(Reduction(function, x.elements, out.elements), function, (x,), (out,))
    return [out]


def _normalised(call: Call, function: str, reads: list[Value | None], statistics: list[Shape]) -> list[Value]:
    x = call.input(0)
    if not x.elements:
        raise BadInput(f"a normalisation of {list(x.shape)}")
    out = call.trace.new(x.shape, x.dtype)
    saved = [call.trace.new(shape, "fp32") for shape in statistics] if call.trace.training else []
    call.trace.emit(Reduction(function, x.elements, x.elements, 2), f"native_{function}", reads, (out, *saved))
    return [out]


def batch_norm(call: Call) -> list[Value]:
    x = call.input(0)
    reads: list[Value | None] = [call.input(i) for i in range(5)]
    if len(x.shape) < 2 or any(v is None or v.shape != x.shape[1:2] for v in reads[1:]):
        raise BadInput(f"statistics of {list(x.shape)} must have {list(x.shape[1:2])} numbers")
    return [*_normalised(call, "batch_norm", reads, [x.shape[1:2]] * 2), *call.inputs[3:5]]  # type: ignore[list-item]  # given, above


def layer_norm(call: Call) -> list[Value]:
    x = call.input(0)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    scale = call.input(1)
    if math.prod(scale.shape) not in (1, math.prod(x.shape[axis:])):
        raise BadInput(f"a scale {list(scale.shape)} for {list(x.shape[axis:])}")
    rows = (*x.shape[:axis], *(1,) * (len(x.shape) - axis))
    return _normalised(call, "layer_norm", [x, scale, call.optional_input(2)], [rows, rows])


def rms_norm(call: Call) -> list[Value]:
    x = call.input(0)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    return _normalised(call, "fused_rms_norm", [x, call.input(1)], [(*x.shape[:axis], *(1,) * (len(x.shape) - axis))])


def group_norm(call: Call) -> list[Value]:
    """Instance normalisation is one group for each channel."""
    x = call.input(0)
    if len(x.shape) < 3:
        raise BadInput(f"groups of {list(x.shape)}")
    groups = call.integer("num_groups", 1) if call.node.op == "GroupNormalization" else x.shape[1]
    if groups < 1 or x.shape[1] % groups:
        raise BadInput(f"{groups} groups of {x.shape[1]} channels")
    return _normalised(call, "group_norm", [x, call.input(1), call.input(2)], [(x.shape[0], groups)] * 2)


def softmax(call: Call) -> list[Value]:
    x = call.input(0)
    call.axis(call.integer("axis", -1), len(x.shape))
    function = "softmax" if call.node.op == "Softmax" else "log_softmax"
    return [call.trace.reduce(function, x, x.shape, x.dtype, 3, f"_{function}")]


def reduction(function: str, passes: int = 1) -> Rule:
    def rule(call: Call) -> list[Value]:
        x, axes = call.input(0), call.numbers(1, "axes")
        if not axes and call.integer("noop_with_empty_axes", 0):
            return [x]
        rank = len(x.shape)
        gone = {call.axis(a, rank) for a in axes} if axes else set(range(rank))
        keep = call.integer("keepdims", 1)
        if call.node.op == "ReduceSumSquare":
            x = call.trace.pointwise("mul", (x, x))
        shape = [1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone]
        return [call.trace.reduce(function, x, shape, x.dtype, passes)]

    return rule


def arg_extreme(function: str) -> Rule:
    """ArgMax and ArgMin: indices along one axis."""

    def rule(call: Call) -> list[Value]:
        x = call.input(0)
        axis, keep = call.axis(call.integer("axis", 0), len(x.shape)), call.integer("keepdims", 1)
        shape = [1 if i == axis else n for i, n in enumerate(x.shape) if keep or i != axis]
        return [call.trace.reduce(function, x, shape, "int64")]

    return rule


def topk(call: Call) -> list[Value]:
    x, axis = call.input(0), call.axis(call.integer("axis", -1), len(call.input(0).shape))
    k = call.numbers(1, "k")
    count = k[0] if k else 0
    if not x.shape or not 1 <= count <= x.shape[axis]:
        raise BadInput(f"the {count} largest of {list(x.shape)}")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    results = [call.trace.new(shape, x.dtype), call.trace.new(shape, "int64")]
    if x.elements:
        call.trace.emit(Reduction("topk", x.elements, results[0].elements, 2), "topk", (x,), results)
    return results


def cumsum(call: Call) -> list[Value]:
    x = call.input(0)
    return [call.trace.reduce("cumsum", x, x.shape, x.dtype)]


def dropout(call: Call) -> list[Value]:
    """Random bits, their scale, the product: in training alone."""
    x, trace = call.input(0), call.trace
    if not trace.training or not x.elements or call.node.attributes.get("ratio") == 0.0:
        return [x, Value(x.shape, "bool")]
    ratio = call.optional_input(1)
    if ratio is not None and ratio.scalar and not float(ratio.numbers.reshape(-1)[0]):  # type: ignore[union-attr]  # scalar is known
        return [x, Value(x.shape, "bool")]
    mask = trace.new(x.shape, x.dtype)
    trace.emit(ElementWise("bernoulli", x.elements, 4), "bernoulli_", (), (mask,))
    scaled = Value(x.shape, x.dtype, trace.tensor(x.shape, x.dtype, view_of=mask.tensor), mask.strides)
    trace.emit(ElementWise("div", x.elements), "div_", (mask,), (scaled,))
    return [trace.pointwise("mul", (x, scaled)), scaled]


def resize(call: Call) -> list[Value]:
    x = call.input(0)
    at = 1 if call.node.op == "Upsample" else 2
    scales, sizes = call.optional_input(at), call.optional_input(3)
    if sizes is not None and sizes.numbers is not None:
        shape = call.constants(sizes, "sizes")
    elif scales is not None and scales.numbers is not None and scales.elements == len(x.shape):
        shape = tuple(math.floor(n * float(s)) for n, s in zip(x.shape, scales.numbers.reshape(-1), strict=True))
    else:
        raise NotModelled("a resize whose sizes or scales depend on data")
    if len(shape) != len(x.shape) or call.node.attributes.get("axes") is not None or min(shape, default=0) < 1:
        raise NotModelled(f"a resize of {list(x.shape)} to {list(shape)}: give one size of at least 1 for each dimension")
    rank = len(shape) - 2
    mode = call.string("mode", "nearest")
    if mode == "nearest":
        return [call.trace.copy(f"upsample_nearest{rank}d", (x,), shape, x.dtype)]
    function, operations = INTERPOLATION.get((mode, rank), ("upsample_bilinear2d", 7))
    out = call.trace.new(shape, x.dtype)
    call.trace.emit(ElementWise(function, out.elements, operations), function, (x,), (out,))
    return [out]
