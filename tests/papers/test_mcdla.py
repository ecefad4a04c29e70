"""MC-DLA's experiments: bounds, wires and selections on small cases; all rows and figures are in test_mcdla_whole.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import runs
from trainyard.machines.presets.mcdla import DC_DLA, DC_DLA_ORACLE, DESIGNS, HC_DLA, MCDLA_B, MCDLA_L, MCDLA_S
from trainyard.papers import bench, ledger
from trainyard.papers.mcdla import (
    assumptions,
    breakdown,
    generations,
    measuring,
    performance,
    power,
    printed,
    readings,
    scaling,
    sensitivity,
    wiring,
)
from trainyard.papers.mcdla.measuring import PARALLEL, Parallel, StepTimes, job, step_times
from trainyard.papers.provenance import literals_of
from trainyard.sensitivity import run_study
from trainyard.systems.node.systems import HostCentric, Node

QUICK = ("alexnet", "lstm-1")
"""A network of each kind that is soon done."""
SLACK = 1 + 1e-9


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "workers", lambda: None)


# ---- what must hold whatever is assumed
@pytest.mark.parametrize(("network", "parallel"), [*product(QUICK, PARALLEL)])
def test_designs_are_in_order(network: str, parallel: Parallel) -> None:
    time = {name: step_times(node, network, parallel).time_s for name, node in DESIGNS.items()}
    free = step_times(performance.FREE_COPIES, network, parallel).time_s
    assert time["dc-dla-oracle"] <= SLACK * free <= SLACK**2 * time["mcdla-b"]
    assert time["mcdla-b"] <= SLACK * time["mcdla-l"]
    assert time["mcdla-b"] <= SLACK * time["mcdla-s"]
    assert time["hc-dla"] <= SLACK * 2 * time["mcdla-b"]
    assert time["mcdla-b"] <= SLACK * time["dc-dla"]


@pytest.mark.parametrize("changes", [{"split": "balanced"}, {"directions": "one"}, {"window": None}, {"recompute": "none"}])
@pytest.mark.parametrize("parallel", PARALLEL)
def test_designs_are_in_order_under_other_assumptions(parallel: Parallel, changes: dict[str, Any]) -> None:
    time = {
        name: step_times(replace(node, **changes), "alexnet", parallel, 128).time_s for name, node in DESIGNS.items()
    }  # fmt: skip
    assert time["dc-dla-oracle"] <= SLACK * time["mcdla-b"] <= SLACK**2 * time["mcdla-l"]
    if changes.get("split") != "balanced":  # then little is said over the star's short ring alone: half of (B)'s hops
        assert time["mcdla-b"] <= SLACK * time["mcdla-s"]
    assert time["hc-dla"] <= SLACK * 2 * time["mcdla-b"]


@pytest.mark.parametrize(("network", "parallel"), [*product(QUICK, PARALLEL)])
def test_doubling_pcie_keeps_the_convexity_bound(network: str, parallel: Parallel) -> None:
    dc, fast = step_times(DC_DLA, network, parallel).time_s, step_times(sensitivity.GEN4, network, parallel).time_s
    b = step_times(MCDLA_B, network, parallel).time_s
    assert dc / fast * SLACK >= 1
    assert dc / fast >= printed.least_gain(dc / b) / SLACK


@pytest.mark.parametrize("network", ["alexnet", "lstm-2"])
def test_the_star_keeps_its_bound(network: str) -> None:
    """(S) loses at least what HC-DLA's use of its bandwidth says, of two links beside three."""
    hc, star, b = (step_times(node, network, "data") for node in (HC_DLA, MCDLA_S, MCDLA_B))
    used = hc.host_bytes / HC_DLA.devices / hc.time_s / printed.HC_BYTES_PER_S
    assert 0 < used <= 1
    assert 1 - b.time_s / star.time_s >= printed.least_star_loss(used) / SLACK


@pytest.mark.parametrize("network", ["alexnet", "resnet34"])
def test_samples_that_grow_with_the_devices_keep_the_bound_of_scaling(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "CNNS", (network,))
    for devices in (4, 8):
        (paged,), (plain,) = (scaling.scaled(design, devices, 8).values() for design in ("dc-dla", "dc-dla-oracle"))
        alone, each = (wiring.to_memory(scaling.sized("dc-dla", count)) for count in (1, devices))
        assert plain <= devices * SLACK
        assert paged >= printed.least_scaling(devices, each, alone, plain) / SLACK


@pytest.mark.parametrize("network", ["alexnet", pytest.param("resnet34", marks=pytest.mark.slow)])
def test_scaling_keeps_its_bound(network: str) -> None:
    """1 / speedup <= 1 / (speedup without paging) + b_1 / (n b_n)."""
    for devices in (4, 8):
        first, many = (step_times(scaling.sized("dc-dla", count), network, "data", 64).time_s for count in (1, devices))
        plain = [step_times(scaling.sized("dc-dla-oracle", count), network, "data", 64).time_s for count in (1, devices)]
        alone, each = (wiring.to_memory(scaling.sized("dc-dla", count)) for count in (1, devices))
        assert first / many >= printed.least_scaling(devices, each, alone, plain[0] / plain[1]) / SLACK


@pytest.mark.parametrize(("network", "parallel"), [*product(QUICK, PARALLEL)])
def test_parts_of_a_step(network: str, parallel: Parallel) -> None:
    for node in (DC_DLA, HC_DLA, MCDLA_B, DC_DLA_ORACLE):
        one = step_times(node, network, parallel)
        assert sum(one.exposed_s.values()) == pytest.approx(one.time_s)
        assert max(one.compute_s, one.synchronisation_s) <= one.time_s * SLACK
        assert one.copy_s <= 2 * one.time_s * SLACK  # two streams
        assert (one.copy_s > 0) == (node.overlay == "all")
        assert (one.host_bytes > 0) == (node in (DC_DLA, HC_DLA))
    dc, hc = step_times(DC_DLA, network, parallel), step_times(HC_DLA, network, parallel)
    assert dc.host_bytes == hc.host_bytes
    assert dc.compute_s == hc.compute_s
    ratio = wiring.to_memory(DC_DLA) / wiring.to_memory(HC_DLA)
    assert 0.9 * ratio < hc.copy_s / dc.copy_s < 1.1 * ratio  # bytes, and latencies of links or PCIe
    assert dc.synchronisation_s < hc.synchronisation_s <= 2 * dc.synchronisation_s * SLACK


@pytest.mark.parametrize(
    "network", [pytest.param(network, marks=pytest.mark.slow if network == "gru" else ()) for network in measuring.RNNS]
)
def test_model_parallel_recurrent_layers_synchronise_longer(network: str) -> None:
    """Fig. 11 and Sec. V-A: model-parallel training synchronises more often, and more, than data-parallel; not if dW is reduced at
    every time step."""
    data, model = (step_times(DC_DLA, network, parallel).synchronisation_s for parallel in PARALLEL)
    assert model > data
    if network != "gru":  # the same, and long
        assert step_times(replace(DC_DLA, reduce="every_call"), network, "data").synchronisation_s > model


def test_a_run_is_that_of_the_command_line() -> None:
    found, result = step_times(MCDLA_B, "lstm-1", "model"), runs.run("lstm-1", "mcdla-b", batch=512, parallel="model")
    assert found.time_s == result.time_s


# ---- what the paper excludes
@given(st.lists(st.floats(1.01, 50), min_size=2, max_size=16))
def test_harmonic_means_keep_the_bounds(speedups: list[float]) -> None:
    mean = printed.harmonic(speedups)
    assert printed.harmonic(map(printed.least_of_hc, speedups)) == pytest.approx(printed.least_of_hc(mean))
    assert printed.harmonic(map(printed.least_gain, speedups)) == pytest.approx(printed.least_gain(mean))


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=9), st.floats(0.01, 10))
def test_the_largest_of_lines_is_convex(lines: list[tuple[float, float]], cost: float) -> None:
    """A step as paths of a fixed part and bytes: halving the cost of a byte gains at least what `least_gain` says."""

    def time(price: float) -> float:
        return max(fixed + price * size for fixed, size in lines) + 1e-3

    assert time(cost) / time(cost / 2) >= printed.least_gain(time(cost) / time(0)) * (1 - 1e-9)


def test_the_printed_figures_exclude_each_other() -> None:
    stated = printed.stated
    assert printed.harmonic((stated("speedup.data") + 0.05, stated("speedup.model") + 0.05)) < stated("speedup") - 0.05
    assert stated("speedup") == pytest.approx((stated("speedup.data") + stated("speedup.model")) / 2)
    assert 1 + (stated("hc.data") + 0.5) / 100 < printed.least_of_hc(stated("speedup.data") - 0.05)
    assert 1 + stated("hc.model") / 100 > printed.least_of_hc(stated("speedup.model"))  # not excluded
    lowest = printed.harmonic((stated("speedup.data") - 0.05, stated("speedup.model") - 0.05))
    assert 1 + (stated("pcie4.dc_gain") + 0.5) / 100 < printed.least_gain(lowest)
    for devices in (4, 8):
        one = printed.scaled(devices)
        assert one.printed + 0.05 < one.least
        each = printed.implied_by_cut((stated("hc.virtualisation_latency_cut") + 0.5) / 100)
        assert one.most < each
        assert one.without < stated(f"scaling.dc_no_virtualisation.{devices}")
        for share, excluded in ((0.999, False), (1.001, True)):  # "close to" n must mean at least this much
            least = printed.least_scaling(devices, each, without=share * one.without)
            assert (least > one.printed + 0.05) == excluded
    assert 100 * printed.least_star_loss((stated("hc.cpu_bandwidth") - 0.5) / 100) > stated("star_loss.max") + 0.5
    third = printed.hops_share(stated("hc.sync_increase") / 100, 1 / 3)
    assert 1 + stated("hc.data") / 100 > stated("speedup.data") / 3  # one ring of three links would not exclude it,
    assert third + 3 * (1 - third) == pytest.approx(1 + stated("hc.sync_increase") / 100)  # but it would need so many hops
    assert round(power.increase(power.LARGE)) == 32


@given(st.floats(0.05, 0.95), st.integers(2, 64), st.floats(1e9, 20e9))
def test_both_sides_of_the_scaling_bound_agree(share: float, devices: int, alone: float) -> None:
    speedup = printed.least_scaling(devices, share * alone, alone)
    assert printed.most_each(devices, speedup, alone) == pytest.approx(share * alone)


@pytest.mark.parametrize(
    ("claim", "proof", "words"),
    [
        ("speedup", printed.proof_of_mean, ("2.625", "arithmetic")),
        ("star_loss.max", printed.proof_of_star, ("92 %", "1.37 times", "27 %, not 24")),
        (
            "hc.data",
            lambda: printed.proof_of_hc() + printed.details_of_hc(),
            ("1.75x", "+75 %", "1.05", "1.17x", "55 %", "1.55 times"),
        ),
        ("pcie4.dc_gain", lambda: printed.proof_of_gen4() + printed.details_of_gen4(), ("55.6 %", "35.5 %", "44.8 %", "is 38 %")),
        (
            "scaling.dc.4",
            lambda: printed.proof_of_scaling(4) + printed.details_of_scaling(4),
            ("9.0 GB/s", "8.03", "1.42x", "3.52"),
        ),
        (
            "scaling.dc.8",
            lambda: printed.proof_of_scaling(8) + printed.details_of_scaling(8),
            ("9.0 GB/s", "8.25", "2.83x", "7.39"),
        ),
    ],
)
def test_proofs_print_their_numbers(claim: str, proof: object, words: tuple[str, ...]) -> None:
    assert callable(proof)
    for word in words:
        assert word in proof(), claim


# ---- what was searched
def test_all_readings_are_stored_and_the_ledgers_is_that_of_the_presets() -> None:
    names = [one.name for one in readings.readings()]
    assert [*readings.stored()] == names
    assert len(names) == 64
    for plain in (DC_DLA, HC_DLA, MCDLA_S, MCDLA_L, MCDLA_B):
        for parallel in PARALLEL:
            assert readings.LEDGER.node(plain, parallel) == plain
    assert readings.search().readings == 64


def test_a_readings_figures_are_those_of_the_ledger_and_change_with_it() -> None:
    found = readings.results(readings.LEDGER, QUICK)
    over = [performance.harmonic(measuring.speedups(MCDLA_B, DC_DLA, one, QUICK).values()) for one in PARALLEL]
    assert [found["mcdla.speedup.data"], found["mcdla.speedup.model"]] == over
    slow = readings.results(readings.LEDGER._replace(pcie_gb_per_s=12), QUICK)
    assert slow["mcdla.speedup.data"] > found["mcdla.speedup.data"]
    assert slow["mcdla.star_loss"] == found["mcdla.star_loss"]  # no PCIe in either


# ---- wires, power, presets
def test_hops_follow_from_the_wires() -> None:
    assert wiring.hops(wiring.STAR) == [8, 8, 24]
    assert wiring.hops(MCDLA_S) == [8, 12, 20]
    assert wiring.hops(MCDLA_B) == [16, 16, 16]
    assert wiring.hops(DC_DLA) == [8, 8, 8]


def test_what_a_device_has_to_its_memory() -> None:
    found = {name: wiring.to_memory(node) / 1e9 for name, node in DESIGNS.items() if node.overlay != "off"}
    assert found == {"dc-dla": 8, "hc-dla": 75, "mcdla-s": 50, "mcdla-l": 75, "mcdla-b": 150}
    assert wiring.to_memory(MCDLA_L) * 2 == wiring.to_memory(MCDLA_B)
    assert wiring.to_memory(scaling.alone("dc-dla")) == DC_DLA.pcie_bytes_per_s


@pytest.mark.parametrize("kind", wiring.KINDS)
@pytest.mark.parametrize("pipelined", [True, False])
def test_memory_nodes_in_a_ring_cost_little(kind: str, pipelined: bool) -> None:
    takes_part, forwards = wiring.READINGS
    large = wiring.doubled(kind, forwards, pipelined=pipelined)
    assert 1 < large < 1.05
    assert wiring.doubled(kind, forwards, 10_000, pipelined=pipelined) > large  # worse for small messages
    if pipelined:
        assert 1 < wiring.doubled(kind, takes_part) < 1.075


def test_more_nodes_never_take_less_time() -> None:
    for kind, reading in product(wiring.KINDS, wiring.READINGS):
        found = [*wiring.by_nodes(kind, reading).values()]
        assert found == sorted(found)
        assert len(found) == (15 if reading == wiring.READINGS[0] else 7)


def test_table_iv_within_a_per_cent() -> None:
    for node, watts, density in zip(power.NODES.values(), power.PRINTED_W, power.PRINTED_GB_PER_W, strict=True):
        assert node.power_w == pytest.approx(watts, rel=0.01)
        assert node.gb_per_w == pytest.approx(density, abs=0.05)
    assert power.per_watt(2.8, power.LARGE) == pytest.approx(2.1, abs=0.05)
    assert power.per_watt(2.8, power.LEAN) == pytest.approx(2.6, abs=0.05)


@pytest.mark.parametrize(("module", "name"), [(sensitivity, "TPU_V2"), (sensitivity, "DGX_2"), (generations, "GENERATIONS")])
def test_presets_name_their_sources(module: object, name: str) -> None:
    from inspect import getsource

    found = [*literals_of(getsource(module), name)]  # type: ignore[arg-type]
    for literal in found:
        assert literal.source or not literal.numeric, literal
    assert getattr(module, name)


def test_generations_get_faster() -> None:
    peaks = [one.flops for one in generations.GENERATIONS]
    assert peaks == sorted(peaks)
    assert len(peaks) == 5
    node = generations.node(generations.GENERATIONS[3], paged=True)
    assert node.device.peaks.macs_per_s == pytest.approx(125e12)  # type: ignore[attr-defined]
    times = [*generations.times("alexnet", paged=False).values()]
    assert times == sorted(times, reverse=True)
    over = [*generations.overheads("alexnet").values()]
    assert all(more >= 0 for more in over)
    assert over[-1] > over[0]


def test_hosts_of_other_sockets_and_splits() -> None:
    """A wider socket never takes longer; five links to the host leave no ring, and are not among the splits."""
    designs = sensitivity.host_designs()
    xeon, power9, *splits = (step_times(node, "alexnet", "data").time_s for node in designs.values())
    assert xeon >= power9 >= splits[2] == step_times(HC_DLA, "alexnet", "data").time_s
    assert [node.host_links for node in designs.values() if isinstance(node, HostCentric)] == [3, 3, 1, 2, 3, 4]


def test_nodes_like_dgx_2() -> None:
    memory, host = sensitivity.switched()
    assert memory.devices == host.devices == 16
    assert pytest.approx(2.4e12) == 16 * 6 * 25e9
    assert wiring.to_memory(host) == wiring.to_memory(DC_DLA) / 2
    assert wiring.to_memory(memory) == wiring.to_memory(MCDLA_B)


# ---- experiments
copies = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=6)  # pause, length in slots


@given(copies, copies, st.floats(1, 2))
def test_the_largest_rate_is_that_of_a_slot(out: list[tuple[int, int]], back: list[tuple[int, int]], more: float) -> None:
    """Copies on two streams, slot by slot: 50 bytes for one that is alone, `more` times as many for two together."""
    streams: list[list[range]] = []
    for pieces in (out, back):
        now, spans = 0, []
        for pause, length in pieces:
            spans.append(range(now + pause, now + pause + length))
            now += pause + length
        streams.append(spans)
    busy = [{slot for span in spans for slot in span} for spans in streams]
    both = busy[0] & busy[1]
    found = [(span.start, span.stop, sum(25 * more if slot in both else 50.0 for slot in span)) for one in streams for span in one]
    starts, ends, sizes = (np.array(column, dtype=float) for column in zip(*found, strict=True))
    largest = 50 * more if both else 50.0
    assert measuring.largest_rate(starts, ends, sizes, 50.0) == pytest.approx(largest)


def test_every_claim_has_its_experiment() -> None:
    assert set(bench.experiments("mcdla")) == {claim.id for claim in ledger.select("mcdla")}


def test_figures_have_the_names_that_claims_give_them() -> None:
    drawn = {*bench.figures("mcdla"), "Fig. 10", "Fig. 5", "Fig. 8", "Table II", "Table III"}
    for claim in ledger.select("mcdla"):
        if claim.use != "context" and "Fig." in claim.where:
            assert any(ledger.names_figure(claim, name) for name in drawn), claim


@pytest.mark.parametrize("name", ["Fig. 7", "Fig. 9", "Table IV"])
def test_drawings_without_runs(name: str) -> None:
    figure = bench.figures("mcdla")[name]()
    assert figure.data
    assert figure.layout.meta["description"]


def made_up(time_s: float, compute: float = 1.0, synchronisation: float = 1.0, copy: float = 1.0) -> StepTimes:
    alone = {"compute": compute, "synchronisation": synchronisation, "copy": copy}
    return StepTimes(time_s=time_s, alone_s=alone, exposed_s=alone, host_bytes=int(3e11), host_peak=1.5e11, memory_bytes=1)


def test_figures_are_those_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"dc-dla": 6.0, "hc-dla": 4.0, "mcdla-s": 3.0, "mcdla-l": 2.5, "mcdla-b": 2.0, "dc-dla-oracle": 1.0}
    named = {(type(node), getattr(node, "shape", ""), node.placement, node.overlay): name for name, node in DESIGNS.items()}

    def fake(node: Node, network: str, parallel: str, batch: int = 512) -> StepTimes:
        name = named[type(node), getattr(node, "shape", ""), node.placement, node.overlay]
        slower = 2.0 if parallel == "model" and name == "dc-dla" else 1.0
        copy = {"dc-dla": 8.0, "hc-dla": 2.0}.get(name, 0.5)
        if node == performance.FREE_COPIES:
            return made_up(1.6)
        return made_up(times[name] * slower, copy=copy, synchronisation=times[name] / 6)

    for module in (measuring, performance, breakdown):
        monkeypatch.setattr(module, "step_times", fake)
        if hasattr(module, "prefetch"):
            monkeypatch.setattr(module, "prefetch", lambda wanted: None)
    assert performance.EXPERIMENTS["mcdla.speedup.data"]().value == pytest.approx(3.0)
    assert performance.EXPERIMENTS["mcdla.speedup.model"]().value == pytest.approx(6.0)
    assert performance.speedup() == pytest.approx(4.5)  # half of the sum
    assert performance.EXPERIMENTS["mcdla.hc.data"]().value == pytest.approx(50.0)
    assert performance.EXPERIMENTS["mcdla.of_oracle"]().value == pytest.approx(80.0)
    assert "50.0 %" in performance.EXPERIMENTS["mcdla.of_oracle"]().note  # of the other oracle
    assert performance.EXPERIMENTS["mcdla.star_loss"]().value == pytest.approx(100 / 3)
    assert performance.EXPERIMENTS["mcdla.local_of_bwaware"]().value == pytest.approx(80.0)
    assert breakdown.EXPERIMENTS["mcdla.hc.virtualisation_latency_cut"]().value == pytest.approx(75.0)
    assert breakdown.EXPERIMENTS["mcdla.dc.virtualisation_bound"]().value == 16
    assert breakdown.EXPERIMENTS["mcdla.hc.cpu_bandwidth"]().value == pytest.approx(100 * 3e11 / 4 / 600e9)
    assert breakdown.EXPERIMENTS["mcdla.hc.cpu_bandwidth.max"]().value == pytest.approx(50.0)
    assert power.EXPERIMENTS["mcdla.perf_per_watt.low"]().value == pytest.approx(4.5 / 1.3175)
    for parallel in PARALLEL:
        highest = [sum(breakdown.stacks(parallel)[name]["gru", design] for name in breakdown.CLASSES) for design in DESIGNS]
        assert max(highest) == pytest.approx(1.0)


def test_each_alternative_changes_one_thing() -> None:
    others = [*assumptions.alternatives()]
    wanted = """pcie_bytes_per_s devices_per_switch directions split contention reduce stored exchange recompute window bucket_bytes
        message_bytes page_bytes link_latency_s device.precision"""
    assert {*wanted.split()} <= {other.name for other in others}
    machines = {assumptions.nodes((other,)) for other in others}
    assert len(machines) == len(others)
    assert (DC_DLA, MCDLA_B) not in machines
    assert not assumptions.concerns(next(other for other in others if other.name == "stored"), "data")
    assert not assumptions.concerns(next(other for other in others if other.name == "reduce"), "model")
    assert assumptions.concerns(next(other for other in others if other.name == "reduce"), "data")


def test_worths_come_with_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(node: Node, network: str, parallel: str, batch: int = 512) -> StepTimes:
        return made_up(6.0 / getattr(node, "pcie_bytes_per_s", 16e9) * 16e9 if node.overlay == "all" else 1.0)

    monkeypatch.setattr(assumptions, "step_times", fake)
    monkeypatch.setattr(assumptions, "prefetch", lambda wanted: None)
    found = run_study(assumptions.sensitivity_study(QUICK, ("assumption",)), paired=0)
    assert found[0].name.endswith("pcie_bytes_per_s")
    assert found[0].before == 1.0
    assert found[0].alternative == "10.6 GB/s"
    assert found[0].after == pytest.approx(16 / 10.6)


def test_runs_ahead_are_the_runs_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[measuring.Job, StepTimes] = {}

    class Inline:
        def map(self, function: object, groups: list[object]) -> object:
            return map(function, groups)  # type: ignore[call-overload]

    monkeypatch.setattr(measuring, "_cache", lambda: kept)
    monkeypatch.setattr(measuring, "workers", Inline)
    measuring.prefetch(measuring.matrix((DC_DLA, MCDLA_B), ("lstm-1", "alexnet"), ("data",), (64,)))
    assert len(kept) == 4
    before = dict(kept)
    assert step_times(MCDLA_B, "alexnet", "data", 64) == measuring.run_job(job(MCDLA_B, "alexnet", "data", 64))
    assert kept == before
