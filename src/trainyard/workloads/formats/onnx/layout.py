"""ONNX nodes that change the layout or move elements: views where the strides allow them, else copies."""

from __future__ import annotations

import math

from trainyard.errors import BadInput
from trainyard.ir import Gather, Role
from trainyard.workloads.formats.onnx.trace import Call, Shape, Value, broadcast, constant, contiguous


def reshape(call: Call) -> list[Value]:
    value, requested = call.input(0), call.numbers(1, "shape")
    if requested is None or len(requested) > 16:
        raise BadInput("a reshape without a shape of at most 16 dimensions")
    keep = not call.integer("allowzero", 0)
    sizes = [value.shape[i] if size == 0 and keep and i < len(value.shape) else size for i, size in enumerate(requested)]
    return [call.trace.reshape(value, _completed(value, sizes))]


def _completed(value: Value, sizes: list[int]) -> Shape:
    rest = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes) or (-1 in sizes and (not rest or value.elements % rest)):
        raise BadInput(f"{list(value.shape)} cannot be reshaped to {sizes}")
    return tuple(value.elements // rest if size == -1 else size for size in sizes)


def flatten(call: Call) -> list[Value]:
    value = call.input(0)
    axis = call.integer("axis", 1)
    axis = axis + len(value.shape) if axis < 0 else axis
    if not 0 <= axis <= len(value.shape):
        raise BadInput(f"axis {axis} of {len(value.shape)} dimensions")
    return [call.trace.reshape(value, (math.prod(value.shape[:axis]), math.prod(value.shape[axis:])))]


def squeeze(call: Call) -> list[Value]:
    value, axes = call.input(0), call.numbers(1, "axes")
    rank = len(value.shape)
    gone = {call.axis(a, rank) for a in axes} if axes else {i for i, size in enumerate(value.shape) if size == 1}
    if any(value.shape[i] != 1 for i in gone):
        raise BadInput(f"{list(value.shape)} cannot be squeezed along {sorted(gone)}")
    return [call.trace.reshape(value, tuple(size for i, size in enumerate(value.shape) if i not in gone))]


def unsqueeze(call: Call) -> list[Value]:
    value, axes = call.input(0), call.numbers(1, "axes") or ()
    rank = len(value.shape) + len(axes)
    added = {call.axis(a, rank) for a in axes}
    if len(added) != len(axes):
        raise BadInput(f"axes {list(axes)} name one dimension twice")
    rest = iter(value.shape)
    return [call.trace.reshape(value, tuple(1 if i in added else next(rest) for i in range(rank)))]


def transpose(call: Call) -> list[Value]:
    value = call.input(0)
    order = call.integers("perm") or tuple(reversed(range(len(value.shape))))
    if sorted(order) != list(range(len(value.shape))):
        raise BadInput(f"perm {list(order)} does not order {len(value.shape)} dimensions")
    return [call.trace.permuted(value, order)]


def concat(call: Call) -> list[Value]:
    values = call.present
    if not values:
        raise BadInput("nothing to concatenate")
    axis = call.axis(call.integer("axis", 0), len(values[0].shape))
    other_sizes = {(*v.shape[:axis], *v.shape[axis + 1 :]) for v in values}
    if len(other_sizes) > 1 or any(len(v.shape) <= axis for v in values):
        raise BadInput(f"shapes {', '.join(str(list(v.shape)) for v in values)} do not concatenate along {axis}")
    trace, first = call.trace, values[0]
    shape = (*first.shape[:axis], sum(v.shape[axis] for v in values), *first.shape[axis + 1 :])
    if all(v.tensor is not None and trace.tensors[v.tensor].role is Role.PARAMETER for v in values):
        # Parameters put together without data (gates of a recurrent layer in ONNX's order) are what the model stores.
        return [trace.new(shape, first.dtype, Role.PARAMETER, trace.tensors[values[0].tensor or 0].name)]
    return [trace.copy("cat", values, shape, first.dtype)]


def split(call: Call) -> list[Value]:
    value = call.input(0)
    axis = call.axis(call.integer("axis", 0), len(value.shape))
    sizes = call.numbers(1, "split")
    if sizes is None:
        parts = call.integer("num_outputs", len(call.node.outputs))
        if not 1 <= parts <= len(call.node.outputs):
            raise BadInput(f"{parts} parts for {len(call.node.outputs)} outputs")
        part = -(-value.shape[axis] // parts)
        sizes = tuple(min(part, value.shape[axis] - i * part) for i in range(parts))
    if sum(sizes) != value.shape[axis] or any(size < 0 for size in sizes):
        raise BadInput(f"{value.shape[axis]} along axis {axis} are not split into {list(sizes)}")
    return [call.trace.narrowed(value, axis, size) for size in sizes]


def slice_view(call: Call) -> list[Value]:
    """Slice: a view; a step multiplies the stride."""
    value = call.input(0)
    starts, ends = call.numbers(1, "starts") or (), call.numbers(2, "ends") or ()
    axes = call.numbers(3, "axes") or tuple(range(len(starts)))
    steps = call.numbers(4, "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise BadInput(f"starts {list(starts)}, ends {list(ends)}, axes {list(axes)} and steps {list(steps)} do not fit together")
    shape, strides = list(value.shape), list(value.strides or contiguous(value.shape))
    for start, end, number, step in zip(starts, ends, axes, steps, strict=True):
        axis = call.axis(number, len(shape))
        shape[axis] = len(range(*slice(start, None if step < 0 and end < -shape[axis] else end, step).indices(shape[axis])))
        strides[axis] *= abs(step)
    if tuple(shape) == value.shape:
        return [value]
    return [call.trace.view(value, tuple(shape), tuple(strides))]


def gather(call: Call) -> list[Value]:
    """Rows of a table (an embedding); one constant index along an axis is a view."""
    table, indices = call.input(0), call.input(1)
    axis = call.axis(call.integer("axis", 0), len(table.shape))
    if indices.numbers is not None and indices.shape == ():
        return [call.trace.dropped(table, axis)]
    out = call.trace.new((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype)
    if out.elements:
        extent = max(1, table.shape[axis])
        body = Gather(max(1, indices.elements), max(1, table.elements // extent), extent)
        call.trace.emit(body, "embedding" if axis == 0 else "index_select", (table, indices), (out,))
    return [out]


def gather_elements(call: Call) -> list[Value]:
    table, indices = call.input(0), call.input(1)
    out = call.trace.new(indices.shape, table.dtype)
    if out.elements:
        call.trace.emit(Gather(indices.elements, 1, max(1, table.elements)), "gather", (table, indices), (out,))
    return [out]


def gather_nd(call: Call) -> list[Value]:
    table, indices = call.input(0), call.input(1)
    depth, batch = (indices.shape[-1] if indices.shape else 0), call.integer("batch_dims", 0)
    if not 1 <= depth <= len(table.shape) - batch or batch < 0:
        raise BadInput(f"indices {list(indices.shape)} of a table {list(table.shape)}")
    rest = table.shape[batch + depth :]
    out = call.trace.new((*indices.shape[:-1], *rest), table.dtype)
    if out.elements:
        width = max(1, math.prod(rest))
        call.trace.emit(Gather(out.elements // width, width, max(1, table.elements // width)), "index", (table, indices), (out,))
    return [out]


def scatter(call: Call) -> list[Value]:
    table, indices, rows = call.input(0), call.input(1), call.input(2)
    out = call.trace.new(table.shape, table.dtype)
    if out.elements:
        call.trace.emit(Gather(max(1, rows.elements), 1, out.elements, scatter=True), "scatter", (table, indices, rows), (out,))
    return [out]


def expand(call: Call) -> list[Value]:
    value = call.input(0)
    requested = call.numbers(1, "shape")
    if requested is None or any(size < 1 for size in requested):
        raise BadInput(f"an expansion to {requested}")
    shape = broadcast(value.shape, requested)
    if shape == value.shape:
        return [value]
    if value.numbers is not None and value.elements == 1:
        return [Value(shape, value.dtype, None, (0,) * len(shape))]
    strides = value.strides or contiguous(value.shape)
    ahead = len(shape) - len(value.shape)
    steps = (0,) * ahead + tuple(
        0 if old != new else step for old, new, step in zip(value.shape, shape[ahead:], strides, strict=True)
    )
    return [call.trace.view(value, shape, steps)]


def tile(call: Call) -> list[Value]:
    value, repeats = call.input(0), call.numbers(1, "repeats") or ()
    if len(repeats) != len(value.shape) or any(r < 0 for r in repeats):
        raise BadInput(f"{list(value.shape)} repeated {list(repeats)} times")
    shape = [size * times for size, times in zip(value.shape, repeats, strict=True)]
    return [call.trace.copy("repeat", (value,), shape, value.dtype)]


def pad(call: Call) -> list[Value]:
    value, pads = call.input(0), call.numbers(1, "pads") or ()
    rank = len(value.shape)
    axes = call.constants(chosen, "axes") if (chosen := call.optional_input(3)) is not None else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise BadInput(f"{len(pads)} pads for {len(axes)} axes")
    shape = list(value.shape)
    for position, number in enumerate(axes):
        shape[call.axis(number, rank)] += pads[position] + pads[position + len(axes)]
    if tuple(shape) == value.shape:
        return [value]
    return [call.trace.copy("constant_pad_nd", (value,), shape, value.dtype)]


def pixel_shuffle(call: Call) -> list[Value]:
    """DepthToSpace and SpaceToDepth: every element moves once."""
    value, block = call.input(0), call.integer("blocksize", 1)
    if len(value.shape) != 4 or block < 1:
        raise BadInput(f"blocks of {block} in {list(value.shape)}")
    count, channels, high, wide = value.shape
    if call.node.op == "DepthToSpace":
        name, shape, fits = "pixel_shuffle", (count, channels // block**2, high * block, wide * block), not channels % block**2
    else:
        name, fits = "pixel_unshuffle", not (high % block or wide % block)
        shape = (count, channels * block**2, high // block, wide // block)
    if not fits:
        raise BadInput(f"blocks of {block} do not divide {list(value.shape)}")
    return [call.trace.copy(name, (value,), shape, value.dtype)]


def constant_of_shape(call: Call) -> list[Value]:
    """ConstantOfShape with too many elements for a constant: a fill."""
    return [call.trace.copy("fill", (), call.constants(call.input(0), "its shape"), "fp32", "zeros")]


def identity(call: Call) -> list[Value]:
    return [call.input(0)]


def arange(call: Call) -> list[Value]:
    """Range with too many elements for a constant."""
    first, last, step = (call.constants(call.input(i), "its bounds")[0] for i in range(3))
    if not step:
        raise BadInput("a range in steps of 0")
    size = max(0, -(-(last - first) // step))
    if size <= 1:
        return [constant([first][:size], "int64")]
    return [call.trace.copy("fill", (), (size,), "int64", "arange")]
