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
    def __init__(self, on_compile: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        self.on_compile, self.on_compiled = on_compile, on_end

    def on_start(self, event: event.Event) -> None:
        if name := _loop(event):
            self.on_compile(name)

    def on_end(self, event: event.Event) -> None:
        if name := _loop(event):
            self.on_compiled(name)


def _loop(event: event.Event) -> str:
    """The name of the loop that an event is about; empty for parts of numba's own."""
    function = event.data["dispatcher"].py_func
    ours = function.__module__.startswith(PREFIX)
    return f"{function.__module__.removeprefix(PREFIX)}.{function.__qualname__}" if ours else ""


def _nothing(name: str) -> None:
    pass


@contextmanager
def observed(on_compile: Callable[[str], None], on_end: Callable[[str], None] = _nothing) -> Iterator[None]:
    """Calls `on_compile` with the name of each loop that is compiled here, and `on_end` when it is; the cache is not named.

    Loops that a loop calls are compiled between its two calls.
    """
    listener = _Listener(on_compile, on_end)
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
