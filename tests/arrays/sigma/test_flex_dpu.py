"""Flex-DPUs side by side: the closed timing against clocks that tick, and a search that is never slower than one after another."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.mesh_execution import configure, deliver
from trainyard.arrays.sigma import Sigma
from trainyard.arrays.sigma.flex_dpu import (
    SharedFabric,
    StationaryOperand,
    allocate,
    contiguous_ranges,
    finish_times,
    schedule_concurrently,
    shared_finish,
)
from trainyard.errors import BadInput
from trainyard.ir import MatMul

STREAMINGS = ("wide", "limited")


@st.composite
def products(draw, bandwidth, most=60):
    chunks = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=4)))
    last = draw(st.integers(1, bandwidth))
    return StationaryOperand(
        nonzeros=sum(chunks),
        vectors=draw(st.integers(1, 12)),
        depth=bandwidth * (len(chunks) - 1) + last,
        chunks=chunks,
    )


@st.composite
def fabrics(draw):
    return SharedFabric(
        dpes=draw(st.integers(1, 9)),
        multipliers=2 ** draw(st.integers(0, 3)),
        bandwidth=draw(st.integers(1, 8)),
        streaming=draw(st.sampled_from(STREAMINGS)),
        drain=draw(st.sampled_from(("fold", "pass"))),
    )


@st.composite
def divided(draw):
    """A fabric cut into groups, and a product for each."""
    fabric = draw(fabrics())
    marks = sorted(draw(st.sets(st.integers(0, fabric.dpes), min_size=2, max_size=5)))
    groups = [range(start, stop) for start, stop in pairwise(marks)]
    operands = [draw(products(fabric.bandwidth)) for _ in groups]
    return fabric, groups, operands


def clocked_finish(operands, groups, fabric):
    """The rule cycle by cycle: elements through the switches of the mesh, vector after vector, adder tree after adder tree."""
    mesh = fabric.mesh
    packets = [(index, [(index, element) for element in range(operand.nonzeros)]) for index, operand in enumerate(operands)]
    delivery = deliver(configure(mesh, groups), packets)
    loaded = [packet[-1] for packet in delivery.arrivals]
    hops = [mesh.hops(group) for group in groups]
    left, drained = [], []
    for operand, group in zip(operands, groups, strict=True):
        pool = len(group) * fabric.multipliers
        parts = [operand.nonzeros] if fabric.streaming == "wide" else operand.chunks
        passes = [min(pool, part - at) for part in parts for at in range(0, part, pool)]
        folds = len(range(0, operand.nonzeros, pool))
        left.append(Fraction(len(passes) * operand.vectors))
        drained.append(math.ceil(math.log2(pool)) * (len(passes) if fabric.drain == "pass" else folds))
    if fabric.streaming == "wide":
        return tuple(when + int(many) + add for when, many, add in zip(loaded, left, drained, strict=True))
    start = loaded[-1] - hops[-1]  # the last element has left the SRAM
    through, now = [0] * len(operands), 0
    while any(left):
        now += 1
        active = [index for index, many in enumerate(left) if many]
        fabric_and_demands = sum(min(operands[index].depth, fabric.bandwidth) for index in active)
        for index in active:
            left[index] = max(Fraction(0), left[index] - min(Fraction(1), Fraction(fabric.bandwidth, fabric_and_demands)))
            through[index] = now
    return tuple(start + hop + when + add for hop, when, add in zip(hops, through, drained, strict=True))


@pytest.mark.oracle
@given(divided())
def test_finish_times_equal_a_cycle_by_cycle_simulation(case):
    fabric, groups, operands = case
    assert finish_times(operands, groups, fabric) == clocked_finish(operands, groups, fabric)


def fold_by_fold(operands, groups, fabric):
    """Every fold is loaded when its turn comes; the earlier Flex-DPU has the input first. No hops."""
    pools = [len(group) * fabric.multipliers for group in groups]
    rest = [operand.nonzeros for operand in operands]
    need = [min(pool, left) for pool, left in zip(pools, rest, strict=True)]
    busy, finish, now = [0] * len(operands), [0] * len(operands), 0
    while not all(finish):
        now += 1
        room, loaded = fabric.bandwidth, []
        for index, operand in enumerate(operands):
            if busy[index]:
                busy[index] -= 1
                if not busy[index]:
                    rest[index] -= min(pools[index], rest[index])
                    need[index] = min(pools[index], rest[index])
                    finish[index] = 0 if rest[index] else now
            elif need[index]:
                taken = min(room, need[index])
                room, need[index] = room - taken, need[index] - taken
                if not need[index]:
                    loaded.append((index, operand.vectors + math.ceil(math.log2(pools[index]))))
        for index, cycles in loaded:
            busy[index] = cycles
    return finish


@pytest.mark.oracle
@given(divided())
def test_loading_fold_by_fold_is_at_most_one_cycle_per_product_later(case):
    """But for whole cycles: where a fold shares a cycle of the input with another Flex-DPU, it may end one later."""
    fabric, groups, operands = case
    sizes = [range(group.start * fabric.bandwidth, group.stop * fabric.bandwidth) for group in groups]  # folds of whole cycles
    wide = SharedFabric(dpes=fabric.dpes * fabric.bandwidth, multipliers=fabric.multipliers, bandwidth=fabric.bandwidth)
    rule = finish_times(operands, sizes, wide)
    for position, (real, stated) in enumerate(zip(fold_by_fold(operands, sizes, wide), rule, strict=True)):
        assert real <= stated + position


@pytest.mark.probe
def test_one_product_waits_for_the_load_of_the_other():
    fabric = SharedFabric(dpes=2, multipliers=4, bandwidth=2)
    operand = StationaryOperand(nonzeros=4, vectors=5, depth=4)
    first, second = finish_times([operand, operand], contiguous_ranges([1, 1]), fabric)
    assert first == 2 + 5 + 2 == fabric.alone_cycles(operand, 1)
    assert second == first + 2
    assert finish_times([operand, operand], contiguous_ranges([1, 1]), SharedFabric(dpes=2, multipliers=4, bandwidth=8)) == (8, 8)


@pytest.mark.probe
def test_two_half_width_streams_share_the_input_without_slowdown():
    assert shared_finish([(7, 4), (7, 4)], bandwidth=8) == [7, 7]
    assert shared_finish([(7, 5), (7, 4)], bandwidth=8) == [8, 8]  # nine elements for eight wires: 7 * 9/8 cycles
    assert shared_finish([(7, 8), (7, 8)], bandwidth=8) == [14, 14]
    assert shared_finish([(7, 800)], bandwidth=8) == [7]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=6), st.integers(6, 20), st.sampled_from((1, 4, 16)))
def test_allocation_is_contiguous_fits_and_follows_the_need(nonzeros, dpes, multipliers):
    groups = allocate(nonzeros, dpes, multipliers)
    assert groups[0].start == 0
    assert groups[-1].stop <= dpes
    assert all(first.stop == second.start for first, second in pairwise(groups))
    needed = [max(1, math.ceil(count / multipliers)) for count in nonzeros]
    assert all(1 <= len(group) <= need for group, need in zip(groups, needed, strict=True))
    if sum(needed) <= dpes:
        assert [len(group) for group in groups] == needed
    else:
        assert groups[-1].stop == dpes
    for i, first in enumerate(needed):
        assert all(len(groups[i]) >= len(groups[j]) - 1 for j, second in enumerate(needed) if first >= second)


@st.composite
def fabric_and_demands(draw):
    fabric = draw(fabrics())
    demand = st.fixed_dictionaries({"a": products(fabric.bandwidth)}, optional={"b": products(fabric.bandwidth)})
    return fabric, draw(st.lists(demand, min_size=1, max_size=7))


def run(fabric, demands):
    return schedule_concurrently(
        demands,
        dpes=fabric.dpes,
        multipliers=fabric.multipliers,
        bandwidth=fabric.bandwidth,
        streaming=fabric.streaming,
        drain=fabric.drain,
    )


@given(fabric_and_demands())
def test_concurrent_schedule_is_feasible_and_never_slower_than_sequential(case):
    fabric, demands = case
    schedule = run(fabric, demands)
    assert schedule.cycles <= sum(min(map(fabric.alone_cycles, demand.values())) for demand in demands)
    assert schedule.cycles == max(schedule.finish)
    assert sorted(index for members in schedule.rounds for index in members) == list(range(len(demands)))
    now = 0
    for members in schedule.rounds:
        line = sorted(members, key=lambda index: schedule.groups[index].start)
        operands = [demands[index][schedule.choice[index]] for index in line]
        groups = [schedule.groups[index] for index in line]
        assert all(first.stop <= second.start for first, second in pairwise(groups))
        assert groups[-1].stop <= fabric.dpes
        assert [now + end for end in clocked_finish(operands, groups, fabric)] == [schedule.finish[index] for index in line]
        now = max(schedule.finish[index] for index in members)


@given(fabric_and_demands())
def test_one_product_takes_the_whole_fabric(case):
    fabric, demands = case
    (first, *_) = demands
    assert run(fabric, [first]).cycles == min(map(fabric.alone_cycles, first.values()))


@pytest.mark.unit
@pytest.mark.parametrize("streaming", STREAMINGS)
@pytest.mark.parametrize("op", [MatMul(128, 2048, 4096), MatMul(37, 5, 130), MatMul(2048, 1, 128)])
def test_a_product_alone_costs_what_the_array_says(op, streaming):
    array = Sigma(streaming=streaming)
    starts = range(0, op.K, array.bandwidth)
    sides = {
        side: StationaryOperand(
            nonzeros=rows * op.K,
            vectors=vectors,
            depth=op.K,
            chunks=tuple(rows * min(array.bandwidth, op.K - start) for start in starts),
        )
        for side, rows, vectors in (("a", op.M, op.N), ("b", op.N, op.M))
    }
    fabric = SharedFabric(dpes=array.dpes, multipliers=array.multipliers, bandwidth=array.bandwidth, streaming=streaming)
    for side, operand in sides.items():
        assert fabric.alone_cycles(operand) == array.cost(op, stationary=side).cycles
    assert run(fabric, [sides]).cycles == array.cost(op).cycles


@pytest.mark.unit
def test_small_concurrent_heads_use_multipliers_that_one_leaves_idle():
    head = {"a": StationaryOperand(nonzeros=64 * 64, vectors=64, depth=64)}  # a quarter of the multipliers
    schedule = schedule_concurrently([head] * 16, dpes=128, multipliers=128, bandwidth=128)
    assert schedule.cycles < 0.6 * 16 * schedule_concurrently([head], dpes=128, multipliers=128, bandwidth=128).cycles
    assert schedule.cycles > 16 * 64 * 64 // 128  # all loads pass one input


@pytest.mark.unit
def test_invalid_demands_are_refused():
    with pytest.raises(BadInput, match="at least one product"):
        schedule_concurrently([], dpes=2, multipliers=2, bandwidth=2)
    with pytest.raises(BadInput, match="each needs at least one; run them in rounds"):
        allocate([1, 1, 1], dpes=2, multipliers=2)
    with pytest.raises(BadInput, match="bandwidth must be a positive whole number, got 0"):
        schedule_concurrently([{"a": StationaryOperand(nonzeros=1, vectors=1, depth=1)}], dpes=2, multipliers=2, bandwidth=0)


@pytest.mark.unit
@pytest.mark.parametrize("streaming", STREAMINGS)
def test_a_product_without_non_zeros_takes_nothing_from_the_others(streaming):
    empty, full = (
        StationaryOperand(nonzeros=0, vectors=5, depth=4, chunks=(0,)),
        StationaryOperand(nonzeros=64, vectors=5, depth=4, chunks=(64,)),
    )
    fabric = SharedFabric(dpes=4, multipliers=4, bandwidth=4, streaming=streaming)
    assert run(fabric, [{"a": empty}]).cycles == 0
    assert run(fabric, [{"a": full}, {"a": empty}]).cycles == fabric.alone_cycles(full)
