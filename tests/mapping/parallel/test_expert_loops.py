"""A loop over experts as grouped products: the same work, in a valid order, spread over devices as a grouped mixture is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.ir import (
    Collective,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Routing,
    Step,
    TensorSpec,
    Update,
)
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.expert_loops import _body, _Different, _hazards, _joined, _Merger, regrouped
from trainyard.mapping.parallel.experts import ExpertParallel, rows_at, spread

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


def test_products_of_experts_are_one_with_all_their_rows() -> None:
    """Rows along M, along N where the weights stand first, along K in dW."""
    rows, slopes = (4, 6, 8), (1, 2, 3)
    axes: list[tuple[str, Phase, Any]] = [
        ("M", Phase.FORWARD, ("A", "W")),
        ("N", Phase.FORWARD, ("W", "A")),
        ("M", Phase.GRAD_INPUT, ("G", "W")),
        ("K", Phase.GRAD_WEIGHT, ("G", "A")),
    ]
    for axis, phase, letters in axes:
        ops = [
            Op(
                body=MatMul(**{"M": 5, "N": 5, "K": 5} | {axis: count}), phase=phase, letters=letters,
                slope=tuple(by * (name == axis) for name in ("M", "N", "K", "count")),
            )
            for count, by in zip(rows, slopes, strict=True)
        ]  # fmt: skip
        body, slope, routing = _body(ops)
        assert body == MatMul(**{"M": 5, "N": 5, "K": 5} | {axis: 18})
        assert slope == tuple(6 * (name == axis) for name in ("M", "N", "K", "count"))
        assert routing == Routing(axis, 18, 3, 6)  # type: ignore[arg-type]


def test_other_ops_of_experts_add_up() -> None:
    bodies: list[tuple[list[Any], Any]] = [
        ([ElementWise("relu", 4), ElementWise("relu", 6)], ElementWise("relu", 10)),
        ([Copy("clone", 4), Copy("clone", 6)], Copy("clone", 10)),
        ([Update("sgd", 4, 2), Update("sgd", 6, 2)], Update("sgd", 10, 2)),
        ([Reduction("sum", 12, 3), Reduction("sum", 24, 3)], Reduction("sum", 36, 6)),
    ]
    for parts, whole in bodies:
        assert _body([Op(body=body) for body in parts]) == (whole, (), None)
    grown = [Op(body=Reduction("sum", 12, 3), slope=(4, 1, 0)), Op(body=Reduction("sum", 24, 3), slope=(5, 2, 0))]
    assert _body(grown)[1] == (9, 3, 0)


# fmt: off
DIFFERENT: dict[str, list[Op]] = {
    "other features":        [Op(body=MatMul(4, 5, 6), letters=("A", "W")), Op(body=MatMul(4, 5, 7), letters=("A", "W"))],
    "no weights":            [Op(body=MatMul(4, 5, 6), letters=("A", "A"))] * 2,
    "a batch of products":   [Op(body=MatMul(4, 5, 6, 2), letters=("A", "W"))] * 2,
    "lookups":               [Op(body=Gather(4, 5, 6))] * 2,
}
# fmt: on


@pytest.mark.parametrize("what", DIFFERENT)
def test_ops_that_cannot_be_one_product_are_not_merged(what: str) -> None:
    with pytest.raises(_Different):
        _body(DIFFERENT[what])


def test_an_op_follows_what_it_reads_and_whoever_used_what_it_writes_over() -> None:
    """x -> y; y -> z; x is written over; z is written again."""
    size = TensorSpec((4,))
    reads_writes = [((0,), (1,)), ((1,), (2,)), ((3,), (0,)), ((3,), (2,))]
    ops = tuple(Op(body=ElementWise("add", 4), inputs=inputs, outputs=outputs) for inputs, outputs in reads_writes)
    assert list(_hazards(Step(name="hazards", batch=1, ops=ops, tensors=(size,) * 4))) == [set(), {0}, {0}, {1}]


def test_a_tensor_that_all_experts_read_stays_one_and_those_of_each_are_joined_once() -> None:
    """Negative numbers are merged tensors: -1 - n. A view of a joined memory is a view of the whole."""
    own = [TensorSpec((4, 6)), TensorSpec((4, 6)), TensorSpec((2, 6), view_of=0), TensorSpec((2, 6), view_of=1), TensorSpec((6,))]
    merger = _Merger(Step(name="two", batch=1, ops=(), tensors=tuple(own)), [])
    assert merger._tensor((4, 4)) == 4
    assert merger._tensor((2, 3)) == -2
    assert merger._tensor((0, 1)) == -1
    assert merger._tensor((2, 3)) == -2
    assert merger.specs == [TensorSpec((2, 4, 6)), TensorSpec((2, 2, 6), view_of=0)]
    assert merger.slice_of == {0: 0, 1: 0}
    with pytest.raises(_Different):
        merger._tensor((0, 2))  # slices of one memory


@pytest.mark.parametrize("ranks", [2, 8])
def test_gradients_of_biases_are_summed_where_their_experts_are(ranks: int) -> None:
    """Over the rows that the device received, into the biases of its own experts."""
    one = spread(STEP, 8, ExpertParallel(ranks=ranks, imbalance=1.5))
    rows = rows_at(1.5, LENGTH * TOP, EXPERTS // ranks)
    sums = [op for op in one.ops if isinstance(op.body, Reduction) and op.layer.startswith("experts") and op.body.function == "sum"]
    assert [op.body for op in sums] == [Reduction("sum", rows * wide, EXPERTS // ranks * wide) for wide in (WIDTH, HIDDEN)]
    for op in sums:
        assert one.tensors[op.inputs[0]].shape[0] == rows
        assert one.tensors[op.outputs[0]].elements == op.body.results  # type: ignore[union-attr]
    assert len(exchanges(one, "all_to_all")) == 4


@pytest.mark.parametrize("ranks", [2, 8])
def test_norms_inside_of_experts_are_kept_and_updated_with_their_experts(ranks: int) -> None:
    """Their gradients are summed over the replicas of the experts, as those of all their weights."""
    step = captured(activation=lambda: nn.LayerNorm(HIDDEN))
    one = spread(step, 8, ExpertParallel(ranks=ranks))
    experts = EXPERTS * (2 * WIDTH * HIDDEN + WIDTH + HIDDEN + 2 * HIDDEN)
    assert one.parameters == step.parameters - experts + experts // ranks
    for role, copies in ((Role.PARAMETER_GRADIENT, 1), (Role.STATE, 2)):
        kept, whole = (
            sum(spec.elements for spec in of.tensors if spec.view_of is None and spec.role is role) for of in (one, step)
        )
        assert whole - kept == copies * (experts - experts // ranks)
    sums = exchanges(one, "all_reduce")
    assert sum(body.elements for body in sums if body.group == "world") == step.parameters - experts
    assert sum(body.elements for body in sums if body.group != "world") == (experts // ranks if ranks < 8 else 0)
    assert [body.elements for body in exchanges(one, "all_to_all")] == [LENGTH * TOP * WIDTH] * 4
