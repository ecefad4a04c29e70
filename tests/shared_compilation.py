"""Kernels are compiled by one test process and read from numba's cache by the others, instead of by all of them at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_each_kernel_once(folder: Path) -> None:
    """From now on this process waits, with a lock file in `folder`, while another one compiles the same function.

    Functions call each other without cycles, so processes that compile callees inside callers never wait for one another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compile_here = Dispatcher.compile
    under_lock: set[str] = set()

    def compile_or_wait(dispatcher: Any, signature: Any) -> Any:
        name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}".replace(os.sep, "_")
        with global_compiler_lock:  # first of all: the threads of one process take turns here, not at the file
            if name in under_lock:  # a recursive function
                return compile_here(dispatcher, signature)
            with (folder / name).open("w") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                under_lock.add(name)
                try:
                    return compile_here(dispatcher, signature)
                finally:
                    under_lock.discard(name)

    Dispatcher.compile = compile_or_wait
