"""Exchanges between the units of a crossbar hierarchy, with one signature for both fidelities; and the simulated one.

Every exchange that sums takes `agau`, an object with `.seconds(contributions, elements)`; with None the first unit of each group
sums, at `sum_bytes_per_s` of incoming data. Results are cached: the same exchange of the same machine is simulated once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.hardware.crossbar import collectives
from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged, Integers, Summer, counted, exchange_of
from trainyard.hardware.crossbar.messages import PICOSECONDS_PER_SECOND, Integers64, Traffic, Tree, run

Build = Callable[..., collectives.Pattern]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The exchanges of one crossbar."""

    crossbar: Crossbar

    def _through(self, pattern: collectives.Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        raise NotImplementedError

    def _cached(self, build: Build, arguments: tuple[int, ...], size_bytes: int, summer: Summer | None) -> Exchanged:
        if isinstance(summer, Hashable):
            return _exchanged(self, build, arguments, size_bytes, summer)
        return self._through(build(self.crossbar, *arguments), size_bytes, summer)

    def local(
        self,
        size_bytes: int,
        group: int,
        *,
        agau: Summer | None = None,
        sum_bytes_per_s: float | None = None,
        back: bool = True,
        fold: bool = True,
    ) -> Exchanged:
        """In every group of `group` units the data of all members is summed, and the sum goes back to them unless `back` is False.

        With `fold`, groups that share no link and have equal shapes are simulated once.
        """
        groups = collectives.require_group(self.crossbar, group)
        summer = collectives.summer_of(agau, sum_bytes_per_s) if group > 1 else None
        if fold and groups > 1 and collectives.groups_are_disjoint(self.crossbar, group):
            alone = type(self)(self.crossbar.for_units(group)).local(
                size_bytes, group, agau=agau, sum_bytes_per_s=sum_bytes_per_s, back=back, fold=False
            )
            return replace(
                alone,
                bytes_by_level=tuple(groups * carried for carried in alone.bytes_by_level),
                events={name: groups * count for name, count in alone.events.items()},
            )
        return self._cached(collectives.local, (group, agau is not None, back), size_bytes, summer)

    def all_reduce(
        self,
        size_bytes: int,
        group: int,
        *,
        agau: Summer | None = None,
        sum_bytes_per_s: float | None = None,
        members: bool = False,
    ) -> Exchanged:
        """Sums the groups' data (at AGAUs or first units) over all groups; the sum goes to those, with `members` to all units."""
        groups = collectives.require_group(self.crossbar, group)
        summer = collectives.summer_of(agau, sum_bytes_per_s) if groups > 1 else None
        return self._cached(collectives.all_reduce, (group, agau is not None, members), size_bytes, summer)

    def neighbours(self, size_bytes: int, group: int = 1, *, agau: Summer | None = None) -> Exchanged:
        """Every group sends its data to the groups before and after it, in a ring."""
        return self._cached(collectives.neighbours, (group, agau is not None), size_bytes, None)

    def broadcast(self, size_bytes: int, source: int = 0) -> Exchanged:
        """One unit's data to all others; switches copy."""
        collectives.require_unit(self.crossbar, source=source)
        return self._cached(collectives.broadcast, (source,), size_bytes, None)

    def send(self, source: int, destination: int, size_bytes: int) -> Exchanged:
        """From one unit to another: Eq. 2."""
        collectives.require_unit(self.crossbar, source=source, destination=destination)
        return self._cached(collectives.send, (source, destination), size_bytes, None)

    def traffic(
        self,
        sources: Integers,
        destinations: Integers,
        sizes_bytes: Integers,
        *,
        ready_s: npt.NDArray[np.float64] | None = None,
        priorities: Integers | None = None,
    ) -> Exchanged:
        """Data between units; the i-th item can start when it is ready."""
        return self._sent(self.crossbar.tree(), cut(self.crossbar, sources, destinations, sizes_bytes, ready_s, priorities))

    def _sent(self, tree: Tree, traffic: Traffic) -> Exchanged:
        raise NotImplementedError


@lru_cache(maxsize=512)
def _exchanged(exchanges: Exchanges, build: Build, arguments: tuple[int, ...], size_bytes: int, summer: Summer | None) -> Exchanged:
    return exchanges._through(build(exchanges.crossbar, *arguments), size_bytes, summer)


@dataclass(frozen=True, slots=True)
class Simulated(Exchanges):
    """Simulates every message of an exchange, by the rules of `messages`."""

    def _through(self, pattern: collectives.Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        pieces = self.crossbar.pieces(size_bytes)
        if not pieces or not pattern.flows:
            return no_exchange(self.crossbar)
        return self._sent(pattern.tree, pattern.traffic(pieces, summer))

    def _sent(self, tree: Tree, traffic: Traffic) -> Exchanged:
        ran = run(tree, traffic, self.crossbar.switching, self.crossbar.arbitration)
        return counted(self.crossbar, tree, ran.carried_bytes, ran.end_ps / PICOSECONDS_PER_SECOND, traffic.messages, ran.events)


def no_exchange(crossbar: Crossbar) -> Exchanged:
    return exchange_of(crossbar, [], 0, 0.0)


def cut(
    crossbar: Crossbar, sources: Any, destinations: Any, sizes_bytes: Any, ready_s: Any = None, priorities: Any = None
) -> Traffic:
    """Data between units, cut into messages; the pieces of one item have consecutive numbers."""
    start, end, size = (
        _integers(sources, "sources"),
        _integers(destinations, "destinations"),
        _integers(sizes_bytes, "sizes_bytes"),
    )
    if not len(start) == len(end) == len(size):
        raise BadInput(
            f"Crossbar.traffic: {len(start)} sources, {len(end)} destinations and {len(size)} sizes: give as many of each"
        )
    for name, column in (("sources", start), ("destinations", end)):
        if len(column) and not (column.min() >= 0 and column.max() < crossbar.units):
            raise BadInput(
                f"Crossbar.traffic: {name} must be units 0 to {crossbar.units - 1}, got {column.min()} to {column.max()}"
            )
    if len(size) and size.min() < 0:
        raise BadInput(f"Crossbar.traffic: sizes_bytes must be at least 0, got {size.min()}")
    ready = np.zeros(len(size)) if ready_s is None else np.asarray(ready_s, np.float64)
    priority = np.zeros(len(size), np.int64) if priorities is None else _integers(priorities, "priorities")
    if not len(ready) == len(priority) == len(size):
        raise BadInput(f"Crossbar.traffic: ready_s and priorities must be {len(size)} numbers each")
    if len(ready) and not (np.isfinite(ready).all() and ready.min() >= 0 and ready.max() < 1e6):
        raise BadInput("Crossbar.traffic: ready_s must lie between 0 and 1e6 s")
    pieces = np.where(start == end, 0, -(-size // crossbar.message_bytes))
    item = np.repeat(np.arange(len(size)), pieces)
    piece = np.arange(len(item)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return Traffic(
        sizes_bytes=np.minimum(size[item] - piece * crossbar.message_bytes, crossbar.message_bytes),
        sources=start[item],
        destinations=end[item],
        feeds=np.full(len(item), -1, np.int64),
        priorities=priority[item],
        ready_ps=np.rint(ready * PICOSECONDS_PER_SECOND).astype(np.int64)[item],
    )


def _integers(column: Any, name: str) -> Integers64:
    array = np.asarray(column)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise BadInput(f"Crossbar.traffic: {name} must be a row of whole numbers, got {array.dtype}{list(array.shape)}")
    return array.astype(np.int64)
