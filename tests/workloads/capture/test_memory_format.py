"""The memory format of maps: captured tensors are channels-last where torch's are on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.ir import Convolution, Step


class Block(nn.Module):
    """A ConvNeXt block: a depthwise convolution, a norm and a product over channels-last rows, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.LayerNorm(8)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.rows = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + self.rows(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def captured(model: nn.Module, x: Tensor, **options: bool) -> Step:
    return ty.capture(model, x, loss=lambda y: y.float().sum(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **options)


def formats(step: Step, layer: str) -> dict[str, tuple[bool, ...]]:
    """By product of a layer's convolution: whether its inputs and its result are channels-last."""
    ops = [op for op in step.ops if op.layer == layer and isinstance(op.body, Convolution)]
    return {str(op.phase): tuple(step.tensors[t].channels_last for t in (*op.inputs[:2], *op.outputs[:1])) for op in ops}


@pytest.mark.parametrize("real", [False, True])
def test_a_permuted_norm_makes_the_depthwise_convolution_behind_it_channels_last(real: bool) -> None:
    step = captured(Block(), torch.randn(2, 3, 32, 32), real=real)
    assert formats(step, "depthwise")["forward"] == (True, False, True)
    assert formats(step, "depthwise")["grad_input"] == (True, False, True)
    assert formats(step, "depthwise")["grad_weight"][:2] == (True, True)
    assert formats(step, "stem")["forward"] == (False, False, False)


@pytest.mark.parametrize("real", [False, True])
def test_a_model_in_channels_last_stays_so_through_convolutions_norms_and_pooling(real: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 16, 16)
    plain = captured(model, x, real=real)
    assert not any(spec.channels_last for spec in plain.tensors)
    last = captured(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), real=real)
    assert formats(last, "4")["forward"] == (True, True, True)
    assert [op.name for op in last.ops] == [op.name for op in plain.ops]
    assert last.macs == plain.macs


def test_the_format_survives_a_file_and_another_batch() -> None:
    step = captured(Block(), torch.randn(2, 3, 32, 32))
    again = Step.from_json(step.to_json())
    assert again == step
    assert [spec.channels_last for spec in again.rebatch(8).tensors] == [spec.channels_last for spec in step.tensors]
