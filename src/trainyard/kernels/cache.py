"""Where compiled loops are kept on disk, and that only one process compiles a loop.

numba keeps a compiled function in `$NUMBA_CACHE_DIR`, else beside its source, else in the user's cache folder; where none of them
can be written (a read-only installation, a container without a home) it refuses to define the function at all. Here a folder of
this user in the system's temporary folder takes their place, with one line of warning.

numba writes a function to its cache after compiling it, and looks for it before: processes that begin together all find nothing,
and each compiles everything. Here a process that wants a loop waits (flock) while another compiles it, and then reads it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from trainyard.errors import TrainyardError
from trainyard.kernels.compilation import call_with_room

VARIABLE = "NUMBA_CACHE_DIR"
PREFIX = f"{__package__}."


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


if not has_place():
    use_temporary_folder()
compile_each_loop_once()
