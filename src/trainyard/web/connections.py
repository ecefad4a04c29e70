"""Connections that send half a request and then nothing are closed.

uvicorn waits without end for the rest of a request's head. Here a timer runs whenever a connection owes us one: from its opening,
and from the first byte after an answer, to the last byte of the head. Single bytes do not wind it up again. What comes after the
head, the body, is timed by those who read it (`within` here).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""From the first byte of a request (or the opening of its connection) to the end of its head."""
_BODY = b'{"error": "the rest of the request did not come in time"}'
TOO_SLOW = b"\r\n".join(
    (
        b"HTTP/1.1 408 Request Timeout",
        b"content-type: application/json",
        b"connection: close",
        b"content-length: %d" % len(_BODY),
        b"",
        _BODY,
    )
)


class TimedConnection(H11Protocol):
    """uvicorn's protocol with a time limit on the head of a request."""

    head_s = HEAD_S
    _owed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        if self._answering() or self.transport.is_closing():
            self._unwatch()
        elif self._owed is None:
            self._owed = self.loop.call_later(self.head_s, self._give_up)

    def _unwatch(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _give_up(self) -> None:
        self._owed = None
        if not self._answering() and not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()


async def within(blocks: AsyncIterator[bytes], idle_s: float) -> AsyncIterator[bytes]:
    """The blocks of a body; TimeoutError where the next does not come for so long."""
    while True:
        try:
            async with asyncio.timeout(idle_s):
                block = await anext(blocks)
        except StopAsyncIteration:
            return
        yield block


def protocol(head_s: float) -> Any:
    """The protocol with another limit."""
    return type("TimedConnection", (TimedConnection,), {"head_s": head_s})
