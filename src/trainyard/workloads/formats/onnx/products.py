"""ONNX nodes that multiply: convolutions and matrix products, einsum and attention as the products they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Convolution
from trainyard.workloads.formats.onnx.trace import Call, Shape, Trace, Value, broadcast, contiguous


def window(call: Call, size: Shape, kernel: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """Strides, dilations and the padding before and after each dimension, `auto_pad` worked out."""
    rank = len(size)
    stride, dilation = call.integers("strides") or (1,) * rank, call.integers("dilations") or (1,) * rank
    pads = call.integers("pads") or (0,) * 2 * rank
    if not len(kernel) == len(stride) == len(dilation) == rank or len(pads) != 2 * rank:
        raise BadInput(f"kernel {kernel}, strides {stride}, dilations {dilation} and pads {pads} do not fit {rank} dimensions")
    if any(number < 1 for number in (*kernel, *stride, *dilation)) or any(pad < 0 for pad in pads):
        raise BadInput(f"kernel {kernel}, strides {stride} and dilations {dilation} must be at least 1, pads {pads} at least 0")
    auto = call.string("auto_pad", "NOTSET")
    if auto == "VALID":
        return stride, dilation, (0,) * rank, (0,) * rank
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max(0, (-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent)
            for extent, k, s, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        smaller, larger = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (stride, dilation, smaller, larger) if auto == "SAME_UPPER" else (stride, dilation, larger, smaller)
    return stride, dilation, pads[:rank], pads[rank:]


def convolution(call: Call) -> list[Value]:
    x, weight, bias = call.input(0), call.input(1), call.optional_input(2)
    rank = len(x.shape) - 2
    if rank < 1 or len(weight.shape) != rank + 2:
        raise BadInput(f"input {list(x.shape)} and weight {list(weight.shape)}")
    groups = call.integer("group", 1)
    kernel = weight.shape[2:]
    if groups < 1 or x.shape[1] != weight.shape[1] * groups or (call.integers("kernel_shape") or kernel) != kernel:
        raise BadInput(f"{x.shape[1]} channels meet a weight {list(weight.shape)} in {groups} groups")
    stride, dilation, before, after = window(call, x.shape[2:], kernel)
    if before != after:  # PyTorch's convolutions pad both sides alike: the rest is padded first
        extra = tuple(abs(b - a) for b, a in zip(before, after, strict=True))
        padded = (*x.shape[:2], *(s + e for s, e in zip(x.shape[2:], extra, strict=True)))
        x = call.trace.copy("constant_pad_nd", (x,), padded, x.dtype)
    body = Convolution(
        batch=x.shape[0], in_channels=x.shape[1], out_channels=weight.shape[0], size=x.shape[2:], kernel=kernel, stride=stride,
        padding=tuple(map(min, before, after)), dilation=dilation, groups=groups,
    )  # fmt: skip
    out = call.trace.new((x.shape[0], weight.shape[0], *body.out_size), x.dtype)
    call.trace.emit(body, "convolution", (x, weight, bias), (out,), call.trace.letters(x, weight))
    return [out]


def transposed_convolution(call: Call) -> list[Value]:
    """The grad_input of the convolution that it transposes."""
    x, weight, bias = call.input(0), call.input(1), call.optional_input(2)
    rank = len(x.shape) - 2
    if rank < 1 or len(weight.shape) != rank + 2 or x.shape[1] != weight.shape[0]:
        raise BadInput(f"input {list(x.shape)} and weight {list(weight.shape)}")
    if call.string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in call.node.attributes:
        raise NotModelled("a transposed convolution by output_shape or auto_pad: write its pads and output_padding")
    groups, kernel = call.integer("group", 1), weight.shape[2:]
    stride, dilation, before, after = window(call, x.shape[2:], kernel)
    extra = call.integers("output_padding") or (0,) * rank
    if len(extra) != rank or any(e < 0 for e in extra):
        raise BadInput(f"output_padding {extra} of {rank} dimensions")
    padding = tuple(map(min, before, after))
    full = tuple(
        (extent - 1) * s + d * (k - 1) + 1 - 2 * p
        for extent, s, d, k, p in zip(x.shape[2:], stride, dilation, kernel, padding, strict=True)
    )
    size = tuple(f + (e if e < s else 0) for f, e, s in zip(full, extra, stride, strict=True))
    channels = weight.shape[1] * groups
    body = Convolution(
        batch=x.shape[0], in_channels=channels, out_channels=x.shape[1], size=size, kernel=kernel, stride=stride, padding=padding,
        dilation=dilation, groups=groups, product="grad_input",
    )  # fmt: skip
    if body.out_size != x.shape[2:]:
        raise BadInput(f"a kernel {kernel} with strides {stride} does not reach {x.shape[2:]} from {size}")
    out = call.trace.new((x.shape[0], channels, *(f + e for f, e in zip(full, extra, strict=True))), x.dtype)
    call.trace.emit(body, "convolution", (x, weight, bias), (out,), call.trace.letters(x, weight))
    for axis, (b, a) in enumerate(zip(before, after, strict=True), start=2):
        if a != b:
            out = call.trace.narrowed(out, axis, out.shape[axis] - abs(a - b))
    return [out]


def gemm(call: Call) -> list[Value]:
    a, b, c = call.input(0), call.input(1), call.optional_input(2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise BadInput(f"Gemm of {list(a.shape)} and {list(b.shape)}: two matrices are needed")
    if call.integer("transA", 0):
        a = call.trace.permuted(a, (1, 0))
    if call.integer("transB", 0):
        b = call.trace.permuted(b, (1, 0))
    if c is not None and broadcast(c.shape, (a.shape[0], b.shape[1])) != (a.shape[0], b.shape[1]):
        raise BadInput(f"a bias {list(c.shape)} on {[a.shape[0], b.shape[1]]}")
    return [call.trace.product(a, b, c)]


def matmul(call: Call) -> list[Value]:
    return [numpy_matmul(call.trace, call.input(0), call.input(1), call.optional_input(2))]


def numpy_matmul(trace: Trace, a: Value, b: Value, bias: Value | None = None) -> Value:
    """NumPy's matmul: a matrix on the right is one product over all rows, batches broadcast, vectors become matrices."""
    if not a.shape or not b.shape:
        raise BadInput("a product with a scalar")
    vectors = (len(a.shape) == 1, len(b.shape) == 1)
    if vectors[0]:
        a = trace.reshape(a, (1, *a.shape))
    if vectors[1]:
        b = trace.reshape(b, (*b.shape, 1))
    if a.shape[-1] != b.shape[-2]:
        raise BadInput(f"{list(a.shape)} and {list(b.shape)} do not multiply")
    if len(b.shape) == 2:
        rows = trace.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        out, shape = trace.product(rows, b, bias), (*a.shape[:-1], b.shape[-1])
    else:
        batch = broadcast(a.shape[:-2], b.shape[:-2])
        count = math.prod(batch)
        left = trace.reshape(_expanded(trace, a, batch), (count, *a.shape[-2:]))
        right = trace.reshape(_expanded(trace, b, batch), (count, *b.shape[-2:]))
        out, shape = trace.product(left, right, bias), (*batch, a.shape[-2], b.shape[-1])
    shape = (*shape[:-2], *(() if vectors[0] else shape[-2:-1]), *(() if vectors[1] else shape[-1:]))
    return trace.reshape(out, shape)


def _expanded(trace: Trace, value: Value, batch: Shape) -> Value:
    value_batch = value.shape[:-2]
    if value_batch == batch:
        return value
    strides = value.strides or contiguous(value.shape)
    ahead = len(batch) - len(value_batch)
    steps = (0,) * ahead + tuple(0 if o != b else s for o, b, s in zip(value_batch, batch[ahead:], strides, strict=False))
    return trace.view(value, (*batch, *value.shape[-2:]), (*steps, *strides[-2:]))


def einsum(call: Call) -> list[Value]:
    """Two operands: shared letters in the result are batch dimensions, other shared ones are summed; one operand: a transpose."""
    equation = call.string("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    values = call.present
    if not arrow or len(terms) != len(values) or "." in equation or any(len(set(term)) != len(term) for term in (*terms, result)):
        raise NotModelled(f"einsum {equation!r}: write an explicit result, no ellipsis, no letter twice in a term")
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        if len(term) != len(value.shape) or any(sizes.setdefault(x, n) != n for x, n in zip(term, value.shape, strict=True)):
            raise BadInput(f"einsum {equation!r} of {', '.join(str(list(v.shape)) for v in values)}")
    if len(values) == 1 and sorted(terms[0]) == sorted(result):
        return [call.trace.permuted(values[0], [terms[0].index(letter) for letter in result])]
    if len(values) != 2:
        raise NotModelled(f"einsum {equation!r}: one transpose or a product of two is modelled")
    a, b = terms
    batch = [x for x in a if x in b and x in result]
    summed = [x for x in a if x in b and x not in result]
    only_a, only_b = [x for x in a if x not in b], [x for x in b if x not in a]
    if any(x not in result for x in (*only_a, *only_b)) or not set(result) <= set(sizes):
        raise NotModelled(f"einsum {equation!r} sums over a letter of one operand alone: sum it first")

    def packed(term: str, value: Value, *parts: Sequence[str]) -> Value:
        ordered = call.trace.permuted(value, [term.index(x) for part in parts for x in part])
        return call.trace.reshape(ordered, tuple(math.prod(sizes[x] for x in part) for part in parts))

    left_parts, right_parts = ([only_a, summed], [summed, only_b])
    if batch:
        left_parts, right_parts = [batch, *left_parts], [batch, *right_parts]
    out = call.trace.product(packed(a, values[0], *left_parts), packed(b, values[1], *right_parts))
    order = [*batch, *only_a, *only_b]
    unfolded = call.trace.reshape(out, tuple(sizes[x] for x in order))
    return [call.trace.permuted(unfolded, [order.index(x) for x in result])]


def attention(call: Call) -> list[Value]:
    """Attention of opset 23 as its parts: scores, scale, mask, softmax, mix. Fewer heads of K and V are repeated."""
    trace = call.trace
    query, key, value = (call.input(i) for i in range(3))
    mask = call.optional_input(3)
    if call.optional_input(4) is not None or call.optional_input(5) is not None:
        raise NotModelled("attention with a cache of past keys and values is inference: export the training graph")
    flat = len(query.shape) == 3
    if flat:
        heads, kv_heads = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
        query, key, value = (_split_heads(trace, v, h) for v, h in ((query, heads), (key, kv_heads), (value, kv_heads)))
    if any(len(v.shape) != 4 for v in (query, key, value)) or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise BadInput(f"attention of {list(query.shape)}, {list(key.shape)} and {list(value.shape)}")
    if query.shape[1] != key.shape[1]:
        key, value = (_repeated(trace, v, query.shape[1] // v.shape[1]) for v in (key, value))
    scores = trace.pointwise("mul", (numpy_matmul(trace, query, trace.permuted(key, (0, 1, 3, 2))),))
    if mask is not None:
        scores = trace.pointwise("where" if mask.dtype == "bool" else "add", (scores, mask))
    shares = trace.reduce("softmax", scores, scores.shape, scores.dtype, 3, "_softmax")
    mixed = numpy_matmul(trace, shares, value)
    if not flat:
        return [mixed]
    back = trace.permuted(mixed, (0, 2, 1, 3))
    return [trace.reshape(back, (*back.shape[:2], back.shape[2] * back.shape[3]))]


def _split_heads(trace: Trace, value: Value, heads: int) -> Value:
    batch, length, width = value.shape if len(value.shape) == 3 else (0, 0, 1)
    if heads < 1 or width % heads:
        raise BadInput(f"{heads} heads of {list(value.shape)}")
    return trace.permuted(trace.reshape(value, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _repeated(trace: Trace, value: Value, times: int) -> Value:
    return trace.copy("repeat_interleave", (value,), (value.shape[0], value.shape[1] * times, *value.shape[2:]), value.dtype)
