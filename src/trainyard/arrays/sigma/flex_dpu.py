"""Several products at once, each on its own Flex-DPU: neighbouring Flex-DPEs behind the input that all share.

E. Qin et al.: SIGMA. HPCA 2020, Sec. IV-B: a Flex-DPU does one GEMM, several Flex-DPUs work concurrently. The paper does not say
how they share the input. The rule here, for Flex-DPU i with P_i multipliers, nnz_i stationary elements and S_i streamed vectors:

    sent_i   = ceil((nnz_1 + ... + nnz_i) / bandwidth) + waits         one Flex-DPU after the other, by the mesh's timetable
    wide:      finish_i = sent_i + hops_i + folds_i * S_i + add_i      a vector per cycle and Flex-DPU, from its own loading on
    limited:   finish_i = sent_last + hops_i + shared_i + add_i        vectors share the input once all loads are through
    add_i    = folds_i * ceil(log2 P_i),  folds_i = ceil(nnz_i / P_i)  `hops` and `waits` are those of `hardware.benes.mesh`

`shared_i` is S_i * passes_i cycles of its own (a pass for each ceil(nnz of a chunk / P_i)), slowed down while the Flex-DPUs that
still stream demand more than the bandwidth: each demands as many elements as a chunk of its K has at most, and all are slowed by
the same factor. Loads of later folds are counted with the first, as for a single product; a bus that serves the earlier Flex-DPU
first whenever two load at once is later than this by one cycle at most. One product alone costs what it costs on the whole fabric.

`schedule_concurrently` searches which operand is stationary, how many Flex-DPEs each product gets, and how many products share a
round; rounds follow each other. One product per round on the whole fabric is among the candidates, so the result is never slower
than one product after another.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.benes.mesh import Mesh, delays

Side = Literal["a", "b"]
FREE_CHOICES = 4
"""Up to so many products every combination of stationary operands is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StationaryOperand:
    """One operand as the stationary one: its elements, the vectors streamed past them, and the elements of a vector (K).

    `chunks` are the stationary elements in each run of `bandwidth` k's; only `limited` streaming needs them.
    """

    nonzeros: int
    vectors: int
    depth: int
    chunks: tuple[int, ...] = ()

    def passes(self, multipliers: int, streaming: str) -> int:
        """How often the vectors are streamed."""
        if streaming == "wide":
            return -(-self.nonzeros // multipliers)
        return sum(times * -(-count // multipliers) for count, times in _distinct(self.chunks))


@lru_cache(maxsize=1024)
def _distinct(chunks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Different numbers and how often each occurs: the chunks of a dense operand are all alike."""
    return tuple(Counter(chunks).items())


Demand = Mapping[Side, StationaryOperand]
"""A product, by the operands that may be stationary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFabric:
    """Flex-DPEs behind one shared input."""

    dpes: int
    multipliers: int
    bandwidth: int
    streaming: Literal["wide", "limited"] = "wide"
    drain: Literal["fold", "pass"] = "fold"

    def __post_init__(self) -> None:
        require_positive("Flex-DPUs", dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth)

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(self.dpes, self.bandwidth)

    def stream_cycles(self, operand: StationaryOperand, dpes: int) -> int:
        """Cycles of streaming if the input were not shared."""
        return operand.vectors * operand.passes(dpes * self.multipliers, self.streaming)

    def add_cycles(self, operand: StationaryOperand, dpes: int) -> int:
        """Add latency, once for each fold, or for each pass as `drain` says."""
        multipliers = dpes * self.multipliers
        drained = operand.passes(multipliers, self.streaming if self.drain == "pass" else "wide")
        return drained * (multipliers - 1).bit_length()

    def alone_cycles(self, operand: StationaryOperand, dpes: int | None = None) -> int:
        """Cycles of one product with nothing else on the fabric."""
        dpes = self.dpes if dpes is None else dpes
        return -(-operand.nonzeros // self.bandwidth) + self.stream_cycles(operand, dpes) + self.add_cycles(operand, dpes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentSchedule:
    """Cycles of all; of each product its finish, its Flex-DPEs and its stationary operand; and the products of each round."""

    cycles: int
    finish: tuple[int, ...]
    groups: tuple[range, ...]
    choice: tuple[Side, ...]
    rounds: tuple[tuple[int, ...], ...]


def allocate(nonzeros: Sequence[int], dpes: int, multipliers: int) -> tuple[range, ...]:
    """Contiguous Flex-DPEs for each product, at least one: as many as its elements fill, or its share where all fill too many.

    >>> allocate([300, 100, 10], dpes=8, multipliers=100)
    (range(0, 3), range(3, 4), range(4, 5))
    >>> allocate([3000, 1000, 10], dpes=8, multipliers=100)
    (range(0, 5), range(5, 7), range(7, 8))
    """
    require_positive("allocate", dpes=dpes, multipliers=multipliers)
    if not 1 <= len(nonzeros) <= dpes:
        raise BadInput(f"{len(nonzeros)} products on {dpes} Flex-DPEs: each needs at least one; run them in rounds (together)")
    needed = [max(1, -(-count // multipliers)) for count in nonzeros]
    sizes = needed
    if sum(needed) > dpes:
        spare, total = dpes - len(needed), sum(needed) - len(needed)
        sizes = [1 + (need - 1) * spare // total for need in needed]
        lost = sorted(range(len(needed)), key=lambda i: (-((needed[i] - 1) * spare % total), i))
        for index in lost[: dpes - sum(sizes)]:
            sizes[index] += 1
    return contiguous_ranges(sizes)


def contiguous_ranges(sizes: Sequence[int]) -> tuple[range, ...]:
    """Neighbouring ranges of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


def finish_times(operands: Sequence[StationaryOperand], groups: Sequence[range], fabric: SharedFabric) -> tuple[int, ...]:
    """The finish of each product; they are loaded in this order, each on its own group."""
    hops = [_hops(fabric.mesh, group) for group in groups]
    waited = delays(hops)
    loaded = list(itertools.accumulate(operand.nonzeros for operand in operands))
    streamed = [fabric.stream_cycles(operand, len(group)) for operand, group in zip(operands, groups, strict=True)]
    if fabric.streaming == "limited":  # streaming begins once all are loaded
        waited, loaded = waited[-1:] * len(operands), loaded[-1:] * len(operands)
        streamed = shared_finish(list(zip(streamed, (operand.depth for operand in operands), strict=True)), fabric.bandwidth)
    began = [-(-count // fabric.bandwidth) for count in loaded]
    adds = [fabric.add_cycles(operand, len(group)) for operand, group in zip(operands, groups, strict=True)]
    return tuple(map(sum, zip(began, waited, hops, streamed, adds, strict=True)))


def shared_finish(streams: Sequence[tuple[int, int]], bandwidth: int) -> list[int]:
    """The finish of streams (cycles alone, elements of a vector) that begin at once and share `bandwidth` elements a cycle.

    >>> shared_finish([(10, 64), (10, 64), (5, 64)], bandwidth=128)  # three halves for five cycles' worth, then two: 8 + 5
    [13, 13, 8]
    """
    finish = [0] * len(streams)
    done, now = Fraction(0), 0
    demanded = sum(min(depth, bandwidth) for cycles, depth in streams if cycles)
    for index in sorted(range(len(streams)), key=lambda i: streams[i][0]):
        cycles, depth = streams[index]
        if not cycles:
            continue
        if cycles > done:
            speed = min(Fraction(1), Fraction(bandwidth, demanded))
            passed = -(-(cycles - done) // speed)
            done, now = done + passed * speed, now + passed
        finish[index] = now
        demanded -= min(depth, bandwidth)
    return finish


@lru_cache(maxsize=65536)
def _hops(mesh: Mesh, group: range) -> int:
    return mesh.hops(group)


def schedule_concurrently(
    demands: Sequence[Demand],
    *,
    dpes: int,
    multipliers: int,
    bandwidth: int,
    streaming: Literal["wide", "limited"] = "wide",
    drain: Literal["fold", "pass"] = "fold",
) -> ConcurrentSchedule:
    """The fastest schedule found for all products: in rounds of 1, 2, 4, ... products, or all at once.

    >>> head = {"a": StationaryOperand(nonzeros=128 * 64, vectors=128, depth=64)}  # half of the multipliers
    >>> apart = schedule_concurrently([head], dpes=128, multipliers=128, bandwidth=128).cycles
    >>> apart, schedule_concurrently([head] * 4, dpes=128, multipliers=128, bandwidth=128).cycles, 4 * apart
    (206, 536, 824)
    """
    fabric = SharedFabric(dpes=dpes, multipliers=multipliers, bandwidth=bandwidth, streaming=streaming, drain=drain)
    if not demands or not all(demands):
        raise BadInput("together: give at least one product, each with at least one stationary operand")
    best_alone = [min(map(fabric.alone_cycles, demand.values())) for demand in demands]
    order = sorted(range(len(demands)), key=lambda i: -best_alone[i])  # products of similar length share a round
    cache: dict[tuple[tuple[tuple[Side, StationaryOperand], ...], ...], _Round] = {}
    best: ConcurrentSchedule | None = None
    for size in _round_sizes(min(len(demands), dpes)):
        rounds = tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))
        schedule = _in_rounds(demands, rounds, fabric, cache)
        if best is None or schedule.cycles < best.cycles:
            best = schedule
    assert best is not None
    return best


def _round_sizes(most: int) -> Iterator[int]:
    yield from itertools.takewhile(lambda size: size < most, (1 << power for power in itertools.count()))
    yield most


@dataclass(frozen=True, slots=True)
class _Round:
    finish: tuple[int, ...]
    groups: tuple[range, ...]
    choice: tuple[Side, ...]


def _in_rounds(
    demands: Sequence[Demand],
    rounds: tuple[tuple[int, ...], ...],
    fabric: SharedFabric,
    cache: dict[tuple[tuple[tuple[Side, StationaryOperand], ...], ...], _Round],
) -> ConcurrentSchedule:
    """The schedule with these rounds; rounds of equal products are computed once."""
    finish, groups, choice = [0] * len(demands), [range(0)] * len(demands), ["a"] * len(demands)
    now = 0
    for products in rounds:
        members = tuple(tuple(demands[index].items()) for index in products)
        if members not in cache:
            cache[members] = _best_round([dict(member) for member in members], fabric)
        best_round = cache[members]
        for position, index in enumerate(products):
            finish[index] = now + best_round.finish[position]
            groups[index], choice[index] = best_round.groups[position], best_round.choice[position]
        now += max(best_round.finish)
    return ConcurrentSchedule(cycles=now, finish=tuple(finish), groups=tuple(groups), choice=tuple(choice), rounds=rounds)  # type: ignore[arg-type]  # sides


def _best_round(demands: Sequence[Demand], fabric: SharedFabric) -> _Round:
    rounds = [_allocated_round(demands, choice, fabric) for choice in _choices(demands, fabric)]
    return min(rounds, key=lambda candidate: max(candidate.finish))


def _choices(demands: Sequence[Demand], fabric: SharedFabric) -> list[tuple[Side, ...]]:
    """Stationary operands to try: all combinations for a few products; for many, the fastest alone and the fastest to load."""
    if len(demands) <= FREE_CHOICES:
        return list(itertools.product(*demands))
    rules: list[Callable[[StationaryOperand], int]] = [
        fabric.alone_cycles,
        lambda operand: fabric.alone_cycles(operand, max(1, fabric.dpes // len(demands))),
        lambda operand: operand.nonzeros,
    ]
    picked = [tuple(min(demand, key=lambda side: rule(demand[side])) for demand in demands) for rule in rules]
    return list(dict.fromkeys(picked))


def _allocated_round(demands: Sequence[Demand], choice: tuple[Side, ...], fabric: SharedFabric) -> _Round:
    """The faster of two allocations of Flex-DPEs; the product that takes longest after loading is loaded first."""
    operands = [demand[side] for demand, side in zip(demands, choice, strict=True)]
    if len(operands) == 1:
        return _Round((fabric.alone_cycles(operands[0]),), (range(fabric.dpes),), choice)
    best: _Round | None = None
    by_need = [len(group) for group in allocate([operand.nonzeros for operand in operands], fabric.dpes, fabric.multipliers)]
    for sizes in (_balanced(operands, fabric), by_need):
        tails = [_cycles_after_loading(operand, size, fabric) for operand, size in zip(operands, sizes, strict=True)]
        loading_order = sorted(range(len(operands)), key=lambda i: -tails[i])
        runs = contiguous_ranges([sizes[i] for i in loading_order])
        ends = finish_times([operands[i] for i in loading_order], runs, fabric)
        positions = sorted(range(len(operands)), key=loading_order.__getitem__)  # of each product in the order of loading
        round_ = _Round(tuple(ends[i] for i in positions), tuple(runs[i] for i in positions), choice)
        if best is None or max(round_.finish) < max(best.finish):
            best = round_
    assert best is not None
    return best


def _balanced(operands: Sequence[StationaryOperand], fabric: SharedFabric) -> list[int]:
    """Sizes, from one Flex-DPE each: the slowest product gets more until it is faster, as long as Flex-DPEs are left and help."""
    sizes, left = [1] * len(operands), fabric.dpes - len(operands)
    tails = [_cycles_after_loading(operand, 1, fabric) for operand in operands]
    loading_order = sorted(range(len(operands)), key=lambda i: -tails[i])
    loaded = dict(zip(loading_order, itertools.accumulate(operands[i].nonzeros for i in loading_order), strict=True))
    waits = [-(-loaded[i] // fabric.bandwidth) if fabric.streaming == "wide" else 0 for i in range(len(operands))]
    slowest_first = [(-waits[i] - tails[i], i) for i in range(len(operands))]
    heapq.heapify(slowest_first)
    while left:
        _, index = slowest_first[0]
        more = _next_faster_size(operands[index], sizes[index], sizes[index] + left, fabric)
        if more is None:
            break
        left -= more - sizes[index]
        sizes[index] = more
        heapq.heapreplace(slowest_first, (-waits[index] - _cycles_after_loading(operands[index], more, fabric), index))
    return sizes


def _cycles_after_loading(operand: StationaryOperand, size: int, fabric: SharedFabric) -> int:
    """Cycles after loading."""
    return fabric.stream_cycles(operand, size) + fabric.add_cycles(operand, size)


def _next_faster_size(operand: StationaryOperand, size: int, most: int, fabric: SharedFabric) -> int | None:
    """The next larger size that makes a product faster, or None. In `wide` streaming only sizes that save a fold do."""
    cycles = _cycles_after_loading(operand, size, fabric)
    while size < most:
        size += 1
        if fabric.streaming == "wide":
            folds = -(-operand.nonzeros // ((size - 1) * fabric.multipliers)) - 1
            if folds < 1:
                return None
            size = max(size, -(-operand.nonzeros // (folds * fabric.multipliers)))
        if size <= most and _cycles_after_loading(operand, size, fabric) < cycles:
            return size
    return None
