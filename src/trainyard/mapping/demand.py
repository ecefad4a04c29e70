"""What a Work asks for, before any size of the machine is known: a product with its bytes, a stream of bytes, a fused kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.caches import per_step
from trainyard.ir import DTYPE_BYTES, Direction, MatMul, Op, Step, TensorSpec
from trainyard.mapping.constraints import NO_CONSTRAINTS, MappingConstraints
from trainyard.mapping.lowering import GradInput
from trainyard.mapping.precision import UNIT_RATES, MacRates, Precision, dtype_of
from trainyard.mapping.tiling import Problem
from trainyard.mapping.works import Fusion, Together
from trainyard.masks.dma import Densities, moved_bytes

if TYPE_CHECKING:
    from trainyard.mapping.bands import Band

Im2col = Literal["raw", "materialised"]
Scope = Literal["all", "products"]


class Move(NamedTuple):
    """Bytes over the DRAM's pins, and what they are in the scratchpad: more where a DMA engine expands them.

    `on_chip`: the tensor is kept in the scratchpad, which the vector unit reads or writes; nothing crosses the pins.
    """

    label: str
    direction: Direction
    size: int
    held: int
    on_chip: bool = False


class OnChip(NamedTuple):
    """Base tensors of a Work that the scratchpad keeps between Works (`mapping.between_layers`).

    `read` are there before the Work, `loaded` come from DRAM once and stay; `results` are written by the Work and stay, `unwritten`
    are results that DRAM does not get; `added` are sums of earlier slices of the batch that come from DRAM and are added to.
    `occupied_bytes` of the scratchpad are taken by all tensors that are kept while the Work runs, its own and others.
    """

    read: frozenset[int] = frozenset()
    loaded: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()
    unwritten: frozenset[int] = frozenset()
    occupied_bytes: int = 0
    added: frozenset[int] = frozenset()

    def behind(self, bases: Collection[int]) -> OnChip:
        """What a Work finds on chip once it has loaded some of its tensors."""
        there = self.loaded.intersection(bases)
        return self._replace(read=self.read | there, loaded=self.loaded - there) if there else self


NOTHING_KEPT = OnChip()


@dataclass(frozen=True, slots=True)
class Slices:
    """A Work that runs for a slice of the batch, or for a band of rows, at a time: the step of these samples, and what so many
    slices find on chip. `cut` says which slices, `layers` which layers take turns, in words."""

    step: Step
    parts: tuple[tuple[int, OnChip, Band | None], ...]
    cut: str = ""
    layers: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """What is kept on chip during the Works of one step, by the ops of each Work."""

    by_work: Mapping[tuple[int, ...], OnChip | Slices]
    ended: bool = False
    """Whether the search for it was ended by its effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The fields of a device that decide what is asked for."""

    precision: str | Precision | None = None
    fusion: Fusion = "epilogue"
    scope: Scope = "all"
    im2col: Im2col = "raw"
    line_buffer: bool = True
    grad_input: GradInput = "col2im"
    accumulator_bytes: int = 4
    together: Together = "none"
    paired: bool = False
    rates: MacRates = UNIT_RATES
    mapping: MappingConstraints = NO_CONSTRAINTS
    across: tuple[int, ...] = ()
    """Products dX, by number in the step, that go on into the layer below without leaving the chip."""
    residency: Residency | None = None
    """Tensors of the step that stay on chip between Works."""


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
    gradient_orders: tuple[str, ...] = ()
    packed: int = 1
    """Products that a multiplier makes in a cycle: K and the bytes of an element are those of so many side by side."""
    loaded_bytes: tuple[int | None, int | None] = (None, None)
    """Scratchpad bytes of operands that stay after this Work: read once, however often their tiles are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TogetherDemand:
    """Products that may run side by side, each with what it would ask for alone."""

    products: tuple[ProductDemand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDemand:
    """dX and dW of one product, in an order of their tiles."""

    dx: ProductDemand
    dw: ProductDemand

    @property
    def is_constrained(self) -> bool:
        return self.dx.problem.is_constrained or bool(self.dx.gradient_orders)


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
class KeptDemand:
    """A demand with `occupied_bytes` of the scratchpad taken by tensors that are kept between Works."""

    inner: PlainDemand
    occupied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedDemand:
    """The demands of a Work for slices of the batch or bands of rows, and how often each comes."""

    parts: tuple[tuple[int, KeptDemand], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDemand:
    """Outside the scope of the simulation, or an exchange with nobody."""

    ops: int
    why: str


PlainDemand = ProductDemand | TogetherDemand | PairDemand | ChainDemand | StreamDemand | FusedDemand | NoDemand
Demand = PlainDemand | KeptDemand | SlicedDemand

AccessLog = dict[tuple[int, Direction | Literal["elsewhere"]], int]
"""Base tensor and direction -> the most scratchpad bytes of one op; `elsewhere`: as a matrix that was unfolded in DRAM."""


@per_step
def tensor_sizes(step: Step, precision: str | Precision | None) -> tuple[int, ...]:
    """The bytes of every tensor; of a view never more than the memory that it looks into."""
    elements = [spec.elements for spec in step.tensors]
    return tuple(
        min(elements[tensor], elements[base]) * DTYPE_BYTES[dtype_of(spec, precision)]
        for tensor, (base, spec) in enumerate(zip(step.bases, step.tensors, strict=True))
    )


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Tensors of a step as bytes of a machine."""

    step: Step
    policy: Policy
    zeros: Densities
    on_chip: OnChip = NOTHING_KEPT
    log: AccessLog | None = field(default=None, compare=False)
    logged: tuple[str, ...] = ("read", "write", "elsewhere")
    band: Band | None = None
    """The rows of its images that the Work takes, None for all."""
    sizes: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    """[tensor] Bytes, where there is no band."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tensor_sizes(self.step, self.policy.precision))

    def dtype(self, tensor: int | None) -> str:
        spec = TensorSpec((1,)) if tensor is None else self.step.tensors[tensor]
        return dtype_of(spec, self.policy.precision)

    def elements(self, tensor: int) -> int:
        """Of a view never more than the memory it looks into (a broadcast repeats nothing)."""
        base = self.step.base(tensor)
        elements = min(self.step.tensors[tensor].elements, self.step.tensors[base].elements)
        return elements if self.band is None else self.band.elements(base, elements)

    def within(self, tensor: int | None, elements: int) -> int:
        """Elements of a convolution's operand or result: of a band never more than its rows, which its windows reach beyond."""
        return elements if self.band is None or tensor is None else min(elements, self.elements(tensor))

    def op(self, number: int) -> Op:
        """An op of the step, or what it does in this band."""
        op = self.step.ops[number]
        return op if self.band is None else self.band.op(op, self.policy.grad_input)

    def bytes(self, tensor: int) -> int:
        return self.sizes[tensor] if self.band is None else self.elements(tensor) * DTYPE_BYTES[self.dtype(tensor)]

    def role(self, tensor: int) -> str:
        return str(self.step.tensors[tensor].role)

    def moved(self, op: int, tensor: int | None, direction: Direction, size: int) -> int:
        """What crosses the pins where an op reads or writes so many bytes of a tensor."""
        density = self.zeros.get((op, self.step.base(tensor), direction)) if self.zeros and tensor is not None else None
        return size if density is None else moved_bytes(size, DTYPE_BYTES[self.dtype(tensor)], density)

    def move(self, op: int, tensor: int, direction: Direction, size: int) -> Move:
        base = self.step.bases[tensor]
        if self.log is not None:
            self.note(base, direction, size)
        if base in (self.on_chip.read if direction == "read" else self.on_chip.unwritten):
            return Move(self.role(tensor), direction, 0, size, on_chip=True)
        return Move(self.role(tensor), direction, self.moved(op, tensor, direction, size), size)

    def note(self, base: int | None, direction: Direction | Literal["elsewhere"], size: int) -> None:
        if self.log is not None and base is not None and size and direction in self.logged:
            self.log[base, direction] = max(size, self.log.get((base, direction), 0))

    def behind(self, *tensors: int | None) -> TensorBytes:
        """The same, with tensors on chip that were loaded."""
        if not self.on_chip.loaded:
            return self
        return replace(self, on_chip=self.on_chip.behind([self.step.base(t) for t in tensors if t is not None]))

    def reads_only(self) -> TensorBytes:
        """The same, with a log that leaves writes out."""
        return replace(self, logged=("read",))

    def stays(self, tensor: int | None) -> bool:
        """Whether all of a tensor that is read is on chip, before this Work or from its first use."""
        return tensor is not None and self.step.base(tensor) in self.on_chip.read | self.on_chip.loaded

    def rows(self, op: int, tensor: int | None, role: str, direction: Direction, size: int) -> Move:
        """Rows of a table, as they are: not compressed."""
        known = tensor is not None and self.move(op, tensor, direction, size).on_chip
        return Move(role, direction, 0, size, on_chip=True) if known else Move(role, direction, size, size)

    def operand(self, op: int, tensor: int | None, size: int, unfolded: bool) -> tuple[int, int | None, int | None]:
        """Of an operand of a product: DRAM bytes, scratchpad bytes of its tiles where they differ, and all of it where it stays.

        A kept tensor has its own place: its tiles take no room.
        """
        base = None if tensor is None else self.step.base(tensor)
        self.note(base, "elsewhere" if unfolded else "read", size)
        if base in self.on_chip.read:
            return 0, 0, None
        moved = self.moved(op, tensor, "read", size)
        return (moved, 0, size) if base in self.on_chip.loaded else (moved, None if moved == size else size, None)

    def moves(self, op: int, tensors: tuple[int, ...], direction: Direction) -> dict[int, Move]:
        """One move for each memory that is touched; several views of one never add up to more than all of it."""
        sizes: dict[int, int] = {}
        bases = self.step.bases
        for tensor in dict.fromkeys(tensors):
            base, size = bases[tensor], self.bytes(tensor)
            sizes[base] = min(sizes[base] + size, self.bytes(base)) if base in sizes else size
        return {base: self.move(op, base, direction, size) for base, size in sizes.items() if size}
