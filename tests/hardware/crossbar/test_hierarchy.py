"""The crossbar hierarchy: what it joins, what it refuses, and what no simulation of it may break."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar import messages as crossbar_messages
from trainyard.hardware.crossbar.analytic import least_ps
from trainyard.hardware.crossbar.collectives import Adder, groups_are_disjoint
from trainyard.hardware.crossbar.costs import AGAU_LINE_M
from trainyard.hardware.crossbar.exchanges import cut
from trainyard.hardware.crossbar.hierarchy import UPMEM_LEVELS, Crossbar, Level
from trainyard.hardware.crossbar.messages import services_ps
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, MUX_UM2, cells_joules, line_joules
from trainyard.ir import assumptions_of


def level(fan_in=4, bytes_per_s=1e9, latency_s=10e-9, buffer_messages=1, name="level"):
    return Level(name=name, fan_in=fan_in, width_bits=8, clock_hz=bytes_per_s, latency_s=latency_s, buffer_messages=buffer_messages)


TWO = Crossbar(levels=(level(2, 1e9, 10e-9), level(4, 4e9, 100e-9)), units=8, message_bytes=1000)


def ps(seconds):
    return round(seconds * 1e12)


def test_the_default_is_upmems_packaging():
    crossbar = Crossbar()
    assert [each.name for each in crossbar.levels] == ["chip", "rank", "dimm", "machine"]
    assert crossbar.counts == (2048, 256, 32, 16, 1)
    assert [each.bytes_per_s for each in crossbar.levels] == [0.7e9, 2.4e9, 19.2e9, 19.2e9]
    assert UPMEM_LEVELS[0].bytes_per_s >= 628e6  # no slower than a DPU's MRAM DMA
    assert crossbar.for_units(32).counts == (32, 4, 1)
    assert crossbar.for_units(100).counts == (100, 13, 2, 1)  # partly filled
    assert crossbar.for_units(1).counts == (1, 1)


def test_assumed_fields_are_listed():
    actual = {each.name: each for each in assumptions_of(Crossbar())}
    assert set(actual) == {"levels", "message_bytes", "switching", "arbitration", "agau_bytes_per_s", "reducer"}
    assert all(each.alternatives for each in actual.values())
    for alternative in actual["levels"].alternatives:
        assert Crossbar(levels=alternative).depth == 4


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"units": -1}, "units must be a positive whole number, got -1"),
        ({"units": 2049}, "2049 units on levels that hold 2048"),
        ({"levels": ()}, "one or more of Level"),
        ({"message_bytes": 0}, "message_bytes"),
        ({"agau_bytes_per_s": 0.0}, "agau_bytes_per_s"),
    ],
)
def test_invalid_fields_raise(options, pattern):
    with pytest.raises(BadInput, match=pattern):
        Crossbar(**options)


@pytest.mark.parametrize("options", [{"switching": "wormhole"}, {"arbitration": "lottery"}, {"reducer": "host"}])
def test_unknown_names_raise_in_the_crossbar(options):
    with pytest.raises(UnknownName):
        Crossbar(**options)


def test_invalid_exchanges_raise():
    with pytest.raises(BadInput, match="groups of 3 do not divide 8 units: write 2 or 4"):
        TWO.simulate.local(100, 3, sum_bytes_per_s=1e9)
    with pytest.raises(BadInput, match="give sum_bytes_per_s"):
        TWO.simulate.local(100, 4)
    with pytest.raises(BadInput, match="units 0 to 7, got 8"):
        TWO.traffic(np.array([0]), np.array([8]), np.array([1]))
    with pytest.raises(BadInput, match="give as many of each"):
        TWO.traffic(np.array([0]), np.array([1, 2]), np.array([1]))
    with pytest.raises(BadInput, match="at least 0"):
        TWO.traffic(np.array([0]), np.array([1]), np.array([-1]))
    with pytest.raises(BadInput, match="whole numbers"):
        TWO.traffic(np.array([0]), np.array([1]), np.array([0.5]))
    with pytest.raises(BadInput, match="destination must be a unit"):
        TWO.simulate.send(0, 8, 100)
    with pytest.raises(BadInput, match="whole number"):
        TWO.simulate.send(0, 1, -1)


def test_exchanges_of_no_bytes_take_no_time():
    for fidelity in (TWO.simulate, TWO.analytic):
        assert fidelity.send(3, 3, 10**6).time_s == 0
        assert fidelity.send(0, 1, 0).time_s == 0
        assert fidelity.local(1000, 1).time_s == 0
        assert fidelity.neighbours(1000, 8).time_s == 0
    alone = TWO.for_units(1)
    for fidelity in (alone.simulate, alone.analytic):
        assert fidelity.all_reduce(1000, 1).time_s == fidelity.broadcast(1000).time_s == 0
    assert TWO.traffic(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int)).time_s == 0


@pytest.mark.paper
def test_a_single_message_takes_eq_2():
    """A single message: the latencies, and its bytes over the narrowest port; in the group, and beyond it."""
    for fidelity in (TWO.simulate, TWO.analytic):
        assert ps(fidelity.send(0, 1, 700).time_s) == 2 * 10_000 + 700_000
        assert ps(fidelity.send(0, 7, 700).time_s) == 2 * (10_000 + 100_000) + 700_000
        stored = type(fidelity)(replace(TWO, switching="store_and_forward"))
        assert ps(stored.send(0, 7, 700).time_s) == 2 * (10_000 + 100_000) + 2 * 700_000 + 2 * 175_000


def test_bytes_are_counted_at_each_level():
    assert TWO.simulate.send(0, 7, 2500).bytes_by_level == (5000, 5000)
    assert TWO.simulate.send(0, 1, 2500).bytes_by_level == (5000, 0)
    spread = TWO.simulate.broadcast(100)
    assert spread.bytes_by_level == (100 + 7 * 100, 100 + 3 * 100)  # up once, a copy for each that is reached
    summed = TWO.simulate.local(100, 4, agau=Adder(bytes_per_s=1e9))
    assert summed.bytes_by_level == (2 * 8 * 100, 8 * 100 + 4 * 100)  # every member's up, one result to each chip
    assert summed.events["crossbar_agau_byte"] == 8 * 100 + 2 * 100
    assert set(summed.events) == set(TWO.joules)


@pytest.mark.probe
def test_a_message_that_comes_one_picosecond_late_waits_for_the_other():
    """Units 0 and 1 send to 2 and 3 over one port of the second level: who is first on it is served first."""
    crossbar = replace(TWO, levels=(level(2, 4e9, 10e-9, 2), level(4, 1e9, 10e-9, 2)), arbitration="oldest")

    def delivered(late_ps):
        traffic = cut(crossbar, [0, 1], [2, 3], [1000, 1000], [0.0, 0.0])
        traffic.ready_ps[0] = late_ps
        return crossbar_messages.run(crossbar.tree(), traffic, "cut_through", "oldest").delivered_ps.tolist()

    first, second = delivered(0)
    assert first == 4 * 10_000 + 1_000_000
    assert second == first + 1_000_000
    first, second = delivered(1)
    assert second == 4 * 10_000 + 1_000_000
    assert first == second + 1_000_000


@pytest.mark.probe
def test_a_full_buffer_stalls_the_next_message():
    """Three messages from a fast port to a slow one: with room for one, the third may not start before the first has left."""
    slow_end = (level(2, 4e9, 1e-9, 1), level(4, 1e9, 1e-9, 1))

    def starts(room):
        levels = tuple(replace(each, buffer_messages=room) for each in slow_end)
        crossbar = Crossbar(levels=levels, units=8, message_bytes=1000, switching="store_and_forward")
        ran = crossbar_messages.run(crossbar.tree(), cut(crossbar, [0], [2], [3000]), "store_and_forward", "round_robin")
        return ran.delivered_ps.tolist()

    # up 0.25 us, over 1 us, down 1 us and 0.25 us; with one slot the port over waits for the one down, 1 us and a latency
    assert starts(3) == [2_504_000, 3_504_000, 4_504_000]
    assert starts(1) == [2_504_000, 4_505_000, 6_506_000]


def test_round_robin_takes_turns_and_priority_does_not():
    crossbar = Crossbar(levels=(level(4, 1e9, 1e-9, 8),), units=4, message_bytes=100)

    def order(arbitration):
        traffic = cut(crossbar, [0] * 3 + [1] * 3, [3] * 6, [100] * 6, None, [0] * 3 + [1] * 3)
        done = crossbar_messages.run(crossbar.tree(), traffic, "store_and_forward", arbitration).delivered_ps
        return np.argsort(done).tolist()

    assert order("round_robin") == [0, 3, 1, 4, 2, 5]
    assert order("oldest") == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]  # all ready at once: the lower number; unit 0's next has come when the port is free
    assert order("priority") == [3, 4, 5, 0, 1, 2]


@given(st.data(), st.sampled_from(["cut_through", "store_and_forward"]), st.sampled_from(["round_robin", "oldest", "priority"]))
def test_any_traffic_arrives_with_room_for_one_and_no_port_beats_its_rate(data, switching, arbitration):
    """No deadlock, and each port's bytes over its rate is a lower bound."""
    levels = tuple(level(data.draw(st.integers(2, 4)), data.draw(st.sampled_from([1e9, 3e9]))) for _ in range(3))
    crossbar = Crossbar(levels=levels, units=8, message_bytes=100, switching=switching, arbitration=arbitration)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    many = data.draw(st.integers(1, 300))
    options = rng.integers(0, 8, many), rng.integers(0, 8, many), rng.integers(1, 400, many)
    traffic, tree = cut(crossbar, *options), crossbar.tree()
    ran = crossbar_messages.run(tree, traffic, switching, arbitration)
    assert (ran.delivered_ps >= 0).all()
    least, carried = least_ps(tree, traffic, switching == "cut_through")
    assert carried.tolist() == ran.carried_bytes.tolist()
    assert ran.end_ps >= least
    rates = np.array([tree.ports[kind].bytes_per_s for kind in tree.tables[0][:, 0]])
    assert (ran.end_ps * 1e-12 * rates >= ran.carried_bytes).all()
    away = options[0] != options[1]
    assert ran.carried_bytes[:8].tolist() == [int(options[2][away & (options[0] == unit)].sum()) for unit in range(8)]


def test_disjoint_groups_are_simulated_once():
    """And where they share links, all of them are."""
    agau = Agau()
    for crossbar, group in ((Crossbar(units=256), 64), (Crossbar(units=128), 16), (Crossbar(units=128), 4), (TWO, 2), (TWO, 4)):
        for options in ({"agau": agau}, {"sum_bytes_per_s": 1e9}):
            for fidelity in (crossbar.simulate, crossbar.analytic):
                once, whole = (fidelity.local(300_000, group, fold=fold, **options) for fold in (True, False))
                assert (once.time_s, once.bytes_by_level, dict(once.events)) == (
                    whole.time_s, whole.bytes_by_level, dict(whole.events))  # fmt: skip
                assert once.messages <= whole.messages
    shared = Crossbar(units=96).simulate.local(100_000, 12, agau=agau)  # every second group lies on two chips
    assert shared == Crossbar(units=96).simulate.local(100_000, 12, agau=agau, fold=False)


@pytest.mark.parametrize(
    ("group", "disjoint"),
    [
        (1, True),
        (2, True),  # a switch below
        (3, False),  # a switch and a half
        (4, True),  # two of the four switches
        (6, False),  # the next group would lie on both sides
        (8, True),
    ],
)
def test_groups_are_disjoint_where_each_has_whole_switches_and_a_switch_has_whole_groups(group, disjoint):
    """Two units at each of four switches below one."""
    assert groups_are_disjoint(TWO, group) is disjoint


def test_a_switch_that_sums_takes_load_off_the_first_group():
    agau = Agau()
    by_agau, by_switch = (Crossbar(reducer=reducer).simulate.all_reduce(10**6, 64, agau=agau) for reducer in ("agau", "switch"))
    assert by_switch.time_s < by_agau.time_s
    assert by_switch.bytes_by_level[3] < by_agau.bytes_by_level[3]


def test_an_exchange_is_deterministic():
    crossbar = Crossbar(units=64)
    options = (np.arange(64), np.roll(np.arange(64), 7), np.full(64, 300_000))
    assert crossbar.traffic(*options) == crossbar.traffic(*options)
    assert crossbar.simulate.local(10**6, 64, agau=Agau()) == Crossbar(units=64).simulate.local(10**6, 64, agau=Agau())


def test_large_messages_do_not_overflow():
    sizes = np.array([1, 10**12], np.int64)
    ports = [crossbar_messages.Port(bytes_per_s=700_000_000, latency_ps=1, room=1)]
    assert services_ps(sizes, ports)[:, 0].tolist() == [1429, -(-(10**24) // 700_000_000)]


def test_energy_and_area_grow_with_units_and_buffers():
    small, whole = Crossbar(units=128), Crossbar()
    assert sum(whole.areas.values()) > 10 * sum(small.areas.values())
    assert whole.static_w > small.static_w > 0
    assert whole.joules["crossbar_level1_byte"] > 10 * whole.joules["crossbar_level0_byte"]  # pins against 4 mm of a die
    deep = Crossbar(levels=tuple(replace(each, buffer_messages=4) for each in UPMEM_LEVELS))
    assert deep.areas["crossbar_level0_buffers"] == pytest.approx(2 * whole.areas["crossbar_level0_buffers"])
    assert deep.areas["crossbar_level0_cells"] == whole.areas["crossbar_level0_cells"]
    assert set(whole.areas) == {f"crossbar_level{n}_{what}" for n in range(4) for what in ("cells", "lines", "buffers")}


def test_a_byte_to_an_agau_passes_two_registers_and_one_line():
    crossbar = Crossbar(technology_nm=45)
    registers = cells_joules(8 * 2 * FLIP_FLOP_UM2, 45)
    assert crossbar.joules["crossbar_agau_byte"] == pytest.approx(registers + 8 * 0.5 * line_joules(AGAU_LINE_M), rel=1e-6, abs=0.0)


def test_cells_of_a_level_are_a_multiplexer_from_every_port_to_every_other_and_two_registers_a_port():
    switch = Level(name="chip", fan_in=2, width_bits=8, clock_hz=1e9, latency_s=1e-9, buffer_messages=1)
    crossbar = Crossbar(levels=(switch,), units=2, technology_nm=45)
    ports = 2 + 1 + 1  # two units, the level above, an AGAU
    cells = 8 * (ports * (ports - 1) * MUX_UM2 + 2 * ports * FLIP_FLOP_UM2)
    assert crossbar.areas["crossbar_level0_cells"] == pytest.approx(cells * 1e-12, rel=1e-6, abs=0.0)
