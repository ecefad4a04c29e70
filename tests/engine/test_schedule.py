"""The static clock: compiled against plain Python against agents, and the laws that every schedule keeps."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.engine_reference import schedule_reference
from trainyard import engine
from trainyard.engine.network import fair_rates
from trainyard.errors import BadInput, TooLarge
from trainyard.ir import Plan, TaskClass
from trainyard.units import PICOSECONDS_PER_SECOND

# Awkward on purpose: ties, primes, slow beside fast, thirds that do not divide.
BANDWIDTHS = (10**12, 3 * 10**11, 10_000_019, 999_999_999_989, 25 * 10**9, 64 * 10**6, 9 * 10**15)
SIZES = st.one_of(st.integers(0, 12), st.sampled_from([100, 300, 4096, 10**6, 10**9 + 7]))


@st.composite
def plans(draw, transfers: bool = True, most: int = 24) -> Plan:
    plan = Plan()
    for stream in range(draw(st.integers(1, 4))):
        plan.stream(f"stream {stream}")
    links = draw(st.integers(1, 4)) if transfers else 0
    bandwidths = draw(st.sampled_from([BANDWIDTHS[:2], BANDWIDTHS[:1], BANDWIDTHS]))
    for link in range(links):
        plan.link(f"link {link}", draw(st.sampled_from(bandwidths)), draw(st.sampled_from([0.0, 1e-12, 7e-12, 100e-12])))
    for number in range(draw(st.integers(0, most))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        kind = draw(st.sampled_from(TaskClass))
        stream = draw(st.integers(0, len(plan.streams) - 1))
        if transfers and draw(st.booleans()):
            path = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)
            flows = draw(st.lists(st.tuples(path, SIZES), min_size=1, max_size=3))
            plan.transfer(flows, after=after, stream=draw(st.sampled_from([None, stream])), kind=kind, tag=number)
        else:
            plan.task(stream, draw(st.sampled_from([0, 1, 2, 50, 100, 1013])), after=after, kind=kind, tag=number)
    return plan


def predecessors(plan: Plan) -> list[list[int]]:
    """By task: what it waits for, the task before it on its stream included."""
    columns, last, actual = plan.columns(), {}, []
    for task, (begin, end) in enumerate(zip([0, *columns.after_ends], columns.after_ends, strict=False)):
        stream = int(columns.stream[task])
        before = columns.after[begin:end].tolist()
        if stream >= 0:
            before += [last[stream]] if stream in last else []
            last[stream] = task
        actual.append(before)
    return actual


def flows_of(plan: Plan) -> list[list[tuple[list[int], int]]]:
    columns = plan.columns()
    actual: list[list[tuple[list[int], int]]] = [[] for _ in range(len(plan))]
    for flow, task in enumerate(columns.flow_task):
        begin = columns.path_ends[flow - 1] if flow else 0
        actual[task].append((columns.path[begin : columns.path_ends[flow]].tolist(), int(columns.flow_bytes[flow])))
    return actual


def as_agents(plan: Plan) -> engine.Simulation:
    """The same plan by agents, one for each task: it joins those it waits for, then computes or transfers."""
    simulation = engine.Simulation()
    streams = [simulation.stream(name) for name in plan.streams]
    for link in plan.links:
        simulation.link(link.name, link.bytes_per_s, link.latency_ps / PICOSECONDS_PER_SECOND)
    columns, flows, before = plan.columns(), flows_of(plan), predecessors(plan)
    agents: list[engine.Agent] = []

    def script(task):
        for earlier in before[task]:
            yield engine.Join(agents[earlier])
        stream = streams[columns.stream[task]] if columns.stream[task] >= 0 else None
        kind = TaskClass(columns.kind[task])
        if flows[task]:
            yield engine.Transfer(flows[task], stream=stream, kind=kind, tag=task)
        else:
            yield engine.Compute(stream, columns.duration_ps[task], kind=kind, tag=task)

    for task in range(len(plan)):
        agents.append(simulation.spawn(script(task), name=f"task {task}"))
    return simulation


def crowded_plan(seed: int, tasks: int = 600) -> Plan:
    """Many flows at once on a few links, over many instants."""
    draw, plan = random.Random(seed), Plan()
    for stream in range(6):
        plan.stream(f"stream {stream}")
    for link in range(8):
        plan.link(f"link {link}", draw.choice([10**12, 7 * 10**11, 333_333_333_333]), draw.choice([0, 3e-12]))
    for number in range(tasks):
        after = draw.sample(range(max(0, number - 30), number), min(number, draw.randrange(3)))
        if draw.random() < 0.6:
            flows = [(draw.sample(range(8), draw.randint(1, 3)), draw.randrange(5000)) for _ in range(draw.randint(1, 4))]
            plan.transfer(flows, after=after, stream=draw.choice([None, 0, 1]))
        else:
            plan.task(draw.randrange(6), draw.randrange(3000), after=after)
    return plan


@pytest.mark.oracle
@given(plans())
def test_compiled_equals_plain_python(plan):
    timeline = engine.run(plan)
    assert (timeline.starts_ps.tolist(), timeline.ends_ps.tolist()) == schedule_reference(plan)


@pytest.mark.oracle
@given(plans(transfers=False))
def test_the_single_pass_equals_plain_python(plan):
    timeline = engine.run(plan)
    assert (timeline.starts_ps.tolist(), timeline.ends_ps.tolist()) == schedule_reference(plan)


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(3))
def test_compiled_equals_plain_python_on_crowded_links(seed):
    plan = crowded_plan(seed)
    timeline = engine.run(plan)
    assert (timeline.starts_ps.tolist(), timeline.ends_ps.tolist()) == schedule_reference(plan)


@pytest.mark.oracle
@given(plans())
def test_agents_run_a_plan_to_the_same_picosecond(plan):
    static, lively = engine.run(plan), as_agents(plan).run()
    order = np.argsort(lively.tags)
    np.testing.assert_array_equal(lively.starts_ps[order], static.starts_ps)
    np.testing.assert_array_equal(lively.ends_ps[order], static.ends_ps)
    assert lively.class_exposed() == static.class_exposed()


@given(plans())
def test_streams_run_one_task_at_a_time_in_plan_order_and_nothing_starts_a_picosecond_late_or_early(plan):
    timeline = engine.run(plan)
    for task, before in enumerate(predecessors(plan)):
        # Nothing earlier: all have ended. Nothing later: one of them ended just then.
        assert timeline.starts_ps[task] == max((timeline.ends_ps[earlier] for earlier in before), default=0)
    columns = plan.columns()
    for task, flows in enumerate(flows_of(plan)):
        if not flows:
            assert timeline.busy_ps[task] == columns.duration_ps[task]


@pytest.mark.probe
@given(plans())
def test_no_link_carries_more_than_it_can_and_a_flow_ends_with_its_last_byte(plan):
    seen: list[tuple[int, dict[int, int]]] = []
    _, ends_ps = schedule_reference(plan, observe=lambda now, rates: seen.append((now, rates)))
    columns = plan.columns()
    paths = [path for flows in flows_of(plan) for path, _ in flows]
    sent = dict.fromkeys(range(len(paths)), 0)
    last: dict[int, tuple[int, int]] = {}
    for (now, rates), (then, _) in pairwise(seen):
        assert rates == fair_rates({flow: tuple(paths[flow]) for flow in rates}, [link.bytes_per_s for link in plan.links])
        for number, link in enumerate(plan.links):
            assert sum(rate for flow, rate in rates.items() if number in paths[flow]) <= link.bytes_per_s
        for flow, rate in rates.items():
            sent[flow] += rate * (then - now)
            last[flow] = (then, rate)
    for flow, size in enumerate(columns.flow_bytes.tolist()):
        if size:
            end_ps, rate = last[flow]
            assert sent[flow] - rate < size * PICOSECONDS_PER_SECOND <= sent[flow]  # one picosecond early, bytes would be missing
            assert end_ps <= ends_ps[columns.flow_task[flow]]


@given(plans(transfers=False), st.data())
def test_a_shorter_task_never_makes_any_task_end_later(plan, data):
    columns = plan.columns()
    if not len(plan):
        return
    chosen = data.draw(st.integers(0, len(plan) - 1))
    faster = Plan()
    for name in plan.streams:
        faster.stream(name)
    for task, (begin, end) in enumerate(zip([0, *columns.after_ends], columns.after_ends, strict=False)):
        duration = int(columns.duration_ps[task])
        faster.task(int(columns.stream[task]), duration // 2 if task == chosen else duration, after=columns.after[begin:end])
    assert (engine.run(faster).ends_ps <= engine.run(plan).ends_ps).all()


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.integers(1, 10**13), st.integers(0, 10**12))
def test_a_wider_link_never_makes_flows_that_start_together_end_later(sizes, bytes_per_s, more):
    def ends(bandwidth: int) -> np.ndarray:
        plan = Plan()
        link = plan.link("bus", bandwidth)
        for size in sizes:
            plan.transfer([([link], size)])
        return engine.run(plan).ends_ps

    bandwidth = bytes_per_s + 8
    assert (ends(bandwidth + more) <= ends(bandwidth)).all()


def test_two_flows_share_a_link_and_the_longer_one_gets_all_of_it_in_the_end():
    plan = Plan()
    link = plan.link("bus", 1e12)  # one byte in a picosecond
    plan.transfer([([link], 300)])
    plan.transfer([([link], 100)])
    assert engine.run(plan).ends_ps.tolist() == [400, 200]


def test_latency_passes_once_along_the_path_before_bytes_move():
    plan = Plan()
    near, far = plan.link("near", 1e12, 50e-12), plan.link("far", 2e12, 25e-12)
    plan.transfer([([near, far], 100)])
    plan.transfer([([near], 100)])  # alone from 50 to 75: 25 bytes; then both at half: 150, and 25 bytes of the other are left
    plan.transfer([([near], 0)])
    assert engine.run(plan).ends_ps.tolist() == [75 + 150 + 25, 225, 50]


def test_a_flow_held_back_elsewhere_leaves_its_share_to_others():
    plan = Plan()
    narrow, wide = plan.link("narrow", 1e11), plan.link("wide", 1e12)
    plan.transfer([([narrow, wide], 1000)])  # 0.1 byte per ps
    plan.transfer([([wide], 9000)])  # 0.9 byte per ps
    assert engine.run(plan).ends_ps.tolist() == [10_000, 10_000]


def test_a_transfer_on_a_stream_waits_for_the_copy_engine():
    plan = Plan()
    engine_stream, link = plan.stream("copy engine"), plan.link("bus", 1e12)
    first = plan.transfer([([link], 100)], stream=engine_stream)
    second = plan.transfer([([link], 100)], stream=engine_stream)
    timeline = engine.run(plan)
    assert timeline.ends_ps[first] == timeline.starts_ps[second] == 100


@given(plans())
def test_same_plan_same_timeline(plan):
    assert engine.run(plan) == engine.run(plan)


@pytest.mark.probe
def test_latencies_of_two_to_the_62_picoseconds_in_all_are_too_long_and_a_little_less_are_not():
    def latencies(second_ps):
        plan = Plan()
        links = [plan.link("first", 1e12, 2**61 / 1e12), plan.link("second", 1e12, second_ps / 1e12)]
        assert [plan.links[link].latency_ps for link in links] == [2**61, second_ps]
        plan.transfer([(links, 0)])
        return plan

    with pytest.raises(TooLarge, match="53 days"):
        engine.run(latencies(2**61))
    assert engine.run(latencies(2**61 - 2**10)).end_ps == 2**62 - 2**10


@pytest.mark.parametrize(("bandwidth", "flows", "size", "message"), [(3, 4, 1, "less than 1 byte/s"), (1, 1, 2**40, "53 days")])
def test_times_beyond_the_clock_raise_in_plans_and_simulations(bandwidth, flows, size, message):
    plan = Plan()
    link = plan.link("trickle", bandwidth)
    plan.transfer([([link], size)] * flows)
    for face in (engine.run, schedule_reference, lambda plan: as_agents(plan).run()):
        with pytest.raises(BadInput, match=f"'trickle'.*{message}"):
            face(plan)


def test_an_empty_plan_ends_at_once():
    timeline = engine.run(Plan())
    assert (len(timeline), timeline.end_ps, timeline.idle_ps, timeline.critical_path()) == (0, 0, 0, ())


def test_the_engine_is_imported_without_numba():
    code = "import sys, trainyard.engine; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_thousands_of_flows_that_share_a_link_end_as_processor_sharing_says():
    """Every end changes all rates; sorted by size, flow i ends when all have moved as much as it, the shorter ones no more."""
    sizes = [1000 + 7 * i for i in random.Random(3).sample(range(4000), 4000)]
    plan = Plan()
    links = [plan.link(f"link {i}", 1e9) for i in range(2)]
    for size in sizes:
        plan.transfer([([links[0]], size)])
        plan.transfer([([links[1]], size + 1)])
    ends = engine.run(plan).ends_ps
    for first, more in ((0, 0), (1, 1)):
        moved, left = 0, len(sizes)
        expected = {}
        for before, size in pairwise([0, *sorted(size + more for size in sizes)]):
            moved += (size - before) * left
            left -= 1
            expected[size] = moved * 1000  # 1 byte takes 1000 ps
        actual = ends[first::2]
        target = np.array([expected[size + more] for size in sizes])
        assert abs(actual - target).max() < 2e-5 * target.max()  # rates are whole bytes per second
