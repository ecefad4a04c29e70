"""Two layers' gradients as one piece of work: executed on numbers by a plain twin, byte for byte, and held against layers apart."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import ArrayCost, MatMul
from trainyard.mapping.gradient_order import chain as gradient_chain
from trainyard.mapping.gradient_order.bound import least_bytes
from trainyard.mapping.gradient_order.chain import (
    CHAIN_POLICIES,
    JOINS,
    Chain,
    ChainTraffic,
    chain_cost,
    chain_traffic,
    edges,
    search_chain,
)
from trainyard.mapping.gradient_order.links import Link
from trainyard.mapping.gradient_order.scratchpad import Pair, traffic
from trainyard.mapping.gradient_order.tile_streams import Size
from trainyard.mapping.tiling import Supply


class Tile(NamedTuple):
    layer: str
    tensor: str
    row: int
    column: int


class Operation(NamedTuple):
    first: Tile
    second: Tile
    result: Tile
    mask: Tile | None = None

    @property
    def touched(self) -> list[Tile]:
        return [self.first, self.second, self.result, *([self.mask] if self.mask else [])]


def operations(tiles: tuple[int, int, int, int], join: str, masked: bool, lower_dx: bool) -> Iterator[Operation]:
    """The stream as the module's text says it; `tiles` are counts along m, n, k (upper) and k of the lower layer."""
    rows, n_tiles, k_tiles, j_tiles = tiles

    def upper(m: int, k: int) -> Iterator[Operation]:
        for n in range(n_tiles):
            ends = masked and n == n_tiles - 1
            yield Operation(
                Tile("upper", "dY", m, n),
                Tile("upper", "W", k, n),
                Tile("upper", "dX", m, k),
                Tile("upper", "X", m, k) if ends else None,
            )
            yield Operation(Tile("upper", "X", m, k), Tile("upper", "dY", m, n), Tile("upper", "dW", k, n))

    def lower(m: int, k: int, j: int) -> Iterator[Operation]:
        gradient = Tile("upper", "dX", m, k)
        if lower_dx:
            yield Operation(gradient, Tile("lower", "W", j, k), Tile("lower", "dX", m, j))
        yield Operation(Tile("lower", "X", m, j), gradient, Tile("lower", "dW", j, k))

    for m in range(rows):
        for k in range(k_tiles):
            yield from upper(m, k)
            if join == "tile":
                for j in range(j_tiles):
                    yield from lower(m, k, j)
        if join == "block":
            for j in range(j_tiles):
                for k in range(k_tiles):
                    yield from lower(m, k, j)


AXES = {
    "upper": {"dY": "mn", "W": "kn", "X": "mk", "dX": "mk", "dW": "kn"},
    "lower": {"W": "jk", "X": "mj", "dX": "mj", "dW": "jk"},
}


class Rate(NamedTuple):
    """Bytes of an element."""

    held: float = 1
    moved: float = 1
    unfinished: float = 1


BETWEEN = ("upper", "dX")
PLAIN = {BETWEEN: Rate(moved=0), ("lower", "dY"): Rate()}


class Twin:
    """A scratchpad with real tiles in it, and a DRAM that has only what was put there.

    `rates` are bytes of elements where they are not 1. What passes with a sum between the layers moves as it ends; from then on it
    has the bytes of the lower layer's dY. `steps` has, of each operation, what it loads, pushes out and finishes.
    """

    def __init__(
        self,
        values: dict[tuple[str, str], Any],
        cuts: dict[str, list[slice]],
        capacity: float,
        policy: str,
        rates: dict[tuple[str, str], Rate] = PLAIN,
    ) -> None:
        self.dram, self.cuts, self.capacity, self.policy, self.rates = values, cuts, capacity, policy, rates
        self.ended: set[Tile] = set()
        self.steps: list[list[float]] = []
        self.resident: OrderedDict[Tile, Any] = OrderedDict()
        self.changed: set[Tile] = set()
        self.away: dict[Tile, Any] = {}
        self.moved: Counter[tuple[str, str, str]] = Counter()  # bytes

    def run(self, stream: list[Operation], masked: bool) -> None:
        adds = Counter(op.result for op in stream)
        reads = Counter(tile for op in stream for tile in (op.first, op.second) if tile.tensor == "dX")
        touches = [tile for op in stream for tile in (op.touched + [None] * 4)[:4]]
        for number, op in enumerate(stream):
            self.steps.append([0, 0, 0])
            self.bring(op, touches, 4 * number)
            first, second, result = (self.resident[tile] for tile in (op.first, op.second, op.result))
            assert sum(map(self.held, self.resident)) <= self.capacity
            result += first @ second.T if op.result.tensor == "dX" else first.T @ second
            self.changed.add(op.result)
            adds[op.result] -= 1
            if adds[op.result] == 0:
                if op.result.layer == "upper" and op.result.tensor == "dX":
                    if masked:
                        assert op.mask is not None
                        result *= self.resident[op.mask] > 0
                    self.ended.add(op.result)
                    self.move(op.result, "write", self.rates[BETWEEN].moved, 2)
                else:
                    self.move(op.result, "write", self.rate(op.result).moved, 2)
                    self.place(op.result)[...] = self.resident.pop(op.result)
            for tile in (op.first, op.second):
                if tile.tensor == "dX":
                    reads[tile] -= 1
                    if reads[tile] == 0:
                        del self.resident[tile]
        assert not self.changed & {tile for tile in self.resident if tile.tensor in ("dX", "dW")}

    def bring(self, op: Operation, touches: list[Tile | None], now: int) -> None:
        missing = [tile for tile in op.touched if tile not in self.resident]
        for tile in op.touched:
            if tile in self.resident:
                self.resident.move_to_end(tile)
        for tile in missing:
            while sum(map(self.held, self.resident)) + self.held(tile) > self.capacity:
                self.evict([other for other in self.resident if other not in op.touched], touches, now)
            if tile.tensor in ("dX", "dW"):
                if tile in self.away:
                    self.move(tile, "spill", self.rate(tile).unfinished, 0)
                self.resident[tile] = self.away.pop(tile, np.zeros(self.place(tile).shape)).copy()
                self.changed.discard(tile)
            else:
                self.move(tile, "read", self.rate(tile).moved, 0)
                self.resident[tile] = self.place(tile).copy()

    def evict(self, candidates: list[Tile], touches: list[Tile | None], now: int) -> None:
        gone = candidates[0]
        if self.policy == "farthest":
            ahead = touches[now + 4 :]
            gone = max(candidates, key=lambda tile: ahead.index(tile) if tile in ahead else len(ahead))
        values = self.resident.pop(gone)
        if gone.tensor in ("dX", "dW"):
            if gone in self.changed:
                self.move(gone, "spill", self.rate(gone).unfinished, 1)
            self.changed.discard(gone)
            self.away[gone] = values

    def rate(self, tile: Tile) -> Rate:
        if tile in self.ended:
            below = self.rates["lower", "dY"]
            return Rate(held=below.held, moved=0, unfinished=below.moved)
        return self.rates.get((tile.layer, tile.tensor), Rate())

    def held(self, tile: Tile) -> float:
        return float(self.place(tile).size * self.rate(tile).held)

    def move(self, tile: Tile, way: str, rate: float, when: int) -> None:
        size = self.place(tile).size * rate
        if size:
            self.moved[tile.layer, tile.tensor, way] += size
            self.steps[-1][when] += size

    def place(self, tile: Tile) -> Any:
        row, column = AXES[tile.layer][tile.tensor]
        return self.dram[tile.layer, tile.tensor][self.cuts[row][tile.row], self.cuts[column][tile.column]]


def slices(extent: int, size: int) -> list[slice]:
    ends = [*range(0, extent, size), extent]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def counted(found: ChainTraffic) -> dict[tuple[str, str, str], int]:
    sides = (("upper", found.upper), ("lower", found.lower))
    return {(layer, tensor, way): size for layer, side in sides for (tensor, way), size in side.bytes.items()}


def tensors(extents: tuple[int, int, int, int], seed: int) -> dict[tuple[str, str], Any]:
    m, n, k, j = extents
    draw = np.random.default_rng(seed)
    sizes = {
        ("upper", "dY"): (m, n),
        ("upper", "W"): (k, n),
        ("upper", "X"): (m, k),
        ("lower", "W"): (j, k),
        ("lower", "X"): (m, j),
    }
    values: dict[tuple[str, str], Any] = {key: draw.integers(-3, 4, size).astype(float) for key, size in sizes.items()}
    results = {("upper", "dW"): (k, n), ("upper", "dX"): (m, k), ("lower", "dX"): (m, j), ("lower", "dW"): (j, k)}
    return values | {key: np.full(size, np.nan) for key, size in results.items()}


extent, edge = st.integers(1, 7), st.integers(1, 4)


@pytest.mark.oracle
@settings(max_examples=120, deadline=None)
@given(
    extents=st.tuples(extent, extent, extent, extent),
    tile=st.tuples(edge, edge, edge, edge),
    spare=st.integers(0, 70),
    policy=st.sampled_from(CHAIN_POLICIES),
    join=st.sampled_from(JOINS),
    mask=st.sampled_from(["relu", "none"]),
    lower_dx=st.booleans(),
)
def test_the_chain_computes_all_gradients_and_moves_what_the_kernel_counts(  # type: ignore[no-untyped-def]
    extents, tile, spare, policy, join, mask, lower_dx
) -> None:
    cuts = {axis: slices(size, step) for axis, size, step in zip("mnkj", extents, tile, strict=True)}
    values = tensors(extents, seed=sum(extents))
    counts = (len(cuts["m"]), len(cuts["n"]), len(cuts["k"]), len(cuts["j"]))
    stream = list(operations(counts, join, mask == "relu", lower_dx))
    m, n, k, j = extents
    clipped = [min(size, whole) for size, whole in zip(tile, extents, strict=True)]
    tile_upper, tile_lower = (tile[0], tile[1], tile[2]), (clipped[0], clipped[2], tile[3])
    pairs = Pair.dense(MatMul(m, n, k), 1), Pair.dense(MatMul(m, k, j), 1)
    chain = Chain(upper=pairs[0], lower=pairs[1], masked=mask == "relu", lower_dx=lower_dx)
    room = Twin(values, cuts, 0, policy)
    largest = max(sum(map(room.held, op.touched)) for op in stream)
    capacity = max(largest, math.ceil(chain.needed(tile_upper, tile_lower))) + spare
    twin = Twin(values, cuts, capacity, policy)
    twin.run(stream, mask == "relu")

    between = values["upper", "dY"] @ values["upper", "W"].T
    between = between * (values["upper", "X"] > 0) if mask == "relu" else between
    np.testing.assert_array_equal(values["upper", "dW"], values["upper", "X"].T @ values["upper", "dY"])
    np.testing.assert_array_equal(values["lower", "dW"], values["lower", "X"].T @ between)
    if lower_dx:
        np.testing.assert_array_equal(values["lower", "dX"], between @ values["lower", "W"].T)
    assert np.isnan(values["upper", "dX"]).all(), "never written as a result"

    found = chain_traffic(
        MatMul(m, n, k), MatMul(m, k, j), tile_upper=tile_upper, tile_lower=tile_lower,
        capacity_bytes=2 * capacity, element_bytes=2, policy=policy, join=join, mask=mask, lower_dx=lower_dx,
    )  # fmt: skip
    assert counted(found) == {key: 2 * size for key, size in twin.moved.items()}


@dataclass(frozen=True)
class Slow:
    """An array whose cycles tell m, n and k apart."""

    peak_macs_per_cycle: int = 1

    def granule(self) -> Size:
        return 1, 1, 1

    def cost(self, op: MatMul, **_: Any) -> ArrayCost:
        return ArrayCost(cycles=3 * op.M + 5 * op.N + 2 * op.K, events={})

    def concurrent(self, products: Any) -> ArrayCost:
        raise NotImplementedError


def elapsed(steps: list[list[float]], compute: list[int], supply: Supply, times: int) -> int:
    """The law of overlap, `times` chains in a row: while one operation computes, the DRAM serves the next and the last."""

    def dram(size: float) -> int:
        return supply.latency_cycles + math.ceil(size / supply.bytes_per_cycle) if size > 0 else 0

    loads, pushed, finished = ([*part] * times for part in zip(*steps, strict=True))
    loads.append(0)
    total = dram(loads[0])
    for at, cycles in enumerate(compute * times):
        total += max(cycles, dram(loads[at + 1] + pushed[at] + (finished[at - 1] if at else 0)))
    return total + dram(finished[-1])


def scaled(op: MatMul, rates: dict[str, Rate], turned: bool) -> Pair:
    sizes = {"dY": op.M * op.N, "W": op.K * op.N, "X": op.M * op.K, "dX": op.M * op.K, "dW": op.K * op.N}
    whole = {name: [round(op.count * size * rate) for rate in rates[name]] for name, size in sizes.items()}
    dy, w, x, dx, dw = whole.values()
    return Pair(
        op=op,
        moved=(dy[1], w[1], x[1], dx[1], dw[1]),
        resident=(dy[0], w[0], x[0], dx[0], dw[0]),
        sums=(dx[2], dw[2]),
        dw_transposed=turned,
    )


operand = st.builds(Rate, st.integers(1, 2), st.integers(1, 3), st.just(0))
summed = st.builds(Rate, *[st.integers(2, 4)] * 3)


@pytest.mark.oracle
@settings(max_examples=120, deadline=None)
@given(
    extents=st.tuples(extent, extent, extent, extent),
    tile=st.tuples(edge, edge, edge, edge),
    spare=st.integers(0, 120),
    rates=st.fixed_dictionaries(
        {(layer, name): operand for layer in ("upper", "lower") for name in ("dY", "W", "X")}
        | {(layer, name): summed for layer in ("upper", "lower") for name in ("dX", "dW")}
    ),
    passing=st.integers(0, 2),
    ways=st.tuples(st.sampled_from(CHAIN_POLICIES), st.sampled_from(JOINS), st.booleans(), st.booleans()),
    turned=st.tuples(st.booleans(), st.booleans()),
    supply=st.builds(
        Supply, resident_bytes=st.just(0), bytes_per_cycle=st.sampled_from([0.5, 3, 64]), latency_cycles=st.integers(0, 9)
    ),
    count=st.sampled_from([1, 1, 2, 3]),
)
def test_cycles_and_bytes_of_any_elements_are_those_of_the_twin(  # type: ignore[no-untyped-def]
    extents, tile, spare, rates, passing, ways, turned, supply, count
) -> None:
    (policy, join, masked, lower_dx), (m, n, k, j) = ways, extents
    cuts = {axis: slices(size, step) for axis, size, step in zip("mnkj", extents, tile, strict=True)}
    counts = (len(cuts["m"]), len(cuts["n"]), len(cuts["k"]), len(cuts["j"]))
    stream = list(operations(counts, join, masked, lower_dx))
    told = rates | {BETWEEN: rates[BETWEEN]._replace(moved=passing)}
    pairs = [
        scaled(op, {name: rate for (layer, name), rate in rates.items() if layer == which}, flipped)
        for op, which, flipped in zip((MatMul(m, n, k, count), MatMul(m, k, j, count)), ("upper", "lower"), turned, strict=True)
    ]
    chain = Chain(upper=pairs[0], lower=pairs[1], masked=masked, lower_dx=lower_dx, passing_bytes=count * passing * m * k)
    sizes = {"tile_upper": tile[:3], "tile_lower": (min(tile[0], m), min(tile[2], k), tile[3])}
    capacity = chain.needed(*sizes.values()) + spare
    twin = Twin(tensors(extents, seed=3), cuts, capacity, policy, told)
    twin.run(stream, masked)

    def cycles(op: Operation) -> int:
        sides = {axis: step.stop - step.start for axis, step in where(op, cuts).items()}
        rows, columns, deep = (sides[axis] for axis in ("mkn" if op.result.layer == "upper" else "mjk"))
        if op.result.tensor == "dX":
            return Slow().cost(MatMul(rows, columns, deep)).cycles
        flipped = turned[op.result.layer == "lower"]
        return Slow().cost(MatMul(deep, columns, rows) if flipped else MatMul(columns, deep, rows)).cycles

    found = chain_cost(chain, array=Slow(), supply=replace(supply, resident_bytes=capacity), policy=policy, join=join, **sizes)
    assert counted(found.traffic) == {key: count * size for key, size in twin.moved.items()}
    assert found.compute_cycles == count * sum(map(cycles, stream))
    assert found.cycles == elapsed(twin.steps, list(map(cycles, stream)), supply, count)


def where(op: Operation, cuts: dict[str, list[slice]]) -> dict[str, slice]:
    """The range of each axis that an operation goes over."""
    found = {}
    for tile in (op.first, op.second, op.result):
        axes = AXES[tile.layer][tile.tensor]
        found |= {axes[0]: cuts[axes[0]][tile.row], axes[1]: cuts[axes[1]][tile.column]}
    return found


def test_the_chain_is_what_autograd_computes() -> None:
    torch = pytest.importorskip("torch")
    values = tensors((6, 4, 5, 3), seed=1)
    inputs = torch.tensor(values["lower", "X"], requires_grad=True)
    below = torch.tensor(values["lower", "W"], requires_grad=True)
    above = torch.tensor(values["upper", "W"], requires_grad=True)
    hidden = torch.relu(inputs @ below)
    (hidden @ above).backward(torch.tensor(values["upper", "dY"]))
    values["upper", "X"] = hidden.detach().numpy()
    cuts = {axis: slices(size, 2) for axis, size in zip("mnkj", (6, 4, 5, 3), strict=True)}
    Twin(values, cuts, 24, "lru").run(list(operations((3, 2, 3, 2), "block", True, True)), True)
    for key, expected in {("lower", "dX"): inputs, ("lower", "dW"): below, ("upper", "dW"): above}.items():
        np.testing.assert_allclose(values[key], expected.grad.numpy())


@pytest.mark.probe
def test_a_tile_between_the_layers_that_does_not_stay_is_written_and_read() -> None:
    """While dW of the upper layer is added, three tiles and the one between need four places."""
    one = MatMul(1, 1, 1)
    for capacity, spilled in ((3, 2), (4, 0)):
        found = chain_traffic(
            one, one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), capacity_bytes=capacity, element_bytes=1, mask="none"
        )
        assert found.between_bytes == spilled
        assert found.total_bytes == 8 + spilled
    with pytest.raises(BadInput, match="needs 4 bytes, there is room for 3"):  # the mask is a fourth tile
        chain_traffic(one, one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), capacity_bytes=3, element_bytes=1)


@given(extents=st.tuples(extent, extent, extent, extent), join=st.sampled_from(JOINS), policy=st.sampled_from(CHAIN_POLICIES))
def test_with_room_for_all_everything_moves_once(extents, join, policy) -> None:  # type: ignore[no-untyped-def]
    m, n, k, j = extents
    upper, lower = MatMul(m, n, k), MatMul(m, k, j)
    found = chain_traffic(
        upper, lower, tile_upper=(2, 2, 2), tile_lower=(2, 2, 2), capacity_bytes=1000, element_bytes=1, policy=policy, join=join
    )
    once = least_bytes(upper, 1000, 1).compulsory + least_bytes(lower, 1000, 1).compulsory
    assert found.total_bytes == once - 2 * m * k
    assert found.between_bytes == 0


def test_a_chain_that_pays_saves_the_tensor_between() -> None:
    upper, lower = MatMul(4096, 64, 128), MatMul(4096, 128, 64)
    chosen = search_chain(upper, lower, capacity_bytes=2**18, element_bytes=2)
    assert chosen.pays
    assert chosen.beats_any_apart
    assert chosen.saved_bytes == 2 * 2 * 4096 * 128
    again = chain_traffic(
        upper, lower, tile_upper=chosen.tile_upper, tile_lower=chosen.tile_lower, capacity_bytes=2**18, element_bytes=2,
        join=chosen.join,
    )  # fmt: skip
    assert again == chosen.traffic


def test_a_chain_whose_weights_do_not_stay_says_that_it_does_not_pay() -> None:
    upper, lower = MatMul(512, 256, 256), MatMul(512, 256, 256)
    chosen = search_chain(upper, lower, capacity_bytes=2**16, element_bytes=2)
    assert not chosen.pays
    assert chosen.saved_bytes == 0
    assert chosen.traffic.total_bytes >= chosen.apart_bytes >= chosen.apart_least_bytes


def test_a_granule_that_does_not_fit_is_refused_and_many_operations_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    op = MatMul(256, 256, 256)
    with pytest.raises(BadInput, match="give more room or a smaller granule"):
        search_chain(op, op, capacity_bytes=1000, element_bytes=1, granule=128)
    usual = search_chain(op, op, capacity_bytes=20000, element_bytes=1, apart_bytes=1)
    monkeypatch.setattr(gradient_chain, "MOST_OPERATIONS", 1)
    hurried = search_chain(op, op, capacity_bytes=20000, element_bytes=1, apart_bytes=1)
    assert hurried.traffic.total_bytes >= usual.traffic.total_bytes


def test_layers_apart_are_searched_over_orders_and_tiles() -> None:
    op = MatMul(64, 32, 32)
    found = search_chain(op, MatMul(64, 32, 32), capacity_bytes=3000, element_bytes=1, granule=8)
    one = traffic(op, tile=(16, 16, 16), capacity_bytes=3000, element_bytes=1, order="dx_major")
    assert found.apart_least_bytes <= found.apart_bytes <= 2 * one.total_bytes
    given_cost = search_chain(op, MatMul(64, 32, 32), capacity_bytes=3000, element_bytes=1, granule=8, apart_bytes=1)
    assert not given_cost.pays
    assert given_cost.traffic == found.traffic


def test_of_a_row_of_links_the_pairs_that_save_most_are_taken() -> None:
    one = MatMul(1, 1, 1)
    nothing = chain_traffic(one, one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), capacity_bytes=9, element_bytes=1)

    def link(upper: str, lower: str, saved: int) -> tuple[Link, gradient_chain.ChainChoice]:
        chained = gradient_chain.ChainChoice(
            upper=one, lower=one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), join="block", traffic=nothing,
            apart_bytes=nothing.total_bytes + saved, apart_least_bytes=0,
        )  # fmt: skip
        return Link(upper=upper, lower=lower, fuses=True, upper_product=one, bytes=0), chained

    def taken(*saved: int) -> list[str]:
        names = [f"layer{place}" for place in range(len(saved) + 1)]
        links = [link(*pair, value) for pair, value in zip(pairwise(names), saved, strict=True)]
        return [one.upper for one, _ in gradient_chain._best_disjoint(links)]

    assert taken(3, 5, 3) == ["layer0", "layer2"]
    assert taken(3, 7, 3) == ["layer1"]
    assert taken(5, 1, 1, 5) == ["layer0", "layer3"]
    assert taken() == []


@given(saved=st.lists(st.integers(1, 9), max_size=7))
def test_no_other_pairs_save_more(saved: list[int]) -> None:
    assume(saved)
    best = 0
    for chosen in range(1 << len(saved)):
        if not chosen & chosen >> 1:
            best = max(best, sum(value for place, value in enumerate(saved) if chosen >> place & 1))
    one = MatMul(1, 1, 1)
    nothing = chain_traffic(one, one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), capacity_bytes=9, element_bytes=1)
    links = [
        (
            Link(upper=str(place), lower=str(place + 1), fuses=True, upper_product=one, bytes=0),
            gradient_chain.ChainChoice(
                upper=one, lower=one, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), join="block", traffic=nothing,
                apart_bytes=nothing.total_bytes + value, apart_least_bytes=0,
            ),
        )
        for place, value in enumerate(saved)
    ]  # fmt: skip
    assert sum(chained.saved_bytes for _, chained in gradient_chain._best_disjoint(links)) == best


def test_edges_cover_an_extent() -> None:
    assert edges(1, 32) == [1]
    assert edges(512, 64) == [512, 256, 128, 64]
    assert list(accumulate(edges(100, 30))) == [100, 150, 175]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower": MatMul(5, 4, 4)}, "does not stand on"),
        ({"tile_lower": (2, 1, 2)}, "is no tile"),
        ({"tile_upper": (0, 2, 2)}, "least_tile"),
        ({"element_bytes": 1.5}, "whole numbers"),
        ({"capacity_bytes": 10}, "needs 16 bytes, there is room for 10"),
    ],
)
def test_refusals_say_what_to_write(change: dict[str, Any], message: str) -> None:
    known: dict[str, Any] = {"tile_upper": (2, 2, 2), "tile_lower": (2, 2, 2), "capacity_bytes": 64, "element_bytes": 1}
    arguments = known | {"upper": MatMul(4, 4, 4), "lower": MatMul(4, 4, 4)} | change
    with pytest.raises(BadInput, match=message):
        chain_traffic(**arguments)


@pytest.mark.parametrize("name", ["policy", "join"])
def test_unknown_names_are_refused(name: str) -> None:
    arguments: dict[str, Any] = {"tile_upper": (2, 2, 2), "tile_lower": (2, 2, 2), "capacity_bytes": 64, "element_bytes": 1}
    with pytest.raises(UnknownName, match=f"unknown {name} 'other'"):
        chain_traffic(MatMul(4, 4, 4), MatMul(4, 4, 4), **arguments | {name: "other"})
