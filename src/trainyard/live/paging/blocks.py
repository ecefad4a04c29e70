"""What the overlay knows of one storage: on the device, outside, or how it is made again; and the handles that autograd keeps.

A storage is the unit that is kept, sent or made again, so tensors that share one (views, a tensor saved twice) move once and come
back with the strides and the offset they had. Everything is owned by handles and recipes: when the graph goes, for whatever reason,
so do memory, buffers and places in the store.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from trainyard.live.paging.stores import Store, Ticket

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: {what} is at version {now}, "
    "expected version {then}"
)


class Geometry(NamedTuple):
    """A tensor without its storage."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        offset = int(tensor.storage_offset())
        return cls(tensor.dtype, tensor.size(), tensor.stride(), offset, tensor.is_conj(), tensor.is_neg())

    def on(self, storage: UntypedStorage) -> Tensor:
        tensor: Tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        tensor.set_(storage, self.offset, self.size, self.stride)
        if self.conjugate:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.negative else tensor


class Held:
    """Bytes of managed storages that the overlay holds on the device, now and at most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


class Block:
    """One storage. `version` is the content's, by torch's counter of changes in place."""

    __slots__ = (
        "__weakref__", "arriving", "held", "leaving", "number", "original", "passing", "pending", "readers", "recipe", "size",
        "storage", "ticket", "version", "weak",
    )  # fmt: skip

    def __init__(self, storage: UntypedStorage, number: int | None, held: Held) -> None:
        self.weak = StorageWeakRef(storage)  # also keeps the storage's address from being used for another one
        self.number, self.held, self.size = number, held, storage.nbytes()
        self.version = 0
        self.original: Tensor | None = None  # the tensor itself, without its history: holds memory and counter
        self.storage: UntypedStorage | None = None
        self.ticket: Ticket | None = None
        self.leaving = self.arriving = False
        self.recipe: list[Step] = []
        self.passing = False  # nobody saved it: it is made again only on the way to another
        self.pending = 0  # handles that have not been asked yet
        self.readers = 0  # recipes that read it

    def hold(self, tensor: Tensor) -> None:
        if self.storage is None:
            self.original, self.version = tensor.detach(), tensor._version
            self._take(tensor.untyped_storage())

    def _take(self, storage: UntypedStorage) -> None:
        self.storage = storage
        self.held.add(self.size)

    def _drop(self) -> None:
        if self.storage is not None:
            self.original = self.storage = None
            self.held.add(-self.size)

    def send(self, store: Store) -> None:
        """Starts the copy out; the memory stays until `leave`."""
        if self.ticket is None and self.storage is not None:
            self.check()
            self.ticket, self.leaving = store.put(self.storage), True

    def leave(self) -> None:
        if self.leaving and self.ticket is not None:
            self.leaving = False
            self.ticket.left()
            self.check()  # a change under the copy would have spoilt it
            self._drop()

    def fetch(self) -> None:
        """Starts the copy back."""
        if self.storage is None and self.ticket is not None:
            self._take(self.ticket.fetch())
            self.arriving = True

    @property
    def there(self) -> bool:
        return self.storage is not None or self.ticket is not None

    def check(self) -> None:
        if self.original is not None and self.original._version != self.version:
            what = f"a saved tensor of {self.size} bytes, shape {tuple(self.original.shape)},"
            raise RuntimeError(CHANGED.format(what=what, now=self.original._version, then=self.version))

    def present(self) -> UntypedStorage:
        """The storage, for use right now."""
        if self.storage is None:
            if self.ticket is None:
                remake(self)
            else:
                self.fetch()
        if self.arriving and self.ticket is not None:
            self.arriving = False
            self.ticket.arrived()
        self.check()
        assert self.storage is not None
        return self.storage

    def fill(self, storage: UntypedStorage) -> None:
        if self.storage is None:
            self._take(storage)

    def used(self) -> None:
        """One handle was asked. After the last, what can be had again is let go (a graph that is kept may ask again)."""
        self.pending -= 1
        if self.pending <= 0 and not self.readers:
            self.forget()

    def forget(self) -> None:
        if self.original is None and not self.leaving and (self.ticket is not None or self.recipe):
            self._settle()
            self._drop()

    def _settle(self) -> None:
        """Memory goes back only after the copies that touch it."""
        if self.ticket is not None:
            if self.leaving:
                self.ticket.left()
            if self.arriving:
                self.ticket.arrived()
        self.leaving = self.arriving = False

    def __del__(self) -> None:
        try:
            self._settle()
        finally:
            self._drop()
            if self.ticket is not None:
                self.ticket.release()


class Handle:
    """What autograd keeps instead of a tensor that the overlay moves."""

    __slots__ = ("asked", "block", "geometry", "number")

    def __init__(self, block: Block, tensor: Tensor, number: int) -> None:
        self.block, self.geometry, self.number, self.asked = block, Geometry.of(tensor), number, False
        block.pending += 1

    def tensor(self) -> Tensor:
        found = self.geometry.on(self.block.present())
        if not self.asked:
            self.asked = True
            self.block.used()
        elif self.block.pending <= 0 and not self.block.readers:
            self.block.forget()
        return found


class Kept:
    """What autograd keeps instead of a tensor that stays: the same tensor without its history, checked for changes."""

    __slots__ = ("number", "saved", "version")

    def __init__(self, tensor: Tensor, number: int = -1) -> None:
        self.saved, self.number = tensor.detach(), number
        self.version = -1 if tensor.is_inference() else tensor._version

    def tensor(self) -> Tensor:
        if self.version >= 0 and self.saved._version != self.version:
            what = f"a saved tensor of shape {tuple(self.saved.shape)}"
            raise RuntimeError(CHANGED.format(what=what, now=self.saved._version, then=self.version))
        return self.saved


@dataclass(frozen=True, slots=True)
class Read:
    """An argument of a step that lies in a block."""

    block: Block
    geometry: Geometry
    version: int


@dataclass(frozen=True, slots=True)
class Given:
    """An argument that is always there: a parameter, an input."""

    tensor: Tensor
    version: int


@dataclass(frozen=True, slots=True)
class Own:
    """The argument that an op changes in place: the block under way itself."""

    geometry: Geometry


class Step:
    """One op of a recipe: what was called with what, the random state before it, and the blocks it makes."""

    __slots__ = ("__weakref__", "arguments", "function", "keywords", "made", "random", "reads")

    def __init__(self, function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.random: tuple[torch.Generator, Tensor] | None = None
        self.made: list[tuple[int, weakref.ref[Block]]] = []
        self.reads = tuple(leaf.block for leaf in leaves((arguments, keywords)) if isinstance(leaf, Read))
        for block in self.reads:
            block.readers += 1

    def __del__(self) -> None:
        for block in self.reads:
            block.readers -= 1

    def run(self, storage: UntypedStorage | None) -> Any:
        """Calls the op again; `storage` is what the block under way has so far."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Own):
                assert storage is not None
                return leaf.geometry.on(storage)
            if isinstance(leaf, Read):
                found = leaf.block.present()
                if leaf.version != leaf.block.version:
                    what = f"a tensor of shape {tuple(leaf.geometry.size)}, from which a saved one is made again,"
                    raise RuntimeError(CHANGED.format(what=what, now=leaf.block.version, then=leaf.version))
                return leaf.geometry.on(found)
            if isinstance(leaf, Given):
                if leaf.version >= 0 and leaf.tensor._version != leaf.version:
                    what = f"a tensor of shape {tuple(leaf.tensor.shape)}, from which a saved one is made again,"
                    raise RuntimeError(CHANGED.format(what=what, now=leaf.tensor._version, then=leaf.version))
                return leaf.tensor
            return leaf

        arguments = [mapped(value, item) for item in self.arguments]
        keywords = {name: mapped(value, item) for name, item in self.keywords.items()}
        with as_before(self.random):
            return self.function(*arguments, **keywords)


@contextmanager
def as_before(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    """The generator gives once more what it gave after that state, and then goes on from where it is."""
    if random is None:
        yield
        return
    generator, state = random
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)


def leaves(item: Any) -> Iterator[Any]:
    if isinstance(item, tuple | list):
        for one in item:
            yield from leaves(one)
    elif isinstance(item, dict):
        for one in item.values():
            yield from leaves(one)
    else:
        yield item


def mapped(change: Callable[[Any], Any], item: Any) -> Any:
    if isinstance(item, list):
        return [mapped(change, one) for one in item]
    if isinstance(item, tuple) and not isinstance(item, torch.Size):
        return tuple(mapped(change, one) for one in item)
    return change(item)


def remake(wanted: Block) -> None:
    """Runs the recipes that lead to `wanted`, nearest sources first, with the ops, types and random numbers of the forward pass."""
    passing: list[Block] = []
    stack = [wanted]
    # Below autograd and autocast, as the ops ran that were watched: some look at the mode themselves.
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        while stack:
            block = stack[-1]
            if block.there:
                stack.pop()
                continue
            missing = [source for step in block.recipe for source in step.reads if not source.there]
            if missing:
                stack += missing
                continue
            stack.pop()
            _run(block)
            if block.passing:
                passing.append(block)
    for block in passing:
        block.forget()


def _run(block: Block) -> None:
    storage: UntypedStorage | None = None
    if not block.recipe:
        raise RuntimeError(f"a saved tensor of {block.size} bytes is neither on the device nor outside, and has no recipe")
    for step in block.recipe:
        result = step.run(storage)
        if storage is None:
            results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
            for index, made in step.made:
                other = made()
                if other is block:
                    storage = results[index].untyped_storage()
                elif other is not None and not other.passing and not other.there and other.recipe == [step]:
                    other.fill(results[index].untyped_storage())
    assert storage is not None
    block.fill(storage)
