"""Who hears of a loop that is being compiled, and what waits meanwhile. numba compiles a function when it first sees its types,
unless its cache on disk has it: once on a computer, and again where the source has changed.

Compilation makes millions of objects that live until it ends. Python's garbage collector would walk through them again and again,
a tenth of the time of compilation, so it waits until the outermost function is compiled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event

PREFIX = f"{__package__}."


class _Listener(event.Listener):
    def __init__(self, on_compile: Callable[[str], None]) -> None:
        self.on_compile = on_compile

    def on_start(self, event: event.Event) -> None:
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith(PREFIX):  # numba compiles parts of its own as well
            self.on_compile(f"{function.__module__.removeprefix(PREFIX)}.{function.__qualname__}")

    def on_end(self, event: event.Event) -> None:
        pass


@contextmanager
def observed(on_compile: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_compile` with the name of each loop that is compiled here; what is read from the cache is not named."""
    listener = _Listener(on_compile)
    event.register("numba:compile", listener)  # type: ignore[no-untyped-call]  # numba has no types
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)  # type: ignore[no-untyped-call]


class _Pause(event.Listener):
    """Stops the garbage collector while functions are compiled; functions that these call are compiled inside them."""

    def __init__(self) -> None:
        self.depth, self.was_enabled = 0, False

    def on_start(self, event: event.Event) -> None:
        if self.depth == 0:
            self.was_enabled = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        self.depth -= 1
        if self.depth == 0 and self.was_enabled:
            gc.enable()


PAUSE = _Pause()
event.register("numba:compile", PAUSE)  # type: ignore[no-untyped-call]
