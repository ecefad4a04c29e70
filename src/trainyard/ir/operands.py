"""What an array knows about the zeros of one operand: nothing, a density, an n:m pattern, or the bits.

Every operand is hashable, so that identical products are costed once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from trainyard.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.ir.ops import Convolution

Letter = Literal["A", "W", "G", ""]
"""A: activation, W: weight, G: gradient of the output; '' for any other tensor (products inside attention)."""

TensorKey = tuple[str, int, str]
"""(layer path, index of the call of that layer, letter): the key of a mask."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Zeros are unknown: every element counts as non-zero."""


DENSE = Dense()


@dataclass(frozen=True, slots=True)
class Density:
    """A share `nonzero` of the elements is not zero; zeros are at random, or fill channels or token rows."""

    nonzero: float
    cluster: Literal["none", "channel", "row"] = "none"

    def __post_init__(self) -> None:
        if not 0.0 <= self.nonzero <= 1.0:
            raise BadInput(f"density must lie between 0 and 1, got {self.nonzero!r}")


@dataclass(frozen=True, slots=True)
class Structured:
    """Of every `of` neighbours along the reduction exactly `kept` are not zero (2:4).

    >>> TWO_FOUR.nonzero, TWO_FOUR.index_bits
    (0.5, 2)
    """

    kept: int = 2
    of: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.kept <= self.of:
            raise BadInput(f"structured({self.kept}, {self.of}): the first is how many of the second are kept, from 1 to all")

    @property
    def nonzero(self) -> float:
        return self.kept / self.of

    @property
    def index_bits(self) -> int:
        """Bits of the index of a kept element within its group."""
        return (self.of - 1).bit_length()


TWO_FOUR = Structured(2, 4)


class MaskSource(Protocol):
    """A source of masks: recorded ones, or a generator."""

    @property
    def digest(self) -> str:
        """Content hash; sources with equal digests have equal bits."""
        ...

    def bits(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        """True where the tensor is not zero, in the tensor's own shape; UnknownName where there is no such tensor."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MaskView:
    """The non-zero bits of one product's operand as a matrix: a tensor, its convolution geometry, and a slice.

    `transposed` transposes the matrix; `rows` and `columns` select a tile of it. `masks.views.matrix` reads the bits, and no more
    than those of the tile. `place` is the letter of the tensor in the geometry where that differs from its own (the input of a
    transposed convolution is G of its geometry). `dilated` reads G and W in the dilated form of grad_input. Without a geometry,
    `height` is the number of rows in the step, where fewer samples were recorded.
    """

    source: MaskSource
    key: TensorKey
    geometry: Convolution | None = None
    transposed: bool = False
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    place: Letter = ""
    dilated: bool = False
    height: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskView) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """All that determines the bits; the digest stands for the masks."""
        return (
            self.source.digest, self.key, self.geometry, self.transposed, self.rows, self.columns,
            self.place, self.dilated, self.height,
        )  # fmt: skip


Operand = Dense | Density | MaskView | Structured
