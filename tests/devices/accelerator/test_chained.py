"""Gradients of two layers in one Work: what a device makes of it, and that it is never slower than two layers apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import trainyard as ty
from trainyard import arrays, machines
from trainyard.devices import Accelerator
from trainyard.devices.accelerator import chained as chained_layers
from trainyard.devices.accelerator.chained import _products, _weights, chain_of, in_turn, stays_apart
from trainyard.devices.accelerator.ordered import Schedule
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import DeviceCost, ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec, Work
from trainyard.mapping.demand import ChainDemand
from trainyard.mapping.gradient_order.chain import ChainCost, ChainTraffic, chain_traffic
from trainyard.mapping.gradient_order.chain_search import fastest
from trainyard.mapping.gradient_order.links import gradient_links, table
from trainyard.mapping.gradient_order.scratchpad import Traffic
from trainyard.mapping.gradient_order.works import is_chain, joinable_links, joined_work, split_layers
from trainyard.mapping.profile import demand
from trainyard.workloads import zoo

DEVICE = Accelerator(
    array=arrays.Systolic(rows=4, columns=4), scratchpad_bytes=6000, dram="1 GB/s", clock="1 GHz", dram_latency="3 ns",
    order="cost", across="relu",
)  # fmt: skip


def none(device):
    """The same device with layers apart."""
    return machines.with_overrides(device, {"across": "none"})


def step_of(M=64, N=8, K=12, J=8, *, bias=True, mask=True, lower_dx=True, turned=False, between=(), dtype="fp32"):
    """Linear (M,J)->(M,K), ReLU, linear (M,K)->(M,N), backward as autograd has it; `between` stands before the lower one."""
    gradient, parameter, result = Role.GRADIENT, Role.PARAMETER, Role.PARAMETER_GRADIENT
    specs = (
        ((M, N), gradient), ((K, N), parameter), ((M, K), Role.ACTIVATION), ((K, N), result), ((M, K), gradient),
        ((M, K), gradient), ((J, K), parameter), ((M, J), Role.ACTIVATION), ((M, J), gradient), ((J, K), result), ((K,), result),
        ((M, K), Role.ACTIVATION), ((K, N), parameter),
    )  # fmt: skip
    down, across = Phase.GRAD_INPUT, Phase.GRAD_WEIGHT
    ops = [
        Op(body=MatMul(M, K, N), layer="upper", phase=down, inputs=(0, 1), outputs=(4,), letters=("G", "W"), name="dX"),
        Op(body=MatMul(K, N, M), layer="upper", phase=across, inputs=(2, 0), outputs=(3,), letters=("A", "G"), name="dW"),
        Op(
            body=ElementWise("threshold_backward", M * K), layer="relu", name="threshold_backward", phase=down,
            inputs=(4, 2 if mask else 11), outputs=(5,),
        ),
        *between,
    ]  # fmt: skip
    if lower_dx:
        ops.append(Op(body=MatMul(M, J, K), layer="lower", phase=down, inputs=(5, 6), outputs=(8,), letters=("G", "W"), name="dX"))
    body, ends, letters = (MatMul(K, J, M), (5, 7), ("G", "A")) if turned else (MatMul(J, K, M), (7, 5), ("A", "G"))
    ops.append(Op(body=body, layer="lower", phase=across, inputs=ends, outputs=(9,), letters=letters, name="dW"))
    if bias:
        ops.append(Op(body=Reduction("sum", M * K, K), layer="lower", phase=across, inputs=(5,), outputs=(10,), name="sum"))
    tensors = tuple(TensorSpec(shape, role=role, dtype=dtype) for shape, role in specs)
    return Step(name="two layers", batch=M, ops=tuple(ops), tensors=tensors)


@dataclass(frozen=True)
class Bits:
    """Zeros by letter, the same in both layers."""

    tensors: dict[str, np.ndarray]
    digest: str = "drawn"

    def bits(self, key):
        return self.tensors[key[2]]

    @property
    def specs(self):
        return {(layer, 0, letter): None for layer in ("upper", "lower") for letter in self.tensors}


def costed(device, step, masks=None):
    return [(work, device.cost(step, work, masks)) for work in device.works(step)]


def total(device, step, masks=None):
    costs = [cost for _, cost in costed(device, step, masks)]
    return sum(cost.cycles for cost in costs), sum(sum(cost.bytes.values()) for cost in costs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lower_dx", [True, False])
def test_two_layers_become_one_work(bias: bool, lower_dx: bool) -> None:
    step = step_of(bias=bias, lower_dx=lower_dx)
    ((work, cost),) = costed(DEVICE, step)
    assert work.grouping == "gradient_pair"
    assert sorted(work.ops) == list(range(len(step.ops)))
    assert is_chain(step, work)
    assert set(split_layers(step, work)) == set(none(DEVICE).works(step))
    assert sum(cost.share) == 1
    assert len(cost.share) == len(work.ops)
    assert min(cost.share) >= 0
    before = costed(none(DEVICE), step)
    assert cost.cycles < sum(one.cycles for _, one in before)
    assert cost.events["mac"] == sum(one.events.get("mac", 0) for _, one in before)
    assert cost.events["vector_op"] == sum(one.events["vector_op"] for _, one in before)
    moved = cost.events["dram_read"] + cost.events["dram_write"]
    assert moved == sum(cost.bytes.values())


@pytest.mark.parametrize("lower_dx", [True, False])
def test_bytes_are_those_of_the_chain(lower_dx: bool) -> None:
    """Equal elements, no bias, the mask from X: the device moves what `chain_traffic` counts, and nothing between."""
    step = step_of(bias=False, lower_dx=lower_dx)
    ((work, cost),) = costed(DEVICE, step)
    asked = demand(step, work, DEVICE.policy)
    assert isinstance(asked, ChainDemand)
    found = fastest(chain_of(asked), DEVICE.array, DEVICE.supply)
    assert found is not None
    assert found.cycles == cost.cycles
    moved = chain_traffic(
        MatMul(64, 8, 12), MatMul(64, 12, 8), tile_upper=found.tile_upper, tile_lower=found.tile_lower,
        capacity_bytes=DEVICE.supply.resident_bytes, element_bytes=4, join=found.join, lower_dx=lower_dx,
    )  # fmt: skip
    assert moved.total_bytes == sum(cost.bytes.values())
    assert cost.bytes["dY", "read"] == moved.upper.bytes["dY", "read"]
    assert cost.bytes.get(("dX", "write"), 0) == (64 * 8 * 4 if lower_dx else 0)


def test_a_first_layer_turned_is_the_same_layer() -> None:
    """dW of nn.Linear is computed k by j; what the chain holds and moves of it does not change."""
    lower = []
    for turned in (False, True):
        step = step_of(J=20, lower_dx=False, turned=turned)
        asked = demand(step, DEVICE.works(step)[0], DEVICE.policy)
        assert isinstance(asked, ChainDemand)
        lower.append(chain_of(asked).lower)
    assert [pair.dw_transposed for pair in lower] == [False, True]
    assert lower[0] == replace(lower[1], dw_transposed=False)
    assert lower[0].op == MatMul(64, 12, 20)
    assert lower[0].moved == (64 * 12 * 4, 0, 64 * 20 * 4, 0, 20 * 12 * 4)
    assert lower[0].resident == lower[0].moved
    assert lower[0].sums == (0, 20 * 12 * 4)


def test_a_bias_gradient_leaves_after_all_else() -> None:
    ((_, alone),) = costed(DEVICE, step_of(bias=False))
    ((_, cost),) = costed(DEVICE, step_of())
    assert cost.cycles - alone.cycles == 3 + 12 * 4  # a latency, and 4 bytes a column at a byte a cycle


def test_a_sum_that_goes_through_dy_twice_keeps_layers_apart() -> None:
    step = step_of()
    again = replace(step.ops[-1], body=replace(step.ops[-1].body, passes=2))
    twice = replace(step, ops=(*step.ops[:-1], again))
    assert len(DEVICE.works(step)) == 1
    assert DEVICE.works(twice) == none(DEVICE).works(twice)


def test_what_the_layers_save_is_the_tensor_between() -> None:
    """With room for everything: dX not written, dY not read, nor for the bias, and the mask is the X that dW reads."""
    step = step_of()
    roomy = machines.with_overrides(DEVICE, {"scratchpad_bytes": 100_000})
    between = 64 * 12 * 4
    assert total(none(roomy), step)[1] - total(roomy, step)[1] == 4 * between
    own = step_of(mask=False)  # a mask of its own is read all the same
    assert total(none(roomy), own)[1] - total(roomy, own)[1] == 3 * between
    asked = demand(own, roomy.works(own)[0], roomy.policy)
    assert isinstance(asked, ChainDemand)
    assert not asked.masked
    assert chain_of(asked).passing_bytes == between


def test_narrow_elements_with_wide_sums() -> None:
    """bf16: half of the bytes, sums of four."""
    step = step_of(dtype="bf16")
    asked = demand(step, DEVICE.works(step)[0], DEVICE.policy)
    assert isinstance(asked, ChainDemand)
    rates = chain_of(asked).rates
    assert rates[0].tolist() == [2, 2, 0, 0, 0]
    assert rates[3].tolist() == [4, 0, 4, 2, 2]
    assert rates[8].tolist() == [4, 2, 4, 0, 0]


def test_a_chain_that_does_not_pay_stays_two_layers() -> None:
    wide = step_of(M=16, N=96, K=96, J=96)
    assert [link.fuses for link in gradient_links(wide)] == [True, False]
    assert DEVICE.works(wide) == none(DEVICE).works(wide)
    assert total(DEVICE, wide) == total(none(DEVICE), wide)
    ((members),) = joinable_links(wide, none(DEVICE).works(wide)).values()
    forced = Work(ops=tuple(index for member in members for index in member.ops), grouping="gradient_pair")
    assert DEVICE.cost(wide, forced).cycles == total(none(DEVICE), wide)[0]


def test_an_op_that_needs_what_is_moved_keeps_layers_apart() -> None:
    """Between the layers, the upper W is written from its dW, and something reads the lower W after that."""
    update = Op(body=ElementWise("sub", 96), phase=Phase.UPDATE, inputs=(1, 3), outputs=(12,), name="sub")
    reads = Op(body=ElementWise("neg", 96), phase=Phase.UPDATE, inputs=(12,), outputs=(6,), name="neg")
    free = step_of(between=(update,))
    assert any(is_chain(free, work) for work in DEVICE.works(free))
    order = [index for work in DEVICE.works(free) for index in work.ops]
    assert order.index(1) < order.index(3)
    stuck = step_of(between=(update, reads), J=8)
    assert not any(is_chain(stuck, work) for work in DEVICE.works(stuck))
    assert DEVICE.works(stuck) == none(DEVICE).works(stuck)


@pytest.mark.parametrize("given", [{"cores": 2, "reuse": "lru"}, {"partition": "m"}])
def test_several_cores_and_partitions_keep_layers_apart(given) -> None:
    device, step = machines.with_overrides(DEVICE, given), step_of()
    assert device.works(step) == none(device).works(step)
    assert total(device, step) == total(none(device), step)


def test_an_array_that_looks_at_zeros_takes_layers_one_by_one() -> None:
    step = step_of(M=32, N=16, K=16, J=16, bias=True)
    array = arrays.TensorDash(rows=4, columns=4)
    device = machines.with_overrides(DEVICE, {"array": array, "scratchpad_bytes": 32000})
    ((work, _),) = costed(device, step)
    random = np.random.default_rng(0)
    masks = Bits({name: random.random(shape) < 0.4 for name, shape in {"A": (32, 16), "W": (16, 16), "G": (32, 16)}.items()})
    parts = [none(device).cost(step, part, masks) for part in split_layers(step, work)]
    found = device.cost(step, work, masks)
    assert found.cycles == sum(part.cycles for part in parts)
    dense = [none(device).cost(step, part) for part in split_layers(step, work)]
    array_busy, dense_busy = (sum(part.compute_cycles for part in some[:2]) for some in (parts, dense))  # the bias is a vector's
    assert found.compute_cycles == array_busy < dense_busy
    assert found.events["mac"] == sum(part.events.get("mac", 0) for part in parts)


def test_only_products_count() -> None:
    """Nothing is fused onto products then, so a ReLU keeps layers apart."""
    device, step = machines.with_overrides(DEVICE, {"scope": "products"}), step_of()
    assert device.works(step) == none(device).works(step)


@cache
def ran(network: str, machine: str, across: str):
    step = zoo.load(network)
    device = machines.machine(f"{machine}(order=cost,across={across})")
    return step, costed(device, step)


@pytest.mark.parametrize(
    ("network", "machine"),
    [
        ("dlrm", "npu"),
        ("dlrm", "npu-small"),
        ("bert-tiny", "npu"),
        pytest.param("squeezenet", "npu-small", marks=pytest.mark.slow),
        ("vgg16", "npu"),
    ],
)
def test_never_slower_on_real_networks(network: str, machine: str) -> None:
    (step, fused), (_, apart) = (ran(network, machine, across) for across in ("relu", "none"))
    assert Counter(index for work, _ in fused for index in work.ops) == Counter(range(len(step.ops)))
    for work, cost in fused:
        assert sum(cost.share) == pytest.approx(1)
        assert len(cost.share) == len(work.ops)
    sums = [(sum(cost.cycles for _, cost in each), sum(sum(cost.bytes.values()) for _, cost in each)) for each in (fused, apart)]
    assert sums[0] <= sums[1]
    assert sum(cost.events.get("mac", 0) for _, cost in fused) == sum(cost.events.get("mac", 0) for _, cost in apart)
    chained = [(work, cost) for work, cost in fused if is_chain(step, work)]
    alone = {work.ops: cost for work, cost in apart}
    for work, cost in chained:
        parts = [alone[part.ops] for part in split_layers(step, work)]
        assert (cost.cycles, sum(cost.bytes.values())) < (
            sum(part.cycles for part in parts), sum(sum(part.bytes.values()) for part in parts),
        )  # fmt: skip
    assert (not chained) == (sums[0] == sums[1])
    first = {index: at for at, (work, _) in enumerate(fused) for index in work.ops}
    for index, before in enumerate(step.dependencies):
        assert all(first[other] <= first[index] for other in before)


def test_a_run_adds_up() -> None:
    result = ty.run("dlrm", on="npu(order=cost,across=relu)")
    assert result.cycles == sum(cost.cycles for _, cost in ran("dlrm", "npu", "relu")[1])


def test_what_keeps_layers_apart_is_told() -> None:
    rows = table(zoo.load("resnet50")).splitlines()
    assert rows[0].split() == ["upper", "layer", "lower", "layer", "fuses", "on", "its", "way,", "or", "why", "not"]
    assert any("layer4.2.conv3" in row and " no " in row and "BatchNorm" in row for row in rows)
    assert any(" yes " in row and "ReLU mask from X" in row for row in table(zoo.load("dlrm")).splitlines())


def test_refusals_say_what_to_write() -> None:
    with pytest.raises(BadInput, match="order='cost'"):
        machines.machine("npu(across=relu)")
    with pytest.raises(UnknownName, match="unknown across 'all'"):
        Accelerator(array=DEVICE.array, scratchpad="1 MiB", dram="1 GB/s", order="cost", across="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
def test_the_nest_of_a_chain_is_that_of_the_upper_layer_and_names_the_lower_one(bias: bool) -> None:
    step = step_of(bias=bias)
    (nest,) = DEVICE.loop_nests(step)
    ((_, cost),) = costed(DEVICE, step)
    assert (nest.layer, nest.op, nest.phase, nest.kind) == ("upper", "dX", "grad_input + grad_weight", "gradient chain")
    assert nest.dims == (64, 8, 12, 1)
    assert nest.product == "dX(64 x 12) = dY(64 x 8) W(8 x 12); dW(12 x 8) = X(12 x 64) dY(64 x 8)"
    assert {loop.axis: loop.extent for loop in nest.loops} == {"m": 64, "n": 8, "k": 12}
    assert (nest.cycles, nest.compute_cycles, nest.dram_bytes) == (cost.cycles, cost.compute_cycles, sum(cost.bytes.values()))
    assert nest.note.startswith("dX goes on into lower on chip, there in tiles ")
    assert nest.room_bytes <= nest.room_limit_bytes == 3000
    once = 64 * 8 + 8 * 12 * 2 + 64 * 12 + 12 * 8 * 2 + 64 * 8 * 2  # dY, W, dW, X, and of the lower layer W, dW, X, dX
    assert nest.compulsory_bytes == 4 * once


def test_the_nest_of_a_pair_names_dx_and_moves_each_tensor_at_least_once() -> None:
    step = step_of(lower_dx=False, bias=False)
    pair, *_ = none(DEVICE).loop_nests(step)
    assert (pair.layer, pair.op, pair.phase, pair.kind) == ("upper", "dX", "grad_input + grad_weight", "gradient pair")
    assert [(moved.tensor, moved.once_bytes) for moved in pair.moved] == [
        ("dY", 64 * 8 * 4), ("W", 8 * 12 * 4), ("X", 64 * 12 * 4), ("dX", 2 * 64 * 12 * 4), ("dW", 8 * 12 * 4),
    ]  # fmt: skip  # with dX goes what the ReLU reads
    assert all(moved.bytes >= moved.once_bytes for moved in pair.moved)


def test_time_of_a_chain_is_shared_by_macs_and_waiting_by_bytes() -> None:
    """Four equal products have a quarter of 400 cycles each; the other 600 are a cycle a byte, a layer's operands half and half."""
    step = step_of(M=4, N=4, K=4, J=4, bias=True)
    members = none(DEVICE).works(step)
    asked = demand(step, joined_work(members), DEVICE.policy)
    assert isinstance(asked, ChainDemand)
    upper, lower = _products(asked)
    side = Traffic(bytes={("W", "read"): 30, ("dY", "read"): 10, ("dW", "spill"): 20, ("dW", "write"): 999})
    cost = ChainCost(
        tile_upper=(4, 4, 4), tile_lower=(4, 4, 4), join="block", traffic=ChainTraffic(upper=side, lower=Traffic(bytes={})),
        cycles=900, compute_cycles=400,
    )  # fmt: skip
    dx, relu, dw, lower_dx, lower_dw, bias = _weights(upper, lower, asked.left, cost, 1000, 600)
    assert (dx, dw) == (100 + 30, 100 + 30 + 64)  # dX stays on chip, dW leaves
    assert relu == 0  # what it reads is X, which dW reads as well
    assert (lower_dx, lower_dw) == (100 + 64, 100 + 64)
    assert bias == 4 * 4
    assert _weights(upper, lower, asked.left, cost, 400, 600) == [100, 0, 100, 100, 100, 0]


def test_layers_one_after_the_other_keep_the_array_busy_with_products_alone() -> None:
    costs = [DeviceCost(cycles=10 * number, compute_cycles=number, bytes={("X", "read"): 1}, share=(1.0,)) for number in (1, 2, 3)]
    found = in_turn(costs)
    assert (found.cycles, found.compute_cycles, found.bytes) == (60, 3, {("X", "read"): 3})
    assert found.share == pytest.approx((1 / 6, 2 / 6, 3 / 6))


@pytest.mark.parametrize(
    ("schedule", "apart"),
    [
        (Schedule(order="cost"), False),
        (Schedule(order="cost", cores=2), True),
        (Schedule(order="cost", partition="m"), True),
        (Schedule(order="cost", reuse="lru"), False),
        (Schedule(order="cost", reuse="window"), True),
    ],
)
def test_layers_stay_apart_on_several_cores_in_parts_and_with_other_ways_to_keep_tiles(schedule: Schedule, apart: bool) -> None:
    assert stays_apart(schedule) is apart


@pytest.mark.probe
@pytest.mark.parametrize(
    ("cycles", "moved", "taken"), [(0, 0, False), (0, 1, True), (0, -1, False), (1, -(10**9), True), (-1, 10**9, False)]
)
def test_a_chain_is_taken_if_it_saves_a_cycle_or_in_as_many_cycles_a_byte(cycles, moved, taken, monkeypatch) -> None:
    step = step_of(bias=False)

    def cost(cycles: int, size: int) -> DeviceCost:
        return DeviceCost(cycles=cycles, compute_cycles=1, bytes={("X", "read"): size}, share=(1.0,))

    apart, size = 1000, 2 * 10**9
    monkeypatch.setattr(chained_layers, "chained", lambda *_: cost(2 * apart - cycles, 2 * size - moved))
    heads, _ = chained_layers.chosen(
        step, none(DEVICE).policy, lambda demands: [cost(apart, size) for _ in demands], DEVICE._costing.orderly
    )
    assert bool(heads) is taken
