"""COCO. T.-Y. Lin et al.: Microsoft COCO: Common Objects in Context. ECCV 2014. X. Chen et al.: Microsoft COCO Captions. 2015.

A folder of pictures (train2017/) and an annotation file (annotations/instances_train2017.json, captions_train2017.json).
Of objects: crowds are left out, as detectors do in training; a picture has a fixed number of them, the largest, and repeats its own
where it has fewer; pictures without one are left out. Pictures are scaled into height x width and filled up with zeros on the right
and at the bottom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.workloads.datasets import photographs
from trainyard.workloads.datasets.reading import folder, opened
from trainyard.workloads.datasets.words import BEGIN, END, Vocabulary, padded, split

Whole = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]
IGNORED = -100  # what torch's cross entropy leaves out


def _annotations(path: Path, wanted: Sequence[str]) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Picture names by number, and the annotations, each with `wanted` keys."""
    with opened(path) as stream:
        try:
            content = json.load(stream)
        except json.JSONDecodeError as error:
            raise BadInput(f"{path}, line {error.lineno}: no JSON ({error.msg})") from None
    if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
        raise BadInput(f"{path} is not a COCO annotation file: it has no 'images' and 'annotations'")
    try:
        names = {int(image["id"]): str(image["file_name"]) for image in content["images"]}
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: an entry of 'images' without id or file_name ({error})") from None
    for place, annotation in enumerate(content["annotations"]):
        missing = [key for key in ("image_id", *wanted) if key not in annotation]
        if missing:
            raise BadInput(f"{path}: annotation {place} (id {annotation.get('id')}) has no {missing[0]!r}")
        if annotation["image_id"] not in names:
            raise BadInput(f"{path}: annotation {place} is of image {annotation['image_id']}, which is not in 'images'")
    return names, content["annotations"]


@dataclass(frozen=True)
class CocoCaptions:
    """(images, words [n, words], next words [n, words]): one sample a caption; padding is word 0 and no target."""

    images: Path
    annotations: Path
    size: int = 224
    words: int = 20
    vocabulary: Vocabulary | int = 12_000
    stand_in: bool = field(default=False, init=False)
    captions: tuple[tuple[str, tuple[int, ...]], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder(Path(self.images), "COCO")
        names, annotations = _annotations(Path(self.annotations), ("caption",))
        said = [(names[a["image_id"]], [BEGIN, *split(a["caption"]), END]) for a in annotations]
        if isinstance(self.vocabulary, int):
            object.__setattr__(self, "vocabulary", Vocabulary.built((words for _, words in said), self.vocabulary))
        assert isinstance(self.vocabulary, Vocabulary)
        object.__setattr__(self, "captions", tuple((name, tuple(self.vocabulary.encoded(words))) for name, words in said))

    @property
    def name(self) -> str:
        return f"COCO captions, {self.size} x {self.size}"

    @property
    def samples(self) -> int:
        return len(self.captions)

    def take(self, indices: Whole) -> tuple[Numbers, Whole, Whole]:
        chosen = [self.captions[index] for index in indices]
        pictures = np.stack([photographs.middle(photographs.loaded(Path(self.images) / name), self.size) for name, _ in chosen])
        said = padded([words for _, words in chosen], self.words + 1)
        following = said[:, 1:]
        return pictures, said[:, :-1], np.where(following == 0, IGNORED, following)


@dataclass(frozen=True)
class CocoObjects:
    """(images, boxes [n, object, 4] as x1 y1 x2 y2, category numbers [n, object], masks [n, object, raster, raster])."""

    images: Path
    annotations: Path
    height: int = 800
    width: int = 1344
    objects: int = 8
    raster: int = 56
    stand_in: bool = field(default=False, init=False)
    pictures: tuple[tuple[str, tuple[Mapping[str, Any], ...]], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder(Path(self.images), "COCO")
        names, annotations = _annotations(Path(self.annotations), ("bbox", "category_id", "segmentation"))
        found: dict[str, list[Mapping[str, Any]]] = {}
        for annotation in annotations:
            _, _, across, down = annotation["bbox"]
            if not annotation.get("iscrowd") and across > 0 and down > 0:
                found.setdefault(names[annotation["image_id"]], []).append(annotation)
        if not found:
            raise BadInput(f"{self.annotations} has no object that is not a crowd")
        largest = {name: sorted(own, key=lambda a: -a["bbox"][2] * a["bbox"][3]) for name, own in sorted(found.items())}
        object.__setattr__(self, "pictures", tuple((name, tuple(own[: self.objects])) for name, own in largest.items()))

    @property
    def name(self) -> str:
        return f"COCO objects, {self.height} x {self.width}"

    @property
    def samples(self) -> int:
        return len(self.pictures)

    def take(self, indices: Whole) -> tuple[Numbers, Numbers, Whole, Numbers]:
        pictures = np.zeros((len(indices), 3, self.height, self.width), np.float32)
        boxes = np.zeros((len(indices), self.objects, 4), np.float32)
        labels = np.zeros((len(indices), self.objects), np.int64)
        rasters = np.zeros((len(indices), self.objects, self.raster, self.raster), np.float32)
        for row, index in enumerate(indices):
            name, own = self.pictures[index]
            picture = photographs.loaded(Path(self.images) / name)
            scale = min(self.height / picture.height, self.width / picture.width)
            size = max(1, int(picture.width * scale)), max(1, int(picture.height * scale))
            pictures[row, :, : size[1], : size[0]] = photographs.normalised(picture.resize(size))
            for place in range(self.objects):
                annotation = own[place % len(own)]
                x, y, across, down = annotation["bbox"]
                boxes[row, place] = np.array([x, y, x + across, y + down]) * scale
                labels[row, place] = annotation["category_id"]
                rasters[row, place] = self._mask(annotation)
        return pictures, boxes, labels, rasters

    def _mask(self, annotation: Mapping[str, Any]) -> Numbers:
        """What the polygons cover of their box."""
        from PIL import Image, ImageDraw

        outlines = annotation["segmentation"]
        if not isinstance(outlines, list):
            raise BadInput(
                f"{self.annotations}: object {annotation.get('id')} has run lengths in place of polygons; only crowds have those"
            )
        x, y, across, down = annotation["bbox"]
        drawn = Image.new("1", (self.raster, self.raster))
        for outline in outlines:
            points = (np.asarray(outline, np.float64).reshape(-1, 2) - (x, y)) / (across, down) * self.raster - 0.5  # centres
            if len(points) >= 3:
                ImageDraw.Draw(drawn).polygon([tuple(point) for point in points.tolist()], fill=1)
        return np.asarray(drawn, dtype=np.float32)
