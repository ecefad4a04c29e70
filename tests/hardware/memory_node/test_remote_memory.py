"""device_remote memory: against plain bytes in random order, where pages go, and everything that must be refused."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.memory_node.address_space import AddressSpace, Half, fits, split
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.memory_node.remote_memory import SIDES, Driver, Pool, Run

PAGE = 16
picks = st.integers(0, 10**6)


def halves_of(*sizes):
    return [Half(node=f"M{number}", group=number % 2, capacity_bytes=size) for number, size in enumerate(sizes)]


def booted(local=8 * PAGE, halves=(8 * PAGE, 8 * PAGE), **options):
    return Driver.boot(local_bytes=local, halves=halves_of(*halves), **{"page_bytes": PAGE, **options})


def dealt_one_by_one(pages, placement, room):
    """The plain twin of a placement: which half each page goes to, or None where it does not fit."""
    room = list(room)
    if placement == "local":
        return next(([half] * pages for half, free in enumerate(room) if free >= pages), None)
    turn, actual = room.index(max(room)) if room else 0, []
    for _ in range(pages):
        if not any(room):
            return None
        while not room[turn % len(room)]:
            turn += 1
        actual.append(turn % len(room))
        room[turn % len(room)] -= 1
        turn += 1
    return actual


class DriverBesidePlainBytes(RuleBasedStateMachine):
    """Every malloc, free, copy, wait, read and write is done to a driver and to a dictionary of byte strings."""

    @initialize(
        local=st.integers(6 * PAGE, 16 * PAGE),
        halves=st.lists(st.integers(1, 14 * PAGE), max_size=3),
        placement=st.sampled_from(["local", "bw_aware"]),
    )
    def boot(self, local, halves, placement):
        self.driver = booted(local, halves, placement=placement, physical_bits=10, virtual_bits=11)  # so that addresses come round
        self.capacity = [size // PAGE for size in (local, *halves)]
        self.placement = placement
        self.bytes: dict[int, bytearray] = {}
        self.pages: dict[int, list[int]] = {}  # pointer -> the memory that each page lies in: 0 local, then the halves
        self.handed: list[int] = []  # every pointer, freed or not
        self.copies: list = []
        self.waiting: dict[int, tuple] = {}
        for size in (3 * PAGE - 1, PAGE + 5):
            self.malloc_local(size)
            self.malloc_remote(size, None)

    def room(self):
        used = Counter(memory for pages in self.pages.values() for memory in pages)
        return [pages - used[memory] for memory, pages in enumerate(self.capacity)]

    def gap_fits(self, pages):
        """Whether any free range of virtual addresses has as many pages and one more, the guard."""
        taken = {at for pointer, own in self.pages.items() for at in range(pointer // PAGE, pointer // PAGE + len(own) + 1)}
        run = 0
        for page in range(2**10 // PAGE, 2**11 // PAGE):
            run = 0 if page in taken else run + 1
            if run > pages:
                return True
        return False

    def allocate(self, size, places, malloc):
        message = "out of memory" if places is None else "11-bit virtual addresses" if not self.gap_fits(len(places)) else ""
        if message:
            with pytest.raises(BadInput, match=message):
                malloc(size)
            return
        pointer = malloc(size)
        assert self.holder(pointer) is None
        self.bytes[pointer], self.pages[pointer] = bytearray(size), places
        self.handed.append(pointer)

    def holder(self, pointer):
        """The live allocation whose pages, or guard, an address lies in."""
        holders = [own for own, pages in self.pages.items() if own <= pointer < own + (len(pages) + 1) * PAGE]
        assert len(holders) < 2
        return holders[0] if holders else None

    def side(self, pointer):
        return "remote" if self.pages[pointer][0] else "local"

    def some(self, side, pick):
        """A live pointer of one side, an offset into it and a number of bytes from there: now and then one too many."""
        live = [pointer for pointer in self.bytes if self.side(pointer) == side]
        if not live:
            return None
        pointer = live[pick % len(live)]
        offset = pick // 7 % (len(self.bytes[pointer]) + 1)
        return pointer, offset, 1 + pick // 11 % (len(self.bytes[pointer]) - offset + 1)

    @rule(size=st.integers(1, 6 * PAGE))
    def malloc_local(self, size):
        pages = -(-size // PAGE)
        self.allocate(size, [0] * pages if pages <= self.room()[0] else None, self.driver.malloc_local)

    @rule(size=st.integers(1, 6 * PAGE), placement=st.sampled_from([None, "local", "bw_aware"]))
    def malloc_remote(self, size, placement):
        places = dealt_one_by_one(-(-size // PAGE), placement or self.placement, self.room()[1:])
        places = None if places is None else [half + 1 for half in places]
        self.allocate(size, places, lambda requested: self.driver.malloc_remote(requested, placement))

    @rule(pick=picks, alive=st.booleans(), side=st.sampled_from(["local", "remote", None]))
    def free(self, pick, alive, side):
        """Of what lives or of what was ever handed out, on its own side or on a given one."""
        pointers = list(self.bytes) if alive and self.bytes else self.handed
        pointer = pointers[pick % len(pointers)]
        holder = self.holder(pointer)
        side = side or (self.side(holder) if holder else "local")
        free = self.driver.free_local if side == "local" else self.driver.free_remote
        if holder is None:
            message = "stale pointer"
        elif self.side(holder) != side:
            message = f"lies in device_{self.side(holder)}"
        elif holder != pointer:
            message = "lies inside an allocation"
        elif any(pointer in (copy[1][0], copy[2][0]) for copy in self.waiting.values()):
            message = "has a copy under way"
        else:
            free(pointer)
            del self.bytes[pointer], self.pages[pointer]
            return
        with pytest.raises(BadInput, match=message):
            free(pointer)

    @rule(pick=picks, fill=st.integers(0, 255))
    def write(self, pick, fill):
        actual = self.some("local", pick)
        if actual is None:
            return
        pointer, at, size = actual
        data = bytes((fill + number) % 256 for number in range(size))
        if at + size > len(self.bytes[pointer]):
            with pytest.raises(BadInput, match="to its end"):
                self.driver.write_local(pointer + at, data)
        else:
            self.driver.write_local(pointer + at, data)
            self.bytes[pointer][at : at + size] = data

    @rule(direction=st.sampled_from(list(SIDES)), to=picks, source=picks, stream=st.integers(0, 2), wait=st.none() | picks)
    def copy(self, direction, to, source, stream, wait):
        ends = [self.some(side, pick) for side, pick in zip(SIDES[direction], (source, to), strict=True)]
        if None in ends:
            return
        (source, first, size), (to, start, room) = ends
        size = min(size, room) if stream else size
        after = [self.copies[wait % len(self.copies)]] if wait is not None and self.copies else []
        ask = (to + start, source + first, size, direction)
        if first + size > len(self.bytes[source]) or start + size > len(self.bytes[to]):
            message = "to its end"
        elif to == source and abs(start - first) < size:
            message = "overlap"
        else:
            transfer = self.driver.memcpy_async(*ask, stream=stream, after=after)
            self.waiting[transfer.number] = (stream, (to, start), (source, first), size, {before.number for before in after})
            self.copies.append(transfer)
            self.check_split(transfer, (to, start) if direction == "LocalToRemote" else (source, first))
            return
        with pytest.raises(BadInput, match=message):
            self.driver.memcpy_async(*ask, stream=stream, after=after)

    def check_split(self, transfer, remote_end):
        """Bytes by half, one by one; the runs are the same bytes in order, and none could go on in the next."""
        pointer, first = remote_end
        carried = Counter(self.pages[pointer][at // PAGE] for at in range(first, first + transfer.size_bytes))
        assert transfer.by_half == tuple(carried[half] for half in range(1, len(self.capacity)))
        by_node = Counter()
        for run in transfer.runs:
            by_node[run.node] += run.size_bytes
        assert by_node.total() == transfer.size_bytes
        assert {node: size for node, size in transfer.by_node.items() if size} == {
            n: s for n, s in by_node.items() if n is not None
        }
        for run, following in pairwise(transfer.runs):
            ends = (run.source + run.size_bytes, run.destination + run.size_bytes, run.node)
            assert ends != (following.source, following.destination, following.node)

    @rule(stream=st.none() | st.integers(0, 2))
    def synchronize(self, stream):
        self.driver.synchronize(stream)
        needed = {number for number, copy in self.waiting.items() if stream in (None, copy[0])}
        while True:  # what is needed needs what it waits for and all before it on its stream
            more = {
                number
                for number, copy in self.waiting.items()
                for other in needed
                if number in self.waiting[other][4] or (number < other and copy[0] == self.waiting[other][0])
            }
            if more <= needed:
                break
            needed |= more
        for number in sorted(needed):
            _, (to, start), (source, first), size, _ = self.waiting.pop(number)
            self.bytes[to][start : start + size] = self.bytes[source][first : first + size]

    @invariant()
    def no_page_belongs_to_two_and_none_is_lost(self):
        regions = self.driver.space.regions
        seen: set[int] = set()
        for pointer, places in self.pages.items():
            for number, memory in enumerate(places):
                page, offset = divmod(self.driver.physical(pointer + number * PAGE), PAGE)
                region = regions[memory]
                assert offset == 0
                assert region.first_page <= page < region.first_page + region.pages
                assert page not in seen
                seen.add(page)
        assert list(self.driver.free_bytes.values()) == [free * PAGE for free in self.room()]
        assert {pointer: own.size_bytes for pointer, own in self.driver.allocations.items()} == {
            pointer: len(data) for pointer, data in self.bytes.items()
        }
        assert [transfer.number for transfer in self.driver.pending] == list(self.waiting)

    @invariant()
    def contents_are_the_plain_bytes(self):
        for pointer, data in self.bytes.items():
            if self.pages[pointer][0] == 0:
                assert self.driver.read_local(pointer, len(data)) == data
            pages = range(0, len(data), PAGE)
            lying = b"".join(
                self.driver.contents.read(self.driver.physical(pointer + at), min(PAGE, len(data) - at)) for at in pages
            )
            assert lying == data
        assert self.driver.contents.stored_bytes <= sum(len(pages) * PAGE for pages in self.pages.values())


TestDriverBesidePlainBytes = pytest.mark.oracle(DriverBesidePlainBytes.TestCase)


@pytest.mark.oracle
@given(
    size=st.integers(1, 300),
    placement=st.sampled_from(["local", "bw_aware"]),
    room=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    page=st.sampled_from([1, 4, 16, 64]),
)
def test_split_is_what_the_pages_of_a_real_allocation_hold(size, placement, room, page):
    pages = -(-size // page)
    twin = dealt_one_by_one(pages, placement, [free // page for free in room])
    assert fits(pages, placement, [free // page for free in room]) == (twin is not None)
    driver = Driver.boot(local_bytes=512, halves=halves_of(*(free + page for free in room)), page_bytes=page, placement=placement)
    for number, free in enumerate(room):  # leave the room that is asked for, whatever was used before
        used = (free + page) // page - free // page
        if used:
            only = Driver.boot(local_bytes=page, halves=halves_of(used * page), page_bytes=page)
            assert only.malloc_remote(used * page)
            driver._free[number + 1].take(used)
    if twin is None:
        with pytest.raises(BadInput, match="do not fit"):
            split(size, placement, room, page)
        with pytest.raises(BadInput, match="out of memory"):
            driver.malloc_remote(size)
        return
    actual = split(size, placement, room, page)
    held = [sum(min(page, size - at * page) for at, own in enumerate(twin) if own == half) for half in range(len(room))]
    assert list(actual) == held
    here, there = driver.malloc_local(size), driver.malloc_remote(size)
    assert driver.memcpy_async(there, here, size, "LocalToRemote").by_half == actual


@given(size=st.integers(1, 10**9), halves=st.integers(1, 5), page=st.sampled_from([4096, 65536, 2**21]))
def test_bw_aware_uses_all_halves_alike_within_one_page(size, halves, page):
    actual = split(size, "bw_aware", halves, page)
    assert sum(actual) == size
    assert max(actual) - min(actual) <= page
    assert split(size, "local", halves, page) == (size,) + (0,) * (halves - 1)


@pytest.mark.paper
def test_bw_aware_takes_half_the_time_of_local():
    """Fig. 10: both memory-nodes are read at once."""
    node, size = MemoryNode(), 2**30
    local, aware = (max(map(node.transfer_s, split(size, placement, 2))) for placement in ("local", "bw_aware"))
    assert aware / local == pytest.approx(0.5, rel=1e-4)


def test_odd_pages_go_to_the_half_with_more_room():
    driver = booted()
    sizes = []
    for _ in range(4):
        here, there = driver.malloc_local(PAGE), driver.malloc_remote(PAGE)
        sizes.append(driver.memcpy_async(there, here, PAGE, "LocalToRemote").by_half)
    assert sizes == [(PAGE, 0), (0, PAGE), (PAGE, 0), (0, PAGE)]


def test_local_uses_the_next_half_when_the_first_lacks_room():
    driver = booted(local=2**10, placement="local")
    here = driver.malloc_local(6 * PAGE)
    carried = [driver.memcpy_async(driver.malloc_remote(n * PAGE), here, n * PAGE, "LocalToRemote").by_half for n in (5, 6, 3)]
    assert carried == [(5 * PAGE, 0), (0, 6 * PAGE), (3 * PAGE, 0)]
    with pytest.raises(BadInput, match=r"free: M0.0 0 bytes, M1.1 32 bytes$"):
        driver.malloc_remote(3 * PAGE)


def test_local_says_when_dividing_would_help():
    driver = booted()
    with pytest.raises(BadInput, match=r"no half holds it whole, placement='bw_aware' would divide it"):
        driver.malloc_remote(9 * PAGE, "local")
    assert driver.malloc_remote(9 * PAGE)


@pytest.mark.probe
@pytest.mark.parametrize("placement", ["local", "bw_aware"])
def test_the_last_page_fits_and_one_byte_more_does_not(placement):
    room = 8 * PAGE if placement == "local" else 16 * PAGE
    driver = booted(placement=placement)
    with pytest.raises(BadInput, match=f"{room + 1} bytes asked, {room // PAGE + 1} pages of 16; free: M0.0 128 bytes, M1.1 128"):
        driver.malloc_remote(room + 1)
    assert driver.free_bytes == {"device_local": 8 * PAGE, "M0.0": 8 * PAGE, "M1.1": 8 * PAGE}
    driver.malloc_remote(room)
    assert sum(list(driver.free_bytes.values())[1:]) == 16 * PAGE - room
    driver.malloc_local(8 * PAGE)
    with pytest.raises(BadInput, match="malloc_local: out of memory: 1 bytes asked, 1 pages of 16; free: device_local 0 bytes"):
        driver.malloc_local(1)


@pytest.mark.probe
def test_the_last_physical_address_has_47_bits():
    page = 2**21
    reported = {"halves": [Half(node="M0", group=0, capacity_bytes=page)], "page_bytes": page}
    driver = Driver.boot(local_bytes=2**47 - page, **reported)
    pointer = driver.malloc_remote(page)
    assert driver.physical(pointer + page - 1) == 2**47 - 1
    with pytest.raises(BadInput, match=r"M0.0 would end at address 0x8000001fffff, above the 47 physical bits"):
        Driver.boot(local_bytes=2**47 - page + 1, **reported)  # the half begins at the next page border
    one_more = [Half(node="M0", group=0, capacity_bytes=page + 1)]
    with pytest.raises(BadInput, match=r"M0.0 would end at address 0x800000000000, above the 47 physical bits .* 1 bytes less"):
        Driver.boot(local_bytes=2**47 - page, halves=one_more, page_bytes=page)
    with pytest.raises(BadInput, match="device_local would end at address 0x800000000000"):
        Driver.boot(local_bytes=2**47 + 1)


@pytest.mark.probe
def test_virtual_addresses_end_at_their_bits():
    """Memory is free, but its virtual addresses lie in ranges of two pages, one and its guard, between others."""
    driver = booted(local=64 * PAGE, halves=(), physical_bits=10, virtual_bits=11)
    pointers = [driver.malloc_local(PAGE) for _ in range(32)]
    assert pointers[0] == 2**10
    assert pointers[-1] == 2**11 - 2 * PAGE
    with pytest.raises(BadInput, match="no 16 bytes in one piece are left of the 11-bit virtual addresses"):
        driver.malloc_local(1)
    for pointer in pointers[::2]:
        driver.free_local(pointer)
    with pytest.raises(BadInput, match="no 32 bytes in one piece are left of the 11-bit virtual addresses"):
        driver.malloc_local(PAGE + 1)
    assert driver.free_bytes["device_local"] == 48 * PAGE
    assert driver.malloc_local(PAGE) == 2**10  # from the lowest again
    with pytest.raises(BadInput, match="stale pointer"):
        driver.free_local(pointers[-2])
    whole = booted(local=64 * PAGE, halves=(), physical_bits=10, virtual_bits=11)
    with pytest.raises(BadInput, match="11-bit virtual addresses"):
        whole.malloc_local(64 * PAGE)  # no page is left for the guard
    assert whole.malloc_local(63 * PAGE)


@pytest.mark.probe
def test_a_pointer_just_past_the_end_is_not_the_next_allocation():
    driver = booted()
    first, second = driver.malloc_local(PAGE), driver.malloc_local(PAGE)
    assert second == first + 2 * PAGE
    driver.write_local(first + PAGE - 1, b"x")
    for past in (first + PAGE, first + 2 * PAGE - 1):
        with pytest.raises(BadInput, match=r"1 bytes from .* has 0 from there to its end"):
            driver.write_local(past, b"x")
        with pytest.raises(BadInput, match="has 0 from there"):
            driver.physical(past)
    driver.write_local(second, b"x")


def test_virtual_addresses_lie_above_physical_ones_and_are_reused_last():
    driver = booted()
    first = driver.malloc_remote(PAGE)
    driver.free_remote(first)
    second = driver.malloc_remote(PAGE)
    assert first == 2**47
    assert second == first + 2 * PAGE
    assert driver.physical(second) == 8 * PAGE  # the page that was given back, first of the left half
    with pytest.raises(BadInput, match="was never handed out"):
        driver.free_remote(driver.physical(second))


def test_free_pages_are_used_again_wherever_they_lie():
    driver = booted(local=2**12, halves=(32 * PAGE, 32 * PAGE))
    pointers = [driver.malloc_remote(PAGE) for _ in range(64)]
    for pointer in pointers[::2]:
        driver.free_remote(pointer)
    assert sum(list(driver.free_bytes.values())[1:]) == 32 * PAGE
    large = driver.malloc_remote(32 * PAGE)
    data, here = bytes(range(256)) * 2, driver.malloc_local(32 * PAGE)
    driver.write_local(here, data)
    driver.memcpy_async(large, here, 32 * PAGE, "LocalToRemote")
    back = driver.malloc_local(32 * PAGE)
    driver.memcpy_async(back, large, 32 * PAGE, "RemoteToLocal")
    driver.synchronize()
    assert driver.read_local(back, 32 * PAGE) == data
    with pytest.raises(BadInput, match="out of memory"):
        driver.malloc_remote(1)


def test_a_copy_reads_its_source_when_it_runs():
    driver = booted()
    here, there = driver.malloc_local(5), driver.malloc_remote(5)
    driver.write_local(here, b"early")
    driver.memcpy_async(there, here, 5, "LocalToRemote")
    driver.write_local(here, b"later")
    back = driver.malloc_local(5)
    driver.memcpy_async(back, there, 5, "RemoteToLocal")
    assert driver.read_local(back, 5) == bytes(5)
    driver.synchronize()
    assert driver.read_local(back, 5) == b"later"


def test_streams_are_independent_unless_one_waits():
    driver = booted()
    here, there, back = driver.malloc_local(4), driver.malloc_remote(4), driver.malloc_local(4)
    driver.write_local(here, b"maps")
    driver.memcpy_async(there, here, 4, "LocalToRemote", stream=0)
    driver.memcpy_async(back, there, 4, "RemoteToLocal", stream=1)
    driver.synchronize(1)
    assert driver.read_local(back, 4) == bytes(4)  # the copy out has not run
    out = driver.pending[0]
    driver.memcpy_async(back, there, 4, "RemoteToLocal", stream=1, after=[out])
    driver.synchronize(1)
    assert driver.read_local(back, 4) == b"maps"
    assert driver.pending == ()


def test_a_copy_waits_for_all_before_it_on_the_stream_it_waits_for_and_for_what_those_wait_for():
    driver = booted()
    places = [driver.malloc_local(1) for _ in range(5)]
    for place, letter in zip(places, (b"a", b"b", b"c", b"d", b"e"), strict=True):
        driver.write_local(place, letter)
    a, b, c, d, e = places

    def copy(to, source, stream, *after):
        return driver.memcpy_async(to, source, 1, "LocalToLocal", stream=stream, after=after)

    deepest = copy(b, a, 2)
    copy(c, b, 0)
    waited = copy(d, c, 0, deepest)
    copy(e, d, 1, waited)
    later = copy(e, b, 0)
    driver.synchronize(1)
    assert driver.pending == (later,)
    assert [driver.read_local(place, 1) for place in places] == [b"a"] * 5


def test_memory_with_a_pending_copy_cannot_be_freed():
    driver = booted()
    here, there = driver.malloc_local(4), driver.malloc_remote(4)
    driver.memcpy_async(there, here, 4, "LocalToRemote", stream=3)
    for free, pointer in ((driver.free_local, here), (driver.free_remote, there)):
        with pytest.raises(BadInput, match=r"copy under way \(LocalToRemote\): synchronize\(3\) first"):
            free(pointer)
    driver.synchronize(3)
    driver.free_local(here)
    driver.free_remote(there)


def test_freed_memory_reads_as_zeros():
    driver = booted(local=PAGE)
    pointer = driver.malloc_local(PAGE)
    driver.write_local(pointer, b"secret")
    assert driver.contents.stored_bytes == PAGE
    driver.free_local(pointer)
    assert driver.contents.stored_bytes == 0
    assert driver.read_local(driver.malloc_local(PAGE), PAGE) == bytes(PAGE)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_arrays_come_back_bit_for_bit(dtype):
    values = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).view(dtype)  # any bits: NaN, negative zeros
    driver = Driver.boot(local_bytes=2**20, halves=halves_of(2**20, 2**20))
    here, there = driver.malloc_local(values.nbytes), driver.malloc_remote(values.nbytes)
    driver.write_local(here, values)
    driver.memcpy_async(there, here, values.nbytes, "LocalToRemote")
    driver.synchronize()
    driver.write_local(here, np.zeros_like(values))
    driver.memcpy_async(here, there, values.nbytes, "RemoteToLocal")
    driver.synchronize()
    assert driver.read_local(here, values.nbytes) == values.tobytes()


def test_a_terabyte_costs_nothing_until_it_is_written():
    driver = Driver.boot(local_bytes=16 * 10**9, halves=halves_of(64 * 10**10, 64 * 10**10), page_bytes=2**21)
    pointer = driver.malloc_remote(10**12)
    here = driver.malloc_local(2**21)
    driver.write_local(here, b"end")
    driver.memcpy_async(pointer + 10**12 - 3, here, 3, "LocalToRemote")
    driver.synchronize()
    assert driver.contents.stored_bytes == 2 * 2**21
    driver.free_remote(pointer)
    assert driver.contents.stored_bytes == 2**21
    driver.free_local(here)
    assert driver.contents.stored_bytes == 0
    assert driver._table._leaves == {}
    driver.write_local(driver.malloc_local(2**21), bytes(2**21))
    assert driver.contents.stored_bytes == 0  # zeros are what was there


def test_runs_end_where_a_half_ends():
    """The last page of the left half lies before the first of the right one, but other links lead there."""
    driver = booted(halves=(PAGE, PAGE))
    here, there = driver.malloc_local(2 * PAGE), driver.malloc_remote(2 * PAGE)
    transfer = driver.memcpy_async(there, here, 2 * PAGE, "LocalToRemote")
    assert transfer.runs == (Run(0, 8 * PAGE, PAGE, "M0"), Run(PAGE, 9 * PAGE, PAGE, "M1"))
    inside = driver.memcpy_async(driver.malloc_local(2 * PAGE), here, 2 * PAGE, "LocalToLocal")
    assert inside.runs == (Run(0, 2 * PAGE, 2 * PAGE, None),)
    assert inside.by_node == {"M0": 0, "M1": 0}


def invalid_calls(driver, here, there, gone):
    """(call, error message) of everything that must raise."""
    return [
        (lambda: driver.free_remote(gone), "free_remote: .* stale pointer: that memory was freed"),
        (lambda: driver.free_local(here + 1), f"lies inside an allocation: free {here:#x}, where it begins"),
        (lambda: driver.free_remote(there + PAGE), f"lies inside an allocation: free {there:#x}"),
        (lambda: driver.free_local(there), "lies in device_remote: write free_remote"),
        (lambda: driver.free_remote(here), "lies in device_local: write free_local"),
        (lambda: driver.free_remote(0), "0x0 was never handed out"),
        (lambda: driver.free_remote(gone + 2 * PAGE), "was never handed out"),
        (lambda: driver.free_local("p"), "a pointer is what malloc gave, got 'p'"),
        (lambda: driver.memcpy_async(there, here, 41, "LocalToRemote"), "source: 41 bytes from .* has 40 from there to its end"),
        (lambda: driver.memcpy_async(there + 1, here, 40, "LocalToRemote"), "destination: 40 bytes from .* has 39 from there"),
        (lambda: driver.memcpy_async(there + 41, here, 1, "LocalToRemote"), "destination: 1 bytes from .* has 0 from there"),
        (lambda: driver.memcpy_async(there, here, 4, "RemoteToLocal"), "source: .* lies in device_local, not in device_remote"),
        (lambda: driver.memcpy_async(here, there, 4, "LocalToLocal"), "source: .* lies in device_remote, not in device_local"),
        (lambda: driver.memcpy_async(gone, here, 4, "LocalToRemote"), "destination: .* stale pointer"),
        (lambda: driver.memcpy_async(here + 3, here, 4, "LocalToLocal"), "overlap in 4 bytes"),
        (lambda: driver.memcpy_async(there, here, 0, "LocalToRemote"), "size_bytes must be a positive whole number, got 0"),
        (lambda: driver.read_local(there, 4), "read_local: .* lies in device_remote"),
        (lambda: driver.read_local(here, -1), "-1 bytes"),
        (lambda: driver.write_local(here + 39, b"ab"), "2 bytes from .* has 1 from there"),
        (lambda: driver.malloc_remote(0), "malloc_remote: size_bytes must be a positive whole number"),
    ]


@pytest.mark.parametrize("number", range(20))
def test_invalid_calls_raise_and_change_nothing(number):
    driver = booted()
    here, there, gone = driver.malloc_local(40), driver.malloc_remote(40), driver.malloc_remote(PAGE)
    driver.free_remote(gone)
    before = (driver.free_bytes, driver.allocations, driver.pending)
    cases = invalid_calls(driver, here, there, gone)
    assert len(cases) == 20
    ask, message = cases[number]
    with pytest.raises(BadInput, match=message):
        ask()
    assert (driver.free_bytes, driver.allocations, driver.pending) == before


@pytest.mark.probe
def test_ranges_that_touch_do_not_overlap():
    driver = booted()
    here = driver.malloc_local(8)
    driver.write_local(here, b"left....")
    driver.memcpy_async(here + 4, here, 4, "LocalToLocal")
    driver.synchronize()
    assert driver.read_local(here, 8) == b"leftleft"


def test_unknown_names_raise_in_the_driver():
    driver = booted()
    here, there = driver.malloc_local(4), driver.malloc_remote(4)
    with pytest.raises(UnknownName, match="did you mean 'LocalToRemote'"):
        driver.memcpy_async(there, here, 4, "HostToRemote")
    with pytest.raises(UnknownName, match="did you mean 'bw_aware'"):
        driver.malloc_remote(4, "BW_AWARE")
    with pytest.raises(UnknownName, match="placement"):
        AddressSpace(local_bytes=1, halves=(), placement="interleaved")


def test_invalid_memories_raise_at_boot():
    with pytest.raises(BadInput, match="page_bytes must be a power of two"):
        booted(page_bytes=48)
    with pytest.raises(BadInput, match="47 virtual bits must be more than the 47 physical ones"):
        booted(virtual_bits=47)
    with pytest.raises(BadInput, match="each half of a memory-node is given once"):
        Driver.boot(local_bytes=1, halves=halves_of(1, 1)[:1] * 2)
    with pytest.raises(BadInput, match="capacity_bytes must be a positive whole number"):
        halves_of(0)
    with pytest.raises(BadInput, match="groups are counted from 0"):
        Half(node="M0", group=-1, capacity_bytes=1)
    with pytest.raises(BadInput, match="free: no memory-node"):
        Driver.boot(local_bytes=1).malloc_remote(1)


def test_a_capacity_that_is_no_whole_number_of_pages():
    driver = booted(local=PAGE + 1, halves=(2 * PAGE - 1, PAGE))
    assert [(region.first_page, region.pages) for region in driver.space.regions] == [(0, 1), (2, 1), (4, 1)]
    driver.malloc_remote(2 * PAGE)
    with pytest.raises(BadInput, match="out of memory"):
        driver.malloc_remote(1)


@pytest.mark.parametrize("devices", [2, 8])
def test_in_a_ring_each_half_belongs_to_one_device_and_none_sees_another(devices):
    pool = Pool({f"M{number}": MemoryNode(dimm="8 GB RDIMM") for number in range(devices)})
    drivers = [
        pool.boot(f"D{number}", local_bytes=2**20, halves=[(f"M{number}", 1), (f"M{(number + 1) % devices}", 0)])
        for number in range(devices)
    ]
    assert len(pool.owners) == 2 * devices
    assert all(driver.free_bytes[f"M{number}.1"] == 40 * 10**9 // 2**16 * 2**16 for number, driver in enumerate(drivers))
    places = []
    for number, driver in enumerate(drivers):
        here, there = driver.malloc_local(2**17), driver.malloc_remote(2**17)
        driver.write_local(here, bytes([number + 1]) * 2**17)
        driver.memcpy_async(there, here, 2**17, "LocalToRemote")
        driver.synchronize()
        places.append((here, there))
    for number, (driver, (here, there)) in enumerate(zip(drivers, places, strict=True)):
        driver.memcpy_async(here, there, 2**17, "RemoteToLocal")
        driver.synchronize()
        assert driver.read_local(here, 2**17) == bytes([number + 1]) * 2**17


def test_a_half_is_assigned_once():
    pool = Pool({"M0": MemoryNode(), "M1": MemoryNode()})
    first = pool.boot("D0", local_bytes=1, halves=[("M0", 0), ("M1", 1)])
    with pytest.raises(BadInput, match=r"group 1 of M1 belongs to D0: D1 cannot have it \(free: group 1 of M0, group 0 of M1\)"):
        pool.boot("D1", local_bytes=1, halves=[("M0", 1), ("M1", 1)])
    with pytest.raises(BadInput, match="D0 has booted already"):
        pool.boot("D0", local_bytes=1, halves=[])
    with pytest.raises(UnknownName, match="did you mean 'M1'"):
        pool.boot("D1", local_bytes=1, halves=[("M12", 0)])
    with pytest.raises(BadInput, match="M0 has groups 0 to 1, not 2"):
        pool.boot("D1", local_bytes=1, halves=[("M0", 2)])
    second = pool.boot("D1", local_bytes=2**17, halves=[("M0", 1), ("M1", 0)])  # what was refused took nothing
    with pytest.raises(BadInput, match="none is free"):
        pool.boot("D2", local_bytes=1, halves=[("M0", 0)])
    here, there = second.malloc_local(1), second.malloc_remote(1)
    with pytest.raises(BadInput, match="was never handed out"):
        first.free_remote(there)
    foreign = second.memcpy_async(there, here, 1, "LocalToRemote")
    own = Driver.boot(local_bytes=2**17, halves=halves_of(2**16))
    with pytest.raises(BadInput, match="copies of the same device"):
        own.memcpy_async(own.malloc_remote(1), own.malloc_local(1), 1, "LocalToRemote", after=[foreign])
