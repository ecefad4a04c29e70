"""Calls without a product on a GPU of round numbers: launches, instructions and bytes of each kind, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.costs import kernel_of
from trainyard.devices.gpu.kernels import FUSED_UPDATES
from trainyard.devices.gpu.streams import row_norm
from trainyard.devices.gpu.traffic import Cache, Kernel, Traffic
from trainyard.ir import Body, Collective, Copy, ElementWise, Gather, Layout, Op, Reduction, Role, Step, TensorSpec, Update
from trainyard.machines.presets.gpus import H200

GPU = replace(
    H200, sms=10, fp32_macs=10, clock_hz=1.0, heavy_instructions=60.0, strided_instructions=110.0, window_instructions=300.0,
    block_share=0.5, fill_s=3.0, ramp_s=1e-3, gap_s=1e-3, dram_bytes_per_s=1e15, l2_bytes_per_s=1e15, on_chip_bytes=8000,
)  # fmt: skip
LANES = 100.0  # instructions in a second


def kernel(body: Body, *shapes: tuple[int, ...], written: int = 1, gpu: object = GPU, layout: Layout = Layout.SAME) -> Kernel:
    """One op that reads the first tensors and writes the last ones."""
    tensors = tuple(map(TensorSpec, shapes))
    numbers = tuple(range(len(shapes)))
    op = Op(body=body, inputs=numbers[: len(shapes) - written], outputs=numbers[len(shapes) - written :], layout=layout)
    return kernel_of(gpu, Step("one", 1, (op,), tensors), Call((0,)), Cache(0.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "shapes", "instructions", "launches", "moved"),
    [
        (ElementWise("relu", 50), ((50,), (50,)), 50, 1, 400),
        (ElementWise("exp", 50, 4), ((50,), (50,)), 200, 1, 400),
        (ElementWise("gelu", 50, 9), ((50,), (50,)), 60 * 50, 1, 400),  # heavy
        (ElementWise("add", 50), ((50,), (5,), (50,)), 60 * 50, 1, 420),  # a broadcast operand: addresses of each element
        (ElementWise("add", 50), ((50,), (1,), (50,)), 50, 1, 404),  # a scalar is none
        (Copy("clone", 50), ((50,), (50,)), 0, 1, 400),
        (Reduction("softmax", 50, 50, 3), ((5, 10), (5, 10)), 60 * 50, 1, 400),
        (Reduction("softmax", 4096, 4096, 3), ((2, 2048), (2, 2048)), 60 * 4096, 1, 3 * 16384),  # a long row is read twice
        (Reduction("softmax", 2048, 2048, 3), ((2, 1024), (2, 1024)), 60 * 2048, 1, 2 * 8192),
        (Reduction("group_norm", 50, 50, 2), ((5, 10), (5, 10)), 3 * 60 * 50, 3, 600),
        (Reduction("sum", 80, 8), ((2, 8, 5), (8,)), 60 * 80, 1, 352),  # of maps by channel: a part of convolution_backward
        (Reduction("max_pool2d", 4 * 20, 20), ((80,), (20,)), 20 * (300 + 0.5 * 4 * 60), 1, 400),
        (Reduction("max_pool2d_with_indices_backward", 20, 20), ((20,), (80,)), 80 * (300 + 0.5 * 60), 2, 80 + 2 * 320),
    ],
    ids=lambda value: getattr(value, "function", None),
)
def test_instructions_launches_and_bytes_of_a_stream(
    body: Body, shapes: tuple[tuple[int, ...], ...], instructions: float, launches: float, moved: int
) -> None:
    found = kernel(body, *shapes)
    assert found.compute_s == pytest.approx(instructions / LANES)
    assert found.launches == launches
    assert sum(found.bytes.values()) == moved


def test_a_clone_of_a_view_computes_an_address_for_each_element() -> None:
    tensors = (TensorSpec((50,)), TensorSpec((50,), view_of=0), TensorSpec((50,)))
    step = Step("view", 1, (Op(body=Copy("clone", 50), inputs=(1,), outputs=(2,)),), tensors)
    assert kernel_of(GPU, step, Call((0,)), Cache(0.0)).compute_s == pytest.approx(110 * 50 / LANES)


@pytest.mark.parametrize(
    ("body", "shapes", "layout", "passes"),
    [
        (ElementWise("add", 50), ((50,), (50,), (50,)), Layout.MIXED, 1),
        (ElementWise("add", 50), ((50,), (50,), (50,)), Layout.TRANSPOSED, 2),  # one operand lies as the result does, one does not
        (ElementWise("neg", 50), ((50,), (50,)), Layout.TRANSPOSED, 1),
        (ElementWise("mul", 50), ((50,), (5,), (50,)), Layout.MIXED, 1),  # a broadcast operand costs nothing on top
        (Copy("clone", 50), ((50,), (50,)), Layout.MIXED, 1),
        (Copy("cat", 50), ((25,), (25,), (50,)), Layout.MIXED, 1),
    ],
)
def test_tensors_that_lie_differently_are_read_element_by_element(
    body: Body, shapes: tuple[tuple[int, ...], ...], layout: Layout, passes: int
) -> None:
    found = kernel(body, *shapes, layout=layout)
    assert found.compute_s == pytest.approx(passes * 110 * 50 / LANES)
    assert found.bytes == kernel(body, *shapes).bytes


def test_a_cast_to_a_wider_type_is_read_element_by_element_and_one_to_a_narrower_type_is_not() -> None:
    for first, second, instructions in (("bf16", "fp32", 110), ("fp32", "bf16", 0), ("fp32", "fp32", 0)):
        tensors = (TensorSpec((50,), first), TensorSpec((50,), second))
        step = Step("cast", 1, (Op(body=Copy("_to_copy", 50), inputs=(0,), outputs=(1,)),), tensors)
        found = kernel_of(GPU, step, Call((0,)), Cache(0.0))  # type: ignore[arg-type]
        assert found.compute_s == pytest.approx(instructions * 50 / LANES)


@pytest.mark.parametrize("function", ["layer_norm", "layer_norm_backward"])
def test_a_norm_copies_rows_that_do_not_lie_in_order_first(function: str) -> None:
    body, shapes = Reduction(function, 800, 800, 2), ((80, 10), (80, 10))
    plain, copied = (kernel(body, *shapes, layout=layout) for layout in (Layout.SAME, Layout.TRANSPOSED))
    assert copied.seconds == pytest.approx(plain.seconds + 800 * 110 / LANES + GPU.ramp_s)
    assert copied.launches == plain.launches + 1


def test_a_column_sum_walks_rows_in_blocks_and_adds_up_twice() -> None:
    found = kernel(Reduction("sum", 4608 * 8, 8), (4608, 8), (8,))
    assert found.compute_s == pytest.approx((2 + 4608 / 2304) * 3.0)
    assert (found.launches, found.calls) == (2, 1)
    assert kernel(Reduction("sum", 80, 8), (2, 8, 5), (8,)).calls == 0


@pytest.mark.parametrize(
    ("shape", "function", "passes", "waves"),
    [
        ((2, 5, 10), "batch_norm", 1, 1),  # five channels of 20 numbers: half of the lanes of a multiprocessor each
        ((2, 25, 10), "batch_norm", 1, 3),
        ((200, 25, 10), "batch_norm", 2, 3),  # 2000 numbers do not fit 8000 bytes twice
    ],
)
def test_a_batch_norm_has_a_block_for_each_channel(shape: tuple[int, int, int], function: str, passes: int, waves: int) -> None:
    batch, channels, size = shape
    elements = batch * channels * size
    found = kernel(Reduction(function, elements, elements, 2), shape, shape)
    block_s = passes * batch * size * 60 / 10  # ten lanes of one multiprocessor
    assert found.compute_s == pytest.approx(max(waves * block_s, block_s / 0.5) + waves * 3.0)
    assert sum(found.bytes.values()) == (passes + 1) * 4 * elements
    assert found.launches == 1


def test_a_16_bit_batch_norm_normalises_in_a_kernel_of_its_own_and_one_of_channels_last_maps_uses_all_lanes() -> None:
    half = replace(GPU, precision="bf16")
    forward, backward = (
        kernel(Reduction(function, 100, 100, 2), *((2, 5, 10),) * tensors, gpu=half)
        for function, tensors in (("batch_norm", 2), ("batch_norm_backward", 3))
    )
    block_s = 2 * 20 * 60 / 10
    assert forward.compute_s == pytest.approx(block_s / 0.5 + 3.0 + 100 * 60 / LANES)
    assert backward.compute_s == pytest.approx(2 * block_s / 0.5 + 3.0)
    assert (forward.launches, backward.launches) == (3, 1)
    native = kernel(Reduction("batch_norm", 100, 100, 2), (2, 5, 10), (2, 5, 10), gpu=replace(GPU, layout="native"))
    assert native.compute_s == pytest.approx(2.7 * 100 * 60 / LANES)
    assert (native.launches, sum(native.bytes.values())) == (3, 1200)


def norm(rows: int, width: int, *, backward: bool) -> Kernel:
    step = Step("norm", 1, (Op(body=ElementWise("x", 1), inputs=(0,), outputs=(1,)),), (TensorSpec((rows, width)),) * 2)
    return row_norm(GPU, Traffic(GPU, step, step.ops, Cache(0.0)), rows, width, backward=backward)


def test_a_row_norm_starts_a_block_for_each_row_and_sums_columns_in_a_second_kernel() -> None:
    assert norm(240, 8, backward=False).compute_s == pytest.approx(240 * 8 * 60 / LANES + 240 / 120 * 3.0)
    backward = norm(768, 8, backward=True)
    assert backward.compute_s == pytest.approx(768 * 8 * 60 / LANES + 768 / 384 * 3.0)
    assert (backward.launches, sum(backward.bytes.values())) == (2, 3 * 768 * 8 * 4)
    for rows, width, split in ((65536, 159, False), (65537, 160, False), (65537, 159, True)):
        found = norm(rows, width, backward=True)
        assert found.launches == (6 if split else 2)
        if split:
            assert found.compute_s == pytest.approx(2 * rows * width * 60 / LANES + rows / 120 * 3.0 / 2 + 16 * 3.0)


@pytest.mark.parametrize(("rows", "seconds", "launches"), [(384, 1 * 3.0, 2), (3072, 8 * 3.0, 2), (3073, 32 * 3.0, 22)])
def test_a_scatter_compares_few_indices_and_sorts_many(rows: int, seconds: float, launches: int) -> None:
    found = kernel(Gather(rows, 4, 5000, scatter=True), (rows, 4), (5000, 4))
    assert found.compute_s == pytest.approx(seconds)
    assert found.launches == launches
    assert sum(found.bytes.values()) == rows * 16 + 2 * 5000 * 16


@pytest.mark.parametrize(("optimizer", "launches", "listed"), [("single", 8, 8), ("foreach", 8 / 36, 8), ("fused", 1 / 36, 1)])
def test_kernels_of_an_update_are_shared_by_36_tensors_of_a_list(optimizer: str, launches: float, listed: float) -> None:
    roles = (Role.PARAMETER, Role.PARAMETER_GRADIENT, Role.STATE, Role.STATE, Role.STATE)
    shapes = ((50,), (50,), (50,), (50,), (1,))  # the last is a counter
    tensors = tuple(TensorSpec(shape, role=role) for shape, role in zip(shapes, roles, strict=True))
    step = Step("update", 1, (Op(body=Update("AdamW", 50, 12), inputs=(0, 1, 2, 3, 4), outputs=(0, 2, 3)),), tensors)
    found = kernel_of(replace(GPU, optimizer=optimizer), step, Call((0,)), Cache(0.0))  # type: ignore[arg-type]
    assert found.launches == pytest.approx(launches)
    assert (found.listed, found.calls) == (listed, 0)
    passes = FUSED_UPDATES["adamw"] if optimizer == "fused" else 8
    assert found.compute_s == pytest.approx(passes * 50 * 60 / LANES)
    assert sum(found.bytes.values()) == pytest.approx((20 if listed == 8 else 7) * 200, rel=0.02)


def test_a_collective_of_one_rank_is_a_launch() -> None:
    found = kernel(Collective("all_reduce", 50, 1), (50,), (50,))
    assert (found.launches, found.bytes, found.bound) == (1.0, {}, "launch")
