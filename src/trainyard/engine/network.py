"""Shared links in plain Python: max-min fair rates, and flows that move whole bytes on an integer clock.

The rule of rounding: a rate is a whole number of bytes per second, rounded down; what has moved is counted exactly, in 1e-12 byte
(one byte per second for one picosecond); a flow ends at the first whole picosecond at which all its bytes have moved. So nothing
drifts, no link carries more than its bandwidth, and the end does not depend on how often rates were recomputed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from trainyard.errors import BadInput, TooLarge
from trainyard.ir.plan import LONGEST_PS, Link
from trainyard.units import PICOSECONDS_PER_SECOND

Path = tuple[int, ...]


def fair_rates(paths: Mapping[int, Path], capacity: Sequence[int]) -> dict[int, int]:
    """Max-min fair rates by progressive filling (D. Bertsekas, R. Gallager: Data Networks, 2nd ed., 6.5.2).

    The links with the smallest fair share fill up first, all at once, and their flows are frozen at that share; the rest goes on.

    >>> fair_rates({0: (0,), 1: (0, 1), 2: (1,)}, [10, 100])
    {0: 5, 1: 5, 2: 95}
    """
    rates: dict[int, int] = {}
    crossing: dict[int, list[int]] = {}
    for flow, path in paths.items():
        for link in path:
            crossing.setdefault(link, []).append(flow)
    spare = {link: capacity[link] for link in crossing}
    moving = {link: len(flows) for link, flows in crossing.items()}
    while len(rates) < len(paths):
        shares = {link: spare[link] // count for link, count in moving.items() if count}
        least = min(shares.values())
        full = [link for link, share in shares.items() if share == least]
        for flow in [flow for link in full for flow in crossing[link] if flow not in rates]:
            if flow in rates:  # it crosses two of the links that fill up now
                continue
            rates[flow] = least
            for link in paths[flow]:
                spare[link] -= least
                moving[link] -= 1
    return {flow: rates[flow] for flow in paths}


class Network:
    """The active flows. Call `settle` once after all starts and ends of an instant."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._crossing: dict[int, dict[int, None]] = {}  # by link: its flows, in the order in which they started
        self._paths: dict[int, Path] = {}
        self._left: dict[int, int] = {}  # in 1e-12 byte, as of _since_ps
        self._since_ps: dict[int, int] = {}
        self._end_ps: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []  # heap; an entry counts while _end_ps agrees with it
        self._changed: dict[int, None] = {}  # links
        self.rates: dict[int, int] = {}

    def start(self, flow: int, path: Path, size: int, now_ps: int) -> None:
        self._paths[flow] = path
        self._left[flow] = size * PICOSECONDS_PER_SECOND
        self._since_ps[flow] = now_ps
        self.rates[flow] = 0
        for link in path:
            self._crossing.setdefault(link, {})[flow] = None
            self._changed[link] = None

    def take_ended(self, now_ps: int) -> list[int]:
        """Removes and returns the flows whose last byte has arrived, by number."""
        ended = []
        while self.next_end_ps() == now_ps:
            ended.append(heapq.heappop(self._ends)[1])
            flow = ended[-1]
            for link in self._paths.pop(flow):
                del self._crossing[link][flow]
                self._changed[link] = None
            del self._left[flow], self._since_ps[flow], self._end_ps[flow], self.rates[flow]
        return ended

    def next_end_ps(self) -> int | None:
        while self._ends and self._end_ps.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def settle(self, now_ps: int) -> None:
        """Computes new rates for all flows connected to those that started or ended, after counting the bytes moved so far."""
        paths = {flow: self._paths[flow] for flow in self._reached()}
        for flow, rate in fair_rates(paths, [link.bytes_per_s for link in self._links]).items():
            name = self._links[paths[flow][0]].name
            if rate == 0:
                raise starved(name)
            self._left[flow] -= self.rates[flow] * (now_ps - self._since_ps[flow])
            self._since_ps[flow], self.rates[flow] = now_ps, rate
            end_ps = now_ps - (-self._left[flow] // rate)
            if end_ps >= LONGEST_PS:
                raise too_long(name)
            if self._end_ps.get(flow) != end_ps:
                self._end_ps[flow] = end_ps
                heapq.heappush(self._ends, (end_ps, flow))

    def _reached(self) -> list[int]:
        links, flows = list(self._changed), dict[int, None]()
        for link in links:  # grows while it is walked
            for flow in self._crossing.get(link, ()):
                if flow not in flows:
                    flows[flow] = None
                    fresh = [other for other in self._paths[flow] if other not in self._changed]
                    self._changed.update(dict.fromkeys(fresh))
                    links += fresh
        self._changed.clear()
        return list(flows)


def starved(link: str) -> BadInput:
    return BadInput(f"a flow across link {link!r} gets less than 1 byte/s: too many flows for the bandwidth of a link in its path")


def too_long(link: str) -> TooLarge:
    return TooLarge(f"a flow across link {link!r} would end after 2**62 ps (53 days): give it fewer bytes or a faster link")
