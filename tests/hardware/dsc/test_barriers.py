"""Barriers: the tree of counters against a flat count, and no two barriers mixed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.exploration import explore
from trainyard.errors import BadInput
from trainyard.hardware.dsc.barriers import Barrier, tree_depth


@pytest.mark.oracle
@given(participants=st.integers(1, 300), fan_in=st.integers(2, 17), data=st.data())
def test_the_tree_opens_exactly_when_a_flat_count_is_full(participants, fan_in, data) -> None:
    barrier = Barrier(participants, fan_in)
    state = barrier.start()
    for turn in range(3):
        missing = set(range(participants))
        order = data.draw(st.permutations(range(participants))) if participants < 40 else [*range(turn, participants), *range(turn)]
        for participant in order[:participants]:
            if participant not in missing:
                continue
            assert not barrier.waits(state, participant)
            state = barrier.arrive(state, participant)
            missing.discard(participant)
            assert state.sense == ((turn % 2 == 0) if not missing else (turn % 2 == 1))
            assert sorted(barrier.arrived(state)) == (sorted(set(range(participants)) - missing) if missing else [])
        assert not any(state.counts)


@pytest.mark.probe
@given(participants=st.integers(2, 64))
def test_all_wait_until_the_last_participant_arrives(participants) -> None:
    barrier = Barrier(participants)
    state = barrier.start()
    for participant in range(participants - 1):
        state = barrier.arrive(state, participant)
    assert all(barrier.waits(state, participant) for participant in range(participants - 1))
    state = barrier.arrive(state, participants - 1)
    assert not any(barrier.waits(state, participant) for participant in range(participants))


@pytest.mark.probe
@given(fan_in=st.integers(2, 9), depth=st.integers(1, 4))
def test_depth_steps_up_one_participant_beyond_a_full_tree(fan_in, depth) -> None:
    full = fan_in**depth
    assert tree_depth(full, fan_in) == depth == len(Barrier(full, fan_in).widths)
    assert tree_depth(full + 1, fan_in) == depth + 1 == len(Barrier(full + 1, fan_in).widths)


def workers_at_barriers(participants, arrive, waits, start):
    """Workers that arrive, and go on when they see that all have; the state includes the barriers that each has passed."""

    def moves(state):
        barrier, places, rounds = state
        for me, place in enumerate(places):
            if place == "works":
                yield (me, "arrives"), (arrive(barrier, me), change(places, me, "waits"), rounds)
            elif not waits(barrier, me):
                behind = change(rounds, me, rounds[me] + 1)
                yield (me, "goes on"), (barrier, change(places, me, "works"), tuple(n - min(behind) for n in behind))

    together = {"rounds mixed": lambda state: max(state[2]) < 2 and _only_looking(state)}
    return explore((start, ("works",) * participants, (0,) * participants), moves, invariants=together)


def _only_looking(state) -> bool:
    _, places, rounds = state
    return not max(rounds) or all(place == "waits" for place, number in zip(places, rounds, strict=True) if not number)


def change(values, place, value):
    return (*values[:place], value, *values[place + 1 :])


@pytest.mark.oracle
@pytest.mark.parametrize("participants", [1, 2, 3, 4, 5])
def test_consecutive_barriers_never_mix_in_any_order(participants) -> None:
    barrier = Barrier(participants, fan_in=2)
    explored = workers_at_barriers(participants, barrier.arrive, barrier.waits, barrier.start())
    assert explored.finding is None
    for me in range(participants):
        assert explored.starvation(lambda state, me=me: state[1][me] == "waits") is None


@pytest.mark.unit
@pytest.mark.parametrize("participants", [2, 3])
def test_a_barrier_without_sense_reversal_is_detected(participants) -> None:
    """Waiting until the count is back at 0: a fast one counts again before a slow one looks, and nobody ever goes on."""
    finding = workers_at_barriers(
        participants, lambda count, me: (count + 1) % participants, lambda count, me: count != 0, 0
    ).finding
    assert finding is not None
    assert finding.what == "deadlock"
    assert [move[1] for move in finding.moves].count("goes on") == 1


@pytest.mark.unit
def test_invalid_arguments_raise() -> None:
    barrier = Barrier(2)
    with pytest.raises(BadInput, match="participant 0 has arrived already"):
        barrier.arrive(barrier.arrive(barrier.start(), 0), 0)
    with pytest.raises(BadInput, match="participant must be a whole number of 0 to 1, got 2"):
        barrier.arrive(barrier.start(), 2)
    with pytest.raises(BadInput, match="fan_in must be at least 2"):
        Barrier(2, 1)
    with pytest.raises(BadInput, match="participants must be a positive"):
        Barrier(0)
