"""PIM machines: what a run of them says of time, energy and bytes, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.devices.dpu.memory import split_over
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.crossbar.hierarchy import UPMEM_LEVELS, Crossbar
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.hardware.dsc.unit import Dsc
from trainyard.mapping.algorithms import (
    ADMM,
    Algorithm,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Synchronous,
)
from trainyard.systems.pim.device_interface import software_sum
from trainyard.systems.pim.scaling import efficiencies, scaled
from trainyard.systems.pim.systems import COLLECTIVES, DpuToDpu, HostMediated

LINEAR = ty.zoo.load("linear")
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def seconds(machine: object, **changes: object) -> float:
    return ty.run(LINEAR, on=machine, **changes).time_s  # type: ignore[arg-type]


def test_a_host_mediated_step_is_its_own_time_and_the_exchange_through_the_host() -> None:
    machine = HostMediated(dpus=256)
    result, rates = ty.run(LINEAR, on=machine), machine.rates(LINEAR)
    assert result.time_s == pytest.approx(rates.step_s[0] + rates.exchange_s, abs=1e-9)
    assert result.by_class["synchronisation"].time_s == pytest.approx(
        HostLink().exchange(256, 16384, transfers="rank_parallel").time_s, abs=1e-9
    )
    assert result.samples == 256 * 8
    assert result.macs == 256 * LINEAR.macs


def test_a_period_of_local_steps_shares_one_exchange() -> None:
    every, eighth = (HostMediated(dpus=512, algorithm=ModelAveraging(period)) for period in (1, 8))
    rates = every.rates(LINEAR)
    assert seconds(eighth) == pytest.approx(rates.step_s[0] + rates.exchange_s / 8, abs=1e-9)
    assert ty.run(LINEAR, on=eighth).steps == 8


def test_direct_is_local_steps_reductions_tokens_in_turn_and_one_exchange() -> None:
    machine = DpuToDpu(dpus=512, algorithm=Direct(15))
    result, rates, dsc = ty.run(LINEAR, on=machine), machine.rates(LINEAR), Dsc()
    assert result.steps == 16
    whole = (
        16 * (rates.step_s[0] + rates.reduce_s) + dsc.rounds_s(8) - dsc.hop_s + rates.exchange_s
    )  # nobody waits for the last way back
    assert result.time_s * 16 == pytest.approx(whole, abs=5e-9)
    assert result.group("op")[("token",)].busy_s > 0
    assert sum(cost.time_s for cost in result.by_layer.values()) == pytest.approx(result.time_s)


def test_direct_without_agau_or_dsc_or_with_tau_zero_takes_more_time() -> None:
    whole = DpuToDpu(dpus=512, algorithm=Synchronous())
    assert seconds(whole) < seconds(replace(whole, agau=None))
    assert seconds(whole) < seconds(replace(whole, dsc=None))
    assert seconds(replace(whole, algorithm=Direct(31))) < seconds(replace(whole, algorithm=Direct(0)))


@pytest.mark.parametrize(
    "algorithm",
    [
        Synchronous(),
        GradientAveraging(2),
        ModelAveraging(4),
        ADMM(4),
        ElasticAveraging(2),
        DecentralizedSgd(),
        Direct(3),
        Direct(3, update="literal"),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_every_algorithm_runs_between_dpus(algorithm: Algorithm) -> None:
    result = ty.run(LINEAR, on="direct", dpus=128, algorithm=algorithm)
    assert result.time_s > result.by_class["compute"].time_s > 0
    assert result.energy_j == pytest.approx(sum(result.energy_by_component.values()))
    assert any(level.startswith("crossbar") for level in result.traffic_bytes)
    if not isinstance(algorithm, Direct):
        assert ty.run(LINEAR, on="pim-opt", dpus=128, algorithm=algorithm).time_s > 0


def test_efficiency_falls_with_every_doubling_of_a_fixed_machine() -> None:
    for machine in (HostMediated(), HostMediated(transfers="serial"), DpuToDpu(fidelity="analytic")):
        curve = efficiencies(machine, LINEAR, POWERS)
        assert curve[0] <= 1.0
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(curve[6:])), curve
        assert curve[-1] < curve[5]


def test_equation_one_halves_the_efficiency_at_n_half() -> None:
    link = HostLink(sync_s=0.0, memory_bytes_per_s=1e18)
    machine = HostMediated(host=link, transfers="serial")
    half = link.half_dpus(machine.rates(LINEAR).step_s[0], 16384)
    for workers in (8, 64, 512):
        assert scaled(machine, LINEAR, workers).efficiency == pytest.approx(1 / (1 + workers / half), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(clusters=st.integers(1, 6), size=st.sampled_from([1, 2, 8, 64]), tau=st.integers(0, 5))
def test_analytic_and_message_level_agree_on_a_step(clusters: int, size: int, tau: int) -> None:
    machine = DpuToDpu(dpus=clusters * size, cluster_size=size, algorithm=Direct(tau))
    assert seconds(machine, fidelity="analytic") == pytest.approx(seconds(machine), rel=0.1)


def test_unequal_dpus_wait_for_the_slowest_unless_tau_is_time() -> None:
    equal = DpuToDpu(dpus=256, algorithm=Direct(7))
    mixed = replace(equal, speeds=(1.0, 0.5))
    assert seconds(mixed) == pytest.approx(2 * seconds(equal), rel=0.1)
    by_time = replace(mixed, algorithm=Direct(0.6, unit="s"))
    steps = by_time.rates(LINEAR).local_steps(by_time.algorithm)
    assert steps[0] == pytest.approx(2 * steps[1], abs=2)  # each begins its last step before the time is up
    assert ty.run(LINEAR, on=by_time).samples_per_s > ty.run(LINEAR, on=mixed).samples_per_s
    other = replace(equal, other=MAC_DPU, other_clusters=1)
    assert other.devices == (UPMEM, UPMEM, UPMEM, MAC_DPU)


def test_compressed_exchanges_move_fewer_bytes_between_clusters() -> None:
    plain, packed = (DpuToDpu(dpus=512, algorithm=Direct(0, compression_bits=bits)) for bits in (None, 4))
    assert packed.rates(LINEAR).exchange_bytes < plain.rates(LINEAR).exchange_bytes / 5
    assert seconds(packed) < seconds(plain)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_collectives_of_more_bytes_take_longer_and_cost_more(kind: str) -> None:
    machine = DpuToDpu(dpus=256)
    small, large = (machine.collective(kind, size, 4) for size in (4096, 4096 * 64))
    assert small[0] > 0
    assert small[1] > 0
    assert kind == "barrier" or (large[0] > small[0] and large[1] > small[1])


def test_what_cannot_be_built_is_refused_with_what_to_write() -> None:
    with pytest.raises(BadInput, match="dpus must be a positive whole number, got 0"):
        DpuToDpu(dpus=0)
    with pytest.raises(BadInput, match="100 DPUs do not divide into clusters of 64: give a multiple of 64"):
        DpuToDpu(dpus=100)
    with pytest.raises(BadInput, match="do not divide into clusters of 48"):
        DpuToDpu(dpus=2048, cluster_size=48)
    with pytest.raises(BadInput, match="no clusters to train with Direct"):
        HostMediated(algorithm=Direct(3))
    with pytest.raises(BadInput, match=r"do not fit the DSC's table of 256.*dsc.entries=2048"):
        DpuToDpu(cluster_size=1)
    with pytest.raises(BadInput, match="other and other_clusters go together"):
        DpuToDpu(other=MAC_DPU)
    with pytest.raises(UnknownName, match="collective"):
        DpuToDpu().collective("all_reduc", 4, 2)
    with pytest.raises(BadInput, match="algorithm must be one of"):
        HostMediated(algorithm="sgd")  # type: ignore[arg-type]


def test_a_model_larger_than_mram_is_refused_and_a_split_makes_room() -> None:
    resnet = ty.zoo.load("resnet18", batch=1)
    with pytest.raises(BadInput, match=r"needs .* of MRAM .*upmem has 67.1 MB"):
        ty.run(resnet, on="direct", dpus=64)
    assert ty.run(resnet, on="direct", dpus=64, dpu=MAC_DPU, fidelity="analytic").time_s > 0
    options = {"on": "direct", "dpus": 64, "dpu": MAC_DPU, "fidelity": "analytic"}
    whole, shared = (ty.run(resnet, split=split, **options) for split in (False, True))  # type: ignore[arg-type]
    again = split_over(resnet, 64, MAC_DPU.precision).gathered_bytes - 11_689_512 * 4  # for the backward pass
    assert shared.time_s - whole.time_s == pytest.approx(again / 0.7e9, rel=1e-6)
    assert ty.run(resnet, on="direct", dpus=64, split=True, fidelity="analytic").time_s > 0  # UPMEM's MRAM holds a shard
    with pytest.raises(BadInput, match="split over 64 DPUs, still needs"):
        ty.run(resnet.rebatch(8), on="direct", dpus=64, split=True)
    with pytest.raises(BadInput, match="of MRAM"):
        ty.run(LINEAR, on="direct", dpus=64, samples_per_dpu=5000)
    assert ty.run(LINEAR, on="direct", dpus=64, samples_per_dpu=3328).peak_memory_bytes["MRAM of a DPU"] > 3328 * 16384


def test_a_dpu_sums_what_others_send_at_the_rate_of_its_pipeline_or_its_transfers() -> None:
    rate, joules = software_sum(UPMEM)
    words = 350e6 / (2 + 1 + 1 + 3)  # two loads, an addition, a store, the loop
    assert rate <= 4 * words
    assert 0 < joules < 1e-6


def test_a_forward_pass_exchanges_nothing() -> None:
    from trainyard.ir import Phase

    result = ty.run(LINEAR.only(Phase.FORWARD), on="direct", dpus=128)
    assert {op for (op,) in result.group("op")} == {"mm", "wait", "idle"}
    assert not any(level.startswith("crossbar") for level in result.traffic_bytes)


def test_a_misspelt_algorithm_names_its_neighbour() -> None:
    with pytest.raises(UnknownName, match="did you mean 'model-averaging'"):
        ty.run(LINEAR, on="direct", algorithm="model-avg")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="'npu' is a device and has no algorithm to lend"):
        ty.run(LINEAR, on="direct(algorithm=npu)")


def test_the_title_says_whose_batch_it_is() -> None:
    from trainyard.report.lines import title

    assert title(ty.run(LINEAR, on="pim-opt", dpus=64)) == "linear, batch 8 of each worker (512 a step), on pim-opt"
    assert title(ty.run(LINEAR, on="a100-cluster")) == "linear, batch 8, on a100-cluster"


def test_crossbars_have_as_many_units_as_there_are_dpus() -> None:
    small = Crossbar(levels=UPMEM_LEVELS[:2])
    assert small.units == 64
    assert DpuToDpu(dpus=32, crossbar=small).crossbar.units == 32
    with pytest.raises(BadInput, match="4096 DPUs, but the levels of the crossbar hold 2048"):
        DpuToDpu(dpus=4096)


def test_assumptions_of_parts_that_are_not_used_are_idle_and_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    result = ty.run(LINEAR, on="direct", dpus=64)
    idle = {one.name for one in result.assumptions if one.unused}
    assert {"host.latency_s", "host.sync_s", "algorithm.recheck", "algorithm.order"} <= idle
    assert "agau.clock_hz" not in idle
    result.table(ranged=False)
    printed = capsys.readouterr().out
    assert "dpu.tasklets" in printed
    assert "host.latency_s" not in printed
    assert f"{len(idle)} that change nothing in this step" in printed
    through = ty.run(LINEAR, on=DpuToDpu(dpus=128, dsc=None))
    assert "host.latency_s" not in {one.name for one in through.assumptions if one.unused}
