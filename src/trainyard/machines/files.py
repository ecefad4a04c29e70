"""Machine files in TOML: tables of parts, `type` or `base` in each, units allowed, unknown and repeated keys refused.

A file named in a file is looked for beside it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.files import write_text
from trainyard.machines.build import describe, from_table
from trainyard.reading import parse_toml, read_text, reader, require_within

_CONTROL = re.compile("[\x7f-\x9f]")
"""What TOML allows in a text, and a terminal obeys."""
WIDEST = 40
"""Where the remarks begin at the latest."""

MOST_FILES_DEEP = 32
"""Machine files that start from machine files."""


@reader("machine file")
def load_toml(path: str | os.PathLike[str]) -> Any:
    """The machine of a file; every error is one line that names the file, the key and its line."""
    _check_circle(Path(path), ())
    folder = Path(path).parent
    table = _resolved_paths(read_table(path), folder)
    try:
        return from_table(table, f"{path}: ")
    except TrainyardError as error:
        if line := _line_of(error, path):
            error.args = (str(error).replace(str(path), f"{path}, line {line}", 1),)
        raise


def _line_of(error: TrainyardError, path: str | os.PathLike[str]) -> int | None:
    """The line of the file that sets the key which an error is about; None where that is not known."""
    named = re.match(rf"{re.escape(str(path))}: ([\w.-]+)", str(error))
    key = error.given if isinstance(error, UnknownName) else named.group(1) if named else ""
    setting = re.compile(rf"""\s*(?:[\w."'-]+\.)?["']?{re.escape(key.rpartition(".")[2])}["']?\s*=""")
    lines = read_text(path, "machine file").splitlines()
    return next((number for number, line in enumerate(lines, start=1) if key and setting.match(line)), None)


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith((".toml", ".cfg"))


def _resolved_paths(value: Any, folder: Path) -> Any:
    """The table with every machine file in it named from here, not from the file's own folder."""
    if isinstance(value, Mapping):
        return {key: _resolved_paths(item, folder) for key, item in value.items()}
    if not _is_file(value):
        return value
    quote = '"' if "'" in str(folder / value) else "'"  # brackets and commas of a path are not the grammar's
    return f"{quote}{folder / value}{quote}"


def _check_circle(path: Path, above: tuple[Path, ...]) -> None:
    here = path.resolve()
    if len(above) > MOST_FILES_DEEP:
        raise BadInput(f"{path}: more than {MOST_FILES_DEEP} machine files start from each other")
    if here in above:
        raise BadInput(f"{path}: the machine starts from itself ({' -> '.join(file.name for file in (*above, here))})")
    for name in _files_in(read_table(path)):
        if name.endswith(".toml") and (path.parent / name).is_file():
            _check_circle(path.parent / name, (*above, here))


def _files_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _files_in(item)
    elif _is_file(value):
        yield value


@reader("machine file")
def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table of a machine or mapping file."""
    text = read_text(path, "machine file")
    require_within("machine_line", max(map(len, text.splitlines()), default=0), str(path))
    try:
        return parse_toml(text, str(path))
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(_one_line(str(path), text, str(error))) from None


def _one_line(path: str, text: str, problem: str) -> str:
    position = re.search(r" \(at line (\d+), column (\d+)\)$", problem)
    if position is None:
        return f"{path}: {problem}"
    line = int(position.group(1))
    content = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
    if "Cannot overwrite" in problem or "twice" in problem:
        key = content.partition("=")[0].strip() or content
        return f"{path}, line {line}: '{key}' is given twice"
    return f"{path}, line {line}, column {position.group(2)}: {problem[: position.start()]}: {content}"


def save_toml(machine: Any, path: str | os.PathLike[str]) -> None:
    write_text(path, to_toml(machine))


def to_toml(machine: Any, remarks: Mapping[str, str] | None = None) -> str:
    """Every field, so that the file means the same machine when a default changes; a remark stands behind its field's line."""
    return "\n".join(_lines(describe(machine), "", remarks or {})) + "\n"


def _lines(table: Mapping[str, Any], prefix: str, remarks: Mapping[str, str]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {f"{_key(key)} = {_toml(value)}": remarks.get(f"{prefix}{key}") for key, value in table.items() if key not in inner}
    width = min(max((len(line) for line, remark in plain.items() if remark), default=0), WIDEST)
    for line, remark in plain.items():
        yield f"{line:<{width}}  # {remark}" if remark else line
    for key, value in inner.items():
        yield ""
        yield f"[{prefix}{_key(key)}]"
        yield from _lines(value, f"{prefix}{_key(key)}.", remarks)


def _key(key: Any) -> str:
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else json.dumps(str(key))


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):  # a line each
        return "[\n" + "".join(f"    {_toml(item)},\n" for item in value) + "]"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    short = f"{value:g}" if isinstance(value, float) else ""
    return short if "e" in short and float(short) == value else repr(value)  # 1.5e+11, not 150000000000.0
