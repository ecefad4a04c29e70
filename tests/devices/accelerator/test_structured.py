"""Weights of 2:4 structure on devices: twice the rate where there are multipliers for it, a plain mask where there are not."""

from __future__ import annotations

import numpy as np
import pytest

import trainyard as ty
from trainyard.arrays import Systolic, TensorCore, TensorDash
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import TWO_FOUR, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.masks.generated import parse


def layer(batch=256, wide=256, out=128):
    """A linear layer, forward and back."""
    tensors = (
        TensorSpec((batch, wide), role=Role.INPUT), TensorSpec((out, wide), role=Role.PARAMETER),
        TensorSpec((wide, out), role=Role.PARAMETER, view_of=1), TensorSpec((batch, out)),
        TensorSpec((batch, out), role=Role.GRADIENT), TensorSpec((batch, wide), role=Role.GRADIENT),
        TensorSpec((out, wide), role=Role.PARAMETER_GRADIENT),
    )  # fmt: skip
    rows = [
        (MatMul(batch, out, wide), Phase.FORWARD, (0, 2), 3, ("A", "W")),
        (MatMul(batch, wide, out), Phase.GRAD_INPUT, (4, 1), 5, ("G", "W")),
        (MatMul(out, wide, batch), Phase.GRAD_WEIGHT, (4, 0), 6, ("G", "A")),
    ]
    ops = tuple(
        Op(body=body, name="mm", layer="fc", phase=phase, inputs=inputs, outputs=(output,), letters=letters)
        for body, phase, inputs, output, letters in rows
    )
    return Step("layer", batch, ops, tensors)


def device(array, **fields):
    return Accelerator(array=array, scratchpad="64 MiB", dram="100 TB/s", clock="1 GHz", dram_latency="0 s", **fields)


def cycles(array, masks):
    """Array cycles of forward, dX and dW, each in one tile."""
    step = layer()
    machine = device(array, tiling=(256, 256, 256))
    zeros = None if masks is None else parse(masks, step)
    return [machine.cost(step, work, zeros).compute_cycles for work in machine.works(step)]


def test_tensor_cores_take_half_of_the_steps_where_the_mask_lies_along_the_reduction():
    dense = cycles(TensorCore(), "sparsity(W=0.0)")
    plain = cycles(TensorCore(), "sparsity(W=2:4)")
    both = cycles(TensorCore(), "sparsity(W=2:4,transposable=true)")
    assert [2 * plain[0], plain[1], plain[2]] == dense
    assert [2 * both[0], 2 * both[1], both[2]] == dense
    assert cycles(TensorCore(structured=False), "sparsity(W=2:4)") == dense


def test_bytes_are_those_of_values_and_places():
    step = layer()
    machine = device(TensorCore())
    work = machine.works(step)[0]
    dense = machine.cost(step, work, parse("sparsity(W=0.0)", step)).bytes["W", "read"]
    kept = machine.cost(step, work, parse("sparsity(W=2:4)", step)).bytes["W", "read"]
    assert dense == 256 * 128 * 4
    assert kept == 256 * 128 // 2 * 4 + 256 * 128 // 2 * 2 // 8
    half = machine.cost(step, work, parse("sparsity(W=2:4)", step)).events
    assert half["mac"] == layer().ops[0].macs / 2


def test_arrays_that_look_at_zeros_see_the_mask():
    dense = cycles(TensorDash(), "sparsity(W=0.0)")
    found = cycles(TensorDash(), "sparsity(W=2:4)")
    assert dense[0] / 2 <= found[0] < dense[0]
    assert found[2] == dense[2]
    assert cycles(Systolic(rows=16, columns=16), "sparsity(W=2:4)") == cycles(Systolic(rows=16, columns=16), None)


def test_masks_of_the_step_have_the_structure_and_uneven_weights_stay_whole():
    step = layer()
    masks = parse("sparsity(W=2:4,seed=3)", step)
    bits = masks.bits(("fc", 0, "W"))
    assert bits.shape == (128, 256)
    assert (bits.reshape(-1, 4).sum(-1) == 2).all()
    assert masks.density(("fc", 0, "W")) == 0.5
    odd = layer(wide=255)
    whole = parse("sparsity(W=2:4)", odd)
    assert whole.bits(("fc", 0, "W")).all()
    assert whole.structure(("fc", 0, "W"), Phase.FORWARD) is None
    assert masks.digest != parse("sparsity(W=2:4,seed=4)", step).digest
    assert np.array_equal(bits, parse("sparsity(W=2:4,seed=3)", step).bits(("fc", 0, "W")))


@pytest.mark.parametrize("text", ["sparsity(A=2:4)", "sparsity(W=2:x)", "sparsity(W=5:4)", "sparsity(W=2:4,W=0.5)"])
def test_other_structures_are_refused(text):
    with pytest.raises(BadInput):
        parse(text, layer())


def test_a_tensor_core_without_such_multipliers_refuses_the_operand():
    with pytest.raises(NotModelled, match="structured=True"):
        TensorCore(structured=False).cost(MatMul(8, 8, 8), b=TWO_FOUR)
    assert 2 * TensorCore().cost(MatMul(64, 64, 512), a=TWO_FOUR).cycles == TensorCore().cost(MatMul(64, 64, 512)).cycles


def test_gpus_gain_in_matrix_products_on_sparse_tensor_cores():
    def time(machine, masks):
        return ty.run("bert-tiny", machine, masks=masks, batch=64).time_s

    masks = "sparsity(W=2:4)", "sparsity(W=2:4,transposable=true)"
    for board in ("a100", "h200"):
        name = f"{board}(precision=bf16,graphs=true)"
        assert time(name, None) >= time(name, masks[0]) >= time(name, masks[1])
        assert time(name, None) > time(name, masks[1])
    assert time("v100(precision=fp16,graphs=true)", masks[1]) == time("v100(precision=fp16,graphs=true)", None)
    assert time("h200(precision=fp32,graphs=true)", masks[1]) == time("h200(precision=fp32,graphs=true)", None)


def test_fp8_is_faster_where_there_are_cores_for_it_and_refused_where_not():
    def time(precision):
        return ty.run("bert-base", f"h200(precision={precision},graphs=true)", batch=32).time_s

    assert time("fp8") < time("bf16") < time("fp32")
    with pytest.raises(NotModelled, match="no fp8 tensor cores"):
        ty.run("bert-tiny", "a100(precision=fp8)")


def test_rates_by_element_type():
    def result(**fields):
        return ty.run("bert-tiny", "npu", **fields)

    one, two = result(precision="fp8"), result(precision="fp8", rates={"fp8": 2})
    assert one.array_cycles / 2 <= two.array_cycles < 0.9 * one.array_cycles  # filling a systolic array takes its time all the same
    assert two.time_s <= one.time_s
    assert sum(two.columns.energy["mac"]) == pytest.approx(sum(one.columns.energy["mac"]), rel=0.01)  # an odd K is padded
    assert result(precision="bf16", rates={"fp8": 2}).time_s == result(precision="bf16").time_s
    assert two.peaks.macs_per_s == 2 * one.peaks.macs_per_s
    mixed = result(precision={"parameter": "fp8_e4m3", "gradient": "fp8_e5m2"}, rates={"fp8": 2})
    plain = result(precision={"parameter": "fp8_e4m3", "gradient": "fp8_e5m2"})
    forward = [n for n, phase in enumerate(mixed.rows.phase) if phase == "forward" and mixed.columns.macs[n]]
    assert [mixed.columns.time_ps[n] for n in forward] == [plain.columns.time_ps[n] for n in forward]  # fp32 activations
    assert mixed.array_cycles < plain.array_cycles  # dX: e5m2 times e4m3


def test_what_rates_do_not_go_with_is_refused():
    with pytest.raises(UnknownName, match="bf16"):
        device(Systolic(rows=8, columns=8), rates={"bf17": 2})
    with pytest.raises(BadInput, match="whole number"):
        device(Systolic(rows=8, columns=8), rates={"bf16": 1.5})
    with pytest.raises(BadInput, match="not modelled"):
        device(Systolic(rows=8, columns=8), rates={"bf16": 2}, order="interleaved")
    with pytest.raises(NotModelled, match="no masks"):
        ty.run("bert-tiny", "tensordash(order=sequential)", precision="fp8", rates={"fp8": 2}, masks="sparsity(A=0.5)")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8_e4m3"])
def test_narrower_numbers_never_cost_time_or_energy(precision):
    order = ["fp32", "bf16", "fp8_e4m3"]
    wider = order[max(0, order.index(precision) - 1)]
    narrow, wide = (ty.run("bert-tiny", "npu", precision=one) for one in (precision, wider))
    assert narrow.time_s <= wide.time_s
    assert narrow.energy_j <= wide.energy_j


@pytest.mark.parametrize("left", [True, False])
def test_a_structured_weight_on_either_side_moves_values_and_places(left):
    weight, maps = TensorSpec((64, 32), role=Role.PARAMETER), TensorSpec((16, 32))
    body, inputs, letters = (MatMul(64, 16, 32), (0, 1), ("W", "A")) if left else (MatMul(16, 64, 32), (1, 0), ("A", "W"))
    op = Op(body=body, name="mm", layer="fc", inputs=inputs, outputs=(2,), letters=letters)
    step = Step("layer", 16, (op,), (weight, maps, TensorSpec((64, 16) if left else (16, 64))))
    machine = device(TensorCore())
    (work,) = machine.works(step)
    moved = machine.cost(step, work, parse("sparsity(W=2:4)", step)).bytes
    kept = 64 * 32 // 2
    assert (moved["W", "read"], moved["X", "read"]) == (kept * 4 + kept * 2 // 8, 16 * 32 * 4)
