"""Energy and bytes of PIM machines by hand: events times joules, and every watt that is drawn at all times counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.devices.dpu.memory import split_over
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar.hierarchy import Crossbar
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.hardware.dsc.unit import Dsc
from trainyard.mapping.algorithms import Algorithm, DecentralizedSgd, Direct, ElasticAveraging, ModelAveraging, Rates, Synchronous
from trainyard.systems.pim import software_sums
from trainyard.systems.pim.device_interface import software_sum
from trainyard.systems.pim.scaling import scaled
from trainyard.systems.pim.systems import DpuToDpu, HostMediated

LINEAR = ty.zoo.load("linear")
BYTES, WORDS = 16384, 4096


def priced(joules: object, events: dict[str, float]) -> float:
    return sum(count * joules[event] for event, count in events.items())  # type: ignore[index]


ALWAYS = [
    DpuToDpu(dpus=128, speeds=(1.0, 0.5)),
    DpuToDpu(dpus=128, algorithm=Direct(3, update="literal")),
    DpuToDpu(dpus=128, algorithm=Synchronous(), dsc=Dsc(clock_hz=1e5)),
    DpuToDpu(dpus=128, other=MAC_DPU, other_clusters=1),
    DpuToDpu(dpus=64, algorithm=DecentralizedSgd()),
    HostMediated(dpus=96, algorithm=ElasticAveraging(4)),
    HostMediated(dpus=256),
    HostMediated(dpus=1),
]


@pytest.mark.parametrize("machine", ALWAYS, ids=range(len(ALWAYS)))
def test_static_power_is_counted_once_over_the_whole_time(machine: DpuToDpu | HostMediated) -> None:
    result = ty.run(LINEAR, on=machine)
    each = result.energy_by_component
    assert each["static"] + each.get("fabric static", 0.0) == pytest.approx(machine.idle_w * result.time_s, rel=1e-6)


def test_energy_of_averaging_is_events_times_joules() -> None:
    crossbar, agau, dsc = Crossbar(), Agau(), Dsc()
    machine = DpuToDpu(dpus=128, cluster_size=32, algorithm=Direct(3))
    result = ty.run(LINEAR, on=machine)
    fabric = crossbar.for_units(128).simulate
    local, across = fabric.local(BYTES, 32, agau=agau), fabric.all_reduce(BYTES, 32, agau=agau, members=True)
    each = {part: joules * 4 for part, joules in result.energy_by_component.items()}  # of four steps and one exchange
    assert each["crossbar"] == pytest.approx(
        4 * priced(crossbar.joules, dict(local.events)) + priced(crossbar.joules, dict(across.events))
    )
    sums = 4 * 4 * priced(agau.joules, agau.events(32, WORDS)) + priced(agau.joules, agau.events(4, WORDS))
    assert each["agau"] == pytest.approx(sums)
    told = 4 * priced(dsc.joules, dict(dsc.token_events())) + 4 * 4 * dsc.joules["dsc_staleness"] + 4 * dsc.joules["dsc_message"]
    assert each["dsc"] == pytest.approx(told)
    for number, level in enumerate(crossbar.levels):
        moved = 4 * local.bytes_by_level[number] + across.bytes_by_level[number]
        assert result.traffic_bytes.get(f"crossbar {level.name}", 0) == pytest.approx(moved / 4, abs=4)


def test_a_round_is_entered_by_token_and_begins_when_all_have_heard_of_it() -> None:
    machine, dsc = DpuToDpu(dpus=256, algorithm=Direct(3)), Dsc()
    fabric = Crossbar().for_units(256).simulate
    step_s = machine.rates(LINEAR).step_s[0]
    reduce = fabric.local(BYTES, 64, agau=Agau()).time_s + dsc.check_s + dsc.barrier_s(64, "local")
    across = fabric.all_reduce(BYTES, 64, agau=Agau(), members=True).time_s
    whole = 4 * (step_s + reduce) + dsc.overhead_s(4) + across
    assert 4 * ty.run(LINEAR, on=machine).time_s == pytest.approx(whole, abs=5e-9)


@pytest.mark.parametrize(("algorithm", "inside"), [(Synchronous(), True), (ModelAveraging(1), True)], ids=["sync", "models"])
def test_other_algorithms_go_up_once_across_and_down_once(algorithm: Algorithm, inside: bool) -> None:
    machine, dsc = DpuToDpu(dpus=256, algorithm=algorithm), Dsc()
    fabric = Crossbar().for_units(256).simulate
    up = fabric.local(BYTES, 64, agau=Agau(), back=False)
    across = fabric.all_reduce(BYTES, 64, agau=Agau(), members=True)
    assert machine.rates(LINEAR).exchange_s == pytest.approx(up.time_s + across.time_s + dsc.barrier_s(4), abs=5e-9)
    assert machine.rates(LINEAR).exchange_bytes == sum(up.bytes_by_level) + sum(across.bytes_by_level)


def test_without_a_dsc_ranks_go_through_the_host_and_clusters_gather() -> None:
    machine = DpuToDpu(dpus=128, algorithm=Synchronous(), dsc=None)
    crossbar = Crossbar().for_units(128)
    up = crossbar.simulate.local(BYTES, 64, agau=Agau(), back=False)
    through = HostLink().exchange(128, BYTES // 64, transfers="rank_parallel", broadcast=False)
    gathered = software_sums.gather(crossbar, BYTES, 64)
    assert machine.rates(LINEAR).exchange_s == pytest.approx(up.time_s + through.time_s + gathered.time_s, abs=5e-9)
    moved = through.bytes + sum(up.bytes_by_level) + sum(gathered.bytes_by_level)
    assert machine.rates(LINEAR).exchange_bytes == moved
    one = DpuToDpu(dpus=64, algorithm=Synchronous(), dsc=None)
    assert one.rates(LINEAR).exchange_s < 2e-4  # one cluster has nobody to talk to through the host


def test_without_agaus_every_dpu_sums_its_part() -> None:
    rate = software_sum(UPMEM)[0]
    crossbar = Crossbar().for_units(128)
    local = software_sums.local(crossbar, BYTES, 64, rate)
    there = software_sums.gather(crossbar, BYTES, 64)
    assert local.time_s == pytest.approx(2 * there.time_s + 63 * (BYTES // 64) / rate)
    assert there.bytes_by_level[0] == 128 * 2 * 63 * (BYTES // 64)  # out of a port and into another
    across = software_sums.across(crossbar, BYTES, 64, rate)
    assert across.bytes_by_level[3] == 0
    assert across.bytes_by_level[2] == 2 * 2 * 128 * (
        BYTES // 128
    )  # there and back, each half crosses its rank's port and the other's
    machine = DpuToDpu(dpus=128, agau=None, algorithm=Direct(3))
    energy = ty.run(LINEAR, on=machine).energy_by_component["dpu sum"] * 4
    assert energy == pytest.approx(software_sum(UPMEM)[1] * 4 * WORDS * (4 * 2 * 63 + 1))


def test_literal_with_one_cluster_never_exchanges() -> None:
    for dpus in (1, 8):
        machine = DpuToDpu(dpus=dpus, algorithm=Direct(3, update="literal"))
        assert "exchange" not in {op for (op,) in ty.run(LINEAR, on=machine).group("op")}


def test_unequal_clusters_of_literal_run_free() -> None:
    equal = DpuToDpu(dpus=128, algorithm=Direct(7, update="literal"))
    free = ty.run(LINEAR, on=replace(equal, speeds=(1.0, 0.5))).samples_per_s
    assert free == pytest.approx(0.75 * ty.run(LINEAR, on=equal).samples_per_s, rel=0.05)


def test_split_memory_is_that_of_a_shard() -> None:
    resnet = ty.zoo.load("resnet18", batch=1)
    small = replace(MAC_DPU, mram_bytes=96 * 2**20)
    result = ty.run(resnet, on="direct", dpus=64, dpu=small, split=True, fidelity="analytic")
    assert result.peak_memory_bytes["MRAM of a DPU"] == split_over(resnet, 64, small.precision).peak_bytes
    assert not any("does not fit" in note for note in result.notes)
    with pytest.raises(BadInput, match="take the machine 'direct'"):
        HostMediated(split=True)


def test_packed_gradients_are_decoded_summed_as_words_and_go_down_as_words_under_literal() -> None:
    averaging, literal = (
        DpuToDpu(dpus=512, algorithm=Direct(3, compression_bits=4, update=update)).rates(LINEAR)  # type: ignore[arg-type]
        for update in ("averaging", "literal")
    )
    plain = DpuToDpu(dpus=512, algorithm=Direct(3)).rates(LINEAR)
    assert averaging.exchange_bytes < literal.exchange_bytes < plain.exchange_bytes
    fabric, agau = Crossbar().for_units(512).simulate, Agau()
    packed = averaging.exchange_bytes  # over all ports
    assert packed < plain.exchange_bytes / 4
    moved_s = fabric.all_reduce(2080, 64, agau=agau, members=True).time_s
    assert averaging.exchange_s > moved_s + agau.seconds(8, WORDS) - agau.seconds(8, 520)


def test_efficiency_of_unequal_dpus_is_of_what_each_could_do() -> None:
    machine = DpuToDpu(speeds=(0.5, 1.0), cluster_size=8, algorithm=Direct(0.1, unit="s"))
    assert 0.8 < scaled(machine, LINEAR, 64).efficiency <= 1
    mixed = DpuToDpu(dpus=256, other=MAC_DPU, other_clusters=3)
    assert 0 < scaled(mixed, LINEAR, 64).efficiency <= 1


@settings(max_examples=40, deadline=None)
@given(step=st.integers(1, 10**9), reduce=st.integers(0, 10**6), count=st.integers(1, 50), off=st.sampled_from([-1, 0, 1]))
def test_local_steps_in_seconds_are_those_of_the_picosecond_clock(step: int, reduce: int, count: int, off: int) -> None:
    tau_ps = count * (step + reduce) + off
    rates = Rates(
        workers=1, cluster_size=1, step_s=(step * 1e-12,), reduce_s=reduce * 1e-12, exchange_s=0.0, update_s=0.0, token_s=0.0,
        message_bytes=4, exchange_bytes=0, reduce_bytes=0,
    )  # fmt: skip
    now, done = 0, 0
    while now <= tau_ps:
        now += step + reduce
        done += 1
    assert rates.local_steps(Direct(tau_ps * 1e-12, unit="s")) == (done,)


def test_a_collective_draws_what_its_own_clusters_draw() -> None:
    small, large = DpuToDpu(dpus=128), DpuToDpu()
    assert large.collective("all_reduce", 65536, 2) == pytest.approx(small.collective("all_reduce", 65536, 2))
    seconds, joules = small.collective("barrier", 0, 2)
    assert joules >= seconds * small.idle_w
    assert DpuToDpu(dpus=256, other=MAC_DPU, other_clusters=3).collective("all_reduce", 4096, 2)[0] > 0


def test_a_collective_through_the_host_is_of_ranks_where_no_cluster_size_is_given() -> None:
    rank, quarter = HostMediated(cluster_size=64), HostMediated(cluster_size=16)
    for kind in ("all_reduce", "local_all_reduce"):
        assert HostMediated().collective(kind, 65536, 2) == rank.collective(kind, 65536, 2)
        assert quarter.collective(kind, 65536, 2)[0] < rank.collective(kind, 65536, 2)[0]


def test_a_device_that_sums_reads_two_streams_and_writes_a_third() -> None:
    device = ty.Accelerator(array=ty.arrays.Systolic(rows=16, columns=16), scratchpad="1 MiB", dram="30 GB/s")
    rate, _ = software_sum(device)
    assert rate == pytest.approx(10e9, rel=0.01)


def test_a_collective_of_one_cluster_is_the_barrier_alone() -> None:
    machine = DpuToDpu(dpus=128)
    assert machine.collective("all_reduce", 65536, 1) == machine.collective("barrier", 0, 1)
    assert machine.collective("barrier", 65536, 2)[0] < 0.1 * machine.collective("all_reduce", 65536, 2)[0]


@pytest.mark.parametrize("algorithm", [ElasticAveraging(4), ModelAveraging(4)])
def test_an_exchange_of_all_through_the_host_moves_two_messages_for_every_dpu(algorithm: Algorithm) -> None:
    assert HostMediated(dpus=96, algorithm=algorithm)._rates(LINEAR, None).exchange_bytes == 96 * 2 * BYTES


@pytest.mark.parametrize(
    ("update", "dsc", "said"), [("averaging", Dsc(), True), ("literal", Dsc(), False), ("averaging", None, False)]
)
def test_the_note_tells_of_tokens_only_where_a_dsc_gives_them_one_after_the_other(update: str, dsc: Dsc | None, said: bool) -> None:
    (note,) = ty.run(LINEAR, on=DpuToDpu(dpus=128, dsc=dsc, algorithm=Direct(3, update=update))).notes  # type: ignore[arg-type]
    assert note.startswith("2 clusters of 64 DPUs exchange after 4 steps: ")
    assert note.endswith("by token") == said


def test_peaks_are_those_of_all_dpus() -> None:
    peaks, one = DpuToDpu(dpus=128, speeds=(1.0, 0.5)).peaks, UPMEM.peaks
    assert (peaks.macs_per_s, peaks.devices) == (pytest.approx(96 * one.macs_per_s), 128)


def test_impossible_pim_machines_are_refused() -> None:
    with pytest.raises(BadInput, match="host must be a HostLink, got 3"):
        HostMediated(host=3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="too many to simulate"):
        ty.run(LINEAR, on="direct(dpus=128,algorithm=locality-aware(tau=1e9,unit=s))")
    with pytest.raises(UnknownName, match="update"):
        Direct(3, update="foo")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="order"):
        Direct(3, order="foo")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="recheck must be true or false"):
        Direct(3, recheck="no")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="fidelity"):
        DpuToDpu(fidelity="foo")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="transfers"):
        HostMediated(transfers="foo")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="crossbar must be a Crossbar"):
        DpuToDpu(crossbar=None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="dpu must be a device"):
        HostMediated(dpu=None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="samples_per_dpu"):
        DpuToDpu(samples_per_dpu=-1)
    with pytest.raises(BadInput, match="below 1"):
        ElasticAveraging(elasticity=2.0)
