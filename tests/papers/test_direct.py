"""DIRECT's experiments: proofs over printed figures, contributions, knees and ages, each on cases whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.mapping.algorithms import Direct, ModelAveraging, Synchronous
from trainyard.papers import bench, ledger
from trainyard.papers.direct import accuracy, assumptions, contributions, efficiency, hardware, measuring, printed, readings, table
from trainyard.papers.direct.contributions import PARTS, Parts
from trainyard.papers.direct.measuring import COUNTS, LINEAR, RESNET18, StepCost, step_cost, system
from trainyard.papers.direct.printed import Range, rounded, stated
from trainyard.runs import run
from trainyard.systems.pim.scaling import scaled
from trainyard.training import LogisticRegression, train
from trainyard.training.data import linear_problem

pytestmark = pytest.mark.paper


# ---- printed figures
@given(st.decimals(min_value="0.01", max_value="9999", places=2))
def test_a_printed_figure_stands_for_what_rounds_to_it(value: object) -> None:
    figure = float(value)  # type: ignore[arg-type]
    found = rounded(figure)
    assert found.low < figure < found.high
    assert found.high - figure == pytest.approx(figure - found.low)
    assert found.high - found.low >= 0.01 - 1e-12


def test_figures_at_an_edge_do_not_meet() -> None:
    """0.92 and 0.93 share 0.925, which is printed as one of them."""
    assert not rounded(0.92).meets(rounded(0.93))
    assert rounded(0.92).meets(Range(0.92, 0.9201))


def test_power_of_every_cell() -> None:
    for workload in printed.WORKLOADS:
        host, direct, gpu = printed.powers(workload)
        assert 3.4 < host.low < host.high < 3.7
        assert 3.5 < direct.low < direct.high < 3.6
        assert 80 * gpu.high < printed.A100_BOARD_W
        assert 80 * max(host.high, direct.high) < printed.UNITS * printed.DPU_W
    pim, gpu_j = printed.least_epoch_j()
    assert pim > 1.9 * max(stated("energy.resnet18")[:2])
    assert gpu_j > 6 * stated("energy.resnet18")[2]


def test_speedup_and_efficiency_exclude_each_other() -> None:
    for must, is_ in zip(printed.efficiency_ratios(), printed.ranges("speedup.pim_opt"), strict=True):
        assert must.low > is_.high
    assert [round(stated(f"time.{one}")[0] / stated(f"time.{one}")[1], 1) for one in printed.WORKLOADS] == [2.8, 2.9]


def test_a_upmem_dpu_cannot_train_resnet18_in_that_time() -> None:
    from trainyard.devices.dpu.presets import UPMEM
    from trainyard.errors import BadInput

    assert printed.needed_macs_per_s(0).low > 900 * UPMEM.macs_per_s
    assert 5.2e9 < printed.image_macs() < 5.5e9  # three times 1.8 G, less the first layer's dX
    with pytest.raises(BadInput, match="MRAM"):
        UPMEM.require_room(RESNET18.step)


def test_overall_efficiency_is_a_harmonic_mean_and_nothing_simpler() -> None:
    assert printed.common(printed.arithmetic_weights()) is None
    assert len(printed.products()) == 6
    weight = printed.common(printed.harmonic_weights())
    assert weight is not None
    middle = (weight.low + weight.high) / 2
    for _, a, b, c in printed.columns():
        least, most = (1 / (middle / x + (1 - middle) / y) for x, y in zip(a, b, strict=True))
        assert Range(least, most).meets(c)


def test_age_cannot_fall_as_far_as_printed() -> None:
    for workload in printed.WORKLOADS:
        own, free = printed.most_age_cut(workload)
        assert own.high < free.high < printed.age_cut(workload, 0).low
    assert not printed.age_cut("resnet18", 2).meets(Range(0.415, 0.425))
    assert printed.age_cut("linear", 2).meets(Range(0.415, 0.425))


def test_as_latency_of_an_exchange_staleness_agrees_with_efficiency() -> None:
    for workload, steps in zip(printed.WORKLOADS, (8, 7), strict=True):
        found = printed.steps_per_exchange(workload)
        assert found.low < steps < found.high
        host, direct, _ = stated(f"efficiency.{workload}")
        before, after, _ = stated(f"staleness.{workload}")
        step_ms = before / (1 / host - 1)
        exact = after / (step_ms * (1 / direct - 1))
        assert found.low < exact < found.high


def test_speedups_are_those_of_the_times() -> None:
    for times, printed_ in zip(printed.time_ratios(), printed.ranges("speedup.pim_opt"), strict=True):
        assert times.meets(printed_)
    assert "by times" in printed.speedup_conflict()


def test_every_proof_can_be_written() -> None:
    for text in (
        *(printed.proof_of_energy(one) for one in printed.WORKLOADS), printed.proof_of_rate(), printed.speedup_conflict(),
        printed.proof_of_abstract(), printed.proof_of_figure_2(), printed.staleness_readings(), printed.accuracy_conflict(),
        printed.overhead_conflict("area", "mm2"), printed.overall_row(), printed.proof_of_cut(),
    ):  # fmt: skip
        assert len(text) > 60
        assert "nan" not in text


# ---- runs
def test_a_run_is_what_the_command_line_gives() -> None:
    found = system("DIRECT", LINEAR, 128)
    result = run(LINEAR.step, replace(DIRECT, dpus=128))
    assert found.time_s == result.time_s
    assert found.energy_j == pytest.approx(result.energy_j)
    assert found.efficiency == pytest.approx(scaled(DIRECT, LINEAR.step, 128).efficiency)
    assert found.computation * found.communication == pytest.approx(found.efficiency)
    assert found.local_steps == 32
    assert set(found.acts_s) == {"reduce", "exchange", "token"}


def test_pim_opt_exchanges_after_every_step() -> None:
    found = system("PIM-Opt", LINEAR, 64)
    assert found.local_steps == 1
    assert found.age_s == pytest.approx(found.time_s)
    assert found.latency_s == pytest.approx(found.acts_s["exchange"])


def test_age_is_that_of_the_training_runs() -> None:
    """What Table II's rows say without training is what a run of the algorithm records."""
    data = linear_problem(samples=1024, features=8, test_samples=64)
    for plain, algorithm in ((DIRECT, Direct(7)), (PIM_OPT, ModelAveraging(4))):
        machine = replace(plain, dpus=128, algorithm=algorithm)
        history = train(
            LogisticRegression(8), data, algorithm=algorithm, rates=machine.rates(LINEAR.step), workers=128, learning_rate=0.1,
            steps=64, evaluate_every=64,
        )  # fmt: skip
        mean = step_cost(machine, LINEAR, 128).age_s
        assert history.age_s.mean == pytest.approx(mean, rel=0.15)  # the first round follows no exchange
        assert history.age_s.largest == pytest.approx(
            step_cost(machine, LINEAR, 128).latency_s + algorithm.local_steps * step_cost(machine, LINEAR, 128).local_s, rel=1e-3
        )


def test_an_epoch_of_the_linear_model_is_pim_opts() -> None:
    assert LINEAR.steps == 416
    assert LINEAR.gpu_batch == 16384
    assert table.epoch_s("PIM-Opt", LINEAR) == 416 * system("PIM-Opt", LINEAR).time_s


def test_eq_1_falls_as_its_shape_says() -> None:
    """1 / (1 + N / N_half) with the host's own N_half; what is left is synchronisation and the sum."""
    curve = efficiency.curve("PIM-Opt, DPU by DPU", LINEAR)
    half = PIM_OPT.host.half_dpus(system("PIM-Opt", LINEAR).alone_s, 16384)
    for units, found in curve.items():
        assert found == pytest.approx(printed.by_eq_1(units, half), rel=0.02)
    assert list(curve.values()) == sorted(curve.values(), reverse=True)


@pytest.mark.parametrize("name", efficiency.DRAWN)
def test_more_units_never_raise_efficiency(name: measuring.System) -> None:
    curve = [*efficiency.curve(name, LINEAR).values()]
    assert all(a >= b - 1e-6 for a, b in pairwise(curve))
    assert all(0 < one <= 1 for one in curve)


def test_tokens_alone_grow_with_the_clusters() -> None:
    found = efficiency.points("DIRECT", LINEAR)
    waits = [found[units].acts_s.get("token", 0.0) for units in COUNTS]
    assert waits[:2] == [0.0, 0.0]  # one cluster asks nobody
    assert waits[2:] == sorted(waits[2:])
    assert waits[-1] * 32 == pytest.approx(hardware.parts()[1].rounds_s(32), rel=0.05)


def test_as_printed_the_token_bends_the_curve() -> None:
    """One exchange for each cluster, one after another: more clusters wait longer, and a lower tau makes them ask more often."""
    curves = [efficiency.literal_curve(one, RESNET18) for one in efficiency.LITERALS]
    for curve in curves:
        many = [curve[units] for units in COUNTS if units >= 256]
        assert curve[64] > many[0]
        assert many == sorted(many, reverse=True)
    assert curves[1][2048] < curves[0][2048] < curves[0][64]
    assert curves[0][32] == curves[1][32]


def test_trees_between_boards_are_faster_than_a_ring() -> None:
    assert system("A100", LINEAR).efficiency < efficiency.by_trees(LINEAR) == efficiency.efficiency("A100", LINEAR) < 1
    few, many = (efficiency.by_trees(RESNET18, units) - system("A100", RESNET18, units).efficiency for units in (32, 2048))
    assert few < 0 < many  # a ring of few boards hides behind backward, that of many has a hop for each


def test_ranks_in_turn_fall_as_equation_one_does() -> None:
    """The baseline of the paper: 1 / (1 + N / N_half) with a rank's bandwidth, from the first full rank on."""
    host, found = PIM_OPT.host, efficiency.curve("PIM-Opt", LINEAR)
    each = 2 * host.latency_s / 64 + 16384 * (1 / host.rank_in_bytes_per_s + 1 / host.rank_out_bytes_per_s)
    each += host.sync_s / 64 + 16384 / host.memory_bytes_per_s
    half = system("PIM-Opt", LINEAR).alone_s / each
    for units in COUNTS[1:]:
        assert found[units] == pytest.approx(printed.by_eq_1(units, half), rel=0.01)
    rows = [efficiency.efficiency(name, LINEAR) for name in ("PIM-Opt, DPU by DPU", "PIM-Opt", "PIM-Opt, rank-parallel", "DIRECT")]
    assert rows == sorted(rows)


def test_a_board_that_does_not_hold_the_epoch_is_fed() -> None:
    assert table.epoch_bytes(LINEAR) == 3328 * 2048 * (4096 + 1) * 4
    assert table.fed_s(LINEAR) == table.epoch_bytes(LINEAR) / 25e9 == table.epoch_s("A100", LINEAR)
    assert table.fed_s(LINEAR) > measuring.one_gpu(LINEAR)[0]
    assert table.epoch_s("A100", RESNET18) == measuring.one_gpu(RESNET18)[0]


# ---- what was searched, and what is not defined
def test_the_ledgers_reading_is_among_those_searched() -> None:
    found = readings.search(LINEAR)
    assert found.readings == 18
    assert found.numbers["direct.efficiency.linear"] == pytest.approx(efficiency.at_full(LINEAR), rel=0.01)  # crossbars analytic
    names = [one.name for one in readings.readings(RESNET18)]
    assert len(set(names)) == len(names) == 108


def test_a_reading_changes_what_it_names() -> None:
    slow, fast = (readings.results(RESNET18, readings.Reading("ranks_in_turn", True, 256, lanes)) for lanes in (8, 16))
    assert slow["direct.time.resnet18"][1] > 1.5 * fast["direct.time.resnet18"][1]  # type: ignore[index]
    assert slow["direct.time.resnet18"][2] == fast["direct.time.resnet18"][2]  # type: ignore[index]
    large = readings.changed(RESNET18, readings.Reading("serial", False, 32, 8, 32))
    assert (large.dpu.mac_lanes, large.step.batch, large.steps * 4) == (8, 32, pytest.approx(RESNET18.steps))


@pytest.mark.parametrize("workload", [LINEAR, RESNET18], ids=lambda one: one.name)
def test_efficiencies_without_a_reference_are_undefined(workload: measuring.Workload) -> None:
    for kind in ("computation", "communication"):
        claim = next(one for one in ledger.claims() if one.id == f"direct.efficiency.{workload.name}.{kind}")
        row = ledger.judge(claim, efficiency.EXPERIMENTS[claim.id]())
        assert (row.verdict, row.ratio) == ("undefined", None)
        assert "does not define" in row.note


def test_a100s_exchange_by_trees_in_all_their_efficiencies() -> None:
    ring = measuring.system("A100", LINEAR)
    assert efficiency.communication("A100", LINEAR) == pytest.approx(efficiency.by_trees(LINEAR))
    assert efficiency.communication("A100", LINEAR) > 5 * ring.communication
    assert efficiency.exchange_s("A100", LINEAR) == efficiency.tree_s(LINEAR) < ring.latency_s
    for name in ("PIM-Opt", "DIRECT"):
        assert efficiency.communication(name, LINEAR) == pytest.approx(measuring.system(name, LINEAR).communication)


def test_a_tree_of_more_inputs_is_larger() -> None:
    areas = [sum(hardware.areas_mm2(inputs).values()) for inputs in (None, *hardware.TREES)]
    powers = [sum(hardware.powers_mw(inputs).values()) for inputs in (None, *hardware.TREES)]
    assert areas == sorted(areas)
    assert powers == sorted(powers)
    assert areas[1] < stated("area")[1] < areas[2]


# ---- knee
def test_knees() -> None:
    assert efficiency.knee({32: 1.0, 64: 1.0, 128: 0.9, 256: 0.5, 512: 0.4}) == 128
    assert efficiency.knee({32: 0.9, 64: 0.5, 128: 0.3, 256: 0.2}) == 32  # bent before it begins
    for half in (150, 920, 4000):  # the bend of Eq. 1's shape lies below N_half
        curve = {units: printed.by_eq_1(units, half) for units in COUNTS}
        assert efficiency.knee(curve) <= half


# ---- contributions
def seconds_of(*values: float) -> dict[Parts, float]:
    return dict(zip(contributions.subsets(), values, strict=True))


@given(st.lists(st.floats(0.1, 100.0), min_size=8, max_size=8))
def test_shares_make_up_the_whole_speedup(values: list[float]) -> None:
    seconds = seconds_of(*values)
    whole = math.log(values[0] / values[-1])
    if abs(whole) < 0.1:
        return
    for kind in (contributions.shapley, contributions.in_order):
        assert sum(kind(seconds).values()) == pytest.approx(100)
    brute = dict.fromkeys(PARTS, 0.0)
    for order in permutations(PARTS):
        have: Parts = frozenset()
        for part in order:
            brute[part] += math.log(seconds[have] / seconds[have | {part}]) / 6
            have |= {part}
    for part, share in contributions.shapley(seconds).items():
        assert share == pytest.approx(100 * brute[part] / whole, abs=1e-6)


def test_a_part_that_changes_nothing_has_no_share() -> None:
    idle = seconds_of(8, 4, 8, 2, 4, 1, 2, 1)  # DSC is idle
    assert contributions.shapley(idle)["DSC"] == pytest.approx(0)
    assert contributions.in_order(idle)["DSC"] == pytest.approx(0)


def test_what_is_lost_without_a_part() -> None:
    found = contributions.removed(seconds_of(8, 4, 8, 2, 4, 3, 2, 1))
    assert found == {"AGAU": 2, "DSC": 3, "LAA": 4}


def test_subsets_end_in_the_two_machines() -> None:
    every = contributions.subsets()
    assert contributions.built(every[0], LINEAR) == replace(PIM_OPT, samples_per_dpu=3328)
    assert contributions.built(every[-1], LINEAR) == replace(DIRECT, samples_per_dpu=3328)
    for parts in every:
        machine = contributions.built(parts, LINEAR)
        assert machine.algorithm.local_steps == (32 if "LAA" in parts else 1)
        assert ("AGAU" in parts) == (getattr(machine, "agau", None) is not None)
        assert ("DSC" in parts) == (getattr(machine, "dsc", None) is not None)


# ---- hardware, accuracy, assumptions
def test_areas_and_powers_are_sums_of_their_parts() -> None:
    agau, dsc = hardware.parts()
    assert sum(hardware.areas_mm2().values()) == pytest.approx(1e6 * (sum(agau.areas.values()) + dsc.area_m2))
    assert sum(hardware.powers_mw().values()) == pytest.approx(1e3 * (sum(agau.busy_w.values()) + agau.static_w + dsc.busy_w))
    assert hardware.overhead_ratio(2048) == pytest.approx(640e-6 / dsc.overhead_s(32))


def test_ma_sgd_with_every_step_is_synchronous_sgd() -> None:
    """Why two columns of Table II are one algorithm."""
    data = linear_problem(samples=2048, features=32, test_samples=512, dtype="float64")
    runs = [
        train(LogisticRegression(32), data, algorithm=one, workers=32, learning_rate=0.1, steps=16)
        for one in (ModelAveraging(1), Synchronous())
    ]
    assert runs[0].weights == pytest.approx(runs[1].weights, rel=1e-9)


def test_without_torch_the_linear_model_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "has_torch", lambda: False)
    monkeypatch.setattr(accuracy, "linear_accuracy", {"synchronous": 0.8, "averaging": 0.81, "literal": 0.7}.__getitem__)
    network, gain = (accuracy.EXPERIMENTS[f"direct.{name}"]() for name in ("accuracy.resnet18", "accuracy_gain"))
    assert network.value == pytest.approx([80.0, 81.0, 80.0])
    assert "torch is not installed" in network.note
    assert gain.value == pytest.approx([1.0, 1.0])


def test_an_alternative_goes_into_both_machines() -> None:
    others = list(assumptions.alternatives(LINEAR))
    other = next(one for one in others if one.name == "dpu.tasklets")
    found = assumptions.speedup(LINEAR, (other,))
    changed = replace(LINEAR, dpu=replace(LINEAR.dpu, tasklets=other.payload.fields["dpu.tasklets"]))
    assert found == pytest.approx(assumptions.pair(changed).speedup)
    paths = {one.name for one in others}
    assert {"transfers", "crossbar.levels", "agau.inputs", "dsc.hop_cycles", "cluster_size"} <= paths


def test_other_batches_and_lanes_are_weighed() -> None:
    found = {(one.name, one.alternative): assumptions.speedup(RESNET18, (one,)) for one in assumptions.readings(RESNET18)}
    assert {path for path, _ in found} == {"dpu.mac_lanes", "batch"}
    speedups = [found["batch", size] for size in assumptions.BATCHES]
    assert speedups == sorted(speedups, reverse=True)  # an exchange costs the same, a step more
    assert found["dpu.mac_lanes", 8] < assumptions.pair(RESNET18).speedup < found["dpu.mac_lanes", 32]
    assert "dpu.number" in {one.name for one in assumptions.readings(LINEAR)}


def test_closed_form_is_close_enough_to_weigh_assumptions() -> None:
    exact = system("PIM-Opt", LINEAR).time_s / system("DIRECT", LINEAR).time_s
    assert assumptions.pair(LINEAR).speedup == pytest.approx(exact, rel=0.01)


def test_every_claim_has_an_experiment() -> None:
    assert set(bench.experiments("direct")) == {one.id for one in ledger.select("direct")}


def test_a_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = system("PIM-Opt", LINEAR, 32)

    def refuse(wanted: measuring.Job) -> StepCost:
        raise AssertionError(wanted)

    monkeypatch.setattr(measuring, "run_job", refuse)
    assert system("PIM-Opt", LINEAR, 32) is first


def test_fig_3_draws_every_reading_of_the_transfers_in_a_colour_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.papers.direct import plots

    seconds = {parts: 8.0 / 2 ** len(parts) for parts in contributions.subsets()}
    monkeypatch.setattr(contributions, "times", lambda workload, transfers: seconds)
    bars = [bar for bar in plots.figure_3().data if bar.type == "bar"]
    assert len(bars) == len({bar.marker.color for bar in bars}) == 2 * len(contributions.TRANSFERS) * len(measuring.WORKLOADS)
