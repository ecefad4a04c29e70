"""Parameter caches: every order of messages of small configurations, random operations of larger ones, and times to the cycle."""

from __future__ import annotations

import itertools
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau import coherence
from trainyard.hardware.agau.coherence import HOME, Copy, Message, Operation, apply, ask, evict, fresh, receivable, receive
from trainyard.hardware.agau.parameter_cache import ParameterCache, SharedParameters
from trainyard.hardware.tables.energy import cache_joules_per_byte

LOAD, STORE = Operation("load"), Operation("store", 0, 2)
ADD, SWAP = Operation("fetch_add", 0, 1), Operation("compare_swap", 0, 7, 0)


def after(network, message, sent):
    left = list(network)
    left.remove(message)
    return tuple(sorted([*left, *sent], key=repr))


def holders(line, states):
    return [cache for cache, copy in enumerate(line.copies) if copy.state in states]


def check(line, network, current):
    """Single writer or many readers; every copy that may be read is current; the directory knows who has one."""
    writers, readers = holders(line, ("M",)), holders(line, ("S", "SM"))
    assert len(writers) <= 1
    assert not (writers and readers)
    for cache in [*writers, *readers]:
        assert line.copies[cache].words == (current,)
    if line.busy is None:
        if line.owner == HOME:
            assert line.words == (current,)
            assert not writers
        else:
            assert line.copies[line.owner].state in ("M", "MI")  # MI: it is on its way home
            assert line.copies[line.owner].words == (current,)
        assert all(line.sharers >> cache & 1 for cache in readers)
        assert not [message for message in network if message.kind in ("Inv", "FwdGetS", "Data", "Grant", "Ack", "Done")]
    assert len(set(network)) == len(network)  # no message twice under way


# --- every order of messages, caches free to do anything at any time ------------------------------------------------------------


def canonical_values(line, network, stored):
    """Values as old (0) and current (1); a store, which writes 2, makes all others old. Enough to see any stale read."""
    if not stored:
        return line, network
    new = {0: 0, 1: 0, 2: 1}

    def words(given):
        return tuple(new[value] for value in given)

    line = line._replace(words=words(line.words), copies=tuple(copy._replace(words=words(copy.words)) for copy in line.copies))
    carried = (m._replace(value=words(m.value)) if isinstance(m.value, tuple) else m for m in network)
    return line, tuple(sorted(carried, key=repr))


def next_outcomes(line, network, requested):
    """All possible next events: a cache gets an operation, evicts, or receives a message. Additions are done at the home."""
    for cache, copy in enumerate(line.copies):
        if copy.state in ("I", "S", "M"):
            for operation in requested:
                outcome = ask(line, cache, operation, at_home=True)
                yield outcome, None, tuple(sorted([*network, *outcome.messages], key=repr))
        if copy.state in ("S", "M"):
            outcome = evict(line, cache)
            yield outcome, None, tuple(sorted([*network, *outcome.messages], key=repr))
    for message in set(network):
        if receivable(line, message):
            outcome = receive(line, message)
            yield outcome, message, after(network, message, outcome.messages)


def is_write(outcome, message):
    """Whether an event writes: a store, or an addition where it is performed; all other values become old."""
    return outcome.performed is not None and outcome.performed[1].kind != "load" and (message is None or message.kind != "Result")


def reachable_states(caches, requested=(LOAD, STORE)):
    """All reachable states, breadth first, each with its successors."""
    start = (fresh(caches, (1,)), ())
    follow, waiting = {}, deque([start])
    seen = {start}
    while waiting:
        state = waiting.popleft()
        line, network = state
        follow[state] = []
        for outcome, message, messages in next_outcomes(line, network, requested):
            if outcome.performed is not None:
                assert outcome.performed[2] == 1, "an old value was returned"
            then = canonical_values(outcome.line, messages, is_write(outcome, message))
            check(*then, 1)
            follow[state].append(then)
            if then not in seen:
                seen.add(then)
                waiting.append(then)
    return follow


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("caches", "requested"),
    [
        (1, (LOAD, STORE, ADD)),
        (2, (LOAD, STORE, ADD)),
        (3, (LOAD, STORE)),
        pytest.param(3, (LOAD, STORE, ADD), marks=pytest.mark.slow),
    ],
)
def test_no_order_of_messages_breaks_coherence_or_ends_in_deadlock(caches, requested):
    follow = reachable_states(caches, requested)
    print(f"{caches} caches, one line, {len(requested)} operations: {len(follow)} states, {sum(map(len, follow.values()))} turns")
    assert len(follow) > 3**caches
    # from every state messages alone lead to rest: nothing is left waiting for ever
    rest = {state for state in follow if not state[1]}
    assert all(copy.state in ("I", "S", "M") for line, _ in rest for copy in line.copies)
    assert all(line.busy is None for line, _ in rest)
    before = {}
    for state in follow:
        for message in set(state[1]):
            if receivable(state[0], message):
                outcome = receive(state[0], message)
                then = canonical_values(outcome.line, after(state[1], message, outcome.messages), is_write(outcome, message))
                before.setdefault(then, []).append(state)
    reached, waiting = set(rest), deque(rest)
    while waiting:
        for state in before.get(waiting.popleft(), []):
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    assert reached == set(follow)


@pytest.mark.probe
@pytest.mark.parametrize("fault", ["no_done", "no_inv", "stale_put"])
def test_the_search_finds_a_protocol_that_is_wrong(fault, monkeypatch):
    """One rule taken out, and some order of messages breaks it."""
    right = coherence._home

    def wrong(line, message, wrap):
        if fault == "no_inv" and message.kind == "GetM" and line.owner == HOME:
            line = line._replace(sharers=line.sharers & 1 << message.source)
        if fault == "stale_put" and message.kind == "PutM":
            return coherence.Outcome(line._replace(words=message.value, owner=HOME), (Message("PutAck", HOME, message.source),))
        outcome = right(line, message, wrap)
        if fault == "no_done" and outcome.line.busy is not None and outcome.line.busy.filled:
            return outcome._replace(line=outcome.line._replace(busy=None))
        return outcome

    monkeypatch.setattr(coherence, "_home", wrong)
    with pytest.raises(AssertionError):
        reachable_states(3)


# --- atomics: every interleaving of small programs ------------------------------------------------------------------------------


def sequential(programs):
    """Results and final words of every order that keeps each program's own."""
    actual = set()
    for order in set(itertools.permutations([cache for cache, program in enumerate(programs) for _ in program])):
        words, at, results = (0, 0), [0] * len(programs), [[] for _ in programs]
        for cache in order:
            words, result = apply(programs[cache][at[cache]], words)
            at[cache] += 1
            results[cache].append(result)
        actual.add((tuple(map(tuple, results)), words))
    return actual


def moves_of(lines, network, done, programs, at_home):
    """(line, turn, message or None): caches do their operations one after the other, and may evict while there are more."""
    for cache, (at, _) in enumerate(done):
        if at == len(programs[cache]):
            continue
        operation = programs[cache][at]
        number = operation.word
        if all(line.copies[cache].pending is None for line in lines) and lines[number].copies[cache].state in ("I", "S", "M"):
            yield number, ask(lines[number], cache, operation._replace(word=0), at_home=at_home), None
        for number, line in enumerate(lines):
            if line.copies[cache].state in ("S", "M"):
                yield number, evict(line, cache), None
    for number, message in set(network):
        if receivable(lines[number], message):
            yield number, receive(lines[number], message), message


def outcomes(programs, at_home, lines):
    """All ends of all orders of messages and evictions; words kept aside take each operation as it is performed."""
    start = ((fresh(len(programs), (0,)),) * lines, (), ((0, ()),) * len(programs), (0, 0))
    seen, waiting, ends = {start}, deque([start]), set()
    while waiting:
        state = waiting.popleft()
        held, network, done, words = state
        moves = list(moves_of(held, network, done, programs, at_home))
        if not moves:
            assert not network
            assert all(at == len(program) for (at, _), program in zip(done, programs, strict=True)), "deadlock"
            ends.add((tuple(results for _, results in done), words))
        for number, outcome, message in moves:
            then_done, then_words = done, words
            if outcome.performed:
                cache, operation, result = outcome.performed
                if message is None or message.kind != "Result":  # performed here and now: as the words kept aside say
                    then_words, expected = apply(operation._replace(word=number), words)
                    assert expected == result
                if cache != HOME:
                    at, results = done[cache]
                    then_done = (*done[:cache], (at + 1, (*results, result)), *done[cache + 1 :])
            messages = [item for item in network if item != (number, message)] + [(number, sent) for sent in outcome.messages]
            check(outcome.line, [sent for at, sent in messages if at == number], then_words[number])
            lines_then = (*held[:number], outcome.line, *held[number + 1 :])
            then = (lines_then, tuple(sorted(messages, key=repr)), then_done, then_words)
            if then not in seen:
                seen.add(then)
                waiting.append(then)
    return ends, len(seen)


@pytest.mark.oracle
@pytest.mark.parametrize("at_home", [False, True])
@pytest.mark.parametrize(
    "programs",
    [
        ((ADD, ADD), (ADD, ADD)),
        ((ADD,), (ADD,), (ADD,)),
        ((SWAP,), (SWAP._replace(value=8),), (SWAP._replace(value=9),)),
        ((ADD, LOAD), (SWAP, ADD)),
        ((LOAD, SWAP._replace(expected=1)), (ADD, LOAD)),
        ((ADD, ADD), (Operation("store", 0, 5), LOAD)),
    ],
)
def test_every_interleaving_of_atomics_equals_a_sequential_order(programs, at_home):
    ends, states = outcomes(programs, at_home, lines=1)
    print(f"{[[operation.kind for operation in program] for program in programs]}: {states} states, {len(ends)} outcomes")
    assert ends
    assert ends <= sequential(programs)
    if all(operation.kind == "fetch_add" for program in programs for operation in program):
        assert {words[0] for _, words in ends} == {sum(map(len, programs))}  # no update is lost
    if all(program[0].kind == "compare_swap" and len(program) == 1 for program in programs):
        assert all([results[0] for results in all_results].count(0) == 1 for all_results, _ in ends)  # one winner


X, Y = 0, 1  # words of two lines


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("programs", "never"),
    [
        # message passing: whoever sees the flag sees the data
        (((Operation("store", X, 1), Operation("store", Y, 1)), (Operation("load", Y), Operation("load", X))), (1, 0)),
        # store buffering: one of the two stores comes first
        (((Operation("store", X, 1), Operation("load", Y)), (Operation("store", Y, 1), Operation("load", X))), None),
        # a lock: the one who swaps it in may add
        (((Operation("compare_swap", Y, 1, 0), ADD), (Operation("compare_swap", Y, 1, 0), ADD)), None),
    ],
)
def test_two_lines_are_sequentially_consistent_in_every_order_of_messages(programs, never):
    ends, states = outcomes(programs, at_home=False, lines=2)
    print(f"{[[tuple(operation)[:2] for operation in program] for program in programs]}: {states} states, {len(ends)} outcomes")
    assert ends <= sequential(programs)
    assert never is None or all(results[1] != never for results, _ in ends)


# --- the timed system ------------------------------------------------------------------------------------------------------------


def system(caches=3, words=8, number="int32", **fields):
    hardware = ParameterCache(caches=caches, line_bytes=8, cache_bytes=16, ways=2, port_bytes=8, number=number, **fields)
    return SharedParameters(hardware, [0] * words)


def agrees(shared):
    """At rest: single writer or many readers, and the directory's view is that of the caches."""
    for number, line in enumerate(shared.lines):
        assert line.busy is None
        check_words = line.words if line.owner == HOME else line.copies[line.owner].words
        writers, readers = holders(line, ("M",)), holders(line, ("S",))
        assert writers == ([] if line.owner == HOME else [line.owner])
        assert not (writers and readers)
        assert all(line.sharers >> cache & 1 for cache in readers)
        assert all(line.copies[cache].words == check_words for cache in readers)
        assert all(copy.state in ("I", "S", "M") and copy.pending is None for copy in line.copies)
        for cache, recent in enumerate(shared.recent):
            assert (line.copies[cache].state != "I") == (number in recent)
    assert all(len(recent) <= shared.cache.lines for recent in shared.recent)


class OneAfterAnother(RuleBasedStateMachine):
    """Any operations of any caches: each returns what a plain array would."""

    @initialize(atomics=st.sampled_from(["owner", "home"]))
    def build(self, atomics):
        self.shared = system(atomics=atomics)
        self.plain = [0] * 8

    @rule(cache=st.integers(0, 2), word=st.integers(0, 7))
    def read(self, cache, word):
        assert self.shared.read(cache, word) == self.plain[word]

    @rule(cache=st.integers(0, 2), word=st.integers(0, 7), value=st.integers(-(2**31), 2**31 - 1))
    def write(self, cache, word, value):
        self.shared.write(cache, word, value)
        self.plain[word] = value

    @rule(cache=st.integers(0, 2), word=st.integers(0, 7), value=st.integers(-(2**31), 2**31 - 1))
    def fetch_add(self, cache, word, value):
        assert self.shared.fetch_add(cache, word, value) == self.plain[word]
        self.plain[word] = (self.plain[word] + value + 2**31) % 2**32 - 2**31

    @rule(cache=st.integers(0, 2), word=st.integers(0, 7), expected=st.integers(-1, 1), value=st.integers(-1, 1))
    def compare_swap(self, cache, word, expected, value):
        assert self.shared.compare_swap(cache, word, expected, value) == (self.plain[word] == expected)
        if self.plain[word] == expected:
            self.plain[word] = value

    @invariant()
    def directory_and_values(self):
        if hasattr(self, "shared"):
            agrees(self.shared)
            assert self.shared.values.tolist() == self.plain


OneAfterAnother.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestOneAfterAnother = pytest.mark.oracle(OneAfterAnother.TestCase)

operations = st.builds(
    Operation,
    st.sampled_from(["load", "store", "fetch_add", "compare_swap"]),
    st.integers(0, 7),
    st.integers(0, 3),
    st.integers(0, 3),
)


@pytest.mark.oracle
@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(operations, max_size=12), min_size=3, max_size=3), st.sampled_from(["owner", "home"]))
def test_all_at_once_the_directory_agrees_and_no_addition_is_lost(programs, atomics):
    shared = system(atomics=atomics)
    results = shared.run(programs)
    agrees(shared)
    assert [len(row) for row in results] == [len(program) for program in programs]
    for word in range(8):  # words that are only added to and read
        touched = [operation for program in programs for operation in program if operation.word == word]
        if all(operation.kind in ("load", "fetch_add") for operation in touched):
            assert shared.values[word] == sum(operation.value for operation in touched if operation.kind == "fetch_add")


@pytest.mark.parametrize("atomics", ["owner", "home"])
def test_concurrent_fetch_adds_all_count_and_one_swap_wins(atomics):
    shared = SharedParameters(ParameterCache(caches=16, number="int32", atomics=atomics), [0, 0])
    tickets = shared.run([[Operation("fetch_add", 0, 1)] * 5 for _ in range(16)])
    assert sorted(ticket for row in tickets for ticket in row) == list(range(80))
    assert shared.values[0] == 80
    old = shared.run([[Operation("compare_swap", 1, cache + 1, 0)] for cache in range(16)])
    assert [row[0] for row in old].count(0) == 1
    assert shared.values[1] == 1 + [row[0] for row in old].index(0)


def test_floats_are_added_in_fp32():
    shared = SharedParameters(ParameterCache(caches=2), [1.0])
    for cache, value in ((0, 1e-8), (1, 0.1), (0, 0.1)):
        shared.fetch_add(cache, 0, value)
    assert shared.values.dtype == np.float32
    assert shared.values[0] == np.float32(np.float32(1.0) + np.float32(0.1)) + np.float32(0.1)


@pytest.mark.probe
def test_loads_and_stores_take_the_stated_cycles():
    hardware = ParameterCache(
        caches=4, hit_cycles=2, directory_cycles=3, hop_cycles=10, port_bytes=32, line_bytes=64, control_bytes=8
    )
    control, data, hit, directory = 10 + 1, 10 + 3, 2, 3  # 8 bytes are one beat, 72 three

    def cost(shared, act, *arguments):
        before = shared.cycles
        act(*arguments)
        return shared.cycles - before

    shared = SharedParameters(hardware, np.zeros(16))  # one line, home at AGAU 0
    done = control + directory  # `Done` reaches the home after the requester is through
    miss = hit + control + directory + data + hit
    assert cost(shared, shared.read, 1, 0) == miss + done
    assert cost(shared, shared.read, 1, 5) == hit  # the same line
    assert cost(shared, shared.read, 0, 0) == hit + directory + hit + directory  # the home is beside it
    assert cost(shared, shared.read, 2, 0) == miss + done
    inv = control + hit + control + directory
    upgrade = hit + control + directory + inv + control + hit  # cache 0 answers while 2 is on the way; no data comes
    assert cost(shared, shared.write, 1, 0, 7) == upgrade + done
    assert cost(shared, shared.write, 1, 1, 7) == hit
    fetched = hit + control + directory + control + hit + data + directory + data + hit  # the owner is asked for it
    assert cost(shared, shared.read, 2, 0) == fetched + done
    assert shared.counts["Grant"] == 1
    assert shared.counts["Inv"] == 2
    assert shared.counts["FwdGetS"] == 1


def test_caches_avoid_repeated_transfers():
    words, rounds = 64, 10
    shared = SharedParameters(ParameterCache(caches=4, number="int32"), [0] * words)
    shared.run([[Operation("load", word) for _ in range(rounds) for word in range(words)] for _ in range(4)])
    lines = words * 4 // 64
    assert shared.counts["Data"] == 4 * lines  # each line once to each cache
    assert shared.counts["hit"] == 4 * (rounds * words - lines)
    assert shared.avoided_bytes == 64 * (4 * rounds * words - 4 * lines)
    assert shared.network_bytes == 3 * lines * (8 + 72 + 8)  # GetS, Data, Done, but for those beside the home
    assert shared.events["agau_directory_access"] == 4 * lines * 2
    assert set(shared.events) == set(shared.cache.joules)


def test_adding_at_the_home_is_faster_under_contention_and_slower_alone():
    def cycles(atomics, programs):
        shared = SharedParameters(ParameterCache(caches=8, atomics=atomics, number="int32"), [0])
        shared.run(programs)
        return shared.cycles

    crowd = [[Operation("fetch_add", 0, 1)] * 4 for _ in range(8)]
    alone = [[], [Operation("fetch_add", 0, 1)] * 20, *[[] for _ in range(6)]]
    assert cycles("home", crowd) < cycles("owner", crowd)
    assert cycles("home", alone) > cycles("owner", alone)


def test_capacity_evicts_the_least_recent():
    shared = system(caches=2, words=12)  # two lines of two words in one set
    for word in (0, 2, 0, 4):
        shared.read(0, word)
    assert set(shared.recent[0]) == {0, 2}
    assert shared.counts["eviction"] == 1
    assert shared.counts["PutM"] == 0  # unmodified
    shared.write(0, 6, 9)
    shared.read(0, 8), shared.read(0, 10)
    assert shared.counts["PutM"] == 1
    assert shared.values[6] == 9


def test_invalid_calls_raise_with_the_reason():
    shared = system()
    with pytest.raises(BadInput, match="word 8 is outside"):
        shared.read(0, 8)
    with pytest.raises(BadInput, match="cache 3 of 3"):
        shared.read(3, 0)
    with pytest.raises(BadInput, match="programs for 3 caches"):
        shared.run([[]])
    with pytest.raises(BadInput, match="write load, store"):
        shared.run([[Operation("swap")], [], []])
    with pytest.raises(BadInput, match="whole sets"):
        ParameterCache(cache_bytes=1000)
    with pytest.raises(UnknownName, match="known: home, owner"):
        ParameterCache(atomics="dpu")
    with pytest.raises(BadInput, match="only a line in S or M"):
        evict(fresh(1, (0,)), 0)
    with pytest.raises(BadInput, match="one operation at a time"):
        ask(fresh(1, (0,))._replace(copies=(Copy("IS"),)), 0, LOAD)


def test_area_grows_with_cache_and_sharers():
    small, large = ParameterCache(), ParameterCache(cache_bytes=64 * 1024)
    assert large.areas["agau_cache"] == pytest.approx(2 * small.areas["agau_cache"])
    assert ParameterCache(caches=64).areas["agau_directory"] > small.areas["agau_directory"]
    assert Counter(small.joules).keys() == {"agau_cache_byte", "agau_directory_access"}


def test_a_directory_access_reads_and_writes_one_entry_of_tag_state_owner_and_sharers():
    cache = ParameterCache(caches=8, cache_bytes=1024, line_bytes=64, ways=2, directory_cover=2.0)
    entry_bits = 26 + 2 + 3 + 8
    assert cache.directory_bytes == pytest.approx(16 * 2.0 * entry_bits / 8)
    per_byte = cache_joules_per_byte(cache.directory_bytes, cache.technology_nm)
    assert cache.joules["agau_directory_access"] == pytest.approx(2 * entry_bits / 8 * per_byte, rel=1e-6, abs=0.0)
    assert cache.tag_bytes == 16 * 28 / 8
