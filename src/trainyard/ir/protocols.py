"""The contract between parts: Array, Device and System, what they hand to each other, and what they may offer beyond that.

An Array is pure: dimensions and operands in, cycles and events out. A Device groups ops into Works and costs each. A System makes a
Plan. Each of the three is complete with its required members alone; everything optional is a small Protocol below, which the caller
tests with `isinstance`. To offer a capability, a part has the named member: nothing is registered or inherited. Its docstring says
who asks for it and what happens without it; docs/your_own.md lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from trainyard.caches import cache_members
from trainyard.ir.assumptions import Assumption
from trainyard.ir.operands import DENSE, MaskSource, Operand, Structured, TensorKey
from trainyard.ir.ops import MatMul
from trainyard.ir.step import Phase, Step

if TYPE_CHECKING:
    from trainyard.ir.folds import Folds, Pooled, Tiles
    from trainyard.ir.plan import Plan

Masks = MaskSource
Direction = Literal["read", "write", "spill"]
Grouping = Literal["single", "gradient_pair", "concurrent", "chain"]


# ---- arrays
@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product with what is known of its operands' zeros."""

    op: MatMul
    a: Operand = DENSE
    b: Operand = DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCost:
    """`cycles` for all of it; `finish` when each product of it ends; `events` to be multiplied with an energy table.

    `uncertainty` is the half-width, in cycles, of the 95 % interval where outputs were sampled; 0 where all were looked at.
    """

    cycles: int
    finish: tuple[int, ...] = ()
    events: Mapping[str, float] = field(default_factory=dict)
    uncertainty: float = 0.0


@runtime_checkable
class Array(Protocol):
    """A compute fabric: stateless, without a clock."""

    @property
    def peak_macs_per_cycle(self) -> int:
        """Multiply-accumulates per cycle when every multiplier is busy; peaks and utilisation are measured against it."""
        ...

    def granule(self) -> tuple[int, int, int]:
        """The natural (m, n, k) of a tile: what fills the fabric once. The tile search tries multiples of it."""
        ...

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Cycles and events of one product (M, K) x (K, N), or of `op.count` equal ones, whose operands are on chip.

        A device calls it for every distinct tile of a product and adds the time of memory itself: no DRAM, no scratchpad limit and
        no clock belong in here. `a` and `b` say what is known of the zeros of (M, K) and (K, N): nothing (`Dense`), a share
        (`Density`), an n:m pattern (`Structured`) or the bits themselves (`MaskView`). An array that cannot use zeros ignores them.
        `events` counts what costs energy: `mac`, elements through the scratchpad's ports by operand (`scratchpad_read_a`,
        `scratchpad_write_out`), and rows of the array's own (`HasComponents`). The result depends on the arguments alone.
        """
        ...

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        """Several products at once; `one_after_another` where the fabric cannot be divided."""
        ...


def one_after_another(array: Array, products: Sequence[Product]) -> ArrayCost:
    """The products in turn on the whole array: what `Array.concurrent` returns for a fabric that cannot be divided."""
    finish: list[int] = []
    events: dict[str, float] = {}
    cycles, squares = 0, 0.0
    for product in products:
        cost = array.cost(product.op, a=product.a, b=product.b)
        cycles += cost.cycles
        finish.append(cycles)
        squares += cost.uncertainty**2
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
    return ArrayCost(cycles=cycles, finish=tuple(finish), events=events, uncertainty=math.sqrt(squares))


@runtime_checkable
class HasClosedForm(Protocol):
    """Cycles of a tile are exactly the least of a few closed forms.

    The tile search (`mapping.tiling`) evaluates `folds` compiled instead of calling `cost` for each candidate, and an accelerator
    costs a whole step at once. Without it, the search calls `cost` tile by tile.
    """

    @property
    def folds(self) -> Sequence[Folds]: ...


@runtime_checkable
class HasTileCycles(Protocol):
    """Cycles of one tile inside an accelerator, where that is not `cost` of the tile alone (a systolic array's closing -1)."""

    def tile_cycles(self, m: int, n: int, k: int) -> int: ...


@runtime_checkable
class HasLowerBounds(Protocol):
    """Closed forms that never exceed the cycles of a tile, of an array whose own cycles are found by a search of their own.

    The tile search takes candidates in the order of these bounds and asks `tile_cycles` only for those that could still win.
    Without them the bound is what the multipliers can do.
    """

    @property
    def lower_bounds(self) -> Sequence[Folds]: ...

    def tile_cycles(self, m: int, n: int, k: int) -> int: ...


@runtime_checkable
class HasLeastCycles(Protocol):
    """Cycles that tiles take at least, of many sizes [tile, axis] at once, where more than closed forms is known of them.

    The tile search adds them to the bounds of `HasLowerBounds`: fewer tiles are asked for their cycles.
    """

    def least_cycles(self, sizes: Any) -> Any: ...


@runtime_checkable
class HasTileEvents(Protocol):
    """Events of many tiles at once, as columns: with `folds`, an accelerator costs all products of a step without a Python loop."""

    def tile_events(self, tiles: Tiles) -> Mapping[str, Any]: ...


@runtime_checkable
class HasTileGuides(Protocol):
    """Closed forms that come near the cycles of a fabric that has no exact ones: they choose the tile, `cost` then counts it."""

    @property
    def guides(self) -> Sequence[Folds | Pooled]: ...


@runtime_checkable
class HasDensityGuides(Protocol):
    """Guides for operands of which only these shares are not zero. Called once for each product that has masks."""

    def guided(self, a_nonzero: float, b_nonzero: float) -> tuple[Pooled, ...]: ...


@runtime_checkable
class EstimatesTiles(Protocol):
    """Expected cycles of a tile whose operands are known by shares, where `cost` would take too long to choose tiles by.

    The choice of tiles for zeros (`devices.accelerator.sparse_tiles`) asks for some hundred of them; without it, `cost` is called.
    """

    def estimated_cycles(self, op: MatMul, a: Operand, b: Operand) -> int: ...


@runtime_checkable
class ReadsStreams(Protocol):
    """Steps of one output's stream as the operands lie in memory, by sizes alone where both are known by shares.

    The choice of tiles for zeros asks for them, so that no tile cuts the reduction where lanes would stay empty.
    """

    def stream_steps(self, op: MatMul, a: Operand, b: Operand) -> int: ...


@runtime_checkable
class SaysOperandAware(Protocol):
    """Whether cycles depend on the operands' zeros; decides whether an accelerator hands each tile its own mask.

    An array that does not say is taken to look at zeros unless it has a closed form (`uses_operand_values`).
    """

    @property
    def operand_aware(self) -> bool: ...


def uses_operand_values(array: Array) -> bool:
    """Whether an array looks at the zeros of its operands: it says so, or has no closed form that would do without them."""
    return array.operand_aware if isinstance(array, SaysOperandAware) else not isinstance(array, HasClosedForm)


@runtime_checkable
class SaysStructured(Protocol):
    """Whether multipliers skip n:m structured weights (2:4); an accelerator then shortens the reduction and stores fewer bytes."""

    @property
    def structured(self) -> bool: ...


@runtime_checkable
class Divisible(Array, Protocol):
    """An array whose units can work on different products at the same time (`together`, heads of attention).

    `divided(shares)` returns one array for each share of units, with its input bandwidth in proportion.
    """

    def divided(self, shares: Sequence[int]) -> Sequence[Array]: ...


@runtime_checkable
class HasComponents(Protocol):
    """Energy rows of the array's own events (`hardware.tables.energy.Component`), added to those of the accelerator's table."""

    @property
    def components(self) -> Sequence[Any]: ...


@runtime_checkable
class HasComponentAreas(Protocol):
    """Area rows of the array's own parts (`hardware.tables.area.ComponentArea`), asked for by `Accelerator.area`."""

    @property
    def component_areas(self) -> Sequence[Any]: ...


@runtime_checkable
class HasLocalBuffers(Protocol):
    """Bytes of one local scratchpad, from which `local_read` and `local_write` get their energy; None where there is none."""

    @property
    def local_bytes(self) -> float | None: ...


# ---- masks
@runtime_checkable
class ListsMasks(Protocol):
    """Which tensors a recording holds, without unpacking them; a source without it is asked for the bits to find out."""

    @property
    def specs(self) -> Mapping[TensorKey, Any]: ...


@runtime_checkable
class KnowsShapes(Protocol):
    """Shape and type of one mask without its bits; recurrent layers and rebatched steps ask for it."""

    def spec(self, key: TensorKey) -> Any: ...


@runtime_checkable
class KnowsDensity(Protocol):
    """The share of a tensor that is not zero, without unpacking its bits: for tile guides and compressing DMA engines."""

    def density(self, key: TensorKey) -> float: ...


@runtime_checkable
class KnowsOperands(Protocol):
    """Zeros that are known by shares alone: every tile of an operand gets this value in place of a view of bits."""

    def operand(self, key: TensorKey, phase: Phase) -> Operand: ...


@runtime_checkable
class KnowsStructure(Protocol):
    """The n:m pattern of a weight along the reduction of its product in a phase, or None; asked for arrays that have multipliers
    for it (`SaysStructured`)."""

    def structure(self, key: TensorKey, phase: Phase) -> Structured | None: ...


@runtime_checkable
class ChecksStep(Protocol):
    """Refuses a step that the masks were not recorded or generated for; `ty.run` calls it before planning."""

    def check(self, step: Step) -> None: ...


# ---- devices
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Ops, by number in the step, that a device does together."""

    ops: tuple[int, ...]
    grouping: Grouping = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """What one Work costs a device.

    `bytes` counts off-chip traffic by tensor and direction; `share` divides cycles among the Work's ops and sums to 1; `bound`
    names what it waits for (compute, dram, launch, ...); `events` count all that costs energy, DRAM bytes included (`dram_read`).
    `uncertainty` is that of its array's cycles (`ArrayCost`). `chosen` is the device's own record of the mapping that was costed.
    """

    cycles: int
    compute_cycles: int
    bytes: Mapping[tuple[str, Direction], int]
    share: tuple[float, ...]
    events: Mapping[str, float] = field(default_factory=dict)
    bound: str = "compute"
    assumptions: tuple[Assumption, ...] = ()
    uncertainty: float = 0.0
    chosen: tuple[Any, ...] = field(default=(), repr=False, compare=False)


@runtime_checkable
class Device(Protocol):
    """An array, or a whole processor, with memory and a clock."""

    @property
    def clock_hz(self) -> float: ...

    def works(self, step: Step) -> Sequence[Work]:
        """The step's ops grouped by this device's mapping policy; every op once, in an order that respects dependencies."""
        ...

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost:
        """What one of its Works takes alone: cycles of its clock, bytes of its memory, events for `energy`."""
        ...

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component: events times the rows of this device's table."""
        ...


@runtime_checkable
class CostsWholeSteps(Protocol):
    """All Works of a step costed at once, as columns (`BatchCosts`); None where a step needs them one by one (masks, large counts).

    `systems.single` asks first for this and goes Work by Work only without it.
    """

    def batch_costs(self, step: Step, masks: Masks | None = None) -> Any: ...


class IssuedWork(NamedTuple):
    """A Work as a training loop issues it, with the saved tensors that hooks replace in forward, and give to backward again."""

    work: Work
    packed: float = 0.0
    unpacked: float = 0.0


@runtime_checkable
class TimesIssuedWorks(Protocol):
    """The time of a step whose Works are issued in a given order, some of them twice: for devices that may wait for their host.
    `plan_memory` asks for it where blocks are checkpointed. Without it a repeated Work takes what it took the first time."""

    def issued_s(self, step: Step, works: Sequence[IssuedWork]) -> float: ...


@runtime_checkable
class ListsLoopNests(Protocol):
    """The loop nest of each Work of a step (`results.loop_nests.LoopNest`); `Result.mapping` asks for it, and is empty without."""

    def loop_nests(self, step: Step, masks: Masks | None = None) -> Sequence[Any]: ...


@runtime_checkable
class HasStepNotes(Protocol):
    """Sentences on one step that its result carries, such as a search that was bounded; asked for when notes are read."""

    def step_notes(self, step: Step, masks: Masks | None = None) -> Sequence[str]: ...


@runtime_checkable
class HasArray(Protocol):
    """A device around an array: results then have `array_cycles`, and the machine grammar reaches the array's fields."""

    @property
    def array(self) -> Array: ...


@runtime_checkable
class HasPrecision(Protocol):
    """Element types that override those of a step, for all tensors or by role; memory is counted in them."""

    @property
    def precision(self) -> Any: ...


@runtime_checkable
class KeepsTensors(Protocol):
    """A device whose tensors may stay on chip from one Work to the next: its Works must run in order and without others in between.

    A pipeline, which takes turns between microbatches, refuses such a device; memory traces leave it out.
    """

    @property
    def between_layers(self) -> bool: ...


@runtime_checkable
class HasCapacity(Protocol):
    """Bytes of the device's own memory, None for no limit; plans give their pool this capacity, overlays page against it."""

    @property
    def dram_capacity_bytes(self) -> int | None: ...


@runtime_checkable
class HasStaticPower(Protocol):
    """Watts at rest; PIM machines and nodes count them while a device waits for an exchange."""

    @property
    def static_w(self) -> float: ...


@runtime_checkable
class HasArea(Protocol):
    """Square metres by component (`mac`, `scratchpad`, `die`); empty where a part states none. Shown by `trainyard show`."""

    def area(self) -> Mapping[str, float]: ...


@runtime_checkable
class HasLeakage(Protocol):
    """Static watts that the device's energy does not count; a result has them over its time as `static_energy_j`."""

    @property
    def leakage_w(self) -> float: ...


@runtime_checkable
class HasName(Protocol):
    """What a device is called in messages; its class's name otherwise."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class ExplainsMasks(Protocol):
    """What a result says where masks were given to a machine that makes no use of them; empty where it uses them."""

    @property
    def masks_note(self) -> str: ...


# ---- systems
@runtime_checkable
class System(Protocol):
    """Devices, links and memory pools."""

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        """Tasks of one training step on streams and links, with the booking of their time, energy and bytes to ops."""
        ...


@runtime_checkable
class HasDevice(Protocol):
    """A system of equal devices: overrides, masks notes and peaks look at this one."""

    @property
    def device(self) -> Device: ...


@runtime_checkable
class HasDeviceStep(Protocol):
    """The part of a step, and of its masks, that each device of a system computes; `Result.mapping` shows its loops."""

    def device_step(self, step: Step, masks: Masks | None = None) -> tuple[Step, Masks | None]: ...


@runtime_checkable
class HasNotes(Protocol):
    """Sentences that every result of a machine carries."""

    @property
    def notes(self) -> Sequence[str]: ...


@runtime_checkable
class HasPeaks(Protocol):
    """`results.Peaks` of a machine: rates that results and `compare` set it against. `ty.run` refuses a machine without."""

    @property
    def peaks(self) -> Any: ...


@runtime_checkable
class HasPeakOfStep(Protocol):
    """A device whose peak depends on the precision of each op; `ty.run` sets a result's peak and utilisation by it."""

    def peak_macs_per_s(self, step: Step, masks: Masks | None = None) -> float:
        """MACs of the step over the time that they take at the peak of each op's own precision; 0 for a step without products."""
        ...


cache_members([value for value in globals().values() if getattr(value, "_is_protocol", False) and value is not Protocol])
