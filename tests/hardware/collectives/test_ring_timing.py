"""The pairs that a ring's timing keeps: one of them decides whatever their weights."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.hardware.collectives.ring_timing import _pareto

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9).map(float)), min_size=1, max_size=8)


@example([(1, 5.0), (2, 3.0)], 1, 0)
@given(PAIRS, st.integers(0, 5), st.integers(0, 5))
def test_the_largest_and_the_smallest_weighted_sum_are_reached_by_a_pair_that_is_kept(pairs, first, second):
    def weighted(pair):
        return first * pair[0] + second * pair[1]

    assert max(map(weighted, _pareto(pairs))) == max(map(weighted, pairs))
    assert max(map(weighted, _pareto(pairs, least=True))) == max(map(weighted, pairs))
    assert min(map(weighted, _pareto(pairs, least=True))) == min(map(weighted, pairs))


@given(PAIRS)
def test_every_pair_that_is_kept_is_one_that_no_other_exceeds_in_both(pairs):
    for kept in _pareto(pairs):
        assert kept in pairs
        assert not any(other[0] >= kept[0] and other[1] >= kept[1] and other != kept for other in pairs)
