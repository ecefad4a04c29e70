"""A node as a graph: device-nodes, memory-nodes, sockets and switches, joined by full-duplex wires.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018, Sec. III-B: devices
and memory-nodes have N links of B bytes/s each way; a memory-node's links and its memory are split evenly among its client devices,
each of which owns its share alone. Any graph can be written: several wires between two places, PCIe switches with a shared uplink,
big switches. Rings (`hardware.topology.rings`) and backing memories (`Topology.stores`) are derived from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, UnknownName
from trainyard.units import parse, unit_of_field

Kind = Literal["device", "memory", "socket", "switch"]
Arc = tuple[int, int]
"""A wire's number, and 0 from its end `a` to its end `b` or 1 back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A vertex of the graph. A memory-node or socket may limit its memory: rate (`memory_bytes_per_s`), size (`capacity_bytes`).

    `latency_s` is that of one access to its memory; `serves` names its client devices where they do not follow from the wires.
    """

    name: str
    kind: Kind
    memory_bytes_per_s: float | None = None
    capacity_bytes: int | None = None
    latency_s: float = 0.0
    serves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise BadInput(f"a place needs a name, got {self.name!r}")
        if self.kind not in get_args(Kind):
            raise UnknownName("kind of place", str(self.kind), get_args(Kind), where=f"place '{self.name}'")
        owner = f"place '{self.name}'"
        if self.memory_bytes_per_s is not None:
            require_quantity(owner, memory_bytes_per_s=self.memory_bytes_per_s)
        if self.capacity_bytes is not None:
            require_positive(owner, capacity_bytes=self.capacity_bytes)
        require_quantity(owner, zero=True, latency_s=self.latency_s)
        if self.kind not in ("memory", "socket") and (self.memory_bytes_per_s, self.capacity_bytes, self.serves) != (
            None,
            None,
            (),
        ):
            raise BadInput(f"{owner}: a {self.kind} is no store: only memory and sockets have a memory and devices that they serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A full-duplex link: `bytes_per_s` each way at once."""

    a: str
    b: str
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        owner = f"wire {self.a} - {self.b}"
        require_quantity(owner, bytes_per_s=self.bytes_per_s)
        require_quantity(owner, zero=True, latency_s=self.latency_s)
        if self.a == self.b:
            raise BadInput(f"{owner}: a wire joins two different places")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A backing memory of one device: its share of `place`, and one path of arcs to it for each wire that leads there.

    `sharers` devices own equal parts; `bytes_per_s` and `capacity_bytes` are one part (None: no limit but the lanes).
    """

    place: str
    lanes: tuple[tuple[Arc, ...], ...]
    sharers: int
    bytes_per_s: float | None
    capacity_bytes: int | None
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The interconnect of a node.

    >>> two = Topology.from_table({
    ...     "places": [{"name": "D0", "kind": "device"}, {"name": "M0", "kind": "memory", "memory_bytes_per_s": "256 GB/s"}],
    ...     "wires": [{"a": "D0", "b": "M0", "bytes_per_s": "25 GB/s", "count": 2}],
    ... })
    >>> two.stores("D0")[0].lanes
    (((0, 0),), ((1, 0),))
    """

    places: tuple[Place, ...]
    wires: tuple[Wire, ...]
    name: str = ""

    def __post_init__(self) -> None:
        names = [place.name for place in self.places]
        if _has_duplicates(names):
            raise BadInput(f"{self.label}: two places are named '{next(name for name in names if names.count(name) > 1)}'")
        known_names = set(names)
        for number, wire in enumerate(self.wires):
            for end in (wire.a, wire.b):
                if end not in known_names:
                    raise UnknownName("place", end, names, where=f"wire {number} ({wire.a} - {wire.b}) of {self.label}")
        devices = frozenset(self.devices)
        if not devices:
            raise BadInput(f"{self.label} has no device: write at least one place of kind 'device'")
        for place in self.places:
            for client in place.serves:
                if client not in devices:
                    raise UnknownName("device", client, devices, where=f"what '{place.name}' serves")
            if _has_duplicates(place.serves):
                raise BadInput(f"place '{place.name}' serves a device twice: {', '.join(place.serves)}")

    def __hash__(self) -> int:
        """A cheap hash, for large nodes are looked up often; equality still compares everything."""
        return hash((self.name, len(self.places), len(self.wires), self.places[:2], self.wires[:2], self.wires[-1:]))

    @property
    def label(self) -> str:
        return f"topology '{self.name}'" if self.name else "the topology"

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.places if place.kind == "device")

    def place(self, name: str) -> Place:
        for place in self.places:
            if place.name == name:
                return place
        raise UnknownName("place", name, [place.name for place in self.places], where=self.label)

    def wires_at(self, name: str) -> tuple[int, ...]:
        """Numbers of the wires that end at a place."""
        self.place(name)
        return tuple(number for number, wire in enumerate(self.wires) if name in (wire.a, wire.b))

    def stores(self, device: str) -> tuple[Store, ...]:
        """The backing memories of a device, in the order of `places`; none: an empty tuple.

        Where any place says whom it `serves`, those that serve the device; else the nearest memory-nodes by hops through
        switches, or without any the nearest sockets.
        """
        if self.place(device).kind != "device":
            raise BadInput(f"'{device}' is a {self.place(device).kind}, no device: stores belong to devices")
        return _stores(self).get(device, ())

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Topology:
        """From what a TOML file holds: `places` and `wires`, quantities as numbers or with units; a wire's `count` repeats it."""
        _require_keys(table, ("name", "places", "wires"), "topology")
        places = [_row(row, Place, f"places[{number}]") for number, row in enumerate(_rows(table, "places"))]
        wires: list[Wire] = []
        for number, row in enumerate(_rows(table, "wires")):
            count = row.get("count", 1)
            require_positive(f"wires[{number}]", count=count)
            wires += [_row(row, Wire, f"wires[{number}]", also=("count",))] * count
        return cls(places=tuple(places), wires=tuple(wires), name=table.get("name", ""))

    def to_table(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; `from_table` gives the same topology back."""
        places = [_plain(place, Place(name=place.name, kind=place.kind), ("name", "kind")) for place in self.places]
        wires: list[dict[str, Any]] = []
        for number, wire in enumerate(self.wires):
            if number and wire == self.wires[number - 1]:
                wires[-1]["count"] = wires[-1].get("count", 1) + 1
            else:
                wires.append(_plain(wire, Wire(a="a", b="b", bytes_per_s=1), ("a", "b", "bytes_per_s")))
        return ({"name": self.name} if self.name else {}) | {"places": places, "wires": wires}


def _has_duplicates(names: Sequence[str]) -> bool:
    return len(set(names)) < len(names)


def _require_keys(row: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in row:
        if key not in known:
            raise UnknownName("key", str(key), known, where=where)


def _rows(table: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = table.get(key, ())
    if not isinstance(rows, list | tuple):
        raise BadInput(f"topology: {key} must be a list of tables, got {rows!r}")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise BadInput(f"{key}[{number}]: expected a table, got {row!r}")
    return rows


def _row(row: Mapping[str, Any], kind: type[Any], where: str, also: tuple[str, ...] = ()) -> Any:
    """A part from its table; keys in `also` are not the part's own."""
    fields = kind.__dataclass_fields__
    _require_keys(row, (*fields, *also), where)
    fields_of_part: dict[str, Any] = {}
    for key, value in row.items():
        if key in also:
            continue
        unit = unit_of_field(f"_{key}")
        number = parse(value, unit, f"{where}.{key}") if unit else value
        if key == "capacity_bytes":
            if number != int(number):
                raise BadInput(f"{where}.{key}: {value!r} is not a whole number of bytes")
            number = int(number)
        if key == "serves":
            if not isinstance(value, list | tuple):
                raise BadInput(f"{where}.{key}: expected a list of devices, got {value!r}")
            number = tuple(value)
        fields_of_part[key] = number
    missing = [name for name in ("name", "kind", "a", "b", "bytes_per_s") if name in fields and name not in fields_of_part]
    if missing:
        raise BadInput(f"{where}: '{missing[0]}' is missing")
    return kind(**fields_of_part)


def _plain(value: Any, default: Any, always: tuple[str, ...]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name in value.__dataclass_fields__:
        field = getattr(value, name)
        if name in always or field != getattr(default, name):
            unit = unit_of_field(f"_{name}")
            table[name] = list(field) if isinstance(field, tuple) else f"{_digits(field)} {unit}" if unit else field
    return table


def _digits(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))


# ---- backing memories
Neighbours = dict[str, dict[str, list[Arc]]]
"""From a place to each of its neighbours, the arcs that lead there."""


def neighbours_of(topology: Topology) -> Neighbours:
    neighbours: Neighbours = {place.name: {} for place in topology.places}
    for number, wire in enumerate(topology.wires):
        neighbours[wire.a].setdefault(wire.b, []).append((number, 0))
        neighbours[wire.b].setdefault(wire.a, []).append((number, 1))
    return neighbours


def host_places(topology: Topology, neighbours: Neighbours) -> set[str]:
    """Sockets, and the switches that hang below them (PCIe): collectives do not pass these."""
    kinds = {place.name: place.kind for place in topology.places}
    queue = [name for name, kind in kinds.items() if kind == "socket"]
    host = set(queue)
    while queue:
        below = [name for name in neighbours[queue.pop()] if kinds[name] == "switch" and name not in host]
        host.update(below)
        queue += below
    return host


@lru_cache(maxsize=64)
def _stores(topology: Topology) -> dict[str, tuple[Store, ...]]:
    places = {place.name: place for place in topology.places}
    neighbours = neighbours_of(topology)
    clients: dict[str, list[str]] = {place.name: list(place.serves) for place in topology.places}
    if not any(clients.values()):
        for device in topology.devices:
            for name in _nearest(device, neighbours, places):
                clients[name].append(device)
    stores_of_device: dict[str, list[Store]] = {}
    for name, devices in clients.items():
        for device in devices:
            stores_of_device.setdefault(device, []).append(_store(device, places[name], len(devices), neighbours, places))
    return {device: tuple(stores) for device, stores in stores_of_device.items()}


def _nearest(device: str, neighbours: Neighbours, places: Mapping[str, Place]) -> list[str]:
    hops = _hops(device, neighbours, places, through=("switch",))
    for kind in ("memory", "socket"):
        reached = {name: count for name, count in hops.items() if places[name].kind == kind}
        if reached:
            return [name for name, count in reached.items() if count == min(reached.values())]
    return []


def _hops(
    start: str, neighbours: Neighbours, places: Mapping[str, Place], through: Sequence[str], goal: str = ""
) -> dict[str, int]:
    """Hops from `start` to all places reachable through places of these kinds; the search stops at `goal`."""
    hops, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        if here == start or places[here].kind in through:
            if goal in neighbours[here]:
                return hops | {goal: hops[here] + 1}
            for there in neighbours[here]:
                if there not in hops:
                    hops[there] = hops[here] + 1
                    queue.append(there)
    return hops


def _store(device: str, place: Place, sharers: int, arcs_to: Neighbours, places: Mapping[str, Place]) -> Store:
    """The lanes of a store: one for each wire of the device on a shortest path; after that, the least used arcs."""
    hops = _hops(place.name, arcs_to, places, through=("switch", "memory", "socket"), goal=device)
    if device not in hops:
        raise BadInput(f"'{place.name}' serves '{device}', but every way there passes another device, or there is none")

    def onward(here: str) -> list[tuple[Arc, str]]:
        nearer = [name for name in hops if hops[name] == hops[here] - 1 and name in arcs_to[here] and places[name].kind != "device"]
        return [(arc, there) for there in nearer for arc in arcs_to[here][there]]

    uses: dict[Arc, int] = {}
    lanes: list[tuple[Arc, ...]] = []
    for first, there in sorted(onward(device)):
        lane, here = [first], there
        while here != place.name:
            arc, here = min(onward(here), key=lambda candidate: (uses.get(candidate[0], 0), candidate[0]))
            uses[arc] = uses.get(arc, 0) + 1
            lane.append(arc)
        lanes.append(tuple(lane))
    return Store(
        place=place.name,
        lanes=tuple(lanes),
        sharers=sharers,
        bytes_per_s=None if place.memory_bytes_per_s is None else place.memory_bytes_per_s / sharers,
        capacity_bytes=None if place.capacity_bytes is None else place.capacity_bytes // sharers,
        latency_s=place.latency_s,
    )
