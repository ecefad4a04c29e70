"""A node as a picture: places by shape, wires by the ring they lie in. Plain SVG text, complete in itself.

Devices stand on a circle. What joins few of them stands outside, beside its devices (memory-nodes, PCIe switches, sockets behind
them); what joins devices all around stands in the middle (big switches). A memory-node between two neighbours stands on the circle
itself where nothing else would cross it, as in MC-DLA's ring.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trainyard.hardware.topology.graph import Place, Topology, neighbours_of
from trainyard.hardware.topology.rings import Ring
from trainyard.report.colours import PHASES, SPARE
from trainyard.units import show

Point = tuple[float, float]
COLOURS = (*(colour for phase, colour in PHASES.items() if phase != "idle"), *SPARE)
IDLE = "#666666"
# kind -> word in the legend, fill, outline
# fmt: off
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "device": ("device-node",  "#DCE9F5", "#1F4E79"),
    "memory": ("memory-node",  "#DDF2E3", "#1E6B3A"),
    "socket": ("socket",       "#F6E7D2", "#8A5A12"),
    "switch": ("switch",       "#E9E1F3", "#5B3A8C"),
}
# fmt: on
SIZE = 17.0  # half the width of a place
STEP = 78.0  # between neighbours on the circle
LEVEL = 92.0  # from one ring of places to the next
GAP = 8.0  # between parallel wires
LINE = 19  # of the legend


def draw(topology: Topology, rings: Sequence[Ring] = ()) -> str:
    """The node as an SVG document; wires of no ring are grey and dashed.

    >>> from trainyard.hardware.topology.builders import one_device
    >>> draw(one_device(link_bytes_per_s=12e9)).count('class="wire"')
    1
    """
    points = _points(topology)
    groups = _groups(rings)
    of_wire: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for wire in sorted(group.wires):
            of_wire.setdefault(wire, []).append(number)
    legend = _legend(topology, groups, of_wire)
    low_x, low_y = (min(point[axis] for point in points.values()) - 2.2 * SIZE for axis in (0, 1))
    high_x, high_y = (max(point[axis] for point in points.values()) + 2.2 * SIZE for axis in (0, 1))
    width = max(high_x - low_x, 330.0, 8.4 * len(_title(topology)) + 28)
    low_x -= (width - (high_x - low_x)) / 2
    height = high_y - low_y + LINE * len(legend) + 2 * LINE
    title = escape(_title(topology))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{_n(low_x)} {_n(low_y)} {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="img" font-family="system-ui, sans-serif">',
        f"<title>{title}</title>",
        f'<rect class="paper" x="{_n(low_x)}" y="{_n(low_y)}" width="{_n(width)}" height="{_n(height)}" fill="#FFFFFF"/>',
        *_wires(topology, points, of_wire),
        *(_place(place, points[place.name]) for place in topology.places),
        f'<g class="legend" font-size="12" fill="#222222" transform="translate({_n(low_x + 14)} {_n(high_y + LINE)})">',
        f'<text y="4" font-size="13" font-weight="600">{title}</text>',
        *(f'<g transform="translate(0 {LINE * (number + 1)})">{line}</g>' for number, line in enumerate(legend)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _n(number: float) -> str:
    """A coordinate, short and without a negative zero."""
    return f"{round(number, 1) + 0.0:g}"


# ---- rings and the legend
@dataclass(frozen=True, slots=True)
class _Group:
    """Rings on the same wires: one way, or both."""

    wires: frozenset[int]
    hops: int
    ways: int


def _groups(rings: Sequence[Ring]) -> list[_Group]:
    counts = Counter((frozenset(wire for wire, _ in ring.arcs), ring.hops) for ring in rings)
    return [_Group(wires, hops, directions) for (wires, hops), directions in counts.items()]


def _title(topology: Topology) -> str:
    kinds = Counter(place.kind for place in topology.places)
    counted = [
        f"{count} {LOOKS[kind][0]}{'' if count == 1 else 's' if kind != 'switch' else 'es'}" for kind, count in kinds.items()
    ]
    wires = len(topology.wires)
    counted.append("1 wire" if wires == 1 else f"{wires} wires")
    return f"{topology.name or 'node'}: {', '.join(counted)}"


def _legend(topology: Topology, groups: Sequence[_Group], of_wire: Mapping[int, Sequence[int]]) -> list[str]:
    """Lines of SVG: what the shapes are, each ring, and what lies in none."""
    shapes, at = "", 8.0
    for kind in LOOKS:
        if any(place.kind == kind for place in topology.places):
            shapes += _shape(kind, (at, 0), 7) + f'<text x="{_n(at + 12)}" y="4">{LOOKS[kind][0]}</text>'
            at += 34 + 7.2 * len(LOOKS[kind][0])
    lines = [shapes]
    for number, group in enumerate(groups[: len(COLOURS)]):
        slowest = min(topology.wires[wire].bytes_per_s for wire in group.wires)
        both = "each way" if group.ways > 1 else "one way"
        text = f"ring {number + 1}: {group.hops} hops, {show(slowest, 'B/s')} {both}"
        lines.append(f'<path d="M0 0H22" stroke="{COLOURS[number]}" stroke-width="3"/><text x="30" y="4">{escape(text)}</text>')
    if len(groups) > len(COLOURS):
        lines.append(f'<text x="30" y="4">and {len(groups) - len(COLOURS)} more rings, in the same colours</text>')
    idle = Counter(wire.bytes_per_s for number, wire in enumerate(topology.wires) if number not in of_wire)
    if idle:
        rates = ", ".join(f"{count} x {show(rate, 'B/s')}" for rate, count in sorted(idle.items(), reverse=True))
        text = f"in no ring: {rates}"
        lines.append(
            f'<path d="M0 0H22" stroke="{IDLE}" stroke-width="1.6" stroke-dasharray="4 3"/><text x="30" y="4">{escape(text)}</text>'
        )
    return lines


# ---- places
def _shape(kind: str, at: Point, size: float) -> str:
    x, y = at
    _, fill, outline = LOOKS[kind]
    look = f'fill="{fill}" stroke="{outline}" stroke-width="1.6"'
    if kind == "device":
        side = _n(2 * size)
        return f'<rect x="{_n(x - size)}" y="{_n(y - size)}" width="{side}" height="{side}" rx="{_n(size / 4)}" {look}/>'
    if kind == "memory":
        return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}" {look}/>'
    if kind == "socket":
        corners = [(-1.25, 0.0), (-0.7, -1.0), (0.7, -1.0), (1.25, 0.0), (0.7, 1.0), (-0.7, 1.0)]
    else:
        corners = [(-1.2, 0.0), (0.0, -1.2), (1.2, 0.0), (0.0, 1.2)]
    points = " ".join(f"{_n(x + size * right)},{_n(y + size * down)}" for right, down in corners)
    return f'<polygon points="{points}" {look}/>'


def _place(place: Place, at: Point) -> str:
    facts = [f"{place.name}: {LOOKS[place.kind][0]}"]
    if place.memory_bytes_per_s is not None:
        facts.append(show(place.memory_bytes_per_s, "B/s"))
    if place.capacity_bytes is not None:
        facts.append(show(place.capacity_bytes, "B"))
    size = 12.0 if len(place.name) <= 3 else max(6.0, 44.0 / len(place.name))
    label = place.name if len(place.name) <= 8 else f"{place.name[:7]}…"
    text = f'<text x="{_n(at[0])}" y="{_n(at[1] + size / 3)}" font-size="{_n(size)}" text-anchor="middle">{escape(label)}</text>'
    return f'<g class="place {place.kind}"><title>{escape(", ".join(facts))}</title>{_shape(place.kind, at, SIZE)}{text}</g>'


# ---- wires
def _wires(topology: Topology, points: Mapping[str, Point], of_wire: Mapping[int, Sequence[int]]) -> list[str]:
    """Idle ones first, below the others; parallel ones bow apart."""
    parallel_wires: dict[tuple[str, str], list[int]] = {}
    for number, wire in enumerate(topology.wires):
        parallel_wires.setdefault((min(wire.a, wire.b), max(wire.a, wire.b)), []).append(number)
    drawn: list[tuple[bool, int, str]] = []
    for (a, b), numbers in parallel_wires.items():
        gap = min(GAP, 1.8 * SIZE / len(numbers))
        ordered = sorted(numbers, key=lambda number: (of_wire.get(number, [len(COLOURS)])[0], number))
        for turn, number in enumerate(ordered):
            bow = (turn - (len(numbers) - 1) / 2) * gap
            drawn.append((number in of_wire, number, _wire(topology, number, points[a], points[b], bow, of_wire.get(number, ()))))
    return [text for _, _, text in sorted(drawn)]


def _wire(topology: Topology, number: int, start: Point, end: Point, bow: float, groups: Sequence[int]) -> str:
    (x, y), (u, v) = start, end
    length = math.hypot(u - x, v - y) or 1.0
    across, down = (v - y) / length, (x - u) / length
    if across * (x + u) + down * (y + v) < 0:  # a bow is away from the middle, so that rings keep their sides
        across, down = -across, -down
    path = f"M{_n(x)} {_n(y)}Q{_n((x + u) / 2 + 2 * bow * across)} {_n((y + v) / 2 + 2 * bow * down)} {_n(u)} {_n(v)}"
    wire = topology.wires[number]
    lies = " and ".join(f"ring {group + 1}" for group in groups) or "in no ring"
    title = escape(f"{wire.a} - {wire.b}, {show(wire.bytes_per_s, 'B/s')} each way, {lies}")
    if groups:
        look = f'stroke="{COLOURS[groups[0] % len(COLOURS)]}" stroke-width="2.4"'
    else:
        look = f'stroke="{IDLE}" stroke-width="1.6" stroke-dasharray="4 3"'
    strokes = f'<path d="{path}" {look}/>'
    for group in groups[1:]:  # one ring each way
        strokes += f'<path d="{path}" stroke="{COLOURS[group % len(COLOURS)]}" stroke-width="2.4" stroke-dasharray="7 7"/>'
    return f'<g class="wire" fill="none"><title>{title}</title>{strokes}</g>'


# ---- layout
def _points(topology: Topology) -> dict[str, Point]:
    """A point for each place; y grows downwards."""
    adjacent = neighbours_of(topology)
    neighbours = {name: list(row) for name, row in adjacent.items()}
    devices = _circle_order(topology, neighbours)
    count = len(devices)
    top = math.pi if count <= 2 else math.pi / 2 - (math.pi / count if count % 2 == 0 else 0.0)
    angle = {name: 2 * math.pi * number / count - top for number, name in enumerate(devices)}
    levels = _levels(topology, neighbours)
    on_circle = _between_neighbours(devices, neighbours, levels)
    radius = max(165.0, STEP * (count + len(on_circle)) / (2 * math.pi)) if count > 1 else 0.0
    points = {name: _polar(angle[name], radius) for name in devices}
    middle, away = list[str](), dict.fromkeys(devices, radius)
    outside: dict[str, tuple[float, float]] = {}
    deepest = max(levels.values(), default=0)
    for level in range(1, deepest + 1):
        for place in topology.places:
            if levels.get(place.name) != level:
                continue
            nearer = [name for name in neighbours[place.name] if levels[name] == level - 1 and name not in middle]
            clients = nearer or list(place.serves) or [name for name in neighbours[place.name] if name in angle]
            direction = _direction([angle[name] for name in clients])
            if direction is None and count == 2 and devices[1] in neighbours[devices[0]]:
                direction, away[place.name] = (math.pi / 2, 0.0), LEVEL  # below the wires between the two
            if direction is None:
                middle.append(place.name)
                continue
            at, spread = direction
            if not nearer:
                at += math.pi / count  # between its device and the next, so that wires to the middle pass
            beyond = max((away[name] for name in nearer), default=radius) + LEVEL + 70 * max(0.0, spread - 0.5)
            angle[place.name], away[place.name] = at, radius if place.name in on_circle else away.get(place.name, beyond)
            outside[place.name] = (at, away[place.name])
    points |= _spread(outside)
    around = 0.0 if len(middle) == 1 else max(0.4 * radius, 2.6 * SIZE * len(middle) / (2 * math.pi))
    points |= {name: _polar(2 * math.pi * turn / len(middle) - math.pi / 2, around) for turn, name in enumerate(middle)}
    lost = [place.name for place in topology.places if place.name not in points]
    floor = max((point[1] for point in points.values()), default=0.0) + LEVEL
    return points | {name: ((turn - (len(lost) - 1) / 2) * 3 * SIZE, floor) for turn, name in enumerate(lost)}


def _polar(angle: float, radius: float) -> Point:
    return radius * math.cos(angle), radius * math.sin(angle)


def _direction(angles: Sequence[float]) -> tuple[float, float] | None:
    """The mean of directions and how far they reach to either side of it; None if they lie all around."""
    x, y = (sum(f(angle) for angle in angles) / max(1, len(angles)) for f in (math.cos, math.sin))
    if math.hypot(x, y) < 0.3:
        return None
    mean = math.atan2(y, x)
    return mean, max(abs(math.remainder(angle - mean, 2 * math.pi)) for angle in angles)


def _circle_order(topology: Topology, neighbours: Mapping[str, Sequence[str]]) -> list[str]:
    """As numbered; but where memory-nodes join devices to one circle, as they do."""
    devices = list(topology.devices)
    next_to: dict[str, list[str]] = {name: [] for name in devices}
    for place in topology.places:
        clients = [name for name in neighbours[place.name] if name in next_to]
        if place.kind == "memory" and len(clients) == 2:
            next_to[clients[0]].append(clients[1])
            next_to[clients[1]].append(clients[0])
    if len(devices) < 3 or any(len(row) != 2 for row in next_to.values()):
        return devices
    order = [devices[0]]
    while True:
        onward = [name for name in sorted(next_to[order[-1]], key=devices.index) if name not in order]
        if not onward:
            return order if len(order) == len(devices) else devices
        order.append(onward[0])


def _levels(topology: Topology, neighbours: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Hops to the nearest device."""
    levels = dict.fromkeys(topology.devices, 0)
    waiting = list(levels)
    for here in waiting:
        for there in neighbours[here]:
            if there not in levels:
                levels[there] = levels[here] + 1
                waiting.append(there)
    return levels


def _between_neighbours(devices: Sequence[str], neighbours: Mapping[str, Sequence[str]], levels: Mapping[str, int]) -> set[str]:
    """Places that can stand on the circle: all that there are join two neighbours on it, and nothing else."""
    seat = {name: number for number, name in enumerate(devices)}
    others = [name for name in levels if name not in seat]
    if len(devices) < 3 or any(other in seat for name in devices for other in neighbours[name]):
        return set()
    for name in others:
        seats = [seat[other] for other in neighbours[name] if other in seat]
        if (
            len(seats) != len(neighbours[name])
            or len(seats) != 2
            or (seats[0] - seats[1]) % len(devices) not in (1, len(devices) - 1)
        ):
            return set()
    return set(others)


def _spread(places: Mapping[str, tuple[float, float]]) -> dict[str, Point]:
    """Places around the middle, by angle and distance, turned apart where they would touch."""
    points: dict[str, Point] = {}
    waiting = sorted(places, key=lambda name: (places[name][1], name))
    while waiting:
        near = max(places[waiting[0]][1], 1.0)
        row = [name for name in waiting if places[name][1] < near + 3 * SIZE]
        waiting = waiting[len(row) :]
        for name, angle in _apart({name: places[name][0] for name in row}, 3 * SIZE / near).items():
            points[name] = _polar(angle, places[name][1])
    return points


def _apart(angles: Mapping[str, float], least: float) -> dict[str, float]:
    """Angles as near as can be to these, in their order and at least so far from each other; evenly spaced if there is no room."""
    row = sorted((angle % (2 * math.pi), name) for name, angle in angles.items())
    gaps = [(row[turn][0] - row[turn - 1][0]) % (2 * math.pi) for turn in range(len(row))]
    cut = gaps.index(max(gaps))
    row = [*row[cut:], *((angle + 2 * math.pi, name) for angle, name in row[:cut])]
    blocks: list[tuple[float, int]] = []  # neighbours that touch, by the mean of where their first one would stand, and how many
    for number, (angle, _) in enumerate(row):
        mean, size = angle - number * least, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        blocks.append((mean, size))
    starts = [mean for mean, size in blocks for _ in range(size)]
    positions = [start + number * least for number, start in enumerate(starts)]
    if positions[-1] - positions[0] + least > 2 * math.pi:
        positions = [positions[0] + 2 * math.pi * number / len(row) for number in range(len(row))]
    return {name: angle for (_, name), angle in zip(row, positions, strict=True)}
