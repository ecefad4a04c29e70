"""The scheduler: compiled loops against the plain twin, what must hold of every schedule, and the rates known from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.scheduler import SYNCS, Scheduler, advance, pack, select, tile_cycles, width
from trainyard.errors import BadInput, UnknownName
from trainyard.kernels.arrays import promotion, promotion_words


@st.composite
def scheduler(draw, lanes=None):
    lanes = draw(st.one_of(st.integers(1, 20), st.sampled_from([64, 70]))) if lanes is None else lanes
    depth = draw(st.integers(1, 6))
    if draw(st.booleans()):
        options = patterns.default_options(lanes, depth)
    else:
        pairs = st.tuples(st.integers(0, depth - 1), st.integers(-lanes, lanes)).filter(lambda option: option != (0, 0))
        options = ((0, 0), *draw(st.lists(pairs, max_size=8, unique=True)))
    return Scheduler(
        lanes=lanes, depth=depth, options=options, levels=patterns.levels(options, lanes) if draw(st.booleans()) else ()
    )


@st.composite
def job(draw):
    """A scheduler, streams [groups * rows, steps, lanes], rows, sync, banks."""
    unit = draw(scheduler())
    rows, steps, groups = draw(st.integers(1, 6)), draw(st.integers(0, 30)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = {
        "anywhere": (groups * rows, steps, unit.lanes),
        "rows": (groups * rows, 1, 1),
        "steps": (1, steps, 1),
        "lanes": (1, 1, unit.lanes),
    }
    dense = random.random(shape[draw(st.sampled_from(sorted(shape)))]) < draw(st.floats(0, 1))
    bits = np.broadcast_to(dense, (groups * rows, steps, unit.lanes)) & (random.random((groups * rows, steps, unit.lanes)) < 0.9)
    return unit, bits, rows, draw(st.sampled_from(SYNCS)), draw(st.integers(1, unit.depth + 1))


@pytest.mark.oracle
@given(job())
def test_compiled_cycles_are_the_twin_s(drawn):
    unit, bits, rows, sync, banks = drawn
    plain = [unit.plain(bits[first : first + rows], sync, banks) for first in range(0, len(bits), rows)]
    assert unit.cycles(pack(bits), bits.shape[1], rows, sync, banks).tolist() == plain


@pytest.mark.oracle
@pytest.mark.parametrize(
    "unit",
    [
        Scheduler(depth=1),
        Scheduler(options=((0, 0), (0, 1), (1, -1), (2, 2), (3, 0))),
        Scheduler(lanes=3, depth=7),
        Scheduler(lanes=6, depth=4, options=((0, 0), (0, 1), (0, -2), (1, -1), (2, 2), (3, 3))),
        Scheduler(lanes=16, depth=3, levels=patterns.levels(patterns.THREE_DEEP_WIDE, 16)),
        Scheduler(lanes=59, depth=3),
        Scheduler(lanes=64, depth=4),
        Scheduler(lanes=65, depth=3),
    ],
    ids=lambda unit: f"{unit.lanes}x{unit.depth}",
)
@pytest.mark.parametrize("sync", SYNCS)
def test_units_of_every_kind_match_the_twin_behind_any_banks(unit, sync):
    bits = np.random.default_rng(unit.lanes).random((10, 24, unit.lanes)) < 0.3
    for banks in range(1, unit.depth + 1):
        plain = [unit.plain(bits[:5], sync, banks), unit.plain(bits[5:], sync, banks)]
        assert unit.cycles(pack(bits), 24, 5, sync, banks).tolist() == plain


@pytest.mark.probe
@pytest.mark.parametrize("lanes", [56, 57, 58, 59, 63, 64])
def test_the_last_lane_of_a_wide_unit_is_read_wherever_its_word_begins(lanes):
    unit = Scheduler(lanes=lanes, depth=2, options=((0, 0),))
    bits = np.zeros((1, 40, lanes), dtype=bool)
    assert unit.cycles(pack(bits), 40, 1).tolist() == [20]
    bits[0, :, -1] = True
    for rows in (1, 2):
        assert unit.cycles(pack(bits), 40, rows).tolist() == [40]


@pytest.mark.oracle
@given(job())
def test_compiled_traces_are_the_twin_s(drawn):
    unit, bits, rows, sync, banks = drawn
    trace = unit.trace(bits[:rows], sync, banks)
    plain = list(tile_cycles((~bits[:rows]).tolist(), unit, sync, min(banks, unit.depth)))
    assert trace.position.tolist() == [[move.position for move in cycle] for cycle in plain]
    assert trace.advance.tolist() == [[move.advance for move in cycle] for cycle in plain]
    assert trace.select.tolist() == [[[-1 if ms is None else ms for ms in move.ms] for move in cycle] for cycle in plain]


@given(job())
def test_every_effectual_pair_is_issued_exactly_once(drawn):
    unit, bits, rows, sync, banks = drawn
    tile = bits[:rows]
    trace = unit.trace(tile, sync, banks)
    issued = np.zeros((rows, tile.shape[1] + unit.depth, unit.lanes), dtype=int)
    for cycle, row, lane in zip(*np.nonzero(trace.select >= 0), strict=True):
        step, offset = unit.options[trace.select[cycle, row, lane]]
        issued[row, trace.position[cycle, row] + step, (lane + offset) % unit.lanes] += 1
    assert (issued[:, : tile.shape[1]] == tile).all()
    assert not issued[:, tile.shape[1] :].any()
    assert trace.issued == tile.sum()


@given(job())
def test_cycles_stay_within_what_depth_lanes_and_the_dense_schedule_allow(drawn):
    unit, bits, rows, sync, banks = drawn
    steps = bits.shape[1]
    free, stalled = (unit.cycles(pack(bits), steps, rows, sync, limit) for limit in (None, banks))
    fullest = bits.reshape(len(bits) // rows, rows, -1).sum(axis=2).max(axis=1)
    for cycles in (free, stalled):
        assert (cycles <= steps).all()
        assert (cycles >= -(-steps // unit.depth)).all()
        assert (cycles >= -(-fullest // unit.lanes)).all()
    after_the_first_fill = -(-max(0, steps - unit.depth) // min(banks, unit.depth))
    assert (stalled >= after_the_first_fill).all()


@pytest.mark.oracle
@given(job())
def test_the_three_compiled_loops_agree(drawn):
    unit, bits, rows, sync, banks = drawn
    words, steps = pack(bits), bits.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for small, fits in ((20, promotion_words.fit), (0, promotion_words.fit), (0, lambda rows, lanes: False)):
            patch.setattr(promotion, "SMALL_STATE_BITS", small)
            patch.setattr(promotion, "MOST_STATE_BITS", small)
            patch.setattr(promotion_words, "fit", fits)
            found.append(unit.cycles(words, steps, rows, sync, banks).tolist())
    assert found[0] == found[1] == found[2]


@given(scheduler(), st.integers(1, 25), st.integers(0, 2**32 - 1))
def test_rows_alone_in_lockstep_are_rows_by_themselves(unit, steps, seed):
    bits = np.random.default_rng(seed).random((5, steps, unit.lanes)) < 0.4
    alone = unit.cycles(pack(bits), steps, 1)
    assert unit.cycles(pack(bits), steps, 5, "output").tolist() == [alone.max()]
    assert unit.cycles(pack(bits), steps, 1, "output").tolist() == alone.tolist()


@given(scheduler(), st.integers(1, 25), st.sampled_from(SYNCS))
def test_full_streams_take_the_dense_schedule_and_empty_ones_a_buffer_a_cycle(unit, steps, sync):
    shape = (3, steps, unit.lanes)
    assert unit.cycles(pack(np.ones(shape)), steps, 3, sync).tolist() == [steps]
    assert unit.cycles(pack(np.zeros(shape)), steps, 3, sync).tolist() == [-(-steps // unit.depth)]


@given(job())
def test_banks_as_many_as_the_depth_never_stall(drawn):
    unit, bits, rows, sync, _ = drawn
    words, steps = pack(bits), bits.shape[1]
    assert (unit.cycles(words, steps, rows, sync, unit.depth) == unit.cycles(words, steps, rows, sync)).all()
    assert (unit.cycles(words, steps, rows, sync, unit.depth + 3) == unit.cycles(words, steps, rows, sync)).all()


@given(job())
def test_rows_missing_at_the_end_are_empty(drawn):
    unit, bits, rows, sync, banks = drawn
    rows += 1
    full = np.zeros((-(-len(bits) // rows) * rows, *bits.shape[1:]), dtype=bool)
    full[: len(bits)] = bits
    steps = bits.shape[1]
    assert (unit.cycles(pack(bits), steps, rows, sync, banks) == unit.cycles(pack(full), steps, rows, sync, banks)).all()


@pytest.mark.probe
def test_a_value_three_steps_ahead_is_promoted_and_one_four_ahead_is_not():
    bits = np.zeros((1, 5, 4), dtype=bool)
    bits[0, 3, 0] = True
    unit = Scheduler()
    assert unit.trace(bits[:, :4]).select.tolist() == [[[3, -1, -1, -1]]]  # lane 0 takes it as its third lookahead
    assert unit.plain(bits) == 2
    bits[0, 3, 0], bits[0, 4, 0] = False, True
    assert unit.trace(bits).select.tolist() == [[[-1] * 4], [[0, -1, -1, -1]]]


@pytest.mark.probe
def test_one_value_more_than_the_neighbours_can_take_costs_a_cycle():
    bits = np.zeros((1, 4, 4), dtype=bool)
    bits[0, :3, 0] = True  # lane 0 its own, lane 1 one ahead at -1, lane 2 two ahead at +2
    unit = Scheduler()
    assert unit.plain(bits) == unit.cycles(pack(bits), 4, 1)[0] == 1
    bits[0, 3, 0] = True  # three ahead only lane 0 and lane 1 (offset +3) could read: both are busy
    assert unit.plain(bits) == unit.cycles(pack(bits), 4, 1)[0] == 2


@pytest.mark.probe
def test_an_earlier_lane_takes_what_a_later_one_could():
    z = [[True, False, True, True], [True, False, True, True]]  # lane 1 has this step and the next to do
    assert select(z, patterns.TWO_DEEP, ((0,), (1,), (2,), (3,))) == [3, 0, None, None]
    z = [[True, False, True, True], [True, False, True, True]]
    assert select(z, patterns.TWO_DEEP, ((3,), (2,), (1,), (0,))) == [None, 0, 2, None]


def test_advance_counts_empty_steps_in_front_only():
    full, empty = [False, True], [True, True]
    assert [advance(z) for z in ([empty, empty], [empty, full], [full, empty], [empty, full, empty])] == [2, 1, 0, 1]


def test_seven_pairs_of_sixteen_take_two_cycles_behind_a_two_deep_buffer():
    bits = np.array([[[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0]]], dtype=bool)  # as many as in Fig. 3
    assert Scheduler(depth=2).plain(bits) == Scheduler(depth=2).cycles(pack(bits), 4, 1)[0] == 2


RATES = {  # speedups of 4 lanes, 4 deep, 4 rows on random zeros, streams of 1024 steps: known from an independent study
    "lockstep": {0.2: 1.203, 0.6: 1.999, 0.9: 3.713, 0.99: 3.999},
    "output": {0.2: 1.237, 0.6: 2.273, 0.9: 3.884, 0.99: 3.999},
    "block": {0.2: 1.004, 0.6: 1.544, 0.9: 3.353, 0.99: 3.999},
}


def speedup(sparsity, steps, rows=4, sync="lockstep", groups=200):
    bits = np.random.default_rng([int(sparsity * 100), steps]).random((groups * rows, steps, 4)) >= sparsity
    return groups * steps / Scheduler().cycles(pack(bits), steps, rows, sync).sum()


@pytest.mark.paper
@pytest.mark.parametrize("sync", SYNCS)
def test_random_zeros_are_skipped_at_the_known_rates(sync):
    for sparsity, known in RATES[sync].items():
        assert speedup(sparsity, 1024, sync=sync) == pytest.approx(known, rel=0.01)


@pytest.mark.paper
@pytest.mark.parametrize(("sparsity", "known"), [(0.2, 1.246), (0.6, 2.317), (0.9, 3.909), (0.99, 3.999)])
def test_one_element_alone_skips_at_the_known_rates(sparsity, known):
    assert speedup(sparsity, 1024, rows=1) == pytest.approx(known, rel=0.01)


@pytest.mark.paper
@pytest.mark.parametrize(
    ("sparsity", "steps", "known"), [(0.2, 4, 1.005), (0.2, 144, 1.199), (0.6, 32, 1.92), (0.6, 11, 1.80), (0.6, 4, 1.53)]
)
def test_short_streams_skip_less(sparsity, steps, known):
    assert speedup(sparsity, steps, groups=200_000 // steps) == pytest.approx(known, rel=0.01)


@pytest.mark.paper
def test_three_banks_exclude_the_paper_s_3_99():
    bits = np.random.default_rng(0).random((400, 1024, 4)) >= 0.99
    words = pack(bits)
    assert 1024 * 100 / Scheduler().cycles(words, 1024, 4, banks=3).sum() == pytest.approx(3.0, rel=0.01)
    assert 1024 * 100 / Scheduler().cycles(words, 1024, 4).sum() > 3.98


@given(st.integers(1, 4), st.integers(0, 70), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_packed_bits_stand_where_the_format_says(rows, steps, lanes, seed):
    bits = np.random.default_rng(seed).random((rows, steps, lanes)) < 0.5
    words = pack(bits)
    assert words.shape == (rows, width(steps, lanes))
    assert words.dtype == np.uint64
    assert not words[:, -1].any()
    for row, step, lane in [(0, 0, 0), (rows - 1, steps - 1, lanes - 1), (rows // 2, steps // 2, lanes // 3)]:
        if 0 <= step < steps:
            place = step * lanes + lane
            assert int(words[row, place // 64]) >> (place % 64) & 1 == bits[row, step, lane]
    assert np.bitwise_count(words).sum() == bits.sum()


def test_a_row_of_a_larger_array_of_streams_can_be_scheduled():
    bits = np.random.default_rng(1).random((8, 40, 4)) < 0.5
    words = pack(bits)
    assert Scheduler().cycles(words[::2], 40, 2).tolist() == Scheduler().cycles(pack(bits[::2]), 40, 2).tolist()
    assert Scheduler().cycles(words[:0], 40, 2).tolist() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sync": "lockstop"}, "unknown sync 'lockstop' in Scheduler: did you mean 'lockstep'"),
        ({"banks": 0}, "banks must be a positive whole number"),
        ({"rows": 0}, "rows must be a positive whole number"),
        ({"steps": -1}, "steps must be a whole number of at least 0"),
        ({"steps": 64}, "64 steps of 4 lanes need 5 words a row"),
        ({"words": np.zeros((4, 3))}, "a uint64 array"),
        ({"words": np.zeros(4, np.uint64)}, "a uint64 array"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(change, message):
    given = {"words": np.zeros((4, 3), np.uint64), "steps": 20, "rows": 4, **change}
    with pytest.raises((BadInput, UnknownName), match=message):
        Scheduler().cycles(**given)


def test_streams_of_another_shape_are_refused():
    with pytest.raises(BadInput, match=r"shape \(2, 3, 5\): give \[rows, steps, 4\]"):
        Scheduler().plain(np.ones((2, 3, 5)))
    with pytest.raises(BadInput, match=r"shape \(3, 4\)"):
        pack(np.ones((3, 4)))
    with pytest.raises(BadInput, match="lanes 0 and 1 share level 0"):
        Scheduler(levels=((0, 1), (2, 3)))
