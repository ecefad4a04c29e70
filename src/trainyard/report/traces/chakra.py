"""A result as Chakra execution traces for ASTRA-sim: what each device does, for how long, waiting for what.

Each task of the timeline is a node: work of the device with its operations and DRAM bytes, copies to and from a backing memory,
collectives with their size. `name.0.et`, `name.1.et`, ... are the files of the ranks; devices that were simulated as one get equal
files. A collective's duration is the one simulated here; ASTRA-sim computes its own from type and size.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DTYPE_BYTES, Collective, Step
from trainyard.ir.plan import TaskClass
from trainyard.report.tasks import Tasks, tasks
from trainyard.systems.node.systems import Node as NodeSystem
from trainyard.systems.work_rows import in_device_precision
from trainyard.workloads.formats.chakra import COLLECTIVES, Attribute, Node, NodeType, write_trace

if TYPE_CHECKING:
    from trainyard.results.result import Result

PS_PER_MICROSECOND = 10**6
"""In a microsecond."""


def write_chakra(result: Result, path: str | os.PathLike[str]) -> list[Path]:
    """Files `path.0.et`, `path.1.et`, ... of all devices; returns them."""
    task_table = tasks(result)
    if task_table is None or result.timeline is None:
        raise BadInput("this result carries no timeline (it was added, scaled or read from a file): run the step again to trace it")
    owners = [_owners(name) for name in result.timeline.stream_names]
    simulated = 1 + max((max(owner) for owner in owners if owner), default=0)
    devices = max(simulated, result.peaks.devices)
    counted = devices if simulated == 1 else 1  # devices that were simulated as one are booked together
    sizes = _payloads(result, devices)
    written = []
    for rank in range(devices):
        file = Path(f"{os.fspath(path)}.{rank}.et")
        about: dict[str, Attribute] = {
            "workload": result.workload, "machine": result.machine, "trainyard": result.version, "rank": rank, "ranks": devices,
        }  # fmt: skip
        mine = rank if simulated > 1 else 0
        own = [not owner or mine in owner for owner in owners]
        write_trace(file, _nodes(result, task_table, own, sizes, counted, mine), about)
        written.append(file)
    return written


def _owners(stream: str) -> tuple[int, ...]:
    """The devices that a stream belongs to; none for one that all share.

    >>> _owners("device 3"), _owners("copy out 0"), _owners("send 0 to 1"), _owners("exchange"), _owners("device")
    ((3,), (0,), (0, 1), (), (0,))
    """
    if stream == "device":
        return (0,)
    match = re.fullmatch(r"(?:device|copy out|copy in|exchange|send) (\d+)(?: to (\d+))?", stream)
    return tuple(int(number) for number in match.groups() if number) if match else ()


def _nodes(result: Result, task_table: Tasks, own: list[bool], sizes: Mapping[int, int], counted: int, rank: int) -> Iterator[Node]:
    timeline = result.timeline
    assert timeline is not None
    streams = timeline.streams
    chosen = np.array([number < 0 or own[number] for number in streams.tolist()], np.bool_)
    shared = Counter(task_table.tag[chosen].tolist())
    seen: Counter[int] = Counter()
    last: dict[int, int] = {}
    for task in np.flatnonzero(chosen).tolist():
        begin = int(timeline.after_ends[task - 1]) if task else 0
        after = tuple(b for b in timeline.after[begin : int(timeline.after_ends[task])].tolist() if chosen[b])
        stream = int(streams[task])
        before = last.get(stream) if stream >= 0 else None
        tag = int(task_table.tag[task])
        start, end = int(task_table.start_ps[task]), int(task_table.end_ps[task])
        kind, attributes = _kind(result, task_table, task, sizes, counted, (seen[tag], shared[tag]))
        if kind is NodeType.COMM_SEND:
            source, target = _owners(task_table.track_name(task))
            kind = NodeType.COMM_SEND if rank == source else NodeType.COMM_RECV
            attributes.update(comm_src=source, comm_dst=target, comm_tag=task)
        seen[tag] += 1
        who = task_table.who(task)
        yield Node(
            number=task, name=": ".join(word for word in (who.layer, who.op) if word) or task_table.track_name(task), type=kind,
            data_deps=after, ctrl_deps=() if before is None or before in after else (before,), start_micros=start //
            PS_PER_MICROSECOND, duration_micros=_micros(end - start), attributes={**attributes, "phase": who.phase, "stream":
            task_table.track_name(task), "duration_ps": end - start},
        )  # fmt: skip
        if stream >= 0:
            last[stream] = task


def _micros(picoseconds: int) -> int:
    """
    >>> _micros(0), _micros(1), _micros(1_499_999), _micros(2_500_000)
    (0, 1, 1, 3)
    """
    return 0 if picoseconds == 0 else max(1, (picoseconds + PS_PER_MICROSECOND // 2) // PS_PER_MICROSECOND)


def _kind(
    result: Result, task_table: Tasks, task: int, sizes: Mapping[int, int], counted: int, part: tuple[int, int]
) -> tuple[NodeType, dict[str, Attribute]]:
    """The node's type and what ASTRA-sim reads of it; several tasks of one op share its operations and bytes."""
    rows = task_table.who(task).rows
    part_number, parts = part

    def shared(total: int) -> int:
        device_bytes = total // counted
        return device_bytes * (part_number + 1) // parts - device_bytes * part_number // parts

    if int(task_table.kind[task]) == TaskClass.COMPUTE or not rows:
        macs = sum(int(result.columns.macs[row]) for row in rows)
        moved = sum(int(count[row]) for (level, _, _), count in result.columns.traffic.items() if level == "dram" for row in rows)
        return NodeType.COMP, {"is_cpu_op": False, "num_ops": shared(2 * macs), "tensor_size": shared(moved)}
    op, moved = result.rows.op[rows[0]], _moved(result, rows, off_chip=True)
    if int(task_table.kind[task]) == TaskClass.COPY:
        stores = "out" in task_table.track_name(task) or " out" in op
        return NodeType.MEM_STORE if stores else NodeType.MEM_LOAD, {"is_cpu_op": False, "tensor_size": shared(moved)}
    if op.startswith("send ") and len(_owners(task_table.track_name(task))) == 2:
        return NodeType.COMM_SEND, {"is_cpu_op": False, "comm_size": shared(moved)}
    if op not in COLLECTIVES:
        raise NotModelled(
            f"{result.machine} exchanges by {op!r}, which no Chakra node stands for (it knows {', '.join(COLLECTIVES)})"
        )
    if part_number + 1 < parts:  # the delay before the bytes move: one collective is one node
        return NodeType.METADATA, {"is_cpu_op": False}
    return NodeType.COMM_COLL, {"is_cpu_op": False, "comm_type": COLLECTIVES[op], "comm_size": sizes.get(rows[0], moved)}


def _moved(result: Result, rows: tuple[int, ...], *, off_chip: bool) -> int:
    levels = ("dram", "scratchpad") if off_chip else ()
    return sum(int(count[row]) for (level, _, _), count in result.columns.traffic.items() if level not in levels for row in rows)


def _payloads(result: Result, devices: int) -> dict[int, int]:
    """Bytes of the tensor that each collective exchanges, by row.

    A node's are read from the step that one of its devices runs. On other rings, all that crosses the wires is known: n - 1 of n
    pieces of the whole for a gather or a scatter, twice that for an all-reduce, padded to whole pieces.
    """
    rows = [i for i, kind in enumerate(result.rows.kind) if kind == "synchronisation" and result.rows.op[i] in COLLECTIVES]
    if isinstance(result.on, NodeSystem):
        sizes = _of_node(result.on, getattr(result.rerun, "step", None))
        if len(sizes) == len(rows):
            return dict(zip(rows, sizes, strict=True))
    payloads = {}
    for row in rows:
        carried = _moved(result, (row,), off_chip=True)
        rounds = (2 if result.rows.op[row] == "all_reduce" else 1) * max(1, devices - 1)
        payloads[row] = carried // rounds
    return payloads


def _of_node(node: NodeSystem, step: Step | None) -> list[int]:
    from trainyard.systems.node import captured
    from trainyard.systems.node.plan import one_device

    if step is None or node.parallel == "pipeline":
        return []
    mine = captured.one_rank(step, node) if captured.is_captured(step) else one_device(node, step)
    typed = in_device_precision(mine, node.device)
    firsts = (mine.ops[work.ops[0]] for work in node.device.works(mine))
    return [op.body.elements * DTYPE_BYTES[typed.tensors[op.inputs[0]].dtype] for op in firsts if isinstance(op.body, Collective)]
