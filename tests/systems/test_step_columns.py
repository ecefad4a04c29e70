"""A step booked at once against its plain twin, which books Work by Work: every row, every bit."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard import engine
from trainyard.arrays import Sigma, Spatial, Systolic, TensorCore, TensorDash
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import Body, Convolution, Copy, ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec
from trainyard.ir.booking import BookingColumns
from trainyard.ir.plan import Plan
from trainyard.results.booking import _divided, book_timeline, entries_of, split
from trainyard.systems import Single

MODELS = [("resnet18", 2), ("bert-tiny", 2), ("mobilenet", 1), ("dlrm", 8), ("gcn", None), ("lstm-1", 1)]
ARRAYS = [
    Systolic(rows=16, columns=24),
    Systolic(rows=128, columns=128, dataflow="os"),
    Systolic(rows=33, columns=8, dataflow="is", pipelined=True),
    Spatial(elements=96, macs_per_element=20),
    TensorCore(tiles=30, rows=4, columns=2),
    TensorDash(tiles=16, multicast=False),
    Sigma(dpes=8, multipliers=16, bandwidth=32),
    Sigma(dpes=6, multipliers=32, bandwidth=20, streaming="limited", drain="pass"),
]
devices = st.builds(
    Accelerator,
    array=st.sampled_from(ARRAYS),
    scratchpad_bytes=st.integers(100_000, 20_000_000),
    dram_bytes_per_s=st.floats(1e9, 2e12),
    clock_hz=st.floats(1e8, 3e9),
    dram_latency_s=st.sampled_from([0.0, 100e-9, 3e-6]),
    dram_capacity_bytes=st.sampled_from([None, 50_000_000]),
    precision=st.sampled_from([None, "bf16", {"parameter": "fp16"}]),
    fusion=st.sampled_from(["epilogue", "none"]),
    scope=st.sampled_from(["all", "products"]),
    im2col=st.sampled_from(["raw", "materialised"]),
    line_buffer=st.sampled_from([True, True, False]),
    grad_input=st.sampled_from(["col2im", "dilated"]),
    vector_lanes=st.sampled_from([1, 100, 4096]),
    accumulator_bytes=st.sampled_from([2, 4]),
    technology_nm=st.sampled_from([7, 16, 45]),
    tiling=st.sampled_from(["search", "search", (64, 64, 64)]),
)


@cache
def step_of(model: str, batch: int | None) -> Step:
    return ty.zoo.load(model, batch=batch)


def agree(first: Plan, second: Plan) -> None:
    """Two plans, their timelines and their rows, in order and bit by bit."""
    times = engine.run(first), engine.run(second)
    assert times[0] == times[1]
    (rows, columns), (twin_rows, twin_columns) = (book_timeline(t, p.booking) for t, p in zip(times, (first, second), strict=True))
    assert rows == twin_rows
    assert columns == twin_columns
    for mine, other in ((columns.energy, twin_columns.energy), (columns.traffic, twin_columns.traffic)):
        assert list(mine) == list(other)
        assert [column.dtype for column in mine.values()] == [column.dtype for column in other.values()]
    assert entries_of(first.booking) == entries_of(second.booking)
    for name in ("cycles", "array_cycles", "uncertainty_cycles"):
        assert getattr(first.booking, name) == getattr(second.booking, name)


@pytest.mark.oracle
@settings(max_examples=settings.default.max_examples // 3, deadline=None)
@given(model=st.sampled_from(MODELS), device=devices)
def test_at_once_is_work_by_work(model: tuple[str, int | None], device: Accelerator) -> None:
    step, system = step_of(*model), Single(device=device)
    try:
        twin = system.work_by_work(step)
    except BadInput as refused:  # a tile finds no room
        with pytest.raises(BadInput, match=re.escape(str(refused))):
            system.plan(step)
        return
    plan = system.plan(step)
    assert plan.booking.columns is not None
    agree(plan, twin)


LEVELS = {"levels": (ty.Level(name="local", size="64 KiB"),), "scratchpad_width_bytes_per_cycle": 64.0, "tiling": (64, 64, 64)}


@pytest.mark.parametrize("change", [{"order": "interleaved"}, {"reuse": "lru"}, {"order": "cost", "across": "relu"}, LEVELS])
def test_what_is_costed_apart_is_booked_with_the_rest(change: dict[str, Any]) -> None:
    step, device = step_of("bert-tiny", 1), ty.machine("npu-small")
    system = Single(device=replace(device, **change))
    plan = system.plan(step)
    assert plan.booking.columns is not None
    agree(plan, system.work_by_work(step))


def test_gradients_side_by_side() -> None:
    step, system = step_of("bert-tiny", 1), Single(device=replace(ty.machine("sigma"), together="gradients"))
    agree(system.plan(step), system.work_by_work(step))


@pytest.mark.parametrize("rate", [1, 2])
def test_narrow_numbers_side_by_side_in_a_multiplier(rate: int) -> None:
    step, device = step_of("bert-tiny", 1), ty.machine("tensorcore(order=sequential)")
    system = Single(device=replace(device, precision={"activation": "fp8", "parameter": "bf16"}, rates={"bf16": rate, "fp8": rate}))
    agree(system.plan(step), system.work_by_work(step))


@pytest.mark.probe
@pytest.mark.parametrize(("elements", "at_once"), [(2**53 // 8 - 1, True), (2**53 // 8, False)])
def test_what_real_numbers_cannot_count_is_left_to_the_twin(elements: int, at_once: bool) -> None:
    """A stream reads and writes four bytes of each element: below 2**53 in all, and just not below."""
    op = Op(body=ElementWise("relu", elements), name="relu", layer="act", phase=Phase.FORWARD)
    step, system = Step("long", 1, (op,), ()), Single(device=ty.machine("npu"))
    plan = system.plan(step)
    assert (plan.booking.columns is not None) is at_once
    agree(plan, system.work_by_work(step))


@st.composite
def odd_steps(draw: st.DrawFn) -> Step:
    """A few streams and products over tensors of any role, some of them empty, some read and written at once."""
    shapes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 64)), min_size=3, max_size=6))
    tensors = tuple(TensorSpec(shape, role=draw(st.sampled_from(list(Role)))) for shape in shapes)
    some = st.lists(st.integers(0, len(tensors) - 1), max_size=3).map(tuple)
    ops = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 5000))
        bodies: list[Body] = [
            ElementWise("relu", size), Copy("copy", size), MatMul(size, 7, 9), Reduction("sum", size, 1),
            Reduction("softmax", size, size, 3), Reduction("layer_norm", size, size, 2),
        ]  # fmt: skip
        body, phase = draw(st.sampled_from(bodies)), draw(st.sampled_from(list(Phase)))
        ops.append(Op(body=body, name=f"op{number}", layer=f"l{number % 2}", phase=phase, inputs=draw(some), outputs=draw(some)))
    return Step("odd", 2, tuple(ops), tensors)


@pytest.mark.oracle
@settings(max_examples=120, deadline=None)
@given(step=odd_steps(), which=st.integers(0, 2), slack=st.integers(-1, 1), device=devices)
def test_odd_steps_at_the_edge_of_the_scratchpad(step: Step, which: int, slack: int, device: Accelerator) -> None:
    """Half of the scratchpad holds a row of one of the tensors, just or just not."""
    size = 2 * 4 * step.tensors[which].shape[1] + slack
    system = Single(
        device=replace(device, scratchpad_bytes=size, tiling="search", precision=None, scope="all", dram_capacity_bytes=None)
    )
    try:
        twin = system.work_by_work(step)
    except BadInput:
        return
    agree(system.plan(step), twin)


def test_bytes_that_tiles_read_too_often_are_left_to_the_twin() -> None:
    """Each operand is far below 2**53 bytes, all that is read of them above."""
    body = MatMul(2**20 - 1, 2**20 - 3, 4099)
    step = Step("tall", 1, (Op(body=body, name="mm", layer="fc", phase=Phase.FORWARD),), ())
    device = replace(ty.machine("npu"), tiling=(1, 128, 128), clock_hz=1e10, dram_bytes_per_s=1e13, dram_latency_s=0.0)
    plan = Single(device=device).plan(step)
    assert plan.booking.columns is None
    agree(plan, Single(device=device).work_by_work(step))


def test_a_device_without_a_sheet_is_booked_work_by_work() -> None:
    assert Single(device=ty.machine("h200")).plan(step_of("bert-tiny", 1)).booking.columns is None


MASKED = [
    ty.machine("sigma"),
    replace(ty.machine("sigma"), dma="zero_compressed", together="gradients"),
    ty.machine("tensordash"),
    Accelerator(array=TensorDash(tiles=4), scratchpad="1 MiB", dram="10 GB/s", dma="zero_compressed"),
]


@pytest.mark.oracle
@pytest.mark.parametrize("device", MASKED)
@pytest.mark.parametrize("shares_alone", [True, False])
def test_products_with_their_zeros_are_booked_with_the_rest(device: Accelerator, shares_alone: bool) -> None:
    from trainyard.masks.densities import Densities
    from trainyard.masks.named import load

    step = step_of("bert-tiny", 1)
    masks = load("sparsity(A=0.5,G=0.7,W=0.2)", step)
    assert masks is not None
    if shares_alone:
        masks = Densities("shares", {key: masks.density(key) for key in masks.specs})  # type: ignore[union-attr]
    plan = Single(device=device).plan(step, masks)
    assert plan.booking.columns is not None
    agree(plan, Single(device=replace(device)).work_by_work(step, masks))


def test_layers_with_equal_demands_have_zeros_of_their_own() -> None:
    from trainyard.masks.densities import Densities

    ops = [
        Op(body=MatMul(64, 64, 64), name=f"mm{n}", layer=f"l{n}", phase=Phase.FORWARD, inputs=(0, 1), letters=("A", "W"))
        for n in (0, 1)
    ]
    step = Step("twice", 1, tuple(ops), (TensorSpec((64, 64)), TensorSpec((64, 64), role=Role.PARAMETER)))
    device, masks = replace(ty.machine("sigma"), dram_bytes_per_s=1e15), Densities("half", {("l1", 0, "W"): 0.5})
    device = replace(device, array=Sigma(dpes=2, multipliers=4, bandwidth=4, stationary="b"))
    plan = Single(device=device).plan(step, masks)
    agree(plan, Single(device=device).work_by_work(step, masks))
    first, second = ty.run(step, on=device, masks=masks).columns.time_ps.tolist()[:2]
    assert second < first


def test_outputs_that_are_sampled_leave_the_same_uncertainty() -> None:
    from trainyard.masks.named import load

    step = step_of("bert-tiny", 2)
    device = replace(ty.machine("tensordash"), array=replace(ty.machine("tensordash").array, sample=4))
    masks = load("sparsity(A=0.5,G=0.5)", step)
    plan = Single(device=device).plan(step, masks)
    assert plan.booking.uncertainty_cycles > 0.0
    agree(plan, Single(device=device).work_by_work(step, masks))


def test_zeros_that_a_dma_engine_packs_are_not_forgotten() -> None:
    from trainyard.masks.named import load

    step = step_of("bert-tiny", 1)
    masks, device = load("sparsity(A=0.9,G=0.9)", step), replace(ty.machine("npu"), dma="zero_compressed")
    assert Single(device=device).plan(step, masks).booking.columns is None
    assert ty.run(step, on=device, masks=masks).traffic_bytes["dram"] < ty.run(step, on=device).traffic_bytes["dram"]


def test_one_device_takes_zeros_in_turn() -> None:
    """What a device remembers is of the masks that it was shown, and of the call that they are of."""
    from trainyard.masks.densities import Densities

    def product(call: int) -> Op:
        return Op(
            body=MatMul(64, 64, 64), name=f"mm{call}", layer="fc", call=call, phase=Phase.FORWARD, inputs=(0, 1), letters=("A", "W")
        )

    step = Step("calls", 1, (product(0), product(1)), (TensorSpec((64, 64)), TensorSpec((64, 64), role=Role.PARAMETER)))
    kept, told = ty.machine("tensordash"), [Densities("few", {("fc", call, "A"): 0.1}) for call in (0, 1)]
    told.append(Densities("more", {("fc", 0, "A"): 0.1, ("fc", 1, "A"): 0.6}))
    for masks in (*told, None, *told[::-1]):
        fresh = ty.run(step, on=replace(kept), masks=masks)
        assert ty.run(step, on=kept, masks=masks) == fresh
    first, second = (ty.run(step, on=kept, masks=masks).columns.time_ps.tolist()[:2] for masks in told[:2])
    assert first == second[::-1]
    assert first[0] < first[1]


def test_what_no_clock_counts_is_refused_as_the_twin_does() -> None:
    op = Op(body=ElementWise("relu", 10**10), name="relu", layer="act", phase=Phase.FORWARD)
    step, system = Step("long", 1, (op,), ()), Single(device=replace(ty.machine("npu"), clock_hz=1.0))
    with pytest.raises(BadInput) as refused:
        system.work_by_work(step)
    with pytest.raises(BadInput, match=re.escape(str(refused.value))):
        system.plan(step)


@pytest.mark.probe
@pytest.mark.parametrize(("cycles", "bound"), [(-1, "compute"), (0, "compute"), (1, "dram")])
def test_as_long_in_the_array_as_in_the_dram_is_bound_by_the_array(cycles: int, bound: str) -> None:
    step = Step("one", 1, (Op(body=MatMul(300, 200, 100), name="mm", layer="fc", phase=Phase.FORWARD),), ())
    device = replace(ty.machine("npu"), tiling=(100, 100, 100), clock_hz=1e9)
    cost = device.cost(step, device.works(step)[0])
    moved = sum(cost.bytes.values())
    device = replace(device, dram_bytes_per_s=1e9 * moved / (cost.compute_cycles + cycles - 0.5))  # so many cycles, rounded up
    plan = Single(device=device).plan(step)
    assert plan.booking.columns is not None
    assert plan.booking.columns.bound[0] == bound
    agree(plan, Single(device=device).work_by_work(step))


def test_results_of_one_step_share_labels_and_nothing_that_changes() -> None:
    step, npu = step_of("resnet18", 2), ty.machine("npu")
    first = ty.run(step, on=npu)
    before = pickle.loads(pickle.dumps(first))
    second = ty.run(step, on=replace(npu, dram_bytes_per_s=40e9))
    assert second.time_s > first.time_s
    assert first == before
    assert first.rows.layer is second.rows.layer
    assert first != second
    with pytest.raises(ValueError, match="read-only"):
        first.columns.macs[0] = 1


@given(
    totals=st.lists(st.integers(0, 2**62), min_size=1, max_size=4),
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
)
def test_columns_divide_totals_as_split_does(totals: list[int], weights: list[int]) -> None:
    from itertools import accumulate

    from trainyard.devices.accelerator.counting import shares

    parts, count = shares(weights), len(weights)
    edges = [1.0] * (count - 1) if parts[0] == 1.0 else list(accumulate(parts[:-1]))
    rows, entries = len(totals) * count, len(totals)
    names = ("",) * (rows + 1)
    columns = BookingColumns(
        op=names, layer=names, phase=names, resource=names, kind=names, bound=names, macs=np.zeros(rows + 1, np.int64), energy={},
        traffic={}, entries=tuple(tuple(range(e * count, (e + 1) * count)) for e in range(entries)),
        entry=np.repeat(np.arange(entries), count), row=None,
        begin=np.array([0.0, *edges] * entries), end=np.array([*edges, 1.0] * entries),
        last=np.array([*[False] * (count - 1), True] * entries),
    )  # fmt: skip
    assert _divided(columns, np.array(totals)).tolist() == [*(part for total in totals for part in split(total, parts)), 0]


@pytest.mark.parametrize("array", [array for array in ARRAYS if not isinstance(array, Sigma)])  # equal products may share SIGMA
@given(sides=st.lists(st.tuples(*[st.integers(1, 3000)] * 3), min_size=1, max_size=6), count=st.integers(1, 5))
def test_events_of_many_tiles_are_those_of_each(array: Systolic, sides: list[tuple[int, int, int]], count: int) -> None:
    from trainyard.ir.folds import Tiles

    m, n, k = np.array(sides, np.float64).T
    found = array.tile_events(Tiles(m, n, k, np.full(len(sides), float(count))))
    for which, side in enumerate(sides):
        events = array.cost(MatMul(*side, count)).events
        assert list(found) == list(events)
        assert {name: float(np.broadcast_to(column, m.shape)[which]) for name, column in found.items()} == events


def test_a_step_of_one_convolution() -> None:
    body = Convolution(batch=2, in_channels=3, out_channels=8, size=(16, 16), kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    step = Step("one", 2, (Op(body=body, name="conv", layer="conv", phase=Phase.FORWARD),), ())
    system = Single(device=ty.machine("npu"))
    agree(system.plan(step), system.work_by_work(step))
