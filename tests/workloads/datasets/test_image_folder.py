"""Pictures in a folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainyard.errors import BadInput
from trainyard.workloads.datasets.batches import Batches
from trainyard.workloads.datasets.image_folder import ImageFolder


def picture(file: Path, colour: tuple[int, int, int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), colour).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture(tmp_path / "train" / "red" / "b.png", (255, 0, 0))
    picture(tmp_path / "train" / "blue" / "images" / "a.JPEG", (0, 0, 255))
    picture(tmp_path / "train" / "green" / "c.bmp", (0, 255, 0))
    (tmp_path / "train" / "red" / "notes.txt").write_text("no picture")
    picture(tmp_path / "val" / "red" / "d.webp", (255, 0, 0))
    return tmp_path


def test_classes_in_alphabetical_order_and_pictures_of_one_size(root: Path) -> None:
    data = ImageFolder(root / "train", size=16)
    images, labels = data.take(np.arange(3))
    assert (data.samples, data.classes, data.stand_in) == (3, ("blue", "green", "red"), False)
    assert labels.tolist() == [0, 1, 2]
    assert images.shape == (3, 3, 16, 16)
    assert images.mean((2, 3)).argmax(1).tolist() == [2, 1, 0], "blue, green, red"
    assert len(Batches(source=data, batch=2).at(0)[0]) == 2


def test_a_test_folder_is_numbered_as_the_training_folder(root: Path) -> None:
    trained = ImageFolder(root / "train", size=8)
    assert ImageFolder(root / "val", size=8).labels.tolist() == [0]
    assert ImageFolder(root / "val", size=8, classes=trained.classes).labels.tolist() == [2]


def test_faults(root: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder .*nothing is downloaded"):
        ImageFolder(root / "nowhere")
    with pytest.raises(BadInput, match="has no folders: give the one whose folders are the classes"):
        ImageFolder(root / "val" / "red")
    with pytest.raises(BadInput, match=r"red is of no class in classes=\(blue"):
        ImageFolder(root / "val", classes=("blue", "green"))
    with pytest.raises(BadInput, match="size must be a positive"):
        ImageFolder(root / "val", size=0)
    (root / "val" / "red" / "d.webp").unlink()
    with pytest.raises(BadInput, match="hold no pictures"):
        ImageFolder(root / "val")
    (root / "val" / "red" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BadInput, match=r"broken.png cannot be read"):
        ImageFolder(root / "val").take(np.array([0]))
