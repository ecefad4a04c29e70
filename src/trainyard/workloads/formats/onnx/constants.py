"""Constant folding: shapes, and scalars computed from them. A few numbers, never a tensor of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainyard.errors import BadInput
from trainyard.workloads.formats.onnx.graph import DTYPES, KNOWN, Tensor
from trainyard.workloads.formats.onnx.trace import FLOATS, NUMPY, Call, Value, broadcast, constant

Array = Any
POINTWISE = frozenset("Add Sub Mul Div Mod Min Max Pow Equal Less Greater And Or Where".split())


class _TooMany(Exception):
    """The result has more than KNOWN elements: the node is traced by shape instead."""


def constant_result(call: Call) -> list[Value] | None:
    """The result of a node whose inputs are all constants; None if the node has to be traced by shape."""
    if call.node.op == "Constant":
        return [_constant(call)]
    if call.node.op in ("Shape", "Size"):
        return [_shape(call)]
    values = call.present
    rule = RULES.get(call.node.op)
    if rule is None or not values or any(v.numbers is None for v in values):
        return None
    if _size(call, values) > KNOWN:
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(rule(call, *(v.numbers for v in values)))
    except _TooMany:
        return None
    except BadInput:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError, ZeroDivisionError) as error:
        raise BadInput(f"its constants cannot be computed: {error}") from None
    if result.size > KNOWN or result.dtype.kind not in "fiub":
        return None
    dtype = _result_dtype(call, values)
    return [constant(result.astype(NUMPY[dtype]), dtype)]


def _size(call: Call, values: list[Value]) -> int:
    """An upper bound of the numbers that a rule makes, known before it makes them."""
    if call.node.op == "Concat":
        return sum(v.elements for v in values)
    if call.node.op == "Gather":
        return values[0].elements * max(1, values[1].elements) if len(values) > 1 and values[0].elements > 1 else 1
    if call.node.op in POINTWISE:
        return math.prod(broadcast(*(v.shape for v in values)))
    return 0


def _result_dtype(call: Call, values: list[Value]) -> str:
    if call.node.op == "Cast":
        return _cast(call)
    if call.node.op == "ConstantOfShape":
        filled = call.node.attributes.get("value")
        return filled.dtype if isinstance(filled, Tensor) else "fp32"
    if call.node.op in ("Equal", "Less", "Greater", "And", "Or", "Not"):
        return "bool"
    return values[1 if call.node.op == "Where" else 0].dtype


def _cast(call: Call) -> str:
    dtype = DTYPES.get(call.integer("to", 1))
    if dtype is None or dtype not in NUMPY:
        raise BadInput(f"it casts to ONNX type {call.integer('to', 1)}, which is not known")
    return dtype


def _constant(call: Call) -> Value:
    attributes = call.node.attributes
    if isinstance(attributes.get("value"), Tensor):
        return from_tensor(attributes["value"])
    for name, dtype in (("value_int", "int64"), ("value_ints", "int64"), ("value_float", "fp32"), ("value_floats", "fp32")):
        if isinstance(attributes.get(name), int | float | tuple):
            return constant(attributes[name], dtype)
    raise BadInput("a constant of text, or without a value")


def from_tensor(tensor: Tensor) -> Value:
    """A constant; one with too many numbers to keep has a shape only."""
    if tensor.values is None:
        return Value(tensor.shape, tensor.dtype)
    return constant(np.array(tensor.values, NUMPY.get(tensor.dtype, "float64")).reshape(tensor.shape), tensor.dtype)


def _shape(call: Call) -> Value:
    shape = call.input(0).shape
    if call.node.op == "Size":
        return constant(math.prod(shape), "int64")
    return constant(list(shape[slice(call.integer("start", 0), call.node.attributes.get("end"))]), "int64")


def _divide(call: Call, a: Array, b: Array) -> Array:
    if call.input(0).dtype in FLOATS:
        return a / b
    if not np.all(b):
        raise BadInput("a shape is divided by zero")
    return np.trunc(a / b).astype(np.int64)


def _gather(call: Call, a: Array, indices: Array) -> Array:
    return np.take(a, indices.astype(np.int64), axis=call.integer("axis", 0))


def _squeeze(call: Call, a: Array, *axes: Array) -> Array:
    where = call.numbers(1, "axes")
    return np.squeeze(a, where if where else None)


def _unsqueeze(call: Call, a: Array, *axes: Array) -> Array:
    where = call.numbers(1, "axes") or ()
    if len(where) > 16:
        raise BadInput(f"{len(where)} axes")
    return np.expand_dims(a, where)


def _slice(call: Call, a: Array, *numbers: Array) -> Array:
    starts, ends = call.numbers(1, "starts") or (), call.numbers(2, "ends") or ()
    axes = call.numbers(3, "axes") or tuple(range(len(starts)))
    steps = call.numbers(4, "steps") or (1,) * len(starts)
    cuts = [slice(None)] * a.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cuts[axis] = slice(start, None if step < 0 and end < -a.shape[axis] else end, step)
    return a[tuple(cuts)]


def _range(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (x.reshape(-1)[0] for x in (start, limit, delta))
    if step == 0 or (last - first) / step > KNOWN:
        raise BadInput(f"a range from {first} to {last} by {step}")
    return np.arange(first, last, step)


def _filled(call: Call, shape: Array) -> Array:
    sizes = [int(size) for size in shape.reshape(-1)]
    if any(size < 0 for size in sizes):
        raise BadInput(f"a constant of shape {sizes}")
    if math.prod(sizes) > KNOWN:
        raise _TooMany
    filled = call.node.attributes.get("value")
    return np.full(sizes, filled.values[0] if isinstance(filled, Tensor) and filled.values else 0)


def _expanded(call: Call, a: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(a.shape, tuple(int(size) for size in shape))
    if math.prod(target) > KNOWN:
        raise _TooMany
    return np.broadcast_to(a, target)


def _reduced(name: str) -> Callable[..., Array]:
    def rule(call: Call, a: Array, *axes: Array) -> Array:
        where = call.numbers(1, "axes")
        return getattr(np, name)(a, axis=where or None, keepdims=bool(call.integer("keepdims", 1)))

    return rule


def _by_numpy(name: str) -> Callable[..., Array]:
    def rule(call: Call, *arrays: Array) -> Array:
        result = arrays[0] if len(arrays) == 1 and name in ("minimum", "maximum") else None
        if result is None:
            function = getattr(np, name)
            result = function(*arrays[:2]) if len(arrays) > 1 else function(arrays[0])
            for array in arrays[2:]:
                result = function(result, array)
        return result

    return rule


def _power(call: Call, a: Array, b: Array) -> Array:
    return a.astype("float64") ** b


def _concatenated(call: Call, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=call.integer("axis", 0))


def _reshaped(call: Call, a: Array, shape: Array) -> Array:
    return a.reshape([a.shape[i] if size == 0 else int(size) for i, size in enumerate(shape)])


def _where(call: Call, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


# fmt: off
RULES: Mapping[str, Callable[..., Array]] = {
    "Add": _by_numpy("add"), "Sub": _by_numpy("subtract"), "Mul": _by_numpy("multiply"), "Div": _divide, "Mod": _by_numpy("mod"),
    "Min": _by_numpy("minimum"), "Max": _by_numpy("maximum"), "Neg": _by_numpy("negative"), "Abs": _by_numpy("abs"),
    "Floor": _by_numpy("floor"), "Ceil": _by_numpy("ceil"), "Round": _by_numpy("round"), "Sqrt": _by_numpy("sqrt"),
    "Pow": _power, "Equal": _by_numpy("equal"), "Less": _by_numpy("less"), "Greater": _by_numpy("greater"),
    "And": _by_numpy("logical_and"), "Or": _by_numpy("logical_or"), "Not": _by_numpy("logical_not"), "Where": _where,
    "Gather": _gather, "Concat": _concatenated, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Slice": _slice, "Range": _range,
    "ConstantOfShape": _filled, "Expand": _expanded, "Reshape": _reshaped, "ReduceProd": _reduced("prod"), "Exp": _by_numpy("exp"),
    "ReduceSum": _reduced("sum"), "ReduceMax": _reduced("max"), "ReduceMin": _reduced("min"),
    "Identity": lambda call, a: a, "Cast": lambda call, a: a, "Reciprocal": lambda call, a: 1 / a,
    "Transpose": lambda call, a: a.transpose(call.integers("perm") or None),
}
# fmt: on
