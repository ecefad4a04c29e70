"""Blocks of Works that run for a slice of the batch at a time (fused-layer tiling); `row_blocks` has those of bands of rows.

Tensors of samples are cut into equal slices, so what goes from one Work of a block to the next is small enough to stay on chip.
What all samples share is either kept on chip during the block (`weights`) or read again for every slice; sums over the batch
(dW, bias gradients) are kept (`sums`), or written after every slice and read again for the next.

A Work can be cut if its results of a sample need no other sample. Batch normalisation needs all of them and ends a block, in both
directions; so do exchanges, updates, and readers of a sum over the batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal, Protocol

from trainyard.ir import Convolution, Copy, ElementWise, Gather, MatMul, Op, Reduction, Step, Work
from trainyard.ir.ops import dimensions
from trainyard.mapping.bands import Band
from trainyard.mapping.between_layers.accesses import Tensor
from trainyard.mapping.demand import OnChip

Kind = Literal["samples", "shared", "other"]
PER_SAMPLE = ("softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm", "pool", "mean", "sum", "max", "min", "nll_loss")
"""Reductions of each sample alone, or sums over samples."""
ACROSS_SAMPLES = ("batch_norm", "cum")
LONGEST = 12
"""Most Works of a block."""


def _proportional(numbers: Sequence[int], slope: Sequence[int], batch: int) -> Kind:
    """`samples`: one number grows with the batch, and is 0 without it; `shared`: none grows."""
    growing = [(number, by) for number, by in zip(numbers, slope, strict=False) if by]
    if not growing:
        return "shared"
    return "samples" if len(growing) == 1 and growing[0][0] == growing[0][1] * batch else "other"


@dataclass(frozen=True)
class Cuttable:
    """Which tensors and Works of a step can be cut into slices of the batch."""

    step: Step

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(_proportional(spec.shape, spec.slope, self.step.batch) for spec in self.step.tensors)

    def kind(self, tensor: int) -> Kind:
        """Of a view: as its memory, or it cannot be cut."""
        own, base = self.kinds[tensor], self.kinds[self.step.base(tensor)]
        return own if own == base else "other"

    def work(self, work: Work) -> bool:
        return work.grouping in ("single", "chain") and all(self._op(self.step.ops[index]) for index in work.ops)

    def _op(self, op: Op) -> bool:
        inputs, outputs = [self.kind(t) for t in op.inputs], [self.kind(t) for t in op.outputs]
        if "other" in (*inputs, *outputs) or "samples" not in (*inputs, *outputs) or not outputs or op.routing is not None:
            return False
        grows = _proportional(dimensions(op.body), op.slope, self.step.batch) == "samples"
        match op.body:
            case MatMul() | Convolution():
                return grows
            case ElementWise() | Copy():
                return grows and "shared" not in outputs
            case Reduction():
                function = op.body.function
                return not any(word in function for word in ACROSS_SAMPLES) and any(word in function for word in PER_SAMPLE)
            case Gather():
                return not op.body.scatter and "shared" not in outputs
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Part:
    """So many slices of a block in which a Work finds the same on chip, and takes as many samples, or rows of each."""

    times: int
    on_chip: OnChip
    samples: int
    band: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Works `first` to `last`, slice after slice: equal parts of the batch, or of each sample so many `bands` of rows."""

    first: int
    last: int
    slices: int
    weights: bool
    sums: bool
    bands: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor inside a block: the Works that use it, and whether it is used after the block, begins whole, is written in it."""

    tensor: Tensor
    kind: Kind
    works: tuple[int, ...]
    needed_after: bool
    whole: bool
    written: bool


class Blocks:
    """The tensors of a step as blocks of its Works use them, in slices of the batch."""

    def __init__(self, step: Step, works: Sequence[Work], tensors: Sequence[Tensor]) -> None:
        cuttable = Cuttable(step)
        self.step, self.tensors = step, tensors
        self._prepare(cuttable.kinds, [cuttable.work(work) for work in works])

    def _prepare(self, kinds: Sequence[Kind], can: list[bool]) -> None:
        self.kinds, self.can = kinds, can
        self.at: list[list[int]] = [[] for _ in can]
        for number, tensor in enumerate(self.tensors):
            for access in tensor.accesses:
                self.at[access.work].append(number)
                if access.in_dram:
                    self.can[access.work] = False

    def uses(self, first: int, last: int) -> list[Use] | None:
        """The tensors of Works `first` to `last`; None where these cannot run slice by slice."""
        if not all(self.can[first : last + 1]):
            return None
        found: list[Use] = []
        for number in dict.fromkeys(number for work in range(first, last + 1) for number in self.at[work]):
            tensor = self.tensors[number]
            inside = [access for access in tensor.accesses if first <= access.work <= last]
            kind = self.kinds[tensor.base]
            begin = inside[0]
            new = begin is tensor.accesses[0] and not tensor.lasts and not begin.read_bytes
            whole = begin.whole_read or begin.whole_write or new
            after = tensor.lasts or any(access.work > last for access in tensor.accesses) or not any(a.read_bytes for a in inside)
            written = any(access.write_bytes for access in inside)
            use = Use(tensor, kind, tuple(access.work for access in inside), after, whole, written)
            if kind == "other" or (kind == "shared" and use.written and any(access.read_bytes for access in inside)):
                return None  # a sum over the batch is complete after the last slice only
            if kind == "shared" and use.written and len(inside) > 1:
                return None
            found.append(use)
        return found

    def linked(self, first: int, last: int) -> bool:
        """Whether the last Work reads a tensor of samples that an earlier one of the block wrote."""
        for number in self.at[last]:
            tensor = self.tensors[number]
            reads = any(access.work == last and access.read_bytes for access in tensor.accesses)
            written = any(first <= access.work < last and access.write_bytes for access in tensor.accesses)
            if reads and written and self.kinds[tensor.base] == "samples":
                return True
        return False

    def key(self, first: int, last: int) -> Hashable:
        """Equal for blocks that are cut alike, as far as the demands of their Works do not tell."""
        return "batch"

    def cuts(self, first: int, last: int, uses: Sequence[Use], capacity_bytes: int) -> Iterator[Block]:
        """The ways to cut a block that leave room for what they keep, fewest slices first."""
        if self.step.batch < 2:
            return
        for slices, (weights, sums) in product(divisors(self.step.batch), what_stays(uses)):
            block = Block(first=first, last=last, slices=slices, weights=weights, sums=sums)
            if self.most_occupied(block, uses) <= capacity_bytes:
                yield block

    def most_occupied(self, block: Block, uses: Sequence[Use]) -> int:
        """Most scratchpad bytes that a block keeps during one of its Works."""
        return max(self.occupied(block, uses, work) for work in range(block.first, block.last + 1))

    def occupied(self, block: Block, uses: Sequence[Use], work: int) -> int:
        """Scratchpad bytes that a block keeps while one of its Works runs."""
        return sum(self._held(block, use, work) for use in uses)

    def parts(self, block: Block, uses: Sequence[Use]) -> dict[int, tuple[Part, ...]]:
        """What each Work of a block finds on chip, slice by slice."""
        found: dict[int, tuple[Part, ...]] = {}
        turns = [("first", 1), ("middle", block.slices - 2), ("last", 1)]
        for work in range(block.first, block.last + 1):
            occupied, own = self.occupied(block, uses, work), [use for use in uses if work in use.works]
            merged: dict[OnChip, int] = {}
            for turn, times in turns:
                key = self._state(block, own, work, turn, occupied)
                merged[key] = merged.get(key, 0) + times
            samples = self.step.batch // block.slices
            found[work] = tuple(Part(times, key, samples) for key, times in merged.items() if times)
        return found

    def _held(self, block: Block, use: Use, work: int) -> int:
        """Scratchpad bytes of a tensor while a Work of the block runs."""
        if use.kind == "samples":
            stays = use.whole and len(use.works) > 1 and use.works[0] <= work <= use.works[-1]
            return -(-use.tensor.bytes // block.slices) if stays else 0
        return use.tensor.bytes if (block.sums if use.written else block.weights and use.whole) else 0

    def _state(self, block: Block, own: Sequence[Use], work: int, turn: str, occupied: int) -> OnChip:
        """What a Work finds on chip of its own tensors, in the first, a middle or the last slice."""
        read, loaded, results, unwritten, added = set[int](), set[int](), set[int](), set[int](), set[int]()
        for use in own:
            base, place = use.tensor.base, use.works.index(work)
            access = next(access for access in use.tensor.accesses if access.work == work)
            if use.kind == "samples":
                if not use.whole or len(use.works) == 1:
                    continue
                goes_on = place + 1 < len(use.works)
                if access.read_bytes:
                    (read if place else loaded).add(base)
                if access.write_bytes and goes_on:
                    results.add(base)
                    if not use.needed_after or self._written_over(use, place):
                        unwritten.add(base)
            elif use.written:
                if block.sums:
                    results.add(base)
                    unwritten |= {base} if turn != "last" else set()
                elif turn != "first":
                    added.add(base)
            elif block.weights and use.whole:
                (loaded if turn == "first" and not place else read).add(base)
        return OnChip(
            frozenset(read), frozenset(loaded), frozenset(results), frozenset(unwritten), occupied, frozenset(added)
        )  # fmt: skip

    def _written_over(self, use: Use, place: int) -> bool:
        """Whether a later Work of the block writes all of the tensor."""
        return any(access.whole_write for access in use.tensor.accesses if access.work in use.works[place + 1 :])


class Cutter(Protocol):
    """A way to cut blocks of Works into slices: by samples (`Blocks`), or by rows (`RowBlocks`)."""

    can: list[bool]

    def linked(self, first: int, last: int) -> bool: ...

    def uses(self, first: int, last: int) -> list[Use] | None: ...

    def key(self, first: int, last: int) -> Hashable: ...

    def cuts(self, first: int, last: int, uses: Sequence[Use], capacity_bytes: int) -> Iterator[Block]: ...

    def parts(self, block: Block, uses: Sequence[Use]) -> dict[int, tuple[Part, ...]]: ...


def what_stays(uses: Sequence[Use]) -> list[tuple[bool, bool]]:
    """Whether what all slices share stays on chip (weights, sums over slices): all combinations that differ."""
    shared = [use for use in uses if use.kind == "shared"]
    weights = (True, False) if any(not use.written for use in shared) else (False,)
    sums = (True, False) if any(use.written for use in shared) else (False,)
    return [*product(weights, sums)]


def divisors(number: int) -> list[int]:
    """Slices of a batch that are equal, fewest first.

    >>> divisors(12)
    [2, 3, 4, 6, 12]
    """
    return [parts for parts in range(2, number + 1) if number % parts == 0]
