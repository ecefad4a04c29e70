"""The walk-through tells what the scheduler does: against its trace, its own rules and a look at the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.arrays.tensordash.walkthrough import DONE, EXAMPLE, PAST, WAITING, ZERO, _side_by_side, cycles, example, walkthrough
from trainyard.errors import BadInput

units = st.sampled_from([Scheduler(), Scheduler(depth=2), Scheduler(lanes=16, depth=3), Scheduler(lanes=3, depth=5)])


@given(seed=st.integers(0, 999), steps=st.integers(1, 20), zeros=st.sampled_from([0.0, 0.3, 0.7, 1.0]), unit=units)
def test_every_pair_is_told_once_and_every_choice_is_the_first_it_had(seed, steps, zeros, unit):
    mask = example(seed, steps=steps, lanes=unit.lanes, sparsity=zeros)
    told = cycles(mask, unit)
    assert len(told) == unit.plain(mask[None])
    taken = [(choice.step, choice.source) for cycle in told for choice in cycle.choices if choice.ms is not None]
    assert sorted(taken) == [tuple(place) for place in np.argwhere(mask).tolist()]
    for cycle in told:
        assert sorted(choice.lane for choice in cycle.choices) == list(range(unit.lanes))
        for choice in cycle.choices:
            assert choice.ms == (choice.had[0] if choice.had else None)
            if choice.ms is not None:
                ahead, offset = unit.options[choice.ms]
                assert (choice.step, choice.source) == (cycle.position + ahead, (choice.lane + offset) % unit.lanes)


@given(seed=st.integers(0, 999), steps=st.integers(1, 20), unit=units)
def test_the_buffer_shows_what_is_left_of_the_stream(seed, steps, unit):
    mask = example(seed, steps=steps, lanes=unit.lanes)
    gone: set[tuple[int, int]] = set()
    position = 0
    for cycle in cycles(mask, unit):
        assert cycle.position == position
        position += cycle.advance
        now = {(choice.step, choice.source): choice.lane for choice in cycle.choices if choice.ms is not None}
        for ahead, row in enumerate(cycle.buffer):
            for lane, state in enumerate(row):
                place = cycle.position + ahead, lane
                if place[0] >= steps:
                    assert state == PAST
                elif not mask[place]:
                    assert state == ZERO
                else:
                    assert state == now.get(place, DONE if place in gone else WAITING)
        gone |= set(now)
    assert position >= steps


def test_the_example_takes_two_cycles_two_deep_as_in_the_paper():
    assert np.sum(EXAMPLE) == 7
    assert len(cycles(EXAMPLE, Scheduler(depth=2))) == 2


def test_the_text_has_every_cycle_both_schedules_and_fits_its_width():
    mask = example(3)
    text = walkthrough(mask, Scheduler(), width=80)
    told = cycles(mask, Scheduler())
    for cycle in told:
        assert f"cycle {cycle.number + 1}: steps {cycle.position} to" in text
        assert f"AS {cycle.advance}:" in text
    assert f"12 cycles dense, {len(told)} scheduled" in text
    assert "and the stream ends" in text
    assert text.splitlines()[-len(mask) - 1].split() == ["cycle", "dense", "cycle", "scheduled", "AS"]
    body = [line for line in text.splitlines() if not line.startswith(("Lanes choose", "In the buffer", "had:"))]
    assert max(map(len, body)) <= 80
    assert "9 more cycles are not shown" in walkthrough(np.ones((12, 4)), Scheduler(), most=3)


def test_what_is_no_stream_is_refused():
    with pytest.raises(BadInput, match=r"give \[steps, 4\]"):
        walkthrough(np.ones((2, 3, 4)), Scheduler())
    with pytest.raises(BadInput, match="between 0 and 1"):
        example(0, sparsity=1.5)


def test_blocks_stand_side_by_side_with_the_second_in_one_column_or_below_each_other_where_they_do_not_fit():
    left, right = ["ab", "abcd"], ["x", "yy", "z"]
    assert _side_by_side(left, right, 10) == ["ab      x", "abcd    yy", "        z"]
    assert _side_by_side(left, right, 9) == ["ab", "abcd", "x", "yy", "z"]
