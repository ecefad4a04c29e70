"""Masks: recorded zeros are the real zeros, files are whole or refused, and what does not fit a step is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file
from torch import nn

from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.ir import MatMul, Op, Phase, Step
from trainyard.workloads.masks import Masks, MaskWriter
from trainyard.workloads.recording import record_masks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu_(self.conv(x))
        return self.head(hidden.flatten(1))


def training(batch: int = 4):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[dict[str, torch.Tensor]] = []

    def train_step(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(batch, 1, 6, 6, generator=generator).relu()
        y = torch.randint(3, (batch,), generator=generator)
        before = model.conv(x).detach()
        seen.append({"x": x, "hidden": before.relu(), "w": model.head.weight.detach().clone()})
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return train_step, model, seen


def test_recorded_masks_are_the_zeros_of_the_run(tmp_path: Path) -> None:
    train_step, model, seen = training()
    masks = record_masks(train_step, model, steps=[0, 2], path=tmp_path / "run.safetensors")
    assert masks.steps == (0, 2)
    assert len(seen) == 3
    for step in (0, 2):
        at = masks.at(step)
        # the probe call of `training` is call 0 of the convolution; the model's own is call 1
        assert np.array_equal(at.bits(("conv", 1, "A")), seen[step]["x"].numpy() != 0)
        assert np.array_equal(at.bits(("head", 0, "A")), (seen[step]["hidden"] != 0).flatten(1).numpy())
        assert at.density(("head", 0, "W")) == 1.0
        gradient = at.bits(("conv", 1, "G"))
        assert gradient.shape == (4, 4, 6, 6)
        assert not gradient[~(seen[step]["hidden"] != 0).numpy()].any(), "the ReLU's mask must be in the convolution's G"
    assert not model.conv._forward_hooks
    assert not model.conv._forward_pre_hooks


def test_sampling_keeps_the_asked_number_and_says_which(tmp_path: Path) -> None:
    train_step, model, seen = training(batch=6)
    masks = record_masks(train_step, model, steps=[0], path=tmp_path / "run.safetensors", samples=2, seed=7)
    spec = masks.spec(("head", 0, "A"))
    assert spec.samples is not None
    assert len(spec.samples) == 2
    assert np.array_equal(masks.bits(("head", 0, "A")), (seen[0]["hidden"][list(spec.samples)] != 0).flatten(1).numpy())
    again = record_masks(*training(batch=6)[:2], steps=[0], path=tmp_path / "again.safetensors", samples=2, seed=7)
    assert again.digest == masks.digest


def test_only_the_layers_asked_for(tmp_path: Path) -> None:
    train_step, model, _ = training()
    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors", layers=["head"])
    assert {key[0] for key in masks.specs} == {"head"}
    with pytest.raises(UnknownName, match="did you mean 'head'"):
        record_masks(train_step, model, path=tmp_path / "other.safetensors", layers=["haed"])
    assert not (tmp_path / "other.safetensors").exists()


def test_recurrent_layers_and_shared_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 7, batch_first=True), "head": nn.Linear(7, 2)})

    def train_step() -> None:
        hidden, _ = model["lstm"](torch.randn(2, 3, 5))
        (model["head"](hidden).sum() + model["head"](hidden.relu()).sum()).backward()

    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors")
    assert masks.spec(("lstm", 0, "W")).shape == (28, 5)
    assert masks.spec(("lstm", 0, "W.weight_hh_l0")).shape == (28, 7)
    assert masks.spec(("head", 1, "A")).shape == (2, 3, 7)
    assert masks.density(("head", 1, "A")) < 1.0


def test_an_error_in_training_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        record_masks(broken, Net(), path=tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MaskWriter(tmp_path / "run.safetensors", {})

    class Full:
        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    writer._stream.close()
    monkeypatch.setattr(writer, "_stream", Full())
    with pytest.raises(MaskError, match="No space left on device"):
        writer.add(0, ("fc", 0, "A"), np.ones((4, 8), np.bool_))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", [[], [-1], [0.5], [True]])
def test_wrong_steps_are_refused(tmp_path: Path, steps: list) -> None:
    with pytest.raises(BadInput, match="steps must be"):
        record_masks(lambda: None, Net(), steps=steps, path=tmp_path / "run.safetensors")


@given(bits=hnp.arrays(np.bool_, hnp.array_shapes(min_dims=1, max_dims=4, max_side=9)))
def test_bits_come_back_and_other_tools_read_the_file(tmp_path_factory: pytest.TempPathFactory, bits: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("masks") / "m.safetensors"
    writer = MaskWriter(path, {})
    writer.add(3, ("layer", 0, "A"), bits)
    masks = writer.close()
    assert np.array_equal(masks.bits(("layer", 0, "A")), bits)
    assert masks.spec(("layer", 0, "A")).nonzero == bits.sum()
    assert np.array_equal(load_file(path)["3/layer/0/A"], np.packbits(bits))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    writer = MaskWriter(tmp_path / "m.safetensors", {})
    writer.add(0, ("fc", 0, "A"), np.ones((4, 8), np.bool_))
    writer.close()
    return tmp_path / "m.safetensors"


@given(cut=st.integers(0, 10_000))
def test_every_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    writer = MaskWriter(folder / "m.safetensors", {})
    writer.add(0, ("fc", 0, "A"), np.ones((4, 8), np.bool_))
    writer.close()
    whole = (folder / "m.safetensors").read_bytes()
    (folder / "m.safetensors").write_bytes(whole[: cut % len(whole)])
    with pytest.raises(MaskError, match=r"m\.safetensors"):
        Masks.open(folder / "m.safetensors")


def test_foreign_files_are_refused(file: Path) -> None:
    foreign = file.with_name("foreign.safetensors")
    header = json.dumps({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    foreign.write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    with pytest.raises(MaskError, match="not of masks"):
        Masks.open(foreign)
    foreign.write_bytes(b"PK\x03\x04" + b"\xff" * 40)
    with pytest.raises(MaskError, match="not a masks file"):
        Masks.open(foreign)
    with pytest.raises(MaskError, match="No such file"):
        Masks.open(file.with_name("absent.safetensors"))
    with pytest.raises(MaskError, match="recorded: 0"):
        Masks.open(file).at(9)


def step(layer: str, rows: int) -> Step:
    op = Op(body=MatMul(rows, 3, 8), layer=layer, phase=Phase.FORWARD, letters=("A", "W"))
    return Step("net", rows, (op,), ())


def test_masks_that_do_not_fit_name_the_layer(file: Path) -> None:
    masks = Masks.open(file)
    masks.check(step("fc", 4))
    with pytest.raises(MaskError, match=r"layer 'fc', A, has shape \(4, 8\)"):
        masks.check(step("fc", 5))
    with pytest.raises(MaskError, match="nearest layer of the step is 'fc1'"):
        masks.check(step("fc1", 4))
