"""Several products at once, each on its own Flex-DPU: a run of Flex-DPEs of its own behind the input that all share.

E. Qin et al.: SIGMA. HPCA 2020, Sec. IV-B: a Flex-DPU does one GEMM, several Flex-DPUs work side by side. How they share the
input is not said. The rule here, for Flex-DPU i with P_i multipliers that holds nnz_i elements and meets S_i vectors:

    sent_i   = ceil((nnz_1 + ... + nnz_i) / bandwidth) + waits         one Flex-DPU after the other, by the mesh's timetable
    wide:      finish_i = sent_i + hops_i + folds_i * S_i + add_i      a vector per cycle and Flex-DPU, from its own loading on
    limited:   finish_i = sent_last + hops_i + shared_i + add_i        vectors share the input once all loads are through
    add_i    = folds_i * ceil(log2 P_i),  folds_i = ceil(nnz_i / P_i)  `hops` and `waits` are those of `hardware.benes.mesh`

`shared_i` is S_i * passes_i cycles of its own (a pass for each ceil(nnz of a chunk / P_i)), slowed down wherever the Flex-DPUs
that still stream ask for more than the bandwidth: each asks for as many elements as a chunk of its K has at most, and all are
slowed by the same factor. Loads of later folds are counted with the first, as for a single product; a bus that serves the earlier
Flex-DPU first whenever two want to load is later than this by one cycle at most. One product alone costs what it costs on the
whole fabric.

`together` searches: which operand stays, how many Flex-DPEs each product gets, and how many products share a round; rounds follow
each other. One product per round on the whole fabric is among the candidates, so the answer is never slower than one after
another.
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
"""With so many products at most, every combination of stationary operands is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One operand as the stationary one: elements to hold, vectors that stream past, elements of a vector (K).

    `chunks` are the elements to hold for each run of `bandwidth` k's; only `limited` streaming asks for them.
    """

    nonzeros: int
    vectors: int
    depth: int
    chunks: tuple[int, ...] = ()

    def passes(self, multipliers: int, streaming: str) -> int:
        """How often the vectors go through."""
        if streaming == "wide":
            return -(-self.nonzeros // multipliers)
        return sum(times * -(-count // multipliers) for count, times in _distinct(self.chunks))


@lru_cache(maxsize=1024)
def _distinct(chunks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Different numbers and how often each occurs: the chunks of a dense operand are all alike."""
    return tuple(Counter(chunks).items())


Demand = Mapping[Side, Held]
"""A product: what it holds under each choice of the stationary operand that is permitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Flex-DPEs of so many multipliers behind one input."""

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

    def stream(self, held: Held, dpes: int) -> int:
        """Cycles of streaming with an input of its own."""
        return held.vectors * held.passes(dpes * self.multipliers, self.streaming)

    def add(self, held: Held, dpes: int) -> int:
        """Cycles of last sums, once for each fold, or for each pass as well."""
        multipliers = dpes * self.multipliers
        drained = held.passes(multipliers, self.streaming if self.drain == "pass" else "wide")
        return drained * (multipliers - 1).bit_length()

    def alone(self, held: Held, dpes: int | None = None) -> int:
        """One product and nothing beside it."""
        dpes = self.dpes if dpes is None else dpes
        return -(-held.nonzeros // self.bandwidth) + self.stream(held, dpes) + self.add(held, dpes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """When all is done, when each product is, on which Flex-DPEs it was, with which operand stationary; products of each round."""

    cycles: int
    finish: tuple[int, ...]
    groups: tuple[range, ...]
    choice: tuple[Side, ...]
    rounds: tuple[tuple[int, ...], ...]


def allocate(nonzeros: Sequence[int], dpes: int, multipliers: int) -> tuple[range, ...]:
    """Contiguous Flex-DPEs for each product: what its elements need, or its share of all where they need more; at least one.

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
    return placed(sizes)


def placed(sizes: Sequence[int]) -> tuple[range, ...]:
    """Runs of so many Flex-DPEs, one behind the other."""
    ends = list(itertools.accumulate(sizes))
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


def side_by_side(held: Sequence[Held], groups: Sequence[range], fabric: Fabric) -> tuple[int, ...]:
    """When each product is done; they are loaded in the order given, each on its own group."""
    hops = [_hops(fabric.mesh, group) for group in groups]
    waited = delays(hops)
    loaded = list(itertools.accumulate(product.nonzeros for product in held))
    streamed = [fabric.stream(product, len(group)) for product, group in zip(held, groups, strict=True)]
    if fabric.streaming == "limited":  # nobody streams before all are loaded
        waited, loaded = waited[-1:] * len(held), loaded[-1:] * len(held)
        streamed = shared(list(zip(streamed, (product.depth for product in held), strict=True)), fabric.bandwidth)
    began = [-(-count // fabric.bandwidth) for count in loaded]
    adds = [fabric.add(product, len(group)) for product, group in zip(held, groups, strict=True)]
    return tuple(map(sum, zip(began, waited, hops, streamed, adds, strict=True)))


def shared(streams: Sequence[tuple[int, int]], bandwidth: int) -> list[int]:
    """When each of (cycles alone, elements of a vector) is through if all begin at once and share `bandwidth` elements a cycle.

    >>> shared([(10, 64), (10, 64), (5, 64)], bandwidth=128)  # three halves for five cycles' worth, then two: 8 + 5
    [13, 13, 8]
    """
    finish = [0] * len(streams)
    done, now = Fraction(0), 0
    asked = sum(min(depth, bandwidth) for cycles, depth in streams if cycles)
    for index in sorted(range(len(streams)), key=lambda i: streams[i][0]):
        cycles, depth = streams[index]
        if not cycles:
            continue
        if cycles > done:
            speed = min(Fraction(1), Fraction(bandwidth, asked))
            passed = -(-(cycles - done) // speed)
            done, now = done + passed * speed, now + passed
        finish[index] = now
        asked -= min(depth, bandwidth)
    return finish


@lru_cache(maxsize=65536)
def _hops(mesh: Mesh, group: range) -> int:
    return mesh.hops(group)


def together(
    demands: Sequence[Demand],
    *,
    dpes: int,
    multipliers: int,
    bandwidth: int,
    streaming: Literal["wide", "limited"] = "wide",
    drain: Literal["fold", "pass"] = "fold",
) -> Together:
    """The fastest way found to do all products: in rounds of 1, 2, 4, ... or all of them side by side.

    >>> head = {"a": Held(nonzeros=128 * 64, vectors=128, depth=64)}  # half of the multipliers
    >>> apart = together([head], dpes=128, multipliers=128, bandwidth=128).cycles
    >>> apart, together([head] * 4, dpes=128, multipliers=128, bandwidth=128).cycles, 4 * apart
    (206, 536, 824)
    """
    fabric = Fabric(dpes=dpes, multipliers=multipliers, bandwidth=bandwidth, streaming=streaming, drain=drain)
    if not demands or not all(demands):
        raise BadInput("together: give at least one product, each with at least one stationary operand")
    best_alone = [min(map(fabric.alone, demand.values())) for demand in demands]
    order = sorted(range(len(demands)), key=lambda i: -best_alone[i])  # like with like
    known: dict[tuple[tuple[tuple[Side, Held], ...], ...], _Round] = {}
    best: Together | None = None
    for size in _round_sizes(min(len(demands), dpes)):
        rounds = tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))
        found = _in_rounds(demands, rounds, fabric, known)
        if best is None or found.cycles < best.cycles:
            best = found
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
    fabric: Fabric,
    known: dict[tuple[tuple[tuple[Side, Held], ...], ...], _Round],
) -> Together:
    """Rounds of equal products are worked out once."""
    finish, groups, choice = [0] * len(demands), [range(0)] * len(demands), ["a"] * len(demands)
    now = 0
    for products in rounds:
        members = tuple(tuple(demands[index].items()) for index in products)
        if members not in known:
            known[members] = _best_round([dict(member) for member in members], fabric)
        found = known[members]
        for position, index in enumerate(products):
            finish[index] = now + found.finish[position]
            groups[index], choice[index] = found.groups[position], found.choice[position]
        now += max(found.finish)
    return Together(cycles=now, finish=tuple(finish), groups=tuple(groups), choice=tuple(choice), rounds=rounds)  # type: ignore[arg-type]  # sides


def _best_round(demands: Sequence[Demand], fabric: Fabric) -> _Round:
    found = [_fitted(demands, choice, fabric) for choice in _choices(demands, fabric)]
    return min(found, key=lambda one: max(one.finish))


def _choices(demands: Sequence[Demand], fabric: Fabric) -> list[tuple[Side, ...]]:
    """Which operands stay: all combinations of a few products; of many, the best alone, and what is loaded fastest."""
    if len(demands) <= FREE_CHOICES:
        return list(itertools.product(*demands))
    rules: list[Callable[[Held], int]] = [
        fabric.alone,
        lambda held: fabric.alone(held, max(1, fabric.dpes // len(demands))),
        lambda held: held.nonzeros,
    ]
    picked = [tuple(min(demand, key=lambda side: rule(demand[side])) for demand in demands) for rule in rules]
    return list(dict.fromkeys(picked))


def _fitted(demands: Sequence[Demand], choice: tuple[Side, ...], fabric: Fabric) -> _Round:
    """Flex-DPEs where the product that would be last gains from them; longest after loading first in line for the input."""
    held = [demand[side] for demand, side in zip(demands, choice, strict=True)]
    if len(held) == 1:
        return _Round((fabric.alone(held[0]),), (range(fabric.dpes),), choice)
    best: _Round | None = None
    by_need = [len(group) for group in allocate([one.nonzeros for one in held], fabric.dpes, fabric.multipliers)]
    for sizes in (_balanced(held, fabric), by_need):
        tails = [_tail(one, size, fabric) for one, size in zip(held, sizes, strict=True)]
        line = sorted(range(len(held)), key=lambda i: -tails[i])
        runs = placed([sizes[i] for i in line])
        ends = side_by_side([held[i] for i in line], runs, fabric)
        back = sorted(range(len(held)), key=line.__getitem__)  # from products to their place in line
        found = _Round(tuple(ends[i] for i in back), tuple(runs[i] for i in back), choice)
        if best is None or max(found.finish) < max(best.finish):
            best = found
    assert best is not None
    return best


def _balanced(held: Sequence[Held], fabric: Fabric) -> list[int]:
    """From one Flex-DPE each: the product that would be last gets what makes it faster, until nothing is left or nothing helps."""
    sizes, left = [1] * len(held), fabric.dpes - len(held)
    tails = [_tail(one, 1, fabric) for one in held]
    first = sorted(range(len(held)), key=lambda i: -tails[i])
    began = dict(zip(first, itertools.accumulate(held[i].nonzeros for i in first), strict=True))
    waits = [-(-began[i] // fabric.bandwidth) if fabric.streaming == "wide" else 0 for i in range(len(held))]
    line = [(-waits[i] - tails[i], i) for i in range(len(held))]
    heapq.heapify(line)
    while left:
        _, index = line[0]
        more = _faster(held[index], sizes[index], sizes[index] + left, fabric)
        if more is None:
            break
        left -= more - sizes[index]
        sizes[index] = more
        heapq.heapreplace(line, (-waits[index] - _tail(held[index], more, fabric), index))
    return sizes


def _tail(held: Held, size: int, fabric: Fabric) -> int:
    """Cycles after loading."""
    return fabric.stream(held, size) + fabric.add(held, size)


def _faster(held: Held, size: int, most: int, fabric: Fabric) -> int | None:
    """The next larger size that makes a product faster. In `wide` streaming, only those that save a fold can."""
    cycles = _tail(held, size, fabric)
    while size < most:
        size += 1
        if fabric.streaming == "wide":
            folds = -(-held.nonzeros // ((size - 1) * fabric.multipliers)) - 1
            if folds < 1:
                return None
            size = max(size, -(-held.nonzeros // (folds * fabric.multipliers)))
        if size <= most and _tail(held, size, fabric) < cycles:
            return size
    return None
