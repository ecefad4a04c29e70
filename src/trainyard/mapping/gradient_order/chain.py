"""Gradients of two layers as one Work: dX of the upper layer is dY of the lower one and never leaves the scratchpad.

Where only a ReLU is between two layers, dY of the lower layer is dX of the upper one under the mask X > 0, and dW of the upper
layer reads X anyway. So the lower layer can use rows m of dX as soon as they are complete: dX is not written and dY not read. Which
layers of a training step can be joined like this, and why others cannot, says `gradient_links`; its traffic, byte for byte,
`chain_traffic`; its cycles on an array, `chain_cost`; whether it pays, and with which tiles, `search_chain` (by bytes) and
`chain_search` (by cycles); and which links of a step to use, `chosen_chains`.

The scratchpad follows the rules of `scratchpad` (touched resident tiles become most recent, then the missing ones are loaded; sums
evicted unfinished are written and read back), with three additions:

1. The operation that completes a tile of the upper dX also touches the same tile of X, last: its mask.
2. That tile of dX becomes an operand without a copy in DRAM. If evicted, it is written once, and read back when it is touched.
3. After its last use in the lower layer it is freed and not written.

What else an epilogue moves (a dropout's mask, the input of a GELU) moves as a sum is completed, and is counted as written by it.
The array and the DRAM overlap as in `scratchpad`.

The stream, for each block of rows m: for k, n the upper layer's dX and dW on (m,n,k); then, once all of dX's rows are complete
(`block`), for j, k the lower layer's dX and dW; or all j as soon as one tile (m,k) is complete (`tile`), which needs fewer resident
tiles of dX but all of X and dX of the lower layer's rows. Every block uses both W and dW: where they do not stay resident, each
block reads W, and writes and reads dW, and the chain can be slower than two separate layers; then it is not used.

This is for layers whose rows are the same: linear layers, and convolutions under a 1x1 convolution of stride 1. A `Chain` has bytes
of its own for each tensor; `chain_traffic` and the search by bytes are for elements of one size, im2col written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul, Step
from trainyard.mapping.gradient_order.bound import least_bytes, least_bytes_alone
from trainyard.mapping.gradient_order.links import Link, best_disjoint_links, gradient_links
from trainyard.mapping.gradient_order.scratchpad import (
    SLACK,
    Pair,
    Policy,
    Traffic,
    kernel_traffic,
    tile_cycles,
    traffic,
)
from trainyard.mapping.gradient_order.tile_streams import Gradient, Grid, Order, Size, grid
from trainyard.mapping.tiling import Supply

Join = Literal["block", "tile"]
JOINS: tuple[Join, ...] = get_args(Join)
Mask = Literal["relu", "none"]
CHAIN_POLICIES: tuple[Policy, ...] = ("lru", "farthest")
"""Policies that chains are modelled with; under others layers stay apart."""
ORDERS_APART: tuple[Order, ...] = ("sequential", "interleaved", "dx_major", "dw_major")
NAMES = ("dY", "W", "X", "dX", "dW", "W", "X", "dX", "dW")
"""Tensors of the kernel: five of the upper layer, four of the lower; dY of the lower is dX of the upper."""
MOST_OPERATIONS = 8_000
"""Most operations of a candidate in the search; tiles with more are tried only if all have more."""
Integers = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Both gradients of two layers; dX of `upper` is dY of `lower`.

    `masked`: X of the upper layer masks it. `passing_bytes` is what else the ops between the layers move. Without `lower_dx` the
    lower layer has dW alone, and its pair has no bytes of W and dX.
    """

    upper: Pair
    lower: Pair
    masked: bool = True
    lower_dx: bool = True
    passing_bytes: int = 0

    def __post_init__(self) -> None:
        upper, lower = self.upper.op, self.lower.op
        if (upper.M, upper.K, upper.count) != (lower.M, lower.N, lower.count):
            raise BadInput(f"{upper} does not stand on {lower}: rows, counts and the upper's K and the lower's N must be equal")

    @property
    def rates(self) -> Real:
        """Bytes per element of each tensor of `NAMES`: resident, moved, moved unfinished; as the lower dY: resident, moved."""
        upper, lower, op = self.upper.rates, self.lower.rates, self.upper.op
        rates = np.zeros((9, 5))
        rates[:5, :3], rates[5:, :3] = upper, lower[1:]
        rates[3, 1] = self.passing_bytes / (op.count * op.M * op.K)
        rates[3, 3:] = min(lower[0, 0], upper[3, 0]), lower[0, 1]
        return rates

    def needed(self, tile_upper: Size, tile_lower: Size) -> float:
        """The most bytes that the tiles of one operation take."""
        (m, n, k), j = _clipped(self.upper.op, tile_upper), min(tile_lower[2], self.lower.op.K)
        rates = self.rates
        dy, w, x, dx, dw = rates[:5, 0] * (m * n, k * n, m * k, m * k, k * n)
        w_below, x_below, dx_below, dw_below = rates[5:, 0] * (j * k, m * j, m * j, j * k)
        gradient = m * k * rates[3, 3]
        below = max(x_below + dw_below, w_below + dx_below if self.lower_dx else 0.0) + gradient
        return float(max(dy + w + dx + (x if self.masked else 0.0), x + dy + dw, below))

    @property
    def compulsory_bytes(self) -> int:
        """Bytes if each operand is read once, each result written once, and nothing moves between the layers."""
        upper, lower = self.upper.moved, self.lower.moved
        below = lower[1:] if self.lower_dx else (lower[2], lower[4])
        return sum(upper) - upper[3] + sum(below) + self.passing_bytes


def _clipped(op: MatMul, tile: Size) -> Size:
    return min(tile[0], op.M), min(tile[1], op.N), min(tile[2], op.K)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTraffic:
    """Traffic of two fused layers. `("dX", "spill")` in `upper` are tiles between the layers that were evicted."""

    upper: Traffic
    lower: Traffic

    @property
    def total_bytes(self) -> int:
        return self.upper.total_bytes + self.lower.total_bytes

    @property
    def between_bytes(self) -> int:
        """Bytes of the tensor between the layers that were evicted and read back."""
        return self.upper.bytes.get(("dX", "spill"), 0)


def chain_traffic(
    upper: MatMul,
    lower: MatMul,
    *,
    tile_upper: Size,
    tile_lower: Size,
    capacity_bytes: float,
    element_bytes: int,
    policy: Policy = "lru",
    join: Join = "block",
    mask: Mask = "relu",
    lower_dx: bool = True,
) -> ChainTraffic:
    """Bytes of both gradients of two layers, given as forward products with tiles in their own M, N, K.

    The lower layer's N is the upper's K, with the same tiles. `lower_dx=False` omits dX of the lower layer (the first layer of a
    network has none).

    >>> moved = chain_traffic(MatMul(8, 2, 4), MatMul(8, 4, 2), tile_upper=(2, 2, 2), tile_lower=(2, 2, 2),
    ...                        capacity_bytes=64, element_bytes=1)
    >>> moved.total_bytes, 8 * 2 + 8 * 4 + 8 * 2 + 8 * 2 + 4 * (4 * 2)  # upper dY and X, lower X and dX, two W, two dW
    (112, 112)
    """
    for size in (*tile_upper, *tile_lower, element_bytes):
        if isinstance(size, bool) or not isinstance(size, int):
            raise BadInput(f"tiles and element_bytes must be whole numbers, got {tile_upper}, {tile_lower}, {element_bytes!r}")
    require_positive("chain_traffic", element_bytes=element_bytes, least_tile=min(*tile_upper, *tile_lower))
    pairs = Pair.dense(upper, element_bytes), Pair.dense(lower, element_bytes)
    chain = Chain(upper=pairs[0], lower=pairs[1], masked=mask == "relu", lower_dx=lower_dx)
    supply = Supply(resident_bytes=capacity_bytes, bytes_per_cycle=math.inf)
    return _run(chain, tile_upper, tile_lower, supply, policy, join, _IDLE)[0]


_IDLE: Integers = np.zeros(32, dtype=np.int64)  # only bytes are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCost:
    """A chain with its tiles: traffic, cycles, and cycles of the array alone."""

    tile_upper: Size
    tile_lower: Size
    join: Join
    traffic: ChainTraffic
    cycles: int
    compute_cycles: int


def chain_cost(
    chain: Chain, *, tile_upper: Size, tile_lower: Size, array: Array, supply: Supply, policy: Policy = "lru", join: Join = "block"
) -> ChainCost:
    """A chain on an array behind a scratchpad of which `supply.resident_bytes` hold tiles; tiles as in `chain_traffic`."""
    cuts = grid(chain.upper.op, tile_upper), grid(chain.lower.op, tile_lower)
    table = _compute(chain, cuts, array)
    moved, cycles, compute_cycles = _run(chain, tile_upper, tile_lower, supply, policy, join, table)
    return ChainCost(
        tile_upper=tile_upper, tile_lower=tile_lower, join=join, traffic=moved, cycles=cycles, compute_cycles=compute_cycles
    )


def _compute(chain: Chain, cuts: tuple[Grid, Grid], array: Array) -> Integers:
    """Cycles of each kind of operation, by the kernel's numbering."""
    table = np.zeros(32, dtype=np.int64)
    gradients: tuple[Gradient, ...] = ("dX", "dW")
    for layer, (pair, cut) in enumerate(zip((chain.upper, chain.lower), cuts, strict=True)):
        for which, gradient in enumerate(gradients):
            if layer and gradient == "dX" and not chain.lower_dx:
                continue
            for edges_of in product((0, -1), repeat=3):
                sizes = (cut.m[edges_of[0]], cut.n[edges_of[1]], cut.k[edges_of[2]])
                number = 16 * layer + 8 * which - 4 * edges_of[0] - 2 * edges_of[1] - edges_of[2]
                table[number] = tile_cycles(array, pair.products.of(gradient, *sizes))
    return table


def _require(chain: Chain, tile_upper: Size, tile_lower: Size, capacity_bytes: float, policy: Policy, join: Join) -> None:
    upper, lower = chain.upper.op, chain.lower.op
    (m, _, k), (lower_m, lower_n, _) = tile_upper, tile_lower
    if (min(m, upper.M), min(k, upper.K)) != (min(lower_m, lower.M), min(lower_n, lower.N)):
        raise BadInput(f"a tile {m} x {k} of the upper dX is no tile {lower_m} x {lower_n} of the lower dY: give both the same")
    require_choice("", policy=(policy, CHAIN_POLICIES), join=(join, JOINS))
    needed = chain.needed(tile_upper, tile_lower)
    if needed > capacity_bytes * SLACK:
        raise BadInput(
            f"an operation with tiles {tile_upper} of {upper} over {tile_lower} of {lower} needs {needed:g} bytes, there is room "
            f"for {capacity_bytes:g}: give more room or smaller tiles"
        )


def _op_elements(op: MatMul, tile: Size, masked: bool) -> int:
    m, n, k = _clipped(op, tile)
    return m * n + k * n + m * k * (2 if masked else 1)


def _run(
    chain: Chain, tile_upper: Size, tile_lower: Size, supply: Supply, policy: Policy, join: Join, compute: Integers
) -> tuple[ChainTraffic, int, int]:
    """Traffic, cycles, cycles of the array alone."""
    from trainyard.kernels.mapping.gradient_order import chain as kernel

    _require(chain, tile_upper, tile_lower, supply.resident_bytes, policy, join)
    above, count = grid(chain.upper.op, tile_upper), chain.upper.op.count
    cuts = (above.m, above.n, above.k, grid(chain.lower.op, tile_lower).k)
    m, n, k, j = (np.array(cut) for cut in cuts)
    sides = [(m, n), (k, n), (m, k), (m, k), (k, n), (j, k), (m, j), (m, j), (j, k)]
    tiles = [np.multiply.outer(rows, columns).ravel() for rows, columns in sides]
    sizes = np.concatenate([np.multiply.outer(elements, rate) for elements, rate in zip(tiles, chain.rates, strict=True)])
    starts = np.cumsum([0, *(len(elements) for elements in tiles)])
    tensor = np.repeat(np.arange(len(sides)), np.diff(starts))
    added = np.array([0, 0, 0, len(n), len(m), 0, 0, len(k), len(m)])
    rows = kernel.stream(np.array([len(cut) for cut in cuts]), starts, chain.masked, chain.lower_dx, join == "tile")
    uses = kernel.next_uses(rows, int(starts[-1])) if policy == "farthest" else np.zeros((0, 4), dtype=np.int64)
    settings = np.array([len(j) * (2 if chain.lower_dx else 1), CHAIN_POLICIES.index(policy), supply.latency_cycles, min(count, 2)])
    limits = np.array([supply.resident_bytes * SLACK, supply.bytes_per_cycle])
    moved, cycles = kernel.run(rows, uses, sizes, tensor, added[tensor], settings, limits, compute)
    moved_chain = ChainTraffic(
        upper=kernel_traffic(moved[:5] * count, NAMES[:5]), lower=kernel_traffic(moved[5:] * count, NAMES[5:])
    )
    return moved_chain, int(cycles[0]) + (count - 1) * int(cycles[1] - cycles[0]), int(cycles[2]) * count


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainChoice:
    """The best chain found for two layers, the best found for them apart, and the lower bound of two separate layers.

    `apart_least_bytes` is that of `bound`, of each layer by itself: a chain below it beats every order and tile of separate layers.
    """

    upper: MatMul
    lower: MatMul
    tile_upper: Size
    tile_lower: Size
    join: Join
    traffic: ChainTraffic
    apart_bytes: int
    apart_least_bytes: int

    @property
    def pays(self) -> bool:
        """Whether the chain moves fewer bytes than the layers apart; otherwise it is not used."""
        return self.traffic.total_bytes < self.apart_bytes

    @property
    def beats_any_apart(self) -> bool:
        return self.traffic.total_bytes < self.apart_least_bytes

    @property
    def saved_bytes(self) -> int:
        return max(0, self.apart_bytes - self.traffic.total_bytes)


def search_chain(
    upper: MatMul,
    lower: MatMul,
    *,
    capacity_bytes: float,
    element_bytes: int,
    policy: Policy = "lru",
    mask: Mask = "relu",
    lower_dx: bool = True,
    granule: int = 32,
    apart_bytes: int | None = None,
) -> ChainChoice:
    """Tiles and join of two layers that move the fewest bytes; tile edges are extents halved repeatedly, down to `granule`.

    `apart_bytes` are the bytes of the layers apart if the caller knows them; else the best order and tile of each are searched
    among the same edges.

    >>> chosen = search_chain(MatMul(4096, 64, 128), MatMul(4096, 128, 64), capacity_bytes=2**18, element_bytes=2)
    >>> chosen.pays, chosen.beats_any_apart, chosen.saved_bytes == 2 * 2 * 4096 * 128  # dX not written, dY not read
    (True, True, True)
    """
    best: tuple[int, Size, Size, Join, ChainTraffic] | None = None
    layers = (upper, lower) if lower_dx else (upper,)
    first = 0 if lower_dx else lower.K * lower.N + lower.M * lower.K  # neither W nor dX
    least = element_bytes * upper.count * (_once(upper) + _once(lower) - first - 2 * upper.M * upper.K)
    for tile_upper, tile_lower in _candidates(upper, lower, capacity_bytes / element_bytes, mask, granule):
        for join in JOINS:
            moved = chain_traffic(
                upper, lower, tile_upper=tile_upper, tile_lower=tile_lower, capacity_bytes=capacity_bytes,
                element_bytes=element_bytes, policy=policy, join=join, mask=mask, lower_dx=lower_dx,
            )  # fmt: skip
            if best is None or moved.total_bytes < best[0]:
                best = (moved.total_bytes, tile_upper, tile_lower, join, moved)
        if best is not None and best[0] <= least:
            break  # everything moves once
    if best is None:
        raise BadInput(f"no tiles of {upper} over {lower} fit {capacity_bytes:g} bytes: give more room or a smaller granule")
    if apart_bytes is None:
        apart_bytes = sum(_least_bytes_apart(op, capacity_bytes, element_bytes, policy, granule) for op in layers)
        apart_bytes += 0 if lower_dx else _weight_gradient_least(lower, capacity_bytes, element_bytes)
    bound = sum(least_bytes(op, capacity_bytes, element_bytes).total for op in layers)
    bound += 0 if lower_dx else _weight_gradient_least(lower, capacity_bytes, element_bytes)
    return ChainChoice(
        upper=upper, lower=lower, tile_upper=best[1], tile_lower=best[2], join=best[3], traffic=best[4],
        apart_bytes=apart_bytes, apart_least_bytes=bound,
    )  # fmt: skip


def _once(op: MatMul) -> int:
    return op.M * op.N + 2 * op.K * op.N + 2 * op.M * op.K


def _weight_gradient_least(op: MatMul, capacity_bytes: float, element_bytes: int) -> int:
    """The lower bound of dW alone, in favour of layers apart."""
    return least_bytes_alone(MatMul(op.K, op.N, op.M, op.count), capacity_bytes, element_bytes).total


def edges(extent: int, granule: int) -> list[int]:
    """An extent halved repeatedly, rounded up, down to about the granule.

    >>> edges(479, 64)
    [479, 240, 120, 60]
    """
    return list(dict.fromkeys(math.ceil(extent / 2**times) for times in range(max(1, math.ceil(extent / granule).bit_length()))))


def _candidates(upper: MatMul, lower: MatMul, elements: float, mask: Mask, granule: int) -> list[tuple[Size, Size]]:
    """Tiles of both layers that fit, large tiles first."""
    tiles_by_operations: list[tuple[int, tuple[Size, Size]]] = []
    for m, n, k, j in product(*(edges(extent, granule) for extent in (upper.M, upper.N, upper.K, lower.K))):
        tiles = (m, n, k), (m, k, j)
        if max(_op_elements(upper, tiles[0], mask == "relu"), _op_elements(lower, tiles[1], False)) <= elements:
            tiles_by_operations.append((_operations(upper, tiles[0]) + _operations(lower, tiles[1]), tiles))
    return _with_few_operations(tiles_by_operations)


def _operations(op: MatMul, tile: Size) -> int:
    return 2 * math.prod(math.ceil(extent / size) for extent, size in zip((op.M, op.N, op.K), tile, strict=True))


def _with_few_operations(candidates: Sequence[tuple[int, T]]) -> list[T]:
    """Candidates with few operations, or if there are none, those with the fewest."""
    fewest = min((operations for operations, _ in candidates), default=0)
    return [tiles for operations, tiles in candidates if operations <= max(fewest, MOST_OPERATIONS)]


@lru_cache(maxsize=4096)
def _least_bytes_apart(op: MatMul, capacity_bytes: float, element_bytes: int, policy: Policy, granule: int) -> int:
    """The fewest bytes of one layer over orders and tiles."""
    best, once = math.inf, element_bytes * op.count * _once(op)
    sizes: list[Size] = [(m, n, k) for m, n, k in product(*(edges(extent, granule) for extent in (op.M, op.N, op.K)))]
    fitting = [tile for tile in sizes if _op_elements(op, tile, False) * element_bytes <= capacity_bytes]
    for tile in _with_few_operations([(_operations(op, tile), tile) for tile in fitting]):
        for order in ORDERS_APART:
            moved = traffic(op, tile=tile, capacity_bytes=capacity_bytes, element_bytes=element_bytes, order=order, policy=policy)
            best = min(best, moved.total_bytes)
        if best <= once:
            break
    return int(best)


def chosen_chains(
    step: Step, *, capacity_bytes: float, element_bytes: int, policy: Policy = "lru", granule: int = 32
) -> tuple[tuple[Link, ChainChoice], ...]:
    """The links of a step to use: of those that fuse and pay, the pairs of layers that together save most.

    A layer is in one chain at most. What else an epilogue reads (the mask of a dropout, the input of a GELU) is read by separate
    layers too, and counts on neither side.
    """
    paying: list[tuple[Link, ChainChoice]] = []
    for link in gradient_links(step):
        if link.fuses and link.lower_product is not None:
            choice = _cached_search(
                link.upper_product, link.lower_product, capacity_bytes, element_bytes, policy, link.relu, link.lower_dx, granule
            )
            paying += [(link, choice)] if choice.pays else []
    return _best_disjoint(paying)


@lru_cache(maxsize=1024)
def _cached_search(
    upper: MatMul, lower: MatMul, capacity: float, element_bytes: int, policy: Policy, relu: bool, lower_dx: bool, granule: int
) -> ChainChoice:
    return search_chain(
        upper, lower, capacity_bytes=capacity, element_bytes=element_bytes, policy=policy, mask="relu" if relu else "none",
        lower_dx=lower_dx, granule=granule,
    )  # fmt: skip


def _best_disjoint(links: Sequence[tuple[Link, ChainChoice]]) -> tuple[tuple[Link, ChainChoice], ...]:
    """The subset that saves most and has no layer twice."""
    chosen = best_disjoint_links([link for link, _ in links], [choice.saved_bytes for _, choice in links])
    return tuple(links[number] for number in chosen)
