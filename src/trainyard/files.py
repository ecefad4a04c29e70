"""Atomic writes with errors that a user understands, and the cache folder. (`reading` has the other direction.)"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.reading import reason

SHIPPED_LEDGER = "shipped_ledger.json.gz"
"""The file of `papers.shipped`."""


MOST_OF_NAME = 40
"""Characters of a file's name that the name of its temporary file repeats: a name may have 255 bytes in all."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and is removed when it does not.

    A full disk or a missing folder becomes one line; the old file, if any, stays as it was. A pipe or a device is written to, not
    replaced.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        special = _is_special(target)
        folder = tempfile.gettempdir() if special else target.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name[:MOST_OF_NAME]}.", suffix=".part")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        if special:
            with temporary.open("rb") as source, target.open("wb") as stream:
                shutil.copyfileobj(source, stream)
            return
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {reason(error)}") from None
    except ValueError as error:  # a name that no file can have
        if isinstance(error, BadInput) or temporary is not None:
            raise
        raise BadInput(f"cannot write {target}: {reason(error)}") from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _is_special(target: Path) -> bool:
    """Whether something has this name that is no file: a folder, a pipe or a device."""
    try:
        return not stat.S_ISREG(os.stat(target).st_mode)
    except FileNotFoundError:
        return False


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuses, before anything is computed for it, a file that `whole_file` could not write: a file is tried in its folder."""
    target = Path(path)
    if os.path.isdir(target) or os.fspath(path).endswith(os.sep):
        raise BadInput(f"cannot write {path}: it is a folder; name a file in it, as in {target / 'NAME'}")
    if not os.path.isdir(target.parent):
        raise BadInput(f"cannot write {path}: there is no folder {target.parent}")
    try:
        if _is_special(target):  # a pipe or a device
            os.close(os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
        else:
            tempfile.TemporaryFile(dir=target.parent).close()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot write {path}: {reason(error)}") from None


def require_folder(path: str | os.PathLike[str]) -> None:
    """Refuses a folder to write to that cannot be made: a file has its name, or stands in its way."""
    target = Path(path)
    for place in (target, *target.parents):
        if os.path.exists(place) and not os.path.isdir(place):
            raise BadInput(f"cannot write to {path}: {place} is a file; name a folder")
    try:
        os.stat(target)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot write to {path}: {reason(error)}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # of a file's name that is no UTF-8


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    with whole_file(path) as part:
        part.write_bytes(content)


def cache_folder() -> Path:
    """The folder of cached results: `$TRAINYARD_CACHE`, or `trainyard` in the user's cache folder.

    Nothing in it is needed; it may be deleted at any time.
    """
    if folder := os.environ.get("TRAINYARD_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"


@cache
def source_digest() -> str:
    """Of every file of the package, and of the versions that its numbers rest on: what another program may have computed otherwise.

    The shipped ledger is left out: it is computed by the others. So is all that running leaves in `__pycache__`.

    >>> len(source_digest())
    64
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for name in ("numpy", "numba", "torch"):
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)}\n".encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if "__pycache__" not in path.parts and path.is_file() and path.name != SHIPPED_LEDGER:
            digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
