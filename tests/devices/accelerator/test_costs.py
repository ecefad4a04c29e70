"""Costs put together from an array's cycles: kernels on chip, on one core and on several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainyard.arrays import Eie, Systolic, TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.costs import Costing
from trainyard.ir import DeviceCost, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.mapping.demand import FusedDemand, Move, ProductDemand, StreamDemand
from trainyard.mapping.tiling import Problem, Supply, Tiled, Tiling
from trainyard.masks.generated import generated_masks

ARRAY = Eie(elements=4, loading="left out")
"""Two closed forms: rows of A or columns of B are dealt out to four elements, which take an element of the other in a cycle."""


def fused(M: int, N: int, K: int, count: int, **fields: Any) -> DeviceCost:
    """A kernel of one op, whose operands are on chip."""
    device = Accelerator(array=ARRAY, scratchpad="1 MiB", dram="1 TB/s", clock="1 GHz", dram_latency="0 s", **fields)
    tensors = tuple(map(TensorSpec, ((count, M, K), (count, K, N), (count, M, N))))
    step = Step("kernel", 1, (Op(body=MatMul(M, N, K, count), inputs=(0, 1), outputs=(2,), fused=1),), tensors)
    (work,) = device.works(step)
    return device.cost(step, work)


@pytest.mark.parametrize(
    ("shape", "cycles"),
    [((8, 1, 5, 1), 2 * 1 * 5), ((1, 8, 5, 1), 2 * 1 * 5), ((8, 8, 5, 1), 2 * 8 * 5), ((8, 1, 5, 3), 3 * 10)],
)
def test_a_kernel_on_chip_takes_the_faster_of_the_arrays_closed_forms(shape: tuple[int, int, int, int], cycles: int) -> None:
    assert fused(*shape).compute_cycles == cycles


@pytest.mark.parametrize(
    ("shape", "cores", "cycles"),
    [
        ((8, 1, 5, 4), 2, 2 * 10),  # two products on each core
        ((8, 1, 5, 3), 2, 2 * 10),
        ((8, 1, 5, 1), 2, 1 * 5),  # four rows on each core
        ((9, 1, 5, 1), 2, 2 * 5),
        ((2, 8, 5, 1), 4, 2 * 5),  # a row each, two cores have none
    ],
)
def test_cores_share_equal_products_or_the_rows_of_one(shape: tuple[int, int, int, int], cores: int, cycles: int) -> None:
    assert fused(*shape, cores=cores, reuse="lru").compute_cycles == cycles


def layer(M: int, N: int, K: int) -> Step:
    """The three products of a linear layer."""
    roles = (Role.INPUT, Role.PARAMETER, Role.ACTIVATION, Role.GRADIENT, Role.PARAMETER_GRADIENT, Role.GRADIENT)
    shapes = ((M, K), (K, N), (M, N), (M, N), (K, N), (M, K))
    rows: tuple[tuple[MatMul, Phase, tuple[int, int], int, tuple[Any, Any]], ...] = (
        (MatMul(M, N, K), Phase.FORWARD, (0, 1), 2, ("A", "W")),
        (MatMul(K, N, M), Phase.GRAD_WEIGHT, (0, 3), 4, ("A", "G")),
        (MatMul(M, K, N), Phase.GRAD_INPUT, (3, 1), 5, ("G", "W")),
    )
    ops = tuple(
        Op(body=body, phase=phase, inputs=inputs, outputs=(output,), letters=letters, layer="fc", name=phase.value)
        for body, phase, inputs, output, letters in rows
    )
    return Step("layer", M, ops, tuple(TensorSpec(shape, role=role) for shape, role in zip(shapes, roles, strict=True)))


@pytest.mark.parametrize("order", ["sequential", "cost"])
def test_with_zeros_too_each_objective_is_least_under_itself(order: Any) -> None:
    step = layer(64, 24, 40)
    masks = generated_masks(step, {"A": 0.5, "G": 0.3})
    found = {}
    for objective in ("time", "traffic", "energy", "edp"):
        device = Accelerator(
            array=TensorDash(tiles=1, rows=2, columns=2, lanes=4, depth=2), scratchpad_bytes=6000, dram="4 GB/s", clock="1 GHz",
            dram_latency="3 ns", objective=objective, tolerance=0.0, order=order,
        )  # fmt: skip
        costs = [device.cost(step, work, masks) for work in device.works(step)]
        joules = sum(sum(device.energy(cost.events).values()) for cost in costs)
        found[objective] = (sum(cost.cycles for cost in costs), sum(sum(cost.bytes.values()) for cost in costs), joules)
    for objective, place in (("traffic", 1), ("energy", 2)):
        assert all(found[objective][place] <= values[place] * (1 + 1e-12) for values in found.values())
    assert found["time"][0] <= 1.01 * min(cycles for cycles, _, _ in found.values())
    assert order == "sequential" or found["traffic"][1] < found["time"][1]


def test_a_front_of_goals_goes_from_the_least_time_to_the_least_traffic() -> None:
    """Of the front, energy takes what has the fewest joules: never more than the ends of it."""
    step = layer(64, 24, 40)
    cost_of = {}
    for objective in ("time", "traffic", "energy"):
        device = Accelerator(
            array=Systolic(rows=4, columns=4), scratchpad_bytes=6000, dram="4 GB/s", clock="1 GHz", objective=objective,
            tolerance=0.0,
        )  # fmt: skip
        cost_of[objective] = [(device.cost(step, work), device) for work in device.works(step)]
    for time, traffic, energy in zip(*cost_of.values(), strict=True):
        joules = [sum(device.energy(cost.events).values()) for cost, device in (time, traffic, energy)]
        assert joules[2] <= min(joules) * (1 + 1e-12)
        assert time[0].cycles <= min(traffic[0].cycles, energy[0].cycles)
        assert sum(traffic[0].bytes.values()) <= min(sum(one.bytes.values()) for one, _ in (time, energy))


def test_what_is_kept_on_chip_takes_room_from_the_tiles() -> None:
    supply = Supply(resident_bytes=1000.0, bytes_per_cycle=4.0)
    costing = Costing(array=Systolic(rows=4, columns=4), supply=supply, vector_lanes=1)
    assert costing.beside(600).supply.resident_bytes == 700.0  # half of the scratchpad is for the tiles that come next


def test_a_transfer_takes_the_latency_and_its_bytes_and_none_takes_nothing() -> None:
    supply = Supply(resident_bytes=1000.0, bytes_per_cycle=4.0, latency_cycles=7)
    costing = Costing(array=Systolic(rows=4, columns=4), supply=supply, vector_lanes=1)
    assert [costing._transfer(size) for size in (0, 1, 4, 5)] == [0, 8, 8, 9]


def test_a_stream_takes_a_cycle_at_least_and_reads_again_what_does_not_fit() -> None:
    supply = Supply(resident_bytes=100.0, bytes_per_cycle=4.0, latency_cycles=7)
    costing = Costing(array=Systolic(rows=4, columns=4), supply=supply, vector_lanes=2)
    moves, again = (Move("activation", "read", 80, 80), Move("activation", "write", 40, 40)), Move("activation", "read", 80, 80)
    for row_bytes, more in ((100, 0), (101, 80)):
        (cost,) = costing.costs([StreamDemand(moves=moves, vector_operations=9, again=again, row_bytes=row_bytes)])
        assert (cost.cycles, cost.compute_cycles, cost.bound) == (7 + (120 + more) // 4, 5, "dram")
        assert cost.bytes == {("activation", "read"): 80 + more, ("activation", "write"): 40}
        assert cost.events["scratchpad_write"] == 80 + more
    (nothing,) = costing.costs([StreamDemand(moves=())])
    assert (nothing.cycles, nothing.compute_cycles) == (1, 0)
    (busy,) = costing.costs([StreamDemand(moves=moves, vector_operations=200)])
    assert (busy.cycles, busy.bound) == (100, "vector")


def product_demand(**fields: Any) -> ProductDemand:
    """A product of 4 x 4 x 4 whose epilogue reads 40 and writes 60 bytes."""
    drained = ((), (Move("activation", "read", 40, 40),), (Move("gradient", "write", 60, 60),))
    given = {"problem": Problem.dense(MatMul(4, 4, 4), 4), "drained": drained, "labels": ("X", "W", "Y"), "number": "fp32"}
    return ProductDemand(**{**given, "element_bytes": (4, 4, 4), **fields})


def product_cost(demand: ProductDemand, **fields: Any) -> DeviceCost:
    tiled = Tiled(
        tiling=Tiling(m=4, n=4, k=4),
        cycles=1000,
        compute_cycles=400,
        a_read=128,
        b_read=72,
        out_moved=60,
        spill_write=30,
        spill_read=10,
    )
    supply = Supply(resident_bytes=1000.0, bytes_per_cycle=4.0)
    costing = Costing(array=Systolic(rows=4, columns=4), supply=supply, vector_lanes=2)
    return costing._product(demand, replace(tiled, **fields), {"mac": 64.0})


def test_time_of_a_product_goes_to_its_epilogue_as_its_bytes_are_waited_for() -> None:
    """600 cycles of waiting for 300 bytes are two cycles a byte."""
    cost = product_cost(product_demand())
    assert cost.share == pytest.approx((0.8, 0.08, 0.12))
    assert cost.bytes == {
        ("X", "read"): 128, ("W", "read"): 72, ("activation", "read"): 40, ("gradient", "write"): 60, ("Y", "spill"): 40,
    }  # fmt: skip
    assert (cost.cycles, cost.compute_cycles, cost.bound) == (1000, 400, "compute")
    assert product_cost(product_demand(), a_read=1900).bound == "dram"
    vector = product_cost(product_demand(vector_operations=2001))
    assert (vector.cycles, vector.bound) == (1001, "vector")


def test_an_operand_that_stays_is_read_once_and_an_expanded_one_takes_its_room_on_chip() -> None:
    plain, kept_a, kept_b = (product_cost(product_demand(loaded_bytes=loaded)) for loaded in ((None, None), (32, None), (None, 32)))
    assert (kept_a.bytes["X", "read"], kept_a.bytes["W", "read"]) == (64, 72)
    assert (kept_b.bytes["X", "read"], kept_b.bytes["W", "read"]) == (128, 64)
    comes = 128 + 72 + 40 + 20  # and half of what is spilled
    assert plain.events["scratchpad_write"] == comes
    assert kept_a.events["scratchpad_write"] == comes - 128 + 32
    assert kept_b.events["scratchpad_write"] == comes - 72 + 32
    problem = product_demand().problem  # on chip twice of what crosses the pins
    for expanded, more in ((replace(problem, a_sram_bytes=128), 128), (replace(problem, b_sram_bytes=128), 72)):
        assert product_cost(product_demand(problem=expanded)).events["scratchpad_write"] == comes + more


def test_a_kernel_reads_again_for_each_part_that_fits() -> None:
    supply = Supply(resident_bytes=100.0, bytes_per_cycle=4.0)
    costing = Costing(array=ARRAY, supply=supply, vector_lanes=2)
    demand = FusedDemand(
        products=(MatMul(8, 1, 5), None), moves=(Move("activation", "read", 160, 160),), again=(Move("parameter", "read", 40, 40),),
        item_bytes=250, vector_operations=(0, 30), number="fp32",
    )  # fmt: skip
    (cost,) = costing.costs([demand])
    assert cost.bytes == {("activation", "read"): 160, ("parameter", "read"): 2 * 40}  # three parts: twice more
    assert (cost.compute_cycles, cost.cycles, cost.bound) == (10, 60, "dram")
    assert cost.share == pytest.approx((10 / 25, 15 / 25))
    assert (cost.events["vector_op"], cost.events["mac"], cost.events["mac_fp32"]) == (30, 40, 40)
    for item_bytes, again in ((0, 0), (100, 0), (101, 40)):
        (cost,) = costing.costs([replace(demand, item_bytes=item_bytes)])
        assert cost.bytes.get(("parameter", "read"), 0) == again
