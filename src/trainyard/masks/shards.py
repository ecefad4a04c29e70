"""Masks of one device's share of a step: of the whole step's zeros those that lie in the samples and features that it has.

A node hands its device the step of one of several (`mapping.parallel.transform`), while masks are those of the whole step. Products
of both steps correspond one to one, in order, and their shapes say what was cut: the samples of A and G under data parallelism;
under model parallelism the output features of W and G (A is gathered, and whole), or whole groups of a convolution. So an operand
of the share has the bits that the same operand of the whole has at those rows and columns. Tensors that exchanges make have numbers
of their own, so every operand goes by the name that the share has for it (`A#812`), unrolled recurrent layers (`unrolled`)
included. A layer whose gates stand below each other in one matrix is cut as that matrix is.

Devices are alike in their zeros only on average. Where one of them is simulated for all, it is the first.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Convolution, Masks, MaskSource, MatMul, Op, Phase, Step, Structured, TensorKey
from trainyard.ir.letters import PLACES, letter_of, operand_order, own_name, shape_in
from trainyard.ir.protocols import KnowsDensity, KnowsOperands, KnowsStructure
from trainyard.masks.lookup import mask_of
from trainyard.masks.views import shape_of, unpacked

Bits = npt.NDArray[np.bool_]
Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of an operand: its axes on the whole step and on the share, the first `rows` of them walked by the matrix's rows.

    Device d has the d-th piece of every axis that was cut; where pieces do not divide an axis, the last ones overlap.

    >>> Cut(whole=(4, 6), part=(2, 6), rows=1, device=1).rows_of(recorded=4)
    array([2, 3])
    >>> Cut(whole=(3, 4, 6), part=(3, 2, 6), rows=2, device=1).rows_of(recorded=12)  # time first, samples second
    array([ 2,  3,  6,  7, 10, 11])
    """

    whole: Grid
    part: Grid
    rows: int
    device: int

    @classmethod
    def between(cls, whole: Grid, part: Grid, rows: int, device: int) -> Cut:
        """With as few axes as will do, so that equal pieces are equal however their tensors are seen.

        >>> Cut.between((1, 8, 4), (1, 2, 4), rows=2, device=0) == Cut.between((8, 1, 2, 2), (2, 1, 2, 2), rows=2, device=0)
        True
        """
        first, second = _fewest(whole[:rows], part[:rows]), _fewest(whole[rows:], part[rows:])
        return cls(first[0] + second[0], first[1] + second[1], len(first[0]), device)

    @property
    def starts(self) -> Grid:
        return tuple(min(self.device * part, whole - part) for whole, part in zip(self.whole, self.part, strict=True))

    @property
    def nothing(self) -> bool:
        return self.whole == self.part

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a mask of this shape is one of the whole operand, of all its rows or of fewer that are repeated."""
        across, rows, elements = math.prod(self.whole[self.rows :]), math.prod(self.whole[: self.rows]), math.prod(shape)
        return elements > 0 and elements % across == 0 and elements // across <= rows

    def rows_of(self, recorded: int) -> npt.NDArray[np.int64]:
        """The recorded rows that a device sees in its own: the whole step repeats them; no longer than it takes to repeat."""
        walked = [np.arange(start, start + part) for start, part in zip(self.starts, self.part[: self.rows], strict=False)]
        found = np.zeros(1, dtype=np.int64)
        for axis, index in enumerate(walked):
            found = (found[:, None] * self.whole[axis] + index).reshape(-1)
        found %= recorded
        if len(found) % recorded == 0 and np.array_equal(found[recorded:], found[:-recorded]):
            return found[:recorded]
        return found

    def of(self, bits: Bits) -> Bits:
        """(rows, axes of a row)."""
        across = self.whole[self.rows :]
        found = bits.reshape(-1, math.prod(across))
        found = found[self.rows_of(len(found))].reshape(-1, *across)
        pieces = zip(self.starts[self.rows :], self.part[self.rows :], strict=True)
        return found[(slice(None), *(slice(start, start + part) for start, part in pieces))]


def _fewest(whole: Grid, part: Grid) -> tuple[Grid, Grid]:
    """An axis that is not cut is walked with the one before it."""
    axes: list[tuple[int, int]] = []
    for size, mine in zip(whole, part, strict=True):
        if axes and (size == mine or axes[-1] == (1, 1)):
            size, mine = axes[-1][0] * size, axes.pop()[1] * mine
        axes.append((size, mine))
    return tuple(size for size, _ in axes), tuple(mine for _, mine in axes)


@dataclass(frozen=True)
class Shard:
    """A piece of one mask. `shape` is that of a share of the operand, but for its rows where fewer were recorded."""

    source: MaskSource
    key: TensorKey
    cut: Cut
    wanted: tuple[int, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        recorded = shape_of(self.source, self.key)
        if self.cut.nothing:
            return recorded
        if not self.cut.rows:
            return self.wanted
        across = math.prod(self.cut.whole[self.cut.rows :])
        rows = len(self.cut.rows_of(math.prod(recorded) // across))
        return (rows, *self.wanted[1:])

    def bits(self) -> Bits:
        found = unpacked(self.source, self.key)
        return found if self.cut.nothing else np.ascontiguousarray(self.cut.of(found)).reshape(self.shape)

    @property
    def said(self) -> tuple[Any, ...]:
        return self.key, self.cut.whole, self.cut.part, self.cut.rows, self.wanted


@dataclass(frozen=True, eq=False)
class Shards:
    """A mask source for the step of one device; nothing is looked up before it is asked for."""

    masks: Masks
    whole: Step
    part: Step
    device: int = 0

    @cached_property
    def _told(self) -> tuple[dict[TensorKey, Shard], tuple[str, ...]]:
        """The masks of the share by name; layers with masks that cannot be cut."""
        found: dict[TensorKey, Shard] = {}
        left: dict[str, None] = {}
        ambiguous: set[TensorKey] = set()
        for whole, part, side in _operands(self.whole, self.part):
            letter = letter_of(self.part, part, side)
            if whole is None:
                left.update({part.layer: None} if letter else {})
                continue
            known = mask_of(self.whole, whole, side, letter, self.masks) if letter else None
            if known is None:
                continue
            key = (part.layer, part.call, own_name(self.part, part, side) or letter)
            cut = _cut(self.whole, whole, self.part, part, side, self.device)
            if cut is None or not cut.fits(shape_of(*known)):
                left[part.layer] = None
                continue
            shard = Shard(*known, cut, shape_in(self.part, part, side))
            if found.setdefault(key, shard).said != shard.said:
                ambiguous.add(key)
        left.update({key[0]: None for key in ambiguous})
        return {key: shard for key, shard in found.items() if key not in ambiguous}, tuple(left)

    @property
    def specs(self) -> Mapping[TensorKey, Shard]:
        return self._told[0]

    @cached_property
    def digest(self) -> str:
        said = [(key, *shard.said) for key, shard in self.specs.items()]
        return hashlib.sha256(repr((self.masks.digest, self.device, said)).encode()).hexdigest()

    def spec(self, key: TensorKey) -> Shard:
        if key not in self.specs:
            known = ("/".join(map(str, k)) for k in self.specs)
            raise UnknownName("mask", "/".join(map(str, key)), known, f"masks of one device of step {self.part.name!r}")
        return self.specs[key]

    def bits(self, key: TensorKey) -> Bits:
        return self.spec(key).bits()

    def density(self, key: TensorKey) -> float:
        """Share of non-zero elements: the source's own where nothing is cut off, else counted."""
        shard = self.spec(key)
        if shard.cut.nothing and isinstance(shard.source, KnowsDensity):
            return shard.source.density(shard.key)
        return float(unpacked(self, key).mean())

    def structure(self, key: TensorKey, phase: Phase) -> Structured | None:
        """Of a mask that every device has whole; a piece of one may break its groups."""
        shard = self.specs.get(key)
        if shard is None or not shard.cut.nothing:
            return None
        return shard.source.structure(shard.key, phase) if isinstance(shard.source, KnowsStructure) else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a result must say, if anybody asked for masks at all."""
        if "_told" not in self.__dict__ or not self._told[1]:
            return ()
        left = self._told[1]
        named = ", ".join([*left[:3], *(["..."] if len(left) > 3 else [])])
        return (
            f"masks of {len(left)} layer{'s' * (len(left) > 1)} cannot be divided among devices and count as dense there: {named}",
        )


@overload
def shards(masks: None, whole: Step, part: Step, *, device: int = 0) -> None: ...
@overload
def shards(masks: Masks, whole: Step, part: Step, *, device: int = 0) -> Masks: ...
@overload
def shards(masks: Masks | None, whole: Step, part: Step, *, device: int = 0) -> Masks | None: ...
def shards(masks: Masks | None, whole: Step, part: Step, *, device: int = 0) -> Masks | None:
    """What masks of a whole step are to `part`, the step of one device; `device` is its number.

    >>> import trainyard as ty
    >>> from trainyard.mapping import parallel
    >>> step = ty.zoo.load("linear", batch=8)
    >>> masks = ty.generated_masks(step, {"A": 0.5})
    >>> one = shards(masks, step, parallel.data(step, devices=4), device=3)
    >>> [spec.shape for spec in one.specs.values()][0][0], masks.spec(next(iter(masks.specs))).shape[0]
    (2, 8)
    """
    if device < 0:
        raise BadInput(f"shards: device is a number from 0 on, got {device!r}")
    if masks is None or part is whole or isinstance(masks, KnowsOperands):  # shares of zeros are those of every device
        return masks
    return _remembered(_Question(masks, whole, part, device))


def notes_of(masks: Masks | None) -> tuple[str, ...]:
    return masks.notes if isinstance(masks, Shards) else ()


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """Steps and masks by identity: comparing them costs more than cutting them."""

    masks: Masks
    whole: Step
    part: Step
    device: int

    @property
    def _same(self) -> tuple[int, int, int, int]:
        return id(self.masks), id(self.whole), id(self.part), self.device

    def __hash__(self) -> int:
        return hash(self._same)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and other._same == self._same


@lru_cache(maxsize=8)
def _remembered(question: _Question) -> Shards:
    """Designs that share a step share its masks, and what was unpacked of them."""
    return Shards(question.masks, question.whole, question.part, question.device)


def _operands(whole: Step, part: Step) -> Iterator[tuple[Op | None, Op, int]]:
    """Operands of the share's products beside the product of the whole step that they are a part of, if there is one."""
    waiting: dict[tuple[Any, ...], deque[Op]] = {}
    for op in whole.ops:
        if op.is_product:
            waiting.setdefault(_identity(op), deque()).append(op)
    for op in part.ops:
        if op.is_product:
            alike = waiting.get(_identity(op))
            partner = alike.popleft() if alike else None
            yield partner, op, 0
            yield partner, op, 1


def _identity(op: Op) -> tuple[Any, ...]:
    return op.layer, op.call, op.phase, op.recompute, op.name, op.letters, type(op.body)


def _cut(whole: Step, op: Op, part: Step, mine: Op, side: int, device: int) -> Cut | None:
    """None where the share has more of the operand than there is, or another operand."""
    have, want = shape_in(whole, op, side), shape_in(part, mine, side)
    if isinstance(op.body, Convolution):
        assert isinstance(mine.body, Convolution)
        place = PLACES[op.body.product][side]
        axis, groups = (0 if place == "W" else 1), (op.body.groups if op.body.groups == mine.body.groups else 1)
        # a cut that leaves every group on every device is one of each group's channels
        grids = [(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]) for shape in (have, want)]
        found = Cut.between(grids[0], grids[1], 0 if place == "W" else 1, device)
    else:
        assert isinstance(mine.body, MatMul)
        walked = _rows(whole, op, mine.body, side, have, want)
        found = Cut.between((*walked[0], have[1]), (*walked[1], want[1]), len(walked[0]), device)
    return found if all(a <= b for a, b in zip(found.part, found.whole, strict=True)) else None


def _rows(whole: Step, op: Op, mine: MatMul, side: int, have: Grid, want: Grid) -> tuple[Grid, Grid]:
    """The axes that the rows of a matrix product's operand walk: products, or the axes of its tensor where samples are one of them.

    Rows of A and G are cut in samples, which need not come first (a recurrent layer reads time first). Else the first ones are cut.
    """
    body = op.body
    assert isinstance(body, MatMul)
    if have[0] != want[0] and letter_of(whole, op, side) != "W":
        for shape, samples in _seen(whole, op, side):
            if shape[-1] == have[1] and math.prod(shape[:-1]) == have[0] and shape[samples] * want[0] % have[0] == 0:
                part = shape[samples] * want[0] // have[0]
                return shape[:-1], (*shape[:samples], part, *shape[samples + 1 : -1])
    count = body.count if body.count == mine.count and have[0] % body.count == want[0] % body.count == 0 else 1
    return (count, have[0] // count), (count, want[0] // count)


def _seen(step: Step, op: Op, side: int) -> Iterator[tuple[Grid, int]]:
    """Shapes in which an operand is seen, the product's own first, that tell its samples apart; and which axis those are."""
    position = operand_order(step, op)[side]
    tensor = op.inputs[position] if len(op.inputs) > position else None
    while tensor is not None:
        spec = step.tensors[tensor]
        samples = [axis for axis, slope in enumerate(spec.slope) if slope]
        if len(samples) == 1 and samples[0] < len(spec.shape) - 1 and spec.shape[samples[0]] == step.batch:
            yield spec.shape, samples[0]
        tensor = spec.view_of
