"""Constraints on a device: the mapping keeps to them, and those that cannot hold are refused with the layer's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import TrainyardError
from trainyard.ir import MatMul, Op, Step
from trainyard.mapping.levels.level import Level
from trainyard.mapping.tiling import OBJECTIVES, ORDERS, TENSORS, Problem, Tiling, evaluate
from trainyard.results.loop_nests import chosen

side = st.integers(1, 50)


def step_of(body: MatMul) -> Step:
    return Step(name="test", batch=1, ops=(Op(body=body, name="product"),), tensors=())


def device(mapping: Any = None, **fields: Any) -> Accelerator:
    given = {"array": Systolic(rows=8, columns=8), "scratchpad_bytes": 8192, "dram_bytes_per_s": 4e9, "clock_hz": 1e9}
    return Accelerator(**{**given, **fields}, mapping=mapping or {})


@pytest.mark.oracle
@settings(max_examples=40)
@given(
    side,
    side,
    side,
    st.tuples(*[st.sampled_from([None, 1, 5, 16])] * 3),
    st.lists(st.sampled_from(ORDERS), max_size=3, unique=True),
)
def test_the_mapping_keeps_to_its_constraints(m: int, n: int, k: int, tile: Any, orders: list[str]) -> None:
    step = step_of(MatMul(m, n, k))
    keys = {**({"tile": tile} if any(tile) else {}), **({"order": orders} if orders else {})}
    free = device()
    fixed = device({"product": keys} if keys else {})
    (nest,) = fixed.loop_nests(step)
    assert nest.tile is not None
    for size, wanted, extent in zip(nest.tile, tile, (m, n, k), strict=True):
        assert wanted is None or size == min(wanted, extent)
    assert not orders or nest.order in orders
    problem = Problem.dense(MatMul(m, n, k), 4)
    tiling = Tiling(m=nest.tile[0], n=nest.tile[1], k=nest.tile[2], order=nest.order, keep=nest.kept)  # type: ignore[arg-type]  # operands
    assert evaluate(problem, tiling, fixed.array, fixed.supply).cycles == nest.cycles
    (best,) = free.loop_nests(step)
    assert nest.cycles >= best.cycles * 0.99 - 1


@given(side, side, side, st.tuples(*[st.integers(1, 20)] * 3), st.sampled_from(ORDERS))
def test_a_fixed_tile_and_order_cost_what_they_cost_with_the_best_choice_of_what_stays(
    m: int, n: int, k: int, tile: Any, order: str
) -> None:
    fixed = device({"product": {"tile": tile, "order": order}}, scratchpad_bytes=65536)
    step = step_of(MatMul(m, n, k))
    (work,) = fixed.works(step)
    tiling = Tiling(m=min(tile[0], m), n=min(tile[1], n), k=min(tile[2], k), order=order)
    without = {"n": "a", "m": "b", "k": "out"}
    kept = [(), (without[order[1]],), tuple(name for name in TENSORS if name in (without[order[1]], without[order[0]]))]
    problem = Problem.dense(MatMul(m, n, k), 4)
    costs = [evaluate(problem, replace(tiling, keep=keep), fixed.array, fixed.supply).cycles for keep in kept]
    assert fixed.cost(step, work).cycles in costs
    assert fixed.cost(step, work).cycles <= 1.01 * min(costs)
    assert ty.run(step, fixed).cycles == fixed.cost(step, work).cycles  # as columns


@pytest.mark.parametrize("machine", ["npu", "sigma", "spatial", "npu(array=tensordash)"])
def test_arrays_of_every_kind_keep_to_constraints(machine: str) -> None:
    masks = "sparsity(A=0.6,W=0.5)" if machine not in ("npu", "spatial") else None
    result = ty.run(
        "bert-tiny", machine, masks=masks, mapping={"*.query": {"tile": (100, None, 50)}, "*.key:forward": {"keep": "a"}}
    )
    nests = [nest for nest in chosen(result.mapping, "*.query") if nest.loops]
    assert {(nest.tile[0], nest.tile[2]) for nest in nests if nest.tile} == {(100, 50)}
    assert all(nest.moved[0].passes == 1 for nest in chosen(result.mapping, "*.key:forward") if nest.loops)
    free = ty.run("bert-tiny", machine, masks=masks)
    assert result.time_s >= free.time_s * 0.999
    others = [nest for nest in result.mapping if ".query" not in nest.layer and ".key" not in nest.layer]
    assert others == [nest for nest in free.mapping if ".query" not in nest.layer and ".key" not in nest.layer]


def test_equal_layers_with_different_constraints_are_searched_apart() -> None:
    result = ty.run(
        "bert-tiny", "npu", mapping={"*.0.*.query:forward": {"tile": (64, 64, 64)}, "*.1.*.query:forward": {"tile": (32, 32, 32)}}
    )
    tiles = {nest.layer: nest.tile for nest in chosen(result.mapping, "*.query:forward")}
    assert tiles == {
        "bert.encoder.layer.0.attention.self.query": (64, 64, 64),
        "bert.encoder.layer.1.attention.self.query": (32, 32, 32),
    }


def test_gradients_done_together_keep_to_tile_and_order() -> None:
    result = ty.run("bert-tiny", "npu", order="cost", mapping={"*.dense": {"tile": (50, None, None), "order": "dw_major"}})
    pairs = [nest for nest in chosen(result.mapping, "*.dense") if nest.kind == "gradient pair"]
    assert len(pairs) > 3
    assert all(nest.tile and nest.tile[0] == min(50, nest.dims[0]) for nest in pairs if nest.dims)
    assert {nest.order for nest in pairs} == {"dw_major"}
    kept = ty.run("bert-tiny", "npu", reuse="lru", mapping={"*.query:forward": {"tile": (50, None, 40)}})
    assert {(nest.tile or ())[::2] for nest in chosen(kept.mapping, "*.query:forward")} == {(50, 40)}


def test_nodes_keep_to_the_constraints_of_their_device() -> None:
    node = ty.run(
        "bert-tiny",
        "replicas(device=npu,devices=2,link=25 GB/s)",
        **{"device.mapping": {"*.query:forward": {"tile": (16, 16, 16)}}},
    )
    assert {nest.tile for nest in chosen(node.mapping, "*.query:forward")} == {(16, 16, 16)}


@pytest.mark.parametrize(
    ("fields", "mapping", "message"),
    [
        (
            {"scratchpad": "64 KiB"},
            {"*.query:forward": {"tile": (512, 128, 128)}},
            "tile 512x128x128 of bert.encoder.layer.0.attention.self.query forward needs 590 kB, half of the scratchpad",
        ),
        ({"scratchpad": "4 KiB"}, {"*.query:forward": {"keep": ["a", "b", "out"]}}, "with a and b and out kept needs at least"),
        ({"order": "cost"}, {"*.query": {"keep": "a"}}, "dX and dW are done together, their order decides what stays"),
        ({"reuse": "lru"}, {"*.query:forward": {"keep": "a"}}, "reuse='lru' keeps the tiles that were used last"),
        ({}, {"*.qery": {"keep": "a"}}, "no layer matches '*.qery': near it are bert.encoder.layer.0.attention.self.query"),
        ({}, {"*.query": {"order": "dx_major"}}, "this machine does them one after the other"),
        ({"order": "cost"}, {"*.query:grad_weight": {"tile": (8, 8, 8)}}, "give both the same tile and order"),
        ({"order": "cost"}, {"*.query": {"order": "mnk"}}, "is of one product, dX and dW are done together"),
        ({"reuse": "lru"}, {"*.query:forward": {"order": "kmn"}}, "where tiles stay (reuse='lru') the loops of a product are mnk"),
        ({"order": "interleaved", "scratchpad": "64 KiB"}, {"*.query": {"tile": (512, 128, 128)}}, "half of the scratchpad holds"),
    ],
)
def test_a_constraint_that_cannot_hold_says_why(fields: Any, mapping: Any, message: str) -> None:
    with pytest.raises(TrainyardError) as refused:
        ty.run("bert-tiny", "npu", mapping=mapping, **fields)
    assert message in str(refused.value)


@pytest.mark.parametrize("machine", ["npu(scratchpad=512 KiB,reuse=layers)", "eyeriss-v2"])
def test_tensors_that_stay_and_arrays_without_closed_forms_keep_to_constraints(machine: str) -> None:
    result = ty.run("bert-tiny", machine, mapping={"*.query:forward": {"tile": (100, None, 50), "order": ["kmn", "mkn"]}})
    nests = chosen(result.mapping, "*.query:forward")
    assert {(nest.tile or ())[::2] for nest in nests} == {(100, 50)}
    assert {nest.order for nest in nests} <= {"kmn", "mkn"}


def test_memory_levels_keep_to_constraints() -> None:
    fixed = device({"product": {"tile": (20, None, 10), "order": "kmn"}}, levels=(Level(name="local", size_bytes=512),))
    (nest,) = fixed.loop_nests(step_of(MatMul(40, 30, 20)))
    assert (nest.tile or ())[::2] == (20, 10)
    assert nest.order == "kmn"


def test_a_memory_trace_follows_the_constraints(tmp_path: Any) -> None:
    from trainyard.machines import machine
    from trainyard.report.traces.memory_trace import write_memory_trace

    step = ty.zoo.load("bert-tiny")
    for order, mapping in (("sequential", "*.query tile=64x*x32 order=kmn"), ("cost", "*.query tile=64x*x32 order=dw_major")):
        fixed = machine(f"npu(order={order},mapping='{mapping}')")
        traced = write_memory_trace(step, fixed, tmp_path / "trace", layer="bert.encoder.layer.0.attention.self.query")
        assert traced.total_bytes > 0  # refused where the bytes of the trace and of the cost differ


@given(
    side, side, side, st.sampled_from([("a",), ("b",), ("out",), ("a", "b"), ("a", "b", "out")]), st.sampled_from([None, *ORDERS])
)
def test_operands_that_are_kept_cross_the_pins_once(m: int, n: int, k: int, keep: Any, order: Any) -> None:
    fixed = device({"product": {"keep": keep, **({"order": order} if order else {})}}, scratchpad_bytes=65536)
    (nest,) = fixed.loop_nests(step_of(MatMul(m, n, k)))
    for operand, moved in zip(("a", "b", "out"), nest.moved, strict=True):
        assert operand not in keep or moved.bytes == moved.once_bytes
    assert order in (None, nest.order)
    assert nest.room_bytes <= nest.room_limit_bytes


def test_each_objective_is_least_under_itself() -> None:
    results = {name: ty.run("bert-tiny", "npu(scratchpad=96 KiB)", objective=name, tolerance=0.0) for name in OBJECTIVES}
    for least, value in (
        ("time", lambda one: sum(nest.cycles for nest in one.mapping if nest.loops)),
        ("energy", lambda one: one.energy_j),
        ("traffic", lambda one: one.traffic_bytes["dram"]),
    ):
        assert all(value(results[least]) <= value(one) * (1 + 1e-12) for one in results.values()), least
    assert results["traffic"].traffic_bytes["dram"] < results["time"].traffic_bytes["dram"]
    assert results["energy"].energy_j < results["time"].energy_j


@pytest.mark.parametrize("orders", [{"order": "cost"}, {"reuse": "lru"}])
def test_gradients_in_turn_move_the_least_where_that_is_asked(orders: dict[str, Any]) -> None:
    fastest, leanest, thriftiest = (
        ty.run("bert-tiny", "npu(scratchpad=96 KiB)", objective=objective, tolerance=0.0, **orders)
        for objective in ("time", "traffic", "energy")
    )
    assert leanest.traffic_bytes["dram"] < fastest.traffic_bytes["dram"]
    assert fastest.time_s < leanest.time_s
    assert thriftiest.energy_j <= min(fastest.energy_j, leanest.energy_j) * (1 + 1e-12)
    if "order" in orders:  # it may also leave them apart
        apart = ty.run("bert-tiny", "npu(scratchpad=96 KiB)", objective="traffic", tolerance=0.0)
        assert leanest.traffic_bytes["dram"] < apart.traffic_bytes["dram"]


def test_a_bounded_search_says_so() -> None:
    bounded = ty.run("bert-tiny", "npu(scratchpad=96 KiB)", effort=1)
    (note,) = [note for note in bounded.notes if "effort=1" in note]
    unproven = sum(not nest.proven for nest in bounded.mapping if nest.loops)
    assert note.startswith(f"the search of {unproven} of ")
    assert "not proven to be the best: effort=1 ended the search" in "".join(map(str, bounded.mapping))
    assert not [note for note in ty.run("bert-tiny", "npu").notes if "search" in note]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective": "speed"}, "unknown value 'speed' in objective"),
        ({"tolerance": 1.0}, "tolerance is a share of the least"),
        ({"effort": -1}, "effort must be a whole number of at least 0"),
        ({"objective": "traffic", "order": "cost", "across": "relu"}, "objective='traffic' with across='relu', which chooses by"),
        ({"objective": "energy", "order": "cost", "across": "relu"}, "objective='energy' with across='relu'"),
    ],
)
def test_goals_that_cannot_be_met_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(TrainyardError) as refused:
        ty.run("bert-tiny", "npu", **fields)
    assert message in str(refused.value)
