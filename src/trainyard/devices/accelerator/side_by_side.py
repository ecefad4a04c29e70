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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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


class Division(NamedTuple):
    """Units of the array for each of two products, and the cycles of the slower one."""

    shares: Shares
    cycles: float


def division(whole: int) -> Generator[Sequence[int], Sequence[float], Division | None]:
    """Searches the division of `whole` units between two products: yields sizes of the first part, is sent the cycles of the slower
    product for each (infinite where one has no room), and returns the best division, None where none has room."""
    cycles_by_size: dict[int, float] = {}
    step = max(1, whole // PARTS)
    sizes = range(step, whole, step)
    while sizes:
        cycles = yield sizes
        cycles_by_size |= {size: count for size, count in zip(sizes, cycles, strict=True) if count < math.inf}
        if not cycles_by_size or step == 1 or step <= whole // FINEST:
            break
        step, best = step // 2, min(cycles_by_size, key=lambda size: cycles_by_size[size])
        sizes = range(max(1, best - step), min(whole, best + step + 1), 2 * step)
    if not cycles_by_size:
        return None
    best = min(cycles_by_size, key=lambda size: cycles_by_size[size])
    return Division((best, whole - best), cycles_by_size[best])


def divisions(whole: int, pairs: int, cycles: Callable[[int, Sequence[int]], Sequence[float]]) -> list[Division | None]:
    """The best division of each of `pairs` pairs of products; `cycles(size, which)` are those of several pairs in one division.

    All searches go on in step, so that pairs that ask for the same division are costed at once.
    """
    found: list[Division | None] = [None] * pairs
    searches = {which: division(whole) for which in range(pairs)}
    answers: dict[int, Sequence[float] | None] = dict.fromkeys(searches)
    while searches:
        asked: dict[int, Sequence[int]] = {}
        for which, one in [*searches.items()]:
            try:
                answer = answers[which]
                asked[which] = next(one) if answer is None else one.send(answer)
            except StopIteration as ended:
                found[which] = ended.value
                del searches[which]
        by_size: dict[int, list[int]] = {}
        for which, sizes in asked.items():
            for size in sizes:
                by_size.setdefault(size, []).append(which)
        known = {
            (which, size): count for size, group in by_size.items() for which, count in zip(group, cycles(size, group), strict=True)
        }
        answers = {which: [known[which, size] for size in sizes] for which, sizes in asked.items()}
    return found


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


def repeated(parts: Sequence[tuple[int, DeviceCost]]) -> DeviceCost:
    """One cost of a Work that comes so many times at each of these costs, one after the other."""
    moved: dict[tuple[str, Direction], int] = {}
    events: dict[str, float] = {}
    for times, cost in parts:
        for key, size in cost.bytes.items():
            moved[key] = moved.get(key, 0) + times * size
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + times * count
    total = sum(times * cost.cycles for times, cost in parts) or 1
    places = range(len(parts[0][1].share))
    share = [sum(times * cost.cycles * cost.share[place] for times, cost in parts) / total for place in places]
    longest = max(parts, key=lambda part: part[0] * part[1].cycles)[1]
    return DeviceCost(
        cycles=sum(times * cost.cycles for times, cost in parts),
        compute_cycles=sum(times * cost.compute_cycles for times, cost in parts),
        bytes=moved,
        share=(*share[:-1], max(0.0, 1.0 - sum(share[:-1]))),
        events=events,
        bound=longest.bound,
        chosen=longest.chosen,
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
