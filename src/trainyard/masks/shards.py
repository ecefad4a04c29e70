"""Masks of one device's share of a step: the masks of the whole step at the samples and features that the device has.

A node gives each device its share of the step (`mapping.parallel.transform`), while masks are recorded for the whole step. Products
of both steps correspond one to one, in order, and their shapes say what was cut: the samples of A and G under data parallelism;
under model parallelism the output features of W and G (A is gathered, and whole), or whole groups of a convolution. An operand of
the share has the bits of the same operand of the whole step at those rows and columns. Every mask is named by the operand's tensor
in the share (`A#812`), because exchanges add tensors to it; unrolled recurrent layers (`recurrent_masks`) too. A layer with all
its gates in one matrix is cut as that matrix is.

The zeros of devices are alike only on average. Where one device is simulated for all, it is the first.
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
from trainyard.ir.protocols import KnowsDensity, KnowsOperands, KnowsStructure
from trainyard.ir.step import CONVOLUTION_LETTERS, letter_of, operand_order, operand_shape, tensor_letter
from trainyard.masks.lookup import mask_of
from trainyard.masks.views import shape_of, unpacked

Bits = npt.NDArray[np.bool_]
Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of an operand: its axes in the whole step and in the share; the first `rows` axes are the rows of its matrix.

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
        """A cut with as few axes as possible, so that equal pieces compare equal whatever the shape of their tensors.

        >>> Cut.between((1, 8, 4), (1, 2, 4), rows=2, device=0) == Cut.between((8, 1, 2, 2), (2, 1, 2, 2), rows=2, device=0)
        True
        """
        first, second = _merged_axes(whole[:rows], part[:rows]), _merged_axes(whole[rows:], part[rows:])
        return cls(first[0] + second[0], first[1] + second[1], len(first[0]), device)

    @property
    def starts(self) -> Grid:
        return tuple(min(self.device * part, whole - part) for whole, part in zip(self.whole, self.part, strict=True))

    @property
    def is_whole(self) -> bool:
        return self.whole == self.part

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a mask of this shape fits the whole operand; it may have fewer rows, which are repeated."""
        across, rows, elements = math.prod(self.whole[self.rows :]), math.prod(self.whole[: self.rows]), math.prod(shape)
        return elements > 0 and elements % across == 0 and elements // across <= rows

    def rows_of(self, recorded: int) -> npt.NDArray[np.int64]:
        """The recorded row behind each row of the device, in the shortest list that repeats."""
        indices = [np.arange(start, start + part) for start, part in zip(self.starts, self.part[: self.rows], strict=False)]
        rows = np.zeros(1, dtype=np.int64)
        for axis, index in enumerate(indices):
            rows = (rows[:, None] * self.whole[axis] + index).reshape(-1)
        rows %= recorded
        if len(rows) % recorded == 0 and np.array_equal(rows[recorded:], rows[:-recorded]):
            return rows[:recorded]
        return rows

    def of(self, bits: Bits) -> Bits:
        """The bits of the piece as (rows, axes of a row)."""
        across = self.whole[self.rows :]
        rows = bits.reshape(-1, math.prod(across))
        rows = rows[self.rows_of(len(rows))].reshape(-1, *across)
        pieces = zip(self.starts[self.rows :], self.part[self.rows :], strict=True)
        return rows[(slice(None), *(slice(start, start + part) for start, part in pieces))]


def _merged_axes(whole: Grid, part: Grid) -> tuple[Grid, Grid]:
    """Merges each axis that is not cut with the one before it."""
    axes: list[tuple[int, int]] = []
    for size, share in zip(whole, part, strict=True):
        if axes and (size == share or axes[-1] == (1, 1)):
            size, share = axes[-1][0] * size, axes.pop()[1] * share
        axes.append((size, share))
    return tuple(size for size, _ in axes), tuple(share for _, share in axes)


@dataclass(frozen=True)
class Shard:
    """A piece of one mask. `shape` is that of the operand's share, with fewer rows where fewer were recorded."""

    source: MaskSource
    key: TensorKey
    cut: Cut
    wanted: tuple[int, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        recorded = shape_of(self.source, self.key)
        if self.cut.is_whole:
            return recorded
        if not self.cut.rows:
            return self.wanted
        across = math.prod(self.cut.whole[self.cut.rows :])
        rows = len(self.cut.rows_of(math.prod(recorded) // across))
        return (rows, *self.wanted[1:])

    def bits(self) -> Bits:
        bits = unpacked(self.source, self.key)
        return bits if self.cut.is_whole else np.ascontiguousarray(self.cut.of(bits)).reshape(self.shape)

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.key, self.cut.whole, self.cut.part, self.cut.rows, self.wanted


@dataclass(frozen=True, eq=False)
class Shards:
    """A mask source for the step of one device; its masks are looked up at first use."""

    masks: Masks
    whole: Step
    part: Step
    device: int = 0

    @cached_property
    def _divided(self) -> tuple[dict[TensorKey, Shard], tuple[str, ...]]:
        """The masks of the share by key, and the layers whose masks cannot be cut."""
        shards_by_key: dict[TensorKey, Shard] = {}
        undivided: dict[str, None] = {}
        ambiguous: set[TensorKey] = set()
        for whole, part, side in _operands(self.whole, self.part):
            letter = letter_of(self.part, part, side)
            if whole is None:
                undivided.update({part.layer: None} if letter else {})
                continue
            mask = mask_of(self.whole, whole, side, letter, self.masks) if letter else None
            if mask is None:
                continue
            key = (part.layer, part.call, tensor_letter(self.part, part, side) or letter)
            cut = _cut(self.whole, whole, self.part, part, side, self.device)
            if cut is None or not cut.fits(shape_of(*mask)):
                undivided[part.layer] = None
                continue
            shard = Shard(*mask, cut, operand_shape(self.part, part, side))
            if shards_by_key.setdefault(key, shard).identity != shard.identity:
                ambiguous.add(key)
        undivided.update({key[0]: None for key in ambiguous})
        return {key: shard for key, shard in shards_by_key.items() if key not in ambiguous}, tuple(undivided)

    @property
    def specs(self) -> Mapping[TensorKey, Shard]:
        return self._divided[0]

    @cached_property
    def digest(self) -> str:
        identity = [(key, *shard.identity) for key, shard in self.specs.items()]
        return hashlib.sha256(repr((self.masks.digest, self.device, identity)).encode()).hexdigest()

    def spec(self, key: TensorKey) -> Shard:
        if key not in self.specs:
            names = ("/".join(map(str, k)) for k in self.specs)
            raise UnknownName("mask", "/".join(map(str, key)), names, f"masks of one device of step {self.part.name!r}")
        return self.specs[key]

    def bits(self, key: TensorKey) -> Bits:
        return self.spec(key).bits()

    def density(self, key: TensorKey) -> float:
        """Share of non-zero elements: the source's own where nothing is cut off, else counted."""
        shard = self.spec(key)
        if shard.cut.is_whole and isinstance(shard.source, KnowsDensity):
            return shard.source.density(shard.key)
        return float(unpacked(self, key).mean())

    def structure(self, key: TensorKey, phase: Phase) -> Structured | None:
        """Of a mask that every device has whole; a piece of one may break its groups."""
        shard = self.specs.get(key)
        if shard is None or not shard.cut.is_whole:
            return None
        return shard.source.structure(shard.key, phase) if isinstance(shard.source, KnowsStructure) else None

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for the result if some masks could not be cut; none while no mask has been used."""
        if "_divided" not in self.__dict__ or not self._divided[1]:
            return ()
        layers = self._divided[1]
        named = ", ".join([*layers[:3], *(["..."] if len(layers) > 3 else [])])
        plural = "s" * (len(layers) > 1)
        return (f"masks of {len(layers)} layer{plural} cannot be divided among devices and count as dense there: {named}",)


@overload
def shards(masks: None, whole: Step, part: Step, *, device: int = 0) -> None: ...
@overload
def shards(masks: Masks, whole: Step, part: Step, *, device: int = 0) -> Masks: ...
@overload
def shards(masks: Masks | None, whole: Step, part: Step, *, device: int = 0) -> Masks | None: ...
def shards(masks: Masks | None, whole: Step, part: Step, *, device: int = 0) -> Masks | None:
    """The masks of a whole step, cut for `part`, the step of device number `device`.

    >>> import trainyard as ty
    >>> from trainyard.mapping.parallel.transform import data
    >>> step = ty.zoo.load("linear", batch=8)
    >>> masks = ty.generated_masks(step, {"A": 0.5})
    >>> one = shards(masks, step, data(step, devices=4), device=3)
    >>> [spec.shape for spec in one.specs.values()][0][0], masks.spec(next(iter(masks.specs))).shape[0]
    (2, 8)
    """
    if device < 0:
        raise BadInput(f"shards: device is a number from 0 on, got {device!r}")
    if masks is None or part is whole or isinstance(masks, KnowsOperands):  # shares of zeros are those of every device
        return masks
    return _cached_shards(_ShardKey(masks, whole, part, device))


def notes_of(masks: Masks | None) -> tuple[str, ...]:
    return masks.notes if isinstance(masks, Shards) else ()


@dataclass(frozen=True, slots=True, eq=False)
class _ShardKey:
    """Steps and masks as a cache key, by identity: comparing them costs more than cutting them."""

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
        return isinstance(other, _ShardKey) and other._same == self._same


@lru_cache(maxsize=8)
def _cached_shards(key: _ShardKey) -> Shards:
    """Machines that run the same step share its masks and their unpacked bits."""
    return Shards(key.masks, key.whole, key.part, key.device)


def _operands(whole: Step, part: Step) -> Iterator[tuple[Op | None, Op, int]]:
    """Operands (op, side) of the share's products, each with the product of the whole step that it is a part of, if any."""
    waiting: dict[tuple[Any, ...], deque[Op]] = {}
    for op in whole.ops:
        if op.is_product:
            waiting.setdefault(_identity(op), deque()).append(op)
    for op in part.ops:
        if op.is_product:
            candidates = waiting.get(_identity(op))
            partner = candidates.popleft() if candidates else None
            yield partner, op, 0
            yield partner, op, 1


def _identity(op: Op) -> tuple[Any, ...]:
    return op.layer, op.call, op.phase, op.recompute, op.name, op.letters, type(op.body)


def _cut(whole: Step, op: Op, part: Step, part_op: Op, side: int, device: int) -> Cut | None:
    """How an operand of the share lies in the whole step's; None where the share's operand is larger than that."""
    have, want = operand_shape(whole, op, side), operand_shape(part, part_op, side)
    if isinstance(op.body, Convolution):
        assert isinstance(part_op.body, Convolution)
        letter = CONVOLUTION_LETTERS[op.body.product][side]
        axis, groups = (0 if letter == "W" else 1), (op.body.groups if op.body.groups == part_op.body.groups else 1)
        # a cut that leaves every group on every device is one of each group's channels
        grids = [(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]) for shape in (have, want)]
        cut = Cut.between(grids[0], grids[1], 0 if letter == "W" else 1, device)
    else:
        assert isinstance(part_op.body, MatMul)
        row_axes = _rows(whole, op, part_op.body, side, have, want)
        cut = Cut.between((*row_axes[0], have[1]), (*row_axes[1], want[1]), len(row_axes[0]), device)
    return cut if all(a <= b for a, b in zip(cut.part, cut.whole, strict=True)) else None


def _rows(whole: Step, op: Op, mine: MatMul, side: int, have: Grid, want: Grid) -> tuple[Grid, Grid]:
    """The axes that make up the rows of a matrix product's operand, in the whole step and in the share.

    Rows of A and G are cut along samples, which need not be the first axis (a recurrent layer reads time first).
    """
    body = op.body
    assert isinstance(body, MatMul)
    if have[0] != want[0] and letter_of(whole, op, side) != "W":
        for shape, samples in _shapes_with_samples(whole, op, side):
            if shape[-1] == have[1] and math.prod(shape[:-1]) == have[0] and shape[samples] * want[0] % have[0] == 0:
                part = shape[samples] * want[0] // have[0]
                return shape[:-1], (*shape[:samples], part, *shape[samples + 1 : -1])
    count = body.count if body.count == mine.count and have[0] % body.count == want[0] % body.count == 0 else 1
    return (count, have[0] // count), (count, want[0] // count)


def _shapes_with_samples(step: Step, op: Op, side: int) -> Iterator[tuple[Grid, int]]:
    """The shapes of an operand's views that have a samples axis, the product's own first, with that axis."""
    position = operand_order(step, op)[side]
    tensor = op.inputs[position] if len(op.inputs) > position else None
    while tensor is not None:
        spec = step.tensors[tensor]
        samples = [axis for axis, slope in enumerate(spec.slope) if slope]
        if len(samples) == 1 and samples[0] < len(spec.shape) - 1 and spec.shape[samples[0]] == step.batch:
            yield spec.shape, samples[0]
        tensor = spec.view_of
