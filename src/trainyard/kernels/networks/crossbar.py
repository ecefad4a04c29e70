"""Compiled clock of messages in a tree of crossbars, by the rules of `hardware.crossbar.messages`. Plain Python: the agents of
`oracles.crossbar_agents`.

An event is (time, kind, number). A binary heap gives them in that order, so that what happens at one instant happens in a stated
order; when all of it has happened, every output that may have become free chooses among its inputs. Events without consequence are
counted but not put into the heap: a link that becomes free without a waiting message, a last delivery. A slot that becomes free
together with the link that emptied it is one entry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

# kinds of events, in the order in which they happen at one instant
RELEASE, FREE, DELIVER, DONE, READY, INJECT, HEAD = range(7)
NUMBER_BITS = 48

# columns of the inputs
RATE, LATENCY, LEADS_TO, ROOM, INPUTS, WAITS_AT, SLOTS_AT = range(7)  # of links
UP, LEVEL = range(2)  # of switches
SIZE, SOURCE, DESTINATION, FEEDS, PRIORITY, READY_PS = range(6)  # of messages
REDUCER, SUM_PS, NEEDS, THEN_MESSAGE, THEN_SUM = range(5)  # of sums
LINK, FIRST, COUNT = range(3)  # of entries: a link of a multicast's tree, and the entries that follow it
ROUND_ROBIN, OLDEST, BY_PRIORITY = range(3)  # arbitrations

# columns of the state: of links, of queues (a link's buffer, or an endpoint's messages that wait to leave)
FREE_AT, USED, ARRIVED, OLDEST_SLOT, WAITING, LAST, DIRTY, CALLED, SERVES = range(9)
PENDING, TAIL, MESSAGE, NEWEST = range(4)


@njit(cache=True, nogil=True)
def _push(heap: Ints, queued: int, time: int, code: int) -> int:
    at = queued
    while at > 0:
        above = (at - 1) >> 1
        if heap[above, 0] < time or (heap[above, 0] == time and heap[above, 1] <= code):
            break
        heap[at, 0], heap[at, 1] = heap[above, 0], heap[above, 1]
        at = above
    heap[at, 0], heap[at, 1] = time, code
    return queued + 1


@njit(cache=True, nogil=True)
def _pop(heap: Ints, queued: int) -> int:
    """Removes the first entry, which the caller has read."""
    queued -= 1
    time, code = heap[queued, 0], heap[queued, 1]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= queued:
            break
        other = below + 1
        if other < queued and (
            heap[other, 0] < heap[below, 0] or (heap[other, 0] == heap[below, 0] and heap[other, 1] < heap[below, 1])
        ):
            below = other
        if time < heap[below, 0] or (time == heap[below, 0] and code <= heap[below, 1]):
            break
        heap[at, 0], heap[at, 1] = heap[below, 0], heap[below, 1]
        at = below
    heap[at, 0], heap[at, 1] = time, code
    return queued


@njit(cache=True, nogil=True)
def _grown(heap: Ints) -> Ints:
    larger = np.empty((2 * heap.shape[0], 2), np.int64)
    for place in range(heap.shape[0]):
        larger[place, 0], larger[place, 1] = heap[place, 0], heap[place, 1]
    return larger


@njit(cache=True, nogil=True, inline="always")
def _mark(link: int, link_state: Ints, dirty: Ints, marked: int) -> int:
    if link_state[link, DIRTY] == 0:
        link_state[link, DIRTY] = 1
        dirty[marked] = link
        marked += 1
    return marked


@njit(cache=True, nogil=True, inline="always")
def _request_output(
    queue: int, output: int, entry: int, links: Ints, link_state: Ints, waiting: Ints, dirty: Ints, marked: int
) -> int:
    at = links[output, WAITS_AT] + link_state[output, WAITING]
    waiting[at, 0], waiting[at, 1] = queue, entry
    link_state[output, WAITING] += 1
    return _mark(output, link_state, dirty, marked)


@njit(cache=True, nogil=True, inline="always")
def _offer(
    queue: int,
    links: Ints, switches: Ints, ancestor: Ints, toward: Ints, out_link: Ints, messages: Ints, entries: Ints,
    slots: Ints, link_state: Ints, queue_state: Ints, waiting: Ints, dirty: Ints, marked: int,
) -> int:  # fmt: skip
    """The first message of a queue requests its outputs."""
    count_links = links.shape[0]
    if queue >= count_links:
        message = queue_state[queue, MESSAGE]
        destination = messages[message, DESTINATION]
        queue_state[queue, PENDING], queue_state[queue, TAIL] = 1, 0
        entry = -1 if destination >= 0 else ~destination
        return _request_output(queue, out_link[queue - count_links], entry, links, link_state, waiting, dirty, marked)
    slot = links[queue, SLOTS_AT] + link_state[queue, OLDEST_SLOT]
    message, entry = slots[slot, 0], slots[slot, 1]
    queue_state[queue, MESSAGE], queue_state[queue, TAIL] = message, 0
    if entry < 0:
        destination, switch = messages[message, DESTINATION], links[queue, LEADS_TO]
        level = switches[switch, LEVEL]
        output = toward[destination, level] if ancestor[destination, level] == switch else switches[switch, UP]
        queue_state[queue, PENDING] = 1
        return _request_output(queue, output, -1, links, link_state, waiting, dirty, marked)
    queue_state[queue, PENDING] = entries[entry, COUNT]
    for child in range(entries[entry, FIRST], entries[entry, FIRST] + entries[entry, COUNT]):
        marked = _request_output(queue, entries[child, LINK], child, links, link_state, waiting, dirty, marked)
    return marked


@njit(cache=True, nogil=True, inline="always")
def _chosen(
    output: int, arbitration: int, links: Ints, input_numbers: Ints, messages: Ints, ready: Ints,
    link_state: Ints, queue_state: Ints, waiting: Ints,
) -> int:  # fmt: skip
    """The index in the list of waiting requests of the one that an output serves next."""
    start, count = links[output, WAITS_AT], link_state[output, WAITING]
    best = 0
    if count == 1:
        return best
    if arbitration == ROUND_ROBIN:
        inputs, last = links[output, INPUTS], link_state[output, LAST]
        nearest = inputs
        for index in range(count):
            far = input_numbers[waiting[start + index, 0]] - last - 1
            if far < 0:
                far += inputs
            if far < nearest:
                nearest, best = far, index
        return best
    first = queue_state[waiting[start, 0], MESSAGE]
    for index in range(1, count):
        message = queue_state[waiting[start + index, 0], MESSAGE]
        priority_gain = messages[message, PRIORITY] - messages[first, PRIORITY] if arbitration == BY_PRIORITY else 0
        if priority_gain > 0 or (
            priority_gain == 0 and (ready[message] < ready[first] or (ready[message] == ready[first] and message < first))
        ):
            first, best = message, index
    return best


@njit(cache=True, nogil=True, inline="always")
def _grant(
    now: int, output: int, through: bool, arbitration: int, heap: Ints, queued: int,
    links: Ints, input_numbers: Ints, messages: Ints, service: Ints, sizes: Ints, ready: Ints, carried: Ints,
    delivered: Ints, slots: Ints, link_state: Ints, queue_state: Ints, waiting: Ints,
) -> int:  # fmt: skip
    """An output sends a message; at most three events follow from it."""
    best = _chosen(output, arbitration, links, input_numbers, messages, ready, link_state, queue_state, waiting)
    start = links[output, WAITS_AT]
    queue, entry = waiting[start + best, 0], waiting[start + best, 1]
    final = start + link_state[output, WAITING] - 1
    waiting[start + best, 0], waiting[start + best, 1] = waiting[final, 0], waiting[final, 1]
    link_state[output, WAITING] -= 1
    link_state[output, LAST] = input_numbers[queue]
    message = queue_state[queue, MESSAGE]
    carried[output] += sizes[messages[message, SIZE]]
    end = now + service[messages[message, SIZE], links[output, RATE]]
    link_state[output, FREE_AT] = end
    tail = end
    if queue < links.shape[0]:
        tail = max(end, slots[links[queue, SLOTS_AT] + link_state[queue, OLDEST_SLOT], 2])
    queue_state[queue, TAIL] = max(queue_state[queue, TAIL], tail)
    queue_state[queue, PENDING] -= 1
    emptied = queue_state[queue, PENDING] == 0
    if link_state[output, WAITING] > 0:
        at_once = emptied and queue_state[queue, TAIL] == end
        link_state[output, CALLED] = 1
        link_state[output, SERVES] = queue if at_once else -1
        queued = _push(heap, queued, end, (RELEASE << NUMBER_BITS) | output)
        emptied = emptied and not at_once
    if emptied:
        queued = _push(heap, queued, queue_state[queue, TAIL], (FREE << NUMBER_BITS) | queue)
    arrives = tail + links[output, LATENCY]
    if links[output, LEADS_TO] < 0:
        if messages[message, FEEDS] < 0:
            delivered[message] = max(delivered[message], arrives)
            return queued
        return _push(heap, queued, arrives, (DELIVER << NUMBER_BITS) | message)
    slot = link_state[output, OLDEST_SLOT] + link_state[output, USED]
    if slot >= links[output, ROOM]:
        slot -= links[output, ROOM]
    slot += links[output, SLOTS_AT]
    slots[slot, 0], slots[slot, 1], slots[slot, 2] = message, entry, arrives
    link_state[output, USED] += 1
    head = now + links[output, LATENCY] if through else arrives
    return _push(heap, queued, head, (HEAD << NUMBER_BITS) | output)


@njit(cache=True, nogil=True, inline="always")
def _leave(queue: int, links: Ints, link_state: Ints, queue_state: Ints, following: Ints) -> bool:
    """Removes the first message of a queue; whether another one is there."""
    if queue >= links.shape[0]:
        queue_state[queue, MESSAGE] = following[queue_state[queue, MESSAGE]]
        return bool(queue_state[queue, MESSAGE] >= 0)
    link_state[queue, OLDEST_SLOT] += 1
    if link_state[queue, OLDEST_SLOT] == links[queue, ROOM]:
        link_state[queue, OLDEST_SLOT] = 0
    link_state[queue, USED] -= 1
    link_state[queue, ARRIVED] -= 1
    return bool(link_state[queue, ARRIVED] > 0)


@njit(cache=True, nogil=True, inline="always")
def _join(message: int, queue: int, queue_state: Ints, following: Ints) -> bool:
    """A message joins those that wait to leave an endpoint; whether it is the first."""
    following[message] = -1
    if queue_state[queue, MESSAGE] >= 0:
        following[queue_state[queue, NEWEST]] = message
        queue_state[queue, NEWEST] = message
        return False
    queue_state[queue, MESSAGE] = queue_state[queue, NEWEST] = message
    return True


@njit(cache=True, nogil=True)
def _contribute(number: int, now: int, heap: Ints, queued: int, left: Ints) -> int:
    """Counts one more contribution of a sum."""
    left[number] -= 1
    return _push(heap, queued, now, (READY << NUMBER_BITS) | number) if left[number] == 0 else queued


@njit(cache=True, nogil=True, inline="always")
def _sum_event(
    kind: int, number: int, now: int, heap: Ints, queued: int,
    sums: Ints, left: Ints, summed: Ints, first_sum: Ints, last_sum: Ints, next_sum: Ints,
) -> int:  # fmt: skip
    """A sum has all contributions, or is done; a reducer does one at a time, first come, first served."""
    reducer = sums[number, REDUCER]
    begin = -1
    if kind == READY:
        next_sum[number] = -1
        if first_sum[reducer] < 0:
            first_sum[reducer] = last_sum[reducer] = begin = number
        else:
            next_sum[last_sum[reducer]] = number
            last_sum[reducer] = number
    else:
        summed[number] = now
        begin = first_sum[reducer] = next_sum[number]
        if sums[number, THEN_MESSAGE] >= 0:
            queued = _push(heap, queued, now, (INJECT << NUMBER_BITS) | sums[number, THEN_MESSAGE])
        if sums[number, THEN_SUM] >= 0:
            queued = _contribute(sums[number, THEN_SUM], now, heap, queued, left)
    if begin >= 0:
        queued = _push(heap, queued, now + sums[begin, SUM_PS], (DONE << NUMBER_BITS) | begin)
    return queued


@njit(cache=True, nogil=True)
def run(
    links: Ints, input_numbers: Ints, switches: Ints, ancestor: Ints, toward: Ints, out_link: Ints,
    messages: Ints, initial: Ints, sizes: Ints, service: Ints, sums: Ints, entries: Ints, through: bool, arbitration: int,
) -> tuple[Ints, Ints, Ints, int, int]:  # fmt: skip
    """The time of each message's last delivery and of each sum, bytes over each link, the end, and events.

    `initial` are the messages that do not wait for a sum, by (time, number); times of what never happens are -1.
    """
    count_links, endpoints = links.shape[0], out_link.shape[0]
    link_state, queue_state = np.zeros((count_links, 9), np.int64), np.zeros((count_links + endpoints, 4), np.int64)
    link_state[:, LAST], queue_state[:, MESSAGE] = -1, -1
    waiting = np.empty((max(1, links[:, INPUTS].sum()), 2), np.int64)
    slots = np.empty((max(1, links[:, ROOM].sum()), 3), np.int64)
    dirty, marked = np.empty(count_links, np.int64), 0
    ready, following = messages[:, READY_PS].copy(), np.empty(messages.shape[0], np.int64)
    left, summed, next_sum = sums[:, NEEDS].copy(), np.full(sums.shape[0], -1, np.int64), np.empty(sums.shape[0], np.int64)
    first_sum, last_sum = np.full(endpoints, -1, np.int64), np.full(endpoints, -1, np.int64)
    delivered, carried = np.full(messages.shape[0], -1, np.int64), np.zeros(count_links, np.int64)
    heap, queued, begun, now, events = np.empty((4 * count_links + 64, 2), np.int64), 0, 0, 0, 0
    if initial.shape[0]:
        queued = _push(heap, queued, ready[initial[0]], (INJECT << NUMBER_BITS) | initial[0])
    while queued:
        now = heap[0, 0]
        while queued and heap[0, 0] == now:
            kind, number = heap[0, 1] >> NUMBER_BITS, heap[0, 1] & ((1 << NUMBER_BITS) - 1)
            queued = _pop(heap, queued)
            if queued + 8 > heap.shape[0]:
                heap = _grown(heap)
            fresh = False
            if kind <= FREE:
                if kind == RELEASE:
                    link_state[number, CALLED] = 0
                    marked = _mark(number, link_state, dirty, marked)
                    number = link_state[number, SERVES]
                if number >= 0:
                    events += 1
                    fresh = _leave(number, links, link_state, queue_state, following)
                    if number < count_links:
                        marked = _mark(number, link_state, dirty, marked)
            elif kind == DELIVER:
                delivered[number] = max(delivered[number], now)
                queued = _contribute(messages[number, FEEDS], now, heap, queued, left)
            elif kind == INJECT:
                events += 1
                if messages[number, READY_PS] >= 0:
                    begun += 1
                    if begun < initial.shape[0]:
                        queued = _push(heap, queued, ready[initial[begun]], (INJECT << NUMBER_BITS) | initial[begun])
                ready[number] = now
                queue = count_links + messages[number, SOURCE]
                fresh = _join(number, queue, queue_state, following)
                number = queue
            elif kind == HEAD:
                link_state[number, ARRIVED] += 1
                fresh = link_state[number, ARRIVED] == 1
            else:
                events += 1
                queued = _sum_event(kind, number, now, heap, queued, sums, left, summed, first_sum, last_sum, next_sum)
            if fresh:
                marked = _offer(number, links, switches, ancestor, toward, out_link, messages, entries, slots, link_state,
                                queue_state, waiting, dirty, marked)  # fmt: skip
        for index in range(marked):
            output = dirty[index]
            link_state[output, DIRTY] = 0
            room = links[output, LEADS_TO] < 0 or link_state[output, USED] < links[output, ROOM]
            if not room or link_state[output, WAITING] == 0:
                continue
            if queued + 8 > heap.shape[0]:
                heap = _grown(heap)
            if link_state[output, FREE_AT] > now:
                if link_state[output, CALLED] == 0:
                    link_state[output, CALLED], link_state[output, SERVES] = 1, -1
                    queued = _push(heap, queued, link_state[output, FREE_AT], (RELEASE << NUMBER_BITS) | output)
            else:
                events += 2  # the link will be free again, and what it sends will arrive
                queued = _grant(now, output, through, arbitration, heap, queued, links, input_numbers, messages, service, sizes,
                                ready, carried, delivered, slots, link_state, queue_state, waiting)  # fmt: skip
        marked = 0
    return delivered, summed, carried, max(now, delivered.max()) if delivered.shape[0] else now, events
