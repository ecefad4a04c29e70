"""The DSC's times, energies and areas; and its agents on the engine's clock against a tick-by-tick twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracles.barrier_agents import BarrierService
from trainyard.engine import Simulation, Wait
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.hardware.dsc.token_arbiter import Arbiter
from trainyard.hardware.dsc.token_service import TokenService
from trainyard.hardware.dsc.unit import BIT_UM2, Dsc
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, MUX_UM2, cells_joules
from trainyard.ir.assumptions import assumptions_of

ORDERS = ("round_robin", "priority", "first_come")
PS_PER_CYCLE = 1000

machines = st.builds(
    Dsc,
    tokens=st.integers(1, 4),
    clock_hz=st.just(1e9),
    levels=st.integers(1, 4),
    hop_cycles=st.integers(1, 5),
    arbiter_fan_in=st.integers(2, 4),
    entries=st.integers(8, 64),
    priority_levels=st.integers(1, 4),
    ageing=st.integers(1, 2),
)
# four tokens come back sooner than one arbiter can give them out: 4 x 6 cycles against 6 + 2
ARBITER_BOUND = Dsc(tokens=4, clock_hz=1e9, levels=1, hop_cycles=1, arbiter_fan_in=2, entries=64)


def run(dsc, plans, order):
    """Agents that ask at given cycles and hold for given cycles; (cluster, asked, granted, released) in cycles, by grant."""
    simulation = Simulation()
    desk = TokenService(simulation, dsc, len(plans), order)
    most = 0

    def cluster(number, uses):
        nonlocal most
        for pause, hold, priority in uses:
            yield Wait(pause * PS_PER_CYCLE)
            yield from desk.acquire(number, priority)
            most = max(most, len(desk.holders))
            assert number in desk.holders
            yield Wait(hold * PS_PER_CYCLE)
            yield from desk.release(number)

    for number, uses in enumerate(plans):
        simulation.spawn(cluster(number, uses), name=f"cluster {number}")
    simulation.run()
    assert most <= dsc.tokens
    uses = [(use.cluster, use.requested_ps, use.granted_ps, use.released_ps) for use in desk.log]
    return sorted(
        tuple(part // (PS_PER_CYCLE if place else 1) for place, part in enumerate(use)) for use in uses
    ), simulation.now_ps


def tick_by_tick(dsc, plans, order):
    """The same by looking at every cycle: what arrives, what the arbiter is at, what each cluster does."""
    hop, arbiter = dsc.levels * dsc.hop_cycles, dsc.arbiter_cycles
    top = (dsc.priority_levels - 1) * dsc.ageing
    wants = {number: list(uses) for number, uses in enumerate(plans)}
    wake = {number: uses[0][0] for number, uses in enumerate(plans) if uses}
    requests, releases, grants = {}, {}, {}  # by cycle of arrival
    waiting, free, busy_until, choice, last, actual, now = [], dsc.tokens, None, None, -1, [], 0
    requested, left, granted = {}, {}, {}
    while wake or waiting or requests or grants or left or busy_until is not None:
        for cluster in grants.pop(now, []):
            granted[cluster] = now
            left[cluster] = now + wants[cluster][0][1]
        for cluster in [cluster for cluster, at in left.items() if at == now]:
            del left[cluster]
            actual.append((cluster, requested[cluster], granted[cluster], now))
            releases.setdefault(now + hop, []).append(cluster)
            wants[cluster].pop(0)
            if wants[cluster]:
                wake[cluster] = now + wants[cluster][0][0]
        for cluster in [cluster for cluster, at in wake.items() if at == now]:
            del wake[cluster]
            requested[cluster] = now
            requests.setdefault(now + hop, []).append((cluster, wants[cluster][0][2]))
        free += len(releases.pop(now, []))
        waiting += [[cluster, priority, 0] for cluster, priority in sorted(requests.pop(now, []))]
        if busy_until == now:
            grants.setdefault(now + hop, []).append(choice)
            busy_until = None
        if busy_until is None and free and waiting:
            if order == "first_come":
                winner = waiting[0]
            elif order == "priority":
                winner = max(waiting, key=lambda request: min(request[1] * dsc.ageing + request[2], top))
            else:
                winner = min(waiting, key=lambda request: (request[0] - last - 1) % len(plans))
            waiting.remove(winner)
            for request in waiting:
                request[2] += 1
            choice = last = winner[0]
            free -= 1
            busy_until = now + arbiter
        now += 1
    return sorted(actual)


@pytest.mark.oracle
@given(dsc=machines, order=st.sampled_from(ORDERS), data=st.data())
def test_agents_equal_a_clock_ticked_by_hand(dsc, order, data) -> None:
    use = st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, dsc.priority_levels - 1))
    plans = data.draw(st.lists(st.lists(use, max_size=4), min_size=1, max_size=7))
    actual, _ = run(dsc, plans, order)
    assert actual == tick_by_tick(dsc, plans, order)


@pytest.mark.oracle
@given(dsc=machines, clusters=st.integers(1, 8), hold=st.integers(0, 50), order=st.sampled_from(ORDERS))
@example(dsc=ARBITER_BOUND, clusters=8, hold=0, order="round_robin")
def test_rounds_of_agents_take_the_closed_form(dsc, clusters, hold, order) -> None:
    _, end_ps = run(dsc, [[(0, hold, 0)]] * clusters, order)
    assert end_ps == round(dsc.rounds_s(clusters, enter_s=hold * 1e-9) * 1e12)


@pytest.mark.oracle
def test_rounds_at_the_default_clock_agree_within_rounding() -> None:
    dsc = Dsc()
    simulation = Simulation()
    desk = TokenService(simulation, dsc, 32)

    def cluster(number):
        yield from desk.acquire(number)
        yield Wait(round(dsc.enter_s * 1e12))
        yield from desk.release(number)

    for number in range(32):
        simulation.spawn(cluster(number))
    simulation.run()
    assert simulation.now_ps == pytest.approx(dsc.rounds_s(32) * 1e12, abs=2 * 32 * 2)  # half a picosecond for each wait
    assert [use.cluster for use in sorted(desk.log, key=lambda use: use.granted_ps)] == list(range(32))


@pytest.mark.probe
def test_a_token_is_back_after_token_s_and_handed_over_after_handover_s() -> None:
    dsc = Dsc(clock_hz=1e9, levels=2, hop_cycles=5, entries=16)  # 10 ns each way, 2 ns to choose
    token, handover = round(dsc.token_s * 1e9), round(dsc.handover_s * 1e9)
    assert (token, handover) == (32, 22)
    hop = 10
    # cluster 1's request reaches the DSC as the token does: nothing is lost; one cycle later costs one cycle
    for late, granted in ((0, token + 2 + hop), (1, token + 1 + 2 + hop)):
        actual, _ = run(dsc, [[(0, 0, 0)], [(token - hop + late, 0, 0)]], "first_come")
        assert actual[1][2] == granted
    actual, _ = run(dsc, [[(0, 7, 0)], [(0, 0, 0)]], "first_come")
    assert actual[1][2] - actual[0][3] == handover


@pytest.mark.probe
@pytest.mark.parametrize(("late", "winner"), [(0, 2), (1, 1)])
def test_a_request_that_comes_as_the_arbiter_begins_is_seen_and_one_cycle_later_is_not(late, winner) -> None:
    """Even if its agent was spawned after the arbiter's: cluster 2 goes before cluster 1, which waits already."""
    dsc = Dsc(tokens=2, clock_hz=1e9, levels=1, hop_cycles=2, arbiter_fan_in=4, entries=256)  # a choice takes 4 cycles
    simulation = Simulation()
    desk = TokenService(simulation, dsc, 3, "priority")

    def cluster(number, at, priority=0):
        yield Wait(at * PS_PER_CYCLE)
        yield from desk.acquire(number, priority)
        yield Wait(100 * PS_PER_CYCLE)
        yield from desk.release(number)

    def later():
        yield Wait(3 * PS_PER_CYCLE)
        simulation.spawn(cluster(2, 1 + late, priority=3))  # at the DSC in cycle 6, when the choice of cycle 2 is made

    for script in (cluster(0, 0), cluster(1, 1), later()):
        simulation.spawn(script)
    simulation.run()
    granted = {use.cluster: use.granted_ps // PS_PER_CYCLE for use in desk.log}
    assert granted[0] == 2 + 4 + 2
    assert granted[winner] == 6 + 4 + 2


@pytest.mark.oracle
@given(dsc=machines, late=st.lists(st.integers(0, 60), min_size=1, max_size=8), mode=st.sampled_from(("local", "global")))
def test_barriers_of_agents_take_the_closed_form_from_the_last_arrival(dsc, late, mode) -> None:
    simulation = Simulation()
    desk = BarrierService(simulation, dsc, len(late), mode)
    through = []

    def worker(number, delay):
        for _ in range(2):
            yield Wait(delay * PS_PER_CYCLE)
            yield from desk.arrive(number)
            through.append(simulation.now_ps)

    for number, delay in enumerate(late):
        simulation.spawn(worker(number, delay))
    simulation.run()
    once = max(late) * PS_PER_CYCLE + round(dsc.barrier_s(len(late), mode) * 1e12)
    assert through == [once] * len(late) + [2 * once] * len(late)
    assert desk.passed == 2


@pytest.mark.unit
def test_misuse_of_the_token_service_raises() -> None:
    def misuse(script):
        simulation = Simulation()
        simulation.spawn(script(TokenService(simulation, Dsc(), 2)))
        simulation.run()

    def twice(desk):
        yield from desk.acquire(0)
        yield from desk.acquire(0)

    def unheld(desk):
        yield from desk.release(1)

    def unknown(desk):
        yield from desk.acquire(2)

    def too_important(desk):
        yield from desk.acquire(0, priority=9)

    for script, message in (
        (twice, "asks for a token and holds a token"),
        (unheld, "releases a token that it does not hold"),
        (unknown, "unknown cluster 2"),
        (too_important, "priority must be"),
    ):
        with pytest.raises(BadInput, match=message):
            misuse(script)


@pytest.mark.unit
@given(dsc=machines, clusters=st.integers(1, 7))
def test_times_grow_with_clusters_and_shrink_with_tokens_and_clock(dsc, clusters) -> None:
    assert dsc.rounds_s(clusters) <= dsc.rounds_s(clusters + 1)
    assert replace(dsc, tokens=dsc.tokens + 1).rounds_s(clusters) <= dsc.rounds_s(clusters) * (1 + 1e-12)
    assert replace(dsc, clock_hz=2e9).rounds_s(clusters) == pytest.approx(dsc.rounds_s(clusters) / 2)
    assert dsc.barrier_s(clusters) <= dsc.barrier_s(clusters + 1)
    assert dsc.rounds_s(1, enter_s=0) == pytest.approx(dsc.token_s)
    assert dsc.overhead_s(clusters) == pytest.approx(dsc.rounds_s(clusters) + dsc.hop_s)


@pytest.mark.probe
def test_the_arbiter_takes_a_cycle_more_one_entry_beyond_a_full_tree() -> None:
    assert [Dsc(entries=entries).arbiter_cycles for entries in (1, 4, 5, 64, 65, 256)] == [1, 1, 2, 3, 4, 4]
    dsc = Dsc(entries=8)
    assert dsc.rounds_s(8) > 0
    with pytest.raises(BadInput, match="9 clusters do not fit a table of 8 entries: write entries=9"):
        dsc.rounds_s(9)
    assert dsc.for_clusters(9).rounds_s(9) > 0


@pytest.mark.paper
@pytest.mark.parametrize("clusters", [1, 2, 8, 32])
def test_overhead_is_one_to_two_orders_below_synchronisation_through_the_cpu(clusters) -> None:
    """Sec. III-C. The host launches and polls a rank at a time; a cluster is a rank."""
    ratio = clusters * HostLink().sync_s / Dsc().overhead_s(clusters)
    assert 10 < ratio < 200


@pytest.mark.unit
def test_energy_is_events_times_joules_and_every_event_has_its_joules() -> None:
    dsc = Dsc()
    for events in (dsc.token_events(3), dsc.barrier_events(32), dsc.round_events(32, local_steps=8)):
        assert set(events) <= set(dsc.joules)
    assert dsc.token_events(2) == {"dsc_message": 6, "dsc_arbitration": 2}
    assert all(joules > 0 for joules in dsc.joules.values())
    smaller = replace(dsc, technology_nm=16)
    assert all(smaller.joules[event] < dsc.joules[event] for event in dsc.joules)
    assert all(smaller.areas[part] < dsc.areas[part] for part in dsc.areas)


@pytest.mark.paper
def test_area_and_power_fit_into_what_the_paper_gives_agaus_and_dsc_together() -> None:
    """Table II: 0.51 mm2 and 205 mW at 28 nm."""
    dsc = Dsc()
    assert sum(dsc.areas.values()) == dsc.area_m2 < 0.51e-6
    assert dsc.static_w < dsc.busy_w < 0.205


@pytest.mark.unit
def test_area_grows_with_what_is_in_it() -> None:
    dsc = Dsc()
    for change, part in (
        ({"entries": 512}, "dsc_table"),
        ({"entries": 512}, "dsc_arbiter"),
        ({"priority_levels": 16}, "dsc_arbiter"),
        ({"staleness_bits": 32}, "dsc_staleness"),
        ({"dpus": 4096}, "dsc_barrier"),
        ({"message_bits": 64}, "dsc_ports"),
    ):
        assert replace(dsc, **change).areas[part] > dsc.areas[part]


@pytest.mark.unit
def test_invalid_arguments_raise() -> None:
    for change, message in (
        ({"tokens": 0}, "tokens must be a positive whole number"),
        ({"clock_hz": 0}, "clock_hz must be above 0"),
        ({"arbiter_fan_in": 1}, "arbiter_fan_in must be at least 2"),
        ({"enter_cycles": -1}, "enter_cycles must be a whole number of at least 0"),
        ({"technology_nm": 3}, "outside the tables"),
    ):
        with pytest.raises(BadInput, match=message):
            Dsc(**change)
    with pytest.raises(UnknownName, match="did you mean 'global'"):
        Dsc().barrier_s(2, mode="globl")


@pytest.mark.unit
def test_every_alternative_of_an_assumption_is_a_machine() -> None:
    for assumption in assumptions_of(Dsc()):
        for alternative in assumption.alternatives:
            assert replace(Dsc(), **{assumption.path: alternative}).rounds_s(32) > 0


def test_area_of_the_arbiter_is_a_comparator_for_each_pair_and_a_rank_for_each_entry() -> None:
    """Five entries: numbers of three bits; four priorities that age by one: ranks up to 3 + what five grants to others add."""
    dsc = Dsc(entries=5, technology_nm=45)
    rank = Arbiter(order="priority", levels=4, ageing=1).top.bit_length()
    pairs = 4 * (rank * BIT_UM2 + (rank + 3) * MUX_UM2)
    entries = 5 * ((1 + rank) * FLIP_FLOP_UM2 + rank * BIT_UM2)
    assert dsc.areas["dsc_arbiter"] == pytest.approx((pairs + entries) * 1e-12, rel=1e-6, abs=0.0)


@pytest.mark.parametrize(("entries", "fan_in", "bits"), [(5, 8, 5), (5, 2, 3)])
def test_a_counter_of_a_barrier_counts_its_inputs(entries: int, fan_in: int, bits: int) -> None:
    dsc = Dsc(entries=entries, barrier_fan_in=fan_in, technology_nm=45)
    nodes = 1 if fan_in == 8 else 3
    assert dsc.joules["dsc_barrier_arrival"] == pytest.approx(
        cells_joules(nodes * bits * (FLIP_FLOP_UM2 + BIT_UM2), 45), rel=1e-6, abs=0.0
    )


def test_where_the_arbiter_is_slower_than_the_round_trips_tokens_wait_for_it() -> None:
    """Tokens come back after 6 + 2 + 0 cycles; the arbiter takes 6 for each of the four."""
    assert ARBITER_BOUND.rounds_s(9, enter_s=0) * 1e9 == pytest.approx(1 + 6 + 2 * 4 * 6 + 2)
