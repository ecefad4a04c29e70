"""Pictures in a folder for each class, as many collections come and as torchvision's ImageFolder reads them.

    root/cat/1.png
    root/cat/more/2.jpg      folders inside a class are looked through too (Tiny ImageNet: root/n01443537/images/*.JPEG)
    root/dog/3.webp

Labels are the places of the class names in alphabetical order, or in `classes`, so that a test folder is numbered as its training
folder. Pictures are scaled and their middle is cut out; no augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.workloads.datasets import photographs
from trainyard.workloads.datasets.reading import folder

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True)
class ImageFolder:
    """(images [n, 3, size, size], labels [n])."""

    root: Path
    size: int = 32
    classes: tuple[str, ...] = ()
    stand_in: bool = field(default=False, init=False)
    files: tuple[Path, ...] = field(init=False, repr=False)
    labels: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive("ImageFolder", size=self.size)
        place = folder(Path(self.root), "ImageFolder")
        names = class_folders(place)
        if not names:
            raise BadInput(f"ImageFolder: {place} has no folders: give the one whose folders are the classes")
        classes = tuple(self.classes) or tuple(names)
        unknown = [name for name in names if name not in classes]
        if unknown:
            raise BadInput(f"ImageFolder: {place / unknown[0]} is of no class in classes=({', '.join(classes[:8])}, ...)")
        found = [(file, classes.index(name)) for name in names for file in pictures_in(place / name, deep=True)]
        if not found:
            raise BadInput(f"ImageFolder: the folders of {place} hold no pictures ({', '.join(SUFFIXES)})")
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "files", tuple(file for file, _ in found))
        object.__setattr__(self, "labels", np.array([label for _, label in found], dtype=np.int64))

    @property
    def name(self) -> str:
        return f"pictures of {Path(self.root).name}, {self.size} x {self.size}"

    @property
    def samples(self) -> int:
        return len(self.files)

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[photographs.Pixels, npt.NDArray[np.int64]]:
        pictures = [photographs.middle(photographs.loaded(self.files[index]), self.size) for index in indices]
        return np.stack(pictures), self.labels[indices]


def class_folders(place: Path) -> list[str]:
    return sorted(entry.name for entry in place.iterdir() if entry.is_dir())


def pictures_in(place: Path, *, deep: bool = False) -> list[Path]:
    """Pictures of a folder by name; `deep` looks into its folders too."""
    entries = place.rglob("*") if deep else place.iterdir()
    return sorted(file for file in entries if file.suffix.lower() in SUFFIXES and file.is_file())
