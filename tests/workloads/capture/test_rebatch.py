"""Dimensions are affine in the batch: two captures predict a third."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainyard.errors import BadInput
from trainyard.ir import Phase, Step
from trainyard.workloads import zoo
from trainyard.workloads.capture import capture, capture_recipe


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + x)


def resnet() -> nn.Sequential:
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def captured(model: nn.Module, batch: int) -> Step:
    x, y = torch.empty(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long)
    return capture(model, x, y, loss=F.cross_entropy, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def assert_same(one: Step, other: Step) -> None:
    assert one.batch == other.batch
    assert one.ops == other.ops
    assert one.tensors == other.tensors
    assert one.digest == other.digest  # where a step came from is no part of it


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_two_captures_predict_a_third(batch: int) -> None:
    model = resnet()
    assert_same(captured(model, 3).rebatch(batch), captured(model, batch))


@pytest.mark.parametrize(
    "name", ["resnet18", "bert-tiny", "mobilenet", "lstm-1", pytest.param("snli", marks=pytest.mark.slow), "dlrm", "squeezenet"]
)
def test_zoo_models_rebatch(name: str) -> None:
    recipe = zoo.build(name)
    assert_same(capture_recipe(recipe, name, 4).rebatch(7), capture_recipe(recipe, name, 7))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_every_zoo_model_is_captured_and_rebatches(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    recipe, batch = zoo.build(name), zoo.entry(name).batch
    step = capture_recipe(recipe, name, batch)
    assert step.parameters == zoo.entry(name).parameters
    assert_same(step.rebatch(batch + 3), capture_recipe(recipe, name, batch + 3))
    with torch.device("meta"):
        model, inputs, targets = recipe.model(), recipe.inputs(batch), recipe.targets(batch)
        products = {torch.ops.aten._grouped_mm: lambda a, b, *rest, **options: 2 * a[-2] * a[-1] * b[-1]}
        with FlopCounterMode(display=False, custom_mapping=products) as counter:
            recipe.loss(model(*inputs), *targets).backward()
    grouped = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) and m.groups > 1 for m in model.modules())
    macs = counter.get_total_flops() // 2
    again = [op for op in step if op.phase is Phase.GRAD_INPUT and op.name.endswith("attention.scores")]
    own = step.macs - sum(op.macs for op in again)  # a fused kernel computes its scores again, the counted products keep them
    assert own < macs if grouped else own == macs


def test_the_batch_may_be_given() -> None:
    model = nn.Linear(4, 2)
    step = capture(model, torch.randn(3, 4), loss=torch.sum, batch=9)
    assert step.batch == 9
    assert step.ops[0].body.M == 9  # type: ignore[union-attr]


def test_only_tensors_with_samples_are_resized() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * mask

    step = capture(Masked(), (torch.randn(6), torch.randn(3, 6)), loss=torch.sum, batch=3)
    assert step.rebatch(5).macs == 2 * 5 * 36
    assert next(t for t in step.rebatch(5).tensors if t.name == "input.0").shape == (6,)


def test_a_contrastive_loss_is_not_affine() -> None:
    model = nn.Linear(4, 8)
    for batch in (1, 3):
        step = capture(model, torch.randn(batch, 4), loss=lambda y: (y @ y.t()).logsumexp(1).sum())
        assert not step.rebatchable
        assert "not rebatchable" in step.source
        with pytest.raises(BadInput, match="captured at one batch size"):
            step.rebatch(8)


def test_a_step_that_fails_at_another_batch_is_captured_at_one() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.bias = nn.Linear(4, 2), nn.Parameter(torch.zeros(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.bias

    step = capture(Fixed(), torch.randn(3, 4), loss=torch.sum)
    assert not step.rebatchable
    assert "the training step failed" in step.source


def test_a_batch_that_looks_square_still_rebatches() -> None:
    """At batch 8 the gradient of a sum and its transpose are the same view; the two next batch sizes tell them apart."""
    model = nn.Linear(4, 8)
    step = capture(model, torch.randn(8, 4), loss=torch.sum)
    assert step.rebatchable, step.source
    assert step.rebatch(16).ops == capture(model, torch.randn(16, 4), loss=torch.sum).ops


def test_a_step_survives_its_file() -> None:
    step = captured(resnet(), 2)
    again = Step.from_json(step.to_json())
    assert again == step
    assert again.rebatch(6).ops == step.rebatch(6).ops
