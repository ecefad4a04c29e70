"""The host link: Eq. 1 and its limits, queueing against agents on the engine's clock, and the mean that the DPUs get."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.host_link_agents import simulate
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.ir import assumptions_of

LINK = HostLink()
WAYS = ("serial", "ranks_in_turn", "rank_parallel")
SMALL = replace(LINK, rank_dpus=4, rank_in_bytes_per_s=1e9, rank_out_bytes_per_s=0.4e9, rank_broadcast_bytes_per_s=1.2e9)
SINGLE = replace(LINK, rank_dpus=1, rank_in_bytes_per_s=0.33e9, rank_out_bytes_per_s=0.12e9, rank_broadcast_bytes_per_s=0.33e9)
links = st.builds(
    replace,
    st.sampled_from([LINK, SMALL, SINGLE]),
    latency_s=st.sampled_from([0.0, 1e-6, 2e-5]),
    sync_s=st.sampled_from([0.0, 2e-5]),
    threads=st.integers(1, 4),
    channels=st.integers(1, 9),
    memory_bytes_per_s=st.sampled_from([3e9, 19.2e9, 230.4e9]),
)


def equation_one(link, dpus, size, queue=0.0, sync=0.0):
    """As printed, with one bandwidth."""
    return 2 * dpus * (link.latency_s + size / link.serial_bytes_per_s) + queue + sync


@pytest.mark.paper
@given(st.integers(1, 300), st.integers(0, 10**8))
@settings(deadline=None)
def test_serial_is_equation_one_term_by_term(dpus, size):
    closed = LINK.exchange(dpus, size)
    assert closed.queue_s == 0
    assert closed.gather_s == pytest.approx(dpus * (LINK.latency_s + size / LINK.dpu_out_bytes_per_s))
    assert closed.scatter_s == pytest.approx(dpus * (LINK.latency_s + size / LINK.dpu_in_bytes_per_s))
    assert closed.sync_s == pytest.approx(LINK.sync_s * -(-dpus // 64))
    assert closed.time_s - closed.sum_s == pytest.approx(equation_one(LINK, dpus, size, sync=closed.sync_s))
    assert closed.bytes == 2 * dpus * size


@given(links, st.integers(1, 32), st.integers(1, 10**6))
@settings(deadline=None, max_examples=40)
def test_ranks_in_turn_are_equation_one_at_the_bandwidth_of_a_rank(link, ranks, size):
    """2 N messages, a rank's in one call, one call after the other; the same as one channel without a broadcast."""
    link = replace(link, memory_bytes_per_s=1e30)
    dpus = ranks * link.rank_dpus
    turn = link.exchange(dpus, size, transfers="ranks_in_turn")
    if link.rank_dpus > 1:
        assert turn.gather_s == pytest.approx(ranks * link.latency_s + dpus * size / link.rank_out_bytes_per_s)
        assert turn.scatter_s == pytest.approx(ranks * link.latency_s + dpus * size / link.rank_in_bytes_per_s)
    assert turn.bytes == 2 * dpus * size
    assert turn == replace(link, channels=1).exchange(dpus, size, transfers="rank_parallel", broadcast=False)


def test_the_one_bandwidth_is_the_harmonic_mean():
    assert LINK.serial_bytes_per_s == pytest.approx(2 * 0.33e9 * 0.12e9 / (0.33e9 + 0.12e9))
    assert 0.12e9 < LINK.serial_bytes_per_s < (0.33e9 + 0.12e9) / 2


def test_limits_of_one_dpu_no_bytes_and_infinite_bandwidth():
    bare = replace(LINK, sync_s=0.0, memory_bytes_per_s=1e30)
    one = bare.exchange(1, 16384)
    assert one.time_s == pytest.approx(2 * (LINK.latency_s + 16384 / LINK.serial_bytes_per_s))  # N = 1
    assert one.time_s == pytest.approx(bare.exchange(1, 16384, transfers="rank_parallel").time_s)  # a rank of one is a DPU
    assert bare.exchange(2048, 0).time_s == pytest.approx(2 * 2048 * LINK.latency_s)  # M -> 0
    fast = replace(bare, dpu_in_bytes_per_s=1e30, dpu_out_bytes_per_s=1e30)
    assert fast.exchange(2048, 10**8).time_s == pytest.approx(2 * 2048 * LINK.latency_s)  # B -> infinity
    assert bare.exchange(128, 0, transfers="rank_parallel").time_s == pytest.approx(2 * LINK.latency_s)  # two ranks at once


@pytest.mark.paper
@given(st.floats(1e-4, 10.0), st.integers(1, 10**7))
@settings(deadline=None, max_examples=30)
def test_efficiency_is_one_over_one_plus_n_by_n_half(compute_s, size):
    half = LINK.half_dpus(compute_s, size)
    for dpus in (1, 32, 256, 2048):
        closed = LINK.exchange(dpus, size)
        assert compute_s / (compute_s + closed.gather_s + closed.scatter_s) == pytest.approx(1 / (1 + dpus / half))


@pytest.mark.paper
def test_n_half_follows_from_the_papers_efficiency():
    """0.31 at 2048 in Fig. 2 makes N_half 920, and with it 0.97 at 32 and 0.78 at 256: the drop beyond 256."""
    half = 2048 * 0.31 / 0.69
    assert round(half) == 920
    assert [round(1 / (1 + dpus / half), 2) for dpus in (32, 256)] == [0.97, 0.78]
    compute_s = half * 2 * (LINK.latency_s + 16384 / LINK.serial_bytes_per_s)  # of a step that would give that with this link
    assert LINK.half_dpus(compute_s, 16384) == pytest.approx(half)


@given(links, st.integers(1, 200), st.integers(0, 10**6), st.sampled_from(WAYS), st.booleans())
@settings(deadline=None, max_examples=60)
def test_time_is_monotone_in_every_parameter(link, dpus, size, transfers, broadcast):
    def time_s(link=link, dpus=dpus, size=size):
        return link.exchange(dpus, size, transfers=transfers, broadcast=broadcast).time_s

    now = time_s() * (1 + 1e-12)
    assert time_s(dpus=dpus + 1) >= time_s() * (1 - 1e-12)
    assert time_s(size=size + 1000) >= time_s()
    for field in ("dpu_in_bytes_per_s", "dpu_out_bytes_per_s", "memory_bytes_per_s", "threads", "channels"):  # twice as good
        assert time_s(replace(link, **{field: getattr(link, field) * 2})) <= now, field
    if transfers == "rank_parallel" and link.rank_dpus > 1:
        for field in ("rank_in_bytes_per_s", "rank_out_bytes_per_s", "rank_broadcast_bytes_per_s"):
            assert time_s(replace(link, **{field: getattr(link, field) * 1.1})) <= now, field
    for field in ("latency_s", "sync_s"):
        assert time_s(replace(link, **{field: getattr(link, field) + 1e-6})) > time_s(), field


arrivals = st.lists(st.integers(0, 5000).map(lambda us: us * 1e-6), min_size=1, max_size=24)


def slowest_chain(times, service):
    """Where one server ends: some DPU finds it free, and it has no rest after that."""
    times = sorted(time - min(times) for time in times)
    return max(time + (len(times) - number) * service for number, time in enumerate(times))


@pytest.mark.oracle
@settings(deadline=None, max_examples=50)
@given(arrivals, st.integers(1, 200_000), st.integers(1, 3))
def test_queueing_is_that_of_agents_served_first_come_first_served(times, size, threads):
    link = replace(LINK, threads=threads)
    closed, simulated = link.exchange(len(times), size, arrivals_s=times), simulate(link, len(times), size, arrivals_s=times)
    for term in ("gather_s", "scatter_s", "queue_s", "wait_s", "time_s"):
        assert getattr(simulated, term) == pytest.approx(getattr(closed, term), rel=1e-6, abs=1e-9), term
    assert closed.queue_s >= -1e-15
    if threads == 1:
        service = LINK.latency_s + size / LINK.dpu_out_bytes_per_s
        assert closed.queue_s + closed.gather_s == pytest.approx(slowest_chain(times, service))


def test_no_queueing_beyond_the_2n_term_when_all_come_at_once():
    at_once = simulate(LINK, 50, 16384, arrivals_s=[3.0] * 50)
    assert at_once.queue_s == 0
    assert at_once.time_s - at_once.sum_s == pytest.approx(equation_one(LINK, 50, 16384, sync=LINK.sync_s), rel=1e-6)
    service = LINK.latency_s + 16384 / LINK.dpu_out_bytes_per_s
    assert at_once.wait_s == pytest.approx(service * 49 / 2, rel=1e-6)  # who waits is in the 2N term already
    late = simulate(LINK, 50, 16384, arrivals_s=[0.0] * 49 + [60 * service])
    assert late.queue_s == pytest.approx(60 * service - 49 * service, rel=1e-6)  # the host has nothing to do till the last comes
    assert late.wait_s < at_once.wait_s


@pytest.mark.probe
def test_a_straggler_costs_nothing_while_the_host_serves_the_others():
    service = LINK.latency_s + 16384 / LINK.dpu_out_bytes_per_s
    on_time = LINK.exchange(10, 16384, arrivals_s=[0.0] * 9 + [9 * service])
    late = LINK.exchange(10, 16384, arrivals_s=[0.0] * 9 + [9 * service + 1e-9])
    assert on_time.queue_s == pytest.approx(0, abs=1e-15)
    assert late.queue_s == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.oracle
@settings(deadline=None, max_examples=50)
@given(links, st.integers(1, 300), st.integers(1, 10**6), st.booleans())
def test_ranks_by_agents_on_a_shared_memory_bound_the_closed_form(link, dpus, size, broadcast):
    closed, simulated = (
        link.exchange(dpus, size, transfers="rank_parallel", broadcast=broadcast),
        simulate(link, dpus, size, transfers="rank_parallel", broadcast=broadcast),
    )
    assert simulated.time_s >= closed.time_s * (1 - 1e-6) - 1e-9
    assert simulated.time_s <= closed.time_s * 2  # channels or memory are always busy: at most both times one after the other


@pytest.mark.oracle
def test_disagreement_of_closed_form_and_agents():
    worst = 1.0
    for dpus, channels, memory in itertools.product((65, 300, 640, 1000), (1, 3, 8, 20), (3e9, 19.2e9, 38.4e9)):
        link = replace(LINK, channels=channels, memory_bytes_per_s=memory)
        closed, simulated = (
            link.exchange(dpus, 16384, transfers="rank_parallel", broadcast=False),
            simulate(link, dpus, 16384, transfers="rank_parallel", broadcast=False),
        )
        worst = max(worst, simulated.time_s / closed.time_s)
    print(f"rank-parallel: agents take at most {worst:.3f} of the closed form")
    assert 1.0 < worst < 1.2


def test_full_rounds_of_ranks_agree_exactly():
    for dpus in (32, 64, 512, 2048):
        closed, simulated = (
            LINK.exchange(dpus, 16384, transfers="rank_parallel"),
            simulate(LINK, dpus, 16384, transfers="rank_parallel"),
        )
        assert simulated.time_s == pytest.approx(closed.time_s, rel=1e-6)


def test_rank_parallel_by_hand():
    closed = LINK.exchange(2048, 16384, transfers="rank_parallel")
    rank = 64 * 16384
    assert closed.gather_s == pytest.approx(4 * (LINK.latency_s + rank / 4.74e9))  # 32 ranks on 8 channels
    assert closed.scatter_s == pytest.approx(4 * (LINK.latency_s + rank / 16.88e9))
    private = LINK.exchange(2048, 16384, transfers="rank_parallel", broadcast=False)
    assert private.scatter_s == pytest.approx(LINK.latency_s + 32 * rank / 38.4e9)  # 8 x 6.68 GB/s are more than the memory's
    assert closed.sum_s == pytest.approx(2049 * 16384 / 38.4e9)
    assert closed.bytes == 2 * 2048 * 16384
    assert closed.time_s < LINK.exchange(2048, 16384).time_s / 100
    half_rank = LINK.exchange(8, 16384, transfers="rank_parallel")
    assert half_rank.gather_s == pytest.approx(LINK.latency_s + 8 * 16384 / np.sqrt(0.12e9 * 4.74e9))  # 8 is half way to 64


def test_a_rank_waits_for_its_last_dpu():
    late = [0.0] * 64 + [1e-3] + [0.0] * 63
    closed = LINK.exchange(128, 16384, transfers="rank_parallel", arrivals_s=late)
    assert closed.queue_s == pytest.approx(1e-3)
    assert simulate(LINK, 128, 16384, transfers="rank_parallel", arrivals_s=late).queue_s == pytest.approx(1e-3, rel=1e-6)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_the_mean_equals_numpys(dpus, words, seed):
    random = np.random.default_rng(seed)
    models = random.standard_normal((dpus, words)).astype(np.float32)
    held = LINK.average(models)
    assert held.dtype == np.float32
    assert held.shape == models.shape
    assert np.array_equal(held, np.tile(models.mean(axis=0, dtype=np.float64).astype(np.float32), (dpus, 1)))
    fixed = random.integers(-(2**31), 2**31, (dpus, words), np.int32)
    exact = [round(sum(map(int, column)) / dpus) for column in fixed.T]  # Python rounds halves to even, too
    assert LINK.average(fixed)[0].tolist() == exact


def test_energy_is_of_every_byte_and_of_the_host():
    closed = LINK.exchange(2048, 16384)
    assert set(closed.events) == set(LINK.joules)
    assert closed.events["host_link_byte"] == closed.bytes
    byte = 1300e-12 / 8
    assert LINK.joules["host_link_byte"] == pytest.approx(byte, rel=1e-6, abs=0.0)
    joules = sum(count * LINK.joules[event] for event, count in closed.events.items())
    assert joules == pytest.approx(
        closed.time_s * 170 + byte * (closed.bytes + closed.events["host_memory_byte"]), rel=1e-6, abs=0.0
    )
    shared = LINK.exchange(2048, 16384, transfers="rank_parallel")
    assert shared.events["host_memory_byte"] < closed.events["host_memory_byte"]  # a broadcast reads one buffer


def test_invalid_calls_raise_with_the_reason():
    with pytest.raises(BadInput, match="dpus must be a positive"):
        LINK.exchange(0, 8)
    with pytest.raises(UnknownName, match="did you mean 'serial'"):
        LINK.exchange(8, 8, transfers="seriel")
    with pytest.raises(BadInput, match="2 arrivals_s for 3 DPUs"):
        LINK.exchange(3, 8, arrivals_s=[0.0, 1.0])
    with pytest.raises(BadInput, match=r"arrivals_s\[1\] must be at least 0"):
        LINK.exchange(2, 8, arrivals_s=[0.0, -1.0])
    with pytest.raises(BadInput, match="float32 or int32"):
        LINK.average(np.ones((2, 3)))
    with pytest.raises(BadInput, match="more than 32 DPUs alone"):
        HostLink(rank_dpus=32)
    with pytest.raises(BadInput, match="memory_bytes_per_s must be above 0"):
        HostLink(memory_bytes_per_s=0)


def test_assumptions_are_named():
    names = {row.name for row in assumptions_of(LINK)}
    assert names == {"latency_s", "sync_s", "threads", "channels", "memory_bytes_per_s", "host_w"}
