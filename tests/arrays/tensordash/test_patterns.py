"""Promotion patterns: the tables, what is refused, and the levels derived from them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.search import random_streams, score_pattern, score_patterns
from trainyard.errors import BadInput


def reads(options, lanes, lane):
    """The values a lane's multiplexer is wired to."""
    return {(step, (lane + offset) % lanes) for step, offset in options}


@st.composite
def pattern(draw, most_lanes=10):
    lanes, depth = draw(st.integers(1, most_lanes)), draw(st.integers(1, 4))
    more = draw(st.lists(st.tuples(st.integers(0, depth - 1), st.integers(-lanes, lanes)), max_size=5, unique=True))
    return lanes, depth, ((0, 0), *(option for option in more if option != (0, 0)))


@pytest.mark.paper
def test_the_printed_patterns_are_the_paper_s():
    assert patterns.default_options(4, 4) == ((0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (1, -1), (2, 2), (3, 3))
    assert set(patterns.default_options(4, 2)) == {(0, 0), (1, 0), (1, -1), (1, 1)}
    assert reads(patterns.FOUR_DEEP, 4, 1) >= {(1, 2), (2, 3)}  # Sec. III-A: lane 1 can take lane 2 one ahead, lane 3 two ahead
    assert reads(patterns.TWO_DEEP, 4, 2) == {(0, 2), (1, 2), (1, 1), (1, 3)}  # Fig. 3c: the third lane


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 8, 16, 70])
@pytest.mark.parametrize("depth", range(1, 9))
def test_every_unit_has_a_pattern_that_is_accepted(lanes, depth):
    options = patterns.default_options(lanes, depth)
    assert patterns.checked(options, lanes, depth) == options
    assert {step for step, _ in options} == set(range(depth))  # every step can be looked at, or a deeper buffer were for nothing
    assert len(options) == {1: 1, 2: 4, 3: 8 if lanes > 15 else 4, 4: 8, 5: 8}.get(depth, 2 * depth)


@pytest.mark.paper
def test_two_and_four_deep_are_the_printed_lists_on_any_width():
    assert {patterns.default_options(lanes, 4) for lanes in (1, 4, 16, 70)} == {patterns.FOUR_DEEP}
    assert {patterns.default_options(lanes, 2) for lanes in (1, 4, 16, 70)} == {patterns.TWO_DEEP}


@pytest.mark.paper
def test_four_lanes_need_a_level_each_and_sixteen_lanes_six():
    assert patterns.levels(patterns.FOUR_DEEP, 4) == ((0,), (1,), (2,), (3,))
    assert len(patterns.levels(patterns.default_options(16, 3), 16)) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the shortest list is"),
        ([(1, 0), (0, 0)], r"the first promotion option is \(1, 0\)"),
        ([(0, 1)], r"must be \(0, 0\)"),
        ([(0, 0), (4, 0)], "step 4 is not in a 4-deep staging buffer; steps are 0 to 3"),
        ([(0, 0), (-1, 0)], "step -1 is not in"),
        ([(0, 0), (1, 0.5)], "must be whole numbers"),
        ([(0, 0), (True, 0)], "must be whole numbers"),
        ([(0, 0), (1, 0), (1, 0)], "stands there twice: first as option 1"),
        ([(0, 0), (1,)], "must be a pair"),
        ([0, 1], "must be a pair"),
        ("00", "must be a pair"),
        (7, "a list of"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_with_the_entry(options, message):
    with pytest.raises(BadInput, match=message):
        patterns.checked(options, 4, 4)


def test_lists_of_lists_and_numpy_numbers_are_accepted():
    assert patterns.checked(np.array([[0, 0], [1, -1]]), 4, 2) == ((0, 0), (1, -1))
    assert patterns.checked([[0, 0], [np.int64(1), 5]], 4, 2) == ((0, 0), (1, 5))


def test_options_that_coincide_on_a_short_ring_are_harmless():
    options = patterns.checked([(0, 0), (1, 1), (1, -1)], lanes=2, depth=2)
    streams = random_streams(2, (0.5,), groups=4)
    plain = score_pattern(((0, 0), (1, 1)), streams, lanes=2, depth=2)
    assert score_pattern(options, streams, lanes=2, depth=2).speedups == plain.speedups


@given(pattern())
def test_lanes_conflict_exactly_where_their_multiplexers_share_a_value(drawn):
    lanes, _, options = drawn
    found = patterns.conflict(options, lanes)
    for first, second in combinations(range(lanes), 2):
        shared = reads(options, lanes, first) & reads(options, lanes, second)
        assert ((first, second) in found) == bool(shared)
        assert not shared or found[first, second] in shared


@given(pattern())
def test_levels_are_legal_and_as_few_as_brute_force_finds(drawn):
    lanes, _, options = drawn
    lanes = min(lanes, 6)
    levels = patterns.levels(options, lanes)
    assert patterns.require_legal(levels, options, lanes) == levels
    meets = patterns.conflict(options, lanes)

    def colourable(count, place=()):
        if len(place) == lanes:
            return True
        free = (
            level for level in range(count) if not any(place[o] == level and (o, len(place)) in meets for o in range(len(place)))
        )
        return any(colourable(count, (*place, level)) for level in free)

    assert colourable(len(levels))
    assert not colourable(len(levels) - 1)


@pytest.mark.probe
@pytest.mark.parametrize(("lanes", "offsets", "fewest"), [(8, ((1, 3),), 2), (8, ((1, 1), (2, 2)), 4), (9, ((1, 1), (2, 4)), 3)])
def test_levels_are_fewer_than_placing_lanes_first_fit_would_give(lanes, offsets, fewest):
    options = ((0, 0), *(option for step, offset in offsets for option in ((step, 0), (step, offset))))
    meets, place = patterns.conflict(options, lanes), []
    for lane in range(lanes):
        taken = {level for other, level in enumerate(place) if (other, lane) in meets}
        place.append(min(set(range(lanes)) - taken))
    assert len(patterns.levels(options, lanes)) == fewest < max(place) + 1


@given(st.integers(17, 40), st.lists(st.tuples(st.integers(1, 2), st.integers(-4, 4)), max_size=5, unique=True))
def test_levels_of_wide_units_are_legal(lanes, more):
    options = ((0, 0), *more)
    levels = patterns.levels(options, lanes)
    assert patterns.require_legal(levels, options, lanes) == levels
    assert sorted(lane for level in levels for lane in level) == list(range(lanes))


@pytest.mark.probe
def test_lanes_five_apart_share_a_level_and_four_apart_do_not():
    options = patterns.THREE_DEEP_WIDE
    rest = [(lane,) for lane in range(16) if lane not in (0, 5, 4)]
    assert patterns.require_legal([(0, 5), (4,), *rest], options, 16)
    with pytest.raises(BadInput, match=r"lanes 0 and 4 share level 0 but can both pick step \+\d of lane \d+"):
        patterns.require_legal([(0, 4), (5,), *rest], options, 16)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([(0,), (1,), (2,)], "lane 3 stands in no level"),
        ([(0,), (1,), (2,), (3,), (1,)], "lane 1 stands twice in the levels, again in level 4"),
        ([(0,), (1,), (2,), (4,)], "level 3 names lane 4"),
        ([(0.5,), (1,), (2,), (3,)], "level 0 names lane 0.5: lanes are whole numbers"),
        ([(0,), (True,), (2,), (3,)], "level 1 names lane True"),
        ([(0,), "1", (2,), (3,)], "level 1 is '1'"),
    ],
)
def test_levels_that_miss_or_repeat_a_lane_are_refused(levels, message):
    with pytest.raises(BadInput, match=message):
        patterns.require_legal(levels, patterns.TWO_DEEP, 4)


def test_the_chosen_tables_are_what_their_rows_say():
    streams = random_streams(4, groups=16)
    three, other = score_patterns([patterns.THREE_DEEP, ((0, 0), (1, 0), (2, 0), (1, 1))], streams, lanes=4, depth=3)
    assert three.score / other.score == pytest.approx(1.014, abs=0.006)
    four, five = (score_pattern(patterns.default_options(4, depth), streams, lanes=4, depth=depth) for depth in (4, 5))
    assert five.score / four.score == pytest.approx(1.07, abs=0.015)
    shape = [(1, 1), (1, -1), (1, 3), (2, 2), (2, -2)], [(1, 1), (1, -1), (1, -3), (2, 2), (2, -2)]
    wide = score_patterns(
        [((0, 0), (1, 0), (2, 0), *asides) for asides in shape], random_streams(16, groups=16), lanes=16, depth=3, grouped=True
    )
    assert all(result.levels == 6 for result in wide)
    assert wide[1].score / wide[0].score == pytest.approx(1.0, abs=0.012)


def test_deeper_buffers_schedule_better():
    streams = random_streams(4, groups=8)
    scores = [score_pattern(patterns.default_options(4, depth), streams, lanes=4, depth=depth).score for depth in range(1, 8)]
    assert scores == sorted(scores)
