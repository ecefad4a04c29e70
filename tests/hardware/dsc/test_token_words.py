"""Tokens on shared words: every interleaving of a few processes with deaths, threads for real, and each promise at its boundary."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.token_words_exploration import Crowd
from trainyard.errors import BadInput
from trainyard.hardware.dsc.token_words import Board, CompareSwap, Lease, LocalWords, Read, TicketTokens, TokenProtocol


@pytest.mark.oracle
@pytest.mark.parametrize(
    "crowd",
    [
        Crowd(processes=2, rounds=2),
        Crowd(processes=2, last=4),
        Crowd(processes=2, deaths=1, last=5),
        Crowd(processes=3),
        pytest.param(Crowd(processes=3, deaths=1, last=3), marks=pytest.mark.slow),
        Crowd(processes=3, protocol=TokenProtocol(tokens=2, expiry=1)),
        pytest.param(Crowd(processes=3, last=2, protocol=TokenProtocol(tokens=2, expiry=1)), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_interleaving_of_small_crowds_is_safe(crowd) -> None:
    explored = crowd.explore()
    assert explored.finding is None, explored.finding
    assert crowd.stuck(explored) is None
    holders = [sum(process.status == "holds" for process in state.processes) for state in explored.states]
    assert max(holders) >= crowd.protocol.tokens


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    "crowd",
    [
        Crowd(processes=2, rounds=2, deaths=1, last=6),
        Crowd(processes=3, deaths=1, last=4),
        Crowd(processes=3, deaths=2, last=5),
        Crowd(processes=3, deaths=1, last=3, protocol=TokenProtocol(tokens=2, expiry=1)),
        Crowd(processes=2, deaths=1, last=8, protocol=TokenProtocol(expiry=2)),
    ],
    ids=str,
)
def test_every_interleaving_of_larger_crowds_is_safe(crowd) -> None:
    explored = crowd.explore()
    assert explored.finding is None, explored.finding
    assert crowd.stuck(explored) is None


@pytest.mark.oracle
@pytest.mark.parametrize("processes", [2, 3])
def test_while_nothing_expires_tickets_are_served_in_order(processes) -> None:
    """Who has drawn a ticket sees at most all others get a token once."""
    crowd = Crowd(processes=processes, rounds=2)
    explored = crowd.explore()

    def waits(state):
        return state.processes[0].status == "waits"

    passed = explored.most_passed_over(waits, lambda move: move[0] != 0 and move[1] == "claim" and move[-1] is True)
    assert passed == processes - 1


class Unlocked(TokenProtocol):
    """Finds the token free, and then takes it whatever has happened meanwhile."""

    def claim(self, ticket, who, now):
        word = yield Read(self.board)
        if Board.of(word, self.tokens).running(now):
            return False
        taken = Board(0, 0, (Lease(ticket, who, now + self.expiry),)).word(self.tokens)
        while not (yield CompareSwap(self.board, word, taken)):
            word = yield Read(self.board)
        return True


class Queueless(TokenProtocol):
    """Whoever comes first takes a free token, and the dead keep it."""

    def claim(self, ticket, who, now):
        word = yield Read(self.board)
        board = Board.of(word, self.tokens)
        if len(board.leases) == self.tokens:
            return False
        return (
            yield CompareSwap(
                self.board, word, Board(0, 0, (*board.leases, Lease(ticket, who, now + self.expiry))).word(self.tokens)
            )
        )


class Impatient(TokenProtocol):
    """A token that is held is free at once for whoever looks."""

    def claim(self, ticket, who, now):
        word = yield Read(self.board)
        return (
            yield CompareSwap(self.board, word, Board(ticket + 1, 0, (Lease(ticket, who, now + self.expiry),)).word(self.tokens))
        )


class Strict(TokenProtocol):
    """Leases end, but a ticket whose owner has died is never passed over."""

    def claim(self, ticket, who, now):
        word = yield Read(self.board)
        board = Board.of(word, self.tokens)
        if ticket != board.serving or len(board.running(now)) == self.tokens:
            return False
        served = Board(ticket + 1, 0, (*board.running(now), Lease(ticket, who, now + self.expiry)))
        return (yield CompareSwap(self.board, word, served.word(self.tokens)))


@pytest.mark.unit
def test_the_exploration_detects_broken_protocols() -> None:
    finding = Crowd(processes=3, protocol=Impatient(expiry=1)).explore().finding
    assert finding is not None
    assert finding.what == "a token is held twice"
    assert len(finding.moves) == 6  # two draws, and two pairs of reading and swapping one after the other

    finding = Crowd(processes=2, protocol=Unlocked(expiry=1)).explore().finding
    assert finding is not None
    assert finding.what == "a token is held twice"
    assert [move[2] for move in finding.moves[-5:]] == ["Read", "CompareSwap", "CompareSwap", "Read", "CompareSwap"]

    for protocol in (Queueless(expiry=1), Strict(expiry=1)):
        crowd = Crowd(processes=2, deaths=1, last=5, protocol=protocol)
        explored = crowd.explore()
        assert explored.finding is None
        stuck = crowd.stuck(explored)
        assert stuck is not None
        assert stuck.moves[-1][1] == "dies"
        assert Crowd(processes=2, last=1, protocol=protocol).explore().finding is None


@pytest.mark.probe
def test_a_dead_holders_token_is_free_just_after_its_lease() -> None:
    tokens = TicketTokens(LocalWords(), expiry_s=10)
    assert tokens.try_acquire(7, now_s=100) == 0
    assert tokens.try_acquire(8, now_s=101) is None
    assert tokens.holder(110.0) == 7
    assert tokens.try_acquire(8, now_s=110.0) is None
    assert tokens.holder(110.000001) is None
    assert tokens.try_acquire(8, now_s=110.000001) == 1
    assert not tokens.release(7)
    assert tokens.holder(111) == 8


@pytest.mark.probe
def test_a_dead_waiter_is_passed_over_just_after_its_time_to_claim() -> None:
    tokens = TicketTokens(LocalWords(), expiry_s=10)
    assert tokens.try_acquire(0, now_s=0) == 0
    assert tokens.try_acquire(1, now_s=1) is None  # it dies in the line
    assert tokens.try_acquire(2, now_s=2) is None
    assert tokens.release(0)
    assert tokens.try_acquire(2, now_s=5) is None  # from now on 1 has 10 s to claim
    assert tokens.try_acquire(2, now_s=15) is None
    assert tokens.try_acquire(2, now_s=15.000001) is None  # passes 1 over
    assert tokens.try_acquire(2, now_s=15.000001) == 2
    assert tokens.try_acquire(1, now_s=16) is None  # back from the dead: a new ticket, at the end of the line
    assert tokens.release(2)
    assert tokens.try_acquire(1, now_s=17) == 3


@pytest.mark.probe
def test_the_time_to_claim_is_each_tickets_own() -> None:
    tokens = TicketTokens(LocalWords(), expiry_s=10)
    assert [tokens.try_acquire(who, now_s=0) for who in range(4)] == [0, None, None, None]
    assert tokens.release(0)
    assert tokens.try_acquire(2, now_s=5) is None  # 1 has until 15
    assert tokens.try_acquire(1, now_s=14) == 1
    assert tokens.release(1)
    for _ in range(2):
        assert tokens.try_acquire(3, now_s=17) is None  # 2 has until 27, and is not passed over
    assert tokens.try_acquire(2, now_s=27) == 2


@pytest.mark.probe
def test_a_clock_that_is_ahead_does_not_shorten_the_time_to_claim() -> None:
    tokens = TicketTokens(LocalWords(), expiry_s=10)
    assert [tokens.try_acquire(who, now_s=0) for who in range(3)] == [0, None, None]
    assert tokens.try_acquire(2, now_s=10.5) is None  # to 2 the lease has ended; 0 renews it in time by its own clock
    assert tokens.renew(0, now_s=10)
    assert tokens.release(0)
    for _ in range(2):
        assert tokens.try_acquire(2, now_s=21) is None
    assert tokens.try_acquire(1, now_s=22) == 1


@pytest.mark.probe
def test_a_lease_is_renewed_until_it_has_ended() -> None:
    tokens = TicketTokens(LocalWords(), expiry_s=10)
    assert tokens.try_acquire(0, now_s=0) == 0
    assert tokens.renew(0, now_s=10)
    assert tokens.holders(20) == (Lease(0, 0, 20_000_000),)
    assert tokens.try_acquire(1, now_s=20) is None
    assert not tokens.renew(0, now_s=20.000001)
    assert tokens.try_acquire(1, now_s=20.000001) == 1
    with pytest.raises(BadInput, match="0 releases a token that it does not hold"):
        tokens.release(0)


@pytest.mark.unit
def test_two_tokens_are_used_at_once_and_none_is_idle_while_a_process_waits() -> None:
    tokens = TicketTokens(LocalWords(), tokens=2, expiry_s=10)
    assert [tokens.try_acquire(who, now_s=1) for who in range(3)] == [0, 1, None]
    assert {lease.who for lease in tokens.holders(1)} == {0, 1}
    assert tokens.release(1)
    assert tokens.try_acquire(2, now_s=2) == 2
    assert tokens.release(0)
    assert tokens.release(2)
    assert tokens.holder(2) is None


@pytest.mark.unit
def test_invalid_arguments_raise() -> None:
    tokens = TicketTokens(LocalWords())
    with pytest.raises(BadInput, match="0 releases a token that it does not hold"):
        tokens.release(0)
    tokens.try_acquire(0, now_s=0)
    with pytest.raises(BadInput, match="0 asks for a token and holds one"):
        tokens.try_acquire(0, now_s=0)
    for who in (-1, True, "rank 0"):
        with pytest.raises(BadInput, match="who must be a whole number"):
            tokens.try_acquire(who, now_s=0)
    with pytest.raises(BadInput, match="seconds must be"):
        tokens.try_acquire(1, now_s=float("nan"))
    with pytest.raises(BadInput, match="expiry_s must be above 0"):
        TicketTokens(LocalWords(), expiry_s=0)
    with pytest.raises(BadInput, match="tokens must be a positive"):
        TicketTokens(LocalWords(), tokens=0)


fields = st.integers(0, 2**64 - 1)


@pytest.mark.oracle
@given(serving=fields, claim_by=fields, leases=st.lists(st.builds(Lease, fields, fields, st.integers(1, 2**64 - 1)), max_size=4))
def test_the_board_round_trips_through_its_word(serving, claim_by, leases) -> None:
    board = Board(serving, claim_by, tuple(leases))
    word = board.word(tokens=4)
    assert Board.of(word, tokens=4) == board
    assert word.bit_length() <= 128 + 192 * 4


@pytest.mark.oracle
@settings(max_examples=30)
@given(
    tokens=st.integers(1, 4), processes=st.integers(1, 40),
    acts=st.lists(st.tuples(st.integers(0, 39), st.floats(0, 3)), min_size=20, max_size=200),
)  # fmt: skip
def test_many_processes_in_any_order_are_served(tokens, processes, acts) -> None:
    """Whoever is named asks, or releases what it holds; a model knows who may hold what until when, and that places are kept."""
    words, now = LocalWords(), 1.0
    desks = [TicketTokens(words, tokens=tokens, expiry_s=5) for _ in range(processes)]
    until: dict[int, float] = {}
    served: list[int] = []
    for number, passes in acts:
        who = number % processes
        now = round(now + passes, 3)
        if who in until:
            assert desks[who].release(who) or now > until[who]
            del until[who]
        elif (ticket := desks[who].try_acquire(who, now)) is not None:
            assert not served or ticket > served[-1]
            served.append(ticket)
            until[who] = now + 5
        assert sum(now <= end for end in until.values()) <= tokens
        assert {lease.who for lease in desks[0].holders(now)} == {who for who, end in until.items() if now <= round(end, 6)}


@pytest.mark.oracle
def test_threads_exclude_each_other() -> None:
    words, inside, most, counted = LocalWords(), [0], [0], [0]
    lock = threading.Lock()

    def worker(who: int) -> None:
        desk = TicketTokens(words, tokens=2, expiry_s=1000)
        for _ in range(20):
            while desk.try_acquire(who, now_s=1.0) is None:
                pass
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                counted[0] += 1
            with lock:
                inside[0] -= 1
            assert desk.release(who)

    threads = [threading.Thread(target=worker, args=(who,)) for who in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert counted[0] == 100
    assert most[0] <= 2
