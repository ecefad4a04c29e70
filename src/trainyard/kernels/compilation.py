"""Who hears of a loop that is being compiled, and what waits meanwhile. numba compiles a function when it first sees its types,
unless its cache on disk has it: once on a computer, and again where the source has changed.

Compilation makes millions of objects that live until it ends. Python's garbage collector would walk through them again and again,
a tenth of the time of compilation, so it waits until the outermost function is compiled.

CPython keeps the frames of functions in pieces of 16 KiB. Where a loop happens to stand at the end of one, each call that it makes
maps a new piece, and unmaps it on return: a seventh of the time of compilation went there. A function whose own frame is large gets
a piece of that size, rounded up to a power of two, and all that it calls live in the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

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


class _Outermost(event.Listener):
    """Calls `begin` and `end` around compilation; functions that a function calls are compiled inside it, and do not count."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.depth, self.begin, self.end = 0, begin, end

    def on_start(self, event: event.Event) -> None:
        if self.depth == 0:
            self.begin()
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.end()


@contextmanager
def suspended(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Calls `begin` whenever this process starts to compile here, and `end` when it goes on."""
    listener = _Outermost(begin, end)
    event.register("numba:compile", listener)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)  # type: ignore[no-untyped-call]


class _GarbageCollector:
    """Stopped while functions are compiled, if it was running."""

    def __init__(self) -> None:
        self.was_enabled = False

    def stop(self) -> None:
        self.was_enabled = gc.isenabled()
        gc.disable()

    def go_on(self) -> None:
        if self.was_enabled:
            gc.enable()


COLLECTOR = _GarbageCollector()
event.register("numba:compile", _Outermost(COLLECTOR.stop, COLLECTOR.go_on))  # type: ignore[no-untyped-call]


ENTRIES = 2**16 + 1
"""Entries of a large frame, 8 bytes each: just over half of a piece of 1 MiB, whose other half has room for a thousand frames."""


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


call_with_room: Callable[..., Any] = FunctionType(_call.__code__.replace(co_stacksize=ENTRIES), globals(), "call_with_room")
"""`call_with_room(function, *arguments)` is `function(*arguments)`, with room for the frames of a thousand nested calls."""
