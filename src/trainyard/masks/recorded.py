"""Packed non-zero masks of A, W and G from a real training run, in one safetensors file.

Recording streams: one tensor's mask is in memory at a time (1 byte an element while packed, then 1 bit on disk). Reading takes
one mask at a time from the file. A file named `.xz` is compressed on writing and decompressed into memory on reading. Keys are
(layer path, call of that layer, letter), never op numbers, so that masks recorded on any device fit the Step.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from trainyard.errors import MaskError, UnknownName
from trainyard.ir import Convolution, MatMul, Op, Step, TensorKey

FORMAT = "trainyard.masks"
VERSION = "1"
HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit
COMPRESSED = ".xz"
UNPACKED_LIMIT_BYTES = 1 << 30  # assumed: what a laptop holds; a step of VGG-16 takes 0.74 GB at batch 256
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """One recorded tensor: its shape, the samples of the batch that were recorded, and where its bits lie in the file."""

    shape: tuple[int, ...]
    start: int
    nonzero: int
    samples: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def packed_bytes(self) -> int:
        return -(-self.elements // 8)

    @property
    def density(self) -> float:
        return self.nonzero / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class Masks:
    """Masks of one training run at one of its recorded training steps, the first by default; `at` chooses another."""

    path: Path
    recorded: Mapping[int, Mapping[TensorKey, MaskSpec]]
    metadata: Mapping[str, str]
    data_start: int
    step: int = field(default=0)
    unpacked: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Masks:
        """Reads the header; the bits of a tensor are read when they are needed. A `.xz` file is decompressed into memory."""
        file = Path(path)
        unpacked = _unpacked(file) if file.suffix == COMPRESSED else None
        header, data_start = _read_header(file, unpacked)
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise MaskError(f"{file} is a safetensors file, but not of masks (record one with `trainyard record`)")
        if metadata.get("version") != VERSION:
            raise MaskError(
                f"{file}: masks of version {metadata.get('version')!r}, this release reads version {VERSION}: record them again"
            )
        try:
            recorded = _specs(header, json.loads(metadata["tensors"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MaskError(f"{file}: damaged masks ({type(error).__name__}: {error}): record them again") from None
        needed = max((s.start + s.packed_bytes for specs in recorded.values() for s in specs.values()), default=0)
        size = file.stat().st_size if unpacked is None else len(unpacked)
        if size < data_start + needed:
            raise MaskError(f"{file} is truncated: {size} bytes of {data_start + needed}: record it again")
        if not recorded:
            raise MaskError(f"{file} holds no masks")
        return cls(file, recorded, metadata, data_start, min(recorded), unpacked)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.recorded)

    def at(self, step: int) -> Masks:
        """The masks of another recorded training step of the same run."""
        if step not in self.recorded:
            raise MaskError(f"{self.path}: no masks of training step {step} (recorded: {', '.join(map(str, self.recorded))})")
        return Masks(self.path, self.recorded, self.metadata, self.data_start, step, self.unpacked)

    @property
    def specs(self) -> Mapping[TensorKey, MaskSpec]:
        return self.recorded[self.step]

    @cached_property
    def digest(self) -> str:
        """A hash of the bits and of the tensors they belong to."""
        return hashlib.sha256(f"{self.metadata['digest']}@{self.step} {sorted(self.specs.items())}".encode()).hexdigest()

    def spec(self, key: TensorKey) -> MaskSpec:
        """The spec of one mask; calls of a layer share the weight of the latest earlier call that recorded one."""
        layer, call, letter = key
        for earlier in range(call, -1 if letter == "W" else call - 1, -1):
            if (layer, earlier, letter) in self.specs:
                return self.specs[layer, earlier, letter]
        raise UnknownName("mask", "/".join(map(str, key)), ("/".join(map(str, k)) for k in self.specs), str(self.path))

    def density(self, key: TensorKey) -> float:
        """Share of non-zero elements."""
        return self.spec(key).density

    def bits(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        spec = self.spec(key)
        start = self.data_start + spec.start
        if self.unpacked is None:
            packed = np.fromfile(self.path, np.uint8, spec.packed_bytes, offset=start)
        else:
            packed = np.frombuffer(self.unpacked, np.uint8, spec.packed_bytes, offset=start)
        if packed.size != spec.packed_bytes:
            raise MaskError(f"{self.path} is truncated at {'/'.join(map(str, key))}: record it again")
        return np.unpackbits(packed, count=spec.elements).astype(np.bool_).reshape(spec.shape)

    def check(self, step: Step) -> None:
        """Raises where these masks do not fit a step, with the layer that does not."""
        wanted: dict[TensorKey, int] = {}
        for op in step.ops:
            wanted.update(operand_elements(op))
        layers = {op.layer for op in step.ops}
        for key, spec in self.specs.items():
            layer, _, letter = key
            if layer not in layers:
                near = UnknownName("layer", layer, layers).nearest
                offer = f"; the nearest layer of the step is {near!r}" if near else ""
                raise MaskError(
                    f"{self.path}: masks of layer {layer!r} do not fit step {step.name!r}, which has no such layer{offer}"
                )
            if key in wanted and not _fits(spec, wanted[key], step.batch, letter):
                raise MaskError(
                    f"{self.path}: the mask of layer {layer!r}, {letter}, has shape {spec.shape} = {spec.elements} elements, "
                    f"but step {step.name!r} at batch {step.batch} has {wanted[key]}: record at this batch, or run at the batch "
                    "that was recorded"
                )


def _fits(spec: MaskSpec, elements: int, batch: int, letter: str) -> bool:
    if spec.elements == elements:
        return True
    if spec.samples is None or letter == "W":
        return False
    return spec.elements * batch == elements * len(spec.samples)


def operand_elements(op: Op) -> dict[TensorKey, int]:
    """Elements of each lettered operand of a product, by mask key."""
    body = op.body
    if isinstance(body, Convolution):  # by position, not letter: a transposed convolution's A is a convolution's G
        small, image, weight = body.output_elements, body.input_elements, body.weight_elements
        sizes = {"forward": (image, weight), "grad_input": (small, weight), "grad_weight": (small, image)}[body.product]
    elif isinstance(body, MatMul):
        sizes = (body.M * body.K * body.count, body.K * body.N * body.count)
    else:
        return {}
    return {(op.layer, op.call, letter): size for letter, size in zip(op.letters, sizes, strict=False) if letter}


def _unpacked(file: Path) -> bytes:
    """The content of a compressed file; an error where it would not fit in memory."""
    parts: list[bytes] = []
    left = UNPACKED_LIMIT_BYTES
    try:
        with lzma.open(file) as stream:
            while block := stream.read(BLOCK_BYTES):
                left -= len(block)
                if left < 0:
                    raise MaskError(
                        f"{file} holds more than {UNPACKED_LIMIT_BYTES} bytes: decompress it with `xz -d` and read that"
                    )
                parts.append(block)
    except (lzma.LZMAError, EOFError) as error:
        raise MaskError(f"{file} is not a whole .xz file ({error}): record it again") from None
    except OSError as error:
        raise MaskError(f"cannot read masks {file}: {error.strerror or error}") from None
    return b"".join(parts)


def _read_header(file: Path, unpacked: bytes | None) -> tuple[dict[str, Any], int]:
    try:
        with file.open("rb") if unpacked is None else io.BytesIO(unpacked) as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise MaskError(f"{file} is not a masks file: too short for a safetensors header")
            (length,) = struct.unpack("<Q", prefix)
            if not 2 <= length <= HEADER_LIMIT_BYTES:
                raise MaskError(f"{file} is not a masks file: no safetensors header")
            text = stream.read(length)
    except OSError as error:
        raise MaskError(f"cannot read masks {file}: {error.strerror or error}") from None
    if len(text) < length:
        raise MaskError(f"{file} is truncated inside its header: record it again")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise MaskError(f"{file} is not a masks file: its safetensors header is no JSON") from None
    if not isinstance(header, dict):
        raise MaskError(f"{file} is not a masks file: its safetensors header is no JSON object")
    return header, 8 + length


def _specs(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[int, dict[TensorKey, MaskSpec]]:
    specs: dict[int, dict[TensorKey, MaskSpec]] = {}
    for name, row in tensors.items():
        start, end = header[name]["data_offsets"]
        samples = None if row["samples"] is None else tuple(row["samples"])
        spec = MaskSpec(tuple(int(d) for d in row["shape"]), int(start), int(row["nonzero"]), samples)
        if spec.packed_bytes != end - start:
            raise ValueError(f"{name}: {end - start} bytes for shape {spec.shape}")
        specs.setdefault(int(row["step"]), {})[(row["layer"], int(row["call"]), row["letter"])] = spec
    return dict(sorted(specs.items()))


def _blocks(data: BinaryIO, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for first, last in ranges:
        data.seek(first)
        while first < last and (block := data.read(min(BLOCK_BYTES, last - first))):
            first += len(block)
            yield block


def _digest(data: BinaryIO, ranges: Iterable[tuple[int, int]]) -> str:
    digest = hashlib.sha256()
    for block in _blocks(data, ranges):
        digest.update(block)
    return digest.hexdigest()


def _sink(file: Path, compressed: bool) -> BinaryIO:
    return cast(BinaryIO, lzma.open(file, "wb", preset=6 | lzma.PRESET_EXTREME)) if compressed else file.open("wb")


class MaskWriter:
    """Writes masks one by one; only the header stays in memory."""

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, str]) -> None:
        self.target = Path(path)
        self._about = dict(about)
        self._part = self.target.with_name(f".{self.target.name}.part")
        self._header: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}
        self._size = 0
        try:
            self._stream = self._part.open("wb")
        except OSError as error:
            raise MaskError(f"cannot write {self.target}: {error.strerror or error}") from None

    def add(self, step: int, key: TensorKey, bits: npt.NDArray[np.bool_], samples: Iterable[int] | None = None) -> None:
        packed = np.packbits(np.ascontiguousarray(bits)).tobytes()
        try:
            self._stream.write(packed)
            self._stream.flush()
        except OSError as error:
            self.discard()
            raise MaskError(f"cannot write {self.target}: {error.strerror or error}") from None
        layer, call, letter = key
        name = f"{step}/{layer}/{call}/{letter}"
        self._header[name] = {"dtype": "U8", "shape": [len(packed)], "data_offsets": [self._size, self._size + len(packed)]}
        self._tensors[name] = {
            "step": step,
            "layer": layer,
            "call": call,
            "letter": letter,
            "shape": list(bits.shape),
            "nonzero": int(bits.sum()),
            "samples": None if samples is None else list(samples),
        }
        self._size += len(packed)

    @property
    def empty(self) -> bool:
        return not self._tensors

    def forget(self, step: int, key: TensorKey) -> None:
        """Removes a mask that was added."""
        name = "/".join(map(str, (step, *key)))
        self._header.pop(name, None)
        self._tensors.pop(name, None)

    def close(self) -> Masks:
        from trainyard.files import whole_file

        try:
            self._stream.close()
            with self._part.open("rb") as data:
                ranges = self._close_gaps()
                metadata = {
                    "format": FORMAT,
                    "version": VERSION,
                    **self._about,
                    "tensors": json.dumps(self._tensors, separators=(",", ":")),
                    "digest": _digest(data, ranges),
                }
                header = json.dumps({"__metadata__": metadata, **self._header}, separators=(",", ":")).encode()
                header += b" " * (-len(header) % 8)
                with whole_file(self.target) as whole, _sink(whole, self.target.suffix == COMPRESSED) as out:
                    out.write(struct.pack("<Q", len(header)))
                    out.write(header)
                    for block in _blocks(data, ranges):
                        out.write(block)
        finally:
            self.discard()
        return Masks.open(self.target)

    def _close_gaps(self) -> list[tuple[int, int]]:
        """The ranges of the remaining masks in the part file; their offsets in the header are changed to those without gaps."""
        ranges: list[tuple[int, int]] = []
        end = 0
        for row in self._header.values():
            first, last = row["data_offsets"]
            ranges.append((first, last))
            row["data_offsets"] = [end, end + last - first]
            end += last - first
        return ranges

    def discard(self) -> None:
        """Removes the part file."""
        with suppress(OSError):  # a full disk refuses the last buffer again
            self._stream.close()
        self._part.unlink(missing_ok=True)
