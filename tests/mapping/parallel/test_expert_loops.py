"""A loop over experts as grouped products: the same work, in a valid order, spread over devices as a grouped mixture is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.ir import Collective, MatMul, Phase, Role, Step, TensorSpec
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.expert_loops import _Different, _joined, regrouped
from trainyard.mapping.parallel.experts import ExpertParallel, spread

EXPERTS, WIDTH, HIDDEN, TOP, LENGTH = 8, 16, 24, 2, 12


class Loop(nn.Module):
    """Every expert multiplies the tokens that chose it, one expert after the other."""

    def __init__(self, name: str = "experts", activation: type[nn.Module] = nn.ReLU, shared: int = 0) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.name = name
        setattr(self, name, nn.ModuleList(self._expert(activation) for _ in range(EXPERTS)))
        self.shared_experts = nn.ModuleList(self._expert(activation) for _ in range(shared))

    def _expert(self, activation: type[nn.Module]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, HIDDEN), activation(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x).reshape(-1, WIDTH)
        weights, chosen = self.gate(tokens).softmax(-1).topk(TOP)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(getattr(self, self.name)):
            rows, place = torch.where(chosen == number)
            out[rows] += weights[rows, place, None] * expert(tokens[rows])
        for expert in self.shared_experts:
            out = out + expert(tokens)
        return out


def captured(batch: int = 8, **options: Any) -> Step:
    model = Loop(**options)
    inputs = torch.empty(batch, LENGTH, WIDTH)
    return ty.capture(model, inputs, loss=torch.sum, optimizer=torch.optim.AdamW(model.parameters()))


STEP = captured()


def exchanges(step: Step, kind: str) -> list[Collective]:
    return [op.body for op in step.ops if isinstance(op.body, Collective) and op.body.kind == kind]


def test_a_loop_is_the_same_work_in_products_of_all_experts() -> None:
    whole = regrouped(STEP)
    assert (whole.macs, whole.parameters, whole.resident_bytes) == (STEP.macs, STEP.parameters, STEP.resident_bytes)
    routed = [op for op in whole.ops if op.routing is not None]
    rows = 8 * LENGTH * TOP
    assert sum(op.macs for op in routed) == 3 * 2 * rows * WIDTH * HIDDEN
    assert next(op.body for op in routed) == MatMul(rows // EXPERTS, HIDDEN, WIDTH, EXPERTS)
    updated = sum(op.body.elements for op in whole.ops if op.phase is Phase.UPDATE and hasattr(op.body, "elements"))
    assert updated == STEP.parameters


def test_merged_ops_come_after_what_they_read_and_before_what_reads_them() -> None:
    """Every memory that is no constant of the step is written before it is read."""
    whole = regrouped(STEP)
    written: set[int] = set()
    made = {whole.base(t) for op in whole.ops for t in op.outputs if not whole.tensors[whole.base(t)].role.resident}
    for op in whole.ops:
        read = {whole.base(t) for t in op.inputs} & made
        assert read <= written | {whole.base(t) for t in op.outputs}, op
        written |= {whole.base(t) for t in op.outputs}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_loop_is_spread_as_grouped_products_are(ranks: int) -> None:
    one = spread(STEP, 8, ExpertParallel(ranks=ranks))
    experts = EXPERTS * (2 * WIDTH * HIDDEN + WIDTH + HIDDEN)
    assert [body.elements for body in exchanges(one, "all_to_all")] == [LENGTH * TOP * WIDTH] * 4
    assert one.macs == parallel.data(STEP, 8).macs
    assert one.parameters == STEP.parameters - experts + experts // ranks
    others = sum(body.elements for body in exchanges(one, "all_reduce") if body.group == "world")
    assert others == STEP.parameters - experts
    assert ty.run(STEP, f"mcdla-b(overlay=off,parallel=expert,experts.ranks={ranks})").macs == STEP.macs


def test_a_regrouped_step_rebatches_as_the_loop_does() -> None:
    assert regrouped(STEP).rebatch(16).macs == STEP.rebatch(16).macs == regrouped(STEP.rebatch(16)).macs


def test_shared_experts_stay_with_every_device() -> None:
    step = captured(shared=2)
    one = spread(step, 8)
    own = 2 * (2 * WIDTH * HIDDEN + WIDTH + HIDDEN)
    assert len(exchanges(one, "all_to_all")) == 4
    assert sum(body.elements for body in exchanges(one, "all_reduce")) == step.parameters - EXPERTS * own // 2


def test_what_is_no_loop_over_experts_stays_as_it_is() -> None:
    step = captured(name="branches")
    assert regrouped(step) is step
    with pytest.raises(BadInput, match=r"or modules experts\.0"):
        spread(step, 8)
    plain = ty.zoo.load("bert-tiny")
    assert regrouped(plain) is plain


def test_weights_of_experts_are_stacked_and_their_rows_put_behind_one_another() -> None:
    weights = [TensorSpec((24, 16), role=Role.PARAMETER, name=f"experts.{number}.up.weight") for number in range(3)]
    assert _joined(weights) == TensorSpec((3, 24, 16), role=Role.PARAMETER, name="experts.up.weight")
    rows = [TensorSpec((24, 5 + number), slope=(0, 2 + number)) for number in range(3)]
    assert _joined(rows) == TensorSpec((24, 18), slope=(0, 9))


# fmt: off
UNLIKE = {
    "two shapes":          [TensorSpec((24, 16)), TensorSpec((24, 16)), TensorSpec((12, 16))],
    "two types":           [TensorSpec((24, 16)), TensorSpec((24, 16), "fp16")],
    "two ranks":           [TensorSpec((24, 16)), TensorSpec((24, 16, 1))],
    "other features":      [TensorSpec((5, 16), slope=(2, 0)), TensorSpec((5, 12), slope=(2, 0))],
    "one does not grow":   [TensorSpec((5, 16), slope=(2, 0)), TensorSpec((5, 16))],
    "another axis grows":  [TensorSpec((5, 5), slope=(2, 0)), TensorSpec((5, 5), slope=(0, 2))],
}
# fmt: on


@pytest.mark.parametrize("what", UNLIKE)
def test_tensors_of_experts_that_differ_are_not_joined(what: str) -> None:
    with pytest.raises(_Different):
        _joined(UNLIKE[what])
