"""Masks: recorded zeros are the real zeros, files are whole or refused, and what does not fit a step is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.ir import MatMul, Op, Phase, Step
from trainyard.masks.recorded import Masks, MaskWriter, operand_elements
from trainyard.workloads.capture import capture
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


def test_sampling_records_the_requested_samples_and_lists_them(tmp_path: Path) -> None:
    train_step, model, seen = training(batch=6)
    masks = record_masks(train_step, model, steps=[0], path=tmp_path / "run.safetensors", samples=2, seed=7)
    spec = masks.spec(("head", 0, "A"))
    assert spec.samples is not None
    assert len(spec.samples) == 2
    assert np.array_equal(masks.bits(("head", 0, "A")), (seen[0]["hidden"][list(spec.samples)] != 0).flatten(1).numpy())
    again = record_masks(*training(batch=6)[:2], steps=[0], path=tmp_path / "again.safetensors", samples=2, seed=7)
    assert again.digest == masks.digest


@pytest.mark.parametrize(
    "other", [[(("b", 0, "A"), (4, 4)), (("a", 0, "A"), (4, 4))], [(("a", 0, "A"), (2, 8)), (("b", 0, "A"), (4, 4))]]
)
def test_digests_differ_for_other_bits_or_tensors(
    tmp_path: Path, other: list[tuple[tuple[str, int, str], tuple[int, int]]]
) -> None:
    """The same bytes under other names, or in another shape, are other masks."""

    def written(file: str, tensors: list[tuple[tuple[str, int, str], tuple[int, int]]]) -> Masks:
        writer = MaskWriter(tmp_path / file, {})
        for number, (key, shape) in enumerate(tensors):
            writer.add(0, key, (np.arange(16) % (2 + number) == 0).reshape(shape))
        return writer.close()

    plain = [(("a", 0, "A"), (4, 4)), (("b", 0, "A"), (4, 4))]
    first, again, second = written("one", plain), written("same", plain), written("two", other)
    assert first.digest == again.digest == Masks.open(tmp_path / "one").digest
    assert not np.array_equal(first.bits(("a", 0, "A")), second.bits(("a", 0, "A")))
    assert first.metadata["digest"] == second.metadata["digest"]
    assert first.digest != second.digest


def test_only_the_requested_layers_are_recorded(tmp_path: Path) -> None:
    train_step, model, _ = training()
    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors", layers=["head"])
    assert {key[0] for key in masks.specs} == {"head"}
    with pytest.raises(UnknownName, match="did you mean 'head'"):
        record_masks(train_step, model, path=tmp_path / "other.safetensors", layers=["haed"])
    assert not (tmp_path / "other.safetensors").exists()


def test_recurrent_layers_are_recorded_as_a_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 7, batch_first=True), "head": nn.Linear(7, 2)})
    seen: dict[str, torch.Tensor] = {}

    def train_step() -> None:
        seen["input"] = torch.randn(2, 3, 5).relu()
        hidden, _ = model["lstm"](seen["input"])
        hidden.register_hook(lambda gradient: seen.update(gradient=gradient))
        (model["head"](hidden)[:, :2].sum() + model["head"](hidden.relu())[:, :2].sum()).backward()

    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors")
    assert {key[2] for key in masks.specs if key[0] == "lstm"} == {
        "A.input", "A.output", "G.output", "W.weight_ih_l0", "W.weight_hh_l0",
    }  # fmt: skip
    assert np.array_equal(masks.bits(("lstm", 0, "A.input")), seen["input"].numpy() != 0)
    assert np.array_equal(masks.bits(("lstm", 0, "G.output")), seen["gradient"].numpy() != 0)
    assert not masks.bits(("lstm", 0, "G.output"))[:, 2].any(), "the last time step has no loss"
    assert masks.spec(("head", 1, "A")).shape == (2, 3, 7)
    assert masks.density(("head", 1, "A")) < 1.0
    assert masks.spec(("head", 1, "W")) is masks.spec(("head", 0, "W")), "one weight for all calls"
    assert set(load_file(masks.path)) == {"/".join(map(str, (0, *key))) for key in masks.specs}
    assert not model["lstm"]._forward_hooks


def test_a_step_that_does_not_run_the_model_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(MaskError, match="no layer of Net left a mask"):
        record_masks(lambda: None, Net(), path=tmp_path / "none.safetensors")
    assert list(tmp_path.iterdir()) == []


class Decoder(nn.Module):
    """A transposed and an unevenly padded convolution, a normalised weight, a layer that runs three times, one by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 4, 2, 1, groups=1)
        self.same = nn.Conv2d(4, 4, 2, padding="same")
        self.inner = weight_norm(nn.Linear(4, 4))
        self.again = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.inner(F.relu(self.same(F.relu(self.up(x), inplace=True)), inplace=True).mean((2, 3))), inplace=True)
        for reentrant in (False, True, False):
            x = checkpoint(lambda y: F.relu(self.again(y), inplace=True), x, use_reentrant=reentrant)
        return self.head(input=x)


def test_masks_of_a_run_fit_the_step_of_its_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    seen: dict[tuple[str, str], torch.Tensor] = {}

    def train_step() -> None:
        optimizer.zero_grad()
        model(torch.randn(3, 3, 6, 6)).pow(2).sum().backward()
        optimizer.step()

    def keep(layer: str, letter: str, tensor: torch.Tensor) -> None:
        seen[layer, letter] = tensor.detach() != 0

    for layer in ("up", "inner"):
        module = model.get_submodule(layer)
        module.register_forward_pre_hook(lambda _, inputs, layer=layer: keep(layer, "A", inputs[0]))
        module.register_forward_hook(
            lambda _, __, output, layer=layer: output.register_hook(lambda g: keep(layer, "G", g)) and None
        )
    masks = record_masks(train_step, model, path=tmp_path / "run.safetensors")
    for (layer, letter), bits in seen.items():
        assert np.array_equal(masks.bits((layer, 0, letter)), bits.numpy())
    assert len(seen) == 4
    step = capture(model, torch.randn(3, 3, 6, 6), loss=lambda output: output.sum(), optimizer=optimizer)
    expected = {key for op in step for key in operand_elements(op)}
    assert expected == {*masks.specs, ("again", 1, "W"), ("again", 2, "W")}
    masks.check(step)
    with pytest.raises(MaskError, match="layer 'up', A, has shape"):
        masks.check(step.rebatch(4))


def test_recording_does_not_change_the_run(tmp_path: Path) -> None:
    ends = []
    for recorded in (False, True):
        train_step, model, _ = training()
        if recorded:
            record_masks(train_step, model, steps=[0, 1], path=tmp_path / "run.safetensors")
        else:
            train_step(0)
            train_step(1)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


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
def test_bits_round_trip_and_other_tools_read_the_file(tmp_path_factory: pytest.TempPathFactory, bits: np.ndarray) -> None:
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


def test_a_convolution_over_a_transposed_view_is_recorded_as_it_reads(tmp_path):
    """Channels come from the last dimension of the tensor behind the view, as in text models."""

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(6, 4, 3, padding=1)

        def forward(self, words):
            return self.convolution(words.transpose(1, 2)).relu()

    model, words = Text(), torch.randn(2, 9, 6).relu()
    masks = record_masks(lambda: model(words).sum().backward(), model, path=tmp_path / "text.safetensors")
    assert (masks.bits(("convolution", 0, "A")) == (words.transpose(1, 2) != 0).numpy()).all()
    assert masks.spec(("convolution", 0, "G")).shape == (2, 4, 9)
