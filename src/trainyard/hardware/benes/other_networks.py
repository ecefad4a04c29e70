"""Distribution networks that SIGMA compares its Benes network with, behind one interface: crossbar, tree, bus, butterfly, mesh.

SIGMA (HPCA 2020), Sec. IV-A1 names them: a crossbar never blocks but grows with N^2; buses, trees, butterflies and meshes have few
wires and block, which shows as distribution delay. The paper gives no rule for the delay; each class states its own. All copy an
element for free where it branches. `cycles` is the delay of a vector, 0 where all outputs are idle; `blocks` says whether elements
of a vector have to wait for each other; `deliver` moves values by the settings of `route`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.benes.network import Flags, Floats, Integers, Settings, checked_sources, checked_values, require_ports


class Distribution(Protocol):
    """From N input ports to N multipliers: sources[vectors, N] names the input port of every output, -1 an idle output."""

    @property
    def ports(self) -> int: ...
    @property
    def switches(self) -> int: ...
    @property
    def wires(self) -> int: ...
    def route(self, sources: npt.ArrayLike) -> Any: ...
    def deliver(self, settings: Any, values: npt.ArrayLike) -> Floats: ...
    def cycles(self, sources: npt.ArrayLike) -> Integers: ...
    def blocks(self, sources: npt.ArrayLike) -> Flags: ...


def distinct_sources(sources: Integers) -> Integers:
    """Input ports that a vector reads; the rest of a multicast is free.

    >>> distinct_sources(np.array([[2, 2, -1, 0], [-1, -1, -1, -1]]))
    array([2, 0])
    """
    ordered = np.sort(sources, axis=1)
    return np.asarray((ordered[:, :1] >= 0).sum(axis=1) + ((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] >= 0)).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The common part of all networks: checks of ports, sources and values; a vector blocks if it takes a second cycle."""

    ports: int

    def __post_init__(self) -> None:
        require_ports(type(self).__name__, self.ports)

    def _sources(self, sources: npt.ArrayLike) -> Integers:
        return checked_sources(type(self).__name__, self.ports, sources)

    def _values(self, vectors: int, values: npt.ArrayLike) -> Floats:
        return checked_values(type(self).__name__, self.ports, vectors, values)

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        raise NotImplementedError

    def blocks(self, sources: npt.ArrayLike) -> Flags:
        return np.asarray(self.cycles(sources) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossbar(_Network):
    """N^2 crosspoints, every output on one of them: one cycle, never blocks.

    >>> network = Crossbar(ports=4)
    >>> network.switches, network.deliver(network.route([[3, 3, 0, -1]]), [[1.0, 2.0, 3.0, 4.0]])
    (16, array([[4., 4., 1., 0.]], dtype=float32))
    """

    @property
    def switches(self) -> int:
        """Crosspoints."""
        return self.ports * self.ports

    @property
    def wires(self) -> int:
        """Row and column lines."""
        return 2 * self.ports

    def route(self, sources: npt.ArrayLike) -> Flags:
        """Closed crosspoints [vectors, outputs, inputs]."""
        sources_of_outputs = self._sources(sources)
        return np.asarray(sources_of_outputs[:, :, None] == np.arange(self.ports))

    def deliver(self, settings: Flags, values: npt.ArrayLike) -> Floats:
        inputs = self._values(len(settings), values)
        selected = np.take_along_axis(inputs, settings.argmax(axis=2), axis=1)
        return np.where(settings.any(axis=2), selected, np.float32(0))

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        return np.asarray((self._sources(sources) >= 0).any(axis=1), dtype=np.int64)

    def blocks(self, sources: npt.ArrayLike) -> Flags:
        return np.zeros(len(self._sources(sources)), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The element that enters at the root in each cycle, and the slot that each output latches."""

    slots: Integers  # [vectors, cycles, elements of a cycle]: input port, -1 an empty slot
    cycle: Integers  # [vectors, ports]: cycle in which an output latches, -1: idle
    lane: Integers  # [vectors, ports]: slot of that cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(_Network):
    """One root, `bandwidth` elements per cycle, copied on the way down: ceil(distinct sources / bandwidth) cycles.

    As in MAERI and Eyeriss v2 (refs. 27 and 11 of the paper). A link carries min(bandwidth, leaves below it) elements, so that only
    the root limits: MAERI's chubby links. Elements leave in the order of their ports. A vector blocks if it needs a second cycle.

    >>> Tree(ports=8, bandwidth=2).cycles([[0, 0, 1, 1, 2, 2, 2, 2], [5, 5, 5, 5, 5, 5, 5, 6]])
    array([2, 1])
    """

    bandwidth: int

    def __post_init__(self) -> None:
        _Network.__post_init__(self)
        require_positive(type(self).__name__, bandwidth=self.bandwidth)
        if self.bandwidth > self.ports:
            raise BadInput(f"Tree: bandwidth {self.bandwidth} is above its {self.ports} leaves: write at most {self.ports}")

    @property
    def switches(self) -> int:
        """Branching nodes."""
        return self.ports - 1

    @property
    def wires(self) -> int:
        below = (self.ports >> depth for depth in range(1, self.ports.bit_length()))
        return sum(self.ports // leaves * min(self.bandwidth, leaves) for leaves in below)

    def route(self, sources: npt.ArrayLike) -> Schedule:
        sources_of_outputs = self._sources(sources)
        read = (sources_of_outputs[:, :, None] == np.arange(self.ports)).any(axis=1)
        slot_of_port = np.where(read, read.cumsum(axis=1) - 1, -1)
        slots = np.full(
            (len(sources_of_outputs), int(-(-read.sum(axis=1).max(initial=1) // self.bandwidth)), self.bandwidth),
            -1,
            dtype=np.int64,
        )
        vector, port = np.nonzero(read)
        slot = slot_of_port[vector, port]
        slots[vector, slot // self.bandwidth, slot % self.bandwidth] = port
        slot_of_output = np.take_along_axis(slot_of_port, np.maximum(sources_of_outputs, 0), axis=1)
        idle = sources_of_outputs < 0
        return Schedule(
            slots=slots,
            cycle=np.where(idle, -1, slot_of_output // self.bandwidth),
            lane=np.where(idle, -1, slot_of_output % self.bandwidth),
        )

    def deliver(self, settings: Schedule, values: npt.ArrayLike) -> Floats:
        inputs = self._values(len(settings.slots), values)
        results, vector = np.zeros_like(inputs), np.arange(len(inputs))[:, None]
        for cycle in range(settings.slots.shape[1]):
            root = inputs[vector, settings.slots[:, cycle]]  # this cycle's elements, which reach every leaf
            results = np.where(settings.cycle == cycle, root[vector, settings.lane], results)
        return results

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        return -(-distinct_sources(self._sources(sources)) // self.bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus(Tree):
    """One element per cycle, heard by all: as many cycles as distinct sources. Its one shared wire has a tap per port.

    >>> Bus(ports=4).cycles([[3, 1, 1, 0]]), Bus(ports=4).wires
    (array([3]), 1)
    """

    bandwidth: int = 1

    def __post_init__(self) -> None:
        Tree.__post_init__(self)
        if self.bandwidth != 1:
            raise BadInput(f"Bus: bandwidth is one element per cycle, got {self.bandwidth}: write Tree(bandwidth={self.bandwidth})")

    @property
    def switches(self) -> int:
        return 0

    @property
    def wires(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Butterfly(_Network):
    """log2 N levels of N/2 switches, one path from each input to each output.

    After level l the l + 1 highest bits of the port are the output's. Connections that meet on a wire with different sources go in
    different passes, one per cycle. Whether a map blocks is exact (paths are unique); the number of passes is greedy, each output
    in the first pass that has room for it, in the order of the outputs: an upper bound of what is needed.

    >>> Butterfly(ports=4).cycles([[0, 1, 2, 3], [3, 3, 3, 3], [0, 2, 1, 3]])  # 0 and 1 both cross to one wire in the last
    array([1, 1, 2])
    """

    @property
    def levels(self) -> int:
        return self.ports.bit_length() - 1

    @property
    def switches(self) -> int:
        return self.levels * self.ports // 2

    @property
    def wires(self) -> int:
        """Between the levels."""
        return (self.levels - 1) * self.ports

    def route(self, sources: npt.ArrayLike) -> Settings:
        """Passes with, for each level and wire, 1 where the wire takes its value from the other wire of its switch."""
        sources_of_outputs = self._sources(sources)
        number = self._passes(sources_of_outputs)
        vector, chosen = np.nonzero(np.arange(number.max(initial=0) + 1) <= np.maximum(number.max(axis=1), 0)[:, None])
        enable = (number[vector] == chosen[:, None]) & (sources_of_outputs[vector] >= 0)
        bits = np.zeros((len(vector), self.levels, self.ports), dtype=np.uint8)
        run, end = np.nonzero(enable)
        wire = sources_of_outputs[vector[run], end]
        for level in range(self.levels):
            stride = self.ports >> (level + 1)
            crossed, wire = (wire ^ end) & stride, (wire & ~stride) | (end & stride)
            bits[run, level, wire] = crossed > 0
        return Settings(bits=bits, enable=enable, row=vector, vectors=len(sources_of_outputs))

    def _passes(self, sources_of_outputs: Integers) -> Integers:
        from trainyard.kernels.networks.benes import first_fit

        number = np.empty_like(sources_of_outputs)
        first_fit(sources_of_outputs, self.levels, number)
        return number

    def deliver(self, settings: Settings, values: npt.ArrayLike) -> Floats:
        inputs = self._values(settings.vectors, values)
        moved, wires = inputs[settings.row], np.arange(self.ports)
        for level in range(self.levels):
            other = wires ^ (self.ports >> (level + 1))
            moved = np.where(settings.bits[:, level] == 1, moved[:, other], moved)
        results = np.zeros_like(inputs)
        run, end = np.nonzero(settings.enable)
        results[settings.row[run], end] = moved[run, end]
        return results

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        return np.asarray(self._passes(self._sources(sources)).max(axis=1) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(_Network):
    """Rows x columns of nodes (square, or twice as wide), inputs at the left edge, X first, then Y, a copy wherever paths part.

    Input and output p belong to row p // columns. Each link, that from the edge included, carries one element per cycle; an element
    waits at a node, first come, first served, the lower port first among those that come together. Buffers are not bounded
    (assumed: the paper says nothing of its mesh). A node at column c of the row of entry has the row's first element after 1 + c
    cycles.

    >>> mesh = Mesh(ports=4)
    >>> mesh.cycles([[0, 1, 2, 3], [0, 0, 0, 0], [-1, -1, -1, 0]])  # 1 and 3 wait at the edge; 0 reaches the far corner in 3
    array([3, 3, 3])
    """

    @property
    def rows(self) -> int:
        return 1 << ((self.ports.bit_length() - 1) // 2)

    @property
    def columns(self) -> int:
        return self.ports // self.rows

    @property
    def switches(self) -> int:
        """Nodes."""
        return self.ports

    @property
    def wires(self) -> int:
        """Links from the edge, along the rows, and both ways along the columns."""
        return self.rows + self.rows * (self.columns - 1) + 2 * self.columns * (self.rows - 1)

    def route(self, sources: npt.ArrayLike) -> Integers:
        """X then Y needs no settings: the sources, checked."""
        return self._sources(sources)

    def deliver(self, settings: Integers, values: npt.ArrayLike) -> Floats:
        """Element by element, cycle by cycle (plain Python)."""
        inputs = self._values(len(settings), values)
        return np.stack([plain_mesh(self, row.tolist(), value)[0] for row, value in zip(settings, inputs, strict=True)])

    def arrivals(self, sources: npt.ArrayLike) -> tuple[Integers, Flags]:
        """Cycle in which each output has its element (0: idle), and whether two elements shared a link."""
        from trainyard.kernels.networks.benes import mesh_arrivals

        sources_of_outputs = self.route(sources)
        arrivals, shared = np.zeros_like(sources_of_outputs), np.zeros(len(sources_of_outputs), dtype=np.bool_)
        mesh_arrivals(sources_of_outputs, self.rows, self.columns, arrivals, shared)
        return arrivals, shared

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        return np.asarray(self.arrivals(sources)[0].max(axis=1))

    def blocks(self, sources: npt.ArrayLike) -> Flags:
        return self.arrivals(sources)[1]


def plain_mesh(mesh: Mesh, sources: list[int], values: Floats) -> tuple[Floats, list[int]]:
    """The mesh with values in plain Python, every node and link cycle by cycle: the reference of the compiled arrival times."""
    edge, results = -1, np.zeros_like(values)
    arrivals = [0] * mesh.ports
    wants = {s: {d for d, wanted in enumerate(sources) if wanted == s} for s in sources if s >= 0}
    waiting: dict[tuple[int, int], list[tuple[int, int, set[int], np.float32]]] = {}  # link: (since, port, outputs beyond, value)

    def reach(node: int, port: int, outputs: set[int], value: np.float32, cycle: int) -> None:
        """An element arrives at a node: it is taken if its output is here, and queued at each link towards its other outputs."""
        row, column = divmod(node, mesh.columns)
        next_hops: dict[int, set[int]] = {}
        for output in outputs:
            to_row, to_column = divmod(output, mesh.columns)
            if output == node:
                results[node], arrivals[node] = value, cycle
            elif to_column != column:
                next_hops.setdefault(node + 1, set()).add(output)
            else:
                next_hops.setdefault(node + (mesh.columns if to_row > row else -mesh.columns), set()).add(output)
        for target, beyond in next_hops.items():
            waiting.setdefault((node, target), []).append((cycle, port, beyond, value))

    for port, outputs in sorted(wants.items()):
        entry = port // mesh.columns * mesh.columns
        waiting.setdefault((edge, entry), []).append((0, port, outputs, values[port]))
    cycle = 0
    while waiting:
        cycle += 1
        moved = [(link, queue.pop(queue.index(min(queue, key=lambda item: item[:2])))) for link, queue in waiting.items()]
        waiting = {link: queue for link, queue in waiting.items() if queue}
        for (_, target), (_, port, outputs, value) in moved:
            reach(target, port, outputs, value, cycle)
    return results, arrivals
