"""Products side by side on a divided array: never slower than one after another, and every byte and event accounted for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Sigma, Systolic
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.side_by_side import Division, adjusted, divisions, merged, several, units
from trainyard.devices.accelerator.side_by_side import parts as divided
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import (
    DENSE,
    ArrayCost,
    DeviceCost,
    ElementWise,
    MatMul,
    Op,
    Phase,
    Role,
    Step,
    TensorSpec,
    Work,
    one_after_another,
)
from trainyard.ir.protocols import Divisible
from trainyard.mapping.tiling import Problem, search


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Units that each take a row of A at a time: few rows leave units idle, unless another product has them."""

    rows: int = 16
    operand_aware: bool = False

    @property
    def peak_macs_per_cycle(self):
        return self.rows

    def granule(self):
        return (self.rows, 4, 4)

    def cost(self, op, *, a=DENSE, b=DENSE):
        cycles = math.ceil(op.M * op.count / self.rows) * op.N * op.K
        return ArrayCost(cycles=cycles, events={"mac": float(op.M * op.N * op.K * op.count), "turn": float(cycles)})

    def concurrent(self, products):
        return one_after_another(self, products)

    def divided(self, shares):
        assert sum(shares) <= self.rows
        return [replace(self, rows=share) for share in shares]


FAST = Accelerator(array=Rows(), scratchpad="1 MiB", dram="1 TB/s", dram_latency=0)


def layer(M, N, K, epilogue=False):
    """dW = X' dY and dX = dY W' of one linear layer, dW first as autograd has it."""
    x, w, dy = TensorSpec((M, K)), TensorSpec((K, N), role=Role.PARAMETER), TensorSpec((M, N), role=Role.GRADIENT)
    dw, dx = TensorSpec((K, N), role=Role.PARAMETER_GRADIENT), TensorSpec((M, K), role=Role.GRADIENT)
    name = {"layer": "layer"}
    ops = [
        Op(body=MatMul(K, N, M), phase=Phase.GRAD_WEIGHT, inputs=(0, 2), outputs=(3,), letters=("A", "G"), name="dW", **name),
        Op(body=MatMul(M, K, N), phase=Phase.GRAD_INPUT, inputs=(2, 1), outputs=(4,), letters=("G", "W"), name="dX", **name),
    ]
    if epilogue:
        ops.append(Op(body=ElementWise("gelu_backward", M * K, 9), phase=Phase.GRAD_INPUT, inputs=(4, 0), outputs=(5,), **name))
    return Step(name="layer", batch=1, ops=tuple(ops), tensors=(x, w, dy, dw, dx, dx))


sizes = st.integers(1, 40)
ARRAYS = st.sampled_from([Rows(), Rows(rows=3), Sigma(dpes=8, multipliers=4, bandwidth=8)])


@given(sizes, sizes, sizes, ARRAYS, st.sampled_from([400, 4000, 2**20]), st.booleans())
def test_never_slower_and_all_is_accounted_for(M, N, K, array, scratchpad, epilogue):
    step = layer(M, N, K, epilogue)
    apart = replace(FAST, array=array, scratchpad_bytes=scratchpad, dram_bytes_per_s=8e9)
    device = replace(apart, together="gradients")
    (work,) = device.works(step)
    assert work.grouping == "concurrent"
    cost = device.cost(step, work)
    alone = [apart.cost(step, one) for one in apart.works(step)]
    assert cost.cycles <= sum(one.cycles for one in alone)
    assert sum(cost.share) == pytest.approx(1.0, abs=1e-12)
    assert min(cost.share) >= 0.0
    assert len(cost.share) == len(work.ops)
    assert cost.compute_cycles <= cost.cycles
    assert cost.events["mac"] == sum(one.events["mac"] for one in alone)
    assert cost.events.get("vector_op", 0) == sum(one.events.get("vector_op", 0) for one in alone)
    assert sum(cost.bytes.values()) == pytest.approx(cost.events["dram_read"] + cost.events["dram_write"])
    assert cost.bytes["dY", "read"] >= 2 * 4 * M * N  # each reads its own


@pytest.mark.probe
def test_two_thin_products_share_the_units_that_one_leaves_idle():
    """dW has 8 rows, dX has 8: on 16 units both run at once in the time of one. Three units are best
    left whole: 3 + 3 turns, not 8 beside 4."""
    step = layer(8, 32, 8)
    (work,) = replace(FAST, together="gradients").works(step)
    alone = [FAST.cost(step, one) for one in FAST.works(step)]
    beside = replace(FAST, together="gradients").cost(step, work)
    assert [one.compute_cycles for one in alone] == [8 * 32, 8 * 32]
    assert beside.compute_cycles == 8 * 32
    assert beside.cycles < 0.6 * sum(one.cycles for one in alone)
    three = replace(FAST, array=Rows(rows=3))
    sequential = sum(three.cost(step, one).cycles for one in three.works(step))
    assert replace(three, together="gradients").cost(step, work).cycles == sequential


def test_parts_share_scratchpad_and_dram_as_they_share_the_array():
    """Two units, one for each product: each is what half of the device makes of it, its epilogue on half of the lanes."""
    step = layer(1, 32, 1, epilogue=True)
    device = replace(FAST, array=Rows(rows=2), scratchpad_bytes=4000, dram_bytes_per_s=10e9, vector_lanes=2)
    half = replace(device, array=Rows(rows=1), scratchpad_bytes=2000, dram_bytes_per_s=5e9, vector_lanes=1)
    (work,) = replace(device, together="gradients").works(step)
    parts = [half.cost(step, one) for one in half.works(step)]
    found = replace(device, together="gradients").cost(step, work)
    assert found.cycles == max(one.cycles for one in parts)
    assert found.cycles < sum(device.cost(step, one).cycles for one in device.works(step))
    for key, size in found.bytes.items():
        assert size == sum(one.bytes.get(key, 0) for one in parts)
    shared = divided(Rows(rows=16), FAST.supply, 64, (4, 12))
    assert [(part.array.rows, part.vector_lanes) for part in shared] == [(4, 16), (12, 48)]
    assert sum(part.supply.resident_bytes for part in shared) == FAST.supply.resident_bytes
    assert sum(part.supply.bytes_per_cycle for part in shared) == FAST.supply.bytes_per_cycle


def test_the_work_takes_as_long_as_the_slower_and_the_best_division_is_taken():
    asked = []

    def cycles(size, pairs):
        """The first pair wants equal parts; of the second pair, one product is three times as fast; the third finds no room."""
        asked.extend((size, pair) for pair in pairs)
        if size < 20:
            return [math.inf] * len(pairs)
        return [
            (max(6400 // size, 6400 // (128 - size)), max(6400 // size, 2133 // (128 - size)), math.inf)[pair] for pair in pairs
        ]

    assert divisions(128, 3, cycles) == [Division((64, 64), 100), Division((96, 32), 66), None]
    assert len(asked) == len(set(asked)) <= 11 + 11 + 7
    assert divisions(1, 1, cycles) == [None]


@given(st.integers(2, 40), st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=5))
def test_pairs_searched_at_once_get_the_divisions_that_they_get_alone(whole, pairs):
    def cycles(size, which):
        return [max(-(-pairs[pair][0] // size), -(-pairs[pair][1] // (whole - size))) for pair in which]

    at_once = divisions(whole, len(pairs), cycles)
    alone = [divisions(whole, 1, lambda size, _, pair=pair: cycles(size, [pair]))[0] for pair in range(len(pairs))]
    assert at_once == alone


def pair_of_costs(first, second):
    return [DeviceCost(cycles=cycles, compute_cycles=0, bytes={}, share=(1.0,)) for cycles in (first, second)]


@pytest.mark.probe
@pytest.mark.parametrize(
    ("cycles", "asked", "best"),
    [
        (lambda first, second: (1600 // first, 1), [(8, 8), (10, 6), (12, 4), (14, 2)], (114, 1)),  # both keep a unit or more
        (lambda first, second: (1, 1600 // second), [(8, 8), (6, 10), (4, 12), (2, 14)], (1, 114)),
        (lambda first, second: (1200 // first, 400 // second), [(8, 8), (10, 6), (12, 4), (10, 6)], (100, 100)),
        (lambda first, second: (100, 100 + first), [(8, 8), (6, 10), (4, 12), (2, 14)], (100, 102)),
        (lambda first, second: (90, 90), [(8, 8), (6, 10)], (90, 90)),  # no help: the first division stays
    ],
)
def test_units_go_to_the_slower_product_for_as_long_as_that_helps(cycles, asked, best):
    """Steps of an eighth of 16 units from equal parts."""
    shares = []

    def cost(division):
        assert sum(division) == 16
        assert min(division) > 0
        shares.append(division)
        return pair_of_costs(*cycles(*division))

    found = adjusted((8, 8), cost)
    assert tuple(one.cycles for one in found) == best
    assert shares == asked


@pytest.mark.parametrize(("beside", "cycles", "compute", "uncertainty"), [(True, 30, 9, 4.0), (False, 40, 15, 5.0)])
def test_products_side_by_side_take_as_long_as_the_longest_and_in_turn_as_all(beside, cycles, compute, uncertainty):
    first, second = (
        DeviceCost(
            cycles=size, compute_cycles=busy, bytes={("X", "read"): size, (name, "write"): 1}, share=share,
            events={"mac": 2.0, name: 1.0}, bound=name, chosen=(name,), uncertainty=error,
        )
        for size, busy, share, name, error in ((10, 9, (0.5, 0.5), "dram", 3.0), (30, 6, (1.0,), "compute", 4.0))
    )  # fmt: skip
    cost = merged([first, second], beside=beside)
    assert (cost.cycles, cost.compute_cycles, cost.uncertainty) == (cycles, compute, uncertainty)
    assert cost.bytes == {("X", "read"): 40, ("dram", "write"): 1, ("compute", "write"): 1}
    assert cost.events == {"mac": 4.0, "dram": 1.0, "compute": 1.0}
    assert cost.share == pytest.approx((0.125, 0.125, 0.75))
    assert (cost.bound, cost.chosen) == ("compute", ("dram", "compute"))
    nothing = replace(first, cycles=0, bytes={}, events={})
    assert merged([nothing, nothing], beside=beside).share == (0.0, 0.0, 0.0, 1.0)


def test_a_division_without_room_is_not_taken():
    assert adjusted((8, 8), lambda shares: None) is None
    found = adjusted((8, 8), lambda shares: pair_of_costs(9, 1) if shares == (8, 8) else None)
    assert [one.cycles for one in found] == [9, 1]
    assert adjusted((1, 1), lambda shares: pair_of_costs(9, 1))[0].cycles == 9  # two units: nothing to give


def test_units_are_those_of_the_array():
    assert units(Rows(rows=7)) == 7
    assert units(Sigma(dpes=32, multipliers=64)) == 32
    assert not isinstance(Systolic(rows=8, columns=8), Divisible)


def test_by_phase_the_times_sum_to_the_step():
    step = layer(8, 32, 8, epilogue=True)
    result = ty.run(step, on=FAST, together="gradients")
    assert result.cycles < ty.run(step, on=FAST).cycles
    phases = result.group("phase")
    assert all(phases[name,].time_s > 0 for name in ("grad_input", "grad_weight"))
    assert sum(cost.time_s for cost in phases.values()) == pytest.approx(result.time_s, rel=1e-12)
    moved = sum(sum(cost.traffic_bytes.values()) for cost in phases.values())
    assert moved == sum(result.traffic_bytes.values())


# with masks


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]

    @property
    def digest(self):
        return repr([(name, bits.tobytes()) for name, bits in self.tensors.items()])

    def bits(self, key):
        return self.tensors[key[2]]

    @property
    def specs(self):
        return {("layer", 0, letter): None for letter in self.tensors}


@pytest.mark.parametrize("nonzero", [0.1, 0.5])
def test_zeros_count_in_each_part(nonzero):
    step = layer(48, 24, 40)
    random = np.random.default_rng(3)
    masks = Bits({name: random.random(shape) < nonzero for name, shape in {"A": (48, 40), "W": (40, 24), "G": (48, 24)}.items()})
    apart = replace(FAST, array=Sigma(dpes=16, multipliers=16, bandwidth=16))
    device = replace(apart, together="gradients")
    (work,) = device.works(step)
    cost = device.cost(step, work, masks)
    alone = [apart.cost(step, one, masks) for one in apart.works(step)]
    assert cost.cycles <= sum(one.cycles for one in alone)
    assert cost.cycles < device.cost(step, work).cycles
    assert cost.events["mac"] == sum(one.events["mac"] for one in alone)
    pairs = [masks.tensors["A"].T.astype(int) @ masks.tensors["G"], masks.tensors["G"].astype(int) @ masks.tensors["W"].T]
    assert cost.events["mac"] == sum(int(product.sum()) for product in pairs)


# heads


def heads(M, N, K, count):
    tensors = (TensorSpec((count, M, K)), TensorSpec((count, K, N)), TensorSpec((count, M, N)))
    return Step(name="heads", batch=1, ops=(Op(body=MatMul(M, N, K, count), inputs=(0, 1), outputs=(2,)),), tensors=tensors)


@pytest.mark.probe
@pytest.mark.parametrize(("resident", "together"), [(0, 1), (2, 2), (3, 3), (5, 4), (6, 6), (100, 12)])
def test_as_many_heads_share_a_step_as_divide_all_and_find_room(resident, together):
    """A head has 4 rows for 48 units: any two are twice as fast. Room for 5 of 12 heads is room for 4."""
    step = heads(4, 8, 8, 12)
    one = 4 * (4 * 8 + 8 * 8 + 4 * 8)
    device = replace(FAST, array=Rows(rows=48), scratchpad_bytes=2 * max(one * resident, one), dram_bytes_per_s=1e15)
    cost = device.cost(step, Work(ops=(0,)))
    assert cost.compute_cycles == 8 * 8 * 12 // together
    assert cost.events["mac"] == 4 * 8 * 8 * 12
    assert cost.events["turn"] == cost.compute_cycles
    assert sum(cost.bytes.values()) == one * 12


@given(sizes, sizes, sizes, st.integers(1, 12))
def test_heads_are_never_slower_than_one_by_one(M, N, K, count):
    device = replace(FAST, scratchpad_bytes=40_000, dram_bytes_per_s=8e9)
    step = heads(M, N, K, count)
    problem = Problem.dense(MatMul(M, N, K, count), 4)
    (apart,) = search([problem], device.array, device.supply)
    cost = device.cost(step, Work(ops=(0,)))
    assert cost.cycles <= apart.cycles
    assert sum(cost.bytes.values()) >= problem.a_bytes + problem.b_bytes + problem.out_bytes


@pytest.mark.parametrize(("room", "sizes"), [(1, []), (2, [2]), (4, [2, 3, 4]), (12, [2, 3, 4, 6, 12])])
def test_whole_heads_share_a_step_in_every_number_that_divides_them_and_finds_room(room, sizes):
    problem = Problem.dense(MatMul(4, 8, 8, 12), 4)
    one = 4 * (4 * 8 + 8 * 8 + 4 * 8)
    supply = replace(FAST.supply, resident_bytes=one * room)
    found = list(several(problem, Rows(rows=48), supply))
    assert [size for _, size in found] == sizes
    assert [tiled.compute_cycles for tiled, _ in found] == [8 * 8 * 12 // size for size in sizes]


def test_a_given_tile_that_cuts_a_head_keeps_heads_apart():
    step, wide = heads(4, 8, 8, 12), replace(FAST, array=Rows(rows=48))
    assert replace(wide, tiling=(4, 8, 4)).cost(step, Work(ops=(0,))).compute_cycles == 8 * 8 * 12
    assert replace(wide, tiling=(4, 8, 8)).cost(step, Work(ops=(0,))).compute_cycles == 8 * 8


def test_heads_have_no_masks_and_share_steps_all_the_same():
    step, wide = heads(4, 8, 8, 12), replace(FAST, array=Rows(rows=48, operand_aware=True))
    assert wide.cost(step, Work(ops=(0,)), Bits({})) == wide.cost(step, Work(ops=(0,)))


def test_a_fused_kernel_asks_the_array_for_all_heads_at_once():
    step = heads(4, 8, 8, 12)
    fused = replace(step, ops=(replace(step.ops[0], fused=1),))
    cost = replace(FAST, array=Rows(rows=48)).cost(fused, Work(ops=(0,)))
    assert cost.compute_cycles == 8 * 8


# errors


def test_an_array_that_cannot_be_divided_says_so():
    with pytest.raises(BadInput, match="together='gradients' needs an array that can be divided, such as Sigma"):
        Accelerator(array=Systolic(rows=8, columns=8), scratchpad="1 MiB", dram="1 GB/s", together="gradients")
    with pytest.raises(UnknownName, match="gradients"):
        replace(FAST, together="gradient")


def test_a_concurrent_work_that_is_none():
    step = layer(4, 4, 4, epilogue=True)
    with pytest.raises(NotModelled):
        FAST.cost(step, Work(ops=(2,), grouping="concurrent"))
    kernel = replace(step, ops=tuple(replace(op, fused=1) for op in step.ops))
    with pytest.raises(NotModelled, match="only products are done together"):
        FAST.cost(kernel, Work(ops=(0, 1), grouping="concurrent"))


def test_products_done_together_follow_each_other_on_an_array_that_cannot_be_divided():
    step, device = layer(8, 32, 8), replace(FAST, array=Systolic(rows=8, columns=8))
    together = device.cost(step, Work(ops=(0, 1), grouping="concurrent"))
    apart = [device.cost(step, work) for work in device.works(step)]
    assert together.cycles == sum(cost.cycles for cost in apart)
    assert together.compute_cycles == sum(cost.compute_cycles for cost in apart)
