"""ImageNet (ILSVRC 2012). O. Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. IJCV 2015.

    root/train/n01440764/*.JPEG
    root/val/n01440764/*.JPEG                    or, as published,
    root/val/ILSVRC2012_val_00000001.JPEG ...    with one of these beside them or in root:
        LOC_val_solution.csv                     ImageId,PredictionString (the first word of which is the class)
        ILSVRC2012_validation_ground_truth.txt   a class number a line; map_clsloc.txt ("n02119789 1 kit_fox") says which it is

Labels are the places of the class names in alphabetical order. Pictures are the middle of the scaled photograph; no augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets import photographs
from trainyard.workloads.datasets.image_folder import SUFFIXES, class_folders, pictures_in
from trainyard.workloads.datasets.reading import folder, lines

SPLITS = ("train", "val")
SOLUTION, TRUTH, NUMBERS = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "map_clsloc.txt"


@dataclass(frozen=True)
class ImageNet:
    """(images [n, 3, size, size], labels [n])."""

    root: Path
    split: str = "train"
    size: int = 224
    stand_in: bool = field(default=False, init=False)
    classes: tuple[str, ...] = field(init=False, repr=False)
    files: tuple[Path, ...] = field(init=False, repr=False)
    labels: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UnknownName("split of ImageNet", self.split, SPLITS)
        place = folder(Path(self.root) / self.split, "ImageNet")
        named = class_folders(place)
        found = [(file, name) for name in named for file in pictures_in(place / name)] if named else _of_list(place)
        if not found:
            raise BadInput(f"ImageNet: {place} holds no pictures ({', '.join(SUFFIXES)})")
        train = place.parent / "train"
        classes = class_folders(train) if train.is_dir() else sorted({name for _, name in found})
        numbers = {name: number for number, name in enumerate(classes)}
        for file, name in found:
            if name not in numbers:
                raise BadInput(f"{file}: class {name!r} has no folder in {train}")
        object.__setattr__(self, "classes", tuple(classes))
        object.__setattr__(self, "files", tuple(file for file, _ in found))
        object.__setattr__(self, "labels", np.array([numbers[name] for _, name in found], dtype=np.int64))

    @property
    def name(self) -> str:
        return f"ImageNet {self.split}, {self.size} x {self.size}"

    @property
    def samples(self) -> int:
        return len(self.files)

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[photographs.Pixels, npt.NDArray[np.int64]]:
        pictures = [photographs.middle(photographs.loaded(self.files[index]), self.size) for index in indices]
        return np.stack(pictures), self.labels[indices]


def _of_list(place: Path) -> list[tuple[Path, str]]:
    """Pictures in one folder, their classes in a list beside it."""
    files = pictures_in(place)
    if not files:
        return []
    if solution := _nearest(place, SOLUTION):
        classes = _solution(solution)
        missing = [file for file in files if file.stem not in classes]
        if missing:
            raise BadInput(f"{solution} does not say the class of {missing[0].name}")
        return [(file, classes[file.stem]) for file in files]
    truth, numbers = _nearest(place, TRUTH), _nearest(place, NUMBERS)
    if truth is None or numbers is None:
        raise BadInput(f"{place} has neither class folders nor {SOLUTION}, nor {TRUTH} with {NUMBERS}: add one of these")
    by_number = _numbers(numbers)
    names = [by_number.get(line.strip(), "") for _, line in lines(truth) if line.strip()]
    if len(names) != len(files):
        raise BadInput(f"{truth} has {len(names)} lines for {len(files)} pictures in {place}")
    if "" in names:
        raise BadInput(f"{truth}, line {names.index('') + 1}: a class number that {numbers} does not have")
    return list(zip(files, names, strict=True))


def _nearest(place: Path, name: str) -> Path | None:
    return next((path for path in (place / name, place.parent / name) if path.is_file()), None)


def _solution(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in lines(path):
        if number == 1 or not line:
            continue
        picture, comma, rest = line.partition(",")
        if not comma or not rest.split():
            raise BadInput(f"{path}, line {number}: expected 'ImageId,class x y x y', got {line!r}")
        found[picture] = rest.split()[0]
    return found


def _numbers(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in lines(path):
        fields = line.split()
        if len(fields) < 2 or not fields[1].isdigit():
            raise BadInput(f"{path}, line {number}: expected 'class number name', got {line!r}")
        found[fields[1]] = fields[0]
    return found
