"""YFCC100M-HNfc6: 97 million pictures as 4096 features, what the sixth layer of Hybrid-CNN says before its ReLU.

G. Amato, F. Falchi, C. Gennaro, F. Rabitti: YFCC100M-HNfc6: A Large-Scale Deep Features Benchmark for Similarity Search. SISAP
2016.
B. Thomee et al.: YFCC100M: The New Data in Multimedia Research. CACM 2016. PIM-Opt: S. Rhyner et al., PACT 2024.

Text, plain or in .gz, .bz2, .zip; a line is a picture; `converted` makes it a matrix on disk, line by line:

| line                            | whose                                                                                 |
|---------------------------------|---------------------------------------------------------------------------------------|
| id, hash, values                | as published (deepfeatures.org, "File format": tabs between all); hash may be missing |
| tag:score,tag:score,..., values | what PIM-Opt's preprocessing reads (YFCC100M_hybridCNN_gmean_fc6_0_tag, ...)          |
| label (0 or 1), values          | what it writes: reals, or whole numbers of 2^-31, for which give `fraction=31`        |

The first needs `labels`: id, tab, tags (yfcc100m_autotags as published) or id, tab, 0 or 1. Values may have tabs, blanks or commas
between them. A picture with one of the two `tags` is of class 0 or 1; one with neither or both is left out, as in PIM-Opt (which
looks for the word in the whole text of the tags; here the name of a tag has to be it). Ours, since none is published: that commas
may stand between values, and the layout on disk:

    name.f32, name.u32, name.i32    little-endian, row by row, without a head; .npy with one is read too
    name.labels                     one byte, 0 or 1, for each row; a text file (.txt) of one label a line is read too

Files on disk are mapped, not loaded: `take` and `rows` bring in what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.fixed_point import PIM_OPT_FRACTION, fixed_point, restored
from trainyard.workloads.datasets.reading import lines

Number = Literal["float32", "uint32", "int32"]
Reals = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
SUFFIX = {"float32": ".f32", "uint32": ".u32", "int32": ".i32"}
FEATURES = 4096  # Amato et al.: fc6 of Hybrid-CNN
TAGS = ("indoor", "outdoor")  # PIM-Opt: label 0, label 1
CHUNK_ROWS = 1024  # 16 MiB of features at a time


@dataclass(frozen=True)
class Yfcc:
    """(features [n, 4096] as float32, labels [n]); words of fixed point are given as the reals they stand for."""

    matrix: Path
    labels: Path
    features: int = FEATURES
    number: Number = "float32"
    fraction: int = PIM_OPT_FRACTION
    stand_in: bool = field(default=False, init=False)
    words: npt.NDArray[Any] = field(init=False, repr=False, compare=False)
    label_of: Whole = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive("Yfcc", features=self.features)
        if self.number not in SUFFIX:
            raise UnknownName("number of Yfcc", self.number, SUFFIX)
        object.__setattr__(self, "words", _mapped(Path(self.matrix), self.features, self.number))
        object.__setattr__(self, "label_of", _labels(Path(self.labels)))
        if len(self.label_of) != len(self.words):
            raise BadInput(f"{self.labels} has {len(self.label_of)} labels for the {len(self.words)} rows of {self.matrix}")

    @property
    def name(self) -> str:
        return f"YFCC100M-HNfc6, {self.samples} x {self.features} of {Path(self.matrix).name}"

    @property
    def samples(self) -> int:
        return len(self.words)

    def take(self, indices: Whole) -> tuple[Reals, Whole]:
        return self._reals(self.words[indices], indices), self.label_of[indices]

    def rows(self, start: int, stop: int) -> tuple[Reals, Whole]:
        return self.take(np.arange(start, stop))

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[tuple[Reals, Whole]]:
        """All rows in order, `rows` at a time."""
        for start in range(0, self.samples, rows):
            yield self.rows(start, min(start + rows, self.samples))

    def ranges(self) -> tuple[Reals, Reals]:
        """The least and the largest value of each feature."""
        low, high = np.full(self.features, np.inf, np.float32), np.full(self.features, -np.inf, np.float32)
        for values, _ in self.chunks():
            np.minimum(low, values.min(axis=0), out=low)
            np.maximum(high, values.max(axis=0), out=high)
        return low, high

    def normalised(self, target: Path, low: Reals, high: Reals, number: Number = "float32") -> Yfcc:
        """Written anew, each feature from 0 to 1 where `low` and `high` are those of the training data, as PIM-Opt does it.

        What lies outside (of test data) is cut off. A feature that never changed becomes 0. A signed word ends just below 1.
        """
        scale = np.where(high > low, 1.0 / np.where(high > low, high.astype(np.float64) - low, 1.0), 0.0)
        most = 1.0 - (2.0**-self.fraction if number == "int32" else 0.0)
        with _Writer(Path(target), self.features, number, self.fraction) as writer:
            for values, labels in self.chunks():
                writer.add(np.clip((values.astype(np.float64) - low) * scale, 0.0, most), labels)
        return writer.result()

    def _reals(self, words: npt.NDArray[Any], indices: Whole) -> Reals:
        values = np.asarray(words if self.number == "float32" else restored(words, self.fraction), np.float32)
        if not np.isfinite(values).all():
            row, place = np.argwhere(~np.isfinite(values))[0]
            raise BadInput(f"{self.matrix}, row {int(indices[row])}: feature {int(place)} is {values[row, place]}")
        return values


def converted(
    files: Sequence[Path],
    target: Path,
    *,
    labels: Path | None = None,
    tags: tuple[str, str] = TAGS,
    features: int = FEATURES,
    fraction: int | None = None,
    number: Number = "float32",
) -> Yfcc:
    """Text to `target`.f32 (.u32, .i32) and `target`.labels; `fraction` says that values are whole numbers of 2^-fraction."""
    wanted = None if labels is None else _tagged(Path(labels), _identifiers(files), tags)
    with _Writer(Path(target), features, number, PIM_OPT_FRACTION if fraction is None else fraction) as writer:
        for file in map(Path, files):
            for line, text in lines(file):
                if not text.strip():
                    continue
                head, values = _row(f"{file}, line {line}", text, features, with_label=wanted is None)
                label = _class(f"{file}, line {line}", head, tags) if wanted is None else wanted.get(head, "missing")
                if label == "missing":
                    raise BadInput(f"{file}, line {line}: picture {head!r} has no line in {labels}")
                if label is not None:
                    writer.add(values[None] * (1.0 if fraction is None else 2.0**-fraction), np.array([label]))
    return writer.result()


def _row(where: str, text: str, features: int, *, with_label: bool) -> tuple[str, npt.NDArray[np.float64]]:
    """What stands before the values (label, tags or id), and the values."""
    head, _, rest = text.strip().partition("\t") if "\t" in text else text.strip().partition(" ")
    fields = rest.replace(",", " ").split()
    if not with_label and len(fields) == features + 1:  # the hash
        fields = fields[1:]
    if len(fields) != features:
        raise BadInput(f"{where}: {len(fields)} features, expected {features} (a line cut short, or features= of another layer)")
    try:
        values = np.array(fields, np.float64)
    except ValueError:
        wrong = next(place for place, value in enumerate(fields) if not _is_real(value))
        raise BadInput(f"{where}: feature {wrong} is {fields[wrong]!r}, no number") from None
    if not np.isfinite(values).all():
        wrong = int(np.argmin(np.isfinite(values)))
        raise BadInput(f"{where}: feature {wrong} is {fields[wrong]}, no finite number")
    return head, values


def _is_real(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _class(where: str, head: str, tags: tuple[str, str]) -> int | None:
    """Of a label or of a list of tags; None where the tags name neither class or both."""
    if head in ("0", "1"):
        return int(head)
    if _is_real(head):
        raise BadInput(f"{where}: {head!r} is neither a label (0 or 1) nor tags; lines that begin with an id need labels=")
    found = {tag.partition(":")[0].strip() for tag in head.split(",")}
    named = [number for number, tag in enumerate(tags) if tag in found]
    return named[0] if len(named) == 1 else None


def _identifiers(files: Sequence[Path]) -> set[str]:
    return {text.split(None, 1)[0] for file in files for _, text in lines(Path(file)) if text.strip()}


def _tagged(path: Path, pictures: set[str], tags: tuple[str, str]) -> dict[str, int | None]:
    """Classes of the pictures asked for; the list of all 100 million is read through, not kept."""
    found: dict[str, int | None] = {}
    for line, text in lines(path):
        picture, tab, rest = text.partition("\t")
        if picture in pictures:
            if not tab:
                raise BadInput(f"{path}, line {line}: expected an id, a tab and tags or a label, got {text[:60]!r}")
            found[picture] = _class(f"{path}, line {line}", rest.strip(), tags) if rest.strip() else None
    return found


def _mapped(path: Path, features: int, number: Number) -> npt.NDArray[Any]:
    kind = np.dtype(number).newbyteorder("<")
    try:
        if path.suffix != ".npy":
            size = path.stat().st_size
            whole = size > 0 and size % (4 * features) == 0
            found = np.memmap(path, kind, "r").reshape(-1, features) if whole else None
        else:
            found, size = np.load(path, mmap_mode="r"), 0
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise BadInput(f"{path} is no whole .npy file ({error})") from None
    if found is None:
        raise BadInput(f"{path} has {size} bytes, no whole number of rows of {4 * features}: cut short, or features= is wrong")
    if found.ndim != 2 or found.shape[1] != features or found.dtype != kind:
        raise BadInput(f"{path} holds {found.dtype} of shape {found.shape}, expected {number} [rows, {features}]")
    return found


def _labels(path: Path) -> Whole:
    if path.suffix == ".txt":
        found = []
        for line, text in lines(path):
            if text.strip() not in ("0", "1"):
                raise BadInput(f"{path}, line {line}: a label is 0 or 1, got {text[:20]!r}")
            found.append(int(text))
        return np.array(found, np.int64)
    try:
        values = np.fromfile(path, np.uint8)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    if (values > 1).any():
        raise BadInput(f"{path}, byte {int(np.argmax(values > 1))}: a label is 0 or 1, got {int(values[np.argmax(values > 1)])}")
    return values.astype(np.int64)


class _Writer:
    """Rows and labels appended to two files; nothing but the rows at hand is kept."""

    def __init__(self, target: Path, features: int, number: Number, fraction: int) -> None:
        if number not in SUFFIX:
            raise UnknownName("number of Yfcc", number, SUFFIX)
        self.matrix, self.labels = (target.with_name(target.name + suffix) for suffix in (SUFFIX[number], ".labels"))
        self.features, self.number, self.fraction, self.count = features, number, fraction, 0

    def __enter__(self) -> _Writer:
        self.streams = self.matrix.open("wb"), self.labels.open("wb")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        for stream, path in zip(self.streams, (self.matrix, self.labels), strict=True):
            stream.close()
            if error or not self.count:
                path.unlink()  # half a file would be taken for a whole one

    def add(self, values: npt.NDArray[np.float64], labels: Whole) -> None:
        if self.number == "float32":
            words: npt.NDArray[Any] = values.astype("<f4")
        else:
            words = fixed_point(values, 32, self.fraction, signed=self.number == "int32").astype(f"<{self.number[0]}4")
        self.streams[0].write(words.tobytes())
        self.streams[1].write(labels.astype(np.uint8).tobytes())
        self.count += len(labels)

    def result(self) -> Yfcc:
        if not self.count:
            raise BadInput(f"no picture has a label: {self.matrix} would be empty")
        return Yfcc(self.matrix, self.labels, self.features, self.number, self.fraction)
