"""Who owns each instant, what memory is held, what the critical path is, and that identical devices may be folded into one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import engine
from trainyard.engine.timeline import Overflow, Timeline, exposed
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Plan, TaskClass

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 25), st.sampled_from(TaskClass)), max_size=14)


def exposed_reference(starts, ends, kinds) -> list[int]:
    """Instant by instant: the first active class, in it the first to start, of equals the lower number."""
    owned = [0] * len(starts)
    for instant in range(max(ends, default=0)):
        active = [(kinds[t], starts[t], t) for t in range(len(starts)) if starts[t] <= instant < ends[t]]
        if active:
            owned[min(active)[2]] += 1
    return owned


@pytest.mark.oracle
@given(INTERVALS)
def test_every_instant_has_the_owner_of_the_rule(intervals):
    starts = np.array([start for start, _, _ in intervals], np.int64)
    ends = starts + np.array([length for _, length, _ in intervals], np.int64)
    kinds = np.array([kind for _, _, kind in intervals], np.int64)
    assert exposed(starts, ends, kinds).tolist() == exposed_reference(starts.tolist(), ends.tolist(), kinds.tolist())


def two_streams_and_a_copy() -> Timeline:
    plan = Plan()
    device, copier, bus = plan.stream("device"), plan.stream("copier"), plan.link("bus", 1e12)
    first = plan.task(device, 100, tag=7)
    reduce = plan.transfer([([bus], 150)], after=[first], kind=TaskClass.SYNCHRONISATION, tag=8)
    plan.task(device, 50, after=[first], tag=7)
    plan.transfer([([bus], 400)], stream=copier, after=[reduce], tag=9)
    return engine.run(plan)


def test_exposed_and_idle_times_sum_to_the_end():
    timeline = two_streams_and_a_copy()
    assert timeline.exposed_ps.tolist() == [100, 100, 50, 400]
    assert timeline.busy_ps.tolist() == [100, 150, 50, 400]
    assert timeline.class_exposed() == {"compute": 150, "synchronisation": 100, "copy": 400, "idle": 0}
    assert timeline.by_tag(timeline.exposed_ps) == {7: 150, 8: 100, 9: 400}
    assert (timeline.busy_of("device"), timeline.busy_of(1), timeline.end_ps) == (150, 400, 650)


@given(INTERVALS)
def test_sums_are_exact(intervals):
    plan = Plan()
    for number, (_, length, kind) in enumerate(intervals):
        waits = [number - 1] if number % 3 == 1 else []
        plan.task(plan.stream(f"stream {number}"), length * 10**14 + number, after=waits, kind=kind, tag=number % 4)
    timeline = engine.run(plan)
    assert int(timeline.exposed_ps.sum()) + timeline.idle_ps == timeline.end_ps
    assert sum(timeline.class_exposed().values()) == timeline.end_ps
    assert sum(timeline.by_tag(timeline.busy_ps).values()) == int(timeline.busy_ps.sum())


def test_an_agents_wait_is_idle_time():
    simulation = engine.Simulation()
    device = simulation.stream("device")

    def agent():
        yield engine.Wait(40)
        yield engine.Compute(device, 60)

    simulation.spawn(agent())
    assert simulation.run().class_exposed() == {"compute": 60, "synchronisation": 0, "copy": 0, "idle": 40}


def test_memory_is_allocated_at_the_start_and_freed_at_the_end():
    plan = Plan()
    device, hbm = plan.stream("device"), plan.pool("hbm", 100, resident_bytes=30)
    forward, backward, update = (plan.task(device, duration) for duration in (10, 20, 5))
    plan.take(forward, hbm, 60)
    plan.take(backward, hbm, 20)
    plan.give(backward, hbm, 60)
    plan.take(update, hbm, 40)  # at the very instant at which 60 bytes come back
    plan.give(update, hbm, 60)
    timeline = engine.run(plan)
    times_ps, held = timeline.memory("hbm")
    assert (times_ps.tolist(), held.tolist()) == ([0, 10, 30, 35], [90, 110, 90, 30])
    assert timeline.peak(hbm) == 110
    assert timeline.overflows == (Overflow("hbm", capacity_bytes=100, peak_bytes=110, first_ps=10),)


def test_a_pool_filled_to_its_capacity_overflows_only_when_more_is_taken():
    plan = Plan()
    device, hbm = plan.stream("device"), plan.pool("hbm", 100)
    plan.take(plan.task(device, 10), hbm, 100)
    assert engine.run(plan).overflows == ()
    plan.take(plan.task(device, 10), hbm, 1)
    assert engine.run(plan).overflows == (Overflow("hbm", capacity_bytes=100, peak_bytes=101, first_ps=10),)


def test_an_unused_pool_has_its_resident_bytes():
    plan = Plan()
    plan.task(plan.stream("device"), 10)
    plan.pool("hbm", resident_bytes=5)
    timeline = engine.run(plan)
    assert [column.tolist() for column in timeline.memory("hbm")] == [[0], [5]]
    assert timeline.overflows == ()


def test_freeing_more_than_allocated_raises():
    plan = Plan()
    device, hbm = plan.stream("device"), plan.pool("hbm")
    plan.take(plan.task(device, 10), hbm, 5)
    plan.give(plan.task(device, 10), hbm, 8)
    with pytest.raises(BadInput, match="pool 'hbm': at 20 ps 3 bytes more are given back than are held"):
        engine.run(plan)


def test_freeing_too_much_names_the_instant_of_the_first_negative_balance_after_one_of_zero():
    plan = Plan()
    device, hbm = plan.stream("device"), plan.pool("hbm")
    plan.give(plan.task(device, 10), hbm, 8)
    with pytest.raises(BadInput, match="at 10 ps 8 bytes more"):
        engine.run(plan)


def test_no_column_of_a_timeline_can_be_written():
    plan = Plan()
    task, hbm = plan.task(plan.stream("device"), 10), plan.pool("hbm")
    plan.take(plan.task(plan.stream("other"), 10, after=[task]), hbm, 5)
    timeline = engine.run(plan)
    columns = [column for column in vars(timeline).values() if isinstance(column, np.ndarray)]
    assert len(columns) == 8
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_unknown_names_raise():
    timeline = two_streams_and_a_copy()
    with pytest.raises(UnknownName, match="did you mean 'device'"):
        timeline.busy_of("devise")
    with pytest.raises(BadInput, match="pool 0 is not known"):
        timeline.memory(0)


def test_the_critical_path_follows_the_last_dependency():
    timeline = two_streams_and_a_copy()
    assert timeline.critical_path() == (0, 1, 3)


@given(INTERVALS, st.data())
def test_the_critical_path_of_a_plan_covers_all_of_its_time(intervals, data):
    plan = Plan()
    for _ in range(3):
        plan.stream("device")
    for number, (_, length, _) in enumerate(intervals):
        waits = data.draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        plan.task(number % 3, length, after=waits)
    timeline = engine.run(plan)
    path = timeline.critical_path()
    assert sum(int(timeline.busy_ps[task]) for task in path) == timeline.end_ps
    assert list(path) == sorted(path)


def test_a_simulation_has_a_critical_path():
    simulation = engine.Simulation()
    device, bus, ready = simulation.stream("device"), simulation.link("bus", 1e12), simulation.channel("ready")

    def fetcher():
        yield engine.Transfer([bus], 70)
        yield engine.Put(ready)

    def worker():
        yield engine.Compute(device, 10)
        yield engine.Get(ready)
        yield engine.Compute(device, 30)

    simulation.spawn(worker())
    simulation.spawn(fetcher())
    timeline = simulation.run()
    assert timeline.critical_path() == (1, 2)
    assert timeline.end_ps == 100


def test_a_timeline_is_a_value():
    timeline = two_streams_and_a_copy()
    assert timeline == two_streams_and_a_copy()
    assert timeline != engine.run(Plan())
    with pytest.raises(ValueError, match="read-only"):
        timeline.starts_ps[0] = 1
    with pytest.raises(AttributeError):
        timeline.tags = timeline.streams


def add_device(plan: Plan, layers: list[tuple[int, int, int]]) -> range:
    """One worker of a data-parallel step with a ring and a copy engine of its own."""
    begin = len(plan)
    device, copier = plan.stream("device"), plan.stream("copy engine")
    ring, bus = plan.link("ring", 3e11, 20e-12), plan.link("bus", 1e11)
    for compute_ps, reduced, paged in layers:
        product = plan.task(device, compute_ps)
        plan.transfer([([ring], reduced), ([ring, bus], reduced // 2)], after=[product], kind=TaskClass.SYNCHRONISATION)
        plan.transfer([([bus], paged)], stream=copier, after=[product])
    return range(begin, len(plan))


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=6), st.integers(2, 5)
)
def test_identical_devices_may_be_folded_into_one(layers, devices):
    folded, unfolded = Plan(), Plan()
    add_device(folded, layers)
    copies = [add_device(unfolded, layers) for _ in range(devices)]
    one, all_of_them = engine.run(folded), engine.run(unfolded)
    assert all_of_them.end_ps == one.end_ps
    assert all_of_them.class_exposed() == one.class_exposed()
    for tasks in copies:
        assert all_of_them.class_exposed(tasks) == one.class_exposed()
        np.testing.assert_array_equal(all_of_them.ends_ps[list(tasks)], one.ends_ps)
