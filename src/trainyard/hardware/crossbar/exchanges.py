"""What units of a crossbar hierarchy exchange, with one signature for both fidelities; and the simulated one.

Every exchange that sums takes `agau`, whoever has `.seconds(contributions, elements)`; with None the first unit of each group
sums, at `sum_bytes_per_s` of incoming data. Results are kept: the same exchange of the same machine is simulated once.
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
from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged, Integers, Summer, counted, made
from trainyard.hardware.crossbar.messages import PICOSECONDS_PER_SECOND, Traffic, Tree, Whole, run

Build = Callable[..., collectives.Pattern]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The exchanges of one crossbar."""

    crossbar: Crossbar

    def _through(self, pattern: collectives.Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        raise NotImplementedError

    def _kept(self, build: Build, told: tuple[int, ...], size_bytes: int, summer: Summer | None) -> Exchanged:
        if isinstance(summer, Hashable):
            return _exchanged(self, build, told, size_bytes, summer)
        return self._through(build(self.crossbar, *told), size_bytes, summer)

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
        """In every group of `group` units: data of all members summed, and the sum back to all of them unless it stays there.

        With `fold`, groups that share no link and look alike are counted once.
        """
        groups = collectives.require_group(self.crossbar, group)
        summer = collectives.summer_of(agau, sum_bytes_per_s) if group > 1 else None
        if fold and groups > 1 and collectives.nested(self.crossbar, group):
            alone = type(self)(self.crossbar.for_units(group)).local(
                size_bytes, group, agau=agau, sum_bytes_per_s=sum_bytes_per_s, back=back, fold=False
            )
            return replace(
                alone,
                bytes_by_level=tuple(groups * carried for carried in alone.bytes_by_level),
                events={name: groups * count for name, count in alone.events.items()},
            )
        return self._kept(collectives.local, (group, agau is not None, back), size_bytes, summer)

    def all_reduce(
        self,
        size_bytes: int,
        group: int,
        *,
        agau: Summer | None = None,
        sum_bytes_per_s: float | None = None,
        members: bool = False,
    ) -> Exchanged:
        """What each group has (at its AGAU or first unit) summed over all groups; the sum to those, with `members` to all units."""
        groups = collectives.require_group(self.crossbar, group)
        summer = collectives.summer_of(agau, sum_bytes_per_s) if groups > 1 else None
        return self._kept(collectives.all_reduce, (group, agau is not None, members), size_bytes, summer)

    def neighbours(self, size_bytes: int, group: int = 1, *, agau: Summer | None = None) -> Exchanged:
        """Every group sends its data to the groups before and after it, in a ring."""
        return self._kept(collectives.neighbours, (group, agau is not None), size_bytes, None)

    def broadcast(self, size_bytes: int, source: int = 0) -> Exchanged:
        """One unit's data to all others; switches copy."""
        collectives.require_unit(self.crossbar, source=source)
        return self._kept(collectives.broadcast, (source,), size_bytes, None)

    def send(self, source: int, destination: int, size_bytes: int) -> Exchanged:
        """From one unit to another: Eq. 2."""
        collectives.require_unit(self.crossbar, source=source, destination=destination)
        return self._kept(collectives.send, (source, destination), size_bytes, None)

    def traffic(
        self,
        sources: Integers,
        destinations: Integers,
        sizes_bytes: Integers,
        *,
        ready_s: npt.NDArray[np.float64] | None = None,
        priorities: Integers | None = None,
    ) -> Exchanged:
        """Data between units, the i-th from when it is ready."""
        raise NotImplementedError


@lru_cache(maxsize=512)
def _exchanged(by: Exchanges, build: Build, told: tuple[int, ...], size_bytes: int, summer: Summer | None) -> Exchanged:
    return by._through(build(by.crossbar, *told), size_bytes, summer)


@dataclass(frozen=True, slots=True)
class Simulated(Exchanges):
    """Every message of an exchange, by the rules of `crossbar_messages`."""

    def _through(self, pattern: collectives.Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        pieces = self.crossbar.pieces(size_bytes)
        if not pieces or not pattern.flows:
            return nothing(self.crossbar)
        return self._ran(pattern.tree, pattern.traffic(pieces, summer))

    def traffic(
        self,
        sources: Integers,
        destinations: Integers,
        sizes_bytes: Integers,
        *,
        ready_s: npt.NDArray[np.float64] | None = None,
        priorities: Integers | None = None,
    ) -> Exchanged:
        return self._ran(self.crossbar.tree(), cut(self.crossbar, sources, destinations, sizes_bytes, ready_s, priorities))

    def _ran(self, tree: Tree, traffic: Traffic) -> Exchanged:
        ran = run(tree, traffic, self.crossbar.switching, self.crossbar.arbitration)
        return counted(self.crossbar, tree, ran.carried_bytes, ran.end_ps / PICOSECONDS_PER_SECOND, traffic.messages, ran.events)


def nothing(crossbar: Crossbar) -> Exchanged:
    return made(crossbar, [], 0, 0.0)


def cut(
    crossbar: Crossbar, sources: Any, destinations: Any, sizes_bytes: Any, ready_s: Any = None, priorities: Any = None
) -> Traffic:
    """Data between units, cut into messages; pieces of one follow each other in number."""
    start, end, size = (_whole(sources, "sources"), _whole(destinations, "destinations"), _whole(sizes_bytes, "sizes_bytes"))
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
    when = np.zeros(len(size)) if ready_s is None else np.asarray(ready_s, np.float64)
    urgent = np.zeros(len(size), np.int64) if priorities is None else _whole(priorities, "priorities")
    if not len(when) == len(urgent) == len(size):
        raise BadInput(f"Crossbar.traffic: ready_s and priorities must be {len(size)} numbers each")
    if len(when) and not (np.isfinite(when).all() and when.min() >= 0 and when.max() < 1e6):
        raise BadInput("Crossbar.traffic: ready_s must lie between 0 and 1e6 s")
    pieces = np.where(start == end, 0, -(-size // crossbar.message_bytes))
    whose = np.repeat(np.arange(len(size)), pieces)
    place = np.arange(len(whose)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return Traffic(
        sizes_bytes=np.minimum(size[whose] - place * crossbar.message_bytes, crossbar.message_bytes),
        sources=start[whose],
        destinations=end[whose],
        feeds=np.full(len(whose), -1, np.int64),
        priorities=urgent[whose],
        ready_ps=np.rint(when * PICOSECONDS_PER_SECOND).astype(np.int64)[whose],
    )


def _whole(column: Any, name: str) -> Whole:
    array = np.asarray(column)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise BadInput(f"Crossbar.traffic: {name} must be a row of whole numbers, got {array.dtype}{list(array.shape)}")
    return array.astype(np.int64)
