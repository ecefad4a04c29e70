"""device_remote memory: the driver of one device-node, which allocates, frees and copies memory of its memory-nodes.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018, Sec. III-B, Table I:
cudaMallocRemote, cudaFreeRemote, and cudaMemcpyAsync with the directions LocalToRemote and RemoteToLocal.

Bytes are real: what is copied out and back is what was written. A page takes memory of this process only when something is written
to it, so that a terabyte costs nothing; pages handed out read as zeros, because the driver scrubs what is given back.

A copy is asynchronous. `memcpy_async` puts it on a stream; its bytes are read and written when the stream is waited for
(`synchronize`), in order within a stream, not between streams unless `after` says so. Until then its source may still change, and
neither of its allocations may be freed: that is refused, where cudaFree would wait, since a policy that frees what is still being
copied is wrong. device_remote is reached by copies alone, device_local also by `write_local` and `read_local`, which do not wait.

A pointer is a virtual address. Addresses that were freed are handed out again only when all others were used, so that a stale
pointer is known as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.memory_node.address_space import (
    AddressSpace,
    Allocation,
    Allocations,
    Contents,
    FreePages,
    Half,
    Pages,
    PageTable,
    Placement,
    Side,
    deal,
    fits,
    require_placement,
)
from trainyard.hardware.memory_node.board import MemoryNode

Direction = Literal["LocalToRemote", "RemoteToLocal", "LocalToLocal"]
SIDES: dict[Direction, tuple[Side, Side]] = {
    "LocalToRemote": ("local", "remote"),
    "RemoteToLocal": ("remote", "local"),
    "LocalToLocal": ("local", "local"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a copy that lie in one piece at both ends, in physical addresses; `node` is the remote end's memory-node."""

    source: int
    destination: int
    size_bytes: int
    node: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """A requested copy: what it moves, and over the links of which memory-nodes."""

    number: int
    stream: int
    direction: Direction
    source: Allocation
    destination: Allocation
    size_bytes: int
    space: AddressSpace = field(repr=False)
    by_half: tuple[int, ...]
    """Bytes that the links of each half carry, in boot order; all 0 where nothing leaves the device."""
    after: tuple[int, ...] = ()
    _pieces: npt.NDArray[np.int64] = field(repr=False)
    """(physical source, physical destination, bytes, half or -1) of each piece that lies in one page at both ends."""

    @property
    def by_node(self) -> dict[str, int]:
        bytes_of_node = dict.fromkeys((half.node for half in self.space.halves), 0)
        for half, size in zip(self.space.halves, self.by_half, strict=True):
            bytes_of_node[half.node] += size
        return bytes_of_node

    @property
    def runs(self) -> tuple[Run, ...]:
        """Pieces, merged where both ends are contiguous with the next."""
        source, destination, size, half = self._pieces.T
        joined = (
            (source[:-1] + size[:-1] == source[1:]) & (destination[:-1] + size[:-1] == destination[1:]) & (half[:-1] == half[1:])
        )
        starts = np.flatnonzero(np.concatenate(([True], ~joined)))
        sizes = np.add.reduceat(size, starts)
        return tuple(
            Run(int(source[at]), int(destination[at]), int(total), None if half[at] < 0 else self.space.halves[half[at]].node)
            for at, total in zip(starts, sizes, strict=True)
        )


class Driver:
    """One device-node's memory: `boot` it, then malloc, copy, synchronize, free.

    >>> driver = Driver.boot(local_bytes=2**20, halves=[Half(node="M0", group=1, capacity_bytes=2**30),
    ...                                                 Half(node="M1", group=0, capacity_bytes=2**30)])
    >>> maps, store = driver.malloc_local(200_000), driver.malloc_remote(200_000)
    >>> driver.write_local(maps, b"feature map")
    >>> driver.memcpy_async(store, maps, 200_000, "LocalToRemote").by_node
    {'M0': 131072, 'M1': 68928}
    >>> driver.synchronize()
    >>> driver.write_local(maps, bytes(11))
    >>> back = driver.memcpy_async(maps, store, 200_000, "RemoteToLocal")
    >>> driver.read_local(maps, 4), driver.synchronize(), driver.read_local(maps, 11)
    (b'\\x00\\x00\\x00\\x00', None, b'feature map')
    """

    def __init__(self, space: AddressSpace) -> None:
        self.space = space
        self.contents = Contents(space.page_bytes)
        self._table = PageTable()
        self._starts = np.array([region.first_page for region in space.regions], np.int64)
        self._free = [FreePages(region) for region in space.regions]
        self._live = Allocations(space)
        self._requested = 0
        self._pending: dict[int, Transfer] = {}

    @classmethod
    def boot(cls, *, local_bytes: int, halves: Sequence[Half] = (), **options: Any) -> Driver:
        """A driver for these memories; `options` are the other fields of AddressSpace (placement, page_bytes, ...)."""
        return cls(AddressSpace(local_bytes=local_bytes, halves=tuple(halves), **options))

    @property
    def free_bytes(self) -> dict[str, int]:
        """Bytes of free pages in device_local and in each half."""
        return {free.name: free.count * self.space.page_bytes for free in self._free}

    @property
    def allocations(self) -> Mapping[int, Allocation]:
        """Current allocations by pointer."""
        return {allocation.pointer: allocation for allocation in self._live}

    @property
    def pending(self) -> tuple[Transfer, ...]:
        """Requested copies that have not run, in order of request."""
        return tuple(self._pending.values())

    def malloc_local(self, size_bytes: int) -> int:
        pages = self._pages("malloc_local", size_bytes)
        if pages > self._free[0].count:
            raise self._out_of_memory("malloc_local", size_bytes, self._free[:1], "")
        first = self._live.gap("malloc_local", pages)
        return self._map(size_bytes, first, self._free[0].take(pages), "local")

    def malloc_remote(self, size_bytes: int, placement: Placement | None = None) -> int:
        """cudaMallocRemote: `size_bytes` of device_remote, with the placement of boot or this one."""
        placement = placement or self.space.placement
        require_placement(placement)
        pages = self._pages("malloc_remote", size_bytes)
        halves = self._free[1:]
        room = [free.count for free in halves]
        if not fits(pages, placement, room):
            divisible = placement == "local" and fits(pages, "bw_aware", room)
            hint = ": no half holds it whole, placement='bw_aware' would divide it" if divisible else ""
            raise self._out_of_memory("malloc_remote", size_bytes, halves, hint)
        first = self._live.gap("malloc_remote", pages)
        return self._map(size_bytes, first, self._place_pages(pages, placement, room), "remote")

    def free_local(self, pointer: int) -> None:
        self._release("free_local", pointer, "local")

    def free_remote(self, pointer: int) -> None:
        """cudaFreeRemote."""
        self._release("free_remote", pointer, "remote")

    def memcpy_async(
        self,
        destination: int,
        source: int,
        size_bytes: int,
        direction: Direction,
        *,
        stream: int = 0,
        after: Sequence[Transfer] = (),
    ) -> Transfer:
        """cudaMemcpyAsync: a copy on a stream. It runs when the stream is synchronised, and not before those it is `after`."""
        if direction not in SIDES:
            raise UnknownName("direction", str(direction), SIDES)
        require_positive("memcpy_async", size_bytes=size_bytes)
        sides, call = SIDES[direction], f"memcpy_async {direction}"
        origin = self._within(f"{call}, source", source, size_bytes, sides[0])
        target = self._within(f"{call}, destination", destination, size_bytes, sides[1])
        if abs(source - destination) < size_bytes:
            raise BadInput(f"{call}: source {source:#x} and destination {destination:#x} overlap in {size_bytes} bytes")
        if any(before.space is not self.space for before in after):
            raise BadInput(f"{call}: after takes copies of the same device")
        pieces = self._cut(source, destination, size_bytes, sides)
        remote = pieces[pieces[:, 3] >= 0]
        carried = np.zeros(len(self.space.halves), np.int64)
        np.add.at(carried, remote[:, 3], remote[:, 2])
        transfer = Transfer(
            number=self._requested,
            stream=stream,
            direction=direction,
            source=origin,
            destination=target,
            size_bytes=size_bytes,
            space=self.space,
            by_half=tuple(carried.tolist()),
            after=tuple(before.number for before in after),
            _pieces=pieces,
        )
        self._pending[transfer.number] = transfer
        self._requested += 1
        return transfer

    def synchronize(self, stream: int | None = None) -> None:
        """Runs the copies of a stream, or of all, in order of request, with those that they wait for."""
        needed: set[int] = set()
        behind: set[int] = set()  # streams of which everything asked before is needed too
        for transfer in reversed(self.pending):
            if stream in (None, transfer.stream) or transfer.stream in behind or transfer.number in needed:
                needed |= {transfer.number, *transfer.after}
                behind.add(transfer.stream)
        for number in sorted(needed & self._pending.keys()):
            for source, destination, length, _ in self._pending.pop(number)._pieces.tolist():
                self.contents.write(destination, self.contents.read(source, length))

    def write_local(self, pointer: int, data: bytes | bytearray | memoryview | npt.NDArray[Any]) -> None:
        """Writes bytes, or those of an array, into device_local at once."""
        octets = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
        self._within("write_local", pointer, len(octets), "local")
        for at, address, length in self._stretches(pointer, len(octets)):
            self.contents.write(address, octets[at : at + length])

    def read_local(self, pointer: int, size_bytes: int) -> bytes:
        """The current bytes of device_local, without pending copies."""
        self._within("read_local", pointer, size_bytes, "local")
        return b"".join(self.contents.read(address, length) for _, address, length in self._stretches(pointer, size_bytes))

    def physical(self, pointer: int) -> int:
        """The physical address behind a virtual one, by a walk of the page table."""
        self._within("physical", pointer, 1, self._live.find("physical", pointer).side)
        page, offset = divmod(pointer, self.space.page_bytes)
        return int(self._table.walk(page, 1)[0]) * self.space.page_bytes + offset

    def _pages(self, what: str, size_bytes: int) -> int:
        require_positive(what, size_bytes=size_bytes)
        return -(-size_bytes // self.space.page_bytes)

    def _place_pages(self, pages: int, placement: Placement, room: Sequence[int]) -> Pages:
        """Physical pages in the order of the virtual ones."""
        rounds_by_halves = deal(pages, placement, room)
        half = np.concatenate([np.tile(np.array(round_halves, np.int64), rounds) for round_halves, rounds in rounds_by_halves])
        physical = np.empty(pages, np.int64)
        for number, free in enumerate(self._free[1:]):
            own = half == number
            physical[own] = free.take(int(own.sum()))
        return physical

    def _map(self, size_bytes: int, first: int, physical: Pages, side: Side) -> int:
        self._table.map(first, physical)
        allocation = Allocation(first * self.space.page_bytes, size_bytes, first, len(physical), side)
        self._live.add(allocation)
        return allocation.pointer

    def _within(self, what: str, pointer: int, size_bytes: int, side: Side) -> Allocation:
        """The allocation that contains a range, on the expected side of memory."""
        allocation = self._live.find(what, pointer)
        if allocation.side != side:
            raise BadInput(f"{what}: {pointer:#x} lies in device_{allocation.side}, not in device_{side}")
        if size_bytes < 0 or pointer + size_bytes > allocation.pointer + allocation.size_bytes:
            left = max(allocation.pointer + allocation.size_bytes - pointer, 0)
            raise BadInput(f"{what}: {size_bytes} bytes from {pointer:#x} on: its allocation has {left} from there to its end")
        return allocation

    def _release(self, what: str, pointer: int, side: Side) -> None:
        allocation = self._live.find(what, pointer)
        if allocation.side != side:
            raise BadInput(f"{what}: {pointer:#x} lies in device_{allocation.side}: write free_{allocation.side}")
        if pointer != allocation.pointer:
            raise BadInput(f"{what}: {pointer:#x} lies inside an allocation: free {allocation.pointer:#x}, where it begins")
        for transfer in self._pending.values():
            if allocation in (transfer.source, transfer.destination):
                raise BadInput(
                    f"{what}: {pointer:#x} has a copy under way ({transfer.direction}): synchronize({transfer.stream}) first"
                )
        physical = self._table.unmap(allocation.first_page, allocation.pages)
        self.contents.scrub(physical)
        region = self._region(physical)
        for number, free in enumerate(self._free):
            free.give_back(physical[region == number])
        self._live.remove(allocation)

    def _region(self, physical: Pages) -> npt.NDArray[np.int64]:
        """The memory of each physical page: 0 is device_local, then the halves."""
        return np.searchsorted(self._starts, physical, side="right").astype(np.int64) - 1

    def _addresses(self, pointer: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Physical addresses of ascending offsets from a pointer."""
        page, inside = np.divmod(pointer + offsets, self.space.page_bytes)
        first = int(page[0])
        physical: Pages = self._table.walk(first, int(page[-1]) - first + 1)[page - first]
        return np.asarray(physical * self.space.page_bytes + inside, np.int64)

    def _borders(self, pointer: int, size_bytes: int) -> npt.NDArray[np.int64]:
        """Offsets from a pointer at which a page begins; 0 counts as one."""
        return np.maximum(np.arange(-(pointer % self.space.page_bytes), size_bytes, self.space.page_bytes, dtype=np.int64), 0)

    def _stretches(self, pointer: int, size_bytes: int) -> Iterator[tuple[int, int, int]]:
        """(offset, physical address, bytes) of each page's part of a range."""
        if size_bytes:
            offsets = self._borders(pointer, size_bytes)
            lengths = np.diff(offsets, append=size_bytes)
            yield from zip(offsets.tolist(), self._addresses(pointer, offsets).tolist(), lengths.tolist(), strict=True)

    def _cut(self, source: int, destination: int, size_bytes: int, sides: tuple[Side, Side]) -> npt.NDArray[np.int64]:
        """A copy in pieces that cross no page border at either end."""
        offsets = np.union1d(self._borders(source, size_bytes), self._borders(destination, size_bytes))
        ends = [self._addresses(pointer, offsets) for pointer in (source, destination)]
        half = np.full(len(offsets), -1, np.int64)
        if "remote" in sides:
            half = self._region(ends[sides.index("remote")] // self.space.page_bytes) - 1
        return np.stack([*ends, np.diff(offsets, append=size_bytes), half], axis=1)

    def _out_of_memory(self, what: str, size_bytes: int, memories: Sequence[FreePages], hint: str) -> BadInput:
        pages, page = -(-size_bytes // self.space.page_bytes), self.space.page_bytes
        free = ", ".join(f"{memory.name} {memory.count * page} bytes" for memory in memories) or "no memory-node"
        return BadInput(f"{what}: out of memory: {size_bytes} bytes asked, {pages} pages of {page}; free: {free}{hint}")


class Pool:
    """Memory-nodes by name, whose groups are assigned to the drivers of devices: each group to one device, permanently.

    >>> pool = Pool({"M0": MemoryNode(), "M1": MemoryNode()})
    >>> driver = pool.boot("D0", local_bytes=16 * 2**30, halves=[("M0", 1), ("M1", 0)])
    >>> pool.boot("D1", local_bytes=16 * 2**30, halves=[("M1", 0)])
    Traceback (most recent call last):
    trainyard.errors.BadInput: Pool: group 0 of M1 belongs to D0: D1 cannot have it (free: group 0 of M0, group 1 of M1)
    """

    def __init__(self, nodes: Mapping[str, MemoryNode]) -> None:
        self.nodes = dict(nodes)
        self.owners: dict[tuple[str, int], str] = {}
        self.drivers: dict[str, Driver] = {}

    def boot(self, device: str, *, local_bytes: int, halves: Sequence[tuple[str, int]], **options: Any) -> Driver:
        """The driver of a device that has these (memory-node, group); `options` as of `Driver.boot`."""
        if device in self.drivers:
            raise BadInput(f"Pool: {device} has booted already")
        for node, group in halves:
            self._require_free(device, node, group)
        parts = [Half(node=node, group=group, capacity_bytes=self.nodes[node].group_capacity_bytes) for node, group in halves]
        driver = Driver.boot(local_bytes=local_bytes, halves=parts, **options)
        self.drivers[device] = driver
        self.owners |= dict.fromkeys(halves, device)
        return driver

    def _require_free(self, device: str, node: str, group: int) -> None:
        if node not in self.nodes:
            raise UnknownName("memory-node", str(node), self.nodes)
        groups = self.nodes[node].groups
        if group not in range(groups):
            raise BadInput(f"Pool: {node} has groups 0 to {groups - 1}, not {group!r}")
        if (node, group) in self.owners:
            left = [
                f"group {i} of {name}"
                for name, own in self.nodes.items()
                for i in range(own.groups)
                if (name, i) not in self.owners
            ]
            free = f"free: {', '.join(left)}" if left else "none is free"
            raise BadInput(f"Pool: group {group} of {node} belongs to {self.owners[node, group]}: {device} cannot have it ({free})")
