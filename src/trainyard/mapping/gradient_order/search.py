"""Order, tiles and partition of a pair of gradients, searched together.

The search is compiled (`kernels.mapping.gradient_order.search`) where an array has closed forms, on one core whose least recent
tiles leave first: for each number of tiles along an axis the least size that gives it, whole granules, and all sizes of short axes.
Each candidate has a lower bound on its cycles: what the array needs for all its tiles, or the bytes that must move, each tensor
once and what loops must reload (`_reloaded_bytes`). Coarse candidates (doublings of the granule) are simulated in the order of
their bounds, finer ones around the best, then all that bounds do not rule out, as far as the effort goes; `proven` says whether it
sufficed. The least cycles win; within the tolerance of them the least traffic. For `objective="traffic"` it is the other way round.

In all other cases coarse candidates are simulated (`scratchpad.cost`) in the order of their bounds, until no bound is below the
best one. More bandwidth never costs time beyond the tolerance; more room may, where the same bytes arrive at a worse moment.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir import Array
from trainyard.ir.folds import AXES
from trainyard.ir.protocols import HasClosedForm
from trainyard.mapping.gradient_order.scratchpad import (
    MOST_TILES,
    SLACK,
    OrderCost,
    Pair,
    Policy,
    Products,
    cost,
    kernel_traffic,
    too_many_tiles,
)
from trainyard.mapping.gradient_order.tile_streams import (
    FUSED_ORDERS,
    K_INNER_ORDERS,
    ORDERS,
    Gradient,
    Grid,
    Order,
    Partition,
    Size,
    grid,
)
from trainyard.mapping.tiling import NO_TILE, Supply

if TYPE_CHECKING:
    from trainyard.kernels.mapping.gradient_order.menus import Menus, PairTask
    from trainyard.mapping.tile_descent import CountedTiles

MOST_STEPS, MOST_STEPS_FOR_TRAFFIC = 1 << 18, 1 << 13
"""Tiles with more operations than this are tried only if all have more; slow ones are ruled out early only where time counts."""
TOLERANCE = 0.01
"""How much longer than the fastest a tile may take that moves fewer bytes."""
GAP_OF_TOLERANCE = 0.5
"""Part of the tolerance that the search may use up itself: what could be faster by less is not looked for."""
EFFORT, EFFORT_FOR_TRAFFIC = 1024.0, 262144.0
"""Tile operations that are simulated after the coarse search: a few tenths of a millisecond. The least traffic often takes many
small tiles, and more of them to be found."""
CACHED_SEARCHES, CACHED_MENUS = 4096, 256
Integers = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Forms = tuple[tuple[int, ...], ...]
"""Rows of an array's closed forms."""
DY, W, X, DX, DW = range(5)
RESIDENT, MOVED = range(2)
Aim = Literal["time", "traffic"]
"""What a search makes least first."""


def granule(pair: Pair, array: Array) -> Size:
    """The array's natural tile in the forward product's m, n, k; the larger of the two roles of an axis."""
    gm, gn, gk = array.granule()
    if pair.alone:
        return gm, gk, gn
    dw_k, dw_n = (gn, gm) if pair.dw_transposed else (gm, gn)
    windows = pair.windows
    return max(-(-gm // pair.spread), gk), max(-(-gk // windows), dw_n), max(gn, -(-dw_k // windows))


def best(
    pair: Pair,
    array: Array,
    supply: Supply,
    *,
    orders: Sequence[Order] = FUSED_ORDERS,
    partitions: Sequence[Partition | None] = (None,),
    policy: Policy = "lru",
    tile: Size | None = None,
    tolerance: float = TOLERANCE,
    effort: float = EFFORT,
    objective: Aim = "time",
) -> OrderCost:
    """The best order, tile and partition (`fastest`)."""
    found = fastest(
        pair, array, supply, orders=orders, partitions=partitions, policy=policy, tile=tile, tolerance=tolerance, effort=effort,
        objective=objective,
    )  # fmt: skip
    if found is None and tile is not None and all(tile):
        cost(pair, tile=tile, order=orders[0], array=array, supply=supply, policy=policy, partition=partitions[0])  # says why
    if found is None and pair.needed((1, 1, 1)) <= supply.resident_bytes:
        raise too_many_tiles(f"tiles of {pair.op} that fit {supply.resident_bytes:g} bytes")
    if found is None:
        raise BadInput(
            f"no tile of {pair.op} finds room: one element of each tensor needs {pair.needed((1, 1, 1)):g} bytes, half of the "
            f"scratchpad holds {supply.resident_bytes:g}: give a larger scratchpad"
        )
    return found


def fastest(
    pair: Pair,
    array: Array,
    supply: Supply,
    *,
    orders: Sequence[Order] = FUSED_ORDERS,
    partitions: Sequence[Partition | None] = (None,),
    policy: Policy = "lru",
    tile: Size | None = None,
    tolerance: float = TOLERANCE,
    effort: float = EFFORT,
    most_cycles: float = math.inf,
    objective: Aim = "time",
) -> OrderCost | None:
    """The order, tile and partition with the fewest cycles, within `tolerance` of these the one with the least traffic; with
    `objective="traffic"` that with the least traffic, within `tolerance` of it the one with the fewest cycles.

    A given tile is fixed, but for sizes of 0, which are searched. None where no tile fits, or all take more than `most_cycles`.
    `effort` is the number of tile operations that are simulated at most after the coarse search; `proven` of the result says
    whether the search was complete.
    """
    forms = tuple(form.row for form in array.folds) if isinstance(array, HasClosedForm) else ()
    if (
        not forms
        or policy != "lru"
        or not {*orders}.isdisjoint(K_INNER_ORDERS)
        or any(partition is not None and partition.cores for partition in partitions)
    ):
        return _by_table(pair, array, supply, orders, partitions, policy, tile, most_cycles, objective)
    names = ORDERS[:1] if pair.alone else tuple(orders)
    return _searched(
        pair, forms, granule(pair, array), supply, names, tuple(partitions), tile, tolerance, effort, most_cycles, objective
    )  # fmt: skip


@lru_cache(maxsize=CACHED_SEARCHES)
def _searched(
    pair: Pair,
    forms: Forms,
    smallest: Size,
    supply: Supply,
    orders: tuple[Order, ...],
    partitions: tuple[Partition | None, ...],
    tile: Size | None,
    tolerance: float,
    effort: float,
    most_cycles: float,
    objective: Aim,
) -> OrderCost | None:
    """The compiled search; `forms` are the array's closed forms."""
    from trainyard.kernels.mapping.gradient_order import search as kernel

    lean = objective == "traffic"
    most_steps = MOST_STEPS_FOR_TRAFFIC if lean else MOST_STEPS
    found = _prepared(pair, forms, smallest, orders, partitions, tile).task(supply, most_steps)
    if found is None:
        return None
    task, menus = found
    chosen, moved, cycles, compute, proven = kernel.search_pair(
        task, menus, float(tolerance), float(tolerance * GAP_OF_TOLERANCE), float(effort), float(most_cycles), lean
    )  # fmt: skip
    which, order, m, n, k = chosen.tolist()
    if which < 0:
        return None
    ordered = OrderCost(
        order=orders[0] if pair.alone else ORDERS[order],
        tile=(m, n, k),
        partition=partitions[which],
        traffic=kernel_traffic(moved * pair.op.count),
        cycles=int(cycles),
        compute_cycles=int(compute) * pair.op.count,
        proven=proven,
    )
    if not lean or proven:
        return ordered
    # an incomplete search may move more than the fastest tiles
    quick = _searched(pair, forms, smallest, supply, orders, partitions, tile, tolerance, EFFORT, most_cycles, "time")
    return ordered if quick is None or quick.traffic.total_bytes >= ordered.traffic.total_bytes else replace(quick, proven=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What the compiled search takes of a pair, whatever the memory system is."""

    pair: Pair
    smallest: Size
    tile: Size
    fields: tuple[Integers, Real, Integers, Products, Integers, Integers]
    whole: bool
    menus: dict[int, Menus] = field(default_factory=dict)

    def task(self, supply: Supply, most_steps: int = MOST_STEPS) -> tuple[PairTask, Menus] | None:
        """The arguments of a search, sizes halved below the granule where it has no room; None where nothing fits."""
        from trainyard.kernels.mapping.gradient_order.menus import PairTask, make_menus

        op, room, halvings, fixed = self.pair.op, float(supply.resident_bytes), 0, self.tile
        free = (min(self.smallest[0], op.M), min(self.smallest[1], op.N), min(self.smallest[2], op.K))
        while self.pair.needed((fixed[0] or free[0], fixed[1] or free[1], fixed[2] or free[2])) > room:
            if all(fixed) or max(free) == 1:
                return None
            free, halvings = (-(-free[0] // 2), -(-free[1] // 2), -(-free[2] // 2)), halvings + 1
        limits = np.array([room, supply.bytes_per_cycle, room if self.whole else room * SLACK])
        task = PairTask(*self.fields, limits, supply.latency_cycles, float(most_steps), float(MOST_TILES))
        if halvings not in self.menus:
            self.menus[halvings] = make_menus(task, np.array(self.smallest), np.array(fixed), halvings)
        return task, self.menus[halvings]


@lru_cache(maxsize=CACHED_MENUS)
def _prepared(
    pair: Pair,
    forms: Forms,
    smallest: Size,
    orders: tuple[Order, ...],
    partitions: tuple[Partition | None, ...],
    tile: Size | None,
) -> _Prepared:
    from trainyard.kernels.mapping.gradient_order.scratchpad import ALONE

    op = pair.op
    parts = [_parts(partition, (op.M, op.N, op.K)) for partition in partitions]
    numbers = [ALONE] if pair.alone else [ORDERS.index(order) for order in orders]
    fields = (
        np.array([op.M, op.N, op.K, op.count]), pair.rates, np.array(forms, dtype=np.int64), pair.products, np.array(numbers),
        np.array(parts),
    )  # fmt: skip
    whole = all(rate.is_integer() for rate in pair.rates[:, 0].tolist())
    return _Prepared(pair, smallest, tile or NO_TILE, fields, whole)


def _parts(partition: Partition | None, extents: Size) -> tuple[int, int]:
    """Axis and number of parts."""
    if partition is None:
        return -1, 1
    axis = AXES.index(partition.axis)
    return axis, min(partition.parts, extents[axis])


def _by_table(
    pair: Pair,
    array: Array,
    supply: Supply,
    orders: Sequence[Order],
    partitions: Sequence[Partition | None],
    policy: Policy,
    tile: Size | None,
    most_cycles: float,
    objective: Aim = "time",
) -> OrderCost | None:
    """The best of coarse sizes: for several cores, for `farthest`, and an array that is asked for the cycles of each tile."""
    from trainyard.mapping.tile_descent import CountedTiles

    cached = CountedTiles.of(array)
    evaluations: list[tuple[float, Callable[[], OrderCost]]] = []
    for partition in partitions:
        if tile is not None and all(tile):
            tiles = [tile]
        else:
            tiles = candidates(pair, granule(pair, array), supply.resident_bytes, partition, tile)
        for size in tiles:
            compute = _compute(pair, size, cached, supply, partition)
            latency = _bursts(pair, size, partition, policy) * supply.latency_cycles
            for order in orders[:1] if pair.alone else orders:
                least = _least_bytes(pair, size, order, supply.resident_bytes, policy, partition)
                evaluate = partial(
                    cost, pair, tile=size, order=order, array=cached, supply=supply, policy=policy, partition=partition
                )
                bound = least if objective == "traffic" else max(compute, least / supply.bytes_per_cycle + latency)
                evaluations.append((bound, evaluate))
    return best_candidate(evaluations, most_cycles, objective)


class _Traffic(Protocol):
    @property
    def total_bytes(self) -> int: ...


class _Cost(Protocol):
    @property
    def cycles(self) -> int: ...
    @property
    def traffic(self) -> _Traffic: ...


C = TypeVar("C", bound=_Cost)


def best_candidate(
    candidates: Sequence[tuple[float, Callable[[], C]]], most_cycles: float = math.inf, objective: Aim = "time"
) -> C | None:
    """The best of candidates (lower bound on its cycles, or bytes; function that computes its cost), None if all take more than
    `most_cycles`.

    They are evaluated in the order of their bounds, until no bound is below the best; of equally fast ones the one with the least
    traffic is returned, of equally lean ones the fastest.
    """
    best: C | None = None

    def value(candidate: C) -> tuple[int, int]:
        cycles, moved = candidate.cycles, candidate.traffic.total_bytes
        return (moved, cycles) if objective == "traffic" else (cycles, moved)

    for bound, evaluate in sorted(candidates, key=itemgetter(0)):
        if objective == "time" and (bound > most_cycles or (best is not None and bound >= best.cycles)):
            break
        if objective == "traffic" and best is not None and bound > best.traffic.total_bytes:
            break
        evaluated = evaluate()
        if evaluated.cycles <= most_cycles and (best is None or value(evaluated) < value(best)):
            best = evaluated
    return best


def candidates(
    pair: Pair, smallest: Size, room: float, partition: Partition | None = None, fixed: Size | None = None
) -> list[Size]:
    """Tiles that fit, fewest operations first; tiles below the granule only if no other fits. `fixed` sizes stay (0: free)."""
    cores = partition.parts if partition is not None and partition.cores else 1
    extents = (pair.op.M, pair.op.N, pair.op.K)
    resident = _bytes_per_element(pair, RESIDENT)
    stay = [min(size, extent) for size, extent in zip(fixed or (0, 0, 0), extents, strict=True)]
    menus = [(own,) if own else doublings(extent, size) for extent, size, own in zip(extents, smallest, stay, strict=True)]
    sizes = ((m, n, k) for m in menus[0] for n in menus[1] for k in menus[2])
    fitting = [size for size in sizes if _needed(resident, size) * cores <= room]
    if not fitting:
        halved = ((stay[0] or m, stay[1] or n, stay[2] or k) for m, n, k in _halvings(extents, smallest))
        fitting = [size for size in halved if _needed(resident, size) * cores <= room][:1]
    few = [size for size in fitting if _steps(extents, size) <= MOST_STEPS]
    return sorted(few or fitting, key=lambda size: (_steps(extents, size), size))


@lru_cache(maxsize=4096)
def doublings(extent: int, smallest: int) -> tuple[int, ...]:
    doubled = itertools.takewhile(lambda size: size < extent, (smallest << power for power in range(extent.bit_length() + 1)))
    return (*doubled, extent)


def _halvings(extents: Size, smallest: Size) -> Iterator[Size]:
    size = [min(extent, unit) for extent, unit in zip(extents, smallest, strict=True)]
    while max(size) > 1:
        size = [max(1, side // 2) for side in size]
        yield size[0], size[1], size[2]


def _bytes_per_element(pair: Pair, kind: int) -> list[float]:
    """Bytes of an element of each tensor."""
    return [float(rate) for rate in pair.rates[:, kind]]


def _needed(resident: Sequence[float], tile: Size) -> float:
    """Bytes of the larger of the two operations; one that is left out has none."""
    m, n, k = tile
    first, second = m * k * resident[DX] + k * n * resident[W], m * k * resident[X] + k * n * resident[DW]
    return m * n * resident[DY] + max(first, second)


def _steps(extents: Size, tile: Size) -> int:
    counts = [-(-extent // size) for extent, size in zip(extents, tile, strict=True)]
    return counts[0] * counts[1] * counts[2]


def _compute(pair: Pair, tile: Size, array: CountedTiles, supply: Supply, partition: Partition | None) -> float:
    """Cycles of all tiles, spread evenly over the cores, and of the first loads and the last write, which nothing hides."""
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    gradients: tuple[Gradient, ...] = ("dX",) if pair.alone else ("dX", "dW")
    dy, w, _, dx, dw = _bytes_per_element(pair, MOVED)
    m, n, k = cut.m[0], cut.n[0], cut.k[0]
    seen = m * n * dy + k * n * w
    m, n, k = cut.m[-1], cut.n[-1], cut.k[-1]
    seen += m * k * dx if pair.alone else k * n * dw
    return (
        all_tiles(pair, cut, gradients, array) * pair.op.count / cores + seen / supply.bytes_per_cycle + 2 * supply.latency_cycles
    )


def all_tiles(pair: Pair, cut: Grid, gradients: Sequence[Gradient], array: CountedTiles) -> int:
    """Cycles of the array for every tile of some gradients, one after the other."""
    total = 0
    for (m, rows), (n, columns), (k, deep) in itertools.product(*(Counter(cut.sizes(axis)).items() for axis in AXES)):
        products = (pair.products.of(gradient, m, n, k) for gradient in gradients)
        total += rows * columns * deep * sum(array.tile_cycles(product.M, product.N, product.K) for product in products)
    return total


def _bursts(pair: Pair, tile: Size, partition: Partition | None, policy: Policy = "lru") -> int:
    """Fewest transfers: a step loads no more than two operand tiles on each core, and the last result is written by itself.

    A window may load everything at once.
    """
    if policy == "window":
        return 2
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    m, n, k = len(cut.m), len(cut.n), len(cut.k)
    operands = m * n + k * n + (0 if pair.alone else m * k)
    return pair.op.count * -(-operands // (2 * cores)) + 1


def _least_bytes(pair: Pair, tile: Size, order: Order, room: float, policy: Policy, partition: Partition | None) -> float:
    """A lower bound on the bytes moved: every tensor once, and what each part (on several cores: one of them) reloads."""
    sides, parts = {"m": pair.op.M, "n": pair.op.N, "k": pair.op.K}, 1
    is_lru = policy == "lru"
    if partition is not None:
        parts = min(partition.parts, sides[partition.axis])
        sides[partition.axis] //= parts  # the smallest
        if partition.cores:  # one core may load what another has evicted
            parts, is_lru = 1, False
    sizes = {axis: min(side, size) for (axis, side), size in zip(sides.items(), tile, strict=True)}
    return pair.compulsory_bytes + pair.op.count * parts * _reloaded_bytes(pair, sides, sizes, order, room, is_lru)


def _reloaded_bytes(
    pair: Pair, sides: Mapping[str, int], sizes: Mapping[str, int], order: Order, room: float, is_lru: bool
) -> float:
    """A lower bound on the bytes that are loaded more than once.

    A loop that uses tensors in each of its turns needs them again in all turns but the first; what does not fit is then reloaded.
    An LRU scratchpad (`is_lru`) always evicts what is needed next: if the tensors do not fit together, all of them are reloaded,
    unless other operations touch them in between, or finished sums free room.
    """
    m, n, k = (sides[axis] for axis in AXES)
    resident = [
        rate * elements
        for rate, elements in zip(_bytes_per_element(pair, RESIDENT), (m * n, k * n, m * k, m * k, k * n), strict=True)
    ]
    moved = (*pair.moved[:DX], 2 * pair.sums[0], 2 * pair.sums[1])  # a spilled sum is written and read back
    rates = [size / resident_bytes if resident_bytes else 0.0 for size, resident_bytes in zip(moved, pair.resident, strict=True)]

    def loop(tensors: tuple[int, ...], axis: str, outside: str = "", seeing: int = 0) -> float:
        """Reloaded bytes of tensors that each turn of `axis` uses, a slice at a time inside an `outside` loop.

        In `seeing` turns only what does not fit is sure to be reloaded.
        """
        slices, part = (sides[outside] // sizes[outside], sizes[outside] / sides[outside]) if outside else (1, 1.0)
        needed = part * sum(resident[tensor] for tensor in tensors)
        if needed <= room * SLACK:
            return 0.0
        overflow = (needed - room) * min(rates[tensor] for tensor in tensors)
        everything = part * sum(resident[tensor] * rates[tensor] for tensor in tensors)
        turns = -(-sides[axis] // sizes[axis]) - 1
        seeing = min(turns, seeing) if is_lru else turns
        return slices * (seeing * overflow + (turns - seeing) * everything)

    if order == "dx_major" and not pair.alone:  # m, k, n; in the last m, sums of dW end
        return loop((W, DW), "m", seeing=1) + loop((DY,), "k", "m")
    if order == "dw_major" and not pair.alone:  # n, k, m; in the last n, sums of dX end
        return loop((X, DX), "n", seeing=1) + loop((DY,), "k", "n")
    if order == "dx_major_mnk" and not pair.alone:  # m, n, k; in the last n of each m, sums of dX end
        return loop((W, DW), "m", seeing=1) + loop((X, DX), "n", "m", seeing=1)
    if order == "dw_major_nmk" and not pair.alone:
        return loop((X, DX), "n", seeing=1) + loop((W, DW), "m", "n", seeing=1)
    w, dy = loop((W,), "m"), loop((DY,), "k", "m")  # m, k, n
    if pair.alone:
        return w + dy
    x = loop((X,), "n", "k")  # k, n, m
    if order == "interleaved":  # both touch dY
        return w + x + max(loop((DY,), "k", "m", seeing=k), loop((DY,), "k", seeing=k))
    if order == "no_second_dy":
        return w + x + dy
    return w + x + dy + loop((DY,), "k") + max(0.0, resident[DY] - room) * rates[DY]
