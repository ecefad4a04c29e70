"""Where compiled loops are kept on disk, when they are out of date, and that only one process compiles a loop.

numba keeps a compiled function in `$NUMBA_CACHE_DIR`, else beside its source, else in the user's cache folder; where none of them
can be written (a read-only installation, a container without a home) it refuses to define the function at all. Here a folder of
this user in the system's temporary folder takes their place, with one line of warning.

A compiled function contains what it calls, but numba looks at its own source file alone: after a change of a function in another
file the cache would still have the old one. Here the files that a source imports from this package count as well.

numba writes a function to its cache after compiling it, and looks for it before: processes that begin together all find nothing,
and each compiles everything. Here a process that wants a loop waits (flock) while another compiles it, and then reads it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl, _SourceFileBackedLocatorMixin
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from trainyard.errors import TrainyardError
from trainyard.kernels.compilation import call_with_room

VARIABLE = "NUMBA_CACHE_DIR"
PREFIX = f"{__package__}."
FOLDER = Path(__file__).parent
IMPORT = re.compile(rf"^\s*from ({re.escape(__package__)}[\w.]*) import (\([^)]*\)|[^\n(]*)", re.MULTILINE)
"""What a module imports from this package, wherever in its text."""


def has_place() -> bool:
    """Whether numba finds a folder that it can write for the loops of this package."""
    try:
        CompileResultCacheImpl(has_place)  # type: ignore[no-untyped-call]  # numba has no types
    except RuntimeError:
        return False
    return True


def use_temporary_folder() -> None:
    """Keeps compiled loops in a temporary folder from now on, in the processes that this one starts too, and says so."""
    folder = Path(tempfile.gettempdir()) / f"trainyard-loops-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        problem = f"compiled loops cannot be kept anywhere ({folder}: {error.strerror or error})"
        raise TrainyardError(f"{problem}: set {VARIABLE} to a folder that can be written") from None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:  # others could put code into it
        folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
    os.environ[VARIABLE] = config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # made when numba is imported
    reason = "neither the package's folder nor the user's cache folder can be written"
    print(
        f"trainyard: warning: compiled loops are kept in {folder}, since {reason}; set {VARIABLE} to a folder that stays",
        file=sys.stderr,
    )


@cache
def imported_files(source: Path) -> frozenset[Path]:
    """The files of this package that a source imports, and those that they import in turn."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        for module, names in IMPORT.findall(waiting.pop().read_text(encoding="utf-8")):
            inside = [name.strip().partition(" as ")[0] for name in names.strip("()").replace("\n", " ").split(",")]
            for path in (_file_of(module), *(_file_of(f"{module}.{name}") for name in inside if name.isidentifier())):
                if path is not None and path not in found:
                    found.add(path)
                    waiting.append(path)
    return frozenset(found - {source})


def _file_of(module: str) -> Path | None:
    """The source of a module of this package."""
    path = FOLDER.joinpath(*module.removeprefix(PREFIX).split(".")).with_suffix(".py")
    return path if module.startswith(PREFIX) and path.is_file() else None


@cache
def _digest(source: Path) -> bytes:
    """Of all that a source imports from this package."""
    return blake2b(b"\0".join(path.read_bytes() for path in sorted(imported_files(source)))).digest()


def heed_imported_files() -> None:
    """From now on a compiled loop of this package is out of date when a file has changed that its source imports from here."""
    own_stamp = _SourceFileBackedLocatorMixin.get_source_stamp

    def stamp(locator: Any) -> Any:
        source = Path(locator._py_file)
        if FOLDER not in source.parents:
            return own_stamp(locator)  # type: ignore[no-untyped-call]  # numba has no types
        return own_stamp(locator), _digest(source)  # type: ignore[no-untyped-call]

    _SourceFileBackedLocatorMixin.get_source_stamp = stamp  # type: ignore[method-assign]


def compile_each_loop_once() -> None:
    """From now on a loop of this package is compiled while holding a lock beside its cache file.

    Loops call each other without cycles, so processes that compile callees inside callers never wait for one another in a ring.
    """
    compile_here = Dispatcher.compile
    under_lock: set[Any] = set()

    def compile_or_read(dispatcher: Any, signature: Any) -> Any:
        folder = dispatcher._cache.cache_path
        if folder is None or not dispatcher.py_func.__module__.startswith(PREFIX):
            return compile_here(dispatcher, signature)
        with global_compiler_lock:  # first of all: the threads of one process take turns here, not at the file
            if dispatcher in under_lock:  # a recursive function
                return compile_here(dispatcher, signature)
            with _locked(Path(folder) / f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}.lock"):
                under_lock.add(dispatcher)
                try:
                    if len(under_lock) == 1:
                        return call_with_room(compile_here, dispatcher, signature)
                    return compile_here(dispatcher, signature)
                finally:
                    under_lock.discard(dispatcher)

    Dispatcher.compile = compile_or_read  # type: ignore[method-assign, assignment]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock, or goes on without one where the file system has none."""
    handle = None
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


heed_imported_files()
if not has_place():
    use_temporary_folder()
compile_each_loop_once()
