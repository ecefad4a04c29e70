"""The private folder of a server, and the removal of those that killed servers left behind.

A server that ends in order removes its folder. One that was killed (SIGKILL, out of memory) cannot, so each server holds a lock
(flock) in its folder for as long as it lives: the operating system gives the lock back however the server ended, and the next
server to start removes every folder whose lock it can take. A process id would not do: ids are given out again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "trainyard-serve-"
LOCK = "lock"
UNLOCKED_S = 60.0
"""A folder without a lock file is left alone for so long: its server may be about to make one."""


@contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that only this user can read, removed at the end; folders of dead servers are removed first."""
    place = parent or Path(tempfile.gettempdir())
    remove_abandoned(place)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def remove_abandoned(place: Path) -> list[Path]:
    """Removes the folders of this user's servers that no longer live; which those were."""
    removed = []
    with suppress(OSError):
        for folder in sorted(place.glob(f"{PREFIX}*")):
            if _is_ours(folder) and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _is_ours(folder: Path) -> bool:
    """A folder of this user. In a temporary folder that all users share, a link could point at anything."""
    with suppress(OSError):
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return False


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime > UNLOCKED_S
        return False
    except OSError:  # its server lives
        return False
