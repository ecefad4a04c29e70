"""Compiled loops of the distribution networks: Benes (choose the middle switch of every connection, set the switches, push the
values), butterfly (passes) and mesh (arrival times).

Ports, levels and the law of a conflict are those of `parts.benes`. A connection is an output d with its source; its *middle* is the
number of the switch it passes at the middle level, whose bits are chosen lowest first. After k bits it sits on the link
(low k bits of the middle, source >> k - outer) of the input side and (low k bits, d >> k - outer) of the output side; no link may
carry two sources. `outer` is 1 where every outer switch has one used port (2N-port network, N used) and 0 in the textbook network.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

PRESSURE = 4
"""Price of a link another source is on, against 1 for a free one; 3 to 8 were tried, 4 needs the fewest rounds at 128 ports."""


@njit(cache=True, nogil=True)
def _find(parent: Small, parity: Small, node: int) -> int:
    """Root of a block and the parity to it, as 2 * root + parity; the path is shortened."""
    root, odd = node, 0
    while parent[root] != root:
        odd ^= parity[root]
        root = parent[root]
    left = odd
    while parent[node] != root and parent[node] != node:
        above, rest = parent[node], left ^ parity[node]
        parent[node], parity[node] = root, left
        node, left = above, rest
    return 2 * root + odd


@njit(cache=True, nogil=True)
def _differ(parent: Small, parity: Small, one: int, other: int) -> bool:
    """Two bound sources (by their input links) take different halves from now on; false if they are known to take the same."""
    odd = 1 ^ (one & 1) ^ (other & 1)
    first, second = _find(parent, parity, one >> 1), _find(parent, parity, other >> 1)
    if first >> 1 == second >> 1:
        return ((first ^ second) & 1) == odd
    parent[first >> 1] = second >> 1
    parity[first >> 1] = (first ^ second ^ odd) & 1
    return True


@njit(cache=True, nogil=True)
def _bind(level: int, width: int, into: Small, out: Small, parent: Small, parity: Small) -> bool:
    """Must (links of one switch) and may (links that meet one level on) differ, for sources that share their switch.

    False where a loop of those that must is odd; its last link is left out.
    """
    even = True
    for node in range(parent.size):
        parent[node], parity[node] = node, 0
    for link in range(0, out.size, 2):
        one, other = out[link], out[link + 1]
        if one >= 0 and other >= 0 and one != other:
            base = link & ~(width - 1)
            first, second = base + (one >> level), base + (other >> level)
            if into[first ^ 1] >= 0 and into[second ^ 1] >= 0:
                even &= _differ(parent, parity, first, second)
    for link in range(0, out.size, 4):
        a, b, c, d = out[link], out[link + 1], out[link + 2], out[link + 3]
        one, other = max(a, b), max(c, d)
        crowded = (a != b and min(a, b) >= 0) or (c != d and min(c, d) >= 0)  # a switch that splits its two anyway
        if crowded or one < 0 or other < 0 or one == other:
            continue
        base = link & ~(width - 1)
        first, second = base + (one >> level), base + (other >> level)
        if into[first ^ 1] >= 0 and into[second ^ 1] >= 0:
            _differ(parent, parity, first, second)
    return even


@njit(cache=True, nogil=True)
def _halves(level: int, width: int, into: Small, out: Small, parent: Small, parity: Small, half: Small) -> None:
    """Half (0 or 1) of each output link: of its source where that is bound, else away from what it would meet."""
    for group in range(0, out.size, 4):
        base = group & ~(width - 1)
        for link in range(group, group + 4):
            half[link] = -1
            if out[link] >= 0:
                at = base + (out[link] >> level)
                if into[at ^ 1] >= 0:
                    half[link] = (_find(parent, parity, at >> 1) ^ at) & 1
        for link in range(group, group + 4):
            source = out[link]
            if source < 0 or half[link] >= 0:
                continue
            mate = link ^ 1
            if out[mate] >= 0 and half[mate] >= 0:
                half[link] = half[mate] if out[mate] == source else 1 - half[mate]
                continue
            lean = 0
            for near in (link ^ 2, link ^ 3):
                if out[near] >= 0 and half[near] >= 0:
                    weight = -1 if out[near] == source else 2
                    lean += weight if half[near] == 0 else -weight
            half[link] = (source >> (level + 1)) & 1 if lean == 0 else int(lean > 0)


@njit(cache=True, nogil=True)
def _looped(sources: Whole, outer: int, middle: Whole, work: Small) -> bool:
    """The looping algorithm with multicast, one bit of all middles at a time; false where an odd loop leaves clashes."""
    links = sources.size << outer
    into, out, next_into, next_out = work[0, :links], work[1, :links], work[2, :links], work[3, :links]
    half, place, parent, parity = work[4], work[5], work[6, : links // 2], work[7, : links // 2]
    into[:], out[:] = -1, -1
    for d in range(sources.size):
        if sources[d] >= 0:
            source = sources[d] << outer
            place[d], out[d << outer], into[source] = d << outer, source, source
    level, width, even = 0, links, True
    while width > 2:
        even &= _bind(level, width, into, out, parent, parity)
        _halves(level, width, into, out, parent, parity, half)
        next_into[:], next_out[:] = -1, -1
        for d in range(sources.size):
            if sources[d] >= 0:
                link, source = place[d], sources[d] << outer
                side = half[link] * (links >> 1)
                place[d] = (link >> 1) + side
                next_out[place[d]] = source
                next_into[((link & ~(width - 1)) >> 1) + side + (source >> (level + 1))] = source
        into, next_into, out, next_out = next_into, into, next_out, out
        level, width = level + 1, width >> 1
    for d in range(sources.size):
        middle[d] = place[d] >> 1 if sources[d] >= 0 else -1
    return even


@njit(cache=True, nogil=True)
def _first_alike(sources: Whole, outer: int, bits: int, first: Small, seen: Small) -> None:
    """first[k, d]: the lowest output below the same output link of level k that wants the same source."""
    seen[: sources.size] = -1
    for k in range(1, bits + 1):
        for d in range(sources.size):
            if sources[d] >= 0:
                held = seen[sources[d]]
                if held < 0 or held >> (k - outer) != d >> (k - outer) or held > d:
                    seen[sources[d]] = held = d
                first[k, d] = held


@njit(cache=True, nogil=True)
def _lay(sources: Whole, outer: int, bits: int, d: int, middle: int, step: int, first: Small, used: Small, load: Small) -> None:
    """Connection d is laid (step 1) or lifted (-1): `used` counts outputs per link and source, `load` sources per link."""
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
    """Middle whose new links cost least: 1 each, what was fought over there before, and PRESSURE per source in the way."""
    n = bits + 1 - outer
    least, found, top = 1 << 30, 0, 1
    stack[0, 0], stack[1, 0], stack[2, 0] = 0, 0, 0
    while top > 0:
        top -= 1
        cost, k, low = stack[0, top], stack[1, top] + 1, stack[2, top]
        if cost >= least:
            continue
        if k > bits:
            least, found = cost, low
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
    return found


@njit(cache=True, nogil=True)
def _negotiated(
    sources: Whole,
    outer: int,
    bits: int,
    rounds: int,
    middle: Whole,
    first: Small,
    used: Small,
    load: Small,
    past: Small,
    stack: Small,
) -> bool:
    """Connections that clash are lifted and laid again, each clash leaving its link dearer, until none is left or rounds are over.

    What still clashes then is lifted, from the last output down, and keeps middle -1. `used` and `load` are zero before and after.
    """
    past[:] = 0
    _first_alike(sources, outer, bits, first, stack[3])
    order = np.argsort(sources, kind="mergesort")
    for d in range(sources.size):
        if middle[d] >= 0:
            _lay(sources, outer, bits, d, middle[d], 1, first, used, load)
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
                    _lay(sources, outer, bits, d, middle[d], -1, first, used, load)
            for d in order[start:end]:
                if stack[3, d]:
                    middle[d] = _cheapest(source, outer, bits, d, first, used, load, past, stack)
                    _lay(sources, outer, bits, d, middle[d], 1, first, used, load)
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
            _lay(sources, outer, bits, d, middle[d], -1, first, used, load)
            middle[d] = -1
    for d in range(sources.size):
        if middle[d] >= 0:
            _lay(sources, outer, bits, d, middle[d], -1, first, used, load)
    return clear


@njit(cache=True, nogil=True)
def _searched(
    sources: Whole, outer: int, bits: int, limit: int, middle: Whole, first: Small, used: Small, load: Small, stack: Small
) -> int:
    """Every middle of every connection, depth first: 1 routed, 0 proven blocked, -1 undecided after `limit` steps.

    Renaming the two halves below any prefix changes nothing, so half 1 is only tried where half 0 is in use.
    `used` and `load` are zero before and after.
    """
    _first_alike(sources, outer, bits, first, stack[3])
    taken = np.zeros(2 << bits, dtype=np.int32)
    wanted = np.flatnonzero(sources >= 0)
    middle[:] = -1
    at, steps, answer = 0, 0, 1
    while 0 <= at < wanted.size:
        d = wanted[at]
        if middle[d] >= 0:
            _lay(sources, outer, bits, d, middle[d], -1, first, used, load)
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
        _lay(sources, outer, bits, d, middle[d], 1, first, used, load)
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
            _lay(sources, outer, bits, d, middle[d], -1, first, used, load)
    return 0 if at < 0 else answer


@njit(cache=True, nogil=True)
def route(sources: Whole, outer: int, rounds: int, limit: int, middles: Whole) -> Whole:
    """Middle of every connection of every vector, -1 where idle or put off; per vector 1 all routed, 0 proven blocked, -1 put off.

    The looping algorithm first, then `rounds` of negotiation, then a complete search of at most `limit` steps (0: none).
    """
    vectors, ports = sources.shape
    n = 0
    while 1 << n < ports:
        n += 1
    bits = n - 1 + outer
    answers = np.ones(vectors, dtype=np.int64)
    work = np.empty((8, ports << outer), dtype=np.int32)
    first = np.empty((bits + 1, ports), dtype=np.int32)
    stack = np.empty((4, max(ports, 2 * bits + 4)), dtype=np.int32)
    used = np.zeros((2, 0), dtype=np.int32)
    load, past = used, used
    for vector in range(vectors):
        if _looped(sources[vector], outer, middles[vector], work):
            continue
        if used.size == 0:
            used = np.zeros((2, ((2 << bits) - 2) << n), dtype=np.int32)
            load = np.zeros((2, (bits + 1) << (n + outer)), dtype=np.int32)
            past = load.copy()
        if _negotiated(sources[vector], outer, bits, rounds, middles[vector], first, used, load, past, stack):
            continue
        answers[vector] = -1
        if limit > 0:
            found = middles[vector].copy()
            answers[vector] = _searched(sources[vector], outer, bits, limit, found, first, used, load, stack)
            if answers[vector] == 1:
                middles[vector] = found
    return answers


@njit(cache=True, nogil=True)
def set_switches(sources: Whole, middles: Whole, ends: Whole, outer: int, bits: int, settings: Bits) -> None:
    """Select bits along every path from a source over its middle to output `ends`; `settings` is zero before. Middle -1: none."""
    last = 2 * bits
    for vector in range(sources.shape[0]):
        for d in range(sources.shape[1]):
            middle = middles[vector, d]
            if middle < 0:
                continue
            source, end = sources[vector, d] << outer, ends[vector, d] << outer
            column, came = source >> 1, source & 1
            for level in range(last + 1):
                if level < bits:
                    stride = 1 << level
                    turn = (column ^ middle) & stride
                elif level < last:
                    stride = 1 << (last - 1 - level)
                    turn = (column ^ (end >> 1)) & stride
                else:
                    turn = end & 1
                goes = int(turn != 0)
                cell = settings[vector, level, column]
                settings[vector, level, column] = (cell & ~np.uint8(1 << goes)) | np.uint8(came << goes)
                if level < last:
                    column ^= turn
                came = goes


@njit(cache=True, nogil=True)
def push(settings: Bits, outer: int, bits: int, rows: Whole, enable: Flags, values: Floats, results: Floats) -> None:
    """Values of vector rows[p] through the switches of pass p, level by level; outputs that are enabled take what arrives."""
    switches = 1 << bits
    straight, across = np.empty(switches, dtype=np.float32), np.empty(switches, dtype=np.float32)
    down, slant = np.empty(switches, dtype=np.float32), np.empty(switches, dtype=np.float32)
    for row in range(rows.size):
        for column in range(switches):
            straight[column] = values[rows[row], column if outer else 2 * column]
            across[column] = np.float32(0) if outer else values[rows[row], 2 * column + 1]
        for level in range(2 * bits + 1):
            for column in range(switches):
                chosen = settings[row, level, column]
                down[column] = across[column] if chosen & 1 else straight[column]
                slant[column] = across[column] if chosen & 2 else straight[column]
            if level < 2 * bits:
                stride = 1 << level if level < bits else 1 << (2 * bits - 1 - level)
                for column in range(switches):
                    straight[column], across[column] = down[column], slant[column ^ stride]
        for d in range(enable.shape[1]):
            if enable[row, d]:
                column = d if outer else d >> 1
                results[rows[row], d] = slant[column] if not outer and d & 1 else down[column]


@njit(cache=True, nogil=True)
def first_fit(sources: Whole, levels: int, passes: Whole) -> None:
    """Butterfly: the first pass in which the one path of an output meets no other source; -1 where idle."""
    ports = sources.shape[1]
    held = np.empty((ports, levels, ports), dtype=np.int64)
    for vector in range(sources.shape[0]):
        opened = 0
        for d in range(ports):
            source, chosen = sources[vector, d], -1
            for number in range(opened + 1 if source >= 0 else 0):
                if number == opened:
                    held[opened] = -1
                    opened += 1
                free = True
                for level in range(levels):
                    low = (1 << (levels - 1 - level)) - 1
                    other = held[number, level, (d & ~low) | (source & low)]
                    free &= other < 0 or other == source
                if free:
                    chosen = number
                    for level in range(levels):
                        low = (1 << (levels - 1 - level)) - 1
                        held[number, level, (d & ~low) | (source & low)] = source
                    break
            passes[vector, d] = chosen


@njit(cache=True, nogil=True)
def mesh_arrivals(sources: Whole, rows: int, columns: int, arrivals: Whole, shared: Flags) -> None:
    """Mesh: cycle in which each node has its element (0: idle), and whether a link carried two. The law is `distribution.Mesh`.

    A row's elements follow each other from the edge without waiting; along a column each link serves first come, first served.
    """
    ports = sources.shape[1]
    at, need = np.empty(ports, dtype=np.int64), np.empty(ports, dtype=np.int64)
    for vector in range(sources.shape[0]):
        turn = np.zeros(ports, dtype=np.int64)  # cycle in which an element is in column 0
        for d in range(ports):
            if sources[vector, d] >= 0:
                turn[sources[vector, d]] = 1
        for row in range(rows):
            queued = 0
            for source in range(row * columns, (row + 1) * columns):
                queued += turn[source]
                turn[source] *= queued
            shared[vector] |= queued > 1
        for column in range(columns):
            for way in (1, -1):
                need[:] = -1  # hops from the row of entry, to the farthest node of this column that wants the element
                for row in range(rows):
                    source = sources[vector, row * columns + column]
                    if source >= 0:
                        need[source] = max(need[source], (row - source // columns) * way)
                        if row == source // columns:
                            arrivals[vector, row * columns + column] = turn[source] + column
                for source in range(ports):
                    at[source] = turn[source] + column
                for hop in range(rows - 1):
                    row = hop if way > 0 else rows - 1 - hop
                    users = [s for s in range(ports) if need[s] > 0 and 0 <= (row - s // columns) * way < need[s]]
                    shared[vector] |= len(users) > 1
                    left = 0
                    for _, source in sorted([(at[s], s) for s in users]):
                        left = max(at[source], left) + 1
                        at[source] = left
                        if sources[vector, (row + way) * columns + column] == source:
                            arrivals[vector, (row + way) * columns + column] = left
