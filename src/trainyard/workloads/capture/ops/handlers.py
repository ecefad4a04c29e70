"""The rule of each torch op: what it computes, which arguments it writes, whether it is recorded at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainyard.ir import Copy, ElementWise, Gather, Phase, Reduction
from trainyard.workloads.capture.ops import tables
from trainyard.workloads.capture.ops.collectives import COLLECTIVES
from trainyard.workloads.capture.ops.detection import DETECTION
from trainyard.workloads.capture.ops.linalg import MATRIX_WORK
from trainyard.workloads.capture.ops.products import PRODUCTS
from trainyard.workloads.capture.ops.registry import USERS, Call, Handler, HandlerResult, OnChip, Piece
from trainyard.workloads.capture.ops.shape_rules import SHAPE_RULES

COMPUTING = frozenset({"aten", "c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "prims", "inductor"})


@dataclass(slots=True, frozen=True)
class Rule:
    """How one torch op is recorded. `handler` is None for an unknown op.

    An op that `may_copy` is a view or a copy, and is taken apart to see which; it gets here inside of tensor subclasses. An op that
    `waits` passes on the result of a collective: its readers depend on the collective. An op that `renews` fills memory that was
    freed since it was last used. An op that `selects` is indexed by masks or positions. The results of an op that `has_own_values`
    may be known though its operands are not (`zeros_like`, `topk`, `isnan`). An op that is `shaped_like` its first operand does not
    read it (`zeros_like`, `new_zeros`, `rand_like`).
    """

    name: str
    overload: str
    handler: Handler | None
    not_recorded: bool = False
    may_copy: bool = False
    allocates: bool = False
    factory: bool = False
    reads_values: bool = False
    overwrites: bool = False
    shaped_like: bool = False
    written: tuple[int | str, ...] = ()
    collective: bool = False
    waits: bool = False
    renews: bool = False
    pointwise: bool = False
    selects: bool = False
    has_own_values: bool = False
    func: Any = None


def rule_of(func: Any) -> Rule:
    """The rule of an op overload; the user's handlers come first."""
    overload = str(func)
    space, name = overload.split(".")[:2]
    schema = func._schema
    written = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    plain = name.removesuffix("_").removeprefix("_safe").removeprefix("_").removeprefix("native_")
    user_handler = USERS.find(overload)
    return Rule(
        name=name if space == "aten" else f"{space}.{name}",
        overload=overload,
        handler=user_handler or _handler(space, name, plain, func),
        not_recorded=user_handler is None and (space == "profiler" or name in tables.NOT_RECORDED or _is_view(func)),
        may_copy=name in tables.MAY_COPY and space == "aten",
        allocates=name in tables.ALLOCATING,
        factory=not any("Tensor" in str(argument.type) for argument in schema.arguments if argument.name != "out"),
        reads_values=user_handler is None and _reads_values(space, name, func),
        overwrites=name in tables.OVERWRITING or func._overloadname == "out" or func._overloadname.endswith("_out"),
        shaped_like=name in tables.SHAPED_LIKE or f"{name}.{func._overloadname}" in tables.SHAPED_LIKE,
        written=written,
        collective=overload.rpartition(".")[0] in COLLECTIVES,
        waits=name in tables.WAITING,
        renews=f"{space}.{name}" in tables.RENEWING,
        pointwise=_is_point_wise(name, func),
        selects=name in ("index", "_unsafe_index") and space == "aten",
        has_own_values=name in tables.OWN_VALUES,
        func=func,
    )


def _reads_values(space: str, name: str, func: Any) -> bool:
    """Whether the program, or the size of the result, depends on values."""
    if name in ("index", "_unsafe_index") or (space == "aten" and name.startswith("_nested")):
        return False
    if space == "torchvision":
        return name == "nms"
    if name in SHAPE_RULES:
        return False
    tags = func.tags
    return name in tables.READS_VALUES or torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def _is_view(func: Any) -> bool:
    return bool(func.is_view) or torch.Tag.inplace_view in func.tags


def _handler(space: str, name: str, plain: str, func: Any) -> Handler | None:
    if f"{space}.{name}" in COLLECTIVES:
        return COLLECTIVES[f"{space}.{name}"]
    if f"{space}.{name}" in PRODUCTS:
        return _product(PRODUCTS[f"{space}.{name}"])
    if space == "torchvision":
        return DETECTION.get(name)
    if space not in COMPUTING:
        return None
    if name in ("_fft_r2c", "_fft_c2r", "_fft_c2c"):
        return _fourier
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        return _unscale
    if name in PRODUCTS:
        return _product(PRODUCTS[name])
    for table in (GATHERS, MATRIX_WORK):
        if name in table:
            return table[name]
    if name in tables.WINDOWS:
        return _window
    if name in tables.ADAPTIVE_POOLS:
        return _reduction(plain, 1)
    for spelled in (name, plain):
        if spelled in tables.REDUCTIONS:
            if spelled in ("max", "min") and any(a.name == "other" for a in func._schema.arguments):
                return _element_wise(spelled)
            return _reduction(plain, tables.REDUCTIONS[spelled])
    if name in tables.FILLING:
        return _copying("fill")
    if name in tables.COPYING:
        return _copying("cast" if name == "_to_copy" else plain)
    if name in tables.RANDOM:
        return _element_wise(plain, 4)
    if _is_point_wise(name, func) or name.startswith("_foreach_"):
        return _element_wise(plain)
    return None


def _is_point_wise(name: str, func: Any) -> bool:
    """By torch's tag, or by the tag of the op that this one is the in-place form, or the primitive, of."""
    if torch.Tag.pointwise in func.tags or name in tables.POINTWISE:
        return True
    plain = name.removesuffix("_")
    packet = getattr(torch.ops.aten, plain, None)
    if packet is None or (plain == name and func.namespace != "prims"):
        return False
    return plain in tables.POINTWISE or any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def _product(handler: Handler) -> Handler:
    """A product of empty operands fills its result with zeros, or copies what is added to it."""

    def handle(call: Call) -> HandlerResult:
        empty = call.inputs and not all(t.numel() for t in call.inputs[:2])
        return Copy("fill", sum(t.numel() for t in call.outputs)) if empty else handler(call)

    return handle


def _results(call: Call) -> int:
    return max((t.numel() for t in call.outputs), default=0)


def _element_wise(name: str, operations: int = 1) -> Handler:
    per_result = tables.OPERATIONS.get(name, operations)
    is_foreach = name.startswith("foreach_")

    def handler(call: Call) -> HandlerResult:
        total = sum(t.numel() for t in call.outputs) if is_foreach else _results(call)
        return ElementWise(name, total, per_result)

    return handler


def _copying(name: str) -> Handler:
    def handler(call: Call) -> HandlerResult:
        return Copy(name, sum(t.numel() for t in call.outputs))

    return handler


def _reduction(name: str, passes: int) -> Handler:
    def handler(call: Call) -> HandlerResult:
        read = max((t.numel() for t in (*call.inputs, *call.outputs)), default=0)
        return Reduction(name, read, _results(call), passes)

    return handler


def _window(call: Call) -> HandlerResult:
    """A pooling window is read whole for each result."""
    kernel = call.argument(1, "kernel_size")
    rank = 3 if "3d" in call.name else 1 if "1d" in call.name else 2
    extents = (kernel,) if isinstance(kernel, int) else tuple(kernel)
    window = math.prod(extents) if len(extents) > 1 else extents[0] ** rank
    results = call.outputs[0].numel()
    return Reduction(call.name.removesuffix("_with_indices"), results * window, results)


def _fourier(call: Call) -> HandlerResult:
    """A fast Fourier transform: 5 n log2(n) operations for n complex results, half of them for real ones."""
    source, axes = call.args[:2]
    result = call.outputs[0]
    length = math.prod(max(source.shape[axis], result.shape[axis]) for axis in axes)
    factor = 5 if result.is_complex() else 2.5
    return ElementWise("fft", result.numel(), max(1, math.ceil(factor * math.log2(length))))


def _unscale(call: Call) -> HandlerResult:
    """Each gradient is multiplied by the inverse scale and compared with infinity."""
    return ElementWise("unscale", sum(t.numel() for t in call.args[0]), 2)


def _embedding(call: Call) -> HandlerResult:
    table, indices = call.args[:2]
    return Gather(indices.numel(), table.numel() // table.shape[0], table.shape[0])


def _embedding_backward(call: Call) -> HandlerResult:
    gradient, indices = call.args[:2]
    table = call.outputs[0]
    body = Gather(indices.numel(), table.numel() // table.shape[0], table.shape[0], scatter=True)
    return Piece(body, inputs=(gradient, indices), phase=Phase.GRAD_WEIGHT)


def _embedding_bag(call: Call) -> HandlerResult:
    """Rows are picked and summed into bags without being written in between."""
    table, indices = call.args[:2]
    bags = call.outputs[0]
    rows = OnChip((indices.numel(), table.shape[1]), table.dtype)
    return (
        Piece(Gather(indices.numel(), table.shape[1], table.shape[0]), (table, indices), (rows,), fused=True),
        Piece(Reduction("bag", indices.numel() * table.shape[1], bags.numel()), (rows, *call.inputs[2:]), (bags,), fused=True),
    )


def _row_width(table: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Elements along the dimensions that no index names: they travel as one row. A mask names as many dimensions as it has."""
    named: list[bool] = []
    for index in indices:
        named += [index is not None] * (index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1)
    named += [False] * (table.dim() - len(named))
    return max(1, math.prod(size for size, is_named in zip(table.shape, named, strict=True) if not is_named))


def _indexed(call: Call) -> HandlerResult:
    """Advanced indexing."""
    table, indices = call.args[:2]
    width = _row_width(table, indices) if any(index is not None for index in indices) else 1
    return Gather(max(1, call.outputs[0].numel() // width), width, max(1, table.numel() // width))


def _index_put(call: Call) -> HandlerResult:
    """Rows are written where indices point; how many a mask selects is known from the values that are written, if they are many."""
    table, indices, values = call.args[:3]
    width = _row_width(table, indices)
    picked = [i for i in indices if isinstance(i, Tensor)]
    if any(i.dtype in (torch.bool, torch.uint8) for i in picked):
        rows = values.numel() // width if values.numel() > width else max(i.numel() for i in picked)
    else:
        rows = math.prod(torch.broadcast_shapes(*(i.shape for i in picked))) if picked else 1
    return Gather(max(1, rows), width, max(1, table.numel() // width), scatter=True)


def _along(scatter: bool) -> Handler:
    """One dimension is indexed element by element (`gather`, `scatter`)."""

    def handler(call: Call) -> HandlerResult:
        index = call.args[2]
        return Gather(max(1, index.numel()), 1, max(1, call.args[0].numel()), scatter)

    return handler


def _rows_along(scatter: bool) -> Handler:
    """One dimension is indexed for whole slices (`index_select`, `index_add`)."""

    def handler(call: Call) -> HandlerResult:
        table, dim, index = call.args[:3]
        extent = max(1, table.shape[dim]) if table.dim() else 1
        return Gather(max(1, index.numel()), max(1, table.numel() // extent), extent, scatter)

    return handler


def _take(call: Call) -> HandlerResult:
    return Gather(max(1, call.args[1].numel()), 1, max(1, call.args[0].numel()))


def _put(call: Call) -> HandlerResult:
    return Gather(max(1, call.args[1].numel()), 1, max(1, call.args[0].numel()), scatter=True)


def _masked_index_put(call: Call) -> HandlerResult:
    table, _, indices, values = call.args[:4]
    fixed = [size for size, index in zip(table.shape, (*indices, *[None] * table.dim()), strict=False) if index is None]
    width = max(1, math.prod(fixed))
    return Gather(max(1, values.numel() // width), width, max(1, table.numel() // width), scatter=True)


def _select_backward(call: Call) -> HandlerResult:
    sizes, dim, index = call.args[1:4]
    extent = sizes[dim]
    return Gather(max(1, index.numel()), max(1, math.prod(sizes) // extent), extent, scatter=True)


# fmt: off
GATHERS: dict[str, Handler] = {
    "embedding":                     _embedding,
    "embedding_dense_backward":      _embedding_backward,
    "embedding_backward":            _embedding_backward,
    "_embedding_bag":                _embedding_bag,
    "_embedding_bag_forward_only":   _embedding_bag,
    "_embedding_bag_dense_backward": _embedding_backward,
    "_embedding_bag_backward":       _embedding_backward,
    "index":                         _indexed,
    "_unsafe_index":                 _indexed,
    "index_put":                     _index_put,
    "index_put_":                    _index_put,
    "_index_put_impl_":              _index_put,
    "_unsafe_index_put":             _index_put,
    "gather":                        _along(scatter=False),
    "take_along_dim":                _along(scatter=False),
    "scatter":                       _along(scatter=True),
    "scatter_":                      _along(scatter=True),
    "scatter_add":                   _along(scatter=True),
    "scatter_add_":                  _along(scatter=True),
    "scatter_reduce":                _along(scatter=True),
    "scatter_reduce_":               _along(scatter=True),
    "index_select":                  _rows_along(scatter=False),
    "index_add":                     _rows_along(scatter=True),
    "index_add_":                    _rows_along(scatter=True),
    "index_copy":                    _rows_along(scatter=True),
    "index_copy_":                   _rows_along(scatter=True),
    "index_fill":                    _rows_along(scatter=True),
    "index_fill_":                   _rows_along(scatter=True),
    "index_select_backward":         _select_backward,
    "index_reduce":                  _rows_along(scatter=True),
    "index_reduce_":                 _rows_along(scatter=True),
    "take":                          _take,
    "put":                           _put,
    "put_":                          _put,
    "_unsafe_masked_index_put_accumulate": _masked_index_put,
}
# fmt: on
