"""One storage under the overlay: on the device, in the store, or recomputed by a recipe; and the handles that autograd keeps.

A storage is the unit that is kept, sent or recomputed, so tensors that share one (views, a tensor saved twice) move once and come
back with the strides and the offset they had. Everything is owned by handles and recipes: when the graph is freed, so are memory,
buffers and slots of the store.
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


def changed_in_place(subject: str, version: int, expected: int) -> RuntimeError:
    """The error that autograd raises for a saved tensor that was changed in place."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{subject} is at version {version}, expected version {expected}"
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


class ResidentBytes:
    """Bytes of managed storages that the overlay holds on the device, now and at most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


class Block:
    """One storage. `version` is the content's, by torch's counter of changes in place."""

    __slots__ = (
        "__weakref__",
        "arriving",
        "leaving",
        "number",
        "original",
        "pending",
        "readers",
        "recipe",
        "resident",
        "size",
        "storage",
        "temporary",
        "ticket",
        "version",
        "weak",
    )  # fmt: skip

    def __init__(self, storage: UntypedStorage, number: int | None, resident: ResidentBytes) -> None:
        self.weak = StorageWeakRef(storage)  # also keeps the storage's address from being used for another one
        self.number, self.resident, self.size = number, resident, storage.nbytes()
        self.version = 0
        self.original: Tensor | None = None  # the tensor itself, without its history: holds memory and counter
        self.storage: UntypedStorage | None = None
        self.ticket: Ticket | None = None
        self.leaving = self.arriving = False
        self.recipe: list[RecipeOp] = []
        self.temporary = False  # not saved by autograd: recomputed only as a source of another block
        self.pending = 0  # handles that have not been unpacked yet
        self.readers = 0  # recipes that read it

    def hold(self, tensor: Tensor) -> None:
        if self.storage is None:
            self.original, self.version = tensor.detach(), tensor._version
            self._take(tensor.untyped_storage())

    def _take(self, storage: UntypedStorage) -> None:
        self.storage = storage
        self.resident.add(self.size)

    def _drop(self) -> None:
        if self.storage is not None:
            self.original = self.storage = None
            self.resident.add(-self.size)

    def send(self, store: Store) -> None:
        """Starts the copy out; the memory stays until `leave`."""
        if self.ticket is None and self.storage is not None:
            self.check()
            self.ticket, self.leaving = store.put(self.storage), True

    def leave(self) -> None:
        if self.leaving and self.ticket is not None:
            self.leaving = False
            self.ticket.wait_for_copy_out()
            self.check()  # a change under the copy would have spoilt it
            self._drop()

    def fetch(self) -> None:
        """Starts the copy back."""
        if self.storage is None and self.ticket is not None:
            self._take(self.ticket.fetch())
            self.arriving = True

    @property
    def is_available(self) -> bool:
        return self.storage is not None or self.ticket is not None

    def check(self) -> None:
        if self.original is not None and self.original._version != self.version:
            subject = f"a saved tensor of {self.size} bytes, shape {tuple(self.original.shape)},"
            raise changed_in_place(subject, self.original._version, self.version)

    def present(self) -> UntypedStorage:
        """The storage, for use right now."""
        if self.storage is None:
            if self.ticket is None:
                recompute(self)
            else:
                self.fetch()
        if self.arriving and self.ticket is not None:
            self.arriving = False
            self.ticket.wait_for_copy_in()
        self.check()
        assert self.storage is not None
        return self.storage

    def fill(self, storage: UntypedStorage) -> None:
        if self.storage is None:
            self._take(storage)

    def used(self) -> None:
        """One handle was unpacked. After the last, memory that can be restored is freed (a retained graph may need it again)."""
        self.pending -= 1
        if self.pending <= 0 and not self.readers:
            self.forget()

    def forget(self) -> None:
        if self.original is None and not self.leaving and (self.ticket is not None or self.recipe):
            self._settle()
            self._drop()

    def _settle(self) -> None:
        """Waits for copies in flight, after which the memory may be freed."""
        if self.ticket is not None:
            if self.leaving:
                self.ticket.wait_for_copy_out()
            if self.arriving:
                self.ticket.wait_for_copy_in()
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

    __slots__ = ("block", "geometry", "is_used", "number")

    def __init__(self, block: Block, tensor: Tensor, number: int) -> None:
        self.block, self.geometry, self.number, self.is_used = block, Geometry.of(tensor), number, False
        block.pending += 1

    def tensor(self) -> Tensor:
        tensor = self.geometry.on(self.block.present())
        if not self.is_used:
            self.is_used = True
            self.block.used()
        elif self.block.pending <= 0 and not self.block.readers:
            self.block.forget()
        return tensor


class SavedTensor:
    """What autograd keeps for a tensor that stays on the device: the tensor without its history, checked for in-place changes."""

    __slots__ = ("number", "saved", "version")

    def __init__(self, tensor: Tensor, number: int = -1) -> None:
        self.saved, self.number = tensor.detach(), number
        self.version = -1 if tensor.is_inference() else tensor._version

    def tensor(self) -> Tensor:
        if self.version >= 0 and self.saved._version != self.version:
            raise changed_in_place(f"a saved tensor of shape {tuple(self.saved.shape)}", self.saved._version, self.version)
        return self.saved


@dataclass(frozen=True, slots=True)
class BlockArgument:
    """An argument of an op that lies in a block."""

    block: Block
    geometry: Geometry
    version: int


@dataclass(frozen=True, slots=True)
class External:
    """An argument outside all blocks: a parameter or an input."""

    tensor: Tensor
    version: int


@dataclass(frozen=True, slots=True)
class InPlaceTarget:
    """The argument that an op changes in place: the block being recomputed."""

    geometry: Geometry


class RecipeOp:
    """One op of a recipe: function and arguments, the random state before it, and the blocks of its results."""

    __slots__ = ("__weakref__", "arguments", "function", "keywords", "random", "reads", "results")

    def __init__(self, function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.random: tuple[torch.Generator, Tensor] | None = None
        self.results: list[tuple[int, weakref.ref[Block]]] = []
        self.reads = tuple(leaf.block for leaf in leaves((arguments, keywords)) if isinstance(leaf, BlockArgument))
        for block in self.reads:
            block.readers += 1

    def __del__(self) -> None:
        for block in self.reads:
            block.readers -= 1

    def run(self, storage: UntypedStorage | None) -> Any:
        """Repeats the op; `storage` holds the block being recomputed, as far as it is."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, InPlaceTarget):
                assert storage is not None
                return leaf.geometry.on(storage)
            if isinstance(leaf, BlockArgument):
                storage_read = leaf.block.present()
                if leaf.version != leaf.block.version:
                    subject = f"a tensor of shape {tuple(leaf.geometry.size)}, from which a saved one is made again,"
                    raise changed_in_place(subject, leaf.block.version, leaf.version)
                return leaf.geometry.on(storage_read)
            if isinstance(leaf, External):
                if leaf.version >= 0 and leaf.tensor._version != leaf.version:
                    subject = f"a tensor of shape {tuple(leaf.tensor.shape)}, from which a saved one is made again,"
                    raise changed_in_place(subject, leaf.tensor._version, leaf.version)
                return leaf.tensor
            return leaf

        arguments = [mapped(value, item) for item in self.arguments]
        keywords = {name: mapped(value, item) for name, item in self.keywords.items()}
        with random_state_of(self.random):
            return self.function(*arguments, **keywords)


@contextmanager
def random_state_of(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    """Sets the generator to that state inside the block, and back afterwards."""
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
        for element in item:
            yield from leaves(element)
    elif isinstance(item, dict):
        for element in item.values():
            yield from leaves(element)
    else:
        yield item


def mapped(change: Callable[[Any], Any], item: Any) -> Any:
    if isinstance(item, list):
        return [mapped(change, element) for element in item]
    if isinstance(item, tuple) and not isinstance(item, torch.Size):
        return tuple(mapped(change, element) for element in item)
    return change(item)


def recompute(target: Block) -> None:
    """Runs the recipes that `target` needs, sources first, with the ops, types and random numbers of the forward pass."""
    temporary: list[Block] = []
    stack = [target]
    # Below autograd and autocast, where the recorded ops ran; with gradients enabled, since some ops test for it.
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        while stack:
            block = stack[-1]
            if block.is_available:
                stack.pop()
                continue
            missing = [source for step in block.recipe for source in step.reads if not source.is_available]
            if missing:
                stack += missing
                continue
            stack.pop()
            _run(block)
            if block.temporary:
                temporary.append(block)
    for block in temporary:
        block.forget()


def _run(block: Block) -> None:
    storage: UntypedStorage | None = None
    if not block.recipe:
        raise RuntimeError(f"a saved tensor of {block.size} bytes is neither on the device nor outside, and has no recipe")
    for step in block.recipe:
        result = step.run(storage)
        if storage is None:
            results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
            for index, result_block in step.results:
                other = result_block()
                if other is block:
                    storage = results[index].untyped_storage()
                elif other is not None and not other.temporary and not other.is_available and other.recipe == [step]:
                    other.fill(results[index].untyped_storage())
    assert storage is not None
    block.fill(storage)
