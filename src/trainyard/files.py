"""Atomic writes, reads with errors that a user understands, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainyard.errors import BadInput


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and is removed when it does not.

    A full disk or a missing folder becomes one line; the old file, if any, stays as it was. A pipe or a device is written to, not
    replaced.
    """
    target = Path(path)
    special = target.exists() and not target.is_file()
    temporary: Path | None = None
    try:
        folder = tempfile.gettempdir() if special else target.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.", suffix=".part")
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
        raise BadInput(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    with whole_file(path) as part:
        part.write_bytes(content)


def read_text(path: str | os.PathLike[str], what: str = "file") -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{what} {path} is not text") from None
    except OSError as error:
        raise BadInput(f"cannot read {what} {path}: {error.strerror or error}") from None


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

    >>> len(source_digest())
    64
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for name in ("numpy", "numba", "torch"):
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)}\n".encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
            digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
