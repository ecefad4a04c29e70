"""What a Work asks for, before any size of the machine is known: a product with its bytes, a stream of bytes, a fused kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainyard.ir import Direction, MatMul
from trainyard.mapping.lowering import GradInput
from trainyard.mapping.precision import UNIT_RATES, MacRates, Precision
from trainyard.mapping.tiling import Problem
from trainyard.mapping.works import Fusion, Together

Im2col = Literal["raw", "materialised"]
Scope = Literal["all", "products"]


class Move(NamedTuple):
    """Bytes over the DRAM's pins, and what they are in the scratchpad: more where a DMA engine expands them."""

    label: str
    direction: Direction
    size: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The fields of a device that decide what is asked for."""

    precision: str | Precision | None = None
    fusion: Fusion = "epilogue"
    scope: Scope = "all"
    im2col: Im2col = "raw"
    grad_input: GradInput = "col2im"
    accumulator_bytes: int = 4
    together: Together = "none"
    paired: bool = False
    rates: MacRates = UNIT_RATES
    across: tuple[int, ...] = ()
    """Products dX, by number in the step, that go on into the layer below without leaving the chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductDemand:
    """A product and its epilogue. `drained` is what leaves (and comes) with finished sums, op by op of the chain."""

    problem: Problem
    labels: tuple[str, str, str]
    element_bytes: tuple[int, int, int]
    drained: tuple[tuple[Move, ...], ...]
    number: str
    grad_input: GradInput = "col2im"
    vector_operations: int = 0
    packed: int = 1
    """Products that a multiplier makes in a cycle: K and the bytes of an element are those of so many side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TogetherDemand:
    """Products that may run side by side, each with what it would ask for alone."""

    products: tuple[ProductDemand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDemand:
    """dX and dW of one product, in an order of their tiles."""

    dx: ProductDemand
    dw: ProductDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainDemand:
    """Gradients of two layers, the lower one's perhaps without dX; `beside` are its bias gradients: what each asks for apart.

    In one go the upper dX stays on chip: `between` moves with its finished sums, op by op, `left` is left of `beside`. `masked`: an
    op on its way reads the upper X.
    """

    upper: PairDemand
    lower: PairDemand | ProductDemand
    beside: tuple[StreamDemand | NoDemand, ...]
    between: tuple[tuple[Move, ...], ...]
    left: tuple[StreamDemand, ...]
    masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDemand:
    """Bytes in and out with arithmetic on the way. `again` is read once more where a `row` does not fit on chip."""

    moves: tuple[Move, ...]
    vector_operations: int = 0
    again: Move | None = None
    row_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDemand:
    """A kernel of several ops whose inner tensors stay on chip; `again` is read once for each part that fits.

    `item_bytes` is what one of the products of a batch (one head of one sample) needs from outside.
    """

    products: tuple[MatMul | None, ...]
    moves: tuple[Move, ...]
    again: tuple[Move, ...]
    item_bytes: int
    vector_operations: tuple[int, ...]
    number: str
    packed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDemand:
    """Outside the scope of the simulation, or an exchange with nobody."""

    ops: int
    why: str


Demand = ProductDemand | TogetherDemand | PairDemand | ChainDemand | StreamDemand | FusedDemand | NoDemand
