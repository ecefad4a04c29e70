"""The second memory: pinned host memory over two CUDA streams, or host memory or a nameless file through two threads.

A `Ticket` is one storage in the store. Device memory is freed only after the compute stream (or the host) has waited for the copy
out, so no memory is reused during a copy; a buffer of the store is reused after its last copy in.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, UntypedStorage

from trainyard.errors import BadInput, UnknownName

StoreName = Literal["pinned", "host", "disk"]


class Ticket(Protocol):
    """One storage that was sent out."""

    def wait_for_copy_out(self) -> None:
        """Blocks the compute stream until the copy out has ended."""

    def fetch(self) -> UntypedStorage:
        """Memory on the device into which the copy back has been started."""

    def wait_for_copy_in(self) -> None:
        """Blocks the compute stream until the copy back has ended."""

    def release(self) -> None:
        """Frees the copy in the store."""


class Store(Protocol):
    """A second memory."""

    def put(self, storage: UntypedStorage) -> Ticket: ...

    def close(self) -> None: ...


def as_bytes(storage: UntypedStorage) -> Tensor:
    """The storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def open_store(name: StoreName, device: torch.device, directory: Path | None) -> Store:
    if name not in get_args(StoreName):
        raise UnknownName("store", name, get_args(StoreName))
    if name == "disk":
        return ThreadedStore(device, File(directory))
    if directory is not None:
        raise BadInput(f"directory= is for store='disk', got store={name!r}")
    if name == "pinned" and device.type == "cuda":
        return PinnedStore(device)
    return ThreadedStore(device, Memory())


class PinnedStore:
    """Page-locked host memory; copies run on a stream out and a stream in. Buffers are kept by size: locking pages is slow."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.out_stream, self.in_stream = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.spare: dict[int, list[tuple[Tensor, torch.cuda.Event]]] = defaultdict(list)
        self.closed = False

    def put(self, storage: UntypedStorage) -> PinnedTicket:
        size = storage.nbytes()
        if self.spare[size]:
            buffer, free = self.spare[size].pop()
            self.out_stream.wait_event(free)
        else:
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.out_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.out_stream):
            buffer.copy_(as_bytes(storage), non_blocking=True)
            done = self.out_stream.record_event()
        return PinnedTicket(self, buffer, done)

    def close(self) -> None:
        self.closed = True
        torch.cuda.synchronize(self.device)
        self.spare.clear()
        empty = getattr(torch._C, "_host_emptyCache", None)
        if empty is not None:
            empty()


class PinnedTicket:
    """A buffer of page-locked memory and the events after which it may be read, or used again."""

    def __init__(self, store: PinnedStore, buffer: Tensor, done: torch.cuda.Event) -> None:
        self.store, self.buffer, self.out_done, self.in_done = store, buffer, done, done

    def wait_for_copy_out(self) -> None:
        torch.cuda.current_stream(self.store.device).wait_event(self.out_done)

    def fetch(self) -> UntypedStorage:
        store = self.store
        require_open(store.closed)
        target = torch.empty(self.buffer.numel(), dtype=torch.uint8, device=store.device)
        store.in_stream.wait_stream(torch.cuda.current_stream(store.device))  # who had this memory before has finished with it
        store.in_stream.wait_event(self.out_done)
        with torch.cuda.stream(store.in_stream):
            target.copy_(self.buffer, non_blocking=True)
            self.in_done = store.in_stream.record_event()
        return target.untyped_storage()

    def wait_for_copy_in(self) -> None:
        torch.cuda.current_stream(self.store.device).wait_event(self.in_done)

    def release(self) -> None:
        if not self.store.closed:
            self.store.spare[self.buffer.numel()].append((self.buffer, self.in_done))


class Medium(Protocol):
    """Bytes by slot; one thread writes, another reads."""

    def write(self, data: Tensor) -> int: ...

    def read(self, slot: int, data: Tensor) -> None: ...

    def free(self, slot: int) -> None: ...

    def close(self) -> None: ...


class Memory:
    """Ordinary host memory; buffers are kept by size."""

    def __init__(self) -> None:
        self.buffers: dict[int, Tensor] = {}
        self.spare: dict[int, list[Tensor]] = defaultdict(list)
        self.count = 0

    def write(self, data: Tensor) -> int:
        size = data.numel()
        buffer = self.spare[size].pop() if self.spare[size] else torch.empty(size, dtype=torch.uint8)
        buffer.copy_(data)
        self.count += 1
        self.buffers[self.count] = buffer
        return self.count

    def read(self, slot: int, data: Tensor) -> None:
        data.copy_(self.buffers[slot])

    def free(self, slot: int) -> None:
        buffer = self.buffers.pop(slot)
        self.spare[buffer.numel()].append(buffer)

    def close(self) -> None:
        self.buffers.clear()
        self.spare.clear()


class File:
    """One file without a name, which the system removes when the process ends. Free slots are listed by size."""

    def __init__(self, directory: Path | None) -> None:
        self.file = tempfile.TemporaryFile(prefix="trainyard-", dir=directory, buffering=0)  # noqa: SIM115
        self.spare: dict[int, list[int]] = defaultdict(list)
        self.sizes: dict[int, int] = {}
        self.end = 0

    def write(self, data: Tensor) -> int:
        host = data.cpu().numpy()
        size = host.nbytes
        if self.spare[size]:
            slot = self.spare[size].pop()
        else:
            slot, self.end = self.end, self.end + size
        self.sizes[slot] = size
        view, done = memoryview(host.data), 0
        while done < size:
            done += os.pwrite(self.file.fileno(), view[done:], slot + done)
        return slot

    def read(self, slot: int, data: Tensor) -> None:
        host = data if data.device.type == "cpu" else torch.empty(data.numel(), dtype=torch.uint8)
        view, done = memoryview(host.numpy().data), 0
        while done < len(view):
            count = os.preadv(self.file.fileno(), [view[done:]], slot + done)
            if not count:
                raise OSError(f"the overlay's file ends at {slot + done}, before the {len(view)} bytes of a tensor")
            done += count
        if host is not data:
            data.copy_(host)

    def free(self, slot: int) -> None:
        self.spare[self.sizes.pop(slot)].append(slot)

    def close(self) -> None:
        self.file.close()


class ThreadedStore:
    """Host memory or a file: one thread copies out, another back, each in order of submission."""

    def __init__(self, device: torch.device, medium: Medium) -> None:
        self.device, self.medium, self.closed = device, medium, False
        self.out_thread = ThreadPoolExecutor(1, "trainyard-out")
        self.in_thread = ThreadPoolExecutor(1, "trainyard-in")
        on_device = device.type == "cuda"
        self.out_stream = torch.cuda.Stream(device) if on_device else None
        self.in_stream = torch.cuda.Stream(device) if on_device else None

    def put(self, storage: UntypedStorage) -> ThreadedTicket:
        data, ready = as_bytes(storage), self.moment()
        return ThreadedTicket(self, self.out_thread.submit(self._write, [data], ready), storage.nbytes())

    def moment(self) -> torch.cuda.Event | None:
        return torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None

    def _write(self, tensors: list[Tensor], ready: torch.cuda.Event | None) -> int:
        data = tensors.pop()  # the list outlives the copy, the tensor must not
        if self.out_stream is None or ready is None:
            return self.medium.write(data)
        with torch.cuda.stream(self.out_stream):
            self.out_stream.wait_event(ready)
            slot = self.medium.write(data)
            self.out_stream.synchronize()
        return slot

    def read(self, slot: Future[int], tensors: list[Tensor], ready: torch.cuda.Event | None) -> None:
        data = tensors.pop()
        if self.in_stream is None or ready is None:
            self.medium.read(slot.result(), data)
            return
        with torch.cuda.stream(self.in_stream):
            self.in_stream.wait_event(ready)
            self.medium.read(slot.result(), data)
            self.in_stream.synchronize()

    def close(self) -> None:
        self.closed = True
        for thread in (self.out_thread, self.in_thread):
            thread.shutdown(wait=True, cancel_futures=True)
        self.medium.close()


class ThreadedTicket:
    """The copies of one storage that were submitted to the two threads."""

    def __init__(self, store: ThreadedStore, slot: Future[int], size: int) -> None:
        self.store, self.slot, self.size = store, slot, size
        self.back: Future[None] | None = None

    def wait_for_copy_out(self) -> None:
        if not (self.store.closed and self.slot.cancelled()):
            self.slot.result()

    def fetch(self) -> UntypedStorage:
        store = self.store
        require_open(store.closed)
        target = torch.empty(self.size, dtype=torch.uint8, device=store.device)
        self.back = store.in_thread.submit(store.read, self.slot, [target], store.moment())
        return target.untyped_storage()

    def wait_for_copy_in(self) -> None:
        if self.back is not None and not (self.store.closed and self.back.cancelled()):
            self.back.result()

    def release(self) -> None:
        if not self.store.closed:
            with suppress(RuntimeError):  # closed meanwhile
                self.store.out_thread.submit(freeing(self.store.medium, self.slot, self.back))


def freeing(medium: Medium, slot: Future[int], back: Future[None] | None) -> Callable[[], None]:
    def free() -> None:
        if back is not None:
            back.exception()  # waits
        if slot.exception() is None:
            medium.free(slot.result())

    return free


def require_open(closed: bool) -> None:
    if closed:
        raise BadInput("a tensor of this graph is in the store of an overlay that has ended: call backward() inside the with-block")
