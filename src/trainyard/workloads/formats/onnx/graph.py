"""An ONNX file as a plain graph: nodes, initialisers by shape, inputs and outputs.

Field numbers are those of onnx.proto (onnx.ai, IR). Weights are skipped, external data is never opened: shapes suffice. Values
are read only of small tensors, since shapes may be computed from them.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import BadInput, NotModelled
from trainyard.reading import limit, over_limit, reader, regular_file
from trainyard.workloads.formats import protobuf as wire

# fmt: off
DTYPES: Mapping[int, str] = {  # TensorProto.DataType
    1: "fp32", 2: "uint8", 3: "int8", 4: "int16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64",
    12: "int32", 13: "int64", 14: "complex64", 15: "complex128", 16: "bf16", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8",
}
_LETTERS: Mapping[str, str] = {
    "fp32": "f", "fp64": "d", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?",
}
# fmt: on
KNOWN = 4096
"""Elements of a tensor whose values are kept."""
LONGEST = 100_000
"""Numbers of one attribute or shape."""
LARGEST = 2**50
"""Elements of a tensor: more is a slip, and would not fit the counters."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An initialiser or a constant: its shape, and its values where there are few."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node; an input that is left out has the name ''."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""

    @property
    def where(self) -> str:
        return f"node {self.name!r} ({self.op})" if self.name else f"a {self.op} node that writes {self.outputs[:1]}"


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input; a dimension is a number, or the name of an open one ('' for one without a name)."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Graph:
    """What a training step is derived from."""

    name: str
    nodes: tuple[Node, ...]
    initialisers: Mapping[str, Tensor]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    opset: int


@reader("ONNX model")
def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph of a file, which is mapped into memory, not read: weights may have gigabytes."""
    with regular_file(path, "ONNX model") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise BadInput(f"{path} is empty")
        window = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return parse_graph(window)
    except BadInput as error:
        raise BadInput(f"{path} is not an ONNX model: {error}") from None


def parse_graph(model: memoryview) -> Graph:
    graph, opset, functions = None, 0, 0
    for number, _, value in wire.fields(model):
        if number == 7:
            graph = wire.nested(value)
        elif number == 8:
            opset = max(opset, _opset(wire.nested(value)))
        elif number == 25:
            functions += 1
    if graph is None:
        raise BadInput("it holds no graph")
    if functions:
        raise NotModelled(f"the model defines {functions} functions of its own: inline them (onnx.inliner.inline_local_functions)")
    nodes: list[Node] = []
    most_nodes = limit("onnx_nodes")
    initialisers: dict[str, Tensor] = {}
    inputs: list[Input] = []
    outputs: list[str] = []
    name = ""
    for number, _, value in wire.fields(graph):
        if number == 1:
            nodes.append(_node(wire.nested(value)))
            if len(nodes) > most_nodes:
                raise over_limit("onnx_nodes", "the graph")
        elif number == 2:
            name = wire.text(value)
        elif number == 5:
            tensor = _tensor(wire.nested(value))
            initialisers[tensor.name] = tensor
        elif number == 11:
            inputs.append(_input(wire.nested(value)))
        elif number == 12:
            outputs.append(_named(wire.nested(value)))
        elif number == 15:
            raise NotModelled("sparse initialisers are not read: store them dense")
    fed = tuple(i for i in inputs if i.name not in initialisers)
    return Graph(name, tuple(nodes), initialisers, fed, tuple(outputs), opset)


def _opset(message: memoryview) -> int:
    values = {number: value for number, _, value in wire.fields(message)}
    domain = wire.text(values[1]) if 1 in values else ""
    return wire.integer(values.get(2, 0)) if domain in ("", "ai.onnx") else 0


def _node(message: memoryview) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    words = {3: "", 4: "", 7: ""}
    attributes: dict[str, Any] = {}
    for number, _, value in wire.fields(message):
        if number in (1, 2):
            (inputs if number == 1 else outputs).append(wire.text(value))
        elif number in words:
            words[number] = wire.text(value)
        elif number == 5:
            name, attribute = _attribute(wire.nested(value))
            attributes[name] = attribute
    if not words[4]:
        raise BadInput("a node has no op_type")
    domain = "" if words[7] == "ai.onnx" else words[7]
    return Node(words[4], words[3], tuple(inputs), tuple(outputs), attributes, domain)


def _attribute(message: memoryview) -> tuple[str, Any]:
    """An attribute's name, and its number, text, tensor or tuple; a subgraph is not read."""
    name = ""
    single: Any = None
    many: list[Any] = []
    kind = 0
    for number, form, value in wire.fields(message):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            single = wire.floats(value, form)[0]
        elif number == 3:
            single = wire.integer(value)
        elif number == 4:
            single = bytes(wire.nested(value)).decode(errors="replace")
        elif number == 5:
            single = _tensor(wire.nested(value))
        elif number in (6, 11):
            single = "a subgraph"
        elif number == 7:
            many.extend(wire.floats(value, form))
        elif number == 8:
            many.extend(wire.integers(value, form, LONGEST))
        elif number == 9:
            many.append(bytes(wire.nested(value)).decode(errors="replace"))
        elif number == 20:
            kind = wire.integer(value)
        if len(many) > LONGEST:
            raise BadInput(f"attribute {name!r} has more than {LONGEST} numbers")
    if kind in (6, 7, 8) or (many and single is None):  # FLOATS, INTS, STRINGS
        return name, tuple(many)
    if single is None:  # zero is not written
        single = {1: 0.0, 2: 0, 3: ""}.get(kind)
    return name, single


def _tensor(message: memoryview) -> Tensor:
    shape: list[int] = []
    name, kind, raw = "", 0, None
    listed: list[float] = []
    external = False
    for number, form, value in wire.fields(message):
        if number == 1:
            shape.extend(wire.integers(value, form, 64))
        elif number == 2:
            kind = wire.integer(value)
        elif number in (4, 5, 7, 10, 11) and len(listed) <= KNOWN:
            listed.extend(_listed(number, form, value))
        elif number == 8:
            name = wire.text(value)
        elif number == 9:
            raw = wire.nested(value)
        elif number == 14:
            external = wire.integer(value) == 1
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise NotModelled(f"tensor {name!r} has elements of ONNX type {kind}, which have no size here (text, 4-bit)")
    elements = checked(tuple(shape), f"tensor {name!r}")
    values = None
    if elements <= KNOWN and not external:
        values = _values(raw, dtype, elements) if raw is not None else tuple(listed) if len(listed) == elements else None
        if elements == 0:
            values = ()
    return Tensor(name, tuple(shape), dtype, values)


def _listed(number: int, form: int, value: wire.Value) -> Sequence[float]:
    """Numbers of the typed fields (4 float, 5 int32, 7 int64, 10 double, 11 uint64), unless there are too many to keep."""
    if not isinstance(value, int) and len(value) > 10 * KNOWN:
        return ()
    if number in (4, 10):
        return wire.floats(value, wire.EIGHT_BYTES if number == 10 else form)
    return wire.integers(value, form, 10 * KNOWN)


def _values(raw: memoryview, dtype: str, elements: int) -> tuple[float, ...] | None:
    letter = _LETTERS.get(dtype)
    if letter is None or len(raw) != elements * struct.calcsize(f"<{letter}"):
        return None
    return struct.unpack(f"<{elements}{letter}", raw)


def checked(shape: tuple[int, ...], subject: str) -> int:
    """The number of elements of a shape; BadInput for impossible or implausible shapes."""
    if len(shape) > 16 or any(size < 0 for size in shape):
        raise BadInput(f"{subject} has the shape {list(shape[:16])}: at most 16 dimensions of at least 0")
    elements = math.prod(shape)
    if elements > LARGEST or max(shape, default=0) > LARGEST:
        raise BadInput(f"{subject} has the shape {list(shape)}: more than 2**50 elements")
    return elements


def _named(message: memoryview) -> str:
    return next((wire.text(value) for number, _, value in wire.fields(message) if number == 1), "")


def _input(message: memoryview) -> Input:
    """ValueInfoProto -> TypeProto -> its tensor type: element type and shape."""
    name, dtype = "", 0
    shape: list[int | str] = []
    for number, _, value in wire.fields(message):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            for kind, _, inside in wire.fields(wire.nested(value)):
                if kind != 1:
                    continue
                for field, _, part in wire.fields(wire.nested(inside)):
                    if field == 1:
                        dtype = wire.integer(part)
                    elif field == 2:
                        shape = [_dimension(wire.nested(d)) for n, _, d in wire.fields(wire.nested(part)) if n == 1]
    if dtype not in DTYPES:
        raise NotModelled(f"input {name!r} is no tensor of numbers (ONNX type {dtype})")
    if len(shape) > 16:
        raise BadInput(f"input {name!r} has {len(shape)} dimensions")
    return Input(name, tuple(shape), DTYPES[dtype])


def _dimension(message: memoryview) -> int | str:
    for number, _, value in wire.fields(message):
        if number == 1:
            size = wire.integer(value)
            return size if 0 < size <= LARGEST else ""
        if number == 2:
            return wire.text(value)
    return ""
