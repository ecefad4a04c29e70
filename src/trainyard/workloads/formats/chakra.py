"""Chakra execution traces (MLCommons): the file that ASTRA-sim's feeder reads, one for each rank.

A file is a run of length-delimited messages, first a GlobalMetadata, then Nodes; field numbers and enumerations are those of
Chakra's et_def.proto. Nodes wait for others by number: `data_deps` for what they read, `ctrl_deps` for their place in a stream.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from trainyard.errors import BadInput
from trainyard.files import whole_file
from trainyard.ir.plan import Plan, TaskClass
from trainyard.reading import blocks, reader
from trainyard.workloads.formats import protobuf as wire

VERSION = "0.0.4"  # what ASTRA-sim's own generators write
Attribute = bool | int | float | str


class NodeType(IntEnum):
    """What a node is (et_def.proto, NodeType)."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


COLLECTIVES: Mapping[str, int] = {  # et_def.proto, CollectiveCommType, by our names
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7,
}  # fmt: skip
CLASSES = {NodeType.COMP: TaskClass.COMPUTE, NodeType.MEM_LOAD: TaskClass.COPY, NodeType.MEM_STORE: TaskClass.COPY}
_DOUBLE, _INT64, _UINT64, _BOOL, _STRING = 3, 9, 13, 27, 29
"""Fields of AttributeProto's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. Chakra counts whole microseconds; `duration_ps` of the attributes is exact."""

    number: int
    name: str
    type: NodeType
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    start_micros: int = 0
    duration_micros: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def encoded(self) -> bytes:
        content = [
            wire.write_number(1, self.number),
            wire.write_bytes(2, self.name),
            wire.write_number(3, self.type),
            wire.write_packed(4, self.ctrl_deps),
            wire.write_packed(5, self.data_deps),
            wire.write_number(6, self.start_micros),
            wire.write_number(7, self.duration_micros),
            *(wire.write_bytes(10, _attribute(name, value)) for name, value in self.attributes.items()),
        ]
        return b"".join(content)


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, bool):
        content = wire.write_number(_BOOL, value)
    elif isinstance(value, int):
        content = wire.write_number(_INT64, value)
    elif isinstance(value, float):
        content = wire.write_double(_DOUBLE, value)
    else:
        content = wire.write_bytes(_STRING, value)
    return wire.write_bytes(1, name) + content


def write_trace(path: str | os.PathLike[str], nodes: Iterable[Node], about: Mapping[str, Attribute] | None = None) -> None:
    """One rank's file, written node by node."""
    with whole_file(path) as part, part.open("wb") as stream:
        head = wire.write_bytes(1, VERSION) + b"".join(wire.write_bytes(2, _attribute(n, v)) for n, v in (about or {}).items())
        stream.write(wire.delimited(head))
        for node in nodes:
            stream.write(wire.delimited(node.encoded()))


@reader("trace")
def read_trace(path: str | os.PathLike[str]) -> tuple[dict[str, Attribute], list[Node]]:
    """Metadata and nodes of a rank's file."""
    content = memoryview(b"".join(blocks(path, "trace", "trace_bytes")))
    try:
        messages = _messages(content)
        about = _metadata(next(messages))
        nodes = [_node(message) for message in messages]
    except BadInput as error:
        raise BadInput(f"{path} is not a Chakra trace: {error}") from None
    except StopIteration:
        raise BadInput(f"{path} is not a Chakra trace: it is empty") from None
    _check(path, nodes)
    return about, nodes


def _messages(content: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(content):
        size, at = wire.varint(content, at)
        if size > len(content) - at:
            raise BadInput(f"byte {at}: a message of {size} bytes, only {len(content) - at} are left")
        yield content[at : at + size]
        at += size


def _metadata(message: memoryview) -> dict[str, Attribute]:
    metadata: dict[str, Attribute] = {}
    for number, _, value in wire.fields(message):
        if number == 1:
            metadata["version"] = wire.text(value)
        elif number == 2:
            name, attribute = _value(wire.nested(value))
            metadata[name] = attribute
    return metadata


def _node(message: memoryview) -> Node:
    numbers = {1: 0, 3: 0, 6: 0, 7: 0}
    deps: dict[int, list[int]] = {4: [], 5: []}
    name = ""
    attributes: dict[str, Attribute] = {}
    for number, kind, value in wire.fields(message):
        if number in numbers:
            numbers[number] = wire.integer(value)
        elif number == 2:
            name = wire.text(value)
        elif number in deps:
            deps[number].extend(wire.integers(value, kind, len(message)))
        elif number == 10:
            key, attribute = _value(wire.nested(value))
            attributes[key] = attribute
    if numbers[3] not in {int(kind) for kind in NodeType}:
        raise BadInput(f"node {numbers[1]} has the type {numbers[3]}, which is not read")
    return Node(
        number=numbers[1], name=name, type=NodeType(numbers[3]), ctrl_deps=tuple(deps[4]), data_deps=tuple(deps[5]),
        start_micros=numbers[6], duration_micros=numbers[7], attributes=attributes,
    )  # fmt: skip


def _value(message: memoryview) -> tuple[str, Attribute]:
    name = ""
    attribute: Attribute | None = None
    for number, kind, value in wire.fields(message):
        if number == 1:
            name = wire.text(value)
        elif number in (_INT64, _UINT64, 7, 11):  # also the 32-bit ones
            attribute = wire.integer(value)
        elif number == _BOOL:
            attribute = bool(wire.integer(value))
        elif number in (_DOUBLE, 5):
            attribute = wire.floats(value, kind)[0]
        elif number == _STRING:
            attribute = wire.text(value)
    return name, "" if attribute is None else attribute


def _check(path: object, nodes: Sequence[Node]) -> None:
    """Raises BadInput unless numbers are distinct and every dependency exists."""
    numbers = {node.number for node in nodes}
    if len(numbers) < len(nodes):
        raise BadInput(f"{path}: two nodes have one number")
    for node in nodes:
        missing = [number for number in (*node.data_deps, *node.ctrl_deps) if number not in numbers]
        if missing:
            raise BadInput(f"{path}: node {node.number} ({node.name}) waits for node {missing[0]}, which is not there")


def plan_of(nodes: Iterable[Node]) -> Plan:
    """A rank's trace as a plan: each node is a task on the stream it names, in topological order, lowest number first."""
    waiting = {node.number: node for node in nodes}
    missing = {number: len({*node.data_deps, *node.ctrl_deps}) for number, node in waiting.items()}
    readers: dict[int, list[int]] = {}
    for number, node in waiting.items():
        for before in {*node.data_deps, *node.ctrl_deps}:
            readers.setdefault(before, []).append(number)
    plan, streams = Plan(), dict[str, int]()
    done: dict[int, int] = {}
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    while ready:
        number = heapq.heappop(ready)
        node = waiting[number]
        name = str(node.attributes.get("stream", node.type.name.lower()))
        if name not in streams:
            streams[name] = plan.stream(name)
        exact = node.attributes.get("duration_ps")
        duration = exact if type(exact) is int else node.duration_micros * 10**6
        kind = CLASSES.get(node.type, TaskClass.SYNCHRONISATION)
        done[number] = plan.task(streams[name], duration, after=sorted({done[b] for b in node.data_deps}), kind=kind)
        for waiter in readers.get(number, ()):
            missing[waiter] -= 1
            if not missing[waiter]:
                heapq.heappush(ready, waiter)
    if len(done) < len(waiting):
        stuck = min(waiting.keys() - done.keys())
        raise BadInput(f"node {stuck} ({waiting[stuck].name}) waits for itself, through others, or for a node that is not there")
    return plan
