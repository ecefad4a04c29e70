"""Products side by side on parts of one array: dX and dW of a layer, the heads of an attention layer.

An array that can be divided has `divided(shares)`: arrays of so many of its units each (SIGMA's units are Flex-DPEs), with its
input bandwidth in proportion. A part of the array comes with the same part of scratchpad, DRAM bandwidth and vector lanes, walks
its own tiles, and the Work takes as long as its slowest part. dY, which dX and dW both read, is read by each of them: that one
read could serve both needs an order of tiles that keeps them in step, another mechanism (`order`). Where no division is faster,
the products follow each other on the whole array, so running them together never costs time.

The many small products of one op (heads) may also share a tile step: the array takes several whole products at once and says what
that costs (`Array.cost` of an op with that `count`); their bytes come and go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainyard.errors import BadInput
from trainyard.ir import DENSE, Array, ArrayCost, DeviceCost, Direction, MatMul, Operand, Product
from trainyard.ir.protocols import Divisible
from trainyard.mapping.tiling import Problem, Supply, Tiled, search

PARTS, FINEST = 8, 32
"""Divisions are first looked for in steps of one eighth, then of a sixteenth and of a thirty-second around the best."""
Shares = tuple[int, int]


def require_divisible(array: Array, what: str) -> None:
    if not isinstance(array, Divisible):
        raise BadInput(f"{what} needs an array that can be divided, such as Sigma(); {type(array).__name__} cannot: leave it out")


def units(array: Divisible) -> int:
    """How many parts it has at most."""
    return array.peak_macs_per_cycle // array.divided((1,))[0].peak_macs_per_cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one product gets of a device."""

    array: Array
    supply: Supply
    vector_lanes: int


def parts(array: Divisible, supply: Supply, vector_lanes: int, shares: Sequence[int]) -> list[Part]:
    """All of a device divided as `shares` of its array's units say."""
    whole = sum(shares)
    return [
        Part(
            array=one,
            supply=replace(
                supply,
                resident_bytes=supply.resident_bytes * share / whole,
                bytes_per_cycle=supply.bytes_per_cycle * share / whole,
            ),
            vector_lanes=max(1, vector_lanes * share // whole),
        )
        for one, share in zip(array.divided(shares), shares, strict=True)
    ]


Costs = Sequence[DeviceCost]


def fastest(array: Divisible, cost: Callable[[Shares], Costs | None]) -> tuple[Shares, Costs] | None:
    """The best division costs_by_size between two products, and their costs; `cost` says None where a product has no room."""
    whole = units(array)
    costs_by_size: dict[int, Costs] = {}

    def longest(size: int) -> float:
        return max(one.cycles for one in costs_by_size[size]) if size in costs_by_size else math.inf

    step = max(1, whole // PARTS)
    sizes = range(step, whole, step)
    while sizes:
        for size in sizes:
            costs = cost((size, whole - size))
            if costs is not None:
                costs_by_size[size] = costs
        if not costs_by_size or step == 1 or step <= whole // FINEST:
            break
        step, best = max(1, step // 2), min(costs_by_size, key=longest)
        sizes = range(max(1, best - step), min(whole, best + step + 1), 2 * step)
    best = min(costs_by_size, key=longest, default=0)
    return ((best, whole - best), costs_by_size[best]) if costs_by_size else None


def adjusted(shares: Shares, cost: Callable[[Shares], Costs | None]) -> Costs | None:
    """From a division that other costs suggest: units go to the product that takes longer for as long as that helps."""
    whole, current = sum(shares), cost(shares)
    step = max(1, whole // PARTS)
    while current is not None:
        first = shares[0] + (step if current[0].cycles > current[1].cycles else -step)
        if not 0 < first < whole:
            break
        shares = (first, whole - first)
        better = cost(shares)
        if better is None or max(one.cycles for one in better) >= max(one.cycles for one in current):
            break
        current = better
    return current


def merged(costs: Sequence[DeviceCost], *, beside: bool) -> DeviceCost:
    """One cost of several products: as long as the longest where they ran side by side, all of them where one followed the other.

    Time is divided among ops as the products would need it alone; what moved and what was done adds up.
    """
    moved: dict[tuple[str, Direction], int] = {}
    events: dict[str, float] = {}
    for cost in costs:
        for key, size in cost.bytes.items():
            moved[key] = moved.get(key, 0) + size
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
    total = sum(cost.cycles for cost in costs) or 1
    share = [part * cost.cycles / total for cost in costs for part in cost.share]
    longest = max(costs, key=lambda cost: cost.cycles)
    over = max if beside else sum
    return DeviceCost(
        cycles=over(cost.cycles for cost in costs),
        compute_cycles=over(cost.compute_cycles for cost in costs),
        bytes=moved,
        share=(*share[:-1], max(0.0, 1.0 - sum(share[:-1]))),
        events=events,
        bound=longest.bound,
        chosen=tuple(choice for cost in costs for choice in cost.chosen),
        uncertainty=max(c.uncertainty for c in costs) if beside else math.hypot(*(c.uncertainty for c in costs)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySideArray:
    """An array that takes `count` equal products at once, seen as one that takes one product."""

    array: Array
    count: int

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.array.peak_macs_per_cycle

    def granule(self) -> tuple[int, int, int]:
        return self.array.granule()

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        return self.array.cost(replace(op, count=op.count * self.count), a=a, b=b)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return self.array.concurrent([product for product in products for _ in range(self.count)])


def several(problem: Problem, array: Array, supply: Supply) -> Iterator[tuple[Tiled, int]]:
    """Whole products of one op, so many in each tile step: every number that divides them all and finds room."""
    op, rates = problem.op, problem.sram_rates
    one = op.M * op.K * rates[0] + op.K * op.N * rates[1] + op.M * op.N * rates[2]
    for size in range(2, op.count + 1):
        if one * size > supply.resident_bytes:
            return
        if op.count % size == 0:
            batch = replace(problem, op=replace(op, count=op.count // size))
            (tiled,) = search([batch], SideBySideArray(array=array, count=size), supply, (op.M, op.N, op.K))
            yield tiled, size
