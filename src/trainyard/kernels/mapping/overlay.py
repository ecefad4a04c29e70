"""The cost of a memory overlay, and a local search. Plain Python: `oracles.overlay_placement` and `simulate`.

A row of `table` is a saved tensor, its columns are named below; `sources` holds the numbers of the tensors that it is recomputed
from, row i of it ends at `source_ends[i]`. `line` has a row for each position: its picoseconds and the bytes of all else. Decisions
are 0 keep, 1 send, 2 recompute. `room` is scratch memory, its rows are named below.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

KEEP, SEND, RECOMPUTE = range(3)
BYTES, MADE, LAST_FORWARD, FIRST_BACKWARD, LAST_BACKWARD, RECOMPUTE_PS, OUT_PS, IN_PS, WRAPS, CLEAN, SENDABLE = range(11)
DURATION_PS, HELD = range(2)
# rows of `room` by tensor
FIRST, LAST, RECOMPUTE_AT, LEAVE_BY, FETCH_AT, OUT_END, IN_END, IN_ORDER, QUEUE, PLACE, RECOMPUTE_NEXT, OUT_NEXT, USER = range(13)
# rows of `room` by position
USED, GATE, BUCKET, RECOMPUTE_HEAD, OUT_HEAD = range(13, 18)
ROWS = 18
NO_WAY = 1 << 62


@njit(cache=True)
def clean(table: Ints, decisions: Ints, index: int) -> bool:
    """Whether a tensor leaves without a copy: always (1), or where the tensor of number CLEAN - 2 is sent."""
    how = table[index, CLEAN]
    return bool(how == 1 or (how > 1 and decisions[how - 2] == SEND))


@njit(cache=True)
def needs(table: Ints, source_ends: Ints, sources: Ints, decisions: Ints, room: Ints) -> bool:
    """The first and last need of each tensor, and where it is recomputed; False where a source is still in forward then."""
    count, fine = len(table), True
    for index in range(count):
        room[FIRST, index], room[LAST, index] = table[index, FIRST_BACKWARD], table[index, LAST_BACKWARD]
        room[RECOMPUTE_AT, index], room[USER, index] = -1, count
    for index in range(count - 1, -1, -1):
        at = room[FIRST, index]
        if decisions[index] != RECOMPUTE or at < 0:
            continue
        fine &= at > table[index, LAST_FORWARD]
        room[RECOMPUTE_AT, index] = at
        for entry in range(source_ends[index - 1] if index else 0, source_ends[index]):
            source = sources[entry]
            fine &= at > table[source, LAST_FORWARD]
            if room[FIRST, source] < 0 or at < room[FIRST, source]:
                room[FIRST, source] = at
            if at > room[LAST, source]:
                room[LAST, source] = at
    return fine


@njit(cache=True)
def least_used(table: Ints, line: Ints, decisions: Ints, room: Ints) -> int:
    """Bytes by position if sent tensors leave at once and return when needed; returns the peak."""
    end = len(line)
    for position in range(end + 1):
        room[USED, position] = 0
    for index in range(len(table)):
        size, first, last, wraps = table[index, BYTES], room[FIRST, index], room[LAST, index], table[index, WRAPS]
        stays, back = table[index, LAST_FORWARD] + 1, first
        if decisions[index] == KEEP and first >= 0:
            stays, back = (end, 0) if wraps else (last + 1, -1)
        room[USED, table[index, MADE]] += size
        room[USED, stays] -= size
        if back >= 0:
            room[USED, back] += size
            room[USED, last + 1] -= size
    running, most = 0, 0
    for position in range(end):
        running += room[USED, position]
        room[USED, position] = running + line[position, HELD]
        most = max(most, room[USED, position])
    return most


@njit(cache=True)
def order_copies(table: Ints, source_ends: Ints, sources: Ints, decisions: Ints, end: int, room: Ints) -> int:
    """IN_ORDER, and lists of copies out after and recomputations before a position; returns the number of copies in."""
    for position in range(end + 1):
        room[BUCKET, position], room[RECOMPUTE_HEAD, position], room[OUT_HEAD, position] = 0, -1, -1
    count = 0
    for index in range(len(table) - 1, -1, -1):
        room[LEAVE_BY, index], room[FETCH_AT, index], room[OUT_END, index], room[IN_END, index] = -1, -1, 0, 0
        at = room[RECOMPUTE_AT, index]
        if at >= 0:
            room[RECOMPUTE_NEXT, index], room[RECOMPUTE_HEAD, at] = room[RECOMPUTE_HEAD, at], index
            for entry in range(source_ends[index - 1] if index else 0, source_ends[index]):
                if room[FIRST, sources[entry]] == at:
                    room[USER, sources[entry]] = index
        if decisions[index] == SEND and room[FIRST, index] >= 0:
            count += 1
            room[BUCKET, room[FIRST, index] + 1] += 1
            leaves = table[index, LAST_FORWARD]
            if clean(table, decisions, index):
                room[LEAVE_BY, index], room[PLACE, index] = leaves + 1, -1
            else:
                room[OUT_NEXT, index], room[OUT_HEAD, leaves], room[PLACE, index] = room[OUT_HEAD, leaves], index, 0
    for position in range(end):
        room[BUCKET, position + 1] += room[BUCKET, position]
        room[GATE, position] = room[BUCKET, position]
    for index in range(len(table)):
        if decisions[index] == SEND and room[FIRST, index] >= 0:
            place = room[BUCKET, room[FIRST, index]]
            room[BUCKET, room[FIRST, index]] += 1
            while place > room[GATE, room[FIRST, index]]:  # at one position, first what the first recomputation needs
                before = room[IN_ORDER, place - 1]
                if room[USER, before] <= room[USER, index]:
                    break
                room[IN_ORDER, place] = before
                place -= 1
            room[IN_ORDER, place] = index
    return count


@njit(cache=True)
def place_out(table: Ints, line: Ints, coming: int, budget: int, room: Ints) -> None:
    """LEAVE_BY: when a copy out has ended anyway, or as late as memory allows. USED includes copies in flight."""
    now = free = head = tail = pending = needed = 0
    end = len(line)
    for position in range(end):
        gate, due = now, 0  # so many must have left
        while needed < coming and room[FIRST, room[IN_ORDER, needed]] == position:
            index = room[IN_ORDER, needed]
            if not table[index, WRAPS]:
                due = max(due, room[PLACE, index] + 1)
            needed += 1
        while head < tail:
            index = room[QUEUE, head]
            if not (head < due or room[OUT_END, index] <= gate or room[USED, position] + pending > budget):
                break
            gate = max(gate, room[OUT_END, index])
            room[LEAVE_BY, index] = position
            pending -= table[index, BYTES]
            head += 1
        room[USED, position] += pending
        room[GATE, position] = now = gate
        index = room[RECOMPUTE_HEAD, position]
        while index >= 0:
            now += table[index, RECOMPUTE_PS]
            index = room[RECOMPUTE_NEXT, index]
        now += line[position, DURATION_PS]
        index = room[OUT_HEAD, position]
        while index >= 0:
            free = max(free, now) + table[index, OUT_PS]
            room[OUT_END, index] = free
            room[QUEUE, tail], room[PLACE, index] = index, tail
            tail += 1
            pending += table[index, BYTES]
            index = room[OUT_NEXT, index]
    for place in range(head, tail):
        room[LEAVE_BY, room[QUEUE, place]] = end


@njit(cache=True)
def place_in(table: Ints, line: Ints, coming: int, budget: int, early: bool | np.bool_, room: Ints) -> None:
    """FETCH_AT: as early as memory allows, the nearest need first; unless `early`, no earlier than hides the copy."""
    latest = NO_WAY
    for place in range(coming - 1, -1, -1):  # the latest start that delays no op, stored in QUEUE
        index = room[IN_ORDER, place]
        latest = min(latest, room[GATE, room[FIRST, index]]) - table[index, IN_PS]
        room[QUEUE, place] = latest
    reached = before = 0
    for place in range(coming):
        index = room[IN_ORDER, place]
        need, size = room[FIRST, index], table[index, BYTES]
        while reached + 1 < len(line) and room[GATE, reached + 1] <= room[QUEUE, place]:
            reached += 1
        lowest = before if early else max(before, reached)
        if table[index, WRAPS] == 0:
            lowest = max(lowest, room[LEAVE_BY, index])
        at = need
        while at > lowest and room[USED, at - 1] + size <= budget:
            at -= 1
            room[USED, at] += size
        room[FETCH_AT, index] = before = at


@njit(cache=True)
def linger(table: Ints, coming: int, end: int, budget: int, room: Ints) -> None:
    """Delays LEAVE_BY where memory allows: no planned time changes, but a late copy has slack."""
    for place in range(coming):
        index = room[IN_ORDER, place]
        if room[PLACE, index] < 0:
            continue
        latest, at = end if table[index, WRAPS] else room[FETCH_AT, index], room[LEAVE_BY, index]
        while at < latest and room[USED, at] + table[index, BYTES] <= budget:
            room[USED, at] += table[index, BYTES]
            at += 1
        room[LEAVE_BY, index] = at


@njit(cache=True)
def run(table: Ints, line: Ints, source_ends: Ints, sources: Ints, coming: int, duplex: bool, room: Ints) -> int:
    """Picoseconds of the step with the current LEAVE_BY and FETCH_AT (`simulate`, without its records)."""
    end = len(line)
    for position in range(end + 1):
        room[BUCKET, position] = 0  # the latest end of the copies that must have left by it
    now = out_free = in_free = arriving = waited = 0
    for position in range(end):
        gate = max(now, room[BUCKET, position])
        room[GATE, position] = now = gate
        while arriving < coming and room[FETCH_AT, room[IN_ORDER, arriving]] <= position:
            index = room[IN_ORDER, arriving]
            left = 0 if table[index, WRAPS] else room[OUT_END, index]
            in_free = max(in_free, room[GATE, room[FETCH_AT, index]], left) + table[index, IN_PS]
            room[IN_END, index] = in_free
            if not duplex:
                out_free = in_free
            arriving += 1
        index = room[RECOMPUTE_HEAD, position]
        while index >= 0:
            for entry in range(source_ends[index - 1] if index else 0, source_ends[index]):
                now = max(now, room[IN_END, sources[entry]])
            now += table[index, RECOMPUTE_PS]
            index = room[RECOMPUTE_NEXT, index]
        while waited < coming and room[FIRST, room[IN_ORDER, waited]] == position:
            index = room[IN_ORDER, waited]
            if table[index, FIRST_BACKWARD] == position:
                now = max(now, room[IN_END, index])
            waited += 1
        now += line[position, DURATION_PS]
        index = room[OUT_HEAD, position]
        while index >= 0:
            out_free = max(out_free, now) + table[index, OUT_PS]
            room[OUT_END, index] = out_free
            if not duplex:
                in_free = out_free
            room[BUCKET, room[LEAVE_BY, index]] = max(room[BUCKET, room[LEAVE_BY, index]], out_free)
            index = room[OUT_NEXT, index]
    return max(now, out_free, in_free)


@njit(cache=True)
def price(
    table: Ints, line: Ints, source_ends: Ints, sources: Ints, duplex: bool,
    decisions: Ints, budget: int, early: bool | np.bool_, most_ps: int | np.int64, room: Ints,
) -> tuple[int, int]:  # fmt: skip
    """(picoseconds, bytes over the budget): the second is positive where the decisions do not fit.

    Then nothing is placed, nor where the compute stream alone takes more than `most_ps`; that is the time returned.
    """
    if not needs(table, source_ends, sources, decisions, room):
        return NO_WAY, NO_WAY
    over = least_used(table, line, decisions, room) - budget
    if over > 0:
        return NO_WAY, over
    alone, end = 0, len(line)
    for position in range(end):
        alone += line[position, DURATION_PS]
    for index in range(len(table)):
        if room[RECOMPUTE_AT, index] >= 0:
            alone += table[index, RECOMPUTE_PS]
    if alone > most_ps:
        return alone, over
    coming = order_copies(table, source_ends, sources, decisions, end, room)
    place_out(table, line, coming, budget, room)
    place_in(table, line, coming, budget, early, room)
    if early:
        linger(table, coming, end, budget, room)
    return run(table, line, source_ends, sources, coming, duplex, room), over


@njit(cache=True)
def busy(table: Ints, decisions: Ints, room: Ints) -> int:
    """Picoseconds of copies and recomputations: of two choices of equal time the one with less work is better."""
    total = 0
    for index in range(len(table)):
        if room[FIRST, index] >= 0:
            if decisions[index] == SEND:
                total += table[index, IN_PS] + (0 if clean(table, decisions, index) else table[index, OUT_PS])
            elif decisions[index] == RECOMPUTE:
                total += table[index, RECOMPUTE_PS]
    return total


@njit(cache=True)
def allowed(table: Ints, index: int, decision: int) -> bool:
    return decision == KEEP or (table[index, SENDABLE] != 0 if decision == SEND else table[index, RECOMPUTE_PS] >= 0)


@njit(cache=True)
def improve(
    table: Ints, line: Ints, source_ends: Ints, sources: Ints, duplex: bool,
    decisions: Ints, budget: int, order: Ints, largest: int, tries: int, room: Ints, best: Ints,
) -> int:  # fmt: skip
    """Blocks of `order` change their decision together, large blocks first, as long as that helps; returns the tries left.

    `best` is (bytes over the budget, picoseconds, busy picoseconds), compared in that order; `decisions` and `best` are changed.
    """
    old = decisions.copy()
    size = largest
    while size >= 1:
        for start in range(0, len(order), size):
            for decision in range(3):
                changed = False
                for place in range(start, min(start + size, len(order))):
                    index = order[place]
                    if decisions[index] != decision and allowed(table, index, decision):
                        decisions[index] = decision
                        changed = True
                if not changed:
                    continue
                helps = tries > 0 and better(table, line, source_ends, sources, duplex, decisions, budget, room, best)
                for place in range(start, min(start + size, len(order))):
                    index = order[place]
                    if helps:
                        old[index] = decisions[index]
                    else:
                        decisions[index] = old[index]
                if tries == 0:
                    return 0
                tries -= 1
        size //= 2
    return tries


@njit(cache=True)
def better(
    table: Ints, line: Ints, source_ends: Ints, sources: Ints, duplex: bool,
    decisions: Ints, budget: int, room: Ints, best: Ints,
) -> bool:  # fmt: skip
    """Prices the decisions; if they beat `best`, it is updated."""
    most_ps = NO_WAY if best[0] else best[1]
    time, over = price(table, line, source_ends, sources, duplex, decisions, budget, np.bool_(False), most_ps, room)
    over = max(over, 0)
    if over > best[0] or (over == best[0] and time > best[1]):
        return False
    work = busy(table, decisions, room)
    if over == best[0] and time == best[1] and work >= best[2]:
        return False
    best[0], best[1], best[2] = over, time, work
    return True


@njit(cache=True)
def promising(table: Ints, first: int, new: int, second: int, second_new: int, decisions: Ints, slack: int) -> bool:
    """Whether a change of two tensors' decisions recomputes less and fits in memory."""
    spent = resident = 0
    for index, decision, sign in (
        (first, decisions[first], -1),
        (second, decisions[second], -1),
        (first, new, 1),
        (second, second_new, 1),
    ):
        if decision == RECOMPUTE:
            spent += sign * table[index, RECOMPUTE_PS]
        elif decision == KEEP:
            resident += sign * table[index, BYTES]
    return spent < 0 and resident <= slack


@njit(cache=True)
def swap(
    table: Ints, line: Ints, source_ends: Ints, sources: Ints, duplex: bool,
    decisions: Ints, budget: int, order: Ints, reach: int, far: int, tries: int, room: Ints, best: Ints,
) -> int:  # fmt: skip
    """Two tensors change their decisions at once: neighbours in `order`, and promising ones at most `far` apart; tries left."""
    early, most_ps = np.bool_(False), np.int64(0)  # no constants: one copy of `price` is compiled for all who call it
    slack = -price(table, line, source_ends, sources, duplex, decisions, budget, early, most_ps, room)[1]
    for place in range(len(order)):
        one = order[place]
        for other_place in range(place + 1, min(place + 1 + max(reach, far), len(order))):
            other = order[other_place]
            for pair in range(9):
                was, other_was, new, other_new = decisions[one], decisions[other], pair // 3, pair % 3
                if new == was or other_new == other_was:
                    continue
                if other_place - place > reach and not promising(table, one, new, other, other_new, decisions, slack):
                    continue
                if not allowed(table, one, new) or not allowed(table, other, other_new):
                    continue
                if tries == 0:
                    return 0
                tries -= 1
                decisions[one], decisions[other] = new, other_new
                if better(table, line, source_ends, sources, duplex, decisions, budget, room, best):
                    slack = -price(table, line, source_ends, sources, duplex, decisions, budget, early, most_ps, room)[1]
                else:
                    decisions[one], decisions[other] = was, other_was
    return tries


@njit(cache=True)
def send_fewest(
    table: Ints, line: Ints, source_ends: Ints, sources: Ints, decisions: Ints, budget: int, order: Ints, room: Ints
) -> bool:
    """Sends as few of `order`, from its front, as fit the budget; False where even all do not fit."""
    few, many, done = 0, len(order) + 1, 0
    while few < many:
        middle = (few + many) // 2
        if middle > len(order):
            return False
        for place in range(min(done, middle), max(done, middle)):
            decisions[order[place]] = SEND if place < middle else KEEP
        done = middle
        fits = needs(table, source_ends, sources, decisions, room) and least_used(table, line, decisions, room) <= budget
        if fits:
            many = middle
        else:
            few = middle + 1
    if few > len(order):
        return False
    for place in range(len(order)):
        decisions[order[place]] = SEND if place < few else KEEP
    return True
