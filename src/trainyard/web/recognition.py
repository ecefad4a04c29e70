"""What an upload is, by its content, and whether the loader it is meant for takes it. Runs in a worker, never in the server.

A name decides nothing. Nothing is unpickled: steps are JSON, topologies CSV, models ONNX's protobuf, masks safetensors' headers,
stores Parquet, machines TOML or SCALE-Sim's INI; what a machine file names is kept from files and modules as a visitor's text is.
"""

from __future__ import annotations

import configparser
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from trainyard.errors import BadInput, TrainyardError
from trainyard.reading import limit, parse_toml, reader, require_within
from trainyard.web import guard

Kind = Literal["step", "topology", "onnx", "masks", "machine", "store"]
PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
ONNX_FIRST = b"\x08"
"""The tag of a model's first field, ir_version: field 1, a varint."""
PYTHON = re.compile(r"^(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:])", re.MULTILINE)
"""A line of a program."""
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How an archive of torch.save and a pickle begin."""
LENGTH_BYTES = 8
"""Of safetensors: the length of a JSON header that follows it."""


@reader("upload", source="name")
def recognised(path: str, target: str, name: str, unpacked_bytes: int) -> dict[str, Any]:
    """What the file at `path` is. Once checked, it is stored as `target` with the ending that its loader expects."""
    stored = Path(target)
    try:
        content = unpacked(Path(path).read_bytes(), unpacked_bytes)
        _refuse_program(content, name)
        kind, ending = kind_of(content)
        if kind == "machine":
            _require_harmless(content.decode(), ending)
        stored = Path(target + ending)
        _keep(stored, kind, content)
        about = ABOUT[kind](str(stored))
    except TrainyardError as error:
        remove(stored)
        raise BadInput(str(error).replace(str(stored), name)) from error.__cause__
    except BaseException:
        remove(stored)
        raise
    return {"kind": kind, "about": about, "path": str(stored), "bytes": len(content)}


def _refuse_program(content: bytes, name: str) -> None:
    """A program or a pickle would have to be run: the owner runs it and uploads the step that it makes."""
    text = _text(content) or ""
    if name.lower().endswith(".py") or PYTHON.search(text):
        function = found[1] if (found := re.search(r"^def (\w+)\(", text, re.MULTILINE)) else "build"
        raise BadInput(
            f"{name} is a program, and the page runs none. Write its step to a file and upload that: "
            f"trainyard export {name}:{function} --to step -o step.json"
        )
    if content.startswith(PICKLES):
        raise BadInput(
            f"{name} is a pickle or an archive such as torch.save writes, and the page opens none. Write its step to a file "
            "and upload that: trainyard export my.py:build --to step -o step.json"
        )


def _keep(path: Path, kind: Kind, content: bytes) -> None:
    """As a file; the points of a sweep as a store with nothing else in it."""
    if kind != "store":
        path.write_bytes(content)
        return
    from trainyard.sweep.store import FORMAT, FORMAT_VERSION, MANIFEST, POINTS, manifest_bytes

    path.mkdir(exist_ok=True)
    (path / POINTS).write_bytes(content)
    (path / MANIFEST).write_bytes(manifest_bytes({"format": FORMAT, "version": FORMAT_VERSION, "study": {}}))


def remove(path: Path) -> None:
    """The file of an upload, or its folder."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def unpacked(content: bytes, limit_bytes: int) -> bytes:
    """The content, decompressed if it is gzip's; a bomb is stopped one byte after the limit."""
    if not content.startswith(GZIP):
        return content
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = reader.decompress(content, limit_bytes + 1)
    except zlib.error as error:
        raise BadInput(f"damaged gzip file: {error}") from None
    if len(plain) > limit_bytes:
        raise BadInput(f"more than {limit_bytes} bytes when unpacked, the limit of this server")
    if not reader.eof:
        raise BadInput("damaged gzip file: it ends too early")
    return plain


def kind_of(content: bytes) -> tuple[Kind, str]:
    """The kind, and the ending by which its loader is chosen.

    >>> kind_of(b'{"format": "trainyard.step"}'), kind_of(b"Layer, M, N, K,")
    (('step', '.json'), ('topology', '.csv'))
    """
    if content[4:LENGTH_BYTES] == bytes(4) and content[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{":
        return "masks", ".safetensors"
    if content.startswith(PARQUET) and content.endswith(PARQUET):
        return "store", ".store"
    if content.startswith(ONNX_FIRST):  # no text begins with this sign
        return "onnx", ".onnx"
    text = _text(content)
    if text is None:
        raise BadInput(
            "not a file this reads: a Step (.json, .json.gz), a SCALE-Sim .csv or .cfg, .onnx, .safetensors, .toml, .parquet"
        )
    if text.lstrip().startswith("{"):
        return "step", ".json"
    if "[architecture_presets]" in text.lower():
        return "machine", ".cfg"
    try:
        table = parse_toml(text, "machine file") if len(text) <= limit("machine_bytes") else {}
    except (ValueError, RecursionError):
        table = {}
    if "type" in table or "base" in table:
        return "machine", ".toml"
    if "," in text:
        return "topology", ".csv"
    raise BadInput("a text that is no Step (JSON), no SCALE-Sim topology (CSV) or configuration, and no machine (TOML)")


def _text(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or not text.strip() else text


def _require_harmless(text: str, ending: str) -> None:
    require_within("machine_bytes", len(text), "machine file")
    if ending == ".toml":
        guard.require_plain(parse_toml(text, "machine file"), "machine file")
        return
    config = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"), strict=False)
    try:
        config.read_string(text)
    except configparser.Error as error:
        raise BadInput(f"not a configuration: {' '.join(str(error).split())}") from None


def _about_step(path: str) -> str:
    from trainyard.workloads.named import load

    step = load(path)
    return f"batch {step.batch}, {len(step)} ops, {len(step.layers)} layers, {step.macs:,} MACs"


def _about_onnx(path: str) -> str:
    """A model with open dimensions is accepted: their sizes come with the workload, as `upload-...:sequence=128`."""
    try:
        return _about_step(path)
    except BadInput as error:
        if "open dimension" not in str(error):
            raise
        return f"name a size with it, as in :sequence=128; {str(error).removeprefix(f'{path}: ')}"


def _about_masks(path: str) -> str:
    from trainyard.masks.recorded import Masks

    masks = Masks.open(path)
    return f"{len(masks.specs)} masks of training steps {', '.join(map(str, masks.steps[:10]))}"


def _about_store(path: str) -> str:
    from trainyard.sweep.store import Store

    return f"{len(Store(path))} points of a sweep"


def _about_machine(path: str) -> str:
    from trainyard.machines import machine, title

    return title(machine(f"'{path}'"))


ABOUT: Mapping[Kind, Callable[[str], str]] = {
    "step": _about_step,
    "topology": _about_step,
    "onnx": _about_onnx,
    "masks": _about_masks,
    "machine": _about_machine,
    "store": _about_store,
}
