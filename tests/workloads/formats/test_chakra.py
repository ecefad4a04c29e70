"""Chakra out: what is written is decoded by Google's protobuf from field tables, by a raw walker, and by ourselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard import engine
from trainyard.errors import BadInput, NotModelled
from trainyard.ir.plan import TaskClass
from trainyard.report.traces.chakra import write_chakra
from trainyard.workloads.formats.backward import with_backward
from trainyard.workloads.formats.chakra import COLLECTIVES, Node, NodeType, plan_of, read_trace, write_trace
from trainyard.workloads.formats.scalesim import chain

pytestmark = pytest.mark.unit


def step(batch: int = 64) -> ty.Step:
    layers = [(f"fc{i}", ty.MatMul(1, 256, 256)) for i in range(4)]
    return with_backward(chain("four", layers).rebatch(batch))


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    """Message classes from a table of fields: name, number, type, repeated."""
    protobuf = pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    assert protobuf
    kinds = descriptor_pb2.FieldDescriptorProto
    tables = {
        "AttributeProto": [
            ("name", 1, kinds.TYPE_STRING, False), ("double_val", 3, kinds.TYPE_DOUBLE, False),
            ("int64_val", 9, kinds.TYPE_INT64, False), ("bool_val", 27, kinds.TYPE_BOOL, False),
            ("string_val", 29, kinds.TYPE_STRING, False),
        ],
        "GlobalMetadata": [("version", 1, kinds.TYPE_STRING, False), ("attr", 2, "AttributeProto", True)],
        "Node": [
            ("id", 1, kinds.TYPE_UINT64, False), ("name", 2, kinds.TYPE_STRING, False), ("type", 3, kinds.TYPE_INT32, False),
            ("ctrl_deps", 4, kinds.TYPE_UINT64, True), ("data_deps", 5, kinds.TYPE_UINT64, True),
            ("start_time_micros", 6, kinds.TYPE_UINT64, False), ("duration_micros", 7, kinds.TYPE_UINT64, False),
            ("attr", 10, "AttributeProto", True),
        ],
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for message, fields in tables.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if isinstance(kind, str):
                described.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=f".et.{kind}", label=label)
            else:
                described.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}")) for name in tables}


def delimited(content: bytes) -> list[bytes]:
    """Messages behind their lengths, by a walker of its own."""
    actual, at = [], 0
    while at < len(content):
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        actual.append(content[at : at + size])
        at += size
    assert at == len(content)
    return actual


def raw(message: bytes) -> list[int]:
    """Field numbers of a message, walked by wire type alone."""
    numbers, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        numbers.append(key >> 3)
        match key & 7:
            case 0:
                varint()
            case 1:
                at += 8
            case 2:
                size = varint()
                at += size
            case 5:
                at += 4
            case other:
                raise AssertionError(other)
    assert at == len(message)
    return numbers


MACHINES = ["npu", "mcdla-b", "dc-dla(parallel=model)", "a100-cluster(devices=4)", "mcdla-b(fold=false,contention=true)"]


@pytest.mark.oracle
@pytest.mark.parametrize("machine", MACHINES)
def test_every_task_is_a_node(tmp_path: Path, machine: str, messages: dict[str, Any]) -> None:
    result = ty.run(step(), on=machine)
    timeline = result.timeline
    assert timeline is not None
    files = write_chakra(result, tmp_path / "trace")
    assert [file.name for file in files] == [f"trace.{rank}.et" for rank in range(result.peaks.devices)]
    head, *rest = delimited(files[-1].read_bytes())
    metadata = messages["GlobalMetadata"].FromString(head)
    assert metadata.version == "0.0.4"
    assert {a.name: a.int64_val for a in metadata.attr if a.name == "rank"} == {"rank": len(files) - 1}
    own = "device" if "device" in timeline.stream_names else f"{len(files) - 1}" if "fold=false" in machine else "0"
    mine = [
        task
        for task, stream in enumerate(timeline.streams.tolist())
        if stream < 0 or timeline.stream_names[stream] == "exchange" or timeline.stream_names[stream].endswith(own)
    ]
    assert len(rest) == len(mine)
    before: dict[int, int] = {}
    for task, message in zip(mine, rest, strict=True):
        node = messages["Node"].FromString(message)
        assert set(raw(message)) <= {1, 2, 3, 4, 5, 6, 7, 10}
        attributes = {a.name: a for a in node.attr}
        begin = int(timeline.after_ends[task - 1]) if task else 0
        after = [t for t in timeline.after[begin : int(timeline.after_ends[task])].tolist() if t in set(mine)]
        assert (node.id, list(node.data_deps)) == (task, after)
        assert attributes["duration_ps"].int64_val == int(timeline.busy_ps[task])
        assert abs(node.duration_micros - timeline.busy_ps[task] / 1e6) <= (0.5 if timeline.busy_ps[task] >= 1e6 else 1)
        assert all(dependency < task for dependency in (*node.data_deps, *node.ctrl_deps))  # acyclic
        stream = int(timeline.streams[task])
        if stream >= 0:
            previous = before.get(stream)
            assert previous is None or previous in (*node.data_deps, *node.ctrl_deps)
            before[stream] = task
        assert (node.type == NodeType.COMP) == (timeline.kinds[task] == TaskClass.COMPUTE)


@pytest.mark.oracle
@pytest.mark.parametrize("machine", MACHINES)
def test_a_trace_read_back_runs_for_as_long(tmp_path: Path, machine: str) -> None:
    result = ty.run(step(), on=machine)
    _, nodes = read_trace(write_chakra(result, tmp_path / "trace")[0])
    assert engine.run(plan_of(nodes)).end_ps == result.timeline.end_ps  # type: ignore[union-attr]


def test_operations_bytes_and_sizes_are_those_of_one_device(tmp_path: Path) -> None:
    work = step()
    result = ty.run(work, on="mcdla-b")
    files = write_chakra(result, tmp_path / "trace")
    _, nodes = read_trace(files[0])
    assert len(files) == 8
    assert 8 * sum(int(node.attributes.get("num_ops", 0)) for node in nodes) == 2 * result.macs
    dram = 8 * sum(int(node.attributes["tensor_size"]) for node in nodes if node.type is NodeType.COMP)
    assert dram == result.traffic_bytes["dram"]
    sums = [node for node in nodes if node.type is NodeType.COMM_COLL]
    assert {node.attributes["comm_type"] for node in sums} == {COLLECTIVES["all_reduce"]}
    assert sum(int(node.attributes["comm_size"]) for node in sums) == 4 * work.parameters
    (cluster,) = {
        sum(int(n.attributes["comm_size"]) for n in read_trace(file)[1] if n.type is NodeType.COMM_COLL)
        for file in write_chakra(ty.run(step(), on="a100-cluster(devices=4)"), tmp_path / "cluster")
    }
    assert 4 * work.parameters <= cluster < 4 * work.parameters + 4 * len(sums)  # whole pieces of a ring
    assert [read_trace(file)[0]["rank"] for file in files] == list(range(8))
    assert all(read_trace(file)[1] == nodes for file in files)


def test_paged_tensors_are_loads_and_stores(tmp_path: Path) -> None:
    result = ty.run(step(), on="dc-dla")
    _, nodes = read_trace(write_chakra(result, tmp_path / "paged")[0])
    out = sum(int(n.attributes["tensor_size"]) for n in nodes if n.type is NodeType.MEM_STORE)
    back = sum(int(n.attributes["tensor_size"]) for n in nodes if n.type is NodeType.MEM_LOAD)
    carried = {"write": 0, "read": 0}
    for (level, _, direction), count in result.traffic.items():
        if level == "host memory":
            carried[direction] += count
    assert 8 * out == carried["write"] > 0
    assert 8 * back == carried["read"] > 0


def test_every_send_is_received(tmp_path: Path) -> None:
    files = write_chakra(ty.run(step(), on="mcdla-b(devices=4)", parallel="pipeline"), tmp_path / "stages")
    ends: dict[NodeType, set[tuple[Any, ...]]] = {NodeType.COMM_SEND: set(), NodeType.COMM_RECV: set()}
    for rank, file in enumerate(files):
        for node in read_trace(file)[1]:
            if node.type in ends:
                about = node.attributes
                assert rank == about["comm_src" if node.type is NodeType.COMM_SEND else "comm_dst"]
                ends[node.type].add((about["comm_src"], about["comm_dst"], about["comm_tag"], about["comm_size"]))
    assert ends[NodeType.COMM_SEND] == ends[NodeType.COMM_RECV] != set()


def test_results_without_a_chakra_form_raise(tmp_path: Path) -> None:
    result = ty.run("linear", on="direct", batch=64)
    with pytest.raises(NotModelled, match="no Chakra node stands for"):
        write_chakra(result, tmp_path / "pim")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="carries no timeline"):
        write_chakra(result + result, tmp_path / "sum")


names = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), names)


@given(
    st.lists(st.tuples(names, st.sampled_from(NodeType), st.lists(st.integers(0, 30), max_size=3), st.dictionaries(names, values)))
)
def test_a_written_trace_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    nodes = [
        Node(
            number=i, name=name, type=kind, data_deps=tuple(sorted({d for d in deps if d < i})), duration_micros=i, attributes=about
        )
        for i, (name, kind, deps, about) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("chakra") / "t.0.et"
    write_trace(path, nodes, {"ranks": 1})
    about, actual = read_trace(path)
    assert about == {"version": "0.0.4", "ranks": 1}
    assert actual == nodes


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([Node(number=1, name="a", type=NodeType.COMP, data_deps=(7,))], "waits for node 7, which is not there"),
        ([Node(number=1, name="a", type=NodeType.COMP)] * 2, "two nodes have one number"),
    ],
)
def test_damaged_traces_raise(tmp_path: Path, nodes: list[Node], says: str) -> None:
    path = tmp_path / "t.0.et"
    write_trace(path, nodes)
    with pytest.raises(BadInput, match=says):
        read_trace(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"only \d+ are left"):
        read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(BadInput, match="empty"):
        read_trace(path)


def test_a_cycle_of_dependencies_raises() -> None:
    circle = [Node(number=i, name="n", type=NodeType.COMP, data_deps=((i + 1) % 3,)) for i in range(3)]
    with pytest.raises(BadInput, match="waits for itself"):
        plan_of(circle)
