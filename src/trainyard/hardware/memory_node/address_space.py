"""One device's memory for its driver: a single physical address space, page tables over it, and the placement of pages.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018, Sec. III-B, Fig. 10.

device_local lies at the bottom, the halves of the device's memory-nodes follow in boot order, each from a page border; the rest of
a capacity after its last whole page is not used. Physical addresses have 47 bits, virtual ones 49.

Placement of an allocation of n pages in device_remote:

- `local`: all of it in the first half, in boot order, that has room for all of it; the next half is used only then.
- `bw_aware`: pages are dealt round-robin, beginning at the half with the most room (the first of equals), so that of k halves each
  gets n // k pages and the first n % k of the deal one more. A half that is full is passed over, so that an allocation fails only
  if all halves together lack the pages. The paper's words allow another reading, one contiguous chunk for each half: a copy of the
  whole allocation then has the same split, a copy of a part of it has not.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.construction import part
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import assumed

Placement = Literal["local", "bw_aware"]
Side = Literal["local", "remote"]
Pages = npt.NDArray[np.int64]
PLACEMENTS = ("local", "bw_aware")
PAGE_BYTES = 64 * 2**10
LEAF_BITS = 9  # assumed: 512 entries of 8 bytes, a table of 4 KiB, as page tables of processors have them


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A device's part of one memory-node: one of its groups."""

    node: str
    group: int
    capacity_bytes: int

    def __post_init__(self) -> None:
        require_positive(f"Half of {self.node}", capacity_bytes=self.capacity_bytes)
        if isinstance(self.group, bool) or not isinstance(self.group, int) or self.group < 0:
            raise BadInput(f"Half of {self.node}: groups are counted from 0, got {self.group!r}")

    @property
    def name(self) -> str:
        return f"{self.node}.{self.group}"


@dataclass(frozen=True, slots=True)
class Region:
    """Physical pages of one memory: device_local, or a half."""

    name: str
    first_page: int
    pages: int


@part
class AddressSpace:
    """The memories that the driver knows from boot, and their layout.

    >>> space = AddressSpace(local_bytes=2**20, halves=(Half(node="M0", group=1, capacity_bytes=2**20),), page_bytes=2**16)
    >>> space.regions
    (Region(name='device_local', first_page=0, pages=16), Region(name='M0.1', first_page=16, pages=16))
    """

    local_bytes: int
    halves: tuple[Half, ...]
    placement: Literal["local", "bw_aware"] = "bw_aware"  # Sec. III-B: MC-DLA(B)
    page_bytes: int = assumed(PAGE_BYTES, "page of the device; GPUs of the paper's time have 64 KiB and 2 MiB", 4096, 2 * 2**20)
    physical_bits: int = 47  # Sec. III-B: 128 TB
    virtual_bits: int = 49  # Sec. III-B: 512 TB

    def __post_init__(self) -> None:
        if self.page_bytes & (self.page_bytes - 1):
            raise BadInput(f"AddressSpace: page_bytes must be a power of two such as {PAGE_BYTES}, got {self.page_bytes}")
        if self.virtual_bits <= self.physical_bits:
            raise BadInput(
                f"AddressSpace: {self.virtual_bits} virtual bits must be more than the {self.physical_bits} physical ones"
            )
        names = [half.name for half in self.halves]
        if len(set(names)) < len(names):
            raise BadInput(f"AddressSpace: {', '.join(names)}: each half of a memory-node is given once")
        self._require_reach()

    def _require_reach(self) -> None:
        """Raises where a byte would have no physical address of `physical_bits`."""
        for region, size in zip(self.regions, self._sizes, strict=True):
            end = region.first_page * self.page_bytes + size
            if end > 2**self.physical_bits:
                raise BadInput(
                    f"AddressSpace: {region.name} would end at address {end - 1:#x}, above the {self.physical_bits} physical bits "
                    f"({2**self.physical_bits - 1:#x}): give the device {end - 2**self.physical_bits} bytes less"
                )

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (self.local_bytes, *(half.capacity_bytes for half in self.halves))

    @property
    def regions(self) -> tuple[Region, ...]:
        """device_local, then the halves."""
        borders = [0]
        for size in self._sizes:
            borders.append(borders[-1] + -(-size // self.page_bytes))
        names = ("device_local", *(half.name for half in self.halves))
        return tuple(
            Region(name, first, size // self.page_bytes)
            for name, size, (first, _) in zip(names, self._sizes, pairwise(borders), strict=True)
        )

    @property
    def virtual_start(self) -> int:
        """Virtual addresses begin above all physical ones: none can be taken for the other."""
        return 1 << self.physical_bits


def require_placement(placement: object) -> None:
    if placement not in PLACEMENTS:
        raise UnknownName("placement", str(placement), PLACEMENTS)


def fits(pages: int, placement: Placement, room: Sequence[int]) -> bool:
    """Whether halves with `room` pages take an allocation."""
    return pages <= (sum(room) if placement == "bw_aware" else max(room, default=0))


def deal(pages: int, placement: Placement, room: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """The halves of an allocation's pages: (halves of a round, number of rounds), in sequence.

    >>> deal(7, "bw_aware", room=(2, 9))  # begins at the one with more room, which takes over when the other is full
    [((1, 0), 2), ((1,), 3)]
    >>> deal(7, "local", room=(2, 9))
    [((1,), 7)]
    """
    if placement == "local":
        return [((next(half for half, free in enumerate(room) if free >= pages),), pages)]
    first = max(range(len(room)), key=lambda half: room[half])
    remaining, done = pages, 0  # pages to go; turns that each half still in the round has had
    rounds_by_halves: list[tuple[tuple[int, ...], int]] = []
    order = (*range(first, len(room)), *range(first))
    while remaining:
        round_halves = tuple(half for half in order if room[half] > done)
        rounds = min(remaining // len(round_halves), min(room[half] for half in round_halves) - done)
        if not rounds:
            rounds_by_halves.append((round_halves[:remaining], 1))
            break
        rounds_by_halves.append((round_halves, rounds))
        done, remaining = done + rounds, remaining - rounds * len(round_halves)
    return rounds_by_halves


def split(size_bytes: int, placement: Placement, halves: int | Sequence[int], page_bytes: int = PAGE_BYTES) -> tuple[int, ...]:
    """Bytes of one allocation in each half, which are also those that its links carry for a copy of all of it.

    `halves` is their number where all have the same room and enough, or the bytes free in each.

    >>> split(200_000, "bw_aware", 2), split(200_000, "local", 2), split(200_000, "bw_aware", 3)
    ((131072, 68928), (200000, 0), (68928, 65536, 65536))
    """
    require_placement(placement)
    require_positive("split", size_bytes=size_bytes, page_bytes=page_bytes)
    pages = -(-size_bytes // page_bytes)
    room = [pages] * halves if isinstance(halves, int) else [free // page_bytes for free in halves]
    if not fits(pages, placement, room):
        raise BadInput(f"split: {pages} pages of {page_bytes} bytes do not fit halves with room for {room} ({placement})")
    rounds_by_halves = deal(pages, placement, room)
    counts = [0] * len(room)
    for round_halves, rounds in rounds_by_halves:
        for half in round_halves:
            counts[half] += rounds
    last = rounds_by_halves[-1][0][-1]  # the half of the last page, which may be filled in part
    return tuple(count * page_bytes - (pages * page_bytes - size_bytes) * (half == last) for half, count in enumerate(counts))


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of one malloc, at `pointer`."""

    pointer: int
    size_bytes: int
    first_page: int
    pages: int
    side: Side

    @property
    def end_page(self) -> int:
        """The page after the guard, a virtual page without memory: a pointer just past the end is not the next allocation's."""
        return self.first_page + self.pages + 1


class Allocations:
    """Current allocations by virtual address, and the address of the next one."""

    def __init__(self, space: AddressSpace) -> None:
        self.page_bytes = space.page_bytes
        self.bits = space.virtual_bits
        self._lowest = self._next = self._highest = space.virtual_start // space.page_bytes
        self._live: dict[int, Allocation] = {}  # by first virtual page
        self._order: list[int] = []  # the keys of _live, sorted

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._live.values())

    def add(self, allocation: Allocation) -> None:
        self._live[allocation.first_page] = allocation
        insort(self._order, allocation.first_page)
        self._next = allocation.end_page
        self._highest = max(self._highest, self._next)

    def remove(self, allocation: Allocation) -> None:
        del self._live[allocation.first_page]
        del self._order[bisect_right(self._order, allocation.first_page) - 1]

    def gap(self, what: str, pages: int) -> int:
        """The first page of a free virtual range with its guard: after the last one, from the lowest again where addresses end."""
        limit = (1 << self.bits) // self.page_bytes
        for start in (self._next, self._lowest):
            at = bisect_right(self._order, start)
            first = max(start, self._live[self._order[at - 1]].end_page) if at else start
            for taken in self._order[at:]:
                if taken - first > pages:
                    return first
                first = self._live[taken].end_page
            if limit - first > pages:
                return first
        raise BadInput(
            f"{what}: no {pages * self.page_bytes} bytes in one piece are left of the {self.bits}-bit virtual addresses: "
            "free what lies between"
        )

    def find(self, what: str, pointer: int) -> Allocation:
        """The allocation that an address lies in, its guard included."""
        if isinstance(pointer, bool) or not isinstance(pointer, int):
            raise BadInput(f"{what}: a pointer is what malloc gave, got {pointer!r}")
        page = pointer // self.page_bytes
        at = bisect_right(self._order, page)
        if at and page < (allocation := self._live[self._order[at - 1]]).end_page:
            return allocation
        if self._lowest <= page < self._highest:
            raise BadInput(f"{what}: {pointer:#x} is a stale pointer: that memory was freed")
        raise BadInput(f"{what}: {pointer:#x} was never handed out by malloc")


class FreePages:
    """The free physical pages of one region: returned pages first, the latest first, then unused ones."""

    def __init__(self, region: Region) -> None:
        self.name = region.name
        self.count = region.pages
        self._unused = region.first_page
        self._returned: list[Pages] = []

    def take(self, count: int) -> Pages:
        taken: list[Pages] = []
        self.count -= count
        while count and self._returned:
            pages = self._returned.pop()
            if len(pages) > count:
                self._returned.append(pages[count:])
                pages = pages[:count]
            taken.append(pages)
            count -= len(pages)
        taken.append(np.arange(self._unused, self._unused + count, dtype=np.int64))
        self._unused += count
        return np.concatenate(taken)

    def give_back(self, pages: Pages) -> None:
        if len(pages):
            self._returned.append(pages)
            self.count += len(pages)


class PageTable:
    """Virtual page -> physical page, in two levels: a directory of leaves, created when a page of theirs is first mapped."""

    def __init__(self) -> None:
        self._leaves: dict[int, Pages] = {}

    def map(self, first: int, physical: Pages) -> None:
        at = 0
        for leaf, low, high in _leaves(first, len(physical)):
            if leaf not in self._leaves:
                self._leaves[leaf] = np.full(1 << LEAF_BITS, -1, np.int64)
            self._leaves[leaf][low:high] = physical[at : at + high - low]
            at += high - low

    def walk(self, first: int, count: int) -> Pages:
        """Physical pages of `count` virtual ones, all of them mapped."""
        return np.concatenate([self._leaves[leaf][low:high] for leaf, low, high in _leaves(first, count)])

    def unmap(self, first: int, count: int) -> Pages:
        physical = self.walk(first, count)
        for leaf, low, high in _leaves(first, count):
            self._leaves[leaf][low:high] = -1
            if (self._leaves[leaf] < 0).all():
                del self._leaves[leaf]
        return physical


class Contents:
    """The content of physical memory; a page that was never written is not stored and reads as zeros."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._pages: dict[int, bytearray] = {}

    def read(self, address: int, size: int) -> bytes:
        page, offset = divmod(address, self.page_bytes)
        stored = self._pages.get(page)
        return bytes(size) if stored is None else bytes(stored[offset : offset + size])

    def write(self, address: int, data: bytes) -> None:
        page, offset = divmod(address, self.page_bytes)
        if page in self._pages:
            self._pages[page][offset : offset + len(data)] = data
        elif data != bytes(len(data)):
            self._pages[page] = bytearray(offset) + data + bytes(self.page_bytes - offset - len(data))

    def scrub(self, pages: Pages) -> None:
        if len(pages) > len(self._pages):  # most of what was never written costs nothing to free either
            stored = np.fromiter(self._pages, np.int64, len(self._pages))
            pages = stored[np.isin(stored, pages)]
        for page in pages.tolist():
            self._pages.pop(page, None)

    @property
    def stored_bytes(self) -> int:
        return len(self._pages) * self.page_bytes


def _leaves(first: int, count: int) -> list[tuple[int, int, int]]:
    """The leaves of a range of virtual pages, with the range inside each."""
    end = first + count
    return [
        (leaf, max(first - (leaf << LEAF_BITS), 0), min(end - (leaf << LEAF_BITS), 1 << LEAF_BITS))
        for leaf in range(first >> LEAF_BITS, (end - 1 >> LEAF_BITS) + 1)
    ]
