"""How often each event occurs in the products and streams of a step, as columns. The plain twin is `devices.accelerator.costs`.

An array is asked once for each tiling of a product (`TilingEvents`): machines that differ in clock, bandwidth or technology have
most of their tilings in common. What they count is then added up in one compiled call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity, is_frozen, per_part
from trainyard.devices.accelerator.counting import ARITHMETIC, SUM_BYTES
from trainyard.devices.accelerator.energy import FORMATS, OPERANDS, event_of, sampled_events
from trainyard.devices.accelerator.masked_tiles import SUMS_READ
from trainyard.devices.accelerator.step_shape import EXACT, Products, Real, StepShape, Streams, Whole
from trainyard.ir import Array
from trainyard.ir.folds import Tiles
from trainyard.ir.protocols import Divisible

STREAMED = ("vector_op", "dram_read", "dram_write", "scratchpad_write", "scratchpad_read")
"""Events that every demand counts; those of an array follow."""
FEWEST_TILINGS, MOST_TILINGS = 2, 16
"""Tilings of a product whose events are kept: at first, and at most."""
CACHED_STEPS = 32
"""Steps on arrays whose events are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class EventGroup:
    """Some demands and how often each event occurs in them: [event, demand]. `mac` has those that no format counts."""

    rows: Whole
    number: str | None
    """The format of their products, None for streams."""
    events: tuple[str, ...]
    counts: Real


@dataclass(frozen=True, slots=True, eq=False)
class EventCounts:
    """The events of all products and streams of a step."""

    groups: tuple[EventGroup, ...]
    exact: bool
    """Whether a real number counts them all."""


class Recipe(NamedTuple):
    """How the products of one format add up their events from what an array counts (`counting.count_array` as columns).

    Term by term, `size` times the array's event `source` (-1: none) is added to the event `target`.
    """

    which: Whole
    rows: Whole
    number: str
    events: tuple[str, ...]
    source: Whole
    target: Whole
    size: Real
    """[term, product]"""
    formats: npt.NDArray[np.bool_]
    """[event] Whether it is that of a format: what it counts is not counted as `mac` once more."""
    mac: int
    """The number of the event `mac`; -1 where the array has none."""


@dataclass(frozen=True, slots=True, eq=False)
class TilingEvents:
    """What an array counts in tilings of the products of a step. It never changes: with more tilings it is another one."""

    array: Array
    products: Products
    names: tuple[str, ...]
    """Of the array's own events."""
    recipes: tuple[Recipe, ...]
    sizes: Whole
    """[product, place] Three sides; 0 where there is no tiling yet."""
    counted: Real
    """[product, place, event]"""

    @classmethod
    def of(cls, array: Array, products: Products) -> TilingEvents:
        names, count = _array_events(array), len(products.rows)
        sizes, counted = np.zeros((count, FEWEST_TILINGS, 3), np.int64), np.zeros((count, FEWEST_TILINGS, len(names)))
        return cls(array, products, names, _recipes(names, ByIdentity(products)), sizes, counted)

    def with_tilings(self, which: Whole, tiles: Whole) -> tuple[TilingEvents, Whole]:
        """With one more tiling for each of these products, and where it stands; all others of a product are forgotten where there
        are too many."""
        place = (self.sizes[which, :, 0] > 0).sum(axis=1)
        count, width, _ = self.sizes.shape
        more = width if place.max() >= width and width < MOST_TILINGS else 0
        sizes, counted = np.zeros((count, width + more, 3), np.int64), np.zeros((count, width + more, len(self.names)))
        sizes[:, :width], counted[:, :width] = self.sizes, self.counted
        full = place >= width + more
        sizes[which[full]], place[full] = 0, 0
        sizes[which, place] = tiles[which, :3]
        counted[which, place] = tiling_events(self.array, self.names, tiles[which], self.products.shapes.dims[which])
        return TilingEvents(self.array, self.products, self.names, self.recipes, sizes, counted), place


_known = BoundedCache(entries=CACHED_STEPS)
"""`TilingEvents` by step and array."""


def event_counts(shape: StepShape, array: Array, tiles: Whole, product_bytes: Real, stream_reads: Real) -> EventCounts:
    """The events of all products and streams, with `tiles` and the bytes that they move (`batch_costs.BatchCosts`)."""
    groups, exact = list[EventGroup](), True
    for group, largest in (*_of_products(shape, array, tiles, product_bytes), *_of_streams(shape.streams, stream_reads)):
        groups.append(group)
        exact = exact and largest < EXACT
    return EventCounts(tuple(groups), exact)


def _of_products(shape: StepShape, array: Array, tiles: Whole, product_bytes: Real) -> list[tuple[EventGroup, float]]:
    """`Costing._product` of all of them, format by format; with each the largest count."""
    from trainyard.kernels.mapping.event_counts import product_events

    products = shape.products
    if not len(products.rows):
        return []
    known, place = known_events(shape, array, tiles)
    counted = []
    for one in known.recipes:
        counts, largest = product_events(
            known.counted, place, one.which, one.source, one.target, one.size, one.formats, one.mac, products.table, product_bytes
        )
        counted.append((EventGroup(one.rows, one.number, one.events, counts), largest))
    return counted


def known_events(shape: StepShape, array: Array, tiles: Whole) -> tuple[TilingEvents, Whole]:
    """What an array counts in the tilings of the products of a step, and where each product's own stands."""
    from trainyard.kernels.mapping.event_counts import known_tilings

    products = shape.products
    key = (ByIdentity(shape), array) if is_frozen(array) else None
    known = TilingEvents.of(array, products) if key is None else _known.get(key, lambda: TilingEvents.of(array, products))
    place, missing = known_tilings(tiles, known.sizes)
    if missing:
        which = np.flatnonzero(place < 0)
        known, place[which] = known.with_tilings(which, tiles)
        if key is not None:
            _known.put(key, known)
    return known, place


def _of_streams(streams: Streams, reads: Real) -> list[tuple[EventGroup, float]]:
    """`Costing._stream` of all of them; with the largest count."""
    from trainyard.kernels.mapping.event_counts import stream_events

    if not len(streams.rows):
        return []
    counts, largest = stream_events(streams.table, reads)
    return [(EventGroup(streams.rows, None, STREAMED, counts), largest)]


@per_part
def _array_events(array: Any) -> tuple[str, ...]:
    """The events that an array counts."""
    return tuple(sampled_events(array))


@per_part
def event_names(array: Any) -> tuple[str, ...]:
    """The events that products on an array count, but for those of streams and formats."""
    return tuple(dict.fromkeys(event_of(name)[0] for name in _array_events(array)))


@lru_cache(maxsize=CACHED_STEPS)
def _recipes(names: tuple[str, ...], products: ByIdentity[Products]) -> tuple[Recipe, ...]:
    return tuple(_recipe(names, products.value, which, *number) for number, which in products.value.numbers.items())


def _recipe(names: Sequence[str], products: Products, which: Whole, number: str, packed: int) -> Recipe:
    """Products in the format `number`, of which a multiplier makes `packed` at once."""
    a, b, _ = products.element_bytes[:, which]
    sizes: Mapping[str, Any] = {**dict(zip(OPERANDS, (a, b, SUM_BYTES), strict=True)), "": 1}
    numbers = {event: place for place, event in enumerate(STREAMED)}
    terms = []
    for source, name in enumerate(names):
        event, operand = event_of(name)
        terms.append((source, numbers.setdefault(event, len(numbers)), packed if name in ARITHMETIC else sizes[operand]))
    terms.append((names.index("mac") if "mac" in names else -1, numbers.setdefault(f"mac_{number}", len(numbers)), packed))
    source, target, size = zip(*terms, strict=True)
    return Recipe(
        which=which,
        rows=products.rows[which],
        number=number,
        events=tuple(numbers),
        source=np.array(source, np.int64),
        target=np.array(target, np.int64),
        size=np.array([np.broadcast_to(one, len(which)) for one in size], np.float64),
        formats=np.array([event in FORMATS for event in numbers], np.bool_),
        mac=numbers.get("mac", -1),
    )


def tiling_events(array: Array, names: Sequence[str], chosen: Whole, dims: Whole) -> Real:
    """`Costing._tile_events` of products of such dimensions: what the array does in all of their tiles, by [product, event]."""
    from trainyard.kernels.mapping.event_counts import added_kinds, tile_kinds

    product, (high, wide, deep), times, begun = tile_kinds(chosen, dims)
    count = dims[product, 3]
    if isinstance(array, Divisible):  # asked for one product at a time, as often as there are
        count, times = np.ones_like(count), times * count
    tiles, values = Tiles(high, wide, deep, count), np.empty((len(names), len(product)))
    events = array.tile_events(tiles)  # type: ignore[attr-defined]  # only with a closed form
    for number, name in enumerate(names):
        values[number] = events[name]
    again = high * wide * count * begun  # sums that an earlier tile has begun are read first
    sums = names.index(SUMS_READ) if SUMS_READ in names else -1
    counted: Real = added_kinds(product, times, values, again, sums, len(dims))
    return counted
