"""Mixtures of experts: grouped products forward and back, in any element type, at any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.mapping.parallel import mixtures
from tests.mapping.parallel.mixtures import EXPERTS, HIDDEN, TOP, WIDTH, Sizes

import trainyard as ty
from trainyard.ir import MatMul, Phase, Step


def captured(batch: int, length: int, dtype: torch.dtype = torch.float32) -> Step:
    return mixtures.captured(batch, Sizes(length=length), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [12, 7, 1], ids=["even", "uneven", "fewer rows than experts"])
def test_experts_multiply_the_tokens_that_chose_them_and_no_others(length: int, dtype: torch.dtype) -> None:
    step = captured(2, length, dtype)
    rows = 2 * length * TOP
    products = [op for op in step.ops if op.routing is not None]
    for phase in (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT):
        assert sum(op.macs for op in products if op.phase is phase) == rows * 3 * WIDTH * HIDDEN
    for op in products:
        assert isinstance(op.body, MatMul)
        assert op.routing is not None
        assert op.routing.groups == EXPERTS
        reduced = op.body.K if op.phase is Phase.GRAD_WEIGHT else op.body.M
        assert reduced in (rows // EXPERTS, -(-rows // EXPERTS))
        letters = {Phase.FORWARD: ("A", "W"), Phase.GRAD_INPUT: ("G", "W"), Phase.GRAD_WEIGHT: ("A", "G")}[op.phase]
        assert op.letters == letters


@pytest.mark.parametrize("length", [12, 7])
def test_a_rebatched_mixture_is_the_one_captured_at_that_batch(length: int) -> None:
    at_two, at_five = captured(2, length), captured(5, length)
    assert at_two.rebatchable
    rebatched = at_two.rebatch(5)
    assert (rebatched.ops, rebatched.tensors) == (at_five.ops, at_five.tensors)


def test_a_note_states_the_routing() -> None:
    assert any("evenly" in note for note in captured(2, 7).notes)


@pytest.mark.parametrize("machine", ["npu", "tpu", "sigma", "tensordash", "h200", "mcdla-b(overlay=off)"])
def test_every_kind_of_machine_runs_an_uneven_mixture(machine: str) -> None:
    step = captured(8, 7)
    result = ty.run(step, machine)
    assert result.macs == step.macs
    assert result.time_s > 0


def test_an_array_reads_the_matrix_of_every_expert_once() -> None:
    step = captured(8, 16)
    up = next(op for op in step.ops if op.routing is not None)
    assert up.body == MatMul(8 * 16 * TOP // EXPERTS, 2 * HIDDEN, WIDTH, EXPERTS)
    alone = replace(step, ops=(up,))
    rows, weights, results = (step.tensors[t].bytes for t in (*up.inputs, *up.outputs))
    assert ty.run(alone, "npu(precision=fp32)").traffic_bytes["dram"] == rows + weights + results
