"""The coherence directory's protocol for one line of parameters: what caches and the line's home do on each message.

DIRECT, Sec. III-A names a local parameter cache with a coherence directory and no protocol. This is MSI with a home that does one
transaction of a line at a time and knows owner and sharers, made so that messages may overtake each other (after V. Nagarajan et
al.: A Primer on Memory Consistency and Cache Coherence, 2nd ed., 2020, ch. 8, whose tables need ordered networks).

| message   | from, to      | says                                                                                     |
|-----------|---------------|------------------------------------------------------------------------------------------|
| `GetS`    | cache, home   | wants to read                                                                            |
| `GetM`    | cache, home   | wants to write; says whether it has a copy, so that data need not come again             |
| `Atomic`  | cache, home   | FETCH_ADD or COMPARE_SWAP to be done at the home                                         |
| `PutM`    | cache, home   | gives an owned line back, with its data                                                  |
| `FwdGetS` | home, owner   | another wants to read: send data, keep a copy                                            |
| `Inv`     | home, holder  | give up the copy; an owner sends its data                                                |
| `Data`    | either way    | the line                                                                                 |
| `Grant`   | home, cache   | may write the copy that it has                                                           |
| `Result`  | home, cache   | the word before an `Atomic`                                                              |
| `Ack`     | cache, home   | copy given up                                                                            |
| `Done`    | cache, home   | what was asked for has come, and no later `Inv` can overtake it: the next request, please |
| `PutAck`  | home, cache   | a `PutM` was seen; until then the cache asks for nothing of this line                    |

Unmodified copies are dropped without a word: sharers at the home are all that may hold a copy. A pending operation is performed in
the instant in which its data arrives, so that nobody can take the line away before. Transfers that this avoids: reads of a held
line, writes of an owned one, the data of a `Grant`, and the return of unmodified lines.

All here are pure functions of values, so that a search may go through every order of messages; `hardware.agau.parameter_cache`
gives them time.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from trainyard.errors import BadInput

HOME = -1
Kind = Literal["load", "store", "fetch_add", "compare_swap"]
State = Literal["I", "S", "M", "IS", "IM", "SM", "MI", "II", "IA"]
REQUESTS = ("GetS", "GetM", "Atomic", "PutM")
WITH_LINE = ("Data", "PutM")
Words = tuple[Any, ...]


class Operation(NamedTuple):
    """What a DPU of the cluster asks of its cache, on one word of a line. `value` is stored, added, or swapped in."""

    kind: Kind
    word: int = 0
    value: Any = 0
    expected: Any = 0


class Message(NamedTuple):
    """`value` is a line's words, or the old word of a `Result`; `flag` says that a copy is held (`GetM`) or kept (`Data`)."""

    kind: str
    source: int
    target: int
    value: Any = None
    flag: bool = False
    operation: Operation | None = None


class Copy(NamedTuple):
    """A line in one cache. IS, IM, SM wait for data or grant, IA for a result; MI has given the line back, II lost it since."""

    state: State = "I"
    words: Words = ()
    pending: Operation | None = None


class Busy(NamedTuple):
    """A transaction of the home: whose, and whose answers it waits for (bits); `filled` when only `Done` is missing."""

    request: Message
    waits: int
    filled: bool = False


class Line(NamedTuple):
    """All there is of a line, but for messages under way."""

    copies: tuple[Copy, ...]
    words: Words
    owner: int = HOME
    sharers: int = 0
    busy: Busy | None = None


class Turn(NamedTuple):
    """What one turn of a cache or the home came to."""

    line: Line
    sent: tuple[Message, ...] = ()
    performed: tuple[int, Operation, Any] | None = None  # cache, or HOME; operation, result


def fresh(caches: int, words: Words) -> Line:
    """A line that no cache holds."""
    return Line((Copy(),) * caches, words)


def apply(operation: Operation, words: Words, *, wrap: Any = None) -> tuple[Words, Any]:
    """The words after an operation, and what it returns: the word before it, and for a load the word. `wrap` rounds a sum.

    >>> apply(Operation("fetch_add", 1, 5), (1, 2))
    ((1, 7), 2)
    >>> apply(Operation("compare_swap", 0, 9, expected=3), (1, 2))  # it is not 3
    ((1, 2), 1)
    """
    kind, at, value, expected = operation
    old = words[at]
    if kind == "load" or (kind == "compare_swap" and old != expected):
        return words, old
    new = value
    if kind == "fetch_add":
        new = old + value if wrap is None else wrap(old, value)
    return (*words[:at], new, *words[at + 1 :]), old


def ask(line: Line, cache: int, operation: Operation, *, at_home: bool = False, wrap: Any = None) -> Turn:
    """A cache without a pending operation is asked for one: performed at once if it may be, else a request goes out."""
    copy = line.copies[cache]
    if copy.state not in ("I", "S", "M"):
        raise BadInput(f"cache {cache} is in {copy.state}: a line takes one operation at a time")
    if copy.state == "M" or (copy.state == "S" and operation.kind == "load"):
        words, result = apply(operation, copy.words, wrap=wrap)
        return Turn(_with(line, cache, copy._replace(words=words)), (), (cache, operation, result))
    if operation.kind == "load":
        return Turn(_with(line, cache, Copy("IS", (), operation)), (Message("GetS", cache, HOME),))
    if at_home and operation.kind in ("fetch_add", "compare_swap"):
        sent = Message("Atomic", cache, HOME, operation=operation)
        return Turn(_with(line, cache, Copy("IA", (), operation)), (sent,))
    held = copy.state == "S"
    waiting = Copy("SM" if held else "IM", copy.words, operation)
    return Turn(_with(line, cache, waiting), (Message("GetM", cache, HOME, flag=held),))


def evict(line: Line, cache: int) -> Turn:
    """A cache makes room: a shared copy is dropped, an owned one sent home."""
    copy = line.copies[cache]
    if copy.state == "S":
        return Turn(_with(line, cache, Copy()))
    if copy.state == "M":
        return Turn(_with(line, cache, Copy("MI", copy.words)), (Message("PutM", cache, HOME, copy.words),))
    raise BadInput(f"cache {cache} is in {copy.state}: only a line in S or M can be evicted")


def receivable(line: Line, message: Message) -> bool:
    """A home with a transaction takes no new request of this line; all else is taken when it comes."""
    return line.busy is None or message.kind not in REQUESTS


def receive(line: Line, message: Message, *, wrap: Any = None) -> Turn:
    if message.target == HOME:
        return _home(line, message, wrap)
    return _cache(line, message, wrap)


def _with(line: Line, cache: int, copy: Copy) -> Line:
    return line._replace(copies=(*line.copies[:cache], copy, *line.copies[cache + 1 :]))


def _cache(line: Line, message: Message, wrap: Any) -> Turn:
    cache = message.target
    copy = line.copies[cache]
    match message.kind, copy.state:
        case ("Data", "IS" | "IM" | "SM") | ("Grant", "SM"):
            assert copy.pending is not None
            held = message.value if message.kind == "Data" else copy.words
            words, result = apply(copy.pending, held, wrap=wrap)
            after = Copy("S" if copy.state == "IS" else "M", words)
            return Turn(_with(line, cache, after), (Message("Done", cache, HOME),), (cache, copy.pending, result))
        case "Result", "IA":
            assert copy.pending is not None
            return Turn(_with(line, cache, Copy()), (), (cache, copy.pending, message.value))
        case "Inv", "M" | "MI":
            after = Copy("II" if copy.state == "MI" else "I")
            return Turn(_with(line, cache, after), (Message("Data", cache, HOME, copy.words),))
        case "Inv", "I" | "S" | "IS" | "IM" | "SM" | "IA":
            after = copy
            if copy.state in ("S", "SM"):
                after = Copy("IM" if copy.pending else "I", (), copy.pending)
            return Turn(_with(line, cache, after), (Message("Ack", cache, HOME),))
        case "FwdGetS", "M" | "MI":
            kept = copy.state == "M"
            after = copy._replace(state="S") if kept else Copy("II")
            return Turn(_with(line, cache, after), (Message("Data", cache, HOME, copy.words, flag=kept),))
        case "PutAck", "MI" | "II":
            return Turn(_with(line, cache, Copy()))
    raise AssertionError(f"{message.kind} reaches cache {cache} in {copy.state}")


def _home(line: Line, message: Message, wrap: Any) -> Turn:
    sender = message.source
    match message.kind:
        case "PutM":
            if line.owner == sender:
                line = line._replace(words=message.value, owner=HOME)
            return Turn(line, (Message("PutAck", HOME, sender),))
        case "GetS" | "GetM" | "Atomic":
            return _begin(line, message, wrap)
        case "Done":
            return Turn(line._replace(busy=None))
    busy = line.busy
    assert busy is not None, f"{message.kind} of cache {sender} without a transaction"
    if message.kind == "Data":
        kept = 1 << sender if message.flag else 0
        line = line._replace(words=message.value, owner=HOME, sharers=kept)
    busy = busy._replace(waits=busy.waits & ~(1 << sender))
    line = line._replace(busy=busy)
    return Turn(line) if busy.waits else _fill(line, busy, wrap)


def _begin(line: Line, request: Message, wrap: Any) -> Turn:
    """Those whose copies are in the way are asked for them."""
    mine = 1 << request.source
    if line.owner != HOME:
        waits = 1 << line.owner
        assert waits != mine, f"owner {line.owner} asks for what it has"
    else:
        waits = 0 if request.kind == "GetS" else line.sharers & ~mine
    busy = Busy(request, waits)
    line = line._replace(busy=busy)
    if not waits:
        return _fill(line, busy, wrap)
    kind = "FwdGetS" if request.kind == "GetS" else "Inv"
    return Turn(line, tuple(Message(kind, HOME, cache) for cache in range(len(line.copies)) if waits >> cache & 1))


def _fill(line: Line, busy: Busy, wrap: Any) -> Turn:
    """Nobody is in the way any more: the home answers."""
    request, cache = busy.request, busy.request.source
    if request.kind == "Atomic":
        assert request.operation is not None
        words, old = apply(request.operation, line.words, wrap=wrap)
        line = line._replace(words=words, sharers=0, busy=None)
        return Turn(line, (Message("Result", HOME, cache, old),), (HOME, request.operation, old))
    busy = busy._replace(filled=True)
    answer = Message("Data", HOME, cache, line.words)
    if request.kind == "GetS":
        return Turn(line._replace(sharers=line.sharers | 1 << cache, busy=busy), (answer,))
    if request.flag and line.sharers >> cache & 1:
        answer = Message("Grant", HOME, cache)
    return Turn(line._replace(owner=cache, sharers=0, busy=busy), (answer,))
