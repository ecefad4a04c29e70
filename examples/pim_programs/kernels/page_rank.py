"""One PageRank iteration on vertices spread over many units; whole numbers (fixed point) or floats. Twin: plain loops in the tests.

Arrays are of all units together, each unit's part in one piece: its vertices, its edges, its outbox. Whole numbers add up to the
same in any order, so that fixed point gives the same bits on any number of units; floats are added in the order of the arrays.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]
Ranks = npt.NDArray[Any]

HALF = 30
ONE = 1 << (2 * HALF)
"""1 in fixed point: 60 bits of fraction; all ranks together are 1, so that no sum leaves 64 bits."""
_LOW = (1 << HALF) - 1


@njit(cache=True, nogil=True)
def fixed_product(a: int, b: int) -> int:
    """The product of two fixed-point numbers from 0 to 1, rounded down, in four products of 30-bit halves."""
    high, low = a >> HALF, a & _LOW
    other_high, other_low = b >> HALF, b & _LOW
    middle = high * other_low + low * other_high + ((low * other_low) >> HALF)
    return high * other_high + (middle >> HALF)


@njit(cache=True, nogil=True)
def combined(shares: Ranks, edge_source: Whole, slot_first: Whole) -> Ranks:
    """The outboxes: slot s is the sum of the shares of its edges' sources, edges slot_first[s] to slot_first[s + 1]."""
    out = np.zeros(slot_first.size - 1, shares.dtype)
    for slot in range(out.size):
        for edge in range(slot_first[slot], slot_first[slot + 1]):
            out[slot] += shares[edge_source[edge]]
    return out


@njit(cache=True, nogil=True)
def collected(inbox: Ranks, vertex_first: Whole) -> Ranks:
    """What arrived for each vertex, added up in the order of arrival."""
    out = np.zeros(vertex_first.size - 1, inbox.dtype)
    for vertex in range(out.size):
        for place in range(vertex_first[vertex], vertex_first[vertex + 1]):
            out[vertex] += inbox[place]
    return out


@njit(cache=True, nogil=True)
def fixed_shares(ranks: Whole, degrees: Whole) -> Whole:
    """What each vertex gives along each of its edges, rounded to nearest, so that no rank leaks away."""
    out = np.zeros(ranks.size, np.int64)
    for vertex in range(ranks.size):
        if degrees[vertex] > 0:
            out[vertex] = (ranks[vertex] + degrees[vertex] // 2) // degrees[vertex]
    return out


@njit(cache=True, nogil=True)
def fixed_ranks(arrived: Whole, damping: int, base: int) -> Whole:
    out = np.empty(arrived.size, np.int64)
    for vertex in range(arrived.size):
        out[vertex] = base + fixed_product(arrived[vertex], damping)
    return out


@njit(cache=True, nogil=True)
def dealt_by_load(loads: Whole, order: Whole, units: int) -> Whole:
    """Each item, in `order`, goes to the unit with the least load so far, the first of equals."""
    owner = np.empty(loads.size, np.int64)
    heap = [(np.int64(0), np.int64(unit)) for unit in range(units)]
    for place in range(order.size):
        item = order[place]
        load, unit = heapq.heappop(heap)
        owner[item] = unit
        heapq.heappush(heap, (load + loads[item], unit))
    return owner
