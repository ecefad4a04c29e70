"""Reduction networks, which add the products of N lanes into the sums of several dot products of any size at once.

FAN is the forwarding adder network of SIGMA (E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible
Interconnects for DNN Training. HPCA 2020, Sec. IV-A2), ART the augmented reduction tree of MAERI (H. Kwon et al.: MAERI: Enabling
Flexible Dataflow Mapping over DNN Accelerators via Reconfigurable Interconnects. ASPLOS 2018). The other two are the linear ways.

| network     | adders | inputs | links                                  | a sum is ready after           | next fold after |
|-------------|--------|--------|----------------------------------------|--------------------------------|-----------------|
| Fan         | N - 1  | 2      | 2 (N - 1 - log2 N), between levels     | 1 + level of its highest adder | log2 N          |
| Art         | N - 1  | 3      | N - 2 up, N/2 - log2 N between siblings | 1 + level of its highest node  | log2 N          |
| LinearChain | N - 1  | 2      | N - 1, lane to lane                    | N, whatever its size           | N               |
| Temporal    | N      | 2      | none                                   | m, its own size                | longest m       |

Cycles count from when the products are there; one level of reduction takes one cycle (Sec. V). All but Temporal take a vector each
cycle. In a tree the place of a dot product counts: two lanes astride the middle meet in the root, so the paper's log2 m is the best
case of m lanes and log2 N the worst. A dot product of one lane passes one register (the bypass of its first adder): one cycle.
Every sum leaves at the adder that finishes it; how sums are collected from there is no part of these networks.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput

Integers = npt.NDArray[np.int64]
Single = npt.NDArray[np.float32]

IDLE, BYPASS, ADD = 0, 1, 2  # what an adder of FAN does (Fig. 6c); as in the kernel
PORTS = 3  # output slots kept for each adder: see `Schedule`


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The sums of a batch of vectors that share one grouping, and the cycles in which they are ready."""

    ids: Integers
    """The dot products' ids, in lane order."""
    sums: Single
    """[vectors, dot products]"""
    finish: Integers
    """Cycles after its products are there until each sum leaves."""
    additions: int
    """Additions of two numbers, over all vectors; an adder of three inputs may do two at once."""
    interval: int
    """Cycles from one vector to the next."""

    @property
    def cycles(self) -> int:
        """Until the last sum of one vector leaves."""
        return int(self.finish.max(initial=0))


class Link(NamedTuple):
    """A wire between two adders with the flip-flops on it; adder i sits between lanes i and i + 1 (in a chain: at lane i)."""

    source: int
    target: int
    flip_flops: int = 0


class Groups(NamedTuple):
    """The dot products that vecIDs describe: id, first and last lane of each, and the number of the group in each lane."""

    ids: Integers
    starts: Integers
    ends: Integers
    of_lane: Integers


class Schedule(NamedTuple):
    """A network set up for one grouping. Each step moves or adds what is in its source slots into its target, in this order.

    Slot n below the number of lanes N is lane n's product; slot N + 3 a + p is port p of adder a. Port 0 is its register, port 1
    the second one of a bypassing adder (FAN) or the unregistered wire to its sibling (ART), port 2 a finished sum that leaves
    beside port 0 (ART).
    """

    ids: Integers
    cycles: Integers
    targets: Integers
    sources: Integers
    """[steps, 3], -1: none"""
    outlets: Integers
    """The slot that holds each group's sum."""
    finish: Integers
    interval: int = 1
    wired: bool = False
    """Port 1 is a wire: readable in the cycle it is written."""


class Route(NamedTuple):
    """The configuration of FAN: what each adder does, and the level of the link that its two multiplexers take (0: its lane)."""

    mode: Integers
    left: Integers
    right: Integers


class AdderTree(Protocol):
    """The interface of every reduction network."""

    @property
    def lanes(self) -> int: ...
    @property
    def adders(self) -> int: ...
    @property
    def adder_inputs(self) -> int: ...
    @property
    def links(self) -> tuple[Link, ...]: ...
    @property
    def mux_inputs(self) -> int: ...

    def fold_cycles(self, longest: int) -> int: ...
    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule: ...
    def reduce(self, values: npt.ArrayLike, vec_ids: npt.ArrayLike) -> Reduction: ...


def stall_cycles(tree: AdderTree, folds: int, stream: int, longest: int | None = None) -> int:
    """Cycles of `folds` folds of `stream` vectors each, where a fold waits for the last sum of the one before (Fig. 6b-iii).

    >>> chain, fan = (stall_cycles(tree, 100, 1000) for tree in (LinearChain(lanes=512), Fan(lanes=512)))
    >>> round(chain / fan, 2)
    1.5
    """
    require_positive("stall_cycles", folds=folds, stream=stream)
    return folds * (stream + tree.fold_cycles(tree.lanes if longest is None else longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The common part of the four networks: reading vecIDs, and running a schedule."""

    lanes: int
    adder_inputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, lanes=self.lanes)

    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule:
        raise NotImplementedError

    def groups(self, vec_ids: npt.ArrayLike) -> Groups:
        """The dot products in lane order; an error where the lanes of one are not contiguous."""
        from trainyard.kernels.networks.adder_trees import groups_of

        owner, ids = type(self).__name__, np.asarray(vec_ids)
        if ids.shape != (self.lanes,) or ids.dtype.kind not in "iu":
            raise BadInput(
                f"{owner}: vec_ids must be {self.lanes} whole numbers, one for each lane; got {ids.dtype} of shape {ids.shape}"
            )
        ids = ids.astype(np.int64)
        if ids.min() < -1:
            raise BadInput(f"{owner}: vec_ids[{ids.argmin()}] is {ids.min()}; ids count from 0, and -1 marks an idle lane")
        groups = Groups(*groups_of(ids))
        first_at: dict[int, int] = {}
        for number, name in enumerate(groups.ids.tolist()):
            if name in first_at:
                raise BadInput(
                    f"{owner}: id {name} of vec_ids ends at lane {groups.ends[first_at[name]]} and comes again at lane "
                    f"{groups.starts[number]}: the lanes of one dot product must follow each other (give those between the same id "
                    "and the value 0, or the second part an id of its own)"
                )
            first_at[name] = number
        return groups

    def reduce(self, values: npt.ArrayLike, vec_ids: npt.ArrayLike) -> Reduction:
        """The sums of each vector in FP32, in the network's own order of additions; `values` is [vectors, lanes]."""
        from trainyard.kernels.networks.adder_trees import sums_of

        products = self._products(values)
        ids, _, targets, sources, outlets, finish, interval, _ = self.schedule(vec_ids)
        sums = sums_of(products, targets, sources, outlets, self.lanes * (PORTS + 1))
        additions = int(np.count_nonzero(sources[:, 1:] >= 0)) * len(products)
        return Reduction(ids=ids, sums=sums, finish=finish, additions=additions, interval=interval)

    def watch(self, values: npt.ArrayLike, vec_ids: npt.ArrayLike) -> Single:
        """The value at the outlet of each dot product after 0, 1, 2, ... cycles: the clocked network, in plain Python.

        A vector enters every `interval` cycles. What is read later than in the next cycle waits in as many flip-flops. NaN: nothing
        has come yet.

        >>> Fan(lanes=4).watch([[1, 2, 3, 4], [5, 6, 7, 8]], [0, 0, 0, 1]).tolist()  # 1 + 2 + 3 is there after 2 cycles, 4 after 1
        [[nan, nan], [nan, 4.0], [6.0, 8.0], [18.0, nan]]
        """
        products, schedule = self._products(values), self.schedule(vec_ids)
        steps = list(zip(schedule.cycles.tolist(), schedule.targets.tolist(), schedule.sources.tolist(), strict=True))
        wires = {target for _, target, _ in steps if schedule.wired and (target - self.lanes) % PORTS == 1}
        nothing = np.float32(np.nan)
        ready = dict.fromkeys(range(self.lanes), 0)
        lines: list[list[tuple[int, deque[np.float32]]]] = []
        for cycle, target, sources in steps:
            lines.append([(slot, deque([nothing] * (cycle - 1 - ready[slot]))) for slot in sources if slot >= 0])
            ready[target] = cycle - (target in wires)
        ends = list(zip(schedule.outlets.tolist(), schedule.finish.tolist(), strict=True))
        outlets = [(slot, deque([nothing] * (finish - ready[slot]))) for slot, finish in ends]
        slots = [nothing] * (self.lanes * (PORTS + 1))
        last = (len(products) - 1) * schedule.interval + max((finish for _, finish in ends), default=0)
        shown = [[nothing] * len(ends)]
        for now in range(1, last + 1):
            vector, phase = divmod(now - 1, schedule.interval)
            slots[: self.lanes] = list(products[vector]) if phase == 0 and vector < len(products) else [nothing] * self.lanes
            written = {}
            for (cycle, target, _), operands in zip(steps, lines, strict=True):
                total = None
                for slot, line in operands:
                    line.append(slots[slot])
                    operand = line.popleft()
                    total = operand if total is None else total + operand
                if target in wires:
                    slots[target] = total if total is not None else nothing
                elif total is not None and now >= cycle and (now - cycle) % schedule.interval == 0:
                    written[target] = total
            for target, total in written.items():
                slots[target] = total
            shown.append([])
            for slot, line in outlets:
                line.append(slots[slot])
                shown[-1].append(line.popleft())
        return np.array(shown, dtype=np.float32)

    def _products(self, values: npt.ArrayLike) -> Single:
        products = np.ascontiguousarray(values, dtype=np.float32)
        if products.ndim != 2 or products.shape[1] != self.lanes:
            raise BadInput(f"{type(self).__name__}: values must be [vectors, {self.lanes} lanes], got the shape {products.shape}")
        return products

    def _longest(self, longest: int) -> int:
        require_positive(f"{type(self).__name__}.fold_cycles", longest=longest)
        if longest > self.lanes:
            raise BadInput(f"{type(self).__name__}.fold_cycles: a dot product of {longest} lanes does not fit {self.lanes}")
        return longest


class _Tree(_Network):
    """Adder i of N - 1 sits between lanes i and i + 1, on the level that is its number of trailing ones."""

    __slots__ = ()

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_positive(owner, lanes=self.lanes)
        if self.lanes < 2 or self.lanes & (self.lanes - 1):
            above = 1 << max(self.lanes.bit_length(), 1)
            near = f"{above // 2} or {above}" if above > 2 else "2"
            raise BadInput(f"{owner}: lanes must be a power of two from 2 on, got {self.lanes}; the nearest: {near}")

    @property
    def levels(self) -> int:
        return self.lanes.bit_length() - 1

    @property
    def adders(self) -> int:
        return self.lanes - 1

    def fold_cycles(self, longest: int) -> int:
        """One cycle per level, whatever the sizes: the next fold may use the root."""
        self._longest(longest)
        return self.levels

    def adder_levels(self) -> Integers:
        """The level of each adder.

        >>> Fan(lanes=8).adder_levels().tolist()
        [0, 1, 0, 2, 0, 1, 0]
        """
        return np.array([(adder ^ (adder + 1)).bit_length() - 1 for adder in range(self.adders)])


class Fan(_Tree):
    """SIGMA's forwarding adder network: a binary tree in which each adder also reaches the nearest adders of all lower levels.

    Any grouping has a route. Of the adders between the lanes of one dot product, the highest is the only one of its level; among
    those on either side of it the highest is again one of its links, because nothing between the two is higher; and so on down.

    >>> fan = Fan(lanes=8)
    >>> result = fan.reduce([[1, 2, 4, 8, 16, 32, 64, 128]], [0, 0, 0, 1, 1, 2, 2, 2])    # the a, b, c of Sec. IV-A2
    >>> result.ids.tolist(), result.sums.tolist(), result.finish.tolist(), result.additions
    ([0, 1, 2], [[7.0, 24.0, 224.0]], [2, 3, 2], 5)
    """

    __slots__ = ()

    @property
    def links(self) -> tuple[Link, ...]:
        """The paper's rule (Sec. IV-A2): from each level 1 to its own, adder i takes adders i -/+ 2^(level - 1).

        >>> [link for link in Fan(lanes=8).links if link.target == 3]
        [Link(source=2, target=3, flip_flops=1), Link(source=4, target=3, flip_flops=1), Link(source=1, target=3, flip_flops=0), \
Link(source=5, target=3, flip_flops=0)]
        """
        return tuple(
            Link(adder + side * (1 << (level - 1)), adder, own - level)
            for adder, own in enumerate(self.adder_levels().tolist())
            for level in range(1, own + 1)
            for side in (-1, 1)
        )

    @property
    def mux_inputs(self) -> int:
        """Inputs of all multiplexers; an adder of level 1 has one link on either side and needs none."""
        levels = self.adder_levels()
        return int(2 * levels[levels > 1].sum())

    def route(self, vec_ids: npt.ArrayLike) -> Route:
        """The mode of each adder (Fig. 6c) and its links: on either side the highest adder of its own dot product.

        Where an adder is itself the end of its dot product, its neighbour of level 0 bypasses the lane.

        >>> Fan(lanes=4).route([0, 0, 0, 1])
        Route(mode=array([2, 2, 1]), left=array([0, 1, 0]), right=array([0, 1, 0]))
        """
        from trainyard.kernels.networks.adder_trees import fan_route

        groups = self.groups(vec_ids)
        return Route(*fan_route(groups.of_lane, groups.starts, groups.ends))

    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule:
        """The route followed link by link: bypasses and sums of level 0, then each level's."""
        from trainyard.kernels.networks.adder_trees import fan_route, fan_steps

        ids, starts, ends, of_lane = self.groups(vec_ids)
        return Schedule(ids, *fan_steps(*fan_route(of_lane, starts, ends), of_lane, starts, ends))


class Art(_Tree):
    """MAERI's augmented reduction tree: nodes of three inputs, and links between neighbours of a level that have no common parent.

    A node that holds the end of one dot product and the start of another sends one part up and the other to its sibling, so every
    grouping is reduced in one pass (tested exhaustively), given that a finished sum may leave beside an unfinished one (MAERI's
    links are wider towards the root). What a sibling sends on is not registered: a level stays one cycle. Three numbers are added
    in two roundings, children first.

    >>> Art(lanes=8).reduce([[1, 2, 4, 8, 16, 32, 64, 128]], [0, 0, 0, 1, 1, 2, 2, 2]).finish.tolist()
    [2, 1, 2]
    """

    __slots__ = ()
    adder_inputs: ClassVar[int] = 3
    mux_inputs: ClassVar[int] = 0  # an adder's three inputs are wired; those of another dot product are gated

    @property
    def links(self) -> tuple[Link, ...]:
        """Each node up to its parent; then the siblings, each link once (it runs either way)."""
        parent_links, rows = [], [range((1 << level) - 1, self.lanes - 1, 2 << level) for level in range(self.levels)]
        for low, high in itertools.pairwise(rows):
            parent_links += [Link(child, high[position // 2]) for position, child in enumerate(low)]
        return tuple(parent_links) + tuple(Link(row[node], row[node + 1]) for row in rows for node in range(1, len(row) - 1, 2))

    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule:
        from trainyard.kernels.networks.adder_trees import art_steps

        groups = self.groups(vec_ids)
        cycles, targets, sources, outlets, finish = art_steps(groups.of_lane, groups.starts, groups.ends)
        return Schedule(groups.ids, cycles, targets, sources, outlets, finish, wired=True)


class LinearChain(_Network):
    """Spatio-temporal reduction: a sum moves one lane a cycle past all N lanes, as in a column of a systolic array (Sec. IV-A2).

    Products enter one cycle later per lane, sums wait as many cycles less on their way out: all leave together after N cycles,
    however small they are. Lane 0 has a register and no adder. A lane starts a new sum where a dot product starts.

    >>> LinearChain(lanes=6).reduce([[1, 2, 3, 4, 5, 6]], [7, 7, -1, 8, 8, 8]).finish.tolist()
    [6, 6]
    """

    __slots__ = ()
    mux_inputs: ClassVar[int] = 0

    @property
    def adders(self) -> int:
        return self.lanes - 1

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(Link(lane, lane + 1) for lane in range(self.lanes - 1))

    def fold_cycles(self, longest: int) -> int:
        """All lanes, whatever the sizes."""
        self._longest(longest)
        return self.lanes

    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule:
        groups = self.groups(vec_ids)
        lane = np.flatnonzero(groups.of_lane >= 0)
        register = self.lanes + PORTS * np.arange(self.lanes)
        sources = np.full((lane.size, 3), -1, dtype=np.int64)
        sources[:, 0] = lane
        goes_on = lane > groups.starts[groups.of_lane[lane]]
        sources[goes_on, 0], sources[goes_on, 1] = register[lane[goes_on] - 1], lane[goes_on]
        finish = np.full(groups.ids.size, self.lanes)
        return Schedule(groups.ids, lane + 1, register[lane], sources, register[groups.ends], finish)


class Temporal(_Network):
    """Reduction in place: a processing element adds the products of its dot product one after the other, as in EIE (Sec. IV-A2).

    The lanes of a dot product are then the m cycles of one element; the next vector follows when the longest dot product is done.

    >>> result = Temporal(lanes=6).reduce([[1, 2, 3, 4, 5, 6]], [7, 7, -1, 8, 8, 8])
    >>> result.finish.tolist(), result.interval
    ([2, 3], 3)
    """

    __slots__ = ()
    mux_inputs: ClassVar[int] = 0
    links: ClassVar[tuple[Link, ...]] = ()

    @property
    def adders(self) -> int:
        return self.lanes

    def fold_cycles(self, longest: int) -> int:
        """As many as the longest dot product has products."""
        return self._longest(longest)

    def schedule(self, vec_ids: npt.ArrayLike) -> Schedule:
        groups = self.groups(vec_ids)
        lane = np.flatnonzero(groups.of_lane >= 0)
        start = groups.starts[groups.of_lane[lane]]
        register = self.lanes + PORTS * start
        sources = np.full((lane.size, 3), -1, dtype=np.int64)
        sources[:, 0] = lane
        goes_on = lane > start
        sources[goes_on, 0], sources[goes_on, 1] = register[goes_on], lane[goes_on]
        finish = groups.ends - groups.starts + 1
        interval = int(finish.max(initial=1))
        return Schedule(groups.ids, lane - start + 1, register, sources, self.lanes + PORTS * groups.starts, finish, interval)
