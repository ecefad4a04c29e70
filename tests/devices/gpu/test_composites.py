"""Composite calls on a GPU of round numbers: blocks of scores, padded heads, masks, dropout, gates and epilogues, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.composites import _flash_s, _has_mask, attention, cell, matmul_matrices, one_kernel, recurrent, rms_rows
from trainyard.devices.gpu.products import best_tiling, product_seconds
from trainyard.devices.gpu.traffic import Cache, Kernel, Traffic
from trainyard.ir import ElementWise, MatMul, Op, Phase, Step, TensorSpec
from trainyard.machines.presets.gpus import H200

GPU = replace(
    H200, sms=10, fp32_macs=10, half_macs=100, clock_hz=1.0, tensor_fraction=1.0, attention_fraction=0.5, score_instructions=10.0,
    fill_s=3.0,
)  # fmt: skip
LANES, CORES = 100.0, 10 * 100 * 0.5  # instructions and 16-bit MACs in a second
CALL = Call((0,), "attention")


def flash(scores: MatMul, head: int, dtype: str = "bf16", call: Call = CALL, backward: bool = False, masked: bool = False) -> float:
    return _flash_s(GPU, scores, head, dtype, call, backward=backward, masked=masked)


FOUR = MatMul(256, 256, 64, 40)
"""Forty heads of 256 queries and keys: 2 x 2 blocks of 128 each, 80 tiles of queries."""
SCORES = 40 * 4 * 128**2


@pytest.mark.parametrize(
    ("head", "call", "backward", "masked", "blocks", "macs", "instructions"),
    [
        (64, CALL, False, False, 4, 64 + 64, 10.0),
        (65, CALL, False, False, 4, 96 + 96, 10.0 * 1.75),  # padded by 32; not a multiple of 8
        (72, CALL, False, False, 4, 96 + 96, 10.0),
        (64, CALL._replace(causal=True), False, False, 3, 64 + 64, 10.0),  # one block of four lies above the diagonal
        (64, CALL._replace(dropout=True), False, False, 4, 64 + 64, 10.0 + 30.0),
        (64, CALL, False, True, 4, 64 + 64, 10.0 + 14.0),
        (64, CALL, True, False, 4, 2 * 64 + 3 * 64, 27.0),
        (64, CALL, True, True, 4, 2 * 64 + 3 * 64, 27.0 + 30.0),
    ],
)
def test_a_16_bit_flash_kernel_takes_macs_and_instructions_of_each_score(
    head: int, call: Call, backward: bool, masked: bool, blocks: int, macs: int, instructions: float
) -> None:
    seconds = 40 * blocks * 128**2 * (macs / CORES + instructions / LANES)
    fills = 4 * (4 if backward else 1)  # 80 tiles, two at a time on ten multiprocessors
    assert flash(FOUR, head, call=call, backward=backward, masked=masked) == pytest.approx(seconds + fills * 3.0)


def test_a_32_bit_kernel_multiplies_on_the_vector_lanes_in_blocks_of_64() -> None:
    scores = 40 * 4**2 * 64**2
    forward = scores * ((72 + 128) / (LANES * 0.92) + 10 * 11.7 / LANES)  # a head of 70: reduced by eights, written by 64s
    assert flash(FOUR, 70, "fp32") == pytest.approx(forward + 8 * 3.0)
    backward = scores * ((2 * 72 + 3 * 128) / (LANES * 0.61) + 10 * 11.7 / LANES)
    assert flash(FOUR, 70, "fp32", backward=True) == pytest.approx(backward + 4 * 8 * 3.0)


def test_few_tiles_leave_multiprocessors_idle_and_large_heads_spill_their_sums() -> None:
    one = MatMul(256, 256, 64, 1)
    seconds = 4 * 128**2 * (128 / CORES + 10 / LANES)
    assert flash(one, 64) == pytest.approx(seconds * 10 / 2 + 3.0)  # two tiles on ten
    assert flash(FOUR, 256) == pytest.approx(SCORES * (512 / CORES + 10 / LANES) + 4 * 3.0)
    assert flash(FOUR, 288) == pytest.approx(5 * SCORES * (576 / CORES + 10 / LANES) + 4 * 3.0)
    backward = SCORES * (5 * 288 / CORES + 27 / LANES)
    assert flash(FOUR, 288, backward=True) == pytest.approx(backward + 4 * 2 * 3.0)  # forty heads, one block of threads each


def test_causal_blocks_of_more_keys_than_queries_end_at_the_last_key() -> None:
    """Two rows of blocks, four columns: the first row sees three of them, the last all."""
    found = flash(MatMul(256, 512, 64, 40), 64, call=CALL._replace(causal=True))
    assert found == pytest.approx(40 * (3 + 4) * 128**2 * (128 / CORES + 10 / LANES) + 4 * 3.0)


def test_a_tensor_with_an_element_for_each_score_is_a_mask() -> None:
    tensors = tuple(map(TensorSpec, ((2, 8, 4), (2, 4, 6), (2, 8, 6), (8, 6), (2, 8, 6))))
    for shape, masked in (((8, 6), True), ((6, 8), False)):
        ops = (
            Op(body=MatMul(8, 6, 4, 2), inputs=(0, 1), outputs=(2,), fused=1),
            Op(body=ElementWise("add", 96), inputs=(2, 3), outputs=(4,), fused=1),
        )
        step = Step("scores", 1, ops, (*tensors[:3], TensorSpec(shape), tensors[4]))
        assert _has_mask(step, ops, MatMul(8, 6, 4, 2)) is masked
        apart = tuple(replace(op, fused=None) for op in ops)
        assert not _has_mask(step, apart, MatMul(8, 6, 4, 2))
    assert not _has_mask(step, ops[:1], MatMul(8, 6, 4, 2))  # scores themselves are no mask


def test_a_product_and_its_epilogue_are_one_kernel() -> None:
    ops = (
        Op(body=MatMul(64, 32, 16), inputs=(0, 1), outputs=(2,)),
        Op(body=ElementWise("gelu", 2048, 9), inputs=(2,), outputs=(3,)),
    )
    step = Step("epilogue", 1, ops, tuple(map(TensorSpec, ((64, 16), (16, 32), (64, 32), (64, 32)))))
    found = one_kernel(GPU, step, ops, Traffic(GPU, step, ops, Cache(0.0)))
    product = best_tiling(matmul_matrices(MatMul(64, 32, 16), 4, "fp32", Phase.FORWARD), GPU.limits("fp32"))
    assert found.compute_s == pytest.approx(product.compute_s + 2048 * 9 / LANES)
    assert (found.launches, found.macs, sum(found.bytes.values())) == (1, 64 * 32 * 16, 4 * (64 * 16 + 16 * 32 + 64 * 32))


@pytest.mark.parametrize(("phase", "launches"), [(Phase.FORWARD, 1), (Phase.GRAD_INPUT, 2)])
def test_the_gates_of_a_cell_are_one_kernel_and_backward_their_bias_another(phase: Phase, launches: int) -> None:
    ops = tuple(Op(body=ElementWise("sigmoid", 50, 4), inputs=(n,), outputs=(n + 1,), phase=phase) for n in range(2))
    step = Step("cell", 1, ops, (TensorSpec((50,)),) * 3)
    found = cell(GPU, ops, Traffic(GPU, step, ops, Cache(0.0)))
    assert found.compute_s == pytest.approx(2 * 50 * 4 / LANES)
    assert found.launches == launches


def test_an_rms_norm_has_the_rows_of_its_largest_input() -> None:
    ops = (Op(body=ElementWise("mul", 60), inputs=(0, 1), outputs=(2,)),)
    step = Step("norm", 1, ops, tuple(map(TensorSpec, ((5,), (3, 4, 5), (3, 4, 5)))))
    assert rms_rows(step, ops) == (12, 5)


SLOW = replace(GPU, dram_bytes_per_s=100.0, copy_fraction=0.5, heavy_instructions=60.0, ramp_s=1e-9, gap_s=1e-9)
Q, KEYS, SCORED = (2, 14, 12), (2, 20, 12), (2, 14, 20)
"""Two heads of 12 numbers, 14 queries, 20 keys; 12 is no multiple of 8."""
ROWS: dict[bool, tuple[tuple[MatMul, tuple[int, int], int], ...]] = {
    False: ((MatMul(14, 20, 12, 2), (0, 1), 3), (MatMul(14, 12, 20, 2), (3, 2), 4)),
    True: (
        (MatMul(14, 20, 12, 2), (0, 1), 3), (MatMul(20, 12, 14, 2), (3, 5), 6), (MatMul(14, 20, 12, 2), (5, 2), 7),
        (MatMul(14, 12, 20, 2), (7, 1), 8), (MatMul(20, 12, 14, 2), (7, 0), 9),
    ),
}  # fmt: skip


def attention_kernel(backward: bool, fused: int | None, dtype: str = "bf16", causal: bool = False) -> Kernel:
    shapes = (Q, KEYS, KEYS, SCORED, Q, Q, KEYS, SCORED, Q, KEYS)  # q, k, v, scores, o, do, dv, dp, dq, dk
    ops = tuple(Op(body=body, inputs=inputs, outputs=(output,), fused=fused) for body, inputs, output in ROWS[backward])
    step = Step("attention", 1, ops, tuple(TensorSpec(shape, dtype) for shape in shapes))
    call = Call(tuple(range(len(ops))), "attention", causal=causal)
    return attention(SLOW, step, call, ops, Traffic(SLOW, step, ops, Cache(0.0)))


@pytest.mark.parametrize(
    ("backward", "fused", "read", "written"),
    [
        (False, 1, 336 + 480 + 480, 336),  # q, k, v; o
        (True, 1, 336 + 480 + 480 + 336, 480 + 336 + 480),  # and do; dv, dq, dk
        (False, None, 3 * 336, 336),  # apart, all are taken for as large as the smallest result
        (True, None, 5 * 336, 3 * 336),
    ],
)
def test_an_attention_moves_its_operands_and_pads_heads_that_are_no_multiple_of_eight(
    backward: bool, fused: int | None, read: int, written: int
) -> None:
    found = attention_kernel(backward, fused)
    assert found.bytes == {("activation", "read"): 2 * read, ("activation", "write"): 2 * written}
    main = _flash_s(SLOW, MatMul(14, 20, 12, 2), 12, "bf16", CALL, backward=backward, masked=False)
    copies = (5 if backward else 3) * 336 * 60 / LANES
    sums = 8 * 2 * 336 / 50 if backward else 0.0  # output x gradient, dQ in fp32
    assert found.compute_s == pytest.approx(main + copies + sums)
    assert found.launches == (4 if backward else 3)
    assert found.macs == (5 if backward else 2) * 2 * 14 * 20 * 12


def test_a_32_bit_attention_is_one_kernel_without_copies_and_a_causal_one_does_half() -> None:
    wide = attention_kernel(False, 1, "fp32")
    assert wide.launches == 1
    assert wide.compute_s == pytest.approx(_flash_s(SLOW, MatMul(14, 20, 12, 2), 12, "fp32", CALL, backward=False, masked=False))
    assert attention_kernel(False, 1, causal=True).macs == 2 * 14 * 20 * 12


def test_a_recurrent_layer_multiplies_all_inputs_at_once_and_each_state_behind_the_last() -> None:
    """Two steps of three samples: inputs of five and states of two numbers, eight gates; bytes of DRAM are those of the gates."""
    shapes = ((3, 5), (5, 8), (3, 8), (3, 2), (2, 8), (3, 8))
    ops = (
        *(Op(body=MatMul(3, 8, 5), inputs=(0, 1), outputs=(2,)),) * 2,
        *(Op(body=MatMul(3, 8, 2), inputs=(3, 4), outputs=(5,)), Op(body=ElementWise("sigmoid", 6), inputs=(5,), outputs=(3,))) * 2,
    )
    gpu = replace(SLOW, tf32_macs=0, clock_hz=1e9, fill_s=1e-9, l2_bytes_per_s=1e6, l2_fraction=0.5)
    step = Step("lstm", 1, ops, tuple(map(TensorSpec, shapes)))
    found = recurrent(gpu, step, ops, Traffic(gpu, step, ops, Cache(0.0)))

    def seconds(body: MatMul, *, cached: bool = False, **limits: object) -> float:
        product = matmul_matrices(body, 4, "fp32", Phase.FORWARD)
        product = product._replace(a_bytes=0, b_bytes=0) if cached else product
        rates = gpu.limits("fp32")._replace(**limits)  # type: ignore[arg-type]
        return product_seconds(best_tiling(product, rates), product, rates)

    state = seconds(MatMul(3, 8, 2), cached=True, tiles=((64, 64, 32),), splits=(1,)) + 2 * 3 * 8 * 4 / 5e5
    assert found.compute_s == pytest.approx(seconds(MatMul(6, 8, 5)) + 2 * state)
    assert (found.launches, found.calls, found.macs) == (2 * 2 + 1, 5.0, 2 * 3 * 8 * 5 + 2 * 3 * 8 * 2)
    assert seconds(MatMul(3, 8, 2), cached=True) == pytest.approx(96 / 50)  # the gates alone leave the chip
