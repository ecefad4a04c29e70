"""Tiles that obey stored rows: numbers and cycles of the run-time scheduler, without one; and what a shared buffer costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.prescheduled import encode, from_bytes
from oracles.prescheduled_tile import issues, multiply, one_side_ahead, shared_buffer_cycles
from trainyard.arrays.tensordash.element import bfloat16, processing_element, tile
from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput

units = st.sampled_from(
    [Scheduler(), Scheduler(depth=2), Scheduler(lanes=16, depth=3), Scheduler(lanes=3, depth=5), Scheduler(depth=1)]
)
zeros = st.sampled_from([0.0, 0.4, 0.8, 1.0])
seeds = st.integers(0, 2**20)


def integers(seed: int, shape: tuple[int, ...], share: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(-99, 100, shape).astype(np.int16)
    values[random.random(shape) < share] = 0
    return values


@given(seed=seeds, unit=units, share=zeros, rows=st.integers(1, 4), columns=st.integers(1, 3), steps=st.integers(1, 16))
def test_stored_groups_give_numpys_integers_in_the_cycles_of_lockstep(seed, unit, share, rows, columns, steps):
    b, a = integers(seed, (rows, steps, unit.lanes), share), integers(seed + 1, (columns, steps, unit.lanes), 0.2)
    stored = encode(b, unit)
    again = from_bytes(stored.to_bytes(), shape=b.shape, dtype=b.dtype, scheduler=unit)
    ran = multiply([again], a, "fixed")
    assert (ran.product == b.reshape(rows, -1).astype(np.int64) @ a.reshape(columns, -1).T.astype(np.int64)).all()
    assert ran.cycles == unit.plain(b != 0)
    assert ran.waits == 0


@given(seed=seeds, unit=units, share=zeros, rows=st.integers(1, 4), columns=st.integers(1, 3), extra=st.integers(0, 5))
def test_streams_scheduled_alone_give_the_same_integers_whatever_the_buffer(seed, unit, share, rows, columns, extra):
    b, a = integers(seed, (rows, 12, unit.lanes), share), integers(seed + 1, (columns, 12, unit.lanes), 0.2)
    streams = [encode(row, unit) for row in b]
    ran = multiply(streams, a, "fixed", buffer_depth=unit.depth + extra)
    assert (ran.product == b.reshape(rows, -1).astype(np.int64) @ a.reshape(columns, -1).T.astype(np.int64)).all()
    assert max(stream.cycles for stream in streams) <= ran.cycles <= 12
    assert ran.cycles == shared_buffer_cycles(streams, unit.depth + extra)


@pytest.mark.parametrize("number", ["fp16", "bf16"])
@given(seed=seeds, unit=units, share=zeros)
def test_floating_point_sums_are_those_of_the_run_time_element_bit_for_bit(number, seed, unit, share):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, 12, unit.lanes)), random.normal(size=(3, 12, unit.lanes))
    b[random.random(b.shape) < share] = 0
    b = b.astype(np.float16) if number == "fp16" else (bfloat16(b).view(np.uint32) >> 16).astype(np.uint16)
    real = b if number == "fp16" else (b.astype(np.uint32) << 16).view(np.float32)
    for row, numbers in zip(b, real, strict=True):
        theirs = processing_element(a[0], numbers, unit, number)
        ours = multiply([encode(row, unit, exact=number == "bf16")], a[:1], number)
        assert ours.product.tobytes() == np.asarray(theirs.product).tobytes()
        assert ours.cycles == theirs.cycles
    together, group = tile(a, real, unit, number), multiply([encode(b, unit)], a, number)
    assert group.product.tobytes() == together.product.tobytes()
    assert group.cycles == together.cycles


@given(seed=seeds, unit=units, share=zeros, rows=st.integers(2, 5))
def test_a_deep_shared_buffer_is_the_output_rule_and_a_shallow_one_only_waits(seed, unit, share, rows):
    b = integers(seed, (rows, 20, unit.lanes), share)
    streams = [encode(row, unit) for row in b]
    depths = [unit.depth, unit.depth + 2, 20 + unit.depth]
    cycles = [shared_buffer_cycles(streams, depth) for depth in depths]
    assert cycles[-1] == unit.plain(b != 0, "output") <= cycles[1] <= cycles[0] <= 20
    order = list(issues(streams))
    for number, stream in enumerate(streams):
        assert sum(number in going for _, going in order) == stream.cycles


@pytest.mark.probe
def test_a_row_waits_for_the_buffer_by_one_step_and_no_more():
    unit = Scheduler(options=((0, 0), (1, 0)), depth=2)
    slow, fast = np.ones((4, 4), np.int8), np.zeros((4, 4), np.int8)
    fast[[0, 2], 0] = 1  # cycle 1 drains steps 0 and 1, cycle 2 reads step 2
    streams = [encode(slow, unit), encode(fast, unit)]
    assert [stream.cycles for stream in streams] == [4, 2]
    assert [going for _, going in issues(streams, 2)] == [[0, 1], [0, 1], [0], [0]]  # step 2 is there while the slow row is at 1
    fast[2, 0], fast[3, 0] = 0, 1
    streams = [encode(slow, unit), encode(fast, unit)]
    assert [going for _, going in issues(streams, 2)] == [[0, 1], [0], [0, 1], [0]]  # step 3 is not
    assert [going for _, going in issues(streams, 3)] == [[0, 1], [0, 1], [0], [0]]
    assert multiply(streams, np.ones((1, 4, 4)), buffer_depth=2).waits == 1


@given(seed=seeds, unit=units, share=zeros, other=zeros)
def test_one_side_ahead_never_beats_its_bounds_and_loses_no_pair(seed, unit, share, other):
    random = np.random.default_rng(seed)
    ahead, theirs = random.random((30, unit.lanes)) >= share, random.random((30, unit.lanes)) >= other
    found = one_side_ahead(ahead, theirs, unit)
    assert (found.dense, found.ahead) == (30, unit.plain(ahead[None]))
    assert found.expanded == unit.plain((ahead & theirs)[None])
    assert (found.issued, found.effectual) == (ahead.sum(), (ahead & theirs).sum())
    assert -(-found.ahead // unit.depth) <= found.rescheduled <= found.ahead
    assert found.rescheduled * unit.lanes >= found.effectual
    assert found.span <= min(30, unit.depth**2)


def test_looking_again_at_stored_rows_goes_past_the_depth_of_the_buffer():
    random = np.random.default_rng(0)
    found = one_side_ahead(random.random((4096, 4)) < 0.1, random.random((4096, 4)) < 0.4, Scheduler())
    assert found.dense / found.ahead < 4
    assert found.dense / found.expanded < 4 < found.dense / found.rescheduled < 16


def test_what_cannot_be_fed_is_refused():
    unit = Scheduler()
    one, other = encode(np.ones((4, 4)), unit), encode(np.ones((5, 4)), unit)
    with pytest.raises(BadInput, match="streams of one length"):
        shared_buffer_cycles([one, other])
    with pytest.raises(BadInput, match="give 4 or more"):
        shared_buffer_cycles([one, one], buffer_depth=3)
    with pytest.raises(BadInput, match=r"meet \[columns, 4, 4\]"):
        multiply([one], np.ones((1, 5, 4)))
