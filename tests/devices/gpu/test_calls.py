"""Composite calls of torch on a GPU in steps of the zoo, against the calls that the profiler of torch shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.devices.gpu.calls import Call, calls_of
from trainyard.ir import ElementWise, MatMul, Op, Phase, Step, TensorSpec
from trainyard.ir.attention import MATH_SOFTMAX, OPEN_SOFTMAX
from trainyard.machines.presets.gpus import H200
from trainyard.workloads import zoo

QUEUED = replace(H200, graphs=True)


def kinds_of_calls(step: Step) -> Counter[str]:
    return Counter(call.kind for call in calls_of(step, "none"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("bert-base", {"attention": 24, "dropout": 25}),
        ("gpt2-small", {"attention": 24, "dropout": 25}),
        ("t5-small", {"rms_norm": 64, "dropout": 64}),
        ("lstm-1024", {"recurrent": 2}),
        ("gnmt", {"recurrent": 14, "cell": 102, "dropout": 8}),
        ("resnet50", {}),
    ],
)
def test_composite_calls_of_zoo_models(model: str, expected: dict[str, int]) -> None:
    step = zoo.load(model)
    assert {kind: count for kind, count in kinds_of_calls(step).items() if kind != "op"} == expected
    calls = calls_of(step, "none")
    assert sorted(index for call in calls for index in call.ops) == list(range(len(step)))


@pytest.mark.parametrize("model", ["bert-base", "t5-small", "gnmt", "lstm-1024"])
def test_calls_come_after_those_they_depend_on(model: str) -> None:
    step = zoo.load(model)
    done: set[int] = set()
    for call in calls_of(step, "none"):
        inside = set(call.ops)
        for index in call.ops:
            assert all(before in done or before in inside for before in step.dependencies[index])
        done |= inside


def attentions(model: str) -> list[Call]:
    return [call for call in calls_of(zoo.load(model), "none") if call.kind == "attention"]


def test_attention_calls_are_causal_and_have_dropout_as_in_the_model() -> None:
    assert {(call.causal, call.dropout) for call in attentions("gpt2-small")} == {(True, True)}
    assert {(call.causal, call.dropout) for call in attentions("bert-base")} == {(False, True)}


def test_fused_attention_moves_q_k_v_and_the_output_only() -> None:
    step = zoo.load("gpt2-small", batch=8)
    forward, *_ = attentions("gpt2-small")
    cost = QUEUED.cost(step, next(work for work in QUEUED.works(step) if work.ops == forward.ops))
    tensor_bytes = 8 * 12 * 1024 * 64 * 4  # bytes of Q, of K, of V, of the output
    assert sum(cost.bytes.values()) == 4 * tensor_bytes + 8 * 12 * 1024 * 4  # and the logarithm of each row's sum
    assert cost.events["mac"] == 8 * 12 * 1024 * 1024 * 64  # two products, half of each


def test_a_gpu_fuses_an_attention_whose_kernel_is_open_and_not_torchs_unfused_path() -> None:
    step = zoo.load("bert-tiny", batch=8)
    unfused = replace(step, ops=tuple(replace(op, name=MATH_SOFTMAX) if op.name == OPEN_SOFTMAX else op for op in step.ops))
    assert kinds_of_calls(step)["attention"] == 4
    assert kinds_of_calls(unfused)["attention"] == 0


def test_attention_of_separate_ops_is_no_attention_call() -> None:
    assert "attention" not in kinds_of_calls(zoo.load("t5-small"))


def gates(names: tuple[str, ...]) -> Step:
    product = MatMul(32, 256, 64)
    ops = [Op(body=product, name="addmm", layer="rnn", inputs=(0, 1), outputs=(2,))]
    ops += [Op(body=ElementWise("sigmoid", 8192), name=name, layer="rnn", inputs=(2,), outputs=(3,)) for name in names]
    return Step("cell", 1, tuple(ops), tuple(TensorSpec(shape) for shape in ((32, 64), (64, 256), (32, 256), (32, 256))))


def test_only_gates_computed_in_place_are_a_cell() -> None:
    assert kinds_of_calls(gates(("sigmoid_", "sigmoid_")))["cell"] == 1
    assert kinds_of_calls(gates(("sigmoid", "sigmoid")))["cell"] == 0


def test_a_recurrent_layer_is_one_call_faster_than_its_ops() -> None:
    short, long = (zoo.load("lstm-1024", batch=batch) for batch in (1, 64))
    works = {batch: [work for work in QUEUED.works(step) if len(work.ops) > 100] for batch, step in ((1, short), (64, long))}
    assert [len(own) for own in works.values()] == [2, 2]
    forward = QUEUED.cost(long, works[64][0])
    assert forward.events["mac"] == sum(long.ops[index].macs for index in works[64][0].ops)
    steps = sum(long.ops[index].is_product for index in works[64][0].ops) // 2
    floor = steps * 2 * (H200.ramp_s + H200.gap_s)
    assert forward.cycles / H200.clock_hz > floor
    separate = sum(QUEUED.cost(long, replace(works[64][0], ops=(index,), grouping="single")).cycles for index in works[64][0].ops)
    assert forward.cycles < 0.5 * separate


def test_dropout_writes_a_mask_of_one_byte_per_element() -> None:
    step = zoo.load("vgg16", batch=8)
    work = next(work for work in QUEUED.works(step) if len(work.ops) == 3)
    elements = step.tensors[step.ops[work.ops[-1]].outputs[0]].elements
    assert QUEUED.cost(step, work).events["dram_write"] == 5 * elements


def test_a_dropout_does_not_span_two_phases() -> None:
    specs = tuple(TensorSpec((64,)) for _ in range(4))
    order = [(Phase.FORWARD, "bernoulli"), (Phase.FORWARD, "div"), *((Phase.UPDATE, name) for name in ("bernoulli", "div", "mul"))]
    ops = tuple(
        Op(body=ElementWise(name, 64), name=name, layer="drop", phase=phase, inputs=(0,), outputs=(1,)) for phase, name in order
    )
    calls = calls_of(Step("two phases", 1, ops, specs), "none")
    assert [call.ops for call in calls] == [(0,), (1,), (2, 3, 4)]


class WrittenOutNorm(nn.Module):
    """An RMS norm as language models write it: in fp32, op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Gated(nn.Module):
    """Products with a sigmoid among them that is no gate of a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.mix = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (16 * torch.sigmoid(self.bias @ self.mix))


@pytest.mark.parametrize("layer", [WrittenOutNorm, Gated])
def test_a_norm_or_a_gate_that_a_model_writes_out_runs_op_by_op_in_both_directions(layer: type[nn.Module]) -> None:
    step = ty.capture(nn.Sequential(nn.Linear(16, 16), layer(), nn.Linear(16, 16)), torch.randn(4, 16), loss=lambda y: y.sum())
    assert {call.kind for call in calls_of(step, "none")} == {"op"}


def test_the_norm_of_torch_is_one_call_in_each_direction() -> None:
    step = ty.capture(nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16)), torch.randn(4, 16), loss=lambda y: y.sum())
    norms = [call for call in calls_of(step, "none") if call.kind == "rms_norm"]
    assert [step.ops[call.ops[0]].phase.backward for call in norms] == [False, True]
