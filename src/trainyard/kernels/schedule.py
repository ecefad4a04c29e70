"""The clock of plans, compiled. Plain Python: `oracles.engine_reference`; the rule of rounding is in `trainyard.engine.network`.

The rest of a flow is two integers, bytes and 1e-12 byte, so that 64 bits count it exactly.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Integers = npt.NDArray[np.int64]
Events = list[tuple[int, int]]

BYTE = 10**12  # 1e-12 byte: what one byte per second moves in one picosecond
MILLION = 10**6
LONGEST_S = 4_611_686  # 2**62 ps

DONE, STARVED, TOO_LONG = 0, 1, 2


class Tasks(NamedTuple):
    """The tasks of a plan, and their state so far."""

    duration: Integers
    first_flow: Integers  # tasks + 1
    first_follower: Integers  # tasks + 1
    follower: Integers
    waits: Integers
    open_flows: Integers
    start: Integers
    end: Integers


class Flows(NamedTuple):
    """The flows, and the rest of each at time `since`."""

    task: Integers
    latency: Integers
    first_hop: Integers  # flows + 1
    link: Integers  # by hop
    flow: Integers  # by hop
    left: Integers  # bytes
    left_fraction: Integers  # 1e-12 byte
    rate: Integers
    fresh_rate: Integers
    since: Integers
    end: Integers  # -1: does not move
    reached: Integers  # scratch: the flows that a change can reach
    stamp: Integers


class Links(NamedTuple):
    """The links; the flows that cross each are a doubly linked list of hops."""

    capacity: Integers
    first: Integers
    following: Integers  # by hop
    preceding: Integers  # by hop
    crossing: Integers  # flows on it
    spare: Integers
    moving: Integers  # of those, not yet frozen
    share: Integers  # spare // moving; -1: to be computed
    full: Integers
    changed: Integers  # scratch: the links that flows joined or left at this instant
    stamp: Integers
    reached: Integers  # scratch: the links that a change can reach
    visited: Integers


@njit(cache=True)
def sweep(stream: Integers, duration: Integers, after_ends: Integers, after: Integers, streams: int) -> tuple[Integers, Integers]:
    """Start and end of every task of a plan without transfers: one pass, since nothing waits for a later task."""
    count = len(stream)
    start, end, free = np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(streams, np.int64)
    position = 0
    for task in range(count):
        earliest = free[stream[task]]
        while position < after_ends[task]:
            earliest = max(earliest, end[after[position]])
            position += 1
        start[task] = earliest
        end[task] = earliest + duration[task]
        free[stream[task]] = end[task]
    return start, end


@njit(cache=True)
def followers(stream: Integers, after_ends: Integers, after: Integers, streams: int) -> tuple[Integers, Integers, Integers]:
    """The tasks that wait for each task, stream order included: (first_follower, follower, number of tasks that each waits for)."""
    count = len(stream)
    previous, last = np.full(count, -1, np.int64), np.full(streams, -1, np.int64)
    waits, first = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    position = 0
    for task in range(count):
        if stream[task] >= 0:
            previous[task] = last[stream[task]]
            last[stream[task]] = task
        if previous[task] >= 0:
            waits[task] += 1
            first[previous[task] + 1] += 1
        while position < after_ends[task]:
            waits[task] += 1
            first[after[position] + 1] += 1
            position += 1
    first = np.cumsum(first)
    follower, next_position = np.empty(first[count], np.int64), first[:count].copy()
    position = 0
    for task in range(count):
        if previous[task] >= 0:
            follower[next_position[previous[task]]] = task
            next_position[previous[task]] += 1
        while position < after_ends[task]:
            follower[next_position[after[position]]] = task
            next_position[after[position]] += 1
            position += 1
    return first, follower, waits


@njit(cache=True)
def bytes_moved(rate: int, elapsed: int) -> tuple[int, int]:
    """rate (bytes/s) x elapsed (ps) as (bytes, 1e-12 byte), by halves of six digits."""
    rate_high, rate_low = rate // MILLION, rate % MILLION
    high, low = elapsed // MILLION, elapsed % MILLION
    middle = rate_high * low + rate_low * high
    fraction = middle % MILLION * MILLION + rate_low * low
    return rate_high * high + middle // MILLION + fraction // BYTE, fraction % BYTE


@njit(cache=True)
def time_to_move(size: int, fraction: int, rate: int) -> int:
    """The whole picoseconds, rounded up, in which `rate` moves size + fraction x 1e-12 bytes; -1 for more than 2**62.

    Long division, three decimal digits at a time: the remainder stays below rate x 1000 < 2**63.
    """
    quotient, remainder = size // rate, size % rate
    if quotient >= LONGEST_S:
        return -1
    scale = BYTE // 1000
    while scale > 0:
        remainder = remainder * 1000 + fraction // scale % 1000
        quotient = quotient * 1000 + remainder // rate
        remainder %= rate
        scale //= 1000
    return quotient + (1 if remainder else 0)


@njit(cache=True)
def _mark(flows: Flows, flow: int, marked: Integers, count: int, stamp: Integers, instant: int) -> int:
    """Adds a flow's links to `marked`, each once an instant; returns their number."""
    for hop in range(flows.first_hop[flow], flows.first_hop[flow + 1]):
        link = flows.link[hop]
        if stamp[link] != instant:
            stamp[link] = instant
            marked[count] = link
            count += 1
    return count


@njit(cache=True)
def _join(flows: Flows, links: Links, flow: int) -> None:
    for hop in range(flows.first_hop[flow], flows.first_hop[flow + 1]):
        link = flows.link[hop]
        head = links.first[link]
        links.following[hop], links.preceding[hop] = head, -1
        if head >= 0:
            links.preceding[head] = hop
        links.first[link] = hop
        links.crossing[link] += 1


@njit(cache=True)
def _leave(flows: Flows, links: Links, flow: int) -> None:
    for hop in range(flows.first_hop[flow], flows.first_hop[flow + 1]):
        link, before, behind = flows.link[hop], links.preceding[hop], links.following[hop]
        if before >= 0:
            links.following[before] = behind
        else:
            links.first[link] = behind
        if behind >= 0:
            links.preceding[behind] = before
        links.crossing[link] -= 1
    flows.end[flow] = -1


@njit(cache=True)
def _reach(flows: Flows, links: Links, changed: int, instant: int) -> tuple[int, int]:
    """Follows flows and links from a changed link on; (links reached, flows reached)."""
    links.visited[changed] = instant
    links.reached[0] = changed
    reached, position, count = 0, 0, 1
    while position < count:
        hop = links.first[links.reached[position]]
        while hop >= 0:
            flow = flows.flow[hop]
            if flows.stamp[flow] != instant:
                flows.stamp[flow] = instant
                flows.fresh_rate[flow] = -1
                flows.reached[reached] = flow
                reached += 1
                count = _mark(flows, flow, links.reached, count, links.visited, instant)
            hop = links.following[hop]
        position += 1
    return count, reached


@njit(cache=True)
def _fill(flows: Flows, links: Links, link_count: int, flow_count: int) -> None:
    """Progressive filling: the links with the smallest share fill up at once, their flows are frozen at it."""
    for position in range(link_count):
        link = links.reached[position]
        links.spare[link], links.moving[link], links.share[link] = links.capacity[link], links.crossing[link], -1
    while flow_count > 0:
        least, full, position = np.int64(2**62), 0, 0
        while position < link_count:
            link = links.reached[position]
            if links.moving[link] == 0:  # all its flows are frozen: the last link takes its place
                link_count -= 1
                links.reached[position] = links.reached[link_count]
                continue
            if links.share[link] < 0:
                links.share[link] = links.spare[link] // links.moving[link]
            if links.share[link] < least:
                least, full = links.share[link], 0
            if links.share[link] == least:
                links.full[full] = link
                full += 1
            position += 1
        for position in range(full):
            hop = links.first[links.full[position]]
            while hop >= 0:
                flow = flows.flow[hop]
                if flows.fresh_rate[flow] < 0:
                    flows.fresh_rate[flow] = least
                    flow_count -= 1
                    for crossing in range(flows.first_hop[flow], flows.first_hop[flow + 1]):
                        crossed = flows.link[crossing]
                        links.spare[crossed] -= least
                        links.moving[crossed] -= 1
                        links.share[crossed] = -1
                hop = links.following[hop]


@njit(cache=True)
def _settle(flows: Flows, links: Links, changed: int, instant: int, now: int, events: Events, base: int) -> tuple[int, int]:
    """Computes the rates on all links that the changed ones reach; (status, the flow of an error).

    Connected flows are settled together, and only the first of them to end gets an event: when it ends, or when another joins them,
    all are settled again.
    """
    for position in range(changed):
        if links.visited[links.changed[position]] == instant:
            continue
        link_count, flow_count = _reach(flows, links, links.changed[position], instant)
        _fill(flows, links, link_count, flow_count)
        status, wrong = _count(flows, flows.reached[:flow_count], now)
        if status != DONE:
            return status, wrong
        soonest = 2**62
        for flow in flows.reached[:flow_count]:
            soonest = min(soonest, int(flows.end[flow]))
        for flow in flows.reached[:flow_count]:
            if flows.end[flow] == soonest:
                heapq.heappush(events, (soonest, base + flow))
    return DONE, -1


@njit(cache=True)
def _count(flows: Flows, reached: Integers, now: int) -> tuple[int, int]:
    """Updates the rest of flows with a new rate, and their ends."""
    for flow in reached:
        if flows.fresh_rate[flow] == 0:
            return STARVED, flow
        if flows.fresh_rate[flow] == flows.rate[flow]:
            continue  # counting is exact, so the end of the event still holds
        moved_bytes, fraction = bytes_moved(flows.rate[flow], now - flows.since[flow])
        flows.left[flow] -= moved_bytes
        flows.left_fraction[flow] -= fraction
        if flows.left_fraction[flow] < 0:
            flows.left_fraction[flow] += BYTE
            flows.left[flow] -= 1
        flows.since[flow], flows.rate[flow] = now, flows.fresh_rate[flow]
        remaining = time_to_move(flows.left[flow], flows.left_fraction[flow], flows.rate[flow])
        if remaining < 0 or now + remaining >= 2**62:
            return TOO_LONG, flow
        flows.end[flow] = now + remaining
    return DONE, -1


@njit(cache=True)
def _begin(tasks: Tasks, flows: Flows, task: int, now: int, events: Events) -> None:
    tasks.start[task] = now
    count = len(tasks.duration)
    first, last = tasks.first_flow[task], tasks.first_flow[task + 1]
    if first == last:
        heapq.heappush(events, (now + tasks.duration[task], task))
    for flow in range(first, last):
        heapq.heappush(events, (now + flows.latency[flow], count + flow))


@njit(cache=True)
def _end(tasks: Tasks, flows: Flows, task: int, now: int, events: Events) -> None:
    tasks.end[task] = now
    for follower in tasks.follower[tasks.first_follower[task] : tasks.first_follower[task + 1]]:
        tasks.waits[follower] -= 1
        if tasks.waits[follower] == 0:
            _begin(tasks, flows, follower, now, events)


@njit(cache=True)
def schedule(tasks: Tasks, flows: Flows, links: Links) -> tuple[int, int]:
    """Fills tasks.start and tasks.end; (status, the flow of an error).

    An event is (time, number): below `count` a task ends; then a flow's latency has passed; then a flow's last byte has arrived,
    unless its end has changed. Events of one instant commute, since rates are computed only after all of them.
    """
    count, flow_count = len(tasks.duration), len(flows.task)
    events = [(0, -1)]  # typed by its first entry, which is no task
    start = events[0][0]
    for task in range(count):
        if tasks.waits[task] == 0:
            _begin(tasks, flows, task, start, events)
    instant = 0
    while len(events) > 0:
        now = events[0][0]
        instant += 1
        changed = 0
        while len(events) > 0 and events[0][0] == now:
            number = heapq.heappop(events)[1]
            if number < count:
                if number >= 0:
                    _end(tasks, flows, number, now, events)
                continue
            arrived = number >= count + flow_count
            flow = (number - count) % flow_count
            if not arrived and flows.left[flow] > 0:
                _join(flows, links, flow)
                flows.since[flow] = now
                changed = _mark(flows, flow, links.changed, changed, links.stamp, instant)
                continue
            if arrived:
                if flows.end[flow] != now:
                    continue
                _leave(flows, links, flow)
                changed = _mark(flows, flow, links.changed, changed, links.stamp, instant)
            owner = flows.task[flow]
            tasks.open_flows[owner] -= 1
            if tasks.open_flows[owner] == 0:
                _end(tasks, flows, owner, now, events)
        if changed:
            status, wrong = _settle(flows, links, changed, instant, now, events, count + flow_count)
            if status != DONE:
                return status, wrong
    return DONE, -1
