"""Bands of rows: windows against a brute-force receptive field, bands against a replay on numbers, blocks against their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.oracles.band_replay import BandReplay, Layer

import trainyard as ty
from trainyard.ir import Convolution, ElementWise, Op, Phase, Reduction, Step, TensorSpec
from trainyard.ir.ops import backward_table, forward_table
from trainyard.ir.step import Role
from trainyard.mapping.bands import Window
from trainyard.mapping.between_layers.row_bands import bands_of, ends_of
from trainyard.mapping.between_layers.row_blocks import numbers_of_bands
from trainyard.mapping.between_layers.rows import RowCuttable, pool_window
from trainyard.mapping.demand import ProductDemand, SlicedDemand, Slices
from trainyard.mapping.profile import demand, plain_demand


@st.composite
def geometries(draw: st.DrawFn, rows: int | None = None) -> Convolution:
    kernel, dilation = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2]))
    reach = dilation * (kernel - 1)
    size = draw(st.integers(1, 24)) if rows is None else rows
    padding = draw(st.integers(0, reach))
    assume(size + 2 * padding > reach)
    return Convolution(
        batch=1, in_channels=1, out_channels=1, size=(size,), kernel=(kernel,), stride=(draw(st.integers(1, 3)),),
        padding=(padding,), dilation=(dilation,),
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(body=geometries(), data=st.data(), backward=st.booleans())
def test_a_window_needs_the_rows_of_the_brute_force_receptive_field(body: Convolution, data: st.DataObject, backward: bool) -> None:
    table = backward_table(body, 0) if backward else forward_table(body, 0)
    rows, results = (body.out_size[0], body.size[0]) if backward else (body.size[0], body.out_size[0])
    first = data.draw(st.integers(0, results - 1))
    last = data.draw(st.integers(first + 1, results))
    window = Window(
        "backward" if backward else "forward", body.kernel[0], body.stride[0], body.dilation[0], (body.padding[0],) * 2
    )  # fmt: skip
    begin, end = window.needed(first, last, rows)
    reached = table[first:last][table[first:last] >= 0]
    if len(reached):
        assert begin <= reached.min()
        assert end >= reached.max() + 1
    if len(reached) and body.dilation[0] == 1:
        assert (begin, end) == (reached.min(), reached.max() + 1)


def test_one_row_less_of_a_window_would_miss_a_tap() -> None:
    window, body = Window(kernel=3, stride=2, padding=(1, 1)), Convolution(
        batch=1, in_channels=1, out_channels=1, size=(16,), kernel=(3,), stride=(2,), padding=(1,)
    )  # fmt: skip
    begin, end = window.needed(2, 5, 16)
    reached = set(forward_table(body, 0)[2:5].ravel().tolist())
    assert reached <= set(range(begin, end))
    assert not reached <= set(range(begin + 1, end))
    assert not reached <= set(range(begin, end - 1))


@st.composite
def stacks(draw: st.DrawFn) -> list[Convolution]:
    bodies = [draw(geometries(draw(st.integers(4, 24))))]
    for _ in range(draw(st.integers(1, 2))):
        bodies.append(draw(geometries(bodies[-1].out_size[0])))
    return bodies


def _works(step: Step) -> tuple[ty.ir.Work, ...]:
    return tuple(ty.ir.Work(ops=(number,)) for number in range(len(step.ops)))


def stack_step(bodies: list[Convolution], *, backward: bool, batch: int = 1) -> Step:
    """Convolutions one after the other; backward: dX and dW of each, the last layer first."""
    tensors: list[TensorSpec] = []

    def new(shape: tuple[int, ...], role: Role = Role.ACTIVATION, *, grows: bool = True) -> int:
        slope = (1, *(0 for _ in shape[1:])) if grows else ()
        tensors.append(TensorSpec(shape, role=role, slope=slope))
        return len(tensors) - 1

    bodies = [replace(body, batch=batch) for body in bodies]
    image = [new((batch, bodies[0].in_channels, *bodies[0].size), Role.INPUT)]
    image += [new((batch, body.out_channels, *body.out_size), Role.INPUT if backward else Role.ACTIVATION) for body in bodies]
    weights = [
        new((body.out_channels, body.in_channels, *body.kernel), Role.PARAMETER, grows=False) for body in bodies
    ]  # fmt: skip
    slope = (1, *(0 for _ in range(3 + 5 * len(bodies[0].size))))
    slope = slope[: len(ty.ir.ops.dimensions(bodies[0]))]
    if not backward:
        ops = [
            Op(body=body, name=f"conv{n}", layer=f"conv{n}", inputs=(image[n], weights[n]), outputs=(image[n + 1],), slope=slope)
            for n, body in enumerate(bodies)
        ]
        return Step(name="stack", batch=batch, ops=tuple(ops), tensors=tuple(tensors))
    gradient, ops = new(tensors[image[-1]].shape, Role.INPUT), []
    for n in reversed(range(len(bodies))):
        about = {"name": f"conv{n}", "layer": f"conv{n}", "slope": slope}
        result = new(tensors[weights[n]].shape, Role.PARAMETER_GRADIENT, grows=False)
        dx = new(tensors[image[n]].shape, Role.GRADIENT)
        ops.append(Op(
            body=bodies[n].as_product("grad_weight"), phase=Phase.GRAD_WEIGHT, inputs=(gradient, image[n]), outputs=(result,),
            letters=("G", "A"), **about,
        ))  # fmt: skip
        ops.append(Op(
            body=bodies[n].as_product("grad_input"), phase=Phase.GRAD_INPUT, inputs=(gradient, weights[n]), outputs=(dx,),
            letters=("G", "W"), **about,
        ))  # fmt: skip
        gradient = dx
    return Step(name="stack", batch=batch, ops=tuple(ops), tensors=tuple(tensors))


@settings(max_examples=60, deadline=None)
@given(
    bodies=stacks(), backward=st.booleans(), bands=st.integers(2, 6), keeps=st.booleans(),
    grad_input=st.sampled_from(["col2im", "dilated"]),
)  # fmt: skip
def test_a_replay_of_bands_finds_every_row_and_computes_the_whole_results(
    bodies: list[Convolution], backward: bool, bands: int, keeps: bool, grad_input: str
) -> None:
    step = stack_step(bodies, backward=backward)
    works = {n: work for n, work in enumerate(RowCuttable(step, _works(step)).works) if work is not None}
    assert len(works) == len(step.ops)
    found = bands_of(works, bands, keeps_overlap=keeps, grad_input=grad_input)  # type: ignore[arg-type]
    if found is None:
        return
    random = np.random.default_rng(1)
    values = {n: random.normal(size=spec.shape[2]) for n, spec in enumerate(step.tensors) if spec.role is Role.INPUT}
    kernels = {
        n: random.normal(size=spec.shape[2]) for n, spec in enumerate(step.tensors) if spec.role is Role.PARAMETER
    }  # fmt: skip
    layers = {}
    for number, op in enumerate(step.ops):
        body = op.body
        assert isinstance(body, Convolution)
        kernel = kernels.get(op.inputs[1], np.zeros(body.kernel[0]))
        image, gradient = (op.inputs[1], op.inputs[0]) if body.product == "grad_weight" else (op.inputs[0], op.inputs[0])
        layers[number] = Layer(body, kernel, image, gradient, op.outputs[0])
        values[op.outputs[0]] = layers[number].whole(values)
    external = {base: values[base] for base in found.tensors if base not in {layer.result for layer in layers.values()}}
    replay = BandReplay(layers, works, found, keeps, grad_input, external)
    replay.run()
    for base, rows in replay.results.items():
        assert np.allclose([rows[row] for row in range(len(values[base]))], values[base])
    for base, total in replay.sums.items():
        assert np.allclose(total, values[base])
    if keeps:
        assert all(count == len(values[base]) for base, count in replay.reads.items())
        assert all(found.product_rows[n].sum() == (works[n].gradient.rows if works[n].gradient and grad_input == "col2im"  # type: ignore[union-attr]
                                                   else works[n].rows) for n in works)  # fmt: skip


def image_stack(size: int = 64, channels: int = 8) -> list[Convolution]:
    body = Convolution(
        batch=1, in_channels=channels, out_channels=channels, size=(size, size), kernel=(3, 3), padding=(1, 1)
    )  # fmt: skip
    return [body, body]


def accelerator(scratchpad_bytes: int, **fields: object) -> ty.Accelerator:
    array = ty.arrays.Systolic(rows=8, columns=8)
    return ty.Accelerator(array=array, scratchpad_bytes=scratchpad_bytes, dram_bytes_per_s=1e9, clock_hz=1e9, **fields)


@pytest.mark.parametrize("batch", [1, 3])
def test_bands_keep_the_map_between_two_convolutions_of_a_large_image(batch: int) -> None:
    step, room = stack_step(image_stack(), backward=False, batch=batch), 64 * 1024
    image, weight = 64 * 64 * 8 * 4 * batch, 8 * 8 * 9 * 4
    off, layers, slices = (ty.run(step, accelerator(room, reuse=reuse)) for reuse in ("off", "layers", "slices"))
    assert off.traffic_bytes["dram"] == layers.traffic_bytes["dram"] == 4 * image + 2 * weight
    assert slices.traffic_bytes["dram"] == 2 * image + 2 * weight
    assert slices.time_s < layers.time_s
    assert {nest.slices.split(" ", 1)[1] for nest in slices.mapping} == {"bands of rows" + (" of each sample" if batch > 1 else "")}


def test_without_a_line_buffer_the_overlap_is_computed_and_read_again() -> None:
    step, room = stack_step(image_stack(), backward=False), 64 * 1024
    kept, again = (accelerator(room, reuse="slices", line_buffer=buffer) for buffer in (True, False))
    assert again.cost(step, again.works(step)[0]).events["mac"] > kept.cost(step, kept.works(step)[0]).events["mac"]
    assert again.cost(step, again.works(step)[1]).events["mac"] == kept.cost(step, kept.works(step)[1]).events["mac"]
    assert ty.run(step, again).traffic_bytes["dram"] > ty.run(step, kept).traffic_bytes["dram"]
    assert ty.run(step, again).time_s <= ty.run(step, replace(again, reuse="layers")).time_s


@settings(max_examples=settings.default.max_examples // 5, deadline=None)
@given(
    size=st.integers(10, 40), channels=st.sampled_from([1, 4, 8]), batch=st.integers(1, 2), backward=st.booleans(),
    room=st.integers(6_000, 60_000), buffer=st.booleans(), grad_input=st.sampled_from(["col2im", "dilated"]),
)  # fmt: skip
def test_slices_of_rows_are_never_slower_than_layers_and_move_the_compulsory_bytes_at_least(
    size: int, channels: int, batch: int, backward: bool, room: int, buffer: bool, grad_input: str
) -> None:
    step = stack_step(image_stack(size, channels), backward=backward, batch=batch)
    devices = [accelerator(room, reuse=reuse, line_buffer=buffer, grad_input=grad_input) for reuse in ("layers", "slices")]
    layers, slices = (ty.run(step, device) for device in devices)
    assert (slices.cycles, slices.traffic_bytes["dram"]) <= (layers.cycles, layers.traffic_bytes["dram"])
    large = ty.run(step, accelerator(1 << 30, reuse="layers", grad_input=grad_input))
    assert slices.traffic_bytes["dram"] >= large.traffic_bytes["dram"]
    residency = devices[1]._policy(step)[0].residency
    for work in devices[1].works(step):
        on_chip = residency.by_work.get(work.ops) if residency else None
        if isinstance(on_chip, Slices) and buffer:
            _require_whole(step, work, devices[1], on_chip)


def _require_whole(step: Step, work: ty.ir.Work, device: ty.Accelerator, on_chip: Slices) -> None:
    """All bands of a Work together multiply as much as the whole, and none has more than the scratchpad."""
    policy = device._policy(step)[0]
    sliced, whole = demand(step, work, policy), plain_demand(step, work, policy)
    assert isinstance(sliced, SlicedDemand)
    assert isinstance(whole, ProductDemand)
    products = [(times, part.inner) for times, part in sliced.parts if isinstance(part.inner, ProductDemand)]
    assert sum(times * product.problem.op.macs for times, product in products) == whole.problem.op.macs
    assert all(state.occupied_bytes <= device.scratchpad_bytes for _, state, _ in on_chip.parts)


def test_a_normalisation_and_a_matrix_product_end_a_block_of_rows() -> None:
    step = ty.zoo.load("resnet50", batch=1)
    works = accelerator(1 << 20).works(step)
    for work, rows in zip(works, RowCuttable(step, works).works, strict=True):
        functions = {getattr(step.ops[op].body, "function", type(step.ops[op].body).__name__) for op in work.ops}
        if functions & {"batch_norm", "batch_norm_backward", "MatMul", "mean"}:
            assert rows is None


def test_a_pooling_takes_its_window_from_its_area_and_an_unclear_one_is_not_cut() -> None:
    assert pool_window(Reduction("max_pool2d", 4 * 16, 16), (1, 1, 8, 8), (1, 1, 4, 4)) == Window("forward", 2, 2, 1, (0, 1))
    assert pool_window(Reduction("max_pool2d", 6 * 16, 16), (1, 1, 8, 8), (1, 1, 4, 4)) is None  # not square
    assert pool_window(Reduction("max_pool2d", 16, 1), (1, 1, 4, 4), (1, 1, 1, 1)) is None  # any stride has one result
    assert pool_window(Reduction("_adaptive_avg_pool2d", 4 * 16, 16), (1, 1, 8, 8), (1, 1, 4, 4)) is None


def test_a_tensor_that_is_written_over_after_a_window_read_it_is_not_cut() -> None:
    step = stack_step(image_stack(16, 2), backward=False)
    tensors = (*step.tensors, replace(step.tensors[1], view_of=1))
    relu = Op(body=ElementWise("relu_", 2 * 16 * 16), name="relu_", inputs=(1,), outputs=(len(tensors) - 1,))
    late = replace(step, tensors=tensors, ops=(*step.ops, relu))
    device = accelerator(6000, reuse="slices")
    from trainyard.mapping.between_layers.accesses import tensors_of
    from trainyard.mapping.between_layers.row_blocks import RowBlocks

    works = device.works(late)
    blocks = RowBlocks(late, works, tensors_of(late, works, device.policy), device.policy, late)
    assert blocks.uses(0, 1) is not None
    assert len(works) == 3
    assert blocks.uses(0, 2) is None


@given(rows=st.integers(2, 500))
@settings(max_examples=50, deadline=None)
def test_bands_cover_all_rows_and_differ_by_one_row_at_most(rows: int) -> None:
    for bands in numbers_of_bands(rows):
        sizes = np.diff([0, *ends_of(rows, bands)])
        assert sizes.sum() == rows
        assert 1 <= sizes.min() >= sizes.max() - 1
