"""Masks recorded on a CUDA GPU are the zeros that were there, under the keys of a capture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainyard.masks.recorded import operand_elements
from trainyard.workloads.capture import capture
from trainyard.workloads.recording import record_masks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


class Net(nn.Module):
    """A normalised and a strided convolution with in-place ReLUs, attention over padded tokens, dropout, a flattened loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.query = nn.Linear(32, 32)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(self.norm(self.conv(x)))
        tokens = torch.relu_(self.down(x)).flatten(2).transpose(1, 2)
        q = self.query(tokens)[:, None]
        mixed = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=real[:, None, None, :])[:, 0]
        return self.head(self.drop(mixed))


def test_masks_of_a_cuda_run_are_its_zeros_and_fit_the_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    real = torch.arange(16, device="cuda") < torch.tensor([[9], [16], [4], [12]], device="cuda")
    x, y = torch.randn(4, 3, 8, 8, device="cuda").relu(), torch.randint(5, (4, 16), device="cuda")
    y = torch.where(real, y, -100)
    seen: dict[tuple[str, int, str], np.ndarray] = {}

    def note(name: str, letter: str, values: torch.Tensor) -> None:
        seen[name, 0, letter] = (values.detach() != 0).cpu().numpy()

    def train_step(number: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, real).flatten(0, 1), y.flatten()).backward()
        optimizer.step()

    hooks = []
    for name in ("conv", "down", "query", "head"):
        layer = model.get_submodule(name)
        hooks += [
            layer.register_forward_pre_hook(lambda _, inputs, name=name: note(name, "A", inputs[0])),
            layer.register_forward_hook(lambda _, __, out, name=name: out.register_hook(lambda g: note(name, "G", g)) and None),
        ]
    masks = record_masks(train_step, model, steps=[2], path=tmp_path / "run.safetensors")
    assert len(seen) == 8
    for key, bits in seen.items():
        assert np.array_equal(masks.bits(key).reshape(bits.shape), bits), key
    assert masks.density(("down", 0, "G")) < 0.7, "the ReLU behind it"
    assert masks.density(("head", 0, "A")) < 0.8, "dropout"
    assert not masks.bits(("head", 0, "G")).reshape(4, 16, 5)[2, 4:].any(), "padding has no loss"
    for hook in hooks:
        hook.remove()
    step = capture(model, (x, real), loss=lambda output: output.sum(), optimizer=optimizer)
    assert {key for op in step for key in operand_elements(op)} == set(masks.specs)
    masks.check(step)


def test_a_recurrent_layer_on_cuda_is_recorded_as_a_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 7, batch_first=True, bidirectional=True), "head": nn.Linear(14, 2)}).cuda()
    x = torch.randn(3, 4, 5, device="cuda").relu()

    def train_step() -> None:
        hidden, _ = model["lstm"](x)
        model["head"](hidden)[:, :2].sum().backward()

    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors")
    letters = {key[2] for key in masks.specs if key[0] == "lstm"}
    assert {"A.input", "A.output", "G.output", "W.weight_ih_l0", "W.weight_hh_l0_reverse"} <= letters
    assert np.array_equal(masks.bits(("lstm", 0, "A.input")), x.cpu().numpy() != 0)
    assert not masks.bits(("lstm", 0, "G.output"))[:, 2:].any()
