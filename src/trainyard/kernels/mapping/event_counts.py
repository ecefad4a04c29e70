"""Events of all products and streams of a step, added up and compiled. Plain Python: `devices.accelerator.counting.count_array`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
STREAMED = 5
"""Vector operations, DRAM reads and writes, writes and reads of the scratchpad."""


@njit(cache=True, error_model="numpy")
def known_tilings(tiles: Ints, sizes: Ints) -> Any:
    """Where the tiling of each product stands among the known ones (`sizes` by [product, place], the first with a 0 ends them); -1
    where it is not, and how many are not."""
    place, missing = np.full(tiles.shape[0], -1), 0
    for row in range(tiles.shape[0]):
        for number in range(sizes.shape[1]):
            known = sizes[row, number]
            if known[0] == 0:
                break
            if known[0] == tiles[row, 0] and known[1] == tiles[row, 1] and known[2] == tiles[row, 2]:
                place[row] = number
                break
        if place[row] < 0:
            missing += 1
    return place, missing


@njit(cache=True, error_model="numpy")
def product_events(
    counted: Real,
    place: Ints,
    which: Ints,
    source: Ints,
    target: Ints,
    size: Real,
    formats: Flags,
    mac: int,
    table: Real,
    moves: Real,
) -> Any:
    """Events by [event, product] of the products `which`, and the largest count (infinite where one is no number).

    `counted` has what the array counts in known tilings, of which each product has the one at its `place`. Terms are added in their
    order; `mac` loses what `formats` count. `table` and `moves` are those of `product_costs.step_costs`.
    """
    counts, largest = np.zeros((formats.shape[0], which.shape[0])), 0.0
    for column in range(which.shape[0]):
        row = which[column]
        own = counted[row, place[row]]
        counts[0, column] = table[row, 6]
        counts[1, column] = counts[3, column] = moves[3, row]
        counts[2, column] = counts[4, column] = moves[4, row]
        for term in range(source.shape[0]):
            if source[term] >= 0:
                counts[target[term], column] += own[source[term]] * size[term, column]
        if mac >= 0:
            named = 0.0
            for event in range(formats.shape[0]):
                if formats[event]:
                    named += counts[event, column]
            counts[mac, column] -= named
        for event in range(formats.shape[0]):
            largest = counts[event, column] if counts[event, column] > largest else largest
            if np.isnan(counts[event, column]):
                largest = np.inf
    return counts, largest


@njit(cache=True, error_model="numpy")
def stream_events(streams: Real, reads: Real) -> Any:
    """Events by [event, stream], and the largest count; `streams` and `reads` are those of `product_costs.step_costs`."""
    counts, largest = np.empty((STREAMED, streams.shape[0])), 0.0
    for row in range(streams.shape[0]):
        counts[0, row] = streams[row, 2]
        counts[1, row] = counts[3, row] = reads[row]
        counts[2, row] = counts[4, row] = streams[row, 1]
        largest = max(largest, streams[row, 2], reads[row], streams[row, 1])
    return counts, largest


@njit(cache=True, error_model="numpy")
def tile_kinds(tiles: Ints, dims: Ints) -> Any:
    """Tiles of each product by kind: full or edge along m and n; along k the first, further full ones, the edge.

    For each kind that occurs: the product, its sides, how many there are, and whether earlier tiles have begun its sums.
    """
    most = 12 * tiles.shape[0]
    product, begun = np.empty(most, np.int64), np.empty(most)
    sides, times = np.empty((3, most)), np.empty(most)
    side, many = np.empty((3, 3), np.int64), np.empty((3, 3), np.int64)
    last = 0
    for row in range(tiles.shape[0]):
        for axis in range(3):
            full, rest = divmod(dims[row, axis], tiles[row, axis])
            side[axis, 0], side[axis, 1], side[axis, 2] = tiles[row, axis], tiles[row, axis], rest
            many[axis, 0], many[axis, 1], many[axis, 2] = full, 0, 1 if rest else 0
        many[2, 0], many[2, 1] = 1, many[2, 0] - 1
        for m in range(0, 3, 2):
            for n in range(0, 3, 2):
                for k in range(3):
                    number = float(many[0, m]) * many[1, n] * many[2, k]
                    if number > 0.0:
                        product[last], begun[last], times[last] = row, 0.0 if k == 0 else 1.0, number
                        sides[0, last], sides[1, last], sides[2, last] = side[0, m], side[1, n], side[2, k]
                        last += 1
    return product[:last], sides[:, :last], times[:last], begun[:last]


@njit(cache=True, error_model="numpy")
def added_kinds(product: Ints, times: Real, values: Real, again: Real, sums: int, products: int) -> Any:
    """Events by [product, event]: `values` by [event, kind of tile] as often as there are such tiles; `again` more of the event
    `sums` (-1: of none)."""
    counted = np.zeros((products, values.shape[0]))
    for event in range(values.shape[0]):
        for kind in range(product.shape[0]):
            done = values[event, kind] * times[kind]
            if event == sums:
                done += again[kind] * times[kind]
            counted[product[kind], event] += done
    return counted
