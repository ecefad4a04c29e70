"""A device's backing memories: the lanes that its copies take, and its share of their bandwidth.

Copies of all devices run at the same time, so a wire or a memory that several devices need is divided among them (a PCIe switch's
uplink, a socket's memory). Each memory-node's group belongs to one device (MC-DLA, Sec. III-A) and is not shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from trainyard.hardware.topology.graph import Arc, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """One backing memory of one device. `bytes_per_s` is its rate in each direction while all devices copy."""

    place: str
    kind: str
    lanes: tuple[tuple[Arc, ...], ...]
    bytes_per_s: float
    wires_bytes_per_s: float
    memory_bytes_per_s: float | None
    latency_s: float
    capacity_bytes: int | None

    @property
    def arcs(self) -> frozenset[Arc]:
        return frozenset(arc for lane in self.lanes for arc in lane)


@lru_cache(maxsize=256)
def crossing(topology: Topology) -> Mapping[Arc, int]:
    """The number of devices whose copies use each arc, in either direction."""
    counts: Counter[Arc] = Counter()
    for device in topology.devices:
        own = {arc for store in topology.stores(device) for lane in store.lanes for arc in lane}
        counts.update(own | {(wire, 1 - direction) for wire, direction in own})
    return counts


@lru_cache(maxsize=256)
def backings(topology: Topology) -> dict[str, tuple[Backing, ...]]:
    """The backing memories of every device, in the order of the topology."""
    stores = {device: topology.stores(device) for device in topology.devices}
    sharers = crossing(topology)
    table: dict[str, tuple[Backing, ...]] = {}
    for device, own_stores in stores.items():
        rows = []
        for store in own_stores:
            place = topology.place(store.place)
            widths = (
                sum(topology.wires[arc[0]].bytes_per_s / sharers[arc] for arc in set(hop)) for hop in zip(*store.lanes, strict=True)
            )
            memory = store.bytes_per_s
            wires = min(widths)
            rows.append(
                Backing(
                    place=store.place,
                    kind=place.kind,
                    lanes=store.lanes,
                    bytes_per_s=wires if memory is None else min(wires, memory),
                    wires_bytes_per_s=wires,
                    memory_bytes_per_s=memory,
                    latency_s=place.latency_s + sum(topology.wires[wire].latency_s for wire, _ in store.lanes[0]),
                    capacity_bytes=None if place.capacity_bytes is None else place.capacity_bytes // store.sharers,
                )
            )
        table[device] = tuple(rows)
    return table


def copy_s(chosen: Sequence[Backing], sizes: Sequence[int]) -> float:
    """Seconds of a copy of `sizes` bytes to or from each of the stores: those of the slowest.

    Lanes carry whole bytes: where wires are the bound, the fullest lane decides.
    """
    durations = (
        store.latency_s + max(padded_to_lanes(store, size) / store.wires_bytes_per_s, size / store.bytes_per_s)
        for store, size in zip(chosen, sizes, strict=True)
        if size
    )
    return max(durations, default=0.0)


def padded_to_lanes(store: Backing, size: int) -> int:
    """`size` rounded up to a multiple of the number of lanes."""
    return -(-size // len(store.lanes)) * len(store.lanes)


def both_ways_exceed(store: Backing) -> bool:
    """Whether simultaneous copies out and back could exceed the memory's bandwidth."""
    return store.memory_bytes_per_s is not None and store.memory_bytes_per_s < 2 * store.wires_bytes_per_s


def devices_are_equal(topology: Topology) -> bool:
    """Whether one device may be simulated for all: equal stores at equal rates, and no wire shared by two stores of a device."""
    table = backings(topology)
    distinct = {tuple(_parameters(topology, b) for b in rows) for rows in table.values()}
    disjoint = all(sum(len(b.arcs) for b in rows) == len({arc for b in rows for arc in b.arcs}) for rows in table.values())
    first = next(iter(table.values()))
    hops = (hop for store in first for hop in zip(*store.lanes, strict=True))
    even = all(len({topology.wires[wire].bytes_per_s for wire, _ in hop}) == 1 for hop in hops)
    return len(distinct) == 1 and disjoint and even


def _parameters(topology: Topology, store: Backing) -> tuple[object, ...]:
    """All values of a store on which the time, energy or capacity of a copy may depend."""
    speeds = tuple(tuple(topology.wires[wire].bytes_per_s for wire, _ in lane) for lane in store.lanes)
    return store.kind, store.bytes_per_s, store.memory_bytes_per_s, store.latency_s, store.capacity_bytes, speeds


def lane_bytes(topology: Topology, store: Backing, size: int) -> list[int]:
    """Whole bytes of each lane, in proportion to the rate of its narrowest wire."""
    rates = [min(topology.wires[wire].bytes_per_s for wire, _ in lane) for lane in store.lanes]
    edges = [round(size * edge / sum(rates)) for edge in accumulate(rates[:-1])]
    return [right - left for left, right in pairwise([0, *edges, size])]
