"""Reading data sets from a local path: lines of a text file, plain, in .gz, .bz2 or .zip, with errors that name file and line."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput

Lines = Iterator[tuple[int, str]]
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


@contextmanager
def opened(path: Path, inside: str = "") -> Iterator[io.TextIOBase]:
    """The text file at `path`; of a .zip, the only member whose name ends in `inside`, or the only one."""
    try:
        if path.suffix in COMPRESSED:
            with COMPRESSED[path.suffix](path, "rb") as packed:
                yield io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
            return
        if path.suffix != ".zip":
            with path.open(encoding="utf-8", newline="\n") as stream:
                yield stream
            return
        with zipfile.ZipFile(path) as archive, archive.open(_member(path, archive, inside)) as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
    except (EOFError, zlib.error) as error:
        raise BadInput(f"{path} is damaged or ends too early ({error})") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start} of a block)") from None
    except zipfile.BadZipFile as error:
        raise BadInput(f"{path} is not a whole .zip file ({error})") from None


def _member(path: Path, archive: zipfile.ZipFile, inside: str) -> str:
    found = [name for name in archive.namelist() if not inside or name == inside or name.endswith(f"/{inside}")]
    if len(found) != 1:
        files = f"files {inside!r}" if inside else "files"
        raise BadInput(f"{path} holds {len(found)} {files}, expected one (it has {', '.join(archive.namelist()[:8])})")
    return found[0]


def lines(path: Path, inside: str = "") -> Lines:
    """(number from 1, text without its end) of every line."""
    with opened(path, inside) as stream:
        for number, line in enumerate(stream, start=1):
            yield number, line.rstrip("\r\n")


def folder(root: Path, what: str) -> Path:
    if not root.is_dir():
        raise BadInput(f"{what}: there is no folder {root} (data sets are read from disk, nothing is downloaded)")
    return root


def columns(path: Path, inside: str = "", *, skip_short: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Fields of a tab-separated file without quoting; lines with fewer than the first are an error, or skipped."""
    width = 0
    for number, line in lines(path, inside):
        fields = line.split("\t")
        width = width or len(fields)
        if len(fields) < width:
            if skip_short:
                continue
            raise BadInput(f"{path}, line {number}: {len(fields)} fields separated by tabs, the first line has {width}")
        yield number, fields
