"""The cost of a Work on a DPU, counted by hand: instructions, transfers, lanes and the barrier of ops of a few elements."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trainyard.devices.dpu.costs import _product, _stream, supply
from trainyard.devices.dpu.device import Dpu
from trainyard.devices.dpu.presets import MAC_DPU
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Collective, DeviceCost, ElementWise, MatMul, Op, Role, Step, TensorSpec
from trainyard.mapping.demand import ProductDemand, StreamDemand
from trainyard.mapping.profile import demand
from trainyard.mapping.tiling import Tiled, Tiling
from trainyard.mapping.walk import walk

ONE = Dpu(
    tasklets=1, number="fixed32"
)  # an instruction every 11 cycles; a read takes 77 cycles and half a cycle a byte, a write 61
MAC = 2 + (29 + 1 + 1) + 3  # two loads; multiplication, shift and addition; the loop
RESULT = 1 + 1 + 3
ADDRESSES = 5  # of each transfer
BARRIER = 20


def step_of(*ops: Op, shapes: tuple[tuple[int, ...], ...]) -> Step:
    return Step("hand-made", 1, ops, tuple(map(TensorSpec, shapes)))


def cost(dpu: Dpu, step: Step) -> DeviceCost:
    (work,) = dpu.works(step)
    return dpu.cost(step, work)


def test_a_product_of_one_tile_waits_for_its_operands_computes_and_writes() -> None:
    found = cost(ONE, step_of(Op(body=MatMul(1, 1, 4), inputs=(0, 1), outputs=(2,)), shapes=((1, 4), (4, 1), (1, 1))))
    instructions = 4 * MAC + RESULT + 3 * ADDRESSES
    assert found.compute_cycles == 11 * instructions
    reads, write = 2 * (77 + 8), 61 + 2
    assert found.cycles == reads + 11 * instructions + write + 11 * BARRIER
    assert found.events == {
        "instruction": instructions + BARRIER,
        "mac": 0.0,
        "mram_read_byte": 32.0,
        "mram_write_byte": 4.0,
        "wram_read_byte": 2 * 4 * 4 + 4.0,  # two operands of each MAC, and the result on its way out
        "wram_write_byte": 32.0,
        "second": found.cycles / 350e6,
    }
    assert found.bound == "compute"


def test_a_stream_of_two_elements_loads_adds_stores_and_loops() -> None:
    step = step_of(Op(body=ElementWise("add", 2), inputs=(0, 1), outputs=(2,)), shapes=((2,),) * 3)
    found = cost(ONE, step)
    instructions = 2 * (2 + 1 + 1 + 3) + 3 * ADDRESSES
    assert found.cycles == 2 * (77 + 4) + 11 * instructions + (61 + 4) + 11 * BARRIER
    assert found.events["instruction"] == instructions + BARRIER
    assert (found.events["wram_read_byte"], found.events["wram_write_byte"]) == (16 + 8, 8 + 16)


def test_a_stream_on_lanes_takes_the_tasklets_time_for_addresses() -> None:
    """40 sums on 16 lanes are three cycles, 480 bytes through the port 7.5, five instructions for each of three transfers more."""
    step = step_of(Op(body=ElementWise("add", 40), inputs=(0, 1), outputs=(2,)), shapes=((40,),) * 3)
    found = cost(replace(MAC_DPU, tasklets=1), step)
    transfer = 30 + 80 / 32
    assert found.cycles == -(-(2 * transfer + 11 * 15 + transfer + 11 * BARRIER) // 1)
    assert found.compute_cycles == 11 * 15
    assert found.events["mac"] == 40
    wide = cost(replace(MAC_DPU, tasklets=1, wram_bytes_per_cycle=2), step)
    assert wide.cycles == 2 * transfer + 480 / 2 + 11 * BARRIER
    assert wide.bound == "wram"


def test_a_fused_kernel_moves_its_ends_and_shares_its_time_by_instructions() -> None:
    ops = (
        Op(body=MatMul(2, 3, 4), inputs=(0, 1), outputs=(2,), fused=1),
        Op(body=ElementWise("relu", 6), inputs=(2,), outputs=(3,), fused=1),
    )
    found = cost(ONE, step_of(*ops, shapes=((2, 4), (4, 3), (2, 3), (2, 3))))
    product, relu = 6 * (4 * MAC + RESULT), 6 * (1 + 3)
    transfers = (77 + 16) + (77 + 24) + (61 + 12)
    assert found.cycles == transfers + 11 * (product + relu + 3 * ADDRESSES + BARRIER)
    assert found.share == pytest.approx((product / (product + relu), relu / (product + relu)))
    assert sum(found.bytes.values()) == 32 + 48 + 24


@pytest.mark.parametrize(
    ("tile", "lanes"),
    [
        ((16, 50, 50), 2 * 2500 + 1600),  # rows of 16, 16 and 8: 16 lanes over m, then over n or k in four steps
        ((40, 16, 50), 3 * 40 * 50 + 3 * 2 * 50),  # columns of 16, 16, 16 and 2: lanes over n; of the last over m in three steps
        ((40, 50, 16), 3 * 40 * 50 + 3 * 50 * 2),  # the same along k
        ((64, 64, 64), 7500),  # a tile beyond the product is the product: three steps of lanes over m
    ],
)
def test_lanes_take_each_tile_along_the_axis_that_leaves_the_fewest_idle(tile: tuple[int, int, int], lanes: int) -> None:
    dpu, op = replace(MAC_DPU, wram_bytes=2**20, wram_bytes_per_cycle=4096), MatMul(40, 50, 50)
    step = step_of(Op(body=op, inputs=(0, 1), outputs=(2,)), shapes=((40, 50), (50, 50), (40, 50)))
    (work,) = dpu.works(step)
    asked = demand(step, work, dpu.policy)
    assert isinstance(asked, ProductDemand)
    tiled = walk(asked.problem, Tiling(m=tile[0], n=tile[1], k=tile[2]), supply(dpu), lambda _: 1)
    found = _product(dpu, asked, tiled, (op,))
    assert found.compute_cycles == lanes
    assert found.events["mac"] == op.macs


def test_an_exchange_with_nobody_costs_nothing_and_one_with_others_is_refused() -> None:
    for ranks in (1, 4):
        step = step_of(Op(body=Collective("all_reduce", 64, ranks), inputs=(0,), outputs=(0,)), shapes=((64,),))
        if ranks == 1:
            assert (cost(ONE, step).cycles, cost(ONE, step).share, cost(ONE, step).bytes) == (0, (1.0,), {})
        else:
            with pytest.raises(NotModelled):
                cost(ONE, step)


def test_weights_of_another_width_than_results_are_read_in_runs_of_their_own() -> None:
    """bf16 on a DPU with lanes: ten weights of four bytes are a run, three runs in all; inputs and results have two bytes."""
    dpu = replace(MAC_DPU, tasklets=1)
    tensors = (TensorSpec((1, 10)), TensorSpec((10, 3), role=Role.PARAMETER), TensorSpec((1, 3)))
    step = Step("layer", 1, (Op(body=MatMul(1, 3, 10), inputs=(0, 1), outputs=(2,)),), tensors)
    found = cost(dpu, step)
    reads, write = (30 + 20 / 32) + (3 * 30 + 120 / 32), 30 + 6 / 32
    instructions = 5 * ADDRESSES + ADDRESSES  # five transfers; the tasklet starts one row of results
    assert found.cycles == math.ceil(reads + 11 * instructions + write + 11 * BARRIER)
    assert found.compute_cycles == 11 * instructions


def test_a_part_of_a_cycle_is_a_cycle() -> None:
    """15 instructions of seven tasklets, eleven cycles each: 23.6."""
    step = step_of(Op(body=ElementWise("add", 40), inputs=(0, 1), outputs=(2,)), shapes=((40,),) * 3)
    assert cost(replace(MAC_DPU, tasklets=7), step).compute_cycles == 24


@pytest.mark.probe
def test_every_tasklet_needs_room_for_a_block_of_three_streams() -> None:
    """Blocks of eight bytes: 24 bytes beside each stack of 1024 do, 23 do not."""
    assert Dpu(tasklets=16, wram_bytes=16 * (1024 + 24)).block_bytes(3) == 8
    with pytest.raises(BadInput, match="give fewer tasklets or more wram"):
        Dpu(tasklets=16, wram_bytes=16 * (1024 + 23))


def test_a_stream_that_moves_nothing_computes() -> None:
    found = _stream(ONE, StreamDemand(moves=()), ElementWise("relu", 4))
    assert found.cycles == 11 * (4 * (1 + 3) + BARRIER)
    assert found.bytes == {}


def test_unfinished_sums_go_out_and_come_back() -> None:
    """A product in two pieces of its reduction: 24 bytes of four-byte sums out, and in again."""
    op = MatMul(2, 3, 8)
    tensors = (TensorSpec((2, 8)), TensorSpec((8, 3), role=Role.PARAMETER), TensorSpec((2, 3)))
    step = Step("layer", 1, (Op(body=op, inputs=(0, 1), outputs=(2,)),), tensors)
    asked = demand(step, ONE.works(step)[0], ONE.policy)
    assert isinstance(asked, ProductDemand)
    tiled = Tiled(
        tiling=Tiling(m=2, n=3, k=4), cycles=0, compute_cycles=0, a_read=64, b_read=96, out_moved=24, spill_write=24, spill_read=24
    )
    found = _product(ONE, asked, tiled, (op,))
    assert found.bytes == {("X", "read"): 64, ("W", "read"): 96, ("Y", "write"): 24, ("Y", "spill"): 48}
    kept = _product(ONE, asked, replace(tiled, spill_write=0, spill_read=0), (op,))
    addresses = 4 * ADDRESSES  # runs of three sums, two each way
    assert found.events["instruction"] - kept.events["instruction"] == addresses
    assert found.cycles - kept.cycles == 11 * addresses + 2 * (61 + 77) + 24 / 2 + 24 / 2
