"""What one device of several holds of a tensor, and does of an op.

`features`: a piece of the channels, neurons or gates; `heads`: whole attention heads, which are features too; `pairs`: pieces of
(sample, head) pairs, which are not; `batch`: its samples; `partial`: a sum over its samples that lacks those of the others;
`whole`: everything. Pieces are nearly equal and the largest is what a device is given: `part` of `of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from trainyard.errors import BadInput
from trainyard.ir import Body, Convolution, Copy, ElementWise, Gather, MatMul, Phase, Reduction, Update

Kind = Literal["whole", "features", "heads", "pairs", "batch", "partial"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a memory: what of it is on one device."""

    kind: Kind = "whole"
    part: int = 1
    of: int = 1

    @property
    def cut(self) -> bool:
        return self.kind in ("features", "heads", "pairs")

    @property
    def by_sample(self) -> bool:
        return self.kind in ("batch", "partial")

    def like(self, other: Layout) -> bool:
        """Whether one can be read where the other is wanted: heads are features."""
        return self.kind == other.kind or {self.kind, other.kind} == {"features", "heads"}


WHOLE, BATCH, PARTIAL = Layout(), Layout("batch"), Layout("partial")


def piece(size: int, devices: int) -> int:
    """The largest of `devices` nearly equal pieces.

    >>> piece(10, 4), piece(10, 16)
    (3, 1)
    """
    return -(-size // devices)


def features(size: int, devices: int) -> Layout:
    """
    >>> features(1000, 16)
    Layout(kind='features', part=63, of=1000)
    """
    return Layout("features", piece(size, devices), size)


def feature_axis(shape: tuple[int, ...]) -> int:
    """Channels stand second in images (and heads in scores), features last in everything else."""
    return 1 if len(shape) > 3 else len(shape) - 1


@lru_cache(maxsize=8192)
def cut_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The shape of a device's piece: cut in the axis as long as what is cut, else where least is lost, that of features first.

    >>> cut_shape((8, 128, 768), features(768, devices=8)), cut_shape((96, 128, 64), Layout("pairs", 12, 96))
    ((8, 128, 96), (12, 128, 64))
    """
    if not shape or not layout.cut:
        return shape
    first = 0 if layout.kind == "pairs" else feature_axis(shape)
    pieces = [-(-extent * layout.part // layout.of) for extent in shape]
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    if not axes:
        return shape
    axis = min(axes, key=lambda axis: (shape[axis] != layout.of, pieces[axis] / shape[axis], axis != first))
    return (*shape[:axis], pieces[axis], *shape[axis + 1 :])


def scaled(count: int, layout: Layout, *shapes: tuple[int, ...]) -> int:
    """A number of elements of the whole op on one device; where it is the size of a tensor, the size of that tensor's piece."""
    for shape in shapes:
        if math.prod(shape) == count:
            return math.prod(cut_shape(shape, layout))
    return max(1, -(-count * layout.part // layout.of))


@lru_cache(maxsize=8192)
def cut_body(body: Body, layout: Layout, output: tuple[int, ...], read: tuple[int, ...], kept: bool) -> Body:
    """An op between products on a piece of the features, by the shapes of its first output and input.

    `kept` says that a reduction leaves the features apart.
    """
    if isinstance(body, ElementWise | Copy | Update):
        return replace(body, elements=scaled(body.elements, layout, output))
    if isinstance(body, Reduction):
        results = scaled(body.results, layout, output) if kept else body.results
        return Reduction(body.function, scaled(body.elements, layout, read, output), results, body.passes)
    if isinstance(body, Gather):
        return replace(body, width=-(-body.width * layout.part // layout.of))
    raise BadInput(f"{type(body).__name__} is not cut by the features of its tensors")


def transposed(body: Convolution, phase: Phase, letters: tuple[str, ...]) -> bool:
    """Whether a convolution's product belongs to a transposed convolution, whose output features are its `in_channels`."""
    if phase is Phase.GRAD_WEIGHT:
        return letters == ("A", "G")
    return body.product != ("grad_input" if phase is Phase.GRAD_INPUT else "forward")


def output_axis(body: Body, phase: Phase, letters: tuple[str, ...]) -> str:
    """The dimension of a product's body that counts the layer's output features.

    Forward it is the one that W brings, in dX the one that is summed, in dW the one that G brings.
    """
    if isinstance(body, Convolution):
        return "in_channels" if transposed(body, phase, letters) else "out_channels"
    if phase is Phase.GRAD_INPUT:
        return "K"
    return "M" if letters[0] == ("G" if phase is Phase.GRAD_WEIGHT else "W") else "N"


def input_features(body: Body, phase: Phase, letters: tuple[str, ...]) -> int:
    """Features of X in the product that makes dX."""
    if isinstance(body, Convolution):
        return body.out_channels if transposed(body, phase, letters) else body.in_channels
    assert isinstance(body, MatMul)
    return body.N if letters[0] == "G" else body.M


def own_groups(body: Body, devices: int) -> bool:
    """A grouped convolution with a group for every device: each convolves its own channels, nothing is exchanged."""
    return isinstance(body, Convolution) and body.groups >= devices > 1


@lru_cache(maxsize=4096)
def cut_product(body: Body, phase: Phase, letters: tuple[str, ...], devices: int) -> tuple[Body, Layout]:
    """A device's share of a layer's product, and of its output features.

    >>> cut_product(MatMul(8, 1000, 4096), Phase.FORWARD, ("A", "W"), devices=8)
    (MatMul(M=8, N=125, K=4096, count=1), Layout(kind='features', part=125, of=1000))
    """
    axis = output_axis(body, phase, letters)
    extent: int = getattr(body, axis)
    if isinstance(body, Convolution) and own_groups(body, devices):
        groups = piece(body.groups, devices)
        each_in, each_out = body.in_channels // body.groups, body.out_channels // body.groups
        share = replace(body, groups=groups, in_channels=groups * each_in, out_channels=groups * each_out)
        return share, Layout("features", groups * extent // body.groups, extent)
    if isinstance(body, Convolution):  # every group is cut, so that each stays whole in its inputs
        part = body.groups * piece(extent // body.groups, devices)
        return replace(body, **{axis: part}), Layout("features", part, extent)  # type: ignore[arg-type]  # one int field
    part = piece(extent, devices)
    return replace(body, **{axis: part}), Layout("features", part, extent)  # type: ignore[arg-type]  # one int field
