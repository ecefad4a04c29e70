"""Studies of many patterns, and the search for the best one of a multiplexer width."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.search import candidates, random_streams, score_pattern, score_patterns, search, spread
from trainyard.errors import BadInput

STREAMS = random_streams(4, (0.4, 0.6, 0.8), groups=8, steps=128)


@pytest.mark.paper
def test_patterns_with_enough_lookaside_stay_within_five_percent():
    ahead, aside = ((0, 0), (1, 0), (2, 0), (3, 0)), [(1, 1), (1, -1), (2, 1), (2, -1), (2, 2), (3, 1), (3, -1), (3, 2)]
    balanced = [(*ahead, *chosen) for chosen in combinations(aside, 4)]  # as in Fig. 5: three lookaheads, four lookasides
    spread_out = [options for options in balanced if {step for step, _ in options[4:]} == {1, 2, 3}]  # Sec. IV-D, advice 2
    low, high = spread(score_patterns(spread_out, STREAMS, lanes=4, depth=4))
    assert len(spread_out) >= 40  # Sec. IV-D: tens of patterns
    assert -0.05 <= low < 0 < high <= 0.05
    few = score_patterns([ahead, (*ahead, (1, 1))], STREAMS, lanes=4, depth=4)
    best = score_pattern(patterns.FOUR_DEEP, STREAMS, lanes=4, depth=4)
    assert few[0].score < 0.9 * best.score  # and without lookaside they do not
    assert few[0].score < few[1].score < best.score


@pytest.mark.oracle
def test_the_search_finds_what_trying_all_lists_finds():
    pool = candidates(4, 2)
    every = score_patterns([((0, 0), *chosen) for chosen in permutations(pool, 2)], STREAMS, lanes=4, depth=2)
    best = max(result.score for result in every)
    assert search(4, 2, 3, STREAMS).score == pytest.approx(best)


def test_the_search_beats_every_pattern_it_tells_of_and_ends_at_a_local_best():
    reported = []
    found = search(4, 3, 4, STREAMS, progress=lambda tried, score, options: reported.append((tried, score, options)))
    assert [score for _, score, _ in reported] == sorted({score for _, score, _ in reported})
    assert [tried for tried, _, _ in reported] == sorted({tried for tried, _, _ in reported})
    assert found.score == pytest.approx(reported[-1][1])
    assert found.score >= score_pattern(patterns.THREE_DEEP, STREAMS, lanes=4, depth=3).score
    for place in range(1, 4):
        for option in set(candidates(4, 3)) - set(found.options):
            other = (*found.options[:place], option, *found.options[place + 1 :])
            assert score_pattern(other, STREAMS, lanes=4, depth=3).score <= found.score


def test_the_same_seed_finds_the_same_pattern():
    assert search(4, 3, 4, seed=5, restarts=2) == search(4, 3, 4, seed=5, restarts=2)


def test_a_limit_on_levels_is_kept():
    streams = random_streams(16, (0.6,), groups=4, steps=64)
    found = search(16, 3, 5, streams, most_levels=4, grouped=True)
    assert found.levels == len(patterns.levels(found.options, 16)) <= 4
    assert found.score <= search(16, 3, 5, streams, grouped=True).score * 1.02  # neither search is exhaustive


def test_a_pattern_s_score_is_the_geometric_mean_of_its_speedups():
    found = score_pattern(patterns.FOUR_DEEP, STREAMS, lanes=4, depth=4)
    assert found.score == pytest.approx(np.prod(found.speedups) ** (1 / 3))
    assert len(found.speedups) == 3
    assert found.levels == 4


def test_candidates_are_every_other_value_of_the_buffer_once():
    for lanes, depth in ((1, 3), (2, 2), (4, 4), (5, 3), (16, 2)):
        pool = candidates(lanes, depth)
        assert {(step, offset % lanes) for step, offset in pool} == {(s, o) for s in range(1, depth) for o in range(lanes)}
        assert len(pool) == (depth - 1) * lanes


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: search(4, 2, 6, STREAMS), "offer 5 different inputs, 6 were asked for"),
        (lambda: search(4, 4, 8, STREAMS, most_levels=1), "found no pattern of 8 inputs on 4 lanes that schedules in 1 levels"),
        (lambda: score_pattern(patterns.FOUR_DEEP, (), lanes=4, depth=4), "needs streams"),
        (lambda: score_pattern(((1, 0),), STREAMS, lanes=4, depth=4), r"must be \(0, 0\)"),
    ],
)
def test_what_cannot_be_searched_is_refused(ask, message):
    with pytest.raises(BadInput, match=message):
        ask()
