"""The coherence directory's protocol for one line of parameters: what caches and the line's home do on each message.

DIRECT, Sec. III-A names a local parameter cache with a coherence directory and no protocol. This is MSI with a home that does one
transaction of a line at a time and knows owner and sharers, made so that messages may overtake each other (after V. Nagarajan et
al.: A Primer on Memory Consistency and Cache Coherence, 2nd ed., 2020, ch. 8, whose tables need ordered networks).

| message   | from, to      | says                                                                                     |
|-----------|---------------|------------------------------------------------------------------------------------------|
| `GetS`    | cache, home   | wants to read                                                                            |
| `GetM`    | cache, home   | wants to write; a flag says whether it has a copy, so that no data need be sent          |
| `Atomic`  | cache, home   | FETCH_ADD or COMPARE_SWAP to be done at the home                                         |
| `PutM`    | cache, home   | writes an owned line back, with its data                                                 |
| `FwdGetS` | home, owner   | another cache wants to read: send data, keep a copy                                      |
| `Inv`     | home, holder  | invalidate the copy; an owner sends its data                                             |
| `Data`    | either way    | the line                                                                                 |
| `Grant`   | home, cache   | may write the copy that it has                                                           |
| `Result`  | home, cache   | the word before an `Atomic`                                                              |
| `Ack`     | cache, home   | copy invalidated                                                                         |
| `Done`    | cache, home   | the request has been answered, and no later `Inv` can overtake the answer                |
| `PutAck`  | home, cache   | a `PutM` has arrived; until then the cache sends no request for this line                |

Unmodified copies are dropped without a message: the home's sharers are all caches that may have a copy. A pending operation is
performed at the instant at which its data arrives, before the line can be invalidated. Transfers that the caches avoid: reads of a
cached line, writes of an owned one, the data of a `Grant`, and write-backs of unmodified lines.

All functions are pure, so that a search can go through every order of messages; `hardware.agau.parameter_cache` adds time.
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
    """An operation of a DPU on one word of a line. `value` is stored, added, or swapped in."""

    kind: Kind
    word: int = 0
    value: Any = 0
    expected: Any = 0


class Message(NamedTuple):
    """`value` is a line's words, or the old word of a `Result`; `flag`: the sender has a copy (`GetM`) or keeps one (`Data`)."""

    kind: str
    source: int
    target: int
    value: Any = None
    flag: bool = False
    operation: Operation | None = None


class Copy(NamedTuple):
    """A line in one cache. IS, IM, SM wait for data or grant, IA for a result; MI writes back; II too, invalidated since."""

    state: State = "I"
    words: Words = ()
    pending: Operation | None = None


class Busy(NamedTuple):
    """A transaction of the home: its request, the caches it waits for (bits); `filled` when only `Done` is missing."""

    request: Message
    waits: int
    filled: bool = False


class Line(NamedTuple):
    """The state of a line in all caches and at its home, without messages in flight."""

    copies: tuple[Copy, ...]
    words: Words
    owner: int = HOME
    sharers: int = 0
    busy: Busy | None = None


class Outcome(NamedTuple):
    """The result of one step of a cache or the home."""

    line: Line
    messages: tuple[Message, ...] = ()
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


def ask(line: Line, cache: int, operation: Operation, *, at_home: bool = False, wrap: Any = None) -> Outcome:
    """An operation on a line without a pending one: performed at once if the state allows, else a request to the home."""
    copy = line.copies[cache]
    if copy.state not in ("I", "S", "M"):
        raise BadInput(f"cache {cache} is in {copy.state}: a line takes one operation at a time")
    if copy.state == "M" or (copy.state == "S" and operation.kind == "load"):
        words, result = apply(operation, copy.words, wrap=wrap)
        return Outcome(_with(line, cache, copy._replace(words=words)), (), (cache, operation, result))
    if operation.kind == "load":
        return Outcome(_with(line, cache, Copy("IS", (), operation)), (Message("GetS", cache, HOME),))
    if at_home and operation.kind in ("fetch_add", "compare_swap"):
        messages = Message("Atomic", cache, HOME, operation=operation)
        return Outcome(_with(line, cache, Copy("IA", (), operation)), (messages,))
    has_copy = copy.state == "S"
    waiting = Copy("SM" if has_copy else "IM", copy.words, operation)
    return Outcome(_with(line, cache, waiting), (Message("GetM", cache, HOME, flag=has_copy),))


def evict(line: Line, cache: int) -> Outcome:
    """Evicts a line from a cache: a shared copy is dropped, an owned one written back."""
    copy = line.copies[cache]
    if copy.state == "S":
        return Outcome(_with(line, cache, Copy()))
    if copy.state == "M":
        return Outcome(_with(line, cache, Copy("MI", copy.words)), (Message("PutM", cache, HOME, copy.words),))
    raise BadInput(f"cache {cache} is in {copy.state}: only a line in S or M can be evicted")


def receivable(line: Line, message: Message) -> bool:
    """Whether a message can be processed now: a home with a transaction takes no new request for this line."""
    return line.busy is None or message.kind not in REQUESTS


def receive(line: Line, message: Message, *, wrap: Any = None) -> Outcome:
    if message.target == HOME:
        return _home(line, message, wrap)
    return _cache(line, message, wrap)


def _with(line: Line, cache: int, copy: Copy) -> Line:
    return line._replace(copies=(*line.copies[:cache], copy, *line.copies[cache + 1 :]))


def _cache(line: Line, message: Message, wrap: Any) -> Outcome:
    cache = message.target
    copy = line.copies[cache]
    match message.kind, copy.state:
        case ("Data", "IS" | "IM" | "SM") | ("Grant", "SM"):
            assert copy.pending is not None
            before = message.value if message.kind == "Data" else copy.words
            words, result = apply(copy.pending, before, wrap=wrap)
            after = Copy("S" if copy.state == "IS" else "M", words)
            return Outcome(_with(line, cache, after), (Message("Done", cache, HOME),), (cache, copy.pending, result))
        case "Result", "IA":
            assert copy.pending is not None
            return Outcome(_with(line, cache, Copy()), (), (cache, copy.pending, message.value))
        case "Inv", "M" | "MI":
            after = Copy("II" if copy.state == "MI" else "I")
            return Outcome(_with(line, cache, after), (Message("Data", cache, HOME, copy.words),))
        case "Inv", "I" | "S" | "IS" | "IM" | "SM" | "IA":
            after = copy
            if copy.state in ("S", "SM"):
                after = Copy("IM" if copy.pending else "I", (), copy.pending)
            return Outcome(_with(line, cache, after), (Message("Ack", cache, HOME),))
        case "FwdGetS", "M" | "MI":
            keeps_copy = copy.state == "M"
            after = copy._replace(state="S") if keeps_copy else Copy("II")
            return Outcome(_with(line, cache, after), (Message("Data", cache, HOME, copy.words, flag=keeps_copy),))
        case "PutAck", "MI" | "II":
            return Outcome(_with(line, cache, Copy()))
    raise AssertionError(f"{message.kind} reaches cache {cache} in {copy.state}")


def _home(line: Line, message: Message, wrap: Any) -> Outcome:
    sender = message.source
    match message.kind:
        case "PutM":
            if line.owner == sender:
                line = line._replace(words=message.value, owner=HOME)
            return Outcome(line, (Message("PutAck", HOME, sender),))
        case "GetS" | "GetM" | "Atomic":
            return _begin(line, message, wrap)
        case "Done":
            return Outcome(line._replace(busy=None))
    busy = line.busy
    assert busy is not None, f"{message.kind} of cache {sender} without a transaction"
    if message.kind == "Data":
        sharers = 1 << sender if message.flag else 0
        line = line._replace(words=message.value, owner=HOME, sharers=sharers)
    busy = busy._replace(waits=busy.waits & ~(1 << sender))
    line = line._replace(busy=busy)
    return Outcome(line) if busy.waits else _fill(line, busy, wrap)


def _begin(line: Line, request: Message, wrap: Any) -> Outcome:
    """Starts a transaction: conflicting copies are forwarded or invalidated."""
    requester = 1 << request.source
    if line.owner != HOME:
        waits = 1 << line.owner
        assert waits != requester, f"owner {line.owner} asks for what it has"
    else:
        waits = 0 if request.kind == "GetS" else line.sharers & ~requester
    busy = Busy(request, waits)
    line = line._replace(busy=busy)
    if not waits:
        return _fill(line, busy, wrap)
    kind = "FwdGetS" if request.kind == "GetS" else "Inv"
    return Outcome(line, tuple(Message(kind, HOME, cache) for cache in range(len(line.copies)) if waits >> cache & 1))


def _fill(line: Line, busy: Busy, wrap: Any) -> Outcome:
    """Answers a request that has no conflicting copies left."""
    request, cache = busy.request, busy.request.source
    if request.kind == "Atomic":
        assert request.operation is not None
        words, old = apply(request.operation, line.words, wrap=wrap)
        line = line._replace(words=words, sharers=0, busy=None)
        return Outcome(line, (Message("Result", HOME, cache, old),), (HOME, request.operation, old))
    busy = busy._replace(filled=True)
    answer = Message("Data", HOME, cache, line.words)
    if request.kind == "GetS":
        return Outcome(line._replace(sharers=line.sharers | 1 << cache, busy=busy), (answer,))
    if request.flag and line.sharers >> cache & 1:
        answer = Message("Grant", HOME, cache)
    return Outcome(line._replace(owner=cache, sharers=0, busy=busy), (answer,))
