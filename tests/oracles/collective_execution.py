"""Collectives with real data: round by round, message by message through every forwarding place.

What `collectives.timing` counts is what moves here: the same rings and ways, the same shares, the same padded parts; `carried` is
what crossed each arc. Memory-nodes and switches hold a queue of messages and pass them on unread; only devices add. All devices
end with the same bits, for every sum is made once and handed round (by halving and doubling too: one device sums each part).

Data is laid out as a matrix: row i is the part that device i owns (what it brings to an all-gather, what it keeps of a
reduce-scatter), and each ring or tree takes some columns of all rows.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.hardware.collectives import double_tree, switched
from trainyard.hardware.collectives.fabric import OWNER, Fabric, fabric_of
from trainyard.hardware.collectives.on_graph import Split, check, fastest, ring_chunks
from trainyard.hardware.collectives.ring_timing import STREAMS, Lane
from trainyard.hardware.topology.graph import Arc

if TYPE_CHECKING:
    from trainyard.hardware.topology.graph import Topology
    from trainyard.hardware.topology.rings import Ring

Array = npt.NDArray[Any]
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Executed:
    """What each device holds in the end, by number, and the bytes that crossed each arc."""

    values: list[Array]
    carried: Mapping[Arc, int]


@dataclass(slots=True)
class Carrier:
    """Takes data over arcs in messages of at most `message` bytes, and counts."""

    message: int
    carried: dict[Arc, int] = field(default_factory=lambda: defaultdict(int))

    def carry(self, arcs: Sequence[Arc], data: Array) -> Array:
        """From a device to another; every place on the way has a queue, from which each tick takes one message on."""
        length = max(1, self.message // data.itemsize)
        queues = [deque(data[start : start + length] for start in range(0, len(data), length))]
        queues += [deque() for _ in arcs]
        count = len(queues[0])
        while len(queues[-1]) < count:
            for hop in reversed(range(len(arcs))):
                if queues[hop]:
                    moved = queues[hop].popleft()
                    self.carried[arcs[hop]] += moved.nbytes
                    queues[hop + 1].append(moved)
        return np.concatenate(queues[-1]) if count else data.copy()

    def spread(self, paths: Sequence[Sequence[Arc]], data: Array) -> Array:
        """Over parallel paths, an equal piece on each."""
        lengths = [switched.path_length(len(data), len(paths), number) for number in range(len(paths))]
        pieces = np.split(data, np.cumsum(lengths)[:-1])
        return np.concatenate([self.carry(path, piece) for path, piece in zip(paths, pieces, strict=True)])


def execute(
    kind: str,
    values: Sequence[Array],
    topology: Topology,
    rings: Sequence[Ring] = (),
    *,
    algorithm: str = "ring",
    message_bytes: int = 4096,
    split: Split = "equal",
    pipelined: bool = False,
    root: int = 0,
) -> Executed:
    """The collective itself; `values` are one array for each device, of one shape and type.

    An all-gather gives the arrays end to end, a reduce-scatter each device's part of the flat sum (the last ones may be shorter or
    empty), a broadcast the root's array, a reduce the sum to the root and leaves the others what they had. In an all-to-all the
    i-th part of each goes to device i, which holds them in the order of the devices.
    """
    fabric = fabric_of(topology, rings)
    check(fabric, kind, algorithm, split, root, message_bytes=message_bytes)
    rows, length = parts_of_devices(kind, values, len(fabric.devices))
    carrier = Carrier(message_bytes)
    if len(fabric.devices) > 1 and length:
        element = rows[0].itemsize
        options = (fabric, kind, rows[0].shape[1] * element, message_bytes, split, pipelined, element, root)
        if algorithm == "auto":
            algorithm = fastest(*options)[0]
        if algorithm == "ring":
            start = 0
            for lane, chunk in zip(fabric.lanes, ring_chunks(*options)[0], strict=True):
                end = start + chunk // element
                _around(kind, lane, [held[:, start:end] for held in rows], carrier, root)
                start = end
        else:
            switched.require_modelled(kind, algorithm)
            move = _up_and_down if algorithm == "tree" else _in_steps
            move(fabric, kind, algorithm, rows, carrier, root)
    return Executed(results_of_devices(kind, values, rows, root), dict(carrier.carried))


def parts_of_devices(kind: str, values: Sequence[Array], count: int) -> tuple[list[Array], int]:
    """Each device's matrix of parts, padded with zeros, and the elements of the whole."""
    if len(values) != count or len({(value.shape, value.dtype) for value in values}) != 1:
        shapes = ", ".join(sorted({f"{value.dtype}{list(value.shape)}" for value in values}))
        raise BadInput(f"{OWNER}: expected {count} arrays of one shape and type, got {len(values)} ({shapes or 'none'})")
    if kind in REDUCING and values[0].dtype == np.bool_:
        raise BadInput(f"{OWNER}: {kind} adds numbers, and these are bool: give them as int8")
    if kind == "all_to_all" and values[0].size % count:
        raise BadInput(f"{OWNER}: {values[0].size} elements do not divide among {count} devices: give each a multiple of {count}")
    if kind == "all_gather":
        rows = [np.zeros((count, value.size), value.dtype) for value in values]
        for rank, value in enumerate(values):
            rows[rank][rank] = value.ravel()
        return rows, count * values[0].size
    part = -(-values[0].size // count)
    rows = [np.zeros((count, part), value.dtype) for value in values]
    for held, value in zip(rows, values, strict=True):
        held.reshape(-1)[: value.size] = value.ravel()
    return rows, values[0].size


def results_of_devices(kind: str, values: Sequence[Array], rows: Sequence[Array], root: int) -> list[Array]:
    """The results of all devices, from their matrices, without padding."""
    shape, size = values[0].shape, values[0].size
    if kind == "all_gather":
        return [held.reshape(-1) for held in rows]
    if kind == "reduce_scatter":
        part = rows[0].shape[1]
        return [held[rank][: max(0, size - rank * part)].copy() for rank, held in enumerate(rows)]
    whole = [held.reshape(-1)[:size].reshape(shape) for held in rows]
    return [held if kind != "reduce" or rank == root else values[rank].copy() for rank, held in enumerate(whole)]


def _around(kind: str, lane: Lane, rows: Sequence[Array], carrier: Carrier, root: int) -> None:
    """One ring's columns, in place."""
    if kind in STREAMS:
        _through(kind, lane, rows, carrier, root)
    if kind in ("reduce_scatter", "all_reduce"):
        _rounds(lane, rows, carrier, ahead=1, add=True)
    if kind in ("all_gather", "all_reduce"):
        _rounds(lane, rows, carrier, ahead=0, add=False)


def _rounds(lane: Lane, rows: Sequence[Array], carrier: Carrier, *, ahead: int, add: bool) -> None:
    """In each round the device at place p sends the part of the device `ahead` + round places before it.

    To scatter, all begin with the part of the device before them and end having added to their own; to gather, with their own.
    """
    count = len(lane.ranks)
    for turn in range(count - 1):
        arriving = []
        for place, rank in enumerate(lane.ranks):
            owner = lane.ranks[(place - ahead - turn) % count]
            arriving.append((place, owner, carrier.carry(lane.segments[place].arcs, rows[rank][owner])))
        for place, owner, data in arriving:
            held = rows[lane.ranks[(place + 1) % count]][owner]
            held[:] = held + data if add else data


def _through(kind: str, lane: Lane, rows: Sequence[Array], carrier: Carrier, root: int) -> None:
    """Part after part along the ring: from the root (broadcast), or to it, added up on the way (reduce)."""
    count = len(lane.ranks)
    start = lane.ranks.index(root) + (kind == "reduce")
    for turn in range(2 * (count - 1)):
        for step in reversed(range(count - 1)):  # the farthest first: what arrives in a round is sent on in the next
            part, place = turn - step, (start + step) % count
            if 0 <= part < count:
                data = carrier.carry(lane.segments[place].arcs, rows[lane.ranks[place]][part])
                held = rows[lane.ranks[(place + 1) % count]][part]
                held[:] = held + data if kind == "reduce" else data


def _in_steps(fabric: Fabric, kind: str, algorithm: str, rows: Sequence[Array], carrier: Carrier, root: int) -> None:
    """Everything a step sends leaves before anything of it arrives."""
    brought = [held.copy() for held in rows]  # what an all-to-all sends is what was there before it
    for step in switched.steps_of(kind, len(fabric.devices), root):
        routes = fabric.routes([(send.source, send.target) for send in step], algorithm)
        arriving = []
        for send, paths in zip(step, routes, strict=True):
            source = brought if kind == "all_to_all" else rows
            arriving.append((send, carrier.spread(paths, source[send.source][list(send.parts)].reshape(-1))))
        for send, data in arriving:
            held, parts = rows[send.target], list(send.parts)
            if kind == "all_to_all":
                held[send.source] = data
            elif send.add:
                held[parts] += data.reshape(len(parts), -1)
            else:
                held[parts] = data.reshape(len(parts), -1)


def _up_and_down(fabric: Fabric, kind: str, algorithm: str, rows: Sequence[Array], carrier: Carrier, root: int) -> None:
    """Both trees: children before their parents on the way up, after them on the way down."""
    edges = double_tree.edges_of(fabric, kind, root)
    cut = double_tree.halves(rows[0].shape[1])[0]
    for number, tree in enumerate(edges.trees):
        own = [held[:, :cut] if number == 0 else held[:, cut:] for held in rows]
        for child in reversed(tree.order) if edges.up else ():
            data = carrier.spread(edges.up[number, child], own[child].reshape(-1))
            own[tree.parent[child]][:] += data.reshape(own[child].shape)
        for child in tree.order if edges.down else ():
            data = carrier.spread(edges.down[number, child], own[tree.parent[child]].reshape(-1))
            own[child][:] = data.reshape(own[child].shape)
