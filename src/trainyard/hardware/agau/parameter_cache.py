"""Parameter caches of the AGAUs of all clusters, kept coherent by directories, with FETCH_ADD and COMPARE_SWAP, timed.

DIRECT, Sec. III-A: a local parameter cache with a coherence directory, to minimise redundant transfers, and atomic updates. Sizes,
protocol and latencies are not printed; `hardware.agau.coherence` has the protocol. Lines have their homes at the AGAUs in turn. An
atomic is performed by the cache that comes to own the line, or at the line's home (`atomics`).

An operation takes `hit_cycles` in its cache; a message `hop_cycles` and a beat for each `port_bytes` of it, nothing between a cache
and the home of its own AGAU; the home takes `directory_cycles` a message. Caches and homes do one thing at a time, in the order in
which it reaches them. So a load that misses, of a line without an owner, takes

    hit + (hop + beats of a control message) + directory + (hop + beats of a line) + hit
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.construction import NonNegativeInt, Positive, part
from trainyard.engine import Acquire, Channel, Get, Put, Release, Resource, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.errors import BadInput
from trainyard.hardware.agau import coherence
from trainyard.hardware.agau.coherence import HOME, WITH_LINE, Line, Message, Operation
from trainyard.hardware.tables.area import sram_m2
from trainyard.hardware.tables.energy import cache_joules_per_byte
from trainyard.ir import assumed

WORD_BYTES = 4  # fp32 and int32
TAG_BITS = 26  # of a line of 64 bytes in 32 bits of address
STATE_BITS = 2  # I, S, M
RETRY = object()


@part
class ParameterCache:
    """One cluster's cache and its part of the directory."""

    # fmt: off
    cache_bytes: int = 32 * 1024
    line_bytes: int = 64
    caches: int = 32
    port_bytes: int = 32                                   # the SIMD unit's 256 bits, Sec. III-A
    clock_hz: float = 350e6
    number: Literal["fp32", "int32"] = "fp32"
    ways: int = assumed(4, "lines of a set of the parameter cache", 1, 8)
    hit_cycles: int = assumed(1, "access of a cache of 32 KiB at a few hundred MHz", 2)
    directory_cycles: int = assumed(2, "directory: look up, then write back", 1, 4)
    hop_cycles: NonNegativeInt = assumed(
        16, "one way between two AGAUs: two crossbar levels up and two down, four cycles each", 8, 64)
    control_bytes: int = assumed(8, "address, kind and sender of a message", 16)
    directory_cover: Positive = assumed(2.0, "directory entries for each line of a cache: few sets overflow", 1.0, only="energy_j")
    atomics: Literal["owner", "home"] = assumed("owner", "where FETCH_ADD and COMPARE_SWAP are performed", "home")
    technology_nm: float = 28                              # Sec. VI-A: 28 nm process
    # fmt: on

    def __post_init__(self) -> None:
        if self.line_bytes % WORD_BYTES:
            raise BadInput(f"ParameterCache: line_bytes={self.line_bytes} must hold whole words of {WORD_BYTES} bytes")
        if self.cache_bytes % (self.line_bytes * self.ways):
            raise BadInput(
                f"ParameterCache: cache_bytes={self.cache_bytes} must be whole sets of {self.ways} lines of {self.line_bytes} bytes"
            )

    @property
    def lines(self) -> int:
        return self.cache_bytes // self.line_bytes

    @property
    def sets(self) -> int:
        return self.lines // self.ways

    @property
    def line_words(self) -> int:
        return self.line_bytes // WORD_BYTES

    def home(self, line: int) -> int:
        return line % self.caches

    def message_bytes(self, message: Message) -> int:
        """Bytes of a message: control information, and the line or word that it carries."""
        payload = self.line_bytes if message.kind in WITH_LINE else WORD_BYTES if message.kind in ("Result", "Atomic") else 0
        return self.control_bytes + payload

    def flight_cycles(self, message: Message) -> int:
        return self.hop_cycles + -(-self.message_bytes(message) // self.port_bytes)

    @property
    def directory_bytes(self) -> float:
        """assumed: sparse; an entry has tag, state, owner and a bit for each cache."""
        owner_bits = max(1, (self.caches - 1).bit_length())
        return self.lines * self.directory_cover * (TAG_BITS + STATE_BITS + owner_bits + self.caches) / 8

    @property
    def tag_bytes(self) -> float:
        return self.lines * (TAG_BITS + STATE_BITS) / 8

    @property
    def joules(self) -> dict[str, float]:
        """Joules of a byte read or written in the cache, and of a directory access, which reads and writes an entry."""
        entry_bytes = self.directory_bytes / self.lines / self.directory_cover
        return {
            "agau_cache_byte": cache_joules_per_byte(self.cache_bytes, self.technology_nm),
            "agau_directory_access": 2 * entry_bytes * cache_joules_per_byte(self.directory_bytes, self.technology_nm),
        }

    @property
    def areas(self) -> dict[str, float]:
        return {
            "agau_cache": sram_m2(self.cache_bytes + self.tag_bytes, self.technology_nm),
            "agau_directory": sram_m2(self.directory_bytes, self.technology_nm),
        }


class SharedParameters:
    """Words that the caches of several AGAUs share. `run` performs each cache's operations in order, all caches at once.

    >>> shared = SharedParameters(ParameterCache(caches=2, cache_bytes=256, number="int32"), [10, 20, 30])
    >>> shared.run([[Operation("fetch_add", 1, 5)], [Operation("fetch_add", 1, 7)]])
    [[20], [25]]
    >>> shared.values
    array([10, 32, 30], dtype=int32)
    """

    def __init__(self, cache: ParameterCache, values: Iterable[float] | NDArray[Any]) -> None:
        self.cache = cache
        self._type: type[Any] = np.float32 if cache.number == "fp32" else np.int32
        words = np.asarray(values if isinstance(values, np.ndarray) else list(values), self._type)
        if words.ndim != 1 or not len(words):
            raise BadInput(f"SharedParameters takes at least one word in one dimension, got shape {words.shape}")
        self._count, step = len(words), cache.line_words
        padded = np.concatenate([words, np.zeros(-len(words) % step, self._type)]).tolist()
        self.lines: list[Line] = [
            coherence.fresh(cache.caches, tuple(padded[start : start + step])) for start in range(0, len(padded), step)
        ]
        self.recent: list[dict[int, None]] = [{} for _ in range(cache.caches)]  # lines held, the least recent first
        self.cycles = 0
        self.network_bytes = 0
        self.counts: Counter[str] = Counter()

    @property
    def values(self) -> NDArray[Any]:
        """The current value of every word, from its owner or its home."""
        current = [line.words if line.owner == HOME else line.copies[line.owner].words for line in self.lines]
        return np.array([word for words in current for word in words][: self._count], self._type)

    @property
    def seconds(self) -> float:
        return self.cycles / self.cache.clock_hz

    @property
    def events(self) -> Mapping[str, float]:
        """For `ParameterCache.joules`; bytes between AGAUs are `network_bytes`, which the crossbar prices."""
        return {event: float(self.counts[event]) for event in self.cache.joules}

    @property
    def avoided_bytes(self) -> int:
        """Bytes of lines that caches kept off the network: without them every access fetches a line, every write sends one back."""
        accesses = self.counts["load"] + 2 * (self.counts["access"] - self.counts["load"])
        return self.cache.line_bytes * (accesses - self.counts["Data"] - self.counts["PutM"])

    def read(self, cache: int, word: int) -> Any:
        return self._perform(cache, Operation("load", word))

    def write(self, cache: int, word: int, value: Any) -> None:
        self._perform(cache, Operation("store", word, value))

    def fetch_add(self, cache: int, word: int, value: Any) -> Any:
        """FETCH_ADD: returns the word before."""
        return self._perform(cache, Operation("fetch_add", word, value))

    def compare_swap(self, cache: int, word: int, expected: Any, value: Any) -> bool:
        """COMPARE_SWAP: whether the word was as expected and is now `value`."""
        return bool(self._perform(cache, Operation("compare_swap", word, value, expected)) == self._rounded(expected))

    def _perform(self, cache: int, operation: Operation) -> Any:
        if not 0 <= cache < self.cache.caches:
            raise BadInput(f"SharedParameters: cache {cache} of {self.cache.caches} does not exist")
        programs: list[list[Operation]] = [[] for _ in range(self.cache.caches)]
        programs[cache].append(operation)
        return self.run(programs)[cache][0]

    def run(self, programs: Sequence[Sequence[Operation]]) -> list[list[Any]]:
        """Results by cache and operation; `cycles` and `counts` accumulate over calls."""
        if len(programs) != self.cache.caches:
            raise BadInput(f"SharedParameters.run: {len(programs)} programs for {self.cache.caches} caches; an empty one is []")
        checked = [[self._checked(operation) for operation in program] for program in programs]
        run = _Run(self)
        results: list[list[Any]] = [[] for _ in programs]
        for cache, program in enumerate(checked):
            run.simulation.spawn(run.program(cache, program, results[cache]), name=f"cluster {cache}")
        run.simulation.run()
        self.cycles += run.simulation.now_ps
        return results

    def _checked(self, operation: Operation) -> Operation:
        if not 0 <= operation.word < self._count:
            raise BadInput(f"SharedParameters: word {operation.word} is outside the {self._count} words")
        if operation.kind not in ("load", "store", "fetch_add", "compare_swap"):
            raise BadInput(f"SharedParameters: operation {operation.kind!r}; write load, store, fetch_add or compare_swap")
        return operation._replace(value=self._rounded(operation.value), expected=self._rounded(operation.expected))

    def _rounded(self, value: Any) -> Any:
        return self._type(value).item()

    def add(self, old: Any, value: Any) -> Any:
        """fp32 rounds, int32 wraps around."""
        with np.errstate(over="ignore"):
            return (self._type(old) + self._type(value)).item()


class _Run:
    """One simulation of all caches; the engine's clock counts cycles here."""

    def __init__(self, shared: SharedParameters) -> None:
        self.shared, self.hardware = shared, shared.cache
        self.simulation = Simulation()
        numbers = range(self.hardware.caches)
        self.controllers = [self.simulation.semaphore(f"cache {number}") for number in numbers]
        self.directories = [self.simulation.semaphore(f"directory {number}") for number in numbers]
        self.answers: list[Channel] = [self.simulation.channel(f"answer {number}") for number in numbers]
        self.put_back: dict[int, int] = {}  # cache: line whose PutAck its program waits for
        self.stalled: dict[int, deque[Message]] = {}
        self.receive: Callable[[Line, Message], coherence.Outcome] = partial(coherence.receive, wrap=shared.add)

    def program(self, cache: int, operations: Sequence[Operation], results: list[Any]) -> Script:
        shared, controller = self.shared, self.controllers[cache]
        for operation in operations:
            number, word = divmod(operation.word, self.hardware.line_words)
            answer: Any = RETRY
            while answer is RETRY:
                yield Acquire(controller)
                yield Wait(self.hardware.hit_cycles)
                if shared.lines[number].copies[cache].state in ("MI", "II"):
                    self.put_back[cache] = number
                    yield Release(controller)
                    answer = yield Get(self.answers[cache])
                    continue
                performed = self._ask(cache, number, operation._replace(word=word))
                yield Release(controller)
                answer = performed[2] if performed else (yield Get(self.answers[cache]))
            results.append(answer)

    def _ask(self, cache: int, number: int, operation: Operation) -> tuple[int, Operation, Any] | None:
        self._make_room(cache, number)
        at_home = self.hardware.atomics == "home"
        outcome = coherence.ask(self.shared.lines[number], cache, operation, at_home=at_home, wrap=self.shared.add)
        self._count(operation, outcome)
        self._take(number, outcome)
        return outcome.performed

    def _count(self, operation: Operation, outcome: coherence.Outcome) -> None:
        counts = self.shared.counts
        counts["access"] += 1
        counts[operation.kind] += 1
        counts["hit" if outcome.performed else "miss"] += 1
        counts["agau_cache_byte"] += WORD_BYTES

    def _make_room(self, cache: int, number: int) -> None:
        """A line that is not cached replaces the least recently used one of its set."""
        recent, sets = self.shared.recent[cache], self.hardware.sets
        if number not in recent:
            in_set = [line for line in recent if line % sets == number % sets]
            if len(in_set) == self.hardware.ways:
                del recent[in_set[0]]
                self.shared.counts["eviction"] += 1
                self._take(in_set[0], coherence.evict(self.shared.lines[in_set[0]], cache))
        recent.pop(number, None)
        recent[number] = None

    def _take(self, number: int, outcome: coherence.Outcome) -> None:
        """Stores the line's new state and sends its messages."""
        self.shared.lines[number] = outcome.line
        for message in outcome.messages:
            self.shared.counts[message.kind] += 1
            self.simulation.spawn(self._deliver(number, message), name=message.kind)

    def _deliver(self, number: int, message: Message) -> Script:
        hardware, home = self.hardware, self.hardware.home(number)
        if home not in (message.source, message.target):
            self.shared.network_bytes += hardware.message_bytes(message)
            yield Wait(hardware.flight_cycles(message))
        at_home = message.target == HOME
        resource: Resource = self.directories[home] if at_home else self.controllers[message.target]
        yield Acquire(resource)
        while True:
            yield Wait(hardware.directory_cycles if at_home else hardware.hit_cycles)
            if coherence.receivable(self.shared.lines[number], message):
                yield from self._received(number, message)
            else:
                self.stalled.setdefault(number, deque()).append(message)
            if not at_home or self.shared.lines[number].busy is not None or not self.stalled.get(number):
                break
            message = self.stalled[number].popleft()
        yield Release(resource)

    def _received(self, number: int, message: Message) -> list[Put]:
        outcome = self.receive(self.shared.lines[number], message)
        self._take(number, outcome)
        cache = message.target
        self.shared.counts["agau_directory_access"] += cache == HOME
        if cache == HOME:
            return []
        carries = message.kind == "Data" or any(reply.kind == "Data" for reply in outcome.messages)
        self.shared.counts["agau_cache_byte"] += self.hardware.line_bytes if carries else 0
        if outcome.line.copies[cache].state == "I":
            self.shared.recent[cache].pop(number, None)
        if message.kind == "PutAck" and self.put_back.get(cache) == number:
            del self.put_back[cache]
            return [Put(self.answers[cache], RETRY)]
        return [Put(self.answers[cache], outcome.performed[2])] if outcome.performed else []
