"""One line that says what, where and what to write instead."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import ElementWise, MatMul
from trainyard.workloads.capture import Piece, capture, register
from trainyard.workloads.capture.ops.registry import USERS


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body = nn.Linear(6, 1), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        if self.gate(x).mean() > -1e9:
            x = self.body(x)
        return x[x[:, 0].abs() < 1e9]


def test_control_flow_on_data_says_so_and_offers_values() -> None:
    model, x = Decides(), torch.randn(4, 6)
    with pytest.raises(CaptureError, match=r"reads a value.*real=True") as caught:
        capture(model, x, loss=lambda y: y.sum())
    assert "\n" not in str(caught.value)
    step = capture(model, x, loss=lambda y: y.sum(), real=True)
    assert [op.layer for op in step if op.is_product][:3] == ["body", "gate", "body"]
    assert "with values" in step.source


def test_a_branch_on_a_logged_loss_names_its_line_and_both_ways_out() -> None:
    model = nn.Linear(4, 1)

    def train_step(batch: int) -> None:
        loss = model(torch.randn(batch, 4)).mean()
        loss.backward()
        if loss.item() > 1e9:
            model(torch.randn(batch, 4)).mean().backward()

    with pytest.raises(CaptureError, match="decides by it") as caught:
        capture(train_step, model=model, batch=2)
    line = re.search(r"test_errors\.py:\d+", str(caught.value))
    assert line is not None
    assert "`if loss.item() > 1e9:`" in str(caught.value)
    assert "real=True" in str(caught.value)
    assert capture(train_step, model=model, batch=2, real=True).macs == 2 * 2 * 4
    for answer, passes in ((False, 1), (True, 2)):
        assert capture(train_step, model=model, batch=2, values={line.group(): answer}).macs == passes * 2 * 2 * 4


def test_a_guard_against_a_diverging_loss_passes_with_a_note() -> None:
    model = nn.Linear(4, 1)

    def train_step(batch: int) -> None:
        loss = model(torch.randn(batch, 4)).mean()
        loss.backward()
        if loss.item() > 10 or not math.isfinite(loss.item()):
            raise RuntimeError("diverged")
        assert loss < 5
        if not torch.isfinite(loss).all():
            raise RuntimeError("not finite")

    step = capture(train_step, model=model, batch=2)
    assert step.macs == 2 * 2 * 4
    assert any("the check is taken as passed" in note for note in step.notes)


class Branches(nn.Module):
    """Branches that change the step without calling anything, which no check may be mistaken for."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.kept = nn.Linear(4, 4), kind, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = z = self.layer(x)
        if self.kind == "computes" and y.mean() > 0:
            z = y * 2
        if self.kind == "in place" and y.mean().item() > 0:
            z += 1
        if self.kind == "selects" and y.mean() > 0:
            z = x
        if self.kind == "keeps" and y.mean() > 0:
            self.kept.append(y)
        if self.kind == "parameter" and y.mean() > 0:
            z = self.layer.weight
        return z


@pytest.mark.parametrize("kind", ["computes", "in place", "selects", "keeps", "parameter"])
def test_a_branch_that_changes_the_step_is_no_check(kind: str) -> None:
    with pytest.raises(CaptureError, match=r"test_errors\.py:\d+: `if self\.kind"):
        capture(Branches(kind), torch.randn(4, 4), loss=torch.sum)


@torch.library.custom_op("trainyard_tests::swirl", mutates_args=())
def swirl(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@swirl.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


swirl.register_autograd(
    lambda ctx, g: (None, ctx.saved_tensors[0].t() @ g), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class Swirls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swirl(x, self.weight)


def test_an_unknown_op_is_named_and_can_be_taught() -> None:
    model = nn.Sequential(nn.Identity(), Swirls())
    name = "trainyard_tests.swirl.default"
    with pytest.raises(CaptureError, match=name) as caught:
        capture(model, torch.randn(4, 6), loss=lambda y: y.sum())
    message = str(caught.value)
    assert "layer '1'" in message
    assert "(4, 6), (6, 3)" in message
    assert f'register("{name}"' in message
    register(name, lambda call: Piece(MatMul(call.inputs[0].shape[0], call.inputs[1].shape[1], call.inputs[0].shape[1])))
    try:
        step = capture(model, torch.randn(4, 6), loss=lambda y: y.sum())
    finally:
        del USERS.handlers[name]
    assert step.macs == 2 * 4 * 6 * 3
    assert [op.letters for op in step if op.is_product] == [("A", "W"), ("A", "G")]


def test_a_users_handler_comes_before_ours() -> None:
    register("aten.relu", lambda call: ElementWise("rectify", call.outputs[0].numel(), operations=7))
    try:
        step = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), loss=lambda y: y.sum())
    finally:
        del USERS.handlers["aten.relu"]
    assert ElementWise("rectify", 8, 7) in [op.body for op in step]


def test_bad_registrations_raise() -> None:
    with pytest.raises(BadInput, match=r"namespace\.op"):
        register("relu", lambda call: ElementWise("relu", 1))
    with pytest.raises(BadInput, match="callable"):
        register("aten.relu", 3)  # type: ignore[arg-type]


def test_wrong_shapes_name_the_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(CaptureError, match=r"layer '1', aten.addmm") as caught:
        capture(model, torch.randn(2, 4), loss=lambda y: y.sum())
    assert "\n" not in str(caught.value)


X = torch.randn(2, 4)
FOREIGN = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
# fmt: off
BAD_ARGUMENTS = [
    ({"inputs": X},                                              "give loss="),
    ({"inputs": X, "loss": lambda y: y.sum(0)},                  "one number to minimise"),
    ({"inputs": X, "loss": lambda y: y.detach().sum()},          "nothing to train"),
    ({"inputs": X, "loss": torch.sum, "batch": 0},               "positive whole number"),
    ({"inputs": X, "loss": torch.sum, "optimizer": "adam"},      "must be a torch optimizer"),
    ({"inputs": X, "loss": torch.sum, "optimizer": FOREIGN},     "no parameter of this model"),
    ({"inputs": 3, "loss": torch.sum},                           "no tensor with a batch dimension"),
    ({},                                                         "needs a model with inputs"),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_of_capture_raise(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((BadInput, CaptureError), match=message):
        capture(nn.Linear(4, 3), **arguments)  # type: ignore[arg-type]


def test_training_steps_that_cannot_be_captured_raise() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(BadInput, match="model="):
        capture(lambda: None)
    with pytest.raises(BadInput, match="give batch="):
        capture(lambda n: None, model=model)
    with pytest.raises(BadInput, match="takes x, y"):
        capture(lambda x, y: None, model=model)
    with pytest.raises(CaptureError, match="ran no op"):
        capture(lambda: None, model=model)
    with pytest.raises(CaptureError, match="run the model once"):
        capture(nn.LazyLinear(3), torch.randn(2, 4), loss=torch.sum)


def test_a_model_that_returns_its_own_loss_needs_none() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
            logits = self.layer(tokens) * scale
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    step = capture(Keyword(), {"tokens": torch.randn(5, 4), "labels": torch.randint(0, 3, (5,)), "scale": 0.5})
    assert step.macs == 2 * 5 * 12
    assert {t.name for t in step.tensors if t.role == "input"} == {"input.tokens", "input.labels"}
    assert step.rebatch(7).macs == 2 * 7 * 12


def test_sparse_gradients_are_refused_with_the_way_out() -> None:
    for table in (nn.Embedding(9, 4, sparse=True), nn.EmbeddingBag(9, 4, sparse=True)):
        with pytest.raises(CaptureError, match="sparse=False"):
            capture(nn.Sequential(table), torch.zeros(3, 2, dtype=torch.long), loss=torch.sum)


def test_integer_inputs_keep_their_values_if_the_model_reads_them() -> None:
    """A mask that is all ones is dropped by many models; its values are there, only the model's are not."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)
            self.register_buffer("places", torch.arange(5))

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            places = self.places.to(tokens.device).type_as(mask)
            x = self.layer(self.words(tokens.to(self.words.weight.device)) + self.words(places))
            mask = mask.to(x.device, torch.bool)
            return x if mask.all() else x * mask[..., None]

    tokens = torch.zeros(3, 5, dtype=torch.long)
    names = []
    for mask in (torch.ones(3, 5, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)):
        step = capture(Masked(), (tokens, mask), loss=torch.sum)
        names.append([op.name for op in step.of("")])
        assert "on meta" in step.source
        assert step.rebatchable
        gather = next(op for op in step if op.name == "embedding")
        assert step.tensors[gather.inputs[1]].name == "input.0"
        assert not any(op.phase == "copy" for op in step)
    assert "mul" not in names[0]
    assert "mul" in names[1]


def test_an_example_without_samples_raises() -> None:
    with pytest.raises(BadInput, match="hold no sample"):
        capture(nn.Linear(4, 2), torch.randn(0, 4), loss=lambda output: output.sum())
