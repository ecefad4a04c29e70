"""The compiled search for tiles (`kernels.mapping.tile_ranges`), once for a whole range of bandwidths, latencies and scratchpads.

An eighth of an octave of bytes per cycle is searched at five bandwidths at once. What is good at any of them stays on a shortlist,
and the best tiling at a bandwidth of the range is chosen from those of its two neighbours: another clock, DRAM or energy table
searches nothing again. The choice is proven to be within the tolerance of the least time. Where the neighbours are too far apart
for that, the products in question are searched once more for the bandwidths between these two alone, and if need be for their own
latency.

Scratchpads are treated alike: products are searched for round sizes of it (eighths of a power of two). In between, what fits into
the smaller neighbour is good enough for most products, as the larger one proves; the others are searched for closer neighbours, and
if need be for their own size.

An array whose sides are no round numbers is likely to be one of many that are tried. It is searched for one bandwidth alone, which
stands for those within 0.4 %, and the search begins with the best tiles of a rounder array, which near arrays share.

Without a tolerance one machine cannot stand for another: every machine is then searched by itself.

What is found depends on the products and the machine alone, not on what was asked before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache
from trainyard.hardware.tables.energy import REFERENCE, Prices
from trainyard.ir import Array
from trainyard.ir.folds import Folds, Pooled
from trainyard.mapping.tiling import (
    FASTEST,
    OBJECTIVES,
    Goal,
    Integers,
    ProblemTable,
    Size,
    Supply,
    form_rows,
    nothing_fits,
    too_long,
)

Real = npt.NDArray[np.float64]
RANGES, SAMPLES = 8, 4
"""Ranges of bandwidths that are searched at once: so many in an octave, each at so many bandwidths and its end."""
CLOSE_RANGES = 96
"""Ranges in an octave that one bandwidth stands for: from its middle, the least time changes by 0.4 % at most."""
FINER = 4
"""The bandwidths between two samples, at which products are searched once more where the two are too far apart."""
CLEAR = 0.8
"""Products that are proven within this part of the tolerance halfway between two bandwidths are not searched again between them."""
LATENCIES = 8
"""Latencies in an octave that a search stands for."""
ROOMS = (8, 128)
"""Sizes of the scratchpad between two powers of two that are searched; the second for products for which the first are too far
apart."""
MOST_FOLDS = 3
"""Sizes along an axis that tiles are aligned to."""
ROUND_BITS = 3
"""An array's neighbour, whose tiles are tried first, has sides with so many significant bits."""
_SEARCHED = BoundedCache(entries=1024)
"""Tilings by all that they depend on."""
_SHORTLISTS = BoundedCache(entries=512)
"""Tilings that are good in a range of bandwidths, by all else that they depend on."""

_NEIGHBOURS = BoundedCache(entries=256)
"""Tile sizes that are best on a rounder array, by all that they depend on."""


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """All or some products of a `ProblemTable` as the compiled search takes them; `fixed` sizes, closed `forms`, sizes that tiles
    are aligned to (`folds`), the bytes for the tiles of a step."""

    dims: Integers
    rates: Real
    halos: Real
    folds: Integers
    fixed: Integers
    allowed: Integers
    forms: Integers
    joules: Real
    space: float
    rounder: Integers | None = None
    """Forms of an array with rounder sides; None where they are round, or where the array has no folds."""

    def only(self, which: Integers) -> Products:
        return Products(
            self.dims[which], self.rates[which], self.halos[which], self.folds, self.fixed[which], self.allowed[which], self.forms,
            self.joules[which], self.space, self.rounder,
        )  # fmt: skip

    def within(self, space: float) -> Products:
        return Products(
            self.dims, self.rates, self.halos, self.folds, self.fixed, self.allowed, self.forms, self.joules, space, self.rounder
        )  # fmt: skip

    @property
    def columns(self) -> tuple[Any, ...]:
        return self.dims, self.rates, self.halos, self.folds, self.fixed, self.allowed, self.forms

    def at(self, supply: Supply, goal: Goal) -> Integers:
        """The best tiling of each product as rows of the compiled search, searched for this bandwidth alone."""
        from trainyard.kernels.mapping import tile_ranges

        rows: Integers = tile_ranges.best_tiles(  # type: ignore[call-arg]  # columns are unpacked
            *self.columns, float(supply.bytes_per_cycle), self.space, supply.latency_cycles, OBJECTIVES.index(goal.objective),
            self.joules, _price_row(goal.prices), goal.tolerance, goal.effort,
        )  # fmt: skip
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """Tilings of some products that are good at any of `speeds` (bytes per cycle by product, falling); which of the products a
    closer search could prove more of (`improvable`)."""

    products: Products
    speeds: Real
    lists: tuple[Any, ...]
    improvable: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, products: Products, speeds: Real, latency: int, tolerance: float, guesses: Integers) -> Shortlist:
        from trainyard.kernels.mapping import tile_ranges

        prices, count = _price_row(REFERENCE), len(products.dims)
        lists = tile_ranges.shortlist(  # type: ignore[call-arg]  # columns are unpacked
            *products.columns, speeds, products.space, latency, products.joules, prices, tolerance, guesses
        )
        return cls(products, np.tile(speeds, (count, 1)), lists, np.ones(count, np.bool_))

    def with_closer(self, which: Integers, closer: Shortlist) -> Shortlist:
        """With another list in place of this one for some of the products.

        What neither proves, no closer search could, unless it had to end early: then nothing is known of the least time.
        """
        from trainyard.kernels.mapping.tile_front import ENTRY

        own, other = self.lists, closer.lists
        first, count = own[1][:-1].copy(), np.diff(own[1])
        first[which], count[which] = other[1][:-1] + len(own[0]), np.diff(other[1])
        begin = np.concatenate(([0], np.cumsum(count)))
        rows = np.repeat(first - begin[:-1], count) + np.arange(begin[-1])
        later = other[0].copy()
        later[:, ENTRY + 1 : ENTRY + 3] += len(own[2])  # where its steps are: behind all of this one
        listed, chosen = np.concatenate((own[0], later))[rows], np.concatenate((own[4], other[4]))[rows]
        floors, speeds, improvable = own[3].copy(), self.speeds.copy(), self.improvable.copy()
        floors[which], speeds[which], improvable[which] = other[3], closer.speeds, other[3][:, 0] > 0
        joined = (listed, begin, np.concatenate((own[2], other[2])), floors, chosen)
        return Shortlist(self.products, speeds, joined, improvable)

    def choose(
        self, speed: float, latency: int, prices: Real, tolerance: float, space: float | None = None, least: Real | None = None
    ) -> Integers:
        """The best tiling of each product as rows of the compiled search; see `tile_ranges.choose` for what is proven.

        In another `space` than the list is for, what is on it must fit; if that space is larger, `least` must say what no tiling
        can undercut.
        """
        from trainyard.kernels.mapping import tile_ranges

        products, (listed, begin, steps, floors, ready) = self.products, self.lists
        space = products.space if space is None else space
        if space > products.space:
            floors = np.zeros_like(floors)
        least = np.zeros(len(products.dims)) if least is None else least
        rows: Integers = tile_ranges.choose(
            listed, begin, steps, floors, ready, self.speeds, speed, space, latency, prices, tolerance, least
        )  # fmt: skip
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Between:
    """Some products searched for two sizes of the scratchpad, and which of them (`steady`) are proven anywhere in between."""

    below: Shortlist
    above: Shortlist
    steady: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, below: Shortlist, above: Shortlist, latency: int, prices: Real, tolerance: float) -> Between:
        between = cls(below, above, np.ones(len(below.products.dims), np.bool_))
        for speed in np.sqrt(below.speeds[0, 1:] * below.speeds[0, :-1]):
            rows = between.choose(float(speed), latency, prices, tolerance, math.nextafter(below.products.space, math.inf))
            between.steady[:] &= rows[:, 6] == 1
        return between

    def choose(self, speed: float, latency: int, prices: Real, tolerance: float, space: float) -> Integers:
        """The best tiling of each product from the list of the larger size, if it fits, is proven and not much slower, else of the
        smaller one."""
        least = np.zeros(len(self.steady))
        rows = self.above.choose(speed, latency, prices, tolerance, space, least)
        smaller = self.below.choose(speed, latency, prices, tolerance, space, least)
        which = (rows[:, 6] == 0) | ((smaller[:, 6] == 1) & (smaller[:, 4] * (1.0 + tolerance / 2) < rows[:, 4]))
        rows[which] = smaller[which]
        return rows


@lru_cache(maxsize=256)
def _folds(forms: tuple[Folds | Pooled, ...], granule: Size) -> Integers:
    """Sizes that an array takes at once along each axis: tiles are aligned to them; 0 where it has no such sizes."""
    if any(isinstance(form, Pooled) for form in forms):
        return np.zeros((3, 1), dtype=np.int64)
    along: tuple[list[int], ...] = ([granule[0]], [granule[1]], [granule[2]])
    for form in forms:
        if isinstance(form, Folds):
            for sizes, size in zip(along, (form.m, form.n, form.k), strict=True):
                sizes.append(size)
    chosen = [sorted(set(sizes), reverse=True)[:MOST_FOLDS] for sizes in along]
    most = max(map(len, chosen))
    return np.array([[*sizes, *[1] * (most - len(sizes))] for sizes in chosen], dtype=np.int64)


@lru_cache(maxsize=256)
def _price_row(prices: Prices) -> Real:
    """Prices for compiled loops, which do not write to them."""
    return np.array(prices.row)


def _rounded_down(latency: int) -> int:
    """A latency that stands for those a little above it: bounds with it hold for them.

    >>> [_rounded_down(cycles) for cycles in (0, 1, 100, 105, 117)]
    [0, 1, 98, 98, 107]
    """
    return 0 if latency <= 0 else math.floor(2.0 ** (math.floor(math.log2(latency) * LATENCIES) / LATENCIES))


def _rooms(space: float, parts: int) -> tuple[float, float]:
    """The largest searched size of a scratchpad that is not above it, and the smallest that is not below it.

    >>> _rooms(1000.0, 8), _rooms(1024.0, 8), _rooms(1030.0, 128)
    ((960.0, 1024.0), (1024.0, 1024.0), (1024.0, 1032.0))
    """
    step = 2.0 ** math.floor(math.log2(max(space, 1.0))) / parts
    return math.floor(space / step) * step, math.ceil(space / step) * step


def _from_shortlists(products: Products, key: tuple[object, ...], supply: Supply, goal: Goal) -> Integers:
    """The best tiling of each product from the shortlists of the ranges that bandwidth, latency and scratchpad lie in."""
    from trainyard.kernels.mapping.tile_search import CHOSEN

    space, samples, key = products.space, Samples.around(float(supply.bytes_per_cycle)), (*key, goal.tolerance)
    low, high = _rooms(space, ROOMS[0])
    if low == high and products.rounder is not None:
        return _near_speed(products, key, samples, supply, goal)
    if low == high:
        return _at_room(products, key, samples, supply, goal)
    latency, prices = _rounded_down(supply.latency_cycles), _price_row(goal.prices)
    rows, late = np.zeros((len(products.dims), CHOSEN), np.int64), np.zeros(0, np.int64)
    some, which = products, np.arange(len(products.dims))
    for speeds in (samples.range, samples.finer):
        between = _between(some, key, low, high, speeds, latency, goal.tolerance)
        rows[which] = between.choose(float(supply.bytes_per_cycle), supply.latency_cycles, prices, goal.tolerance, space)
        late = np.concatenate((late, which[between.steady & (rows[which, 6] == 0)]))
        which = which[~between.steady]
        low, high = _rooms(space, ROOMS[1])
        if low == high or not len(which):
            break
        some, key = products.only(which), (*key, which.tobytes())
    which = np.concatenate((which, late))
    if len(which):
        rows[which] = _at_room(products.only(which), (*key, which.tobytes()), samples, supply, goal)
    return rows


class Samples(NamedTuple):
    """Bandwidths at which products are searched, falling: of a range, and between two of them (its place is the `number`)."""

    range: Real
    finer: Real
    number: int

    @classmethod
    def around(cls, speed: float) -> Samples:
        """Those around a bandwidth."""
        return cls._of(math.floor(math.log2(speed) * RANGES * SAMPLES))

    @classmethod
    @lru_cache(maxsize=1024)
    def _of(cls, number: int) -> Samples:
        first = number // SAMPLES
        speeds = 2.0 ** ((first + 1 - np.arange(SAMPLES + 1) / SAMPLES) / RANGES)
        between = SAMPLES - 1 - number % SAMPLES
        return cls(speeds, np.geomspace(speeds[between], speeds[between + 1], FINER + 1), number)


def _listed(
    products: Products, key: tuple[object, ...], speeds: Real, latency: int, tolerance: float, near: float | None = None
) -> Shortlist:
    """The shortlist of products for some bandwidths; `near` is that of the first guesses."""

    def searched() -> Shortlist:
        speed = float(speeds[len(speeds) // 2]) if near is None else near
        return Shortlist.of(products, speeds, latency, tolerance, _guesses(products, key, speed, latency, tolerance))

    return _SHORTLISTS.get((*key, products.space, speeds.tobytes(), latency), searched)


def _rounded(table: Integers) -> Integers:
    """Numbers with their highest ROUND_BITS bits alone.

    >>> _rounded(np.array([-1, 0, 7, 15, 100, 128])).tolist()
    [-1, 0, 7, 14, 96, 128]
    """
    near = [_round_down(number) for number in table.ravel().tolist()]
    return np.array(near, dtype=np.int64).reshape(table.shape)


def _round_down(number: int) -> int:
    cut = max(0, number.bit_length() - ROUND_BITS)
    return number >> cut << cut if number > 0 else number


def _rounder(forms: Integers) -> Integers | None:
    near = None if forms[:, 7].any() else _rounded(forms)
    return None if near is None or np.array_equal(forms[:, :3], near[:, :3]) else near


def _no_guesses(products: int) -> Integers:
    return np.zeros((products, 0, 3), np.int64)


def _guesses(products: Products, key: tuple[object, ...], speed: float, latency: int, tolerance: float) -> Integers:
    """Tile sizes that a search tries first, by product: what is best on a rounder array, which stands for many, with its sizes and
    with its numbers of folds. None where the array is round itself, or has no folds."""
    if products.rounder is None:
        return _no_guesses(len(products.dims))
    forms, digest, rest, goal = products.forms, key[0], key[3:], Goal(tolerance=tolerance)
    near = replace(products, forms=products.rounder, folds=_rounded(products.folds), rounder=None)

    def searched() -> Integers:
        return near.at(Supply(resident_bytes=near.space, bytes_per_cycle=speed, latency_cycles=latency), goal)[:, :3]

    at = (digest, near.forms.tobytes(), near.folds.tobytes(), rest, near.space, speed, latency)
    sizes = _NEIGHBOURS.get(at, searched)
    folded = np.minimum(-(-sizes // near.forms[0, :3]) * forms[0, :3], products.dims[:, :3])
    return np.stack((sizes, np.where(products.fixed > 0, sizes, folded)), axis=1)


def _between(
    products: Products, key: tuple[object, ...], low: float, high: float, speeds: Real, latency: int, tolerance: float
) -> Between:
    """Products searched for two sizes of the scratchpad."""

    def searched() -> Between:
        below, above = (_listed(products.within(room), key, speeds, latency, tolerance) for room in (low, high))
        return Between.of(below, above, latency, _price_row(REFERENCE), tolerance)

    return _SHORTLISTS.get((*key, low, high, speeds.tobytes(), latency), searched)


def _near_speed(products: Products, key: tuple[object, ...], samples: Samples, supply: Supply, goal: Goal) -> Integers:
    """The best tiling of each product from a list for one bandwidth, which is close enough to stand for this one."""
    speed, latency, near = float(supply.bytes_per_cycle), _rounded_down(supply.latency_cycles), float(samples.range[SAMPLES // 2])
    alone = 2.0 ** ((math.floor(math.log2(speed) * CLOSE_RANGES) + 0.5) / CLOSE_RANGES)
    shortlist = _listed(products, key, np.array([alone]), latency, goal.tolerance, near)
    rows = shortlist.choose(speed, supply.latency_cycles, _price_row(goal.prices), goal.tolerance)
    which = np.flatnonzero((rows[:, 6] == 0) | (rows[:, 4] == 0))
    if len(which):
        rows[which] = products.only(which).at(supply, goal)
    return rows


def _at_room(products: Products, key: tuple[object, ...], samples: Samples, supply: Supply, goal: Goal) -> Integers:
    """The best tiling of each product from shortlists for this very size of the scratchpad."""
    from trainyard.kernels.mapping.tile_ranges import least_in

    speed, latency, own = float(supply.bytes_per_cycle), _rounded_down(supply.latency_cycles), supply.latency_cycles

    def closer(shortlist: Shortlist, own: int) -> Shortlist:
        """Products that are not proven everywhere between two bandwidths are searched between them, and at this latency."""
        left, prices = np.zeros(len(products.dims), np.bool_), _price_row(REFERENCE)
        for one in np.sqrt(samples.finer[1:] * samples.finer[:-1]):
            left |= (shortlist.choose(one, own, prices, goal.tolerance * CLEAR)[:, 6] == 0) & shortlist.improvable
        which = np.flatnonzero(left)
        if not len(which):
            return shortlist
        closer = Shortlist.of(products.only(which), samples.finer, own, goal.tolerance, _no_guesses(len(which)))
        return shortlist.with_closer(which, closer)

    at = (*key, products.space, samples.number, latency)
    shortlist = _SHORTLISTS.get(at, lambda: closer(_listed(products, key, samples.range, latency, goal.tolerance), latency))
    prices = _price_row(goal.prices)
    rows = shortlist.choose(speed, own, prices, goal.tolerance)
    if least_in(rows, 6):
        return rows
    left = (rows[:, 6] == 0) & shortlist.improvable
    if own != latency and left.any():
        shortlist = _SHORTLISTS.get((*at, own), lambda: closer(shortlist, own))
        rows = shortlist.choose(speed, own, prices, goal.tolerance)
        left = (rows[:, 6] == 0) & shortlist.improvable
    left |= rows[:, 4] == 0
    if left.any():
        which = np.flatnonzero(left)
        rows[which] = products.only(which).at(supply, goal)
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class TileSearch:
    """The search for tiles of some products on an array, for any memory system and goal."""

    products: ProblemTable
    searched: Products
    """With no bytes for the tiles of a step."""
    tile: Size | None
    key: tuple[object, ...]
    """All that it depends on."""

    @classmethod
    def of(cls, products: ProblemTable, forms: Sequence[Folds | Pooled], array: Array, tile: Size | None = None) -> TileSearch:
        """`forms` are closed forms of tile cycles; without any, every multiplier is taken to be always busy."""
        from trainyard.kernels.mapping.tile_cycles import MOST_CYCLES

        if max(products.longest, products.macs // array.peak_macs_per_cycle) >= MOST_CYCLES:
            multipliers, ops = array.peak_macs_per_cycle, (problem.op for problem in products.problems)
            raise too_long(next(op for op in ops if max(op.M, op.N, op.K, op.count, op.macs // multipliers) >= MOST_CYCLES))
        table, granule = form_rows(forms, array), array.granule()
        fixed = products.tiles if tile is None else np.where(products.tiles > 0, products.tiles, np.array(tile, dtype=np.int64))
        folds, joules = _folds(tuple(forms), granule), np.zeros((len(products.problems), 2))
        searched = Products(
            products.dims, products.rates, products.halos, folds, fixed, products.allowed, table, joules, 0.0, _rounder(table)
        )  # fmt: skip
        return cls(products, searched, tile, (products.digest, table.tobytes(), granule, tile))

    def tiles(self, supply: Supply, goal: Goal) -> Integers:
        """The best tiling of each product as a row of the compiled search (`kernels.mapping.tile_search.CHOSEN`)."""
        asked, joules = self.searched, b""
        if goal.energy is not None:
            asked = replace(asked, joules=np.array([goal.joules(problem.op) for problem in self.products.problems]))
            joules = asked.joules.tobytes()
        space, wanted = float(supply.resident_bytes), (goal.objective, goal.tolerance, goal.effort, goal.prices, joules)
        key = (*self.key, space, supply.bytes_per_cycle, supply.latency_cycles, wanted)
        rows, complete = _SEARCHED.get(key, lambda: self._searched(asked.within(space), supply, goal))
        if not complete:
            self._refuse(rows, supply)
        return rows

    def _searched(self, asked: Products, supply: Supply, goal: Goal) -> tuple[Integers, bool]:
        """The rows, and whether every product has an answer."""
        from trainyard.kernels.mapping.tile_ranges import least_in

        simple = goal.objective == "time" and goal.tolerance > 0 and not goal.effort
        rows = _from_shortlists(asked, self.key, supply, goal) if simple else asked.at(supply, goal)
        complete = least_in(rows, 4) >= 0
        rows.flags.writeable = False
        return rows, complete

    def _refuse(self, rows: Integers, supply: Supply) -> None:
        from trainyard.kernels.mapping.tile_search import TOO_LONG

        too_slow = rows[:, 4] == TOO_LONG
        if too_slow.any():
            raise too_long(self.products.problems[int(too_slow.argmax())].op)
        raise nothing_fits(self.products.problems[int((rows[:, 4] < 0).argmax())], supply, self.tile)


def search_tiles(
    products: ProblemTable,
    forms: Sequence[Folds | Pooled],
    array: Array,
    supply: Supply,
    tile: Size | None = None,
    goal: Goal = FASTEST,
) -> Integers:
    """The best tiling of each product as a row of the compiled search, on one machine (`TileSearch`)."""
    return TileSearch.of(products, forms, array, tile).tiles(supply, goal)
