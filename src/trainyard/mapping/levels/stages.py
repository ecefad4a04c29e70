"""The stages of an array behind its memory levels: the array at its port, then level by level outwards.

A stage says what a product (m, n, k) takes inside of it: cycles, and elements that cross its outer edge. A level's stage cuts the
product into tiles that fit the level, walks them in a loop order, and takes for each what the stage inside takes for a product of
that size. While the inside works on a tile, the wire from outside brings the next operand tiles and takes the last sums (if the
level is double-buffered; else both come before the step), and carries what goes past the level. Sums that leave a level are added
to those of the level outside: they are never read back. The first fill and the last drain of a product are seen in full.

The search looks at every tile of its menus with a lower bound, least bound first, until no other can be faster by more than
TOLERANCE; among those within it, the tile that moves fewest bytes over the level's outer edge is taken. Around another level, whose
own tiles are searched for each of them, it stops after MOST_OF_LEVELS.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul
from trainyard.ir.folds import AXES, COLUMNS, Folds, Tiles
from trainyard.ir.protocols import HasClosedForm, HasTileCycles, HasTileEvents
from trainyard.mapping.levels.level import LEVEL_EVENT, OPERANDS, Level

Integers = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Size = tuple[int, int, int]
Mask = tuple[int, int, int]
"""Of a, b and out: 1 for those that are meant."""
ALL: Mask = (1, 1, 1)
TOLERANCE = 0.0025
"""The share of the least cycles that a tile may take longer to move fewer bytes."""
CHUNK = 32
"""Tiles that are evaluated at once; behind another level, whose tiles have to be searched as well, a few."""
CHUNK_OF_LEVELS, MOST_OF_LEVELS = 4, 32
"""Tiles that are evaluated at once, and at most, where the inside is a level."""
FEW, PARTS, DEEPEST = 16, 3, 4
"""Dimensions up to FEW have every size in the menu; of larger ones, the largest DEEPEST sizes of k that fit are looked at."""
PORTS = ("scratchpad_read_a", "scratchpad_read_b", "scratchpad_write_out", "scratchpad_read_out")
"""An array's own counts of elements that cross its port, in the order of a crossing; the last are sums that are added to."""


class Wire(NamedTuple):
    """Bytes per cycle of a level's port: both ways together, or inwards alone where `write` has one of its own. None: no limit."""

    read: float | None = None
    write: float | None = None
    name: str = "scratchpad"

    @classmethod
    def of(cls, level: Level) -> Wire:
        return cls(level.width_bytes_per_cycle, level.write_width_bytes_per_cycle, level.name)

    @property
    def speeds(self) -> Real:
        """For compiled loops; 0 where there is no second port."""
        return np.array([np.inf if self.read is None else self.read, self.write or 0.0])

    def cycles(self, crossing: Real, element_bytes: Sequence[float], wired: Integers) -> Real:
        """Whole cycles that elements [..., 4] take over it, of which the `wired` [..., 3] operands use it."""
        read, write = self.speeds
        moved = crossing[..., :3] * element_bytes * wired
        inward, outward = moved[..., 0] + moved[..., 1], moved[..., 2]
        together: Real = np.ceil((inward + outward) / read)
        return together if write == 0 else np.maximum(np.ceil(inward / read), np.ceil(outward / write))


class Stage(Protocol):
    """What products take inside of a place."""

    def columns(self, sizes: Integers, wired: Integers) -> tuple[Real, Real]:
        """Cycles [product] and crossings [product, 4] of products [product, 3]; `wired` [product, 3] says which operands of each
        use the wire just outside."""
        ...

    def events(self, size: Size, wired: Mask) -> Mapping[str, float]:
        """What costs energy inside, the ports of the outermost stage not included."""
        ...

    def busy(self, size: Size, wired: Mask) -> Mapping[str, float]:
        """Cycles that the array (`compute`) and the ports of levels, by the level's name, are busy with a product."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PortStage:
    """The array, fed over the port of the level around it; every operand crosses it at least once."""

    array: Array
    wire: Wire
    element_bytes: tuple[float, float, float]
    _cache: dict[Size, tuple[float, tuple[float, ...]]] = field(default_factory=dict)

    def columns(self, sizes: Integers, wired: Integers) -> tuple[Real, Real]:
        cycles, crossing = self._array_columns(sizes)
        return np.maximum(cycles, self.wire.cycles(crossing, self.element_bytes, wired)), crossing

    def _array_columns(self, sizes: Integers) -> tuple[Real, Real]:
        array = self.array
        m, n, k = sizes[:, 0], sizes[:, 1], sizes[:, 2]
        once = np.stack([m * k, k * n, m * n], axis=1).astype(np.float64)
        if isinstance(array, HasClosedForm) and array.folds and isinstance(array, HasTileEvents):
            cycles = np.min([form.cycles(m, n, k) for form in array.folds], axis=0).astype(np.float64)
            real = sizes.astype(np.float64)
            counted = array.tile_events(Tiles(real[:, 0], real[:, 1], real[:, 2], np.ones(len(sizes))))
            crossing = np.stack([np.broadcast_to(np.asarray(counted.get(port, 0.0), float), len(sizes)) for port in PORTS], axis=1)
        else:
            rows = [self._tile(tuple(size)) for size in sizes.tolist()]
            cycles, crossing = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        crossing = np.array(crossing)
        crossing[:, :3] = np.maximum(crossing[:, :3], once)
        return cycles, crossing

    def _tile(self, size: Size) -> tuple[float, tuple[float, ...]]:
        known = self._cache.get(size)
        if known is None:
            cost = self.array.cost(MatMul(*size))
            cycles = self.array.tile_cycles(*size) if isinstance(self.array, HasTileCycles) else cost.cycles
            known = self._cache[size] = float(cycles), tuple(float(cost.events.get(port, 0.0)) for port in PORTS)
        return known

    def events(self, size: Size, wired: Mask) -> Mapping[str, float]:
        return {name: count for name, count in self.array.cost(MatMul(*size)).events.items() if name not in PORTS}

    def busy(self, size: Size, wired: Mask) -> Mapping[str, float]:
        cycles, crossing = self._array_columns(np.array([size]))
        return {
            "compute": float(cycles[0]),
            self.wire.name: float(self.wire.cycles(crossing[0], self.element_bytes, np.array(wired))),
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiles of a product in one level: sizes, loop order, what the level holds, cycles, and what crosses its outer edge."""

    tile: Size
    order: int
    held: Mask
    cycles: float
    crossing: tuple[float, ...]


NO_CHOICE = Choice((0, 0, 0), 0, (0, 0, 0), np.inf, ())


@dataclass(frozen=True, slots=True, eq=False)
class LevelStage:
    """A memory level around the stage `inside`; `wire` is the port of the level outside of it."""

    level: Level
    wire: Wire
    inside: Stage
    array: Array
    element_bytes: tuple[float, float, float]
    _choices: dict[tuple[Size, Mask], Choice] = field(default_factory=dict)
    _events: dict[tuple[Size, Mask], Mapping[str, float]] = field(default_factory=dict)

    @property
    def adds(self) -> bool:
        """Whether the array counts sums that are read to be added to."""
        return PORTS[3] in self.array.cost(MatMul(1, 1, 1)).events

    def columns(self, sizes: Integers, wired: Integers) -> tuple[Real, Real]:
        chosen = [self.choice(tuple(size), tuple(mask)) for size, mask in zip(sizes.tolist(), wired.tolist(), strict=True)]
        return np.array([one.cycles for one in chosen]), np.array([one.crossing for one in chosen])

    def choice(self, size: Size, wired: Mask = ALL) -> Choice:
        """The fastest tiles of a product, found once for each size."""
        key = size, wired
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._search(size, wired)
        return known

    @property
    def subsets(self) -> tuple[Mask, ...]:
        """What the level may hold at a time, most first."""
        most = tuple(int(operand in self.level.holds) for operand in OPERANDS)
        if self.level.bypass == "never":
            return (most,)  # type: ignore[return-value]  # three operands
        return tuple(sorted(itertools.product(*(range(most_ + 1) for most_ in most)), reverse=True))  # type: ignore[arg-type]

    def _search(self, size: Size, wired: Mask) -> Choice:
        tiles, held, bound, moved = self._candidates(size, wired)
        chunk, most = (CHUNK, len(tiles)) if isinstance(self.inside, PortStage) else (CHUNK_OF_LEVELS, MOST_OF_LEVELS)
        by_bound = np.argsort(bound, kind="stable")
        fastest, done = NO_CHOICE, 0
        while done < min(most, len(tiles)) and fastest.cycles > (1 + TOLERANCE) * bound[by_bound[done]]:
            part = by_bound[done : done + chunk]
            evaluated = self._evaluated(size, wired, tiles[part], held[part], 0.0)
            fastest = min(fastest, *evaluated, key=lambda choice: choice.cycles)
            done += chunk
        least = bound[by_bound[done]] if done < min(most, len(tiles)) else fastest.cycles  # no other can be faster
        return self._fewest_bytes(size, wired, (tiles, held, bound, moved), fastest, (1 + TOLERANCE) * min(least, fastest.cycles))

    def _fewest_bytes(
        self, size: Size, wired: Mask, candidates: tuple[Integers, Integers, Real, Real], fastest: Choice, limit: float
    ) -> Choice:
        """Of the tiles that take at most `limit` cycles, the one that moves fewest bytes."""
        tiles, held, bound, moved = candidates
        chunk, most = (CHUNK, len(tiles)) if isinstance(self.inside, PortStage) else (CHUNK_OF_LEVELS, MOST_OF_LEVELS)
        near = np.flatnonzero(bound <= limit)
        by_bytes = near[np.argsort(moved[near], kind="stable")][:most]
        chosen = self._bytes(fastest), fastest.cycles, fastest
        for start in range(0, len(by_bytes), chunk):
            part = by_bytes[start : start + chunk]
            if chosen[0] <= moved[part[0]]:
                break
            for choice in self._evaluated(size, wired, tiles[part], held[part], limit):
                rank = self._bytes(choice), choice.cycles, choice
                if choice.cycles <= limit and rank[:2] < chosen[:2]:
                    chosen = rank
        return chosen[2]

    def _bytes(self, choice: Choice) -> float:
        return sum(elements * size for elements, size in zip(choice.crossing[:3], self.element_bytes, strict=True))

    def _candidates(self, size: Size, wired: Mask) -> tuple[Integers, Integers, Real, Real]:
        """All tiles that fit: sizes, number of the subset that is held, lower bounds of cycles and of bytes."""
        from trainyard.kernels.mapping import level_tiles

        level, subsets = self.level, self.subsets
        menus = [menu(extent, step) for extent, step in zip(size, self.array.granule(), strict=True)]
        ends = np.array([len(one) for one in menus])
        sizes = np.zeros((3, ends.max()), np.int64)
        for axis, one in enumerate(menus):
            sizes[axis, : len(one)] = one
        deepest = FEW if size[2] <= FEW else DEEPEST
        most = int(ends[0] * ends[1]) * deepest * len(subsets)
        bound, moved, chosen = np.empty(most), np.empty(most), np.empty((most, 4), np.int64)
        forms = exact_forms(self.array) if isinstance(self.inside, PortStage) else least_forms(self.array)
        inner = Wire.of(level)
        count = level_tiles.bounds(
            np.array(size, np.int64), sizes, ends, _rows(forms), float(self.array.peak_macs_per_cycle),
            np.array(self.element_bytes), np.array(subsets), np.array(wired), level.room_bytes, self.wire.speeds, inner.speeds,
            level.double_buffered, deepest, bound, moved, chosen,
        )  # fmt: skip
        tiles, numbers, bound, moved = chosen[:count, :3], chosen[:count, 3], bound[:count], moved[:count]
        if not len(tiles):
            raise self._too_small()
        return tiles, numbers, bound, moved

    def _too_small(self) -> BadInput:
        level = self.level
        least = sum(size for size, operand in zip(self.element_bytes, OPERANDS, strict=True) if operand in level.holds)
        needed = least * 2 if level.double_buffered else least
        return BadInput(
            f"Level {level.name}: {level.size_bytes} bytes do not hold one element of {', '.join(level.holds)}"
            f"{' twice, as a double-buffered level does' if level.double_buffered else ''}: give it at least {needed:g} B, or "
            "bypass='search'"
        )

    def _evaluated(self, size: Size, wired: Mask, tiles: Integers, held: Integers, limit: float) -> list[Choice]:
        """Each tile in its best loop order."""
        from trainyard.kernels.mapping import level_tiles

        subsets = np.array(self.subsets)[held]
        kinds, crossed = self._kinds(size, tiles, subsets)
        count = len(tiles)
        orders, cycles, moved, crossing = np.empty(count, np.int64), np.empty(count), np.empty(count), np.empty((count, 4))
        level_tiles.evaluate(
            np.array(size, np.int64), tiles, subsets, np.array(self.element_bytes), np.array(wired), self.wire.speeds,
            self.level.double_buffered, kinds, crossed, self.adds, limit, orders, cycles, moved, crossing,
        )  # fmt: skip
        rows = zip(tiles.tolist(), orders.tolist(), map(tuple, subsets.tolist()), cycles.tolist(), crossing.tolist(), strict=True)
        return [Choice(tuple(tile), order, mask, took, tuple(row)) for tile, order, mask, took, row in rows]

    def _kinds(self, size: Size, tiles: Integers, subsets: Integers) -> tuple[Real, Real]:
        """Cycles and crossings inside of the 8 kinds of each tile: full or clipped along each axis."""
        cycles, crossing = self.inside.columns(_kind_sizes(size, tiles).reshape(-1, 3), np.repeat(subsets, 8, axis=0))
        return cycles.reshape(len(tiles), 2, 2, 2), crossing.reshape(len(tiles), 2, 2, 2, 4)

    def events(self, size: Size, wired: Mask) -> Mapping[str, float]:
        key = size, wired
        known = self._events.get(key)
        if known is None:
            known = self._events[key] = self._counted(size, wired)
        return known

    def _counted(self, size: Size, wired: Mask) -> Mapping[str, float]:
        """Of the inside, in all tiles; and bytes read from and written into this level.

        A level that holds sums writes all that arrive, reads those that it adds them to, and reads each tile that leaves.
        """
        choice, events, inside = self.choice(size, wired), dict[str, float](), np.zeros(4)
        for kind, times in _weights(size, choice.tile):
            for name, count in self.inside.events(kind, choice.held).items():
                events[name] = events.get(name, 0.0) + count * times
            inside += self.inside.columns(np.array([kind]), np.array([choice.held]))[1][0] * times
        read = written = 0.0
        for operand, bytes_ in enumerate(self.element_bytes[:2]):
            if choice.held[operand]:
                read += inside[operand] * bytes_
                written += choice.crossing[operand] * bytes_
        if choice.held[2]:
            m, n, k = size
            left, steps = choice.crossing[2], -(-k // choice.tile[2])
            begun = (steps * m * n - left) * self.adds
            written += inside[2] * self.element_bytes[2]
            read += (inside[3] + begun + left) * self.element_bytes[2]
        name = f"{LEVEL_EVENT}{self.level.name}"
        return {**events, f"{name}_read": float(read), f"{name}_write": float(written)}

    def busy(self, size: Size, wired: Mask) -> Mapping[str, float]:
        choice, busy = self.choice(size, wired), dict[str, float]()
        for kind, times in _weights(size, choice.tile):
            for name, cycles in self.inside.busy(kind, choice.held).items():
                busy[name] = busy.get(name, 0.0) + cycles * times
        return {**busy, self.wire.name: float(self.wire.cycles(np.array(choice.crossing), self.element_bytes, np.array(wired)))}


def _parts(extent: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The full size along an axis and how many there are, the last one and its one."""
    count = -(-extent // size)
    return (size, count - 1), (extent - (count - 1) * size, 1)


def _weights(size: Size, tile: Size) -> list[tuple[Size, int]]:
    """Kinds of tiles that occur, and how many there are of each."""
    kinds: dict[Size, int] = {}
    for (m, rows), (n, columns), (k, deep) in itertools.product(*(_parts(e, s) for e, s in zip(size, tile, strict=True))):
        if rows * columns * deep:
            kinds[m, n, k] = kinds.get((m, n, k), 0) + rows * columns * deep
    return list(kinds.items())


def _kind_sizes(size: Size, tiles: Integers) -> Integers:
    """[tile, 2, 2, 2, axis]: the sizes of all kinds, e = 1 at the edge."""
    dims = np.array(size, np.int64)
    edges = dims - (-(-dims // tiles) - 1) * tiles
    both = np.stack([tiles, edges], axis=1)  # [tile, edge, axis]
    sizes = np.empty((len(tiles), 2, 2, 2, 3), np.int64)
    sizes[..., 0] = both[:, :, 0][:, :, None, None]
    sizes[..., 1] = both[:, :, 1][:, None, :, None]
    sizes[..., 2] = both[:, :, 2][:, None, None, :]
    return sizes


@lru_cache(maxsize=4096)
def menu(extent: int, granule: int) -> tuple[int, ...]:
    """Sizes along an axis: every one of a dimension up to FEW; of a larger one equal parts, and multiples of the array's own size.

    Of the numbers of parts, small ones are all there, larger ones PARTS to each doubling.

    >>> menu(5, 4), menu(48, 16)
    ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48))
    """
    if extent <= FEW:
        return tuple(range(1, extent + 1))
    sizes, count = {1, extent}, 1
    while count < extent:
        size = -(-extent // count)
        sizes |= {size, -(-size // granule) * granule if size > granule else size}
        count = max(count + 1, count + count // PARTS)
    size = granule
    while size < extent:
        sizes.add(size)
        size *= 2
    return tuple(sorted(size for size in sizes if size <= extent))


def exact_forms(array: Array) -> tuple[Folds, ...]:
    """Closed forms of one tile, where an array has some of a fixed shape; none otherwise."""
    forms = tuple(array.folds) if isinstance(array, HasClosedForm) else ()
    return forms if all(isinstance(form, Folds) for form in forms) else ()


def least_forms(array: Array) -> tuple[Folds, ...]:
    """Closed forms that never exceed the cycles of a product, however it is cut into tiles.

    One form is such a bound by itself: no cut makes its folds fewer. Of several, each part of a product may take another one, so
    that a product in parts can be faster than as a whole; then a form of all their units without a shape is the bound.

    >>> from trainyard.arrays import Spatial
    >>> spatial = Spatial(elements=4, macs_per_element=2, buffer_bytes=256)  # grids 4 x 1, 2 x 2, 1 x 4
    >>> min(form.cycles(3, 5, 1) for form in spatial.folds), least_forms(spatial)[0].cycles(3, 5, 1)  # cut into 3 x 4 and 3 x 1: 4
    (5, 4)
    """
    forms = exact_forms(array)
    if len(forms) <= 1:
        return forms
    first = forms[0]
    if any((form.stream, form.fixed, form.floor) != (first.stream, first.fixed, first.floor) for form in forms):
        return ()
    widths = {axis: max(getattr(form, axis) for form in forms) if axis == first.stream else 1 for axis in AXES}
    sides = [axis for axis in AXES if axis != first.stream]
    units = max(form.units * getattr(form, sides[0]) * getattr(form, sides[1]) for form in forms)
    return (Folds(**widths, stream=first.stream, fixed=first.fixed, floor=first.floor, units=units),)


@lru_cache(maxsize=256)
def _rows(forms: tuple[Folds, ...]) -> Integers:
    return np.array([form.row for form in forms], dtype=np.int64).reshape(len(forms), COLUMNS)


def stages(
    array: Array, levels: Sequence[Level], outside: Wire, element_bytes: tuple[float, float, float]
) -> PortStage | LevelStage:
    """The outermost stage of an array behind levels, which are given from outside to inside; `outside` is the scratchpad's port."""
    wires = [outside, *map(Wire.of, levels)]
    stage: PortStage | LevelStage = PortStage(array, wires[-1], element_bytes)
    for level, wire in zip(reversed(levels), reversed(wires[:-1]), strict=True):
        stage = LevelStage(level, wire, stage, array, element_bytes)
    return stage
