"""Compiled loops of the distribution networks: Benes (choose the middle switch of every connection; `benes_switches` sets the
switches and pushes the values), butterfly (passes) and mesh (arrival times).

Ports, levels and the law of a conflict are those of `hardware.benes.network`. A connection is an output d with its source; its
*middle* is the number of the switch it passes at the middle level, whose bits are chosen lowest first. After k bits it sits on the
link (low k bits of the middle, source >> k - outer) of the input side and (low k bits, d >> k - outer) of the output side; no link
may carry two sources. `outer` is 1 where every outer switch has one used port (2N-port network, N used) and 0 in the textbook
network.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

PRESSURE = 4
"""Cost of a link that another source uses, relative to 1 for a free one; of 3 to 8, 4 needs the fewest rounds at 128 ports."""


@njit(cache=True, nogil=True)
def _find(tree: Small, place: int) -> int:
    """Root of a block (the two input links of a switch) and the parity to it, as 2 * root + parity, from an input link."""
    at = place
    above = tree[at >> 1] ^ (at & 1)
    while above != at:
        at, above = above, tree[above >> 1] ^ (above & 1)
    tree[place >> 1] = at ^ (place & 1)
    return at


@njit(cache=True, nogil=True)
def _differ(tree: Small, first_link: int, second_link: int) -> bool:
    """Requires two bound sources (by their input links) to take different halves; false if they already have to take the same."""
    first, second = _find(tree, first_link), _find(tree, second_link)
    if first ^ second > 1:
        tree[first >> 1] = second ^ (first & 1) ^ 1
        return True
    return first != second


@njit(cache=True, nogil=True)
def _bind(end: int, link: Small, source: Small, at: Small, used: Small, tree: Small, crowded: Small, pairs: Small) -> bool:
    """Must (links of one switch) and may (links that meet one level on) differ, for sources that share their switch.

    False where a loop of those that must is odd; its last link is left out. Pairs are listed first, without branches that depend on
    the map: a processor guesses those wrong half of the time.
    """
    count, even = 0, True
    for e in range(end):
        apart = (link[e] ^ 1 == link[e + 1]) & (source[e] != source[e + 1])
        crowded[link[e] >> 1] |= apart  # a switch that splits its two anyway
        pairs[0, count], pairs[1, count] = at[e], at[e + 1]
        count += apart & used[at[e] ^ 1] & used[at[e + 1] ^ 1]
    must = count
    for e in range(end):
        switch = link[e] >> 1
        apart = (switch ^ 1 == link[e + 1] >> 1) & (source[e] != source[e + 1])
        pairs[0, count], pairs[1, count] = at[e], at[e + 1]
        count += apart & ~(crowded[switch] | crowded[switch ^ 1]) & used[at[e] ^ 1] & used[at[e + 1] ^ 1]
    for pair in range(count):
        even &= _differ(tree, pairs[0, pair], pairs[1, pair]) | (pair >= must)
    return even


@njit(cache=True, nogil=True)
def _halves(
    level: int,
    end: int,
    link: Small,
    source: Small,
    at: Small,
    used: Small,
    tree: Small,
    source_of_link: Small,
    free: Small,
    sign: Small,
) -> None:
    """Half of each output link (sign 1: half 0, -1: half 1): of its source where that is bound, else away from what it would meet.

    Weights: the mate of the switch decides; else the two links met one level on, of which another source weighs twice a like one;
    else a bit of the source.
    """
    loose = 0
    for e in range(end):
        bound = used[at[e] ^ 1]
        sign[link[e]] = (1 - 2 * (_find(tree, at[e]) & 1)) * bound
        free[loose] = e
        loose += 1 - bound
    for loose_number in range(loose):
        here, mine = link[free[loose_number]], source[free[loose_number]]
        lean = sign[here ^ 1] * (16 - 32 * (source_of_link[here ^ 1] == mine)) + ((mine >> level) & 2) - 1
        lean += sign[here ^ 2] * (4 - 6 * (source_of_link[here ^ 2] == mine)) + sign[here ^ 3] * (
            4 - 6 * (source_of_link[here ^ 3] == mine)
        )
        sign[here] = 1 - 2 * (lean > 0)


@njit(cache=True, nogil=True)
def _looped(sources: Ints, outer: int, middle: Ints, work: Small) -> bool:
    """The looping algorithm with multicast, one bit of all middles at a time; false where an odd loop leaves clashes.

    Connections (output link, source, output) are kept in the order of their links: half 0 before half 1 after each bit.
    """
    links = sources.size << outer
    link, source, lane, next_link, next_source, next_lane = work[0], work[1], work[2], work[3], work[4], work[5]
    at, used, tree, crowded, source_of_link, free, sign = work[6], work[7], work[8], work[9], work[10], work[11], work[12]
    clashing, pairs = work[13], work[14:16]
    end = 0
    for d in range(sources.size):
        middle[d] = -1
        link[end], source[end], lane[end] = d << outer, sources[d] << outer, d
        end += sources[d] >= 0
    level, width, even = 0, links, True
    while width > 2:
        for n in range(links):
            used[n], crowded[n], sign[n] = 0, 0, 0
        link[end], source[end], at[end] = 4 * links, -1, 0  # beyond the last: meets nothing
        for e in range(end):
            at[e] = (link[e] & ~(width - 1)) + (source[e] >> level)
            used[at[e]] = 1
            tree[at[e] >> 1] = at[e] & ~1
            source_of_link[link[e]] = source[e]
        visible = source if even else clashing
        for e in range(0 if even else end):  # of sources that clash on a link the last one counts
            visible[e] = source_of_link[link[e]]
            at[e] = (link[e] & ~(width - 1)) + (visible[e] >> level)
        even &= _bind(end, link, visible, at, used, tree, crowded, pairs)
        _halves(level, end, link, visible, at, used, tree, source_of_link, free, sign)
        low, high = 0, 0
        for e in range(end):
            high += sign[link[e]] > 0
        for e in range(end):
            half = sign[link[e]] < 0
            to = high if half else low
            next_link[to], next_source[to], next_lane[to] = (link[e] >> 1) + half * (links >> 1), source[e], lane[e]
            high += half
            low += 1 - half
        link, next_link, source, next_source, lane, next_lane = next_link, link, next_source, source, next_lane, lane
        level, width = level + 1, width >> 1
    for e in range(end):
        middle[lane[e]] = link[e] >> 1
    return even


@njit(cache=True, nogil=True)
def _ranked(sources: Ints, bits: int, middle: Ints) -> bool:
    """The rank of its source as the middle of each connection, where no source is below the one before; else false."""
    rank, before = -1, -1
    for d in range(sources.size):
        middle[d] = -1
        if sources[d] >= 0:
            if sources[d] < before:
                return False
            rank += sources[d] != before
            before = sources[d]
            middle[d] = rank & ((1 << bits) - 1)
    return True


@njit(cache=True, nogil=True)
def _first_alike(sources: Ints, outer: int, bits: int, first: Small, seen: Small) -> None:
    """first[k, d]: the lowest output below the same output link of level k that wants the same source."""
    seen[: sources.size] = -1
    for k in range(1, bits + 1):
        for d in range(sources.size):
            if sources[d] >= 0:
                lowest = seen[sources[d]]
                if lowest < 0 or lowest >> (k - outer) != d >> (k - outer) or lowest > d:
                    seen[sources[d]] = lowest = d
                first[k, d] = lowest


@njit(cache=True, nogil=True)
def _add_connection(
    sources: Ints, outer: int, bits: int, d: int, middle: int, step: int, first: Small, used: Small, load: Small
) -> None:
    """Adds connection d (step 1) or removes it (-1): `used` counts outputs per link and source, `load` sources per link."""
    n = bits + 1 - outer
    for k in range(1, bits + 1):
        low = middle & ((1 << k) - 1)
        for side in range(2):
            key, port = (sources[d], sources[d]) if side == 0 else (np.int64(first[k, d]), d)
            at = (((1 << k) - 2 + low) << n) + key
            before = used[side, at]
            used[side, at] = before + step
            if before == 0 or before + step == 0:
                load[side, (k << (n + outer)) + (low << (n + outer - k)) + (port >> (k - outer))] += step


@njit(cache=True, nogil=True)
def _clashes(source: int, outer: int, bits: int, d: int, middle: int, load: Small) -> bool:
    n = bits + 1 - outer
    for k in range(1, bits + 1):
        at = (k << (n + outer)) + ((middle & ((1 << k) - 1)) << (n + outer - k))
        if load[0, at + (source >> (k - outer))] > 1 or load[1, at + (d >> (k - outer))] > 1:
            return True
    return False


@njit(cache=True, nogil=True)
def _cheapest(source: int, outer: int, bits: int, d: int, first: Small, used: Small, load: Small, past: Small, stack: Small) -> int:
    """The middle whose new links cost least: 1 each, plus past clashes on it, plus PRESSURE per source on it."""
    n = bits + 1 - outer
    least, best, top = 1 << 30, 0, 1
    stack[0, 0], stack[1, 0], stack[2, 0] = 0, 0, 0
    while top > 0:
        top -= 1
        cost, k, low = stack[0, top], stack[1, top] + 1, stack[2, top]
        if cost >= least:
            continue
        if k > bits:
            least, best = cost, low
            continue
        near = 0
        for bit in range(2):
            half = low | (bit << (k - 1))
            key, link = ((1 << k) - 2 + half) << n, (k << (n + outer)) + (half << (n + outer - k))
            price = cost
            if used[0, key + source] == 0:
                at = link + (source >> (k - outer))
                price += 1 + past[0, at] + PRESSURE * load[0, at]
            if used[1, key + first[k, d]] == 0:
                at = link + (d >> (k - outer))
                price += 1 + past[1, at] + PRESSURE * load[1, at]
            stack[0, top + bit], stack[1, top + bit], stack[2, top + bit] = price, k, half
            near = price - near
        if near >= 0:  # the cheaper half is looked into first: it lies on top
            for row in range(3):
                stack[row, top], stack[row, top + 1] = stack[row, top + 1], stack[row, top]
        top += 2
    return best


@njit(cache=True, nogil=True)
def _negotiated(
    sources: Ints,
    outer: int,
    bits: int,
    rounds: int,
    middle: Ints,
    first: Small,
    used: Small,
    load: Small,
    past: Small,
    stack: Small,
) -> bool:
    """Connections that clash are removed and routed again, each clash raising its link's cost, until none clash or rounds are over.

    Connections that still clash are removed, from the last output down, and have middle -1. `used` and `load` are zero before and
    after.
    """
    past[:] = 0
    _first_alike(sources, outer, bits, first, stack[3])
    order = np.argsort(sources, kind="mergesort")
    for d in range(sources.size):
        if middle[d] >= 0:
            _add_connection(sources, outer, bits, d, middle[d], 1, first, used, load)
    clear = False
    for _ in range(rounds):
        end = 0
        while end < order.size:  # all clashing connections of one source are lifted before the first of them is laid again
            start, source = end, sources[order[end]]
            while end < order.size and sources[order[end]] == source:
                end += 1
            if source < 0:
                continue
            for d in order[start:end]:
                stack[3, d] = _clashes(source, outer, bits, d, middle[d], load)
            for d in order[start:end]:
                if stack[3, d]:
                    _add_connection(sources, outer, bits, d, middle[d], -1, first, used, load)
            for d in order[start:end]:
                if stack[3, d]:
                    middle[d] = _cheapest(source, outer, bits, d, first, used, load, past, stack)
                    _add_connection(sources, outer, bits, d, middle[d], 1, first, used, load)
        clear = True
        for side in range(2):
            for at in range(load.shape[1]):
                if load[side, at] > 1:
                    past[side, at] += load[side, at] - 1
                    clear = False
        if clear:
            break
    for d in range(sources.size - 1, -1, -1):
        if not clear and middle[d] >= 0 and _clashes(sources[d], outer, bits, d, middle[d], load):
            _add_connection(sources, outer, bits, d, middle[d], -1, first, used, load)
            middle[d] = -1
    for d in range(sources.size):
        if middle[d] >= 0:
            _add_connection(sources, outer, bits, d, middle[d], -1, first, used, load)
    return clear


@njit(cache=True, nogil=True)
def _searched(
    sources: Ints, outer: int, bits: int, limit: int, middle: Ints, first: Small, used: Small, load: Small, stack: Small
) -> int:
    """Every middle of every connection, depth first: 1 routed, 0 proven blocked, -1 undecided after `limit` steps.

    Renaming the two halves below any prefix changes nothing, so half 1 is only tried where half 0 is in use.
    `used` and `load` are zero before and after.
    """
    _first_alike(sources, outer, bits, first, stack[3])
    taken = np.zeros(2 << bits, dtype=np.int32)
    wanted, connections = np.empty(sources.size, dtype=np.int64), 0
    for d in range(sources.size):
        wanted[connections] = d
        connections += sources[d] >= 0
    middle[:] = -1
    at, steps, answer = 0, 0, 1
    while 0 <= at < connections:
        d = wanted[at]
        if middle[d] >= 0:
            _add_connection(sources, outer, bits, d, middle[d], -1, first, used, load)
            for k in range(1, bits + 1):
                taken[(1 << k) + (middle[d] & ((1 << k) - 1))] -= 1
        middle[d] += 1
        steps += 1
        if middle[d] >> bits:
            middle[d] = -1
            at -= 1
            continue
        for k in range(1, bits + 1):
            low = middle[d] & ((1 << k) - 1)
            taken[(1 << k) + low] += 1
        _add_connection(sources, outer, bits, d, middle[d], 1, first, used, load)
        renamed = False
        for k in range(1, bits + 1):
            low = middle[d] & ((1 << k) - 1)
            renamed |= low >> (k - 1) == 1 and taken[(1 << k) + low - (1 << (k - 1))] == 0
        if not renamed and not _clashes(sources[d], outer, bits, d, middle[d], load):
            at += 1
        elif steps > limit:
            answer = -1
            break
    for d in range(sources.size):
        if middle[d] >= 0:
            _add_connection(sources, outer, bits, d, middle[d], -1, first, used, load)
    return 0 if at < 0 else answer


@njit(cache=True, nogil=True)
def route(sources: Ints, outer: int, rounds: int, limit: int, middles: Ints) -> Ints:
    """Middle of every connection of every vector, -1 where idle or not routed; per vector 1 all routed, 0 proven blocked, -1 not.

    A vector like the one before is routed like it. Ranks where sources do not decrease; else the looping algorithm, then `rounds`
    of negotiation, then a complete search of at most `limit` steps (0: none).
    """
    vectors, ports = sources.shape
    n = 0
    while 1 << n < ports:
        n += 1
    bits = n - 1 + outer
    answers = np.ones(vectors, dtype=np.int64)
    work = np.empty((16, (ports << outer) + 1), dtype=np.int32)
    first = np.empty((bits + 1, ports), dtype=np.int32)
    stack = np.empty((4, max(ports, 2 * bits + 4)), dtype=np.int32)
    used = np.zeros((2, 0), dtype=np.int32)
    load, past = used, used
    for vector in range(vectors):
        same = vector > 0
        for d in range(ports):
            same &= sources[vector, d] == sources[vector - 1, d]
        if same:
            middles[vector], answers[vector] = middles[vector - 1], answers[vector - 1]
            continue
        if _ranked(sources[vector], bits, middles[vector]) or _looped(sources[vector], outer, middles[vector], work):
            continue
        if used.size == 0:
            used = np.zeros((2, ((2 << bits) - 2) << n), dtype=np.int32)
            load = np.zeros((2, (bits + 1) << (n + outer)), dtype=np.int32)
            past = load.copy()
        if _negotiated(sources[vector], outer, bits, rounds, middles[vector], first, used, load, past, stack):
            continue
        answers[vector] = -1
        if limit > 0:
            searched = middles[vector].copy()
            answers[vector] = _searched(sources[vector], outer, bits, limit, searched, first, used, load, stack)
            if answers[vector] == 1:
                middles[vector] = searched
    return answers


@njit(cache=True, nogil=True)
def first_fit(sources: Ints, levels: int, passes: Ints) -> None:
    """Butterfly: the first pass in which the one path of an output meets no other source; -1 where idle."""
    ports = sources.shape[1]
    source_of_wire = np.empty((ports, levels, ports), dtype=np.int64)
    for vector in range(sources.shape[0]):
        opened = 0
        for d in range(ports):
            source, chosen = sources[vector, d], -1
            for number in range(opened + 1 if source >= 0 else 0):
                if number == opened:
                    source_of_wire[opened] = -1
                    opened += 1
                free = True
                for level in range(levels):
                    low = (1 << (levels - 1 - level)) - 1
                    other = source_of_wire[number, level, (d & ~low) | (source & low)]
                    free &= other < 0 or other == source
                if free:
                    chosen = number
                    for level in range(levels):
                        low = (1 << (levels - 1 - level)) - 1
                        source_of_wire[number, level, (d & ~low) | (source & low)] = source
                    break
            passes[vector, d] = chosen


@njit(cache=True, nogil=True)
def mesh_arrivals(sources: Ints, rows: int, columns: int, arrivals: Ints, shared: Flags) -> None:
    """Mesh: cycle in which each node has its element (0: idle), and whether a link carried two. The law is `other_networks.Mesh`.

    A row's elements follow each other from the edge without waiting; along a column each link serves first come, first served.
    """
    ports = sources.shape[1]
    at, need = np.empty(ports, dtype=np.int64), np.empty(ports, dtype=np.int64)
    for vector in range(sources.shape[0]):
        entry_cycle = np.zeros(ports, dtype=np.int64)  # cycle in which an element is in column 0
        for d in range(ports):
            if sources[vector, d] >= 0:
                entry_cycle[sources[vector, d]] = 1
        for row in range(rows):
            queued = 0
            for source in range(row * columns, (row + 1) * columns):
                queued += entry_cycle[source]
                entry_cycle[source] *= queued
            shared[vector] |= queued > 1
        for column in range(columns):
            for direction in (1, -1):
                need[:] = -1  # hops from the row of entry, to the farthest node of this column that wants the element
                for row in range(rows):
                    source = sources[vector, row * columns + column]
                    if source >= 0:
                        need[source] = max(need[source], (row - source // columns) * direction)
                        if row == source // columns:
                            arrivals[vector, row * columns + column] = entry_cycle[source] + column
                for source in range(ports):
                    at[source] = entry_cycle[source] + column
                for hop in range(rows - 1):
                    row = hop if direction > 0 else rows - 1 - hop
                    users = [s for s in range(ports) if need[s] > 0 and 0 <= (row - s // columns) * direction < need[s]]
                    shared[vector] |= len(users) > 1
                    left = 0
                    for _, source in sorted([(at[s], s) for s in users]):
                        left = max(at[source], left) + 1
                        at[source] = left
                        if sources[vector, (row + direction) * columns + column] == source:
                            arrivals[vector, (row + direction) * columns + column] = left
