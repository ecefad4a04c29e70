"""The tiles of products with zeros: never slower than those of the dense closed form, and close to the best of many tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from trainyard.arrays import CambriconX, Eie, EyerissV2, OuterSpace, PackedSystolic, Scnn, Sigma, TensorCore, TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.masked_tiles import TileCosts, Viewer, viewer
from trainyard.devices.accelerator.sparse_tiles import SparseTileSearch, TileCounts, _expected_cycles, known_share, layout_slowdown
from trainyard.devices.accelerator.structured import tile_cost
from trainyard.ir import (
    DENSE,
    Array,
    ArrayCost,
    Convolution,
    Density,
    MaskView,
    MatMul,
    Op,
    Phase,
    Role,
    Step,
    TensorKey,
    TensorSpec,
)
from trainyard.ir.folds import Folds
from trainyard.mapping import tile_descent
from trainyard.mapping.profile import demand
from trainyard.mapping.tile_descent import CountedTiles, sizes_of
from trainyard.mapping.tiling import ORDERS, Problem, Supply, Tiling, search
from trainyard.mapping.walk import Tile, steps, walk
from trainyard.masks.densities import Densities
from trainyard.masks.generated import generated_masks

ARRAYS = {
    "sigma": Sigma(dpes=16, multipliers=16, bandwidth=32),
    "tensordash": TensorDash(tiles=16),
    "eie": Eie(elements=64, bandwidth=32),
    "scnn": Scnn(elements=16, bandwidth=32, sample=2),
    "cambricon_x": CambriconX(elements=16, bandwidth=32),
    "eyeriss_v2": EyerissV2(rows=8, columns=8, bandwidth=32),
    "outerspace": OuterSpace(elements=256),
    "packed_systolic": PackedSystolic(rows=16, columns=16),
}


@dataclass(frozen=True, eq=False)
class Bits:
    """Masks of one layer."""

    name: str
    tensors: dict[TensorKey, npt.NDArray[np.bool_]]

    @property
    def digest(self) -> str:
        return self.name

    @property
    def specs(self) -> dict[TensorKey, npt.NDArray[np.bool_]]:
        return self.tensors

    def bits(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        return self.tensors[key]

    def density(self, key: TensorKey) -> float:
        return float(self.tensors[key].mean())


def layer(m: int, n: int, k: int) -> Step:
    """The forward product of one linear layer."""
    tensors = (TensorSpec((m, k)), TensorSpec((n, k), role=Role.PARAMETER), TensorSpec((m, n)))
    op = Op(body=MatMul(m, n, k), phase=Phase.FORWARD, inputs=(0, 1), outputs=(2,), letters=("A", "W"), name="fc", layer="fc")
    return Step(name="layer", batch=1, ops=(op,), tensors=tensors)


def random_bits(random: np.random.Generator, shape: tuple[int, int], nonzero: float, clustered: bool) -> npt.NDArray[np.bool_]:
    """Zeros at random, or in rows and columns that have more or fewer of them."""
    if not clustered:
        return random.random(shape) < nonzero
    rows, columns = (random.beta(2 * nonzero + 0.05, 2.05 - 2 * nonzero, side) for side in shape)
    return random.random(shape) < (rows[:, None] + columns) / 2


@dataclass(frozen=True)
class Case:
    """A layer with zeros on a device that has too little room or bandwidth for it, or not."""

    device: Accelerator
    step: Step
    masks: Bits

    @classmethod
    def drawn(cls, array: Array, seed: int, longest: float = 7.0) -> Case:
        random = np.random.default_rng(seed)
        m, n, k = (int(side) for side in 2 ** random.uniform(4, longest, 3))
        shares = random.uniform(0.05, 0.95, 2)
        tensors = {
            ("fc", 0, letter): random_bits(random, shape, share, bool(seed % 2))
            for letter, shape, share in zip("AW", ((m, k), (n, k)), shares, strict=True)
        }
        room = 8.0 * (m * k + k * n + m * n) * 2 ** random.uniform(-5, 0.2)
        device = Accelerator(
            array=array, scratchpad_bytes=max(4096, int(room)), dram_bytes_per_s=2 ** random.uniform(1, 6) * 1e9,
            dram_latency_s=20e-9, clock_hz=1e9,
        )  # fmt: skip
        return cls(device, layer(m, n, k), Bits(f"{seed}", tensors))

    def cycles(self, **changes: object) -> int:
        device = replace(self.device, **changes)
        (work,) = device.works(self.step)
        return device.cost(self.step, work, self.masks).cycles

    def folds(self) -> int:
        """Folds of all tiles of the chosen mapping on SIGMA."""
        (work,) = self.device.works(self.step)
        (chosen,) = self.device.cost(self.step, work, self.masks).chosen
        views = tile_cost(self.device.array, self.step, self.step.ops[0], "col2im", self.masks, {})
        return sum(
            self.device.array.cost(tile.op, a=views.left(0, tile.m, tile.k), b=views.right(0, tile.k, tile.n)).folds
            for tile in steps(self.step.ops[0].body, chosen.tiled.tiling)
        )

    def best_of(self, many: int, seed: int) -> float:
        """Cycles of the best of so many tiles, drawn from a menu, each in its best loop order with the zeros themselves."""
        (work,) = self.device.works(self.step)
        asked, supply = demand(self.step, work, self.device.policy), self.device.supply
        op, (a, b, sums) = asked.problem.op, asked.problem.sram_rates
        menus = [sizes_of(extent, size) for extent, size in zip((op.M, op.N, op.K), self.device.array.granule(), strict=True)]
        tiles = [
            (m, n, k) for m, n, k in itertools.product(*menus) if m * k * a + k * n * b + m * n * sums <= supply.resident_bytes
        ]
        tiles.sort(key=lambda tile: -math.prod(tile))
        random, best = np.random.default_rng(seed), math.inf
        for index in random.choice(len(tiles[: 8 * many]), min(many, len(tiles)), replace=False):
            costs, known = tile_cost(self.device.array, self.step, self.step.ops[0], asked.grad_input, self.masks, {}), {}

            def compute(tile: Tile, costs=costs, known=known) -> int:
                if tile not in known:
                    known[tile] = costs(tile)
                return known[tile]

            m, n, k = tiles[index]
            walks = [walk(asked.problem, Tiling(m=m, n=n, k=k, order=order), supply, compute) for order in ORDERS]
            best = min(best, *(tiled.cycles for tiled in walks))
        return best


@pytest.mark.oracle
@pytest.mark.parametrize("name", ARRAYS)
def test_zeros_never_lead_to_slower_tiles_than_the_dense_search(name: str) -> None:
    for seed in (1, 2):
        case = Case.drawn(ARRAYS[name], seed, longest=6.0)
        (work,) = case.device.works(case.step)
        problem = demand(case.step, work, case.device.policy).problem
        (dense,) = search([problem], case.device.array, case.device.supply)
        assert case.cycles() <= case.cycles(tiling=(dense.tiling.m, dense.tiling.n, dense.tiling.k))


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("name", ARRAYS)
def test_the_chosen_tile_is_close_to_the_best_of_many(name: str) -> None:
    ratios = [case.cycles() / case.best_of(24, seed) for seed, case in ((s, Case.drawn(ARRAYS[name], s)) for s in range(6))]
    assert np.median(ratios) <= 1.01
    assert max(ratios) <= 1.08


def test_an_array_that_has_no_use_for_the_zeros_gets_the_tile_of_its_closed_form() -> None:
    case = Case.drawn(TensorCore(tiles=16), 4)
    (work,) = case.device.works(case.step)
    problem = demand(case.step, work, case.device.policy).problem
    choice = SparseTileSearch(array=case.device.array, supply=case.device.supply)
    (dense,) = search([problem], case.device.array, case.device.supply)
    assert choice.candidates(problem, (), Density(0.3), DENSE, {}) == [dense.tiling]


def test_a_share_is_that_of_the_view_and_other_operands_stay() -> None:
    case = Case.drawn(ARRAYS["sigma"], 4)
    costs = tile_cost(case.device.array, case.step, case.step.ops[0], "col2im", case.masks, {})
    assert known_share(costs.left(0, (0, 1), (0, 1))) == Density(case.masks.density(("fc", 0, "A")))
    assert known_share(DENSE) is DENSE
    assert known_share(Density(0.5, "row")) == Density(0.5, "row")


@pytest.mark.parametrize("name", ["sigma", "tensordash"])
def test_more_zeros_never_take_longer(name: str) -> None:
    """Within 1 %: the tiles of both are chosen apart."""
    for seed in range(12):
        case, random = Case.drawn(ARRAYS[name], seed, longest=6.5), np.random.default_rng(seed + 1000)
        left = {key: bits & (random.random(bits.shape) < random.uniform(0.2, 1.0)) for key, bits in case.masks.tensors.items()}
        dense = replace(case, masks=Bits(f"dense {seed}", {key: np.ones_like(bits) for key, bits in left.items()}))
        sparser = replace(case, masks=Bits(f"sparser {seed}", left))
        assert sparser.cycles() <= 1.01 * case.cycles() <= 1.01 * 1.01 * dense.cycles()


@pytest.mark.parametrize("name", ARRAYS)
def test_operands_of_zeros_alone_have_tiles_too(name: str) -> None:
    case = Case.drawn(ARRAYS[name], 6, longest=5.5)
    empty = replace(case, masks=Bits("empty", {key: np.zeros_like(bits) for key, bits in case.masks.tensors.items()}))
    assert empty.cycles() <= case.cycles()


@pytest.mark.parametrize("name", ["sigma", "tensordash", "cambricon_x"])
def test_a_machine_after_others_gets_the_cost_that_it_gets_alone(name: str) -> None:
    """Counted tiles and expected cycles are kept for machines that share them."""
    case = Case.drawn(ARRAYS[name], 8, longest=6.0)
    changes = [{"dram_bytes_per_s": speed} for speed in (1e9, 8e9, 64e9)]
    after_others = [case.cycles(**change) for change in changes]
    alone = [Case.drawn(ARRAYS[name], 8, longest=6.0).cycles(**change) for change in reversed(changes)]
    assert after_others == alone[::-1]


LARGER = [
    (ARRAYS["sigma"], {"dpes": 32}),
    (ARRAYS["sigma"], {"dpes": 24}),
    (ARRAYS["sigma"], {"multipliers": 32}),
    (ARRAYS["sigma"], {"bandwidth": 64}),
    (ARRAYS["tensordash"], {"tiles": 32}),
    (ARRAYS["tensordash"], {"rows": 8}),
]


@pytest.mark.parametrize(("array", "change"), LARGER)
def test_an_array_that_contains_another_is_never_slower(array: Array, change: dict[str, int]) -> None:
    """Within 1 %, and but for SIGMA's add latency: its adder tree has more levels over more multipliers, once for each fold."""
    larger = replace(array, **change)
    for seed in range(5):
        case = Case.drawn(array, seed, longest=6.0)
        levels = larger.add_cycles - array.add_cycles if isinstance(array, Sigma) else 0
        assert case.cycles(array=larger) <= 1.01 * case.cycles() + levels * (case.folds() if levels else 0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["tensordash", "sigma", "scnn"])
def test_sizes_costed_once_are_all_tiles_costed_one_by_one(name: str, order: str) -> None:
    op = MatMul(50, 33, 90, count=2)
    for m, n, k in ((16, 8, 32), (50, 33, 90), (64, 5, 30)):
        costs = TileCosts(ARRAYS[name], lambda *_: Density(0.4), lambda *_: DENSE, {})
        tiling = Tiling(m=m, n=n, k=k, order=order)
        assert costs.known_by_shares
        counts, one_by_one = TileCounts.of(op, tiling, costs), costs.fresh()
        assert counts.cycles.tolist() == [one_by_one(tile) for tile in steps(op, tiling)]
        assert counts.events == pytest.approx(one_by_one.events)
        assert counts.uncertainty == pytest.approx(one_by_one.uncertainty)


def test_shares_of_dilated_gradients_count_the_zeros_of_the_stride() -> None:
    body = Convolution(
        batch=1, in_channels=4, out_channels=4, size=(8, 8), kernel=(3, 3), padding=(1, 1), stride=(2, 2), product="grad_input"
    )
    op = Op(body=body, layer="conv", letters=("G", "W"), phase=Phase.GRAD_INPUT)
    step = Step(name="one", batch=1, ops=(op,), tensors=())
    masks = Densities("half", {("conv", 0, "G"): 0.5})
    shown = {form: viewer(step, op, form, masks, 0)(0, (0, 1), (0, 1)) for form in ("dilated", "col2im")}
    assert shown == {"dilated": Density(0.125), "col2im": Density(0.5)}


def test_no_tile_cuts_a_convolution_where_lanes_would_stay_empty() -> None:
    """The closed form takes tiles of four k for as fast as longer ones; in memory these are four taps of one channel."""
    body = Convolution(batch=4, in_channels=64, out_channels=128, size=(56, 56), kernel=(3, 3), padding=(1, 1))
    op = Op(body=body, layer="conv", letters=("A", "W"), phase=Phase.FORWARD)
    step = Step(name="one", batch=4, ops=(op,), tensors=())
    masks = generated_masks(step, {"A": 0.6})
    for array in (TensorCore(), TensorDash(sample=64)):
        device = Accelerator(array=array, scratchpad_bytes=24 * 2**20, dram_bytes_per_s=102.4e9, clock_hz=500e6, precision="fp16")
        (work,) = device.works(step)
        assert device.cost(step, work, masks).compute_cycles <= 1.02 * body.macs / array.peak_macs_per_cycle


def test_products_with_the_same_shares_are_costed_once_in_any_layer() -> None:
    body = MatMul(64, 32, 48)
    ops = [Op(body=body, layer=name, letters=("A", "W"), phase=Phase.FORWARD) for name in ("first", "second", "third")]
    step = Step(name="three", batch=64, ops=tuple(ops), tensors=())
    masks = Densities("some", {("first", 0, "A"): 0.5, ("second", 0, "A"): 0.5, ("third", 0, "A"): 0.25})
    device = Accelerator(array=TensorDash(tiles=16), scratchpad_bytes=2**16, dram_bytes_per_s=1e12)
    first, second, third = (device.cost(step, work, masks) for work in device.works(step))
    assert first is second
    assert third.compute_cycles < first.compute_cycles


@dataclass(frozen=True)
class OneMultiplier:
    """An array of one multiplier, of whose tiles other things are known where `expected` or `steps` are given."""

    folds = (Folds(m=1, n=1, k=1, stream="k"),)
    peak_macs_per_cycle = 1

    def granule(self) -> tuple[int, int, int]:
        return 1, 1, 1

    def cost(self, op: MatMul, *, a: object = DENSE, b: object = DENSE) -> ArrayCost:
        return ArrayCost(cycles=op.macs)

    def concurrent(self, products: object) -> ArrayCost:
        raise NotImplementedError


@dataclass(frozen=True)
class Estimating(OneMultiplier):
    """The same, with an estimate of half of the cycles and streams of some steps for operands that are not dense."""

    def estimated_cycles(self, op: MatMul, a: object, b: object) -> int:
        return op.macs // 2

    def stream_steps(self, op: MatMul, a: object, b: object) -> int:
        return op.K if a is DENSE and b is DENSE else 3 * op.K // 2


def test_cycles_are_expected_as_an_array_estimates_them_or_else_as_it_counts_them() -> None:
    expected = [_expected_cycles(array, MatMul(4, 5, 6), Density(0.5), DENSE) for array in (OneMultiplier(), Estimating())]
    assert expected == [120, 60]


def test_the_first_piece_of_a_tile_says_how_much_longer_its_streams_are_than_dense_ones() -> None:
    views: list[tuple[str, object]] = []
    bits = Bits("all", {("fc", 0, "A"): np.ones((40, 40), np.bool_)})

    def shown(side: str) -> Viewer:
        def view(*cut: object) -> MaskView:
            views.append((side, cut))
            return MaskView(bits, ("fc", 0, "A"))

        return view

    costs = TileCosts(Estimating(), shown("left"), shown("right"), {})
    slowdown = layout_slowdown(Estimating(), costs)
    assert slowdown is not None
    views.clear()
    assert slowdown(MatMul(4, 6, 10)) == 1.5
    assert views == [("left", (0, (0, 4), (0, 10))), ("right", (0, (0, 10), (0, 6)))]
    assert layout_slowdown(OneMultiplier(), costs) is None
    assert layout_slowdown(Estimating(), TileCosts(Estimating(), lambda *_: Density(0.5), lambda *_: DENSE, {})) is None


def counted_tiles(part: int, of: int) -> CountedTiles:
    """Tiles that take so large a part of their dense cycles."""
    return CountedTiles(OneMultiplier(), lambda m, n, k: m * n * k * part // of, {})


@pytest.mark.parametrize(("part", "of", "share"), [(3, 1, 3.0), (1, 2, 0.0), (21, 32, 0.0)])
def test_a_tile_of_one_cycle_takes_a_share_of_one(part: int, of: int, share: float) -> None:
    choice = SparseTileSearch(array=OneMultiplier(), supply=Supply(resident_bytes=1e6, bytes_per_cycle=1.0))
    assert choice._share(counted_tiles(part, of), (1, 1, 1)) == share
    assert choice._share(counted_tiles(part, of), (4, 4, 4)) == part / of


@pytest.mark.probe
@pytest.mark.parametrize(("part", "descends"), [(19, False), (20, False), (21, False), (18, True), (22, True)])
def test_shares_that_differ_by_a_twentieth_are_alike_and_others_need_a_descent(
    part: int, descends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20/32 of the dense cycles were expected: 19/32 and 21/32 differ from that by exactly a twentieth of it."""
    problem, supply = (
        replace(Problem.dense(MatMul(64, 64, 64), 4), tile=(32, 32, 32)),
        Supply(resident_bytes=1e6, bytes_per_cycle=1.0),
    )
    choice = SparseTileSearch(array=OneMultiplier(), supply=supply)
    (planned,) = search([problem], OneMultiplier(), supply)
    expected = replace(planned, compute_cycles=planned.compute_cycles * 20 // 32)
    monkeypatch.setattr(tile_descent, "descend", lambda *_, **__: ["a descent"])
    found = choice._faster(problem, counted_tiles(part, 32), planned, expected)
    assert (found == ["a descent"]) is descends
    assert descends or [tiled.compute_cycles for tiled in found] == [64**3 * part // 32]
