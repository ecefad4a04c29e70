"""Which memories a step does not fit, from the most that each held and what each can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trainyard.units import show


class Held(NamedTuple):
    """The most that a memory held, of its capacity (None: not stated); `pools` memories that differ in their number alone."""

    name: str
    peak_bytes: int
    capacity_bytes: int | None
    pools: int

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes

    @property
    def title(self) -> str:
        return f"{self.name} (each of {self.pools})" if self.pools > 1 else self.name


def family(pool: str) -> str:
    """The name that memories of several devices share: their number stands last.

    >>> family("device memory 3"), family("device memory")
    ('device memory', 'device memory')
    """
    name, _, number = pool.rpartition(" ")
    return name if name and number.isdigit() else pool


def held(peaks: Mapping[str, int], capacities: Mapping[str, int]) -> list[Held]:
    """Each memory; those of several devices that held the same are one."""
    counts: dict[tuple[str, int, int | None], int] = {}
    for pool, peak in peaks.items():
        key = (family(pool), peak, capacities.get(pool))
        counts[key] = counts.get(key, 0) + 1
    return [Held(*key, count) for key, count in counts.items()]


def shortages(peaks: Mapping[str, int], capacities: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each memory that a step does not fit.

    >>> list(shortages({"device memory": 710 * 10**9}, {"device memory": 141 * 10**9}))
    ['device memory: the step needs 710 GB of 141 GB and does not fit this machine']
    """
    for memory in held(peaks, capacities):
        if memory.capacity_bytes is not None and not memory.fits:
            needed, room = show(memory.peak_bytes, "B"), show(memory.capacity_bytes, "B")
            yield f"{memory.title}: the step needs {needed} of {room} and does not fit this machine"
