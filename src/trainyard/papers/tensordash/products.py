"""The cost of the three operations of a model on the array, product by product.

A product is costed as a whole: the paper's speedups are of these cycles, and sweeps compare them; `chip` cuts products into tiles
and waits for DRAM. The array without TensorDash is costed in the same way. A speedup is the cycles of the dense schedule over the
cycles, summed over products. Every output is computed.

Whose zeros count (Sec. II): A in A*W; in A*G the sparser of A and G; in W*G the sparser of G and W, which is G unless training
prunes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from trainyard.arrays import TensorCore, TensorDash
from trainyard.devices.accelerator.masked_tiles import viewer
from trainyard.ir import Convolution, MatMul, Operand
from trainyard.machines.presets.tensordash import TENSORCORE
from trainyard.mapping.lowering import lower
from trainyard.papers.tensordash.models import NAMES, Operation, Subject, operation
from trainyard.papers.tensordash.sweeps import TOGETHER

Array = TensorDash | TensorCore
Source = Callable[[str], Subject]
"""From a model's name to its step and zeros: `models.recorded`, `printed.printed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedProduct:
    """A product with the zeros of its operands: `parts` has a pair of operands a and b for each group of a grouped convolution."""

    layer: str
    operation: Operation
    op: MatMul
    parts: tuple[tuple[Operand, Operand], ...]
    weight: float

    @property
    def macs(self) -> int:
        return self.op.macs * len(self.parts)


@cache
def masked_products(subject: Subject) -> tuple[MaskedProduct, ...]:
    """The products of a model that count."""
    products = []
    for number in sorted(subject.products):
        op = subject.step.ops[number]
        assert isinstance(op.body, MatMul | Convolution)
        product = lower(op.body, TENSORCORE.grad_input).product
        left, right = (viewer(subject.step, op, TENSORCORE.grad_input, subject.masks, side) for side in (0, 1))
        m, n, k = (0, product.M), (0, product.N), (0, product.K)
        parts = tuple((left(item, m, k), right(item, k, n)) for item in range(product.count))
        products.append(
            MaskedProduct(
                layer=op.layer,
                operation=operation(op),
                op=MatMul(product.M, product.N, product.K),
                parts=parts,
                weight=subject.weights[number],
            )
        )
    return tuple(products)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One of the three operations of one layer: cycles and events of the array."""

    layer: str
    operation: Operation
    cycles: int
    weight: float
    events: Mapping[str, float]


def on_array(subject: Subject, array: Array) -> tuple[Product, ...]:
    """Every product of a model, whole, on an array."""
    return _together(subject)[array] if array in TOGETHER else alone(subject, array)


@cache
def alone(subject: Subject, array: Array) -> tuple[Product, ...]:
    """Every product of a model on one array, without those of the sweeps."""
    return tuple(_one(product, array) for product in masked_products(subject))


@cache
def _together(subject: Subject) -> Mapping[Array, tuple[Product, ...]]:
    rows = [[_one(product, array) for array in TOGETHER] for product in masked_products(subject)]
    return {array: tuple(row[number] for row in rows) for number, array in enumerate(TOGETHER)}


def _one(product: MaskedProduct, array: Array) -> Product:
    events: dict[str, float] = {}
    cycles = 0
    for a, b in product.parts:
        cost = targeting(array, product.operation).cost(product.op, a=a, b=b)
        cycles += cost.cycles
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
    return Product(layer=product.layer, operation=product.operation, cycles=cycles, weight=product.weight, events=events)


@cache
def targeting(array: Array, wanted: Operation) -> Array:
    """The array with the operand whose zeros it schedules: A in A*W, else the sparser one."""
    if isinstance(array, TensorDash) and array.scheduled == "sparser" and wanted == "A*W":
        return replace(array, scheduled="a")
    return array


CostFunction = Callable[[Subject, Array], tuple[Product, ...]]


def cycles(products: Iterable[Product], wanted: Operation | None = None) -> float:
    return sum(product.weight * product.cycles for product in products if wanted in (None, product.operation))


def speedup(subject: Subject, array: TensorDash, wanted: Operation | None = None, costs: CostFunction = on_array) -> float:
    """Cycles without TensorDash over cycles with it."""
    return cycles(costs(subject, array.baseline), wanted) / cycles(costs(subject, array), wanted)


def mean_speedup(source: Source, array: TensorDash, names: Sequence[str] = NAMES, costs: CostFunction = on_array) -> float:
    """The mean over models, each counting once."""
    return fmean(speedup(source(name), array, costs=costs) for name in names)


def slowest(subject: Subject, array: TensorDash) -> tuple[float, str]:
    """The smallest speedup of any operation of any layer, and which one."""
    pairs = zip(on_array(subject, array.baseline), on_array(subject, array), strict=True)
    return min((before.cycles / after.cycles, f"{after.layer} {after.operation}") for before, after in pairs)
