"""Loop nests of a device: walking their loops gives the bytes and cycles of the result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Systolic, TensorCore
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.choices import PairChoice, TileChoice
from trainyard.devices.accelerator.loop_nests import _least, array_text, why_unproven
from trainyard.ir import ElementWise, MatMul, Op, Step, TensorSpec
from trainyard.mapping.demand import ProductDemand
from trainyard.mapping.levels.array import LeveledArray
from trainyard.mapping.tiling import Problem, Tiling, evaluate
from trainyard.mapping.walk import walk
from trainyard.results.loop_nests import LoopNest

side = st.integers(1, 60)


def npu(**fields: Any) -> Accelerator:
    given = {"array": Systolic(rows=8, columns=8), "scratchpad_bytes": 4096, "dram_bytes_per_s": 4e9, "clock_hz": 1e9}
    return Accelerator(**{**given, **fields})


def step_of(body: MatMul) -> Step:
    return Step(name="test", batch=1, ops=(Op(body=body, name="product"),), tensors=())


def outer(nest: LoopNest) -> dict[str, tuple[int, int]]:
    return {loop.axis: (loop.extent, loop.tile) for loop in nest.loops if loop.level == "dram"}


@pytest.mark.oracle
@settings(max_examples=40)
@given(side, side, side, st.integers(1, 3), st.sampled_from(["ws", "os", "is"]), st.sampled_from([512, 2048, 65536]))
def test_walking_the_loops_of_a_nest_gives_the_bytes_and_cycles_of_the_device(
    m: int, n: int, k: int, count: int, dataflow: Any, scratchpad: int
) -> None:
    device = npu(array=Systolic(rows=8, columns=4, dataflow=dataflow), scratchpad_bytes=scratchpad)
    step = step_of(MatMul(m, n, k, count))
    (nest,), (work,) = device.loop_nests(step), device.works(step)
    cost, problem = device.cost(step, work), Problem.dense(MatMul(m, n, k, count), 4)
    loops = outer(nest)
    assert {axis: extent for axis, (extent, _) in loops.items()} == {
        "m": m,
        "n": n,
        "k": k,
        **({"batch": count} if count > 1 else {}),
    }
    order = "".join(axis for axis in loops if axis != "batch")
    tiling = Tiling(m=loops["m"][1], n=loops["n"][1], k=loops["k"][1], order=order, keep=nest.kept)  # type: ignore[arg-type]  # operands
    assert (tiling.m, tiling.n, tiling.k) == nest.tile
    assert tiling.order == nest.order
    walked = walk(
        problem, tiling, device.supply, lambda tile: device.array.tile_cycles(*(b - a for a, b in (tile.m, tile.n, tile.k)))
    )
    assert (walked.cycles, walked.compute_cycles) == (nest.cycles, nest.compute_cycles) == (cost.cycles, cost.compute_cycles)
    sums = walked.out_moved + walked.spill_write + walked.spill_read
    assert [moved.bytes for moved in nest.moved] == [walked.a_read, walked.b_read, sums]
    assert nest.dram_bytes == sum(cost.bytes.values()) == walked.dram_bytes
    assert nest.compulsory_bytes <= nest.least_bytes <= nest.dram_bytes
    assert nest.room_bytes <= nest.room_limit_bytes == scratchpad / 2
    kept = {nest.keeps, *(label for name, label in zip(("a", "b", "out"), ("X", "W", "Y"), strict=True) if name in nest.kept)}
    assert all(moved.bytes == moved.once_bytes for moved in nest.moved if moved.tensor in kept)


@given(side, side, side, st.sampled_from(["ws", "os", "is"]))
def test_the_loops_inside_a_tile_cover_it(m: int, n: int, k: int, dataflow: Any) -> None:
    device = npu(array=Systolic(rows=8, columns=4, dataflow=dataflow), scratchpad_bytes=1 << 20)
    (nest,) = device.loop_nests(step_of(MatMul(m, n, k)))
    assert nest.tile is not None
    inside = {loop.axis: loop for loop in nest.loops if loop.level == "scratchpad"}
    assert tuple(inside[axis].extent for axis in "mnk") == nest.tile
    parallel = {loop.axis: loop.extent for loop in nest.loops if loop.spatial}
    assert math.prod(parallel.values()) <= device.array.peak_macs_per_cycle
    for axis, loop in inside.items():
        assert loop.tile == parallel.get(axis, 1)


@pytest.mark.parametrize(
    "machine", ["npu", "npu(scratchpad=256 KiB)", "sigma(together=gradients)", "npu(reuse=lru,cores=2)", "spatial"]
)
def test_the_nests_of_a_step_move_its_dram_traffic(machine: str) -> None:
    result = ty.run("bert-tiny", machine)
    assert sum(nest.dram_bytes for nest in result.mapping) == result.traffic_bytes["dram"]
    assert {nest.kind for nest in result.mapping} - {"gradient pair"} == {"product", "stream"}
    for nest in result.mapping:
        assert nest.least_bytes <= nest.dram_bytes
        assert nest.layer in set(result.rows.layer)
    assert sum(nest.cycles for nest in result.mapping) >= result.cycles  # products side by side end together


@pytest.mark.parametrize("order", ["interleaved", "dx_major", "dw_major", "cost", "paper"])
def test_gradient_pairs_show_their_order_and_move_what_they_cost(order: str) -> None:
    result = ty.run("bert-tiny", "npu(scratchpad=128 KiB)", order=order)
    pairs = [nest for nest in result.mapping if nest.kind == "gradient pair"]
    assert pairs
    assert {nest.phase for nest in pairs} == {"grad_input + grad_weight"}
    assert order in ("cost", "paper") or {nest.order for nest in pairs} == {order}
    for nest in pairs:
        assert sum(moved.bytes for moved in nest.moved) == nest.dram_bytes
        assert nest.room_bytes <= nest.room_limit_bytes
        assert nest.compulsory_bytes <= nest.least_bytes <= nest.dram_bytes
    assert sum(nest.dram_bytes for nest in result.mapping) == result.traffic_bytes["dram"]


def test_a_partition_and_cores_are_named() -> None:
    result = ty.run("bert-tiny", "npu-small(order=paper,partition=m,parts=4)")
    assert any("m is cut into 4 parts, one after the other" in nest.note for nest in result.mapping)
    result = ty.run("bert-tiny", "npu(order=cost,reuse=lru,cores=2)")
    assert any("parts, one for each core" in nest.note for nest in result.mapping)


def test_a_chain_names_the_layer_below() -> None:
    result = ty.run("dlrm", "npu(order=cost,across=relu)")
    chains = [nest for nest in result.mapping if nest.kind == "gradient chain"]
    assert any("dX goes on into bot_l.0 on chip" in nest.note for nest in chains)
    assert sum(nest.dram_bytes for nest in result.mapping) == result.traffic_bytes["dram"]


def test_masks_give_the_nests_of_the_masked_cost() -> None:
    result = ty.run("bert-tiny", "npu(array=tensordash)", masks="sparsity(A=0.6,G=0.5)")
    dense = ty.run("bert-tiny", "npu(array=tensordash)")
    assert sum(nest.compute_cycles for nest in result.mapping if nest.loops) < sum(
        nest.compute_cycles for nest in dense.mapping if nest.loops
    )


def test_nodes_show_the_part_of_one_device() -> None:
    node = ty.run("bert-tiny", "replicas(device=npu,devices=4,link=25 GB/s)", batch=8)
    alone = ty.run("bert-tiny", "npu", batch=2)
    assert node.mapping == alone.mapping
    centric = ty.run("bert-tiny", "mcdla-b", batch=8)
    assert {nest.kind for nest in centric.mapping} == {"product", "stream"}
    piped = ty.run("bert-tiny", "mcdla-b(devices=2)", batch=8, parallel="pipeline")
    assert piped.mapping


def test_machines_without_tiles_and_sums_of_results_have_no_mapping() -> None:
    assert ty.run("linear", "h200").mapping == ()
    result = ty.run("linear", "npu")
    assert (result + result).mapping == ()
    assert (result + result).as_dict()["mapping"] == []
    assert "mapping" not in result.as_dict(mapping=False)
    assert [nest["kind"] for nest in result.as_dict()["mapping"]] == ["product"] * len(result.as_dict()["mapping"])


def test_evaluating_the_shown_tiling_gives_the_shown_cost() -> None:
    device = npu(scratchpad_bytes=2048)
    (nest,) = device.loop_nests(step_of(MatMul(50, 40, 30)))
    assert nest.tile is not None
    tiling = Tiling(m=nest.tile[0], n=nest.tile[1], k=nest.tile[2], order=nest.order)
    assert evaluate(Problem.dense(MatMul(50, 40, 30), 4), tiling, device.array, device.supply).cycles == nest.cycles


def test_tensors_that_stay_between_layers_move_nothing() -> None:
    result = ty.run("bert-tiny", "npu", reuse="layers")
    assert sum(nest.dram_bytes for nest in result.mapping) == result.traffic_bytes["dram"]
    assert any(moved.once_bytes == 0 for nest in result.mapping for moved in nest.moved)
    assert all(nest.least_bytes <= nest.dram_bytes for nest in result.mapping)
    assert any("is on chip" in str(nest) for nest in result.mapping)


class _Bounded:
    """An array that is asked tile by tile, with a lower bound."""

    peak_macs_per_cycle, lower_bounds = 4, ()

    def granule(self) -> tuple[int, int, int]:
        return 2, 2, 1

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return m * n * k


class _Unknown:
    """An array of which nothing is known but its multipliers."""

    peak_macs_per_cycle = 4


@pytest.mark.parametrize(
    ("array", "effort", "why"),
    [
        (Systolic(rows=4, columns=4), 0, "the search ended at its built-in limit of 4,000 cells (see effort)"),
        (Systolic(rows=4, columns=4), 7, "effort=7 ended the search"),
        (_Bounded(), 0, "_Bounded is asked for its cycles tile by tile, and the built-in limit of 128 tiles were too few"),
        (_Unknown(), 0, "nothing bounds the cycles of _Unknown but its multipliers: the built-in limit of 128 tiles"),
        (_Unknown(), 9, "nothing bounds the cycles of _Unknown but its multipliers: effort=9 tiles were asked for"),
    ],
)
def test_a_mapping_that_is_not_proven_says_what_ended_its_search(array: Any, effort: int, why: str) -> None:
    choice = TileChoice(None, None, array, None, 1)  # type: ignore[arg-type]  # the array alone decides
    assert why_unproven(choice, effort).startswith(why)


@pytest.mark.parametrize(
    ("effort", "why"), [(0, "the search ended at its built-in limit of 1,024 tile operations"), (3, "effort=3")]
)
def test_a_gradient_pair_that_is_not_proven_says_what_ended_its_search(effort: int, why: str) -> None:
    pair = PairChoice(*(None for _ in PairChoice._fields))  # type: ignore[arg-type]
    assert why_unproven(pair, effort).startswith(why)


def product_step(M: int, N: int, K: int) -> Step:
    tensors = tuple(map(TensorSpec, ((M, K), (K, N), (M, N))))
    op = Op(body=MatMul(M, N, K), inputs=(0, 1), outputs=(2,), name="mm", layer="fc", letters=("A", "W"))
    return Step(name="one", batch=1, ops=(op,), tensors=tensors)


def test_a_nest_has_the_tile_the_loops_the_bytes_and_the_room_of_its_product() -> None:
    """20 x 12 x 10 in tiles of 8 x 12 x 10: B stays over m, and all moves once."""
    device = npu(array=Systolic(rows=8, columns=4), tiling=(8, 12, 10), scratchpad_bytes=4096)
    (nest,) = device.loop_nests(product_step(20, 12, 10))
    assert (nest.layer, nest.op, nest.phase, nest.kind) == ("fc", "mm", "forward", "product")
    assert (nest.dims, nest.tile, nest.element_bytes) == ((20, 12, 10, 1), (8, 12, 10), (4, 4, 4))
    assert nest.product == "Y(20 x 12) = X(20 x 10) W(10 x 12)"
    assert nest.array == "array Systolic ws 8 x 4"
    assert [(moved.tensor, moved.bytes, moved.once_bytes) for moved in nest.moved] == [
        ("X", 800, 800), ("W", 480, 480), ("Y", 960, 960),
    ]  # fmt: skip
    assert (nest.dram_bytes, nest.compulsory_bytes) == (2240, 2240)
    assert nest.room_bytes == 4 * (8 * 10 + 10 * 12 + 8 * 12)
    assert nest.room_limit_bytes == 2048
    assert nest.keeps == "W"
    assert {loop.axis: loop.tile for loop in nest.loops if loop.level == "dram"} == {"m": 8, "n": 12, "k": 10}
    inside = [(loop.axis, loop.extent, loop.tile, loop.spatial) for loop in nest.loops if loop.level != "dram"]
    assert sorted(inside) == [
        ("k", 8, 1, True), ("k", 10, 8, False), ("m", 8, 1, False), ("n", 4, 1, True), ("n", 12, 4, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("tile", "keeps"), [((8, 12, 10), "W"), ((20, 5, 10), "X"), ((20, 12, 3), "Y"), ((20, 12, 10), "")])
def test_the_operand_without_the_innermost_loop_stays(tile: tuple[int, int, int], keeps: str) -> None:
    (nest,) = npu(tiling=tile, scratchpad_bytes=1 << 20).loop_nests(product_step(20, 12, 10))
    assert nest.keeps == keeps


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (Systolic(rows=8, columns=4, dataflow="os"), "array Systolic os 8 x 4"),
        (TensorCore(tiles=2, rows=4, columns=4, lanes=16), "array TensorCore ("),
        (LeveledArray, "array type"),
        (object(), "array object"),
    ],
)
def test_an_array_is_named_with_its_sizes(array: Any, text: str) -> None:
    assert array_text(array).startswith(text)
    assert "seed" not in array_text(array)


def test_streams_and_fused_kernels_have_nests_without_loops() -> None:
    tensors = tuple(map(TensorSpec, ((2, 8, 4), (2, 4, 8), (2, 8, 8), (2, 8, 8))))
    ops = (
        Op(body=MatMul(8, 8, 4, 2), inputs=(0, 1), outputs=(2,), name="bmm", layer="attention", fused=1),
        Op(body=ElementWise("exp", 128), inputs=(2,), outputs=(3,), name="exp", layer="attention", fused=1),
        Op(body=ElementWise("relu", 128), inputs=(3,), outputs=(3,), name="relu", layer="act"),
    )
    device, step = npu(), Step(name="two", batch=1, ops=ops, tensors=tensors)
    kernel, stream = device.loop_nests(step)
    costs = [device.cost(step, work) for work in device.works(step)]
    assert [(nest.kind, nest.layer, nest.op, nest.loops) for nest in (kernel, stream)] == [
        ("fused kernel", "attention", "bmm", ()), ("stream", "act", "relu", ()),
    ]  # fmt: skip
    assert kernel.note == "1 products and 1 other ops, nothing between them leaves the chip"
    assert stream.note == ""
    for nest, cost in zip((kernel, stream), costs, strict=True):
        assert (nest.cycles, nest.compute_cycles, nest.bound) == (cost.cycles, cost.compute_cycles, cost.bound)
        assert nest.dram_bytes == sum(cost.bytes.values())


def test_several_numbers_in_a_multiplier_are_told() -> None:
    (nest,) = npu(precision="fp8", rates={"fp8": 2}).loop_nests(product_step(20, 12, 10))
    assert nest.note == "k counts groups of 2 numbers that a multiplier takes at once"
    assert nest.dims == (20, 12, 5, 1)


@pytest.mark.parametrize(
    ("loaded", "a_bytes", "room", "bounded"),
    [((None, None), 16384, 512.0, True), ((64, None), 16384, 512.0, False), ((None, 64), 16384, 512.0, False),
     ((None, None), 0, 512.0, False), ((None, None), 16384, 0.0, False)],
)  # fmt: skip
def test_little_room_bounds_the_traffic_of_a_product_unless_a_tensor_of_it_is_on_chip(
    loaded: Any, a_bytes: int, room: float, bounded: bool
) -> None:
    problem = replace(Problem.dense(MatMul(64, 64, 64), 4), a_bytes=a_bytes)
    demand = ProductDemand(
        problem=problem, labels=("X", "W", "Y"), element_bytes=(4, 4, 4), drained=((),), number="fp32", loaded_bytes=loaded
    )
    least = _least(demand, room)
    assert least.compulsory == a_bytes + 2 * 64 * 64 * 4
    assert (least.capacity > 0) is bounded
