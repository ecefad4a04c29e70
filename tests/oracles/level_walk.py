"""An array behind memory levels, walked step by step: the plain twin of `kernels.mapping.level_tiles` and `mapping.levels.stages`.

Every loop of every level is gone through, and each level keeps a record of the tiles that lie in it. Bytes are counted where they
move. The tiles and loop orders are given: `mapping(depth, size, wired)` returns (tile, loop order, what is held).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from trainyard.ir import Array, MatMul
from trainyard.mapping.levels.level import Level

Size = tuple[int, int, int]
Mask = tuple[int, int, int]
Chosen = tuple[Size, str, Mask]
Mapping = Callable[[int, Size, Mask], Chosen]
Width = tuple[float | None, float | None]
ORDERS = ("mnk", "mkn", "nmk", "nkm", "kmn", "knm")


@dataclass
class Moved:
    """Bytes read from and written into each level, and elements over the outer edge: a, b, sums outward, sums read to be added."""

    read: dict[str, float] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)
    crossing: list[float] = field(default_factory=lambda: [0.0] * 4)

    def add(self, other: Moved) -> None:
        for mine, theirs in ((self.read, other.read), (self.written, other.written)):
            for name, size in theirs.items():
                mine[name] = mine.get(name, 0.0) + size


def wire_cycles(inward: float, outward: float, width: Width) -> int:
    if width[0] is None:
        return 0
    if width[1] is not None:
        return max(math.ceil(inward / width[0]), math.ceil(outward / width[1]))
    return math.ceil((inward + outward) / width[0])


def steps(size: Size, tile: Size, order: str) -> Iterator[dict[str, tuple[int, int]]]:
    extents, sizes = dict(zip("mnk", size, strict=True)), dict(zip("mnk", tile, strict=True))
    for starts in itertools.product(*(range(0, extents[axis], sizes[axis]) for axis in order)):
        yield {axis: (start, min(start + sizes[axis], extents[axis])) for axis, start in zip(order, starts, strict=True)}


def array_port(array: Array, size: Size, width: Width, wired: Mask, element_bytes: Sequence[float]) -> tuple[int, Moved]:
    """A product on the array itself, whose operands cross its port at least once."""
    m, n, k = size
    counted = array.cost(MatMul(m, n, k)).events
    moved = Moved()
    names = ("scratchpad_read_a", "scratchpad_read_b", "scratchpad_write_out")
    moved.crossing = [max(float(counted.get(name, 0)), once) for name, once in zip(names, (m * k, k * n, m * n), strict=True)]
    moved.crossing.append(float(counted.get("scratchpad_read_out", 0)))
    inward, outward = _over_the_wire(moved.crossing, wired, element_bytes)
    return max(array.tile_cycles(m, n, k), wire_cycles(inward, outward, width)), moved  # type: ignore[attr-defined]


def _over_the_wire(crossing: Sequence[float], wired: Mask, element_bytes: Sequence[float]) -> tuple[float, float]:
    sizes = [elements * size * on for elements, size, on in zip(crossing[:3], element_bytes, wired, strict=True)]
    return sizes[0] + sizes[1], sizes[2]


def level_walk(
    array: Array, levels: Sequence[Level], outside: Width, element_bytes: Sequence[float], size: Size, mapping: Mapping,
    wired: Mask = (1, 1, 1), depth: int = 0,
) -> tuple[int, Moved]:  # fmt: skip
    """Cycles of a product, and what moves at every level inside of the wire `outside`."""
    if not levels:
        return array_port(array, size, outside, wired, element_bytes)
    level, port = levels[0], (levels[0].width_bytes_per_cycle, levels[0].write_width_bytes_per_cycle)
    tile, order, held = mapping(depth, size, wired)
    moved, resident = Moved(), dict[str, object]()
    partial: set[object] = set()  # sums of which the level outside has a part already
    loads, stores, streams, busy = list[float](), list[float](), list[tuple[float, float]](), list[int]()
    used = 0.0
    for step in steps(size, tile, order):
        m, n, k = (step[axis][1] - step[axis][0] for axis in "mnk")
        used = max(
            used, m * k * element_bytes[0] * held[0] + k * n * element_bytes[1] * held[1] + m * n * element_bytes[2] * held[2]
        )
        load = store = 0.0
        for operand, (name, axes, count) in enumerate((("a", "mk", m * k), ("b", "kn", k * n))):
            key = tuple(step[axis] for axis in axes)
            if held[operand] and resident.get(name) != key:
                resident[name] = key
                moved.crossing[operand] += count
                _write(moved, level, count * element_bytes[operand])
                load += count * element_bytes[operand] * wired[operand]
        sums = (step["m"], step["n"])
        arrives_new = resident.get("out") != sums
        if held[2] and arrives_new:
            store = _drain(moved, level, resident.get("out"), partial, element_bytes, wired)
            resident["out"] = sums
        cycles, inner = level_walk(array, levels[1:], port, element_bytes, (m, n, k), mapping, held, depth + 1)
        moved.add(inner)
        past = [0.0, 0.0, 0.0]
        for operand in range(3):
            if held[operand]:
                if operand < 2:
                    _read(moved, level, inner.crossing[operand] * element_bytes[operand])
                continue
            moved.crossing[operand] += inner.crossing[operand]
            past[operand] = inner.crossing[operand] * element_bytes[operand] * wired[operand]
        added = inner.crossing[3]
        if held[2]:
            _write(moved, level, inner.crossing[2] * element_bytes[2])
            added += 0 if arrives_new else m * n
            _read(moved, level, added * element_bytes[2])
        else:
            moved.crossing[3] += added + (m * n if step["k"][0] > 0 else 0)
        loads.append(load)
        stores.append(store)
        streams.append((past[0] + past[1], past[2]))
        busy.append(cycles)
    assert used <= level.room_bytes
    last = _drain(moved, level, resident.get("out"), partial, element_bytes, wired) if held[2] else 0.0
    return _total(level, outside, loads, stores, streams, busy, last), moved


def _total(
    level: Level, outside: Width, loads: Sequence[float], stores: Sequence[float], streams: Sequence[tuple[float, float]],
    busy: Sequence[int], last: float,
) -> int:  # fmt: skip
    total = wire_cycles(0.0, last, outside)
    if not level.double_buffered:
        for load, store, past, cycles in zip(loads, stores, streams, busy, strict=True):
            total += wire_cycles(load, store, outside) + max(cycles, wire_cycles(*past, outside))
        return total
    total += wire_cycles(loads[0], 0.0, outside)
    for index, cycles in enumerate(busy):
        ahead = loads[index + 1] if index + 1 < len(loads) else 0.0
        total += max(cycles, wire_cycles(ahead + streams[index][0], stores[index] + streams[index][1], outside))
    return total


def _read(moved: Moved, level: Level, size: float) -> None:
    moved.read[level.name] = moved.read.get(level.name, 0.0) + size


def _write(moved: Moved, level: Level, size: float) -> None:
    moved.written[level.name] = moved.written.get(level.name, 0.0) + size


def _drain(moved: Moved, level: Level, sums: object, partial: set[object], element_bytes: Sequence[float], wired: Mask) -> float:
    """A tile of sums leaves: it is read here and added to what the level outside has of it. Returns its bytes on the wire."""
    if sums is None:
        return 0.0
    (m0, m1), (n0, n1) = sums  # type: ignore[misc, attr-defined]
    count = (m1 - m0) * (n1 - n0)
    _read(moved, level, count * element_bytes[2])
    moved.crossing[2] += count
    moved.crossing[3] += count if sums in partial else 0
    partial.add(sums)
    return float(count * element_bytes[2] * wired[2])
