"""One recorded forward and backward pass: ops, storages, saved tensors, and when backward needed them.

Positions count the start of the pass (0), the ops of forward, then the autograd nodes of backward that unpack a saved tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trainyard.live.paging.blocks import leaves
from trainyard.live.paging.operators import has_own_generator, is_repeatable, preserved_arguments, written_arguments

OUTSIDE = -1


@dataclass(slots=True)
class OpRecord:
    """One aten op of forward. `reads` and `wrote` name blocks; a read also counts the ops that had changed the block before."""

    function: Any
    position: int
    reads: list[tuple[int, int]]
    created: list[tuple[int, int]]
    """(index among the resulting tensors, block)"""
    wrote: list[int]
    repeatable: bool
    """Whether a second call gives the same results."""
    layer: str
    externals: list[tuple[weakref.ref[Tensor], int]]

    @property
    def name(self) -> str:
        return str(self.function._schema.name.partition("::")[2])


@dataclass(slots=True)
class BlockRecord:
    """One storage: the op that made it, those that changed it in place, its uses in backward, and when its owner let it go."""

    size: int
    created_at: int
    layer: str
    weak: StorageWeakRef | None
    chain: list[int] = field(default_factory=list)
    freed_at: int | None = None
    saves: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Save:
    """One tensor that autograd saved."""

    block: int
    dtype: torch.dtype
    size: torch.Size
    position: int
    ops: int
    """Ops recorded before it."""


@dataclass(slots=True)
class Trace:
    """Filled by `Recorder`."""

    ops: list[OpRecord] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    unpacked_at: list[int] = field(default_factory=list)
    """Position of backward at which each saved tensor was first unpacked; 0: never."""

    @property
    def forward(self) -> int:
        """Positions of forward."""
        return len(self.ops) + 1

    @property
    def positions(self) -> int:
        return self.forward + len(self.nodes)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for passes that a plan may be shared between."""
        return (tuple((save.block, save.dtype, save.size) for save in self.saves), tuple(op.function for op in self.ops))

    def labels(self) -> Iterator[str]:
        yield "start"
        yield from (f"{op.layer}: {op.name}" for op in self.ops)
        yield from (f"backward: {name}" for name in self.nodes)


class Recorder:
    """Records one pass."""

    def __init__(self, layers: dict[int, str], smallest: int) -> None:
        self.trace = Trace()
        self.layers, self.smallest = layers, smallest
        self.layer = ""
        self.numbers: dict[int, int] = {}
        self.alive: set[int] = set()
        self.node: Any = None
        self.unpacked_at: list[int] = self.trace.unpacked_at

    @property
    def position(self) -> int:
        return len(self.trace.ops)

    def _block(self, tensor: Tensor, created_at: int) -> int:
        """The number of the tensor's storage; a storage not seen before gets the next one."""
        storage = tensor.untyped_storage()
        number = self.numbers.get(storage._cdata)
        if number is None:
            number = self.numbers[storage._cdata] = len(self.trace.blocks)
            self.trace.blocks.append(BlockRecord(storage.nbytes(), created_at, self.layer, StorageWeakRef(storage)))
            if storage.nbytes() >= self.smallest:
                self.alive.add(number)
        return number

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        trace, number = self.trace, len(self.trace.ops)
        reads, externals = [], []
        for leaf in _tensors((arguments, keywords)):
            address = leaf.untyped_storage()._cdata
            self.layer = self.layers.get(address, self.layer)
            if address in self.numbers:
                block = self.numbers[address]
                reads.append((block, len(trace.blocks[block].chain)))
            elif not any(leaf is arguments[position] for position in preserved_arguments(function)):
                externals.append((weakref.ref(leaf), 0 if leaf.is_inference() else leaf._version))
        wrote = []
        outside = False
        for key in written_arguments(function):
            item: Any = None
            if isinstance(key, str):
                item = keywords.get(key)
            elif key < len(arguments):
                item = arguments[key]
            for leaf in _tensors(item):
                block = self.numbers.get(leaf.untyped_storage()._cdata, OUTSIDE)
                outside |= block == OUTSIDE
                if block != OUTSIDE:
                    wrote.append(block)
                    trace.blocks[block].chain.append(number)
        created = []
        for position, leaf in enumerate(item for item in leaves(result) if isinstance(item, Tensor)):
            if leaf.layout is torch.strided and leaf.untyped_storage()._cdata not in self.numbers:
                if any(leaf.untyped_storage()._cdata == argument.untyped_storage()._cdata for argument in _tensors(arguments)):
                    continue  # a view of something from outside
                block = self._block(leaf, number + 1)
                created.append((position, block))
                trace.blocks[block].chain.append(number)
        repeatable = (
            is_repeatable(function)
            and not has_own_generator(arguments, keywords)
            and not (outside and not preserved_arguments(function))
        )
        trace.ops.append(OpRecord(function, number + 1, reads, created, wrote, repeatable, self.layer, externals))

    def saved(self, tensor: Tensor) -> int:
        """Number of the storage of a tensor that autograd saves; its producer may be unknown."""
        number = self._block(tensor, self.position)
        self.trace.blocks[number].saves.append(len(self.trace.saves))
        return number

    def save(self, block: int, tensor: Tensor) -> int:
        trace = self.trace
        trace.saves.append(Save(block, tensor.dtype, tensor.size(), self.position, len(trace.ops)))
        self.unpacked_at.append(0)
        return len(trace.saves) - 1

    def note_freed(self) -> None:
        """Notes which storages have been freed by now: only autograd needed them."""
        position = self.position
        for number in list(self.alive):
            record = self.trace.blocks[number]
            if record.weak is not None and record.weak.expired():
                record.freed_at = position
                self.alive.discard(number)

    def unpack(self, number: int, node: Any) -> int:
        """The position of backward in which a saved tensor is unpacked."""
        trace = self.trace
        if node is not self.node or not trace.nodes:
            self.node = node
            trace.nodes.append(node.name() if node is not None else "")
        position = trace.positions - 1
        if number >= 0:
            save = trace.saves[number]
            trace.unpacked_at[number] = trace.unpacked_at[number] or position
            if save.block != OUTSIDE:
                trace.blocks[save.block].uses.append(position)
        return position

    def check_inputs_unchanged(self) -> None:
        """At the end of backward: an op whose external input has been changed in place cannot be repeated."""
        for op in self.trace.ops:
            for reference, version in op.externals:
                tensor = reference()
                if tensor is not None and not tensor.is_inference() and tensor._version != version:
                    op.repeatable = False
            op.externals = []

    def finish(self) -> Trace:
        """The trace, without references into this pass."""
        for block in self.trace.blocks:
            block.weak = None
        self.numbers.clear()
        self.node = None
        return self.trace


def _tensors(arguments: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor) and leaf.layout is torch.strided)
