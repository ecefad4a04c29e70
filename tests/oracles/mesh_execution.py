"""The mesh between Flex-DPEs with real data: switches are set once per mapping, elements move link by link, cycle by cycle.

`hardware.benes.mesh` has the closed form (`hops`, `delays`) that this execution checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainyard.errors import BadInput
from trainyard.hardware.benes.mesh import Mesh, delays

EDGE = -1
"""The SRAM, as a neighbour of the first row."""

Link = tuple[int, int]
Packet = tuple[int, Sequence[object]]
"""A group, and elements for it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """How one switch treats one group's data: where they come from, where they go, whether its own Flex-DPE takes them."""

    source: int
    feeds: tuple[int, ...]
    local: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every switch does for every group that comes through it; `entry` and `hops` are those of each group."""

    mesh: Mesh
    groups: tuple[range, ...]
    switches: tuple[Mapping[int, Lane], ...]
    entry: tuple[int, ...]
    hops: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """`received` by each Flex-DPE, in order; `arrivals`: the cycle of each element of each packet, counted from 1.

    `load` is the most that each link carried in one cycle.
    """

    received: tuple[tuple[object, ...], ...]
    arrivals: tuple[tuple[int, ...], ...]
    load: Mapping[Link, int]

    @property
    def cycles(self) -> int:
        return max((cycle for packet in self.arrivals for cycle in packet), default=0)


def configure(mesh: Mesh, groups: Sequence[range]) -> Settings:
    """Settings of all switches for disjoint runs of Flex-DPEs."""
    _require_groups(mesh, groups)
    switches: list[dict[int, Lane]] = [{} for _ in range(mesh.switches)]
    entries = tuple(map(mesh._entry, groups))
    for label, (group, entry) in enumerate(zip(groups, entries, strict=True)):
        row, column = mesh.place(entry)
        path = [EDGE, *(mesh.number(above, column) for above in range(row)), entry]
        for before, here, after in zip(path, path[1:-1], path[2:], strict=False):
            switches[here][label] = Lane(before, (after,), local=False)
        for number in group:
            inward = path[-2] if number == entry else number + (1 if number < entry else -1)
            outward = [other for other in (number - 1, number + 1) if other in group and other != inward]
            switches[number][label] = Lane(inward, tuple(outward), local=True)
    return Settings(
        mesh=mesh,
        groups=tuple(groups),
        switches=tuple(switches),
        entry=tuple(mesh.number(0, mesh.place(entry)[1]) for entry in entries),
        hops=tuple(mesh.place(entry)[0] for entry in entries),
    )


def _require_groups(mesh: Mesh, groups: Sequence[range]) -> None:
    for group in groups:
        if group.step != 1 or not group or group.start < 0 or group.stop > mesh.switches:
            raise BadInput(f"Mesh: {group} is no run of Flex-DPEs 0 to {mesh.switches - 1}")
    for first, second in pairwise(sorted(groups, key=lambda group: group.start)):
        if second.start < first.stop:
            raise BadInput(f"Mesh: {first} and {second} share Flex-DPEs; groups must be disjoint")


def timetable(settings: Settings, packets: Sequence[Packet]) -> list[list[int]]:
    """The cycle in which the SRAM sends each element of each packet: in order, `bandwidth` a cycle, nothing overtaken.

    The element with number q (over all packets) leaves in cycle q // bandwidth + 1 and the delay of its packet, and arrives after
    the hops of its group.
    """
    sent, actual = 0, []
    waited = delays([settings.hops[group] for group, _ in packets])
    for (_, elements), delay in zip(packets, waited, strict=True):
        actual.append([number // settings.mesh.bandwidth + 1 + delay for number in range(sent, sent + len(elements))])
        sent += len(elements)
    return actual


def deliver(settings: Settings, packets: Sequence[Packet], leaves: Sequence[Sequence[int]] | None = None) -> Delivery:
    """Moves elements along the links that are set, cycle by cycle; `leaves` is another timetable of the SRAM."""
    leaves = timetable(settings, packets) if leaves is None else leaves
    departing: dict[int, list[tuple[int, int]]] = {}
    for packet, cycles in enumerate(leaves):
        for position, cycle in enumerate(cycles):
            departing.setdefault(cycle, []).append((packet, position))
    received: list[list[object]] = [[] for _ in settings.switches]
    arrivals = [[0] * len(elements) for _, elements in packets]
    most: Counter[Link] = Counter()
    moving: list[tuple[int, int, tuple[int, int]]] = []  # a link's two ends, and the element that crosses it this cycle
    cycle = min(departing, default=0)
    while departing or moving:
        moving += [(EDGE, settings.entry[packets[packet][0]], (packet, at)) for packet, at in departing.pop(cycle, ())]
        moving = sorted(moving, key=lambda crossing: crossing[2])  # in the order of sending
        load: Counter[Link] = Counter()
        after: list[tuple[int, int, tuple[int, int]]] = []
        for source, target, element in moving:
            group, elements = packets[element[0]]
            for link, lane in _wire(settings, group, (source, target)):
                load[link] += 1
                if lane.local:
                    received[link[1]].append(elements[element[1]])
                    arrivals[element[0]][element[1]] = cycle
                else:
                    after += [(link[1], further, element) for further in lane.feeds]
        _require_room(settings.mesh, load, cycle)
        most |= load
        moving, cycle = after, cycle + 1
    return Delivery(received=tuple(map(tuple, received)), arrivals=tuple(map(tuple, arrivals)), load=dict(most))


def _wire(settings: Settings, group: int, link: Link) -> Iterator[tuple[Link, Lane]]:
    """Links that an element crosses in one cycle: one, or, inside its own group, all that the switches join to a bus."""
    reached = [link]
    for source, target in reached:
        lane = settings.switches[target].get(group)
        if lane is None or lane.source != source:
            raise BadInput(f"Mesh: switch {target} is not set to take data of group {group} from {source}")
        if lane.local:
            reached += [(target, further) for further in lane.feeds]
        yield (source, target), lane


def _require_room(mesh: Mesh, load: Mapping[Link, int], cycle: int) -> None:
    total = sum(count for (source, _), count in load.items() if source == EDGE)
    for (source, target), count in (*load.items(), ((EDGE, EDGE), total)):
        if count > mesh.bandwidth:
            where = "the SRAM" if target == EDGE else f"the link from {'the SRAM' if source == EDGE else source} to {target}"
            raise BadInput(
                f"Mesh: {count} elements on {where} in cycle {cycle}, it carries {mesh.bandwidth}: send them by Mesh's timetable"
            )
