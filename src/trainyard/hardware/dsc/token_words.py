"""The token protocol on shared words with FETCH_ADD and COMPARE_SWAP: a ticket lock that survives processes that die.

DIRECT, Sec. III-A names the two atomic updates; this is what the DSC does, for processes that share nothing but such words (an
AGAU's, or a key-value store's). Tickets are handed out by FETCH_ADD. Everything else is in one word, the *board*, that changes by
COMPARE_SWAP alone, so that a process may die between any two of its operations and leaves nothing half done:

| on the board | meaning                                                                                       |
|--------------|-----------------------------------------------------------------------------------------------|
| serving      | the lowest ticket that was neither served nor passed over                                     |
| claim_by     | deadline for its owner to claim a free token; 0 while no later ticket waits for that          |
| leases       | ticket, owner and end of each token in use                                                    |

A token whose lease has ended counts as free. If it is free and the ticket that is served does not claim it, a later ticket sets
`claim_by`, and passes the ticket over after that deadline. A process that was passed over, or lost its lease, draws a new ticket.

Guaranteed: at most `tokens` leases run at a time; tickets are served in order; a process that dies, with a token or while waiting,
delays later tickets by at most `expiry_s` and two of their polls. Not guaranteed: a holder that works on after its lease is not
stopped. It learns at `release` or `renew` that it lost the token; tickets only grow, and so tell newer work from older. Clocks of
the processes must agree to well within `expiry_s`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, Protocol

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput

FIELD_BITS = 64
FIELD = (1 << FIELD_BITS) - 1
TICKS_PER_S = 1_000_000  # deadlines on the board are in whole microseconds


class AtomicWords(Protocol):
    """Named words that start at 0. The board takes 128 + 192 x tokens bits; a store of text keeps it as a decimal number."""

    def fetch_add(self, name: str, n: int) -> int:
        """Adds n; returns the value before."""

    def compare_swap(self, name: str, expected: int, new: int) -> bool:
        """Writes `new` if the word is `expected`; returns whether it was."""

    def read(self, name: str) -> int: ...


class LocalWords:
    """Words that the threads of one process share."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._lock = Lock()

    def fetch_add(self, name: str, n: int) -> int:
        with self._lock:
            before = self._words.get(name, 0)
            self._words[name] = before + n
            return before

    def compare_swap(self, name: str, expected: int, new: int) -> bool:
        with self._lock:
            if self._words.get(name, 0) != expected:
                return False
            self._words[name] = new
            return True

    def read(self, name: str) -> int:
        with self._lock:
            return self._words.get(name, 0)


class FetchAdd(NamedTuple):
    """An operation that a script yields; it receives the value before."""

    name: str
    n: int


class CompareSwap(NamedTuple):
    """The script receives whether the word was as expected."""

    name: str
    expected: int
    new: int


class Read(NamedTuple):
    """The script receives the word."""

    name: str


Operation = FetchAdd | CompareSwap | Read
Script = Generator[Operation, Any, Any]


class Lease(NamedTuple):
    """A token that process `who` holds until `end`, in microseconds."""

    ticket: int
    who: int
    end: int


class Board(NamedTuple):
    """The word, unpacked.

    >>> board = Board(serving=2, claim_by=0, leases=(Lease(1, 7, 5_000_000),))
    >>> Board.of(board.word(tokens=1), tokens=1) == board, Board.of(0, tokens=1)
    (True, Board(serving=0, claim_by=0, leases=()))
    """

    serving: int
    claim_by: int
    leases: tuple[Lease, ...]

    @classmethod
    def of(cls, word: int, tokens: int) -> Board:
        numbers = [word >> (FIELD_BITS * place) & FIELD for place in range(2 + 3 * tokens)]
        leases = (Lease(*numbers[place : place + 3]) for place in range(2, len(numbers), 3))
        return cls(numbers[0], numbers[1], tuple(lease for lease in leases if lease.end))

    def word(self, tokens: int) -> int:
        numbers = [self.serving, self.claim_by, *(number for lease in self.leases for number in lease)]
        assert len(self.leases) <= tokens
        return sum(number << (FIELD_BITS * place) for place, number in enumerate(numbers))

    def running(self, now: int) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if now <= lease.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProtocol:
    """The steps of a process, one operation at a time: `TicketTokens` runs these scripts, tests explore all their orders."""

    tokens: int = 1
    expiry: int = 10 * TICKS_PER_S
    name: str = "dsc"

    @property
    def tickets(self) -> str:
        return f"{self.name}/tickets"

    @property
    def board(self) -> str:
        return f"{self.name}/board"

    def draw(self) -> Script:
        """A ticket, the next number."""
        return (yield FetchAdd(self.tickets, 1))

    def claim(self, ticket: int, who: int, now: int) -> Script:
        """True: the process has the token. False: not yet, try again. None: the ticket has been passed over, draw another."""
        word = yield Read(self.board)
        board = Board.of(word, self.tokens)
        if ticket < board.serving:
            return True if any(lease.ticket == ticket for lease in board.running(now)) else None
        running = board.running(now)
        if len(running) == self.tokens:
            return False
        if ticket == board.serving:
            lease = Lease(ticket, who, now + self.expiry)
            served = Board(ticket + 1, 0, (*running, lease))
            return (yield CompareSwap(self.board, word, served.word(self.tokens)))
        if not board.claim_by:
            yield CompareSwap(self.board, word, board._replace(claim_by=now + self.expiry).word(self.tokens))
        elif now > board.claim_by:
            yield CompareSwap(self.board, word, board._replace(serving=board.serving + 1, claim_by=0).word(self.tokens))
        return False

    def release(self, ticket: int) -> Script:
        """Releases the token; whether the lease had not been lost."""
        while True:
            word = yield Read(self.board)
            board = Board.of(word, self.tokens)
            left = tuple(lease for lease in board.leases if lease.ticket != ticket)
            if len(left) == len(board.leases):
                return False
            if (yield CompareSwap(self.board, word, board._replace(leases=left).word(self.tokens))):
                return True

    def renew(self, ticket: int, now: int) -> Script:
        """Starts a new lease now; whether the old one still ran."""
        while True:
            word = yield Read(self.board)
            board = Board.of(word, self.tokens)
            if all(lease.ticket != ticket for lease in board.running(now)):
                return False
            leases = tuple(lease._replace(end=now + self.expiry) if lease.ticket == ticket else lease for lease in board.leases)
            if (yield CompareSwap(self.board, word, board._replace(leases=leases, claim_by=0).word(self.tokens))):
                return True


def perform(words: AtomicWords, script: Script) -> Any:
    """Runs a script to its end and returns its result."""
    answer: int | bool | None = None
    while True:
        try:
            operation = script.send(answer)
        except StopIteration as stop:
            return stop.value
        match operation:
            case FetchAdd(name, n):
                answer = words.fetch_add(name, n)
            case CompareSwap(name, expected, new):
                answer = words.compare_swap(name, expected, new)
            case Read(name):
                answer = words.read(name)


@dataclass(slots=True)
class TicketTokens:
    """Tokens on shared words, acquired by polling. `who` is the number of a process; one instance may serve several.

    >>> tokens = TicketTokens(LocalWords(), expiry_s=10)
    >>> tokens.try_acquire(0, now_s=100.0), tokens.try_acquire(1, now_s=100.0), tokens.holder(100.0)
    (0, None, 0)
    >>> tokens.release(0), tokens.try_acquire(1, now_s=101.0)
    (True, 1)
    >>> tokens.try_acquire(0, now_s=110.0), tokens.holder(111.5)     # 1 has died: its lease ends at 111
    (None, None)
    >>> tokens.try_acquire(0, now_s=111.5), tokens.release(1)        # 0 has ticket 2
    (2, False)
    """

    words: AtomicWords
    tokens: int = 1
    expiry_s: float = 10.0
    name: str = "dsc"
    _protocol: TokenProtocol = field(init=False, repr=False)
    _tickets: dict[int, int] = field(init=False, repr=False, default_factory=dict)
    _held: set[int] = field(init=False, repr=False, default_factory=set)

    def __post_init__(self) -> None:
        require_positive("TicketTokens", tokens=self.tokens)
        require_quantity("TicketTokens", expiry_s=self.expiry_s)
        self._protocol = TokenProtocol(tokens=self.tokens, expiry=max(1, _ticks(self.expiry_s)), name=self.name)

    def try_acquire(self, who: int, now_s: float) -> int | None:
        """The ticket with which `who` holds a token until now_s + expiry_s; None: not yet, call again soon.

        The first call draws a ticket and so joins the queue; a process that stops calling is passed over after expiry_s.
        """
        if who in self._held:
            raise BadInput(f"TicketTokens: {who} asks for a token and holds one: release it first")
        while True:
            ticket = self._tickets.get(_require_process(who))
            if ticket is None:
                ticket = self._tickets[who] = perform(self.words, self._protocol.draw())
            claimed = perform(self.words, self._protocol.claim(ticket, who, _ticks(now_s)))
            if claimed is not None:
                break
            del self._tickets[who]
        if not claimed:
            return None
        self._held.add(who)
        return ticket

    def release(self, who: int) -> bool:
        """Gives the token back; False: the lease had ended before, and others may have held the token since."""
        self._must_hold(who, "releases")
        self._held.discard(who)
        return bool(perform(self.words, self._protocol.release(self._tickets.pop(who))))

    def renew(self, who: int, now_s: float) -> bool:
        """Extends the lease to now + expiry_s; False: the lease has ended, acquire the token again."""
        self._must_hold(who, "renews")
        renewed = bool(perform(self.words, self._protocol.renew(self._tickets[who], _ticks(now_s))))
        if not renewed:
            self._held.discard(who)
            del self._tickets[who]
        return renewed

    def holders(self, now_s: float) -> tuple[Lease, ...]:
        """Leases that run now."""
        return Board.of(self.words.read(self._protocol.board), self.tokens).running(_ticks(now_s))

    def holder(self, now_s: float) -> int | None:
        """The holder of the token, the first one of several."""
        running = self.holders(now_s)
        return running[0].who if running else None

    def _must_hold(self, who: int, does: str) -> None:
        if who not in self._held:
            raise BadInput(f"TicketTokens: {who} {does} a token that it does not hold: try_acquire it until that gives a ticket")


def _ticks(seconds: float) -> int:
    require_quantity("TicketTokens", zero=True, seconds=seconds)
    return round(seconds * TICKS_PER_S)


def _require_process(who: int) -> int:
    if isinstance(who, bool) or not isinstance(who, int) or not 0 <= who <= FIELD:
        raise BadInput(f"TicketTokens: who must be a whole number of 0 to 2**{FIELD_BITS} - 1, got {who!r}")
    return who
