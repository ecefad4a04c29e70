"""Compressed masks are the same masks; a damaged or overlarge file is refused; rows of one sample stay together."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp
from torch import nn

from trainyard.errors import MaskError
from trainyard.masks.recorded import Masks, MaskWriter
from trainyard.workloads.capture import capture
from trainyard.workloads.recording import record_masks

KEY = ("fc", 0, "A")


def written(path: Path, bits: np.ndarray) -> Masks:
    writer = MaskWriter(path, {"model": "x"})
    writer.add(3, KEY, bits)
    writer.add(9, KEY, ~bits)
    return writer.close()


@given(bits=hnp.arrays(np.bool_, hnp.array_shapes(min_dims=1, max_dims=3, max_side=9)))
def test_a_compressed_file_has_the_same_masks(tmp_path_factory: pytest.TempPathFactory, bits: np.ndarray) -> None:
    folder = tmp_path_factory.mktemp("masks")
    plain, packed = written(folder / "a.safetensors", bits), written(folder / "a.safetensors.xz", bits)
    assert lzma.decompress(packed.path.read_bytes()) == plain.path.read_bytes()
    assert packed.digest == plain.digest
    assert packed.specs == plain.specs
    assert packed.metadata == plain.metadata
    for step in (3, 9):
        assert np.array_equal(packed.at(step).bits(KEY), plain.at(step).bits(KEY))
    assert np.array_equal(packed.at(9).bits(KEY), ~bits)
    assert not list(folder.glob(".*")), "no part file stays"


def test_an_open_compressed_file_does_not_need_the_disk(tmp_path: Path) -> None:
    masks = written(tmp_path / "a.safetensors.xz", np.ones((4, 5), np.bool_))
    masks.path.unlink()
    assert masks.bits(KEY).all()


def test_damaged_compressed_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(0).random((300, 300)) < 0.5
    file = written(tmp_path / "a.safetensors.xz", bits).path
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MaskError, match=r"a.safetensors.xz is not a whole .xz file"):
        Masks.open(file)
    file.write_bytes(b"no xz at all")
    with pytest.raises(MaskError, match=r"is not a whole .xz file"):
        Masks.open(file)
    file.write_bytes(lzma.compress(lzma.decompress(whole)[:-50]))
    with pytest.raises(MaskError, match="is truncated"):
        Masks.open(file)
    file.write_bytes(lzma.compress(b"short"))
    with pytest.raises(MaskError, match="too short"):
        Masks.open(file)
    with pytest.raises(MaskError, match="cannot read masks"):
        Masks.open(tmp_path / "none.safetensors.xz")
    file.write_bytes(whole)
    monkeypatch.setenv("TRAINYARD_LIMITS", f"masks_bytes={len(lzma.decompress(whole))}")
    assert Masks.open(file).steps == (3, 9)
    monkeypatch.setenv("TRAINYARD_LIMITS", f"masks_bytes={len(lzma.decompress(whole)) - 1}")
    with pytest.raises(MaskError, match=r"are not read; if it is meant: TRAINYARD_LIMITS=\"masks_bytes="):
        Masks.open(file)


class Tagger(nn.Module):
    """The loss sees words of all sentences in one list; so does the layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.flat = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.first(words).relu()
        flat = self.flat(hidden.flatten(0, 1)).relu()
        return self.head(flat.view_as(hidden))


@pytest.mark.parametrize("samples", [1, 2, 4, 5, 6])
def test_a_sampled_recording_keeps_all_rows_of_a_sample(tmp_path: Path, samples: int) -> None:
    torch.manual_seed(0)
    model, batch, length = Tagger(), 5, 7
    words = torch.randn(batch, length, 4) * (torch.arange(length) < torch.tensor([[7], [1], [4], [2], [5]]))[..., None]
    labels = torch.where(words.abs().sum(-1) > 0, 1, -100)

    def train_step() -> None:
        nn.functional.cross_entropy(model(words).flatten(0, 1), labels.flatten()).backward()

    whole = record_masks(train_step, model, path=tmp_path / "whole.safetensors")
    some = record_masks(train_step, model, path=tmp_path / "some.safetensors", samples=samples, seed=3)
    for key in whole.specs:
        if key[2] == "W":
            continue
        kept = some.spec(key).samples
        assert (kept is None) == (samples >= batch)
        rows = whole.bits(key).reshape(batch, length, -1)[list(range(batch) if kept is None else kept)]
        assert np.array_equal(some.bits(key).reshape(rows.shape), rows), key
    step = capture(model, words, labels, loss=lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten()))
    some.check(step)
