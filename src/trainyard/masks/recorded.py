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

from trainyard.checks import LARGEST_COUNT
from trainyard.errors import BadInput, MaskError, UnknownName, quoted
from trainyard.ir import Convolution, MatMul, Op, Step, TensorKey
from trainyard.reading import BLOCK_BYTES, Brackets, blocks, limit, parse_json, reader, reason, regular_file

FORMAT = "trainyard.masks"
VERSION = "1"
LENGTH_BYTES = 8
"""Of safetensors: the length of the JSON header that follows it."""
COMPRESSED = ".xz"


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
    @reader("masks", error=MaskError)
    def open(cls, path: str | os.PathLike[str]) -> Masks:
        """Reads the header; the bits of a tensor are read when they are needed. A `.xz` file is decompressed into memory."""
        file = Path(path)
        try:
            header, size, unpacked = _content(file)
        except BadInput as error:
            raise MaskError(str(error)) from None
        if size < header.whole_bytes:
            raise MaskError(f"{file} is truncated: {size} bytes of {header.whole_bytes}: record it again")
        if not header.recorded:
            raise MaskError(f"{file} holds no masks")
        return cls(file, header.recorded, header.metadata, header.data_start, min(header.recorded), unpacked)

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
            with regular_file(self.path, "masks") as stream:
                stream.seek(start)
                packed = np.frombuffer(stream.read(spec.packed_bytes), np.uint8)
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


@dataclass(frozen=True, slots=True)
class _Header:
    """What a masks file says of itself, and how long it is to be."""

    metadata: Mapping[str, str]
    recorded: Mapping[int, Mapping[TensorKey, MaskSpec]]
    data_start: int

    @property
    def whole_bytes(self) -> int:
        """Bytes up to the end of the last mask."""
        ends = (spec.start + spec.packed_bytes for specs in self.recorded.values() for spec in specs.values())
        return self.data_start + max(ends, default=0)


def _content(file: Path) -> tuple[_Header, int, bytes | None]:
    """The header of a masks file, the bytes that there are, and all of them where the file is compressed.

    A compressed file is unpacked only as far as its header says, so that a small file cannot fill the memory.
    """
    if file.suffix != COMPRESSED:
        with regular_file(file, "masks") as stream:
            length = _header_length(file, stream.read(LENGTH_BYTES))
            return _header(file, stream.read(length), length), os.fstat(stream.fileno()).st_size, None
    content, header = io.BytesIO(), None
    try:
        for block in blocks(file, "masks", "masks_bytes"):
            content.write(block)
            if header is None and content.tell() >= LENGTH_BYTES:
                length = _header_length(file, content.getbuffer()[:LENGTH_BYTES].tobytes())
                if content.tell() >= LENGTH_BYTES + length:
                    header = _header(file, content.getbuffer()[LENGTH_BYTES : LENGTH_BYTES + length].tobytes(), length)
            if header is not None and content.tell() > header.whole_bytes + BLOCK_BYTES:
                raise MaskError(f"{file}: its header says {header.whole_bytes} bytes, and it holds more: record it again")
    except (lzma.LZMAError, EOFError) as error:
        raise MaskError(f"{file} is not a whole .xz file ({error}): record it again") from None
    if header is None:
        header = _header(file, b"", _header_length(file, content.getvalue()[:LENGTH_BYTES]))
    return header, content.tell(), content.getvalue()


def _header_length(file: Path, prefix: bytes) -> int:
    if len(prefix) < LENGTH_BYTES:
        raise MaskError(f"{file} is not a masks file: too short for a safetensors header")
    (length,) = struct.unpack("<Q", prefix)
    if not 2 <= length <= limit("masks_header_bytes"):
        raise MaskError(f"{file} is not a masks file: no safetensors header")
    return int(length)


def _header(file: Path, text: bytes, length: int) -> _Header:
    if len(text) < length:
        raise MaskError(f"{file} is truncated inside its header: record it again")
    try:
        Brackets(f"masks {file}").count(text)
        header = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise MaskError(f"{file} is not a masks file: its safetensors header is no JSON ({_problem(error)})") from None
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise MaskError(f"{file} is a safetensors file, but not of masks (record one with `trainyard record`)")
    if metadata.get("version") != VERSION:
        raise MaskError(
            f"{file}: masks of version {quoted(metadata.get('version'))}, this release reads version {VERSION}: record them again"
        )
    try:
        for key, value in metadata.items():
            _require(isinstance(value, str), f"__metadata__.{key}: expected text, got {quoted(value)}")
        _require("digest" in metadata, "__metadata__ has no digest")
        Brackets(f"masks {file}").count(metadata["tensors"].encode())
        recorded = _specs(header, parse_json(metadata["tensors"]))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise MaskError(f"{file}: damaged masks ({_problem(error)}): record them again") from None
    return _Header(metadata, recorded, LENGTH_BYTES + length)


def _problem(error: Exception) -> str:
    return str(error) if isinstance(error, BadInput) else reason(error)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise BadInput(problem)


def _specs(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[int, dict[TensorKey, MaskSpec]]:
    """The masks by training step and key; every number is whole and within its file."""
    specs: dict[int, dict[TensorKey, MaskSpec]] = {}
    for name, row in tensors.items():
        start, end = header[name]["data_offsets"]
        shape, samples = row["shape"], row["samples"]
        whole = (start, end, row["nonzero"], row["step"], row["call"], *shape, *(samples or ()))
        for number in whole:
            _require(type(number) is int and 0 <= number <= LARGEST_COUNT, f"{name}: {quoted(number)} is no count")
        for word in ("layer", "letter"):
            _require(isinstance(row[word], str), f"{name}: {word} is {quoted(row[word])}, no text")
        spec = MaskSpec(tuple(shape), start, row["nonzero"], None if samples is None else tuple(samples))
        _require(spec.packed_bytes == end - start, f"{name}: {end - start} bytes for shape {quoted(spec.shape)}")
        _require(spec.nonzero <= spec.elements, f"{name}: {spec.nonzero} of {spec.elements} elements are not zero")
        specs.setdefault(row["step"], {})[(row["layer"], row["call"], row["letter"])] = spec
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
