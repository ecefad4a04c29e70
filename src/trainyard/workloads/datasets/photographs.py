"""Photographs from JPEG files: shorter side scaled, middle cut out, channels first, about zero mean and unit spread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.float32]
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # customary statistics of ImageNet's training images
SPREAD = np.array([0.229, 0.224, 0.225], np.float32)  # likewise
MARGIN = 256 / 224  # K. He et al., CVPR 2016, and others: 224 of a shorter side of 256


def loaded(file: Path) -> Image:
    """The picture in red, green and blue."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise MissingExtra("pillow", "data", f"reading {file.name}") from None
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise BadInput(f"{file} cannot be read as a picture ({error})") from None


def normalised(picture: Image) -> Pixels:
    values = (np.asarray(picture, dtype=np.float32) / 255 - MEAN) / SPREAD
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def middle(picture: Image, size: int) -> Pixels:
    """[3, size, size] from the middle."""
    from PIL import Image

    scale = size * MARGIN / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
    return normalised(scaled.crop((left, top, left + size, top + size)))
