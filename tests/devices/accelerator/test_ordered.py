"""dX and dW of a layer in one Work: the device counts what `gradient_order` counts, whatever array, order, partition and cores."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard import arrays, machines
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.ordered import ORDER_NAMES, Schedule, _weights, grid_events, part_of
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import Convolution, Density, ElementWise, MaskView, MatMul, Op, Phase, Role, Step, TensorSpec, Work
from trainyard.mapping.demand import PairDemand
from trainyard.mapping.gradient_order import scratchpad as gradient_order
from trainyard.mapping.gradient_order.scratchpad import POLICIES, Pair, algorithm_1
from trainyard.mapping.gradient_order.search import TOLERANCE
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS, ORDERS, Partition, grid, stream
from trainyard.mapping.profile import demand
from trainyard.mapping.tiling import Supply
from trainyard.masks.densities import Densities

ARRAY = arrays.Systolic(rows=4, columns=4)
DEVICE = Accelerator(array=ARRAY, scratchpad_bytes=2000, dram="4 GB/s", clock="1 GHz", dram_latency="3 ns", order="interleaved")
CORES = replace(DEVICE, reuse="lru")
ALL_ORDERS = ORDER_NAMES
TILE = (8, 4, 8)


def linear(M, N, K, *, turned=False, epilogue=False, forward=False, count=1):
    """dW and dX of a linear layer, dW first as autograd has it; nn.Linear computes dW turned, n by k."""
    many = (count,) if count > 1 else ()
    x, w = TensorSpec((*many, M, K)), TensorSpec((*many, K, N), role=Role.PARAMETER)
    dy, y = TensorSpec((*many, M, N), role=Role.GRADIENT), TensorSpec((*many, M, N))
    dw, dx = TensorSpec((*many, K, N), role=Role.PARAMETER_GRADIENT), TensorSpec((*many, M, K), role=Role.GRADIENT)
    body, ends = (MatMul(N, K, M, count), (2, 0)) if turned else (MatMul(K, N, M, count), (0, 2))
    letters = ("G", "A") if turned else ("A", "G")
    ops = [
        Op(body=body, phase=Phase.GRAD_WEIGHT, inputs=ends, outputs=(3,), letters=letters, name="dW", layer="layer"),
        Op(body=MatMul(M, K, N, count), phase=Phase.GRAD_INPUT, inputs=(2, 1), outputs=(4,), letters=("G", "W"), layer="layer"),
    ]
    if forward:
        ops.insert(0, Op(body=MatMul(M, N, K, count), inputs=(0, 1), outputs=(6,), letters=("A", "W"), layer="layer"))
    if epilogue:
        body = ElementWise("threshold_backward", count * M * K)
        ops.append(Op(body=body, phase=Phase.GRAD_INPUT, inputs=(4, 0), outputs=(5,), layer="relu"))
    return Step(name="linear", batch=1, ops=tuple(ops), tensors=(x, w, dy, dw, dx, dx, y))


CONV = Convolution(batch=2, in_channels=3, out_channels=8, size=(9, 9), kernel=(3, 3), stride=(2, 2), padding=(1, 1))


def convolution(body=CONV):
    x = TensorSpec((body.batch, body.in_channels, *body.size))
    w = TensorSpec((body.out_channels, body.in_channels // body.groups, *body.kernel), role=Role.PARAMETER)
    dy = TensorSpec((body.batch, body.out_channels, *body.out_size), role=Role.GRADIENT)
    dw, dx = TensorSpec(w.shape, role=Role.PARAMETER_GRADIENT), TensorSpec(x.shape, role=Role.GRADIENT)
    ops = (
        Op(
            body=body.as_product("grad_weight"), layer="layer", phase=Phase.GRAD_WEIGHT, inputs=(2, 0), outputs=(3,),
            letters=("G", "A"),
        ),
        Op(
            body=body.as_product("grad_input"), layer="layer", phase=Phase.GRAD_INPUT, inputs=(2, 1), outputs=(4,),
            letters=("G", "W"),
        ),
    )  # fmt: skip
    return Step(name="convolution", batch=body.batch, ops=ops, tensors=(x, w, dy, dw, dx))


def costed(device, step, masks=None):
    return [(work, device.cost(step, work, masks)) for work in device.works(step)]


def paired(device, step, masks=None):
    (found,) = [cost for work, cost in costed(device, step, masks) if work.grouping == "gradient_pair"]
    return found


sizes = st.integers(1, 24)


# what the device counts is what the order counts


@given(sizes, sizes, sizes, st.sampled_from(ORDERS), st.sampled_from(POLICIES), st.booleans(), st.integers(0, 3000))
def test_a_linear_layer_moves_and_takes_what_its_order_does(M, N, K, order, reuse, turned, more):
    op, room = MatMul(M, N, K), 4 * 3 * 64 + more
    device = replace(DEVICE, scratchpad_bytes=2 * room, order=order, reuse=reuse, tiling=TILE)
    cost = paired(device, linear(M, N, K, turned=turned))
    moved = gradient_order.traffic(op, tile=TILE, capacity_bytes=room, element_bytes=4, order=order, policy=reuse)
    assert cost.bytes == moved.bytes
    pair = replace(Pair.dense(op, 4), dw_transposed=turned)
    counted = gradient_order.cost(pair, tile=TILE, order=order, array=ARRAY, supply=device.supply, policy=reuse)
    assert (cost.cycles, cost.compute_cycles) == (counted.cycles, counted.compute_cycles)


@given(st.sampled_from(ORDERS), st.integers(0, 6000), st.integers(1, 2), st.sampled_from([1, 2]), st.integers(1, 3))
def test_an_unfolded_convolution_moves_what_its_product_does(order, more, groups, stride, kernel):
    body = replace(CONV, in_channels=4, groups=groups, stride=(stride, stride), kernel=(kernel, kernel), padding=(0, 0))
    rows = body.batch * math.prod(body.out_size)
    op = MatMul(rows, 8 // groups, 4 // groups * kernel**2, count=groups)
    device = replace(DEVICE, scratchpad_bytes=2 * (800 + more), order=order, reuse="lru", tiling=TILE, im2col="materialised")
    cost = paired(device, convolution(body))
    moved = gradient_order.traffic(op, tile=TILE, capacity_bytes=800 + more, element_bytes=4, order=order)
    assert cost.bytes == moved.bytes
    assert cost.events["mac"] == 2 * body.macs


def test_a_convolution_read_raw_moves_in_proportion():
    device = replace(DEVICE, tiling=TILE)
    raw, unfolded = (paired(replace(device, im2col=im2col), convolution()) for im2col in ("raw", "materialised"))
    elements, columns = 2 * 3 * 81, 2 * 25 * 27
    op = MatMul(50, 8, 27)
    dense = Pair.dense(op, 4)
    sizes = (dense.moved[0], dense.moved[1], 4 * elements, 4 * elements, dense.moved[4])
    pair = Pair(op=op, moved=sizes, resident=sizes, sums=sizes[3:])
    counted = gradient_order.cost(pair, tile=TILE, order="interleaved", array=ARRAY, supply=device.supply)
    assert raw.bytes == counted.traffic.bytes
    assert raw.cycles == counted.cycles
    assert raw.bytes["dX", "write"] == unfolded.bytes["dX", "write"] * elements // columns


@given(
    step=st.sampled_from([linear(13, 9, 17), linear(9, 21, 5, turned=True, epilogue=True, forward=True), convolution()]),
    order=st.sampled_from(ALL_ORDERS),
    partition=st.sampled_from(["none", "m", "n", "k", "cost"]),
    cores=st.sampled_from([1, 2, 3]),
    reuse=st.sampled_from(["step", *POLICIES]),
    scope=st.sampled_from(["all", "products"]),
    scratchpad=st.sampled_from([1500, 6000, 10**6]),
)
def test_everything_adds_up(step, order, partition, cores, reuse, scope, scratchpad):
    if (cores > 1 and reuse == "step") or (partition != "none" and order == "sequential" and reuse == "step"):
        return
    device = replace(
        DEVICE, order=order, partition=partition, cores=cores, reuse=reuse, scope=scope, scratchpad_bytes=scratchpad
    )  # fmt: skip
    found = costed(device, step)
    assert sorted(index for work, _ in found for index in work.ops) == list(range(len(step.ops)))
    assert sum(cost.events.get("mac", 0) for _, cost in found) == step.macs
    for work, cost in found:
        assert len(cost.share) == len(work.ops)
        assert sum(cost.share) == pytest.approx(1.0, abs=1e-12)
        assert min(cost.share) >= 0
        assert cost.cycles >= cost.compute_cycles
        assert sum(cost.bytes.values()) == pytest.approx(cost.events.get("dram_read", 0) + cost.events.get("dram_write", 0))
        assert all(math.isfinite(joules) and joules >= 0 for joules in device.energy(cost.events).values())
        assert cost.cycles >= math.floor(sum(cost.bytes.values()) / device.supply.bytes_per_cycle)
    result = ty.run(step, on=device)
    for by in ("phase", "layer"):
        groups = result.group(by).values()
        assert sum(cost.time_s for cost in groups) == pytest.approx(result.time_s, rel=1e-12)
        assert sum(sum(cost.traffic_bytes.values()) for cost in groups) == pytest.approx(sum(result.traffic_bytes.values()))


def test_sums_that_leave_unfinished_are_labelled():
    """32 x 32 sums of dW in a scratchpad that holds a quarter of them, gone through for each m."""
    step = linear(32, 32, 32)
    cost = paired(replace(DEVICE, order="dx_major", tiling=(4, 4, 4), scratchpad_bytes=2048), step)
    assert cost.bytes["dW", "spill"] == 2 * 7 * 32 * 32 * 4
    assert ("dX", "spill") not in cost.bytes
    roomy = paired(replace(DEVICE, order="dx_major", tiling=(4, 4, 4), scratchpad_bytes=2**20), step)
    assert roomy.bytes == {(name, "read"): 4096 for name in ("dY", "W", "X")} | {(name, "write"): 4096 for name in ("dX", "dW")}


@pytest.mark.probe
def test_dy_is_read_once_where_it_just_fits():
    """dx_major over one row of tiles needs dY, W, X, dX and the whole of dW; one byte less and sums leave."""
    step, tile = linear(16, 8, 8), (4, 8, 8)
    room = 4 * (4 * 8 + 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8)
    device = replace(DEVICE, order="dx_major", tiling=tile)
    fits = paired(replace(device, scratchpad_bytes=2 * room), step)
    assert sum(fits.bytes.values()) == 4 * (16 * 8 * 3 + 2 * 8 * 8)
    assert sum(paired(replace(device, scratchpad_bytes=2 * (room - 4)), step).bytes.values()) > sum(fits.bytes.values())


def test_a_step_without_tensors_pairs_by_its_shapes():
    for body in (MatMul(9, 4, 6), MatMul(4, 9, 6)):
        ops = (
            Op(body=body, layer="layer", phase=Phase.GRAD_WEIGHT),
            Op(body=MatMul(6, 9, 4), layer="layer", phase=Phase.GRAD_INPUT),
        )
        step = Step(name="bare", batch=1, ops=ops, tensors=())
        cost = paired(DEVICE, step)
        assert cost.events["mac"] == step.macs
        assert sum(cost.bytes.values()) >= 4 * (2 * 6 * 9 + 2 * 9 * 4 + 6 * 4)


# choices


def test_algorithm_1_chooses_for_each_layer_and_part():
    for M, N, K in ((20, 20, 20), (40, 8, 8), (8, 8, 40)):
        step, order = linear(M, N, K), algorithm_1(MatMul(M, N, K))
        assert paired(replace(DEVICE, order="paper"), step) == paired(replace(DEVICE, order=order), step)
    wide = replace(DEVICE, order="paper", square_below=6.0)
    assert paired(wide, linear(40, 8, 8)) == paired(replace(DEVICE, order="interleaved"), linear(40, 8, 8))
    halves = replace(DEVICE, partition="m", parts=2)  # half of 40 x 8 x 8 is nearly square
    assert algorithm_1(part_of(MatMul(40, 8, 8), Partition(axis="m", parts=2))) == "interleaved"
    assert paired(replace(halves, order="paper"), linear(40, 8, 8)) == paired(halves, linear(40, 8, 8))


layers = st.builds(linear, sizes, sizes, sizes, turned=st.booleans(), epilogue=st.booleans(), forward=st.booleans())
rooms, speeds = st.sampled_from([800, 1500, 4000, 20_000]), st.sampled_from([5e8, 2e9, 8e9, 64e9])


@settings(max_examples=25)
@given(layers, rooms, speeds, st.sampled_from(["step", "lru", "farthest"]))
def test_the_fastest_order_is_no_slower_than_any(step, room, speed, reuse):
    device = replace(DEVICE, scratchpad_bytes=room, dram_bytes_per_s=speed, reuse=reuse)
    cycles = {order: sum(cost.cycles for _, cost in costed(replace(device, order=order), step)) for order in ALL_ORDERS}
    for order in (*FUSED_ORDERS, "sequential", "paper"):
        assert cycles["cost"] <= (1 + TOLERANCE) * cycles[order]
    if reuse == "step":  # apart with tiles of their own is one of the choices
        assert cycles["cost"] <= cycles["sequential"]
    halves = sum(cost.cycles for _, cost in costed(replace(device, order="cost", partition="cost"), step))
    assert halves <= (1 + TOLERANCE) * cycles["cost"]


@settings(max_examples=25)
@given(layers, rooms, speeds, st.floats(1.0, 8.0), st.sampled_from(["step", "lru"]))
def test_more_bandwidth_and_lanes_never_cost_time(step, room, speed, more, reuse):
    device = replace(DEVICE, order="cost", scratchpad_bytes=room, dram_bytes_per_s=speed, reuse=reuse, vector_lanes=4)
    for better in (
        replace(device, dram_bytes_per_s=speed * more),
        replace(device, dram_latency_s=0.0),
        replace(device, vector_lanes=8),
    ):
        for (_, new), (_, old) in zip(costed(better, step), costed(device, step), strict=True):
            assert new.cycles <= (1 + TOLERANCE) * old.cycles


@settings(max_examples=25)
@given(layers, rooms, speeds, st.floats(1.0, 8.0))
def test_more_scratchpad_moves_no_more_and_hardly_costs_time(step, room, speed, more):
    """The same bytes may come at a worse moment: one layer in 300 by 0.2 %, in a search over random ones."""
    device = replace(DEVICE, order="cost", scratchpad_bytes=room, dram_bytes_per_s=speed)
    larger = replace(device, scratchpad_bytes=round(room * more))
    for (_, new), (_, old) in zip(costed(larger, step), costed(device, step), strict=True):
        assert new.cycles <= 1.02 * old.cycles
    fixed = replace(DEVICE, tiling=(4, 4, 4), scratchpad_bytes=room)
    more_room = replace(fixed, scratchpad_bytes=round(room * more))
    assert sum(paired(more_room, step).bytes.values()) <= sum(paired(fixed, step).bytes.values())


def test_the_plain_machine_is_as_it_was():
    """`sequential` with tiles of one step only pairs nothing."""
    step = linear(20, 12, 16, epilogue=True)
    assert {work.grouping for work in replace(DEVICE, order="sequential").works(step)} == {"single", "chain"}
    assert {work.grouping for work in replace(DEVICE, order="sequential", reuse="lru").works(step)} == {"gradient_pair"}


def test_time_is_shared_by_macs_and_waiting_by_bytes():
    """400 cycles of the array are of both alike, 600 of waiting come at a cycle a byte; dY is of both."""
    step = linear(4, 4, 4, epilogue=True)
    asked = demand(step, DEVICE.works(step)[0], DEVICE.policy)
    kept = {("W", "read"): 100, ("X", "read"): 50}
    for more, first, second in (
        ({}, 100, 50),
        ({("dY", "read"): 30}, 100 + 15, 50 + 15),
        ({("dW", "spill"): 7, ("dX", "write"): 1000}, 100, 50 + 7),  # results are among what is drained
        ({("dX", "spill"): 9}, 100 + 9, 50),
    ):
        ordered = gradient_order.OrderCost(
            order="interleaved", tile=TILE, partition=None, traffic=gradient_order.Traffic(bytes=kept | more), cycles=1000,
            compute_cycles=400,
        )  # fmt: skip
        dx, relu, dw = _weights((asked.dx, asked.dw), 1000, ordered, 600)
        assert (dx, relu, dw) == pytest.approx((200 + first, 64 + 64, 200 + second + 64))  # the ReLU reads X and writes dX
    assert _weights((asked.dx, asked.dw), 400, ordered, 600) == [200, 0, 200]


def test_a_gradient_that_is_on_chip_is_not_read():
    """dY is made just before its pair: where tensors stay between layers it is neither written nor read."""
    step = linear(20, 12, 18)
    loss = Op(body=ElementWise("mse_loss_backward", 240), phase=Phase.GRAD_INPUT, inputs=(6,), outputs=(2,), layer="loss")
    step = replace(step, ops=(loss, *step.ops))
    device = replace(DEVICE, scratchpad_bytes=10**5, reuse="layers")
    (_, made), (_, pair) = costed(device, step)
    assert made.bytes == {("activation", "read"): 20 * 12 * 4}
    assert pair.bytes == {
        ("W", "read"): 18 * 12 * 4, ("X", "read"): 20 * 18 * 4, ("dX", "write"): 20 * 18 * 4, ("dW", "write"): 18 * 12 * 4,
    }  # fmt: skip


def test_a_fixed_tile_is_in_the_axes_of_the_forward_product_for_each_product_alone():
    """m, n, k of Y(m,n) = X(m,k) W(k,n): dX is m by k and sums over n, dW is k by n (or n by k) and sums over m."""
    device = replace(CORES, tiling=(8, 4, 6), scratchpad_bytes=10**5)
    for turned, wanted in ((False, (6, 4, 8)), (True, (4, 6, 8))):
        forward, dw, dx = linear(20, 12, 18, turned=turned, forward=True).ops
        tensors = linear(20, 12, 18).tensors
        tiles = [device.loop_nests(Step(name="one", batch=1, ops=(op,), tensors=tensors))[0].tile for op in (forward, dx, dw)]
        assert tiles == [(8, 4, 6), (8, 6, 4), wanted]


def test_a_schedule_says_what_is_paired_cut_and_kept():
    assert not Schedule().paired
    assert Schedule(order="cost").paired
    assert Schedule(reuse="lru").paired
    assert (Schedule().policy, Schedule(reuse="farthest").policy) == ("lru", "farthest")
    assert Schedule().partitions == (None,)
    assert Schedule(partition="n", parts=3).partitions == (Partition(axis="n", parts=3, cores=False),)
    assert Schedule(cores=4).partitions == (Partition(axis="m", parts=4, cores=True),)
    assert Schedule(partition="cost").partitions == (None, *(Partition(axis=axis, parts=2, cores=False) for axis in "mnk"))
    assert Schedule(partition="cost", cores=4).partitions == tuple(Partition(axis=axis, parts=4, cores=True) for axis in "mnk")
    assert Schedule(order="cost").orders(MatMul(4, 4, 4), None) == (*FUSED_ORDERS, "sequential")
    assert Schedule(order="dw_major").orders(MatMul(4, 4, 4), None) == ("dw_major",)


# epilogues, precision, compression


def test_a_relu_behind_dx_goes_with_the_pair():
    step = linear(24, 12, 16, epilogue=True)
    device = replace(DEVICE, tiling=TILE)
    cost, bare = paired(device, step), paired(device, linear(24, 12, 16))
    (work,) = device.works(step)
    assert [step.ops[index].layer for index in work.ops] == ["layer", "relu", "layer"]
    assert cost.events["vector_op"] == 24 * 16
    assert cost.bytes["activation", "read"] == cost.bytes["gradient", "write"] == bare.bytes["dX", "write"] == 24 * 16 * 4
    assert ("dX", "write") not in cost.bytes  # masked on its way out
    apart = costed(replace(device, fusion="none"), step)
    assert sum(cost.bytes.values()) == sum(sum(one.bytes.values()) for _, one in apart) - 2 * 24 * 16 * 4
    assert len(device.works(step)) < len(replace(device, scope="products").works(step))


def test_halves_are_summed_in_full():
    """bf16: operands and results of 2 bytes, unfinished sums of 4."""
    device = replace(DEVICE, order="dx_major", precision="bf16", tiling=(4, 4, 4), scratchpad_bytes=1024)
    cost = paired(device, linear(32, 32, 32))
    assert cost.bytes["dW", "spill"] == 2 * 7 * 32 * 32 * 4
    assert cost.bytes["dW", "write"] == 32 * 32 * 2
    narrow = paired(replace(device, accumulator_bytes=2), linear(32, 32, 32))
    assert narrow.bytes["dW", "spill"] == 7 * 32 * 32 * 4


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


def drawn(M, N, K, nonzero=0.4, seed=0, count=1):
    """Zeros of a layer; a weight that is given as (K, N)."""
    random, many = np.random.default_rng(seed), (count,) if count > 1 else ()
    shapes = {"A": (*many, M, K), "W": (*many, K, N), "G": (*many, M, N)}
    return Bits({name: random.random(shape) < nonzero for name, shape in shapes.items()})


@pytest.mark.parametrize("dma", ["zero_compressed", "bitmap", "csr"])
def test_zeros_stay_off_the_pins_and_take_their_room_on_chip(dma):
    step, masks = linear(32, 16, 24), drawn(32, 16, 24, 0.3)
    device = replace(DEVICE, tiling=TILE, scratchpad_bytes=4096)
    raw, packed = paired(device, step, masks), paired(replace(device, dma=dma), step, masks)
    assert packed.bytes["dY", "read"] < raw.bytes["dY", "read"]
    assert packed.bytes["X", "read"] < raw.bytes["X", "read"]
    assert packed.cycles <= raw.cycles
    found = demand(step, device.works(step)[0], device.policy, replace(device, dma=dma)._zeros(step, masks))
    assert isinstance(found, PairDemand)
    size = found.dx.problem
    assert size.a_sram_bytes == 32 * 16 * 4 > size.a_bytes
    assert packed.bytes["dY", "read"] == pytest.approx(raw.bytes["dY", "read"] * size.a_bytes / size.a_sram_bytes, abs=8)
    assert packed.events["scratchpad_write"] == pytest.approx(raw.events["scratchpad_write"], rel=1e-3)


# arrays that look at zeros

# fmt: off
SEEING = [
    arrays.TensorDash(tiles=1, rows=2, columns=2, lanes=4, depth=2, scheduled="a"),  # else it looks at the whole tensor
    arrays.Sigma(dpes=4, multipliers=8, bandwidth=8),
    arrays.Eie(),
    arrays.OuterSpace(),
    arrays.CambriconX(),
]
# fmt: on


def seen(bits):
    """A matrix as the whole of a mask."""
    return MaskView(Bits({"A": np.ascontiguousarray(bits)}), ("layer", 0, "A"))


@pytest.mark.parametrize("array", SEEING, ids=lambda array: type(array).__name__)
@pytest.mark.parametrize("turned", [False, True])
def test_tiles_cost_what_their_zeros_cost(array, turned):
    """An independent walk over the tiles, each shown its own zeros as a plain matrix."""
    M, N, K = 20, 12, 18
    step, masks, tile = linear(M, N, K, turned=turned), drawn(M, N, K), (8, 8, 8)
    device = replace(DEVICE, array=array, tiling=tile, scratchpad_bytes=10**6, dram_bytes_per_s=1e13, dram_latency_s=0.0)
    bits = masks.tensors
    macs = cycles = 0
    cut = grid(MatMul(M, N, K), tile)
    spans = [[slice(8 * i, 8 * i + size) for i, size in enumerate(row)] for row in (cut.m, cut.n, cut.k)]
    for (one,) in stream(cut, "interleaved"):
        m, n, k = spans[0][one.m], spans[1][one.n], spans[2][one.k]
        a, b = (bits["G"][m, n], bits["W"].T[n, k]) if one.gradient == "dX" else (bits["A"].T[k, m], bits["G"][m, n])
        if one.gradient == "dW" and turned:
            a, b = b.T, a.T
        cost = array.cost(MatMul(a.shape[0], b.shape[1], a.shape[1]), a=seen(a), b=seen(b))
        cycles += cost.cycles
        macs += cost.events["mac"]
    found = paired(device, step, masks)
    assert found.compute_cycles == cycles
    assert found.events["mac"] == macs


@pytest.mark.parametrize("array", SEEING, ids=lambda array: type(array).__name__)
@pytest.mark.parametrize("order", ["interleaved", "cost"])
def test_full_operands_cost_what_dense_ones_do_and_zeros_save(array, order):
    step = linear(20, 12, 18, forward=True)
    device = replace(DEVICE, array=array, order=order, tiling=(8, 8, 8), scratchpad_bytes=4000, dram_bytes_per_s=1e12)
    full, dense = paired(device, step, drawn(20, 12, 18, 2.0)), paired(device, step)
    assert (full.cycles, full.compute_cycles, full.bytes) == (dense.cycles, dense.compute_cycles, dense.bytes)
    assert full.events["mac"] == dense.events["mac"] == 2 * 20 * 12 * 18
    some, few = (paired(device, step, drawn(20, 12, 18, share)) for share in (0.5, 0.1))
    assert few.compute_cycles <= some.compute_cycles <= full.compute_cycles
    assert few.cycles < full.cycles


def tiles_of(M, N, K, tile):
    """Sizes of the tiles of a product, one by one."""
    cut = grid(MatMul(M, N, K), tile)
    return [(m, n, k) for m in cut.m for n in cut.n for k in cut.k]


@pytest.mark.parametrize("array", SEEING, ids=lambda array: type(array).__name__)
def test_tiles_of_a_product_alone_cost_what_their_zeros_cost(array):
    """The forward product where tiles stay: each tile is shown its own zeros as a plain matrix."""
    M, N, K = 20, 12, 18
    step, masks = linear(M, N, K, forward=True), drawn(M, N, K)
    device = replace(CORES, array=array, tiling=(8, 8, 8), scratchpad_bytes=10**6, dram_bytes_per_s=1e13, dram_latency_s=0.0)
    bits, macs, cycles = masks.tensors, 0, 0
    for m, n, k in ((m, n, k) for m in range(0, M, 8) for n in range(0, N, 8) for k in range(0, K, 8)):
        a, b = bits["A"][m : m + 8, k : k + 8], bits["W"][k : k + 8, n : n + 8]
        cost = array.cost(MatMul(a.shape[0], b.shape[1], a.shape[1]), a=seen(a), b=seen(b))
        cycles += cost.cycles
        macs += cost.events["mac"]
    (work, found), _ = costed(device, step, masks)
    assert work.ops == (0,)
    assert (found.compute_cycles, found.events["mac"]) == (cycles, macs)
    letterless = replace(step, ops=(replace(step.ops[0], letters=()), *step.ops[1:]))
    assert costed(device, letterless, masks)[0][1].compute_cycles == costed(device, letterless)[0][1].compute_cycles


SHARES = {"A": 0.5, "W": 0.8, "G": 0.3}


@pytest.mark.parametrize("array", SEEING[:2], ids=lambda array: type(array).__name__)
@pytest.mark.parametrize("count", [1, 3])
def test_zeros_known_by_shares_cost_the_same_in_all_tiles_of_a_size(array, count):
    M, N, K = 20, 12, 18
    step = linear(M, N, K, forward=True, count=count)
    masks = Densities("some", {("layer", 0, letter): share for letter, share in SHARES.items()})
    device = replace(CORES, array=array, tiling=(8, 8, 8), scratchpad_bytes=10**6, dram_bytes_per_s=1e13, dram_latency_s=0.0)
    a, w, g = (Density(SHARES[letter]) for letter in "AWG")

    def counted(one, left, right):
        return [array.cost(MatMul(*tile), a=left, b=right) for tile in tiles_of(*one, (8, 8, 8))]

    forward, dx, dw = counted((M, N, K), a, w), counted((M, K, N), g, w), counted((K, N, M), a, g)
    (_, alone), (_, pair) = costed(device, step, masks)
    for found, costs in ((alone, forward), (pair, dx + dw)):
        assert found.compute_cycles == count * sum(cost.cycles for cost in costs)
        assert found.events["mac"] == pytest.approx(count * sum(cost.events["mac"] for cost in costs))


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_cores_with_full_operands_do_what_they_do_with_dense_ones(axis):
    """Each core's own sums begin at nothing, with zeros to look at and without."""
    device = replace(CORES, array=SEEING[0], cores=2, partition=axis, tiling=(4, 4, 8), scratchpad_bytes=8000)
    full, dense = paired(device, linear(20, 12, 18), drawn(20, 12, 18, 2.0)), paired(device, linear(20, 12, 18))
    assert full == dense


@pytest.mark.parametrize("order", ["sequential", "interleaved", "cost"])
def test_each_of_several_products_sees_its_own_zeros(order):
    step, masks = linear(10, 6, 8, count=4), drawn(10, 6, 8, count=4)
    array = arrays.Eie()
    device = replace(DEVICE, array=array, order=order, reuse="lru", tiling=(4, 4, 4))
    bits = {name: tensor.astype(int) for name, tensor in masks.tensors.items()}
    turn = (0, 2, 1)
    expected = (bits["G"] @ bits["W"].transpose(turn)).sum() + (bits["A"].transpose(turn) @ bits["G"]).sum()
    assert paired(device, step, masks).events["mac"] == paired(replace(device, cores=2), step, masks).events["mac"]
    alone = replace(device, order="sequential", reuse="step", cores=1)
    assert paired(device, step, masks).events["mac"] == sum(cost.events["mac"] for _, cost in costed(alone, step, masks))
    if order == "interleaved":
        sigma = replace(device, array=arrays.Sigma(dpes=4, multipliers=8, bandwidth=8))
        assert paired(sigma, step, masks).events["mac"] == expected
    assert paired(device, step, masks).cycles < paired(device, step).cycles


@settings(max_examples=15)
@given(sizes, sizes, sizes, st.sampled_from([0.1, 0.5]), st.integers(0, 5), rooms)
def test_with_zeros_too_the_fastest_order_is_no_slower_than_any(M, N, K, nonzero, seed, room):
    step, masks = linear(M, N, K), drawn(M, N, K, nonzero, seed)
    device = replace(DEVICE, array=SEEING[0], scratchpad_bytes=4 * room, dram_bytes_per_s=32e9)
    fastest = paired(replace(device, order="cost"), step, masks).cycles
    for order in (*FUSED_ORDERS, "sequential"):
        assert fastest <= sum(cost.cycles for _, cost in costed(replace(device, order=order), step, masks))


# cores


def test_one_core_is_none():
    step = linear(20, 12, 16, forward=True)
    for order in ("interleaved", "sequential", "cost"):
        device = replace(CORES, order=order)
        assert costed(device, step) == costed(replace(device, cores=1), step)


@pytest.mark.parametrize("cores", [2, 4, 8])
def test_cores_with_all_that_goes_with_them_take_as_long(cores):
    """Scratchpad, bandwidth and batch grow with the cores; compute-bound: within a tenth, where dW is added up at the end."""
    one = replace(CORES, order="cost", scratchpad_bytes=8192, dram_bytes_per_s=64e9)
    many = replace(one, cores=cores, scratchpad_bytes=cores * 8192, dram_bytes_per_s=cores * 64e9, partition="m")
    before = sum(cost.cycles for _, cost in costed(one, linear(128, 16, 16, forward=True)))
    after = sum(cost.cycles for _, cost in costed(many, linear(128 * cores, 16, 16, forward=True)))
    assert after == pytest.approx(before, rel=0.1)
    assert many.peak_macs_per_cycle == cores * one.peak_macs_per_cycle


@pytest.mark.parametrize(("axis", "added"), [("m", 16 * 8), ("n", 24 * 16), ("k", 0)])
@pytest.mark.parametrize("cores", [2, 4])
def test_partial_sums_of_the_cores_are_added_up(axis, added, cores):
    step = linear(24, 8, 16)
    device = replace(CORES, cores=cores, partition=axis, scratchpad_bytes=10**5)
    cost = paired(device, step)
    assert cost.events["vector_op"] == (cores - 1) * added
    partition = Partition(axis=axis, parts=cores, cores=True)
    moved = gradient_order.traffic(
        MatMul(24, 8, 16), tile=(4, 4, 4), capacity_bytes=900, element_bytes=4, order="interleaved", partition=partition
    )
    fixed = paired(replace(device, tiling=(4, 4, 4), scratchpad_bytes=1800), step)
    assert fixed.bytes == moved.bytes


@pytest.mark.parametrize(
    ("axis", "fewer"), [("m", {"dX": 0, "dW": 16 * 8}), ("n", {"dX": 24 * 16, "dW": 0}), ("k", {"dX": 0, "dW": 0})]
)
def test_each_core_begins_sums_of_its_own(axis, fewer):
    """Over time a part goes on with the sums of the one before, and reads them; a core's first tile reads none."""
    pair = Pair.dense(MatMul(24, 8, 16), 4)
    for gradient, less in fewer.items():
        reads = []
        for cores in (False, True):
            partition, supply = Partition(axis=axis, parts=2, cores=cores), Supply(resident_bytes=10**4, bytes_per_cycle=1.0)
            found = gradient_order.cost(pair, tile=(4, 4, 4), order="dx_major", array=ARRAY, supply=supply, partition=partition)
            reads.append(grid_events(ARRAY, pair, gradient, found)["scratchpad_read_out"])
        assert reads[0] - reads[1] == less


@pytest.mark.parametrize(("axis", "part"), [("m", (4, 3, 5)), ("n", (10, 1, 5)), ("k", (10, 3, 2))])
def test_the_largest_of_three_parts(axis, part):
    assert part_of(MatMul(10, 3, 5, 7), Partition(axis=axis, parts=3)) == MatMul(*part, 7)
    assert part_of(MatMul(10, 3, 5, 7), None) == MatMul(10, 3, 5, 7)
    assert part_of(MatMul(2, 2, 2), Partition(axis=axis, parts=5)).macs == 4  # no more parts than elements


def test_algorithm_1_looks_at_one_part():
    """Four times as long as wide: each of two halves is nearly square."""
    op, schedule = MatMul(1024, 256, 256), Schedule(order="paper", partition="m")
    assert schedule.orders(op, None) == ("dx_major",)
    assert [schedule.orders(op, partition) for partition in schedule.partitions] == [("interleaved",)]
    assert schedule.orders(op, Partition(axis="k", parts=2)) == ("dx_major",)


def test_products_alone_are_cut_along_the_batch():
    """The forward product, and dW where a layer has no dX: its rows are summed over, so that partial sums are added."""
    first = linear(64, 8, 8, forward=True)
    step = Step(name="first", batch=1, ops=first.ops[:2], tensors=first.tensors)
    device = replace(CORES, cores=4, scratchpad_bytes=10**5, dram_bytes_per_s=1e12, dram_latency_s=0.0)
    (_, forward), (_, dw) = costed(device, step)
    (_, forward_alone), (_, dw_alone) = costed(replace(device, cores=1), step)
    assert forward.events.get("vector_op", 0) == 0
    assert dw.events["vector_op"] == 3 * 8 * 8
    assert forward.compute_cycles < forward_alone.compute_cycles / 2
    assert dw.compute_cycles < dw_alone.compute_cycles / 2
    assert (forward.events["mac"], dw.events["mac"]) == (64 * 8 * 8, 64 * 8 * 8)


def test_heads_are_dealt_to_the_cores():
    """Six heads on four cores: two rounds, each core with a quarter of scratchpad and DRAM."""
    heads = (TensorSpec((6, 16, 8)), TensorSpec((6, 8, 16)), TensorSpec((6, 16, 16)))
    step = Step(name="heads", batch=1, ops=(Op(body=MatMul(16, 16, 8, 6), inputs=(0, 1), outputs=(2,)),), tensors=heads)
    device = replace(CORES, cores=4, scratchpad_bytes=10**5, dram_bytes_per_s=16e9, dram_latency_s=0.0)
    ((_, cost),) = costed(device, step)
    quarter = replace(device, cores=1, scratchpad_bytes=25_000, dram_bytes_per_s=4e9)
    two = Step(
        name="two", batch=1, ops=(replace(step.ops[0], body=MatMul(16, 16, 8, 2)),),
        tensors=tuple(TensorSpec((2, *spec.shape[1:])) for spec in heads),
    )  # fmt: skip
    ((_, each),) = costed(quarter, two)
    assert (cost.cycles, cost.compute_cycles) == (each.cycles, each.compute_cycles)
    assert cost.bytes == {key: 3 * size for key, size in each.bytes.items()}
    assert cost.events["mac"] == step.macs


@pytest.mark.parametrize(("count", "rounds"), [(8, 2), (6, 2), (1, 1)])
def test_a_fused_kernel_deals_its_heads_or_its_rows(count, rounds):
    tensors = (TensorSpec((count, 16, 8)), TensorSpec((count, 8, 16)), TensorSpec((count, 16, 16)))
    op = Op(body=MatMul(16, 16, 8, count), inputs=(0, 1), outputs=(2,), fused=1)
    step = Step(name="kernel", batch=1, ops=(op,), tensors=tensors)
    ((_, cost),) = costed(replace(CORES, cores=4), step)
    rows = 16 if count >= 4 else 4
    assert cost.compute_cycles == rounds * ARRAY.tile_cycles(rows, 16, 8)
    assert cost.events["mac"] == step.macs


# fmt: off
REFUSED = [
    ({"cores": 2},                                              "write reuse='lru'"),
    ({"partition": "m", "order": "sequential"},                 "give an order such as"),
    ({"cores": 0},                                              "cores must be a positive"),
    ({"parts": 0},                                              "parts must be a positive"),
    ({"square_below": -1.0},                                    "square_below"),
]
# fmt: on


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_fields_that_do_not_go_together_are_refused(given, said):
    with pytest.raises(BadInput, match=said) as caught:
        replace(DEVICE, **given)
    assert "\n" not in str(caught.value)


def test_side_by_side_or_in_turn_but_not_both():
    sigma = replace(DEVICE, array=arrays.Sigma(dpes=4, multipliers=8), order="sequential", together="gradients")
    with pytest.raises(BadInput, match="give one of them"):
        replace(sigma, order="interleaved")
    with pytest.raises(BadInput, match="give one of them"):
        replace(sigma, reuse="lru")


@pytest.mark.parametrize(
    ("field", "given", "meant"),
    [("order", "interleave", "interleaved"), ("order", "dxmajor", "dx_major"), ("reuse", "farthes", "farthest"),
     ("partition", "costs", "cost")],
)  # fmt: skip
def test_the_nearest_name_is_offered(field, given, meant):
    with pytest.raises(UnknownName, match=f"did you mean '{meant}'"):
        replace(DEVICE, **{field: given})


def test_a_scratchpad_without_room_says_how_much_it_takes():
    with pytest.raises(BadInput, match="give a larger scratchpad"):
        paired(replace(DEVICE, scratchpad_bytes=16), linear(8, 8, 8))
    with pytest.raises(BadInput, match="needs 768 bytes, there is room for 500"):
        paired(replace(DEVICE, scratchpad_bytes=1000, tiling=(8, 8, 8)), linear(8, 8, 8))


def test_a_pair_that_is_none():
    step = linear(8, 8, 8, epilogue=True)
    with pytest.raises(NotModelled, match="dX with its own dW"):
        DEVICE.cost(step, Work(ops=(0,), grouping="gradient_pair"))


# whole networks


@pytest.mark.parametrize("order", ["interleaved", "cost"])
@pytest.mark.parametrize("model", ["resnet50", "bert-tiny"])
def test_a_network_moves_less_and_no_product_is_lost(model, order):
    step, npu = ty.zoo.load(model), machines.machine("npu")
    plain, ordered = ty.run(step, on=npu), ty.run(step, on=npu, order=order)
    assert ordered.time_s < plain.time_s
    assert ordered.traffic_bytes["dram"] < plain.traffic_bytes["dram"]
    assert ordered.macs == plain.macs == step.macs
    assert sum(row.time_s for row in ordered.by_phase.values()) == pytest.approx(ordered.time_s, rel=1e-9)
    json.dumps(ordered.to_json())
    parallel = ty.run(step, on=f"replicas(device=npu(order={order}),devices=2,link=25 GB/s)")
    assert parallel.time_s < ty.run(step, on="replicas(device=npu,devices=2,link=25 GB/s)").time_s


def test_a_file_may_say_all_of_it(tmp_path):
    fields = {"order": "paper", "reuse": "farthest", "cores": 2, "partition": "cost", "parts": 3, "square_below": 3.0}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    (tmp_path / "mine.toml").write_text(f'base = "npu"\n{lines}')
    found = machines.machine(tmp_path / "mine.toml")
    assert {name: getattr(found, name) for name in fields} == fields
    described = machines.describe(found)
    assert {name: described[name] for name in fields} == fields


def test_a_pair_is_explained():
    result = ty.run(linear(64, 32, 48, forward=True), on=replace(DEVICE, order="cost"))
    text = result.explain("layer")
    assert "grad_input + grad_weight" in text
    assert "dY read" in text
    assert "dram_bytes_per_s 4 GB/s -> 4.4 GB/s" in text
