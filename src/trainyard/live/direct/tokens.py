"""The DSC's tokens between real processes, on the Store that `torch.distributed` has anyway.

`hardware.dsc.token_words` is the protocol; here are its words. The Store's `add` is FETCH_ADD. Its `compare_set` is COMPARE_SWAP
with two traps: it returns the value that the key has afterwards, so a caller cannot tell whether another rank wrote the same `new`;
and for a missing key it returns the expected value and writes nothing, unless that value is empty. So a swapped word is stored as
"number:writer", which no other writer writes, and a missing one is expected as empty.
"""

from __future__ import annotations

import itertools
import time
import uuid
from types import TracebackType

from torch._C._distributed_c10d import Store

from trainyard.checks import require_quantity
from trainyard.errors import BadInput, TrainyardError
from trainyard.hardware.dsc.token_words import TicketTokens


class TokenTimeout(TrainyardError, TimeoutError):
    """No token within the timeout."""


class TokenLost(TrainyardError, RuntimeError):
    """A token was held longer than its lease: another process may have worked at the same time."""


class StoreWords:
    """`AtomicWords` on a c10d Store (TCPStore, FileStore, HashStore, PrefixStore).

    A word is counted or swapped, never both: what the Store adds up is a 64-bit number, what it swaps any text.

    >>> from torch.distributed import HashStore
    >>> words = StoreWords(HashStore())
    >>> words.fetch_add("tickets", 2), words.fetch_add("tickets", 1), words.read("tickets"), words.read("board")
    (0, 2, 3, 0)
    >>> words.compare_swap("board", 1, 7), words.compare_swap("board", 0, 7), words.compare_swap("board", 0, 7), words.read("board")
    (False, True, False, 7)
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer = uuid.uuid4().hex
        self._serial = itertools.count()
        self._counted: set[str] = set()

    def fetch_add(self, name: str, n: int) -> int:
        self._counted.add(name)
        return int(self._store.add(f"counted/{name}", n)) - n

    def compare_swap(self, name: str, expected: int, new: int) -> bool:
        if name in self._counted:
            raise BadInput(f"StoreWords: {name!r} is counted with fetch_add; take another word to swap")
        key = f"swapped/{name}"
        while True:
            text = self._text(key)
            if _number(text) != expected:
                return False
            unique_text = f"{new}:{self._writer}{next(self._serial)}"
            if self._store.compare_set(key, text, unique_text).decode() == unique_text:
                return True

    def read(self, name: str) -> int:
        if name in self._counted:
            return int(self._store.add(f"counted/{name}", 0))
        return _number(self._text(f"swapped/{name}"))

    def _text(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _number(text: str) -> int:
    return int(text.partition(":")[0]) if text else 0


class Tokens:
    """`with Tokens(store, rank): ...` holds one of the DSC's tokens; others wait their turn, first come first served.

    A holder that dies costs those behind it `expiry_s`; one that works longer calls `renew` in time, else the end of the block
    raises TokenLost. Processes on several hosts need clocks that agree to well within `expiry_s`.

    >>> from torch.distributed import HashStore
    >>> with Tokens(HashStore(), rank=0) as ticket:
    ...     ticket
    0
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        *,
        tokens: int = 1,
        expiry_s: float = 10.0,
        timeout_s: float = 300.0,
        poll_s: float = 0.002,
        name: str = "dsc",
    ) -> None:
        require_quantity("Tokens", timeout_s=timeout_s, poll_s=poll_s)
        self.rank, self.timeout_s, self.poll_s = rank, timeout_s, poll_s
        self._tickets = TicketTokens(StoreWords(store), tokens=tokens, expiry_s=expiry_s, name=name)

    def acquire(self) -> int:
        """A token; its ticket, larger than those of all earlier holders."""
        until = time.monotonic() + self.timeout_s
        while True:
            ticket = self._tickets.try_acquire(self.rank, time.time())
            if ticket is not None:
                return ticket
            if time.monotonic() > until:
                holder = self._tickets.holder(time.time())
                state = "nobody holds it" if holder is None else f"rank {holder} holds it"
                raise TokenTimeout(f"rank {self.rank} got no token within {self.timeout_s:g} s: {state}")
            time.sleep(self.poll_s)

    def release(self) -> None:
        if not self._tickets.release(self.rank):
            raise TokenLost(
                f"rank {self.rank} held a token for longer than expiry_s={self._tickets.expiry_s:g}, and it went on to another: "
                "renew() it in time, or give a longer expiry_s"
            )

    def renew(self) -> None:
        if not self._tickets.renew(self.rank, time.time()):
            raise TokenLost(
                f"rank {self.rank} renews a token whose lease of {self._tickets.expiry_s:g} s has ended: acquire it anew"
            )

    def __enter__(self) -> int:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, TokenLost):
            return  # raised by renew
        self.release()
