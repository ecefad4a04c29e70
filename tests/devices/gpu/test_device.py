"""The GPU roofline: printed peaks, each term on its own, and monotonicity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.devices.gpu.convolutions import _channels_last, _merged
from trainyard.devices.gpu.device import Gpu
from trainyard.devices.gpu.products import Limits, Matrices, best_tiling
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import (
    Body,
    Collective,
    Convolution,
    Copy,
    Device,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Step,
    TensorSpec,
    Update,
)  # fmt: skip
from trainyard.machines.presets.gpus import A100, A100_80GB, H200, V100, V100_32GB

ALL = (V100, V100_32GB, A100, A100_80GB, H200)
QUEUED = replace(H200, graphs=True)  # the device alone: no host to wait for
QUEUED_V100 = replace(V100, graphs=True)


def seconds(gpu: Gpu, step: Step) -> float:
    return sum(gpu.cost(step, work).cycles for work in gpu.works(step)) / gpu.clock_hz


def step_of(*ops: tuple[Body, tuple[int, ...], tuple[int, ...]], tensors: tuple[TensorSpec, ...]) -> Step:
    return Step("hand-made", 1, tuple(Op(body=body, inputs=i, outputs=o, name=type(body).__name__) for body, i, o in ops), tensors)


def product(M: int, N: int, K: int, dtype: str = "bf16") -> Step:
    tensors = tuple(TensorSpec(shape, dtype) for shape in ((M, K), (K, N), (M, N)))
    return step_of((MatMul(M, N, K), (0, 1), (2,)), tensors=tensors)


def stream(elements: int, dtype: str = "fp32") -> Step:
    return step_of(
        (ElementWise("relu", elements), (0,), (1,)), tensors=(TensorSpec((elements,), dtype), TensorSpec((elements,), dtype))
    )


def chain_of_relus(count: int, elements: int) -> Step:
    ops = [(ElementWise("relu", elements), (i,), (i + 1,)) for i in range(count)]
    return step_of(*ops, tensors=(TensorSpec((elements,)),) * (count + 1))


@pytest.mark.parametrize(
    ("gpu", "fp32", "half", "clock"),
    [(V100, 15.7e12, 125e12, 1.53e9), (A100, 19.5e12, 312e12, 1.41e9), (H200, 67e12, 989e12, 1.83e9)],
)
def test_peak_rates_are_those_of_the_data_sheets(gpu: Gpu, fp32: float, half: float, clock: float) -> None:
    assert 2 * gpu.sms * gpu.fp32_macs * gpu.clock_hz == pytest.approx(fp32, rel=0.01)
    assert 2 * gpu.sms * gpu.half_macs * clock == pytest.approx(half, rel=0.01)
    assert replace(gpu, precision="fp16").peaks.macs_per_s == gpu.sms * gpu.half_macs * gpu.clock_hz


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
def test_a_gpu_is_a_device_and_costs_every_kind_of_op(gpu: Gpu) -> None:
    body = Convolution(batch=2, in_channels=8, out_channels=16, size=(14, 14), kernel=(3, 3), padding=(1, 1))
    maps, weight, out = TensorSpec((2, 8, 14, 14)), TensorSpec((16, 8, 3, 3), role=Role.PARAMETER), TensorSpec((2, 16, 14, 14))
    step = step_of(
        (body, (0, 1), (2,)),
        (body.as_product("grad_input"), (2, 1), (0,)),
        (body.as_product("grad_weight"), (2, 0), (1,)),
        (replace(body, groups=8), (0, 1), (2,)),
        (MatMul(64, 32, 16, 4), (0, 1), (2,)),
        (Reduction("native_batch_norm", 6272, 6272, 2), (2,), (2,)),
        (Gather(8, 16, 100), (0,), (2,)),
        (Gather(8, 16, 100, scatter=True), (2,), (0,)),
        (Copy("cat", 6272), (2,), (2,)),
        (Update("SGD", 1152, 4), (1,), (1,)),
        tensors=(maps, weight, out),
    )
    assert isinstance(gpu, Device)
    works = gpu.works(step)
    assert sorted(index for work in works for index in work.ops) == list(range(len(step)))
    for work in works:
        cost = gpu.cost(step, work)
        assert cost.cycles >= 1
        assert sum(cost.share) == pytest.approx(1.0)
        assert cost.bound in {"compute", "dram", "l2", "launch", "host"}
        assert sum(gpu.energy(cost.events).values()) > 0
        assert cost.events["dram_read"] + cost.events["dram_write"] == sum(cost.bytes.values())


def test_a_large_product_is_bound_by_the_tensor_cores() -> None:
    step = product(8192, 8192, 8192)
    cost = H200.cost(step, H200.works(step)[0])
    sustained = H200.sms * H200.half_macs * H200.clock_hz * H200.tensor_fraction
    assert cost.bound == "compute"
    assert step.macs / seconds(H200, step) == pytest.approx(sustained, rel=0.05)
    assert cost.events["mac"] == 8192**3


def test_a_large_copy_is_bound_by_dram() -> None:
    elements = 2**28
    step = stream(elements)
    cost = H200.cost(step, H200.works(step)[0])
    assert cost.bound == "dram"
    assert sum(cost.bytes.values()) == 8 * elements
    expected = 8 * elements / (H200.dram_bytes_per_s * H200.copy_fraction) + H200.ramp_s + H200.gap_s
    assert seconds(replace(H200, graphs=True), step) == pytest.approx(expected, rel=1e-6)


def test_one_tile_more_than_multiprocessors_takes_a_second_wave() -> None:
    limits = Limits(132, 4e12, 5e9, 1.2e11, 1e14, 1e14, 3e7, ((128, 128, 64),), 1e-6, 2e-6)

    def tiled(rows: int) -> float:
        return best_tiling(Matrices(128 * rows, 128, 256, 1, 1, 1, 1, 2), limits).compute_s

    assert tiled(132) == tiled(1)
    assert tiled(133) == 2 * tiled(132)


def test_a_long_reduction_is_split_over_the_multiprocessors() -> None:
    limits = H200.limits("half")
    tall = Matrices(64, 64, 262144, 1, 64 * 262144 * 2, 64 * 262144 * 2, 64 * 64 * 2, 2)
    tiled = best_tiling(tall, limits)
    assert tiled.split > 16
    assert tiled.partial_bytes == tiled.split * 64 * 64 * 4
    assert tiled.kernels == 2


def test_operands_beyond_the_l2_are_read_again() -> None:
    assert best_tiling(Matrices(16384, 16384, 16384, 1, 2**29, 2**29, 2**29, 2), H200.limits("half")).a_reads > 1
    assert best_tiling(Matrices(16384, 512, 512, 1, 2**24, 2**19, 2**24, 2), H200.limits("half")).a_reads == 1


def test_a_small_tensor_is_read_from_the_l2_by_the_next_call() -> None:
    small, large = chain_of_relus(2, 2**20), chain_of_relus(2, 2**26)
    read_again = [H200.cost(step, H200.works(step)[1]).events["dram_read"] for step in (small, large)]
    assert read_again == [0.0, 4.0 * 2**26]


def test_short_kernels_wait_for_the_host_unless_replayed_as_a_graph() -> None:
    step = chain_of_relus(200, 64)
    assert seconds(H200, step) == pytest.approx(200 * (H200.call_s + H200.launch_s) + H200.step_s, rel=0.01)
    assert H200.cost(step, H200.works(step)[-1]).bound == "host"
    graph = replace(H200, graphs=True)
    assert seconds(graph, step) == pytest.approx(200 * (H200.ramp_s + H200.gap_s), rel=0.05)
    assert graph.cost(step, graph.works(step)[-1]).bound == "launch"


def behind_a_long_kernel(count: int) -> Step:
    elements = 2**29
    tensors = (TensorSpec((elements,)), TensorSpec((elements,)), TensorSpec((64,)), TensorSpec((64,)))
    return step_of(
        (ElementWise("relu", elements), (0,), (1,)), *[(ElementWise("relu", 64), (2,), (3,))] * count, tensors=tensors
    )  # fmt: skip


def test_a_long_kernel_hides_the_issue_of_the_kernels_behind_it() -> None:
    step = behind_a_long_kernel(10)
    assert seconds(H200, step) == pytest.approx(seconds(QUEUED, step), rel=1e-3)


def test_a_short_queue_makes_the_device_wait() -> None:
    step = behind_a_long_kernel(15)
    assert seconds(replace(H200, queue=4), step) > 1.2 * seconds(H200, step)


def test_host_time_has_a_part_per_step_and_per_forward_or_backward_call() -> None:
    step = chain_of_relus(100, 64)
    backward = replace(step, ops=tuple(replace(op, phase=Phase.GRAD_INPUT) for op in step.ops))
    for phased, call_s in ((step, H200.call_s), (backward, H200.node_s)):
        assert seconds(H200, phased) == pytest.approx(100 * (call_s + H200.launch_s) + H200.step_s, rel=0.01)
    assert seconds(replace(H200, step_s=0.0), step) == pytest.approx(seconds(H200, step) - H200.step_s, rel=0.01)


def update_step(elements: int = 2**22) -> Step:
    roles = (Role.PARAMETER, Role.PARAMETER_GRADIENT, Role.STATE, Role.STATE)
    tensors = tuple(TensorSpec((elements,), role=role, name=str(i)) for i, role in enumerate(roles))
    return step_of((Update("AdamW", elements, 12), (0, 1, 2, 3), (0, 2, 3)), tensors=tensors)


def test_a_fused_update_moves_seven_tensors_and_an_unfused_one_twenty() -> None:
    step = update_step()
    moved = {}
    for optimizer in ("fused", "foreach", "single"):
        gpu = replace(H200, optimizer=optimizer)
        moved[optimizer] = sum(gpu.cost(step, gpu.works(step)[0]).bytes.values()) / 2**24
    assert moved == {"fused": 7.0, "foreach": pytest.approx(20.0), "single": pytest.approx(20.0)}
    small = update_step(64)
    assert seconds(replace(QUEUED, optimizer="single"), small) > 5 * seconds(replace(QUEUED, optimizer="foreach"), small)


def test_entries_of_a_foreach_list_take_host_time() -> None:
    single = update_step(64)
    many = replace(single, ops=single.ops * 100)
    assert seconds(H200, many) - seconds(H200, single) == pytest.approx(99 * 8 * (H200.list_s + H200.launch_s / 36), rel=0.01)


def test_fp32_products_run_on_tf32_cores_only_if_asked_and_present() -> None:
    step = product(4096, 4096, 4096, "fp32")
    assert seconds(replace(QUEUED, matmul_fp32="tf32"), step) < 0.3 * seconds(QUEUED, step)
    assert seconds(replace(QUEUED, precision="bf16"), step) < seconds(replace(QUEUED, precision="tf32"), step)
    assert seconds(replace(QUEUED_V100, matmul_fp32="tf32"), step) == seconds(QUEUED_V100, step)
    with pytest.raises(NotModelled, match="no bf16 tensor cores: write precision='fp16'"):
        seconds(replace(V100, precision="bf16"), step)


def test_convolutions_run_on_tensor_cores_by_default_with_transpositions() -> None:
    body = Convolution(batch=64, in_channels=256, out_channels=256, size=(28, 28), kernel=(3, 3), padding=(1, 1))
    specs = (TensorSpec((64, 256, 28, 28)), TensorSpec((256, 256, 3, 3)), TensorSpec((64, 256, 28, 28)))
    step = step_of((body, (0, 1), (2,)), tensors=specs)
    assert seconds(QUEUED, step) < 0.5 * seconds(replace(QUEUED, convolution_fp32="simt"), step)
    assert seconds(replace(QUEUED, layout="native"), step) < seconds(QUEUED, step)


def test_epilogue_fusion_saves_dram_traffic() -> None:
    specs = tuple(TensorSpec(shape) for shape in ((8192, 64), (64, 8192), (8192, 8192), (8192, 8192)))
    step = step_of((MatMul(8192, 8192, 64), (0, 1), (2,)), (ElementWise("relu", 2**26), (2,), (3,)), tensors=specs)
    fused = replace(H200, fusion="epilogue")
    assert [work.ops for work in fused.works(step)] == [(0, 1)]
    assert seconds(replace(fused, graphs=True), step) < 0.65 * seconds(QUEUED, step)


def test_collectives_and_integer_products_are_refused() -> None:
    step = step_of((Collective("all_reduce", 1024, 8), (0,), (0,)), tensors=(TensorSpec((1024,)),))
    with pytest.raises(NotModelled, match="between 8 ranks"):
        seconds(H200, step)
    with pytest.raises(NotModelled, match="int64"):
        seconds(H200, product(8, 8, 8, "int64"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sms": 0}, "sms must be a positive whole number"),
        ({"copy_fraction": 1.5}, "copy_fraction is a share"),
        ({"dram_bytes_per_s": float("nan")}, "dram_bytes_per_s: nan is not a finite number"),
        ({"tiles": ()}, "tiles must be a menu"),
        ({"tiles": ((64, 64, 32), (64, 64))}, "tiles must be a menu"),
        ({"tiles": ((64, 64, 32), (64, 64, 0))}, "tiles must be a menu"),
    ],
)
def test_boards_with_impossible_numbers_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(H200, **change)


SIZES = st.integers(1, 4096)


@given(
    M=SIZES,
    N=SIZES,
    K=SIZES,
    better=st.sampled_from(["dram_bytes_per_s", "l2_bytes_per_s", "tensor_fraction", "copy_fraction", "loads_per_cycle"]),
)
def test_a_better_board_is_never_slower(M: int, N: int, K: int, better: str) -> None:
    worse = replace(H200, **{better: 0.5 * getattr(H200, better)}, graphs=True)
    step = product(M, N, K)
    assert seconds(replace(H200, graphs=True), step) <= seconds(worse, step)


@given(M=SIZES, N=SIZES, K=SIZES)
def test_no_product_is_faster_than_the_peak_rates(M: int, N: int, K: int) -> None:
    step = product(M, N, K)
    time = seconds(H200, step)
    assert time >= step.macs / (H200.sms * H200.half_macs * H200.clock_hz)
    assert time >= 2 * (M * K + K * N + M * N) / H200.dram_bytes_per_s


def test_a_16_bit_product_takes_the_same_time_in_both_directions() -> None:
    step = product(512, 512, 512)
    backward = replace(step, ops=tuple(replace(op, phase=Phase.GRAD_INPUT) for op in step.ops))
    assert seconds(QUEUED, step) == seconds(QUEUED, backward)


def test_products_with_unaligned_rows_are_slower() -> None:
    aligned, words, halves = (seconds(QUEUED, product(8192, columns, 768)) for columns in (50304, 50258, 50257))
    assert aligned < 0.4 * words < 0.4 * halves
    assert seconds(QUEUED, product(8192, 50257, 768, "fp32")) == pytest.approx(
        seconds(QUEUED, product(8192, 50304, 768, "fp32")), rel=0.02
    )


def test_tf32_products_with_strided_operands_are_slower() -> None:
    tf32 = replace(QUEUED, precision="tf32")
    step = product(4096, 4096, 4096, "fp32")
    forward, dx, dw = (
        seconds(tf32, replace(step, ops=tuple(replace(op, phase=phase) for op in step.ops)))
        for phase in (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT)
    )
    assert forward <= dx < dw
    assert dw > 1.3 * forward


def convolution(body: Convolution) -> Step:
    x, w = (body.batch, body.in_channels, *body.size), (body.out_channels, body.in_channels // body.groups, *body.kernel)
    y = (body.batch, body.out_channels, *body.out_size)
    inputs, outputs = {"forward": ((0, 1), (2,)), "grad_input": ((2, 1), (0,)), "grad_weight": ((0, 2), (1,))}[body.product]
    return step_of((body, inputs, outputs), tensors=tuple(map(TensorSpec, (x, w, y))))


def launches(gpu: Gpu, step: Step) -> float:
    return (seconds(gpu, step) - seconds(replace(gpu, gap_s=0.0), step)) / gpu.gap_s


def test_a_pointwise_convolution_of_aligned_rows_needs_no_transposition() -> None:
    gpu = replace(QUEUED, precision="bf16", gap_s=1e-3)
    aligned = Convolution(batch=64, in_channels=256, out_channels=64, size=(56, 56), kernel=(1, 1))
    odd = replace(aligned, size=(7, 7), in_channels=512, out_channels=2048)
    wide = replace(aligned, kernel=(3, 3), padding=(1, 1))
    assert [round(launches(gpu, convolution(body))) for body in (aligned, odd, wide)] == [1, 3, 4]


def test_a_small_convolution_of_three_channels_runs_on_the_vector_lanes() -> None:
    gpu = replace(QUEUED, precision="bf16", gap_s=1e-3)
    body = Convolution(batch=64, in_channels=3, out_channels=64, size=(224, 224), kernel=(3, 3), padding=(1, 1))
    assert round(launches(gpu, convolution(body))) == 1
    assert round(launches(gpu, convolution(replace(body, kernel=(7, 7), stride=(2, 2), padding=(3, 3))))) == 4


def test_depthwise_convolutions_take_the_same_time_in_16_bits() -> None:
    body = Convolution(batch=64, in_channels=64, out_channels=64, size=(112, 112), kernel=(3, 3), padding=(1, 1), groups=64)
    wide, narrow = (seconds(replace(QUEUED, precision=precision), convolution(body)) for precision in ("fp32", "bf16"))
    assert wide == pytest.approx(narrow, rel=0.01)
    strided = replace(body, stride=(2, 2))
    forward, dx = (seconds(QUEUED, convolution(strided.as_product(product))) for product in ("forward", "grad_input"))
    assert dx > 6 * forward  # four times as many inputs as outputs, and each tap is tested


def batch_norm(channels: int, size: int, function: str = "batch_norm") -> Step:
    maps = TensorSpec((64, channels, size, size))
    inputs = (0, 1) if function.endswith("backward") else (0,)
    return step_of((Reduction(function, maps.elements, maps.elements, 2), inputs, (2,)), tensors=(maps,) * 3)


def test_batch_norm_runs_one_block_per_channel() -> None:
    few, twice, many = (seconds(QUEUED, batch_norm(channels, 112)) for channels in (64, 128, 512))
    assert few == pytest.approx(twice, rel=0.05)  # both leave multiprocessors without a channel
    assert many > 2.5 * few
    once, again = (seconds(QUEUED, batch_norm(1024, size)) / size**2 for size in (14, 28))
    assert again > 1.3 * once  # a channel of 28 x 28 does not fit beside another: two passes
    assert seconds(QUEUED, batch_norm(64, 112, "batch_norm_backward")) > 1.8 * few


def test_16_bit_batch_norm_takes_three_kernels() -> None:
    gpu = replace(QUEUED, gap_s=1e-3)
    step = batch_norm(64, 56)
    assert round(launches(gpu, step)) == 1
    assert round(launches(replace(gpu, precision="bf16"), step)) == 3


def test_pooling_takes_the_same_time_in_16_bits() -> None:
    tensors = (TensorSpec((64, 64, 112, 112)), TensorSpec((64, 64, 56, 56)))
    step = step_of((Reduction("max_pool2d", 9 * tensors[1].elements, tensors[1].elements), (0,), (1,)), tensors=tensors)
    assert seconds(QUEUED, step) == pytest.approx(seconds(replace(QUEUED, precision="bf16"), step), rel=0.02)


def test_an_embedding_reads_only_the_gathered_rows() -> None:
    tensors = (TensorSpec((10**6, 64)), TensorSpec((128, 64)))
    step = step_of((Gather(128, 64, 10**6), (0,), (1,)), tensors=tensors)
    assert H200.cost(step, H200.works(step)[0]).events["dram_read"] == 128 * 64 * 4


def test_a_permuted_copy_is_slower_than_a_plain_one() -> None:
    tensors = (TensorSpec((2**24,)), TensorSpec((2**24,), view_of=0), TensorSpec((2**24,)))
    plain, permuted = (step_of((Copy("clone", 2**24), (source,), (2,)), tensors=tensors) for source in (0, 1))
    assert seconds(QUEUED, permuted) > 1.4 * seconds(QUEUED, plain)


def test_energy_is_that_of_macs_dram_bytes_and_the_seconds_at_rest() -> None:
    gpu = replace(H200, mac_j=2.0, dram_byte_j=3.0, idle_w=5.0)
    assert gpu.energy({"mac": 7.0, "dram_read": 11.0, "dram_write": 13.0, "second": 17.0}) == {
        "mac": 14.0, "dram": 72.0, "static": 85.0,
    }  # fmt: skip
    assert gpu.energy({}) == {"mac": 0.0, "dram": 0.0, "static": 0.0}


NCHW, NHWC = TensorSpec((2, 3, 8, 8)), TensorSpec((2, 3, 8, 8), channels_last=True)


@pytest.mark.parametrize(
    ("product", "inputs", "outputs", "native"),
    [
        ("forward", (NHWC, NCHW), (NCHW,), True),
        ("forward", (NCHW, NHWC), (NCHW,), True),
        ("forward", (NCHW, NCHW, NHWC), (NHWC,), False),  # neither the bias nor the result decides
        ("grad_input", (NCHW, NCHW), (NHWC,), True),  # dX is returned as X came
        ("grad_input", (NCHW, NHWC), (NCHW,), True),
        ("grad_input", (NHWC, NCHW), (NCHW,), False),  # dY does not decide
        ("grad_weight", (NHWC, NCHW), (NCHW,), True),
        ("grad_weight", (NCHW, NCHW), (NHWC,), True),
        ("grad_weight", (NCHW, NHWC), (NCHW,), False),
        ("grad_weight", (NCHW, NCHW), (NCHW, NHWC), False),  # a second result does not decide
        ("grad_weight", (), (NHWC,), True),
    ],
)
def test_the_input_map_and_the_filter_decide_whether_a_convolution_runs_in_channels_last(
    product: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], native: bool
) -> None:
    body = Convolution(batch=2, in_channels=3, out_channels=3, size=(8, 8), kernel=(3, 3), padding=(1, 1)).as_product(product)
    numbers = tuple(range(len(inputs) + len(outputs)))
    op = Op(body=body, inputs=numbers[: len(inputs)], outputs=numbers[len(inputs) :], letters=("A", "G"))
    assert _channels_last(Step("one", 2, (op,), (*inputs, *outputs)), op) is native


@pytest.mark.parametrize(
    ("channels", "groups", "merged"),
    [
        (128, 32, 1),  # ResNeXt: 32 groups of 4 channels are one product of 128
        (256, 32, 2),  # of 8: 16 groups side by side
        (512, 16, 4),  # of 32: four of them
        (1024, 16, 16),  # of 64: wide enough
        (96, 32, 32),  # of 3: no power of two
    ],
)
def test_narrow_groups_of_a_convolution_are_merged_into_products_of_128_channels(channels: int, groups: int, merged: int) -> None:
    body = Convolution(batch=1, in_channels=channels, out_channels=channels, size=(8, 8), kernel=(3, 3), groups=groups)
    assert _merged(body).groups == merged
    wider = replace(body, out_channels=2 * channels)
    assert _merged(wider).groups == groups  # inputs and results differ


def test_a_bias_of_a_channels_last_depthwise_convolution_is_a_kernel_behind_it() -> None:
    body = Convolution(batch=8, in_channels=32, out_channels=32, size=(28, 28), kernel=(3, 3), padding=(1, 1), groups=32)
    tensors = tuple(map(TensorSpec, ((8, 32, 28, 28), (32, 1, 3, 3), (32,), (8, 32, 28, 28))))
    gpu = replace(QUEUED, layout="native")
    plain, biased = (step_of((body, inputs, (3,)), tensors=tensors) for inputs in ((0, 1), (0, 1, 2)))
    elements = body.output_elements
    moved = 2 * 4 * elements / (gpu.dram_bytes_per_s * gpu.copy_fraction)
    computed = elements * gpu.heavy_instructions / (gpu.sms * gpu.fp32_macs * gpu.clock_hz)
    behind = max(moved, computed) + gpu.ramp_s + gpu.gap_s
    assert seconds(gpu, biased) - seconds(gpu, plain) == pytest.approx(behind, rel=0.02)
    assert round(launches(replace(gpu, gap_s=1e-3), biased)) == round(launches(replace(gpu, gap_s=1e-3), plain)) + 1


def test_a_board_has_the_area_of_its_die_and_the_static_power_of_its_idle_state() -> None:
    assert replace(H200, die_m2=8e-4, idle_w=70.0).area() == {"die": 8e-4}
    assert replace(H200, die_m2=None).area() == {}
    assert replace(H200, idle_w=70.0).static_w == 70.0


def test_an_exchange_with_nobody_takes_a_launch() -> None:
    step = step_of((Collective("all_reduce", 1024, 1), (0,), (0,)), tensors=(TensorSpec((1024,)),))
    (work,) = QUEUED.works(step)
    cost = QUEUED.cost(step, work)
    assert sum(cost.bytes.values()) == 0
    assert cost.cycles / QUEUED.clock_hz < 10e-6
