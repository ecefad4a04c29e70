"""Machine files in TOML: tables of parts, `type` or `base` in each, units allowed, unknown and repeated keys refused."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import BadInput
from trainyard.files import read_text, write_text
from trainyard.machines.build import from_table
from trainyard.machines.describe import describe


def load_toml(path: str | os.PathLike[str]) -> Any:
    """The machine of a file; every error is one line that names the file and the key."""
    return from_table(read_table(path), f"{path}: ")


def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    text = read_text(path, "machine file")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(_one_line(str(path), text, str(error))) from None


def _one_line(path: str, text: str, problem: str) -> str:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", problem)
    if place is None:
        return f"{path}: {problem}"
    line = int(place.group(1))
    content = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
    if "Cannot overwrite" in problem or "twice" in problem:
        key = content.partition("=")[0].strip() or content
        return f"{path}, line {line}: '{key}' is given twice"
    return f"{path}, line {line}, column {place.group(2)}: {problem[: place.start()]}: {content}"


def save_toml(machine: Any, path: str | os.PathLike[str]) -> None:
    """Writes every field, so that the file means the same machine when a default changes."""
    write_text(path, "\n".join(_lines(describe(machine), "")) + "\n")


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_toml(value)}"
    for key, value in inner.items():
        yield ""
        yield f"[{prefix}{_key(key)}]"
        yield from _lines(value, f"{prefix}{_key(key)}.")


def _key(key: Any) -> str:
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else json.dumps(str(key))


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return repr(value)
