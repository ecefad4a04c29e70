"""One forward and backward pass as it was watched: ops, storages, what was saved and when it was asked for again.

Positions count the start of the pass (0), the ops of forward, then the autograd nodes of backward that ask for something saved.
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
from trainyard.live.paging.operators import can_be_called_again, own_generator, spared, written

OUTSIDE = -1


@dataclass(slots=True)
class OpRecord:
    """One aten op of forward. `reads` and `wrote` name blocks; a read says how many ops had changed the block in place by then."""

    function: Any
    position: int
    reads: list[tuple[int, int]]
    made: list[tuple[int, int]]
    """(place among the resulting tensors, block)"""
    wrote: list[int]
    again: bool
    """May be called again, as far as the op itself is concerned."""
    layer: str
    givens: list[tuple[weakref.ref[Tensor], int]]

    @property
    def name(self) -> str:
        return str(self.function._schema.name.partition("::")[2])


@dataclass(slots=True)
class BlockRecord:
    """One storage: the op that made it, those that changed it in place, its uses in backward, and when its owner let it go."""

    size: int
    made: int
    layer: str
    weak: StorageWeakRef | None
    chain: list[int] = field(default_factory=list)
    dead: int | None = None
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
    asked: list[int] = field(default_factory=list)
    """Position of backward at which each save was first asked for; 0: never."""

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
    """Watches one pass."""

    def __init__(self, layers: dict[int, str], smallest: int) -> None:
        self.trace = Trace()
        self.layers, self.smallest = layers, smallest
        self.layer = ""
        self.numbers: dict[int, int] = {}
        self.alive: set[int] = set()
        self.node: Any = None
        self.asked: list[int] = self.trace.asked

    @property
    def position(self) -> int:
        return len(self.trace.ops)

    def _block(self, tensor: Tensor, made: int) -> int:
        """The number of the tensor's storage; a storage not seen before gets the next one."""
        storage = tensor.untyped_storage()
        number = self.numbers.get(storage._cdata)
        if number is None:
            number = self.numbers[storage._cdata] = len(self.trace.blocks)
            self.trace.blocks.append(BlockRecord(storage.nbytes(), made, self.layer, StorageWeakRef(storage)))
            if storage.nbytes() >= self.smallest:
                self.alive.add(number)
        return number

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        trace, number = self.trace, len(self.trace.ops)
        reads, givens = [], []
        for leaf in _tensors((arguments, keywords)):
            address = leaf.untyped_storage()._cdata
            self.layer = self.layers.get(address, self.layer)
            if address in self.numbers:
                block = self.numbers[address]
                reads.append((block, len(trace.blocks[block].chain)))
            elif not any(leaf is arguments[place] for place in spared(function)):
                givens.append((weakref.ref(leaf), 0 if leaf.is_inference() else leaf._version))
        wrote = []
        outside = False
        for key in written(function):
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
        made = []
        for place, leaf in enumerate(one for one in leaves(result) if isinstance(one, Tensor)):
            if leaf.layout is torch.strided and leaf.untyped_storage()._cdata not in self.numbers:
                if any(leaf.untyped_storage()._cdata == given.untyped_storage()._cdata for given in _tensors(arguments)):
                    continue  # a view of something from outside
                block = self._block(leaf, number + 1)
                made.append((place, block))
                trace.blocks[block].chain.append(number)
        again = can_be_called_again(function) and not own_generator(arguments, keywords) and not (outside and not spared(function))
        trace.ops.append(OpRecord(function, number + 1, reads, made, wrote, again, self.layer, givens))

    def saved(self, tensor: Tensor) -> int:
        """Number of the storage of a tensor that autograd saves; its producer may be unknown."""
        number = self._block(tensor, self.position)
        self.trace.blocks[number].saves.append(len(self.trace.saves))
        return number

    def save(self, block: int, tensor: Tensor) -> int:
        trace = self.trace
        trace.saves.append(Save(block, tensor.dtype, tensor.size(), self.position, len(trace.ops)))
        self.asked.append(0)
        return len(trace.saves) - 1

    def bury(self) -> None:
        """Notes which storages are gone by now: nobody but autograd wanted them."""
        position = self.position
        for number in list(self.alive):
            record = self.trace.blocks[number]
            if record.weak is not None and record.weak.expired():
                record.dead = position
                self.alive.discard(number)

    def ask(self, number: int, node: Any) -> int:
        """Position of backward in which a saved tensor is asked for."""
        trace = self.trace
        if node is not self.node or not trace.nodes:
            self.node = node
            trace.nodes.append(node.name() if node is not None else "")
        position = trace.positions - 1
        if number >= 0:
            save = trace.saves[number]
            trace.asked[number] = trace.asked[number] or position
            if save.block != OUTSIDE:
                trace.blocks[save.block].uses.append(position)
        return position

    def look_back(self) -> None:
        """At the end of backward: an op whose input from outside was changed by then cannot be called again."""
        for op in self.trace.ops:
            for reference, version in op.givens:
                given = reference()
                if given is not None and not given.is_inference() and given._version != version:
                    op.again = False
            op.givens = []

    def finish(self) -> Trace:
        """The trace without what ties it to this pass."""
        for block in self.trace.blocks:
            block.weak = None
        self.numbers.clear()
        self.node = None
        return self.trace


def _tensors(arguments: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor) and leaf.layout is torch.strided)
