"""IGO's experiments: machines, runs, selections and bounds on small cases; all rows and figures are in test_igo_whole.py."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import machines, runs
from trainyard.errors import BadInput
from trainyard.ir import DTYPE_BYTES, MatMul
from trainyard.mapping.gradient_order.partition import ONE_CORE_SCHEMES, SCHEMES
from trainyard.mapping.gradient_order.scratchpad import Pair, traffic
from trainyard.papers import bench, ledger, processes
from trainyard.papers.igo import (
    assumptions,
    baselines,
    beyond,
    gpu,
    longest,
    measuring,
    partitioning,
    performance,
    plots,
    sweeps,
)  # fmt: skip
from trainyard.papers.igo.baselines import CASES, LARGE, SMALL, Case, height, tall_tile, text
from trainyard.papers.igo.measuring import FUSED, LayerCost, StepCost, limits, reduction, step_cost
from trainyard.papers.igo.networks import layers_of, step
from trainyard.sensitivity import run_study

QUICK = ("ncf", "bert")
"""Two small networks, one of GEMMs with attention."""


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "workers", lambda: None)


@pytest.mark.parametrize("case", CASES.values())
def test_the_tall_tile_is_the_tallest_that_a_fused_step_has_room_for(case: Case) -> None:
    machine = case.machine(order="dx_major")
    high, room = height(machine), machine.supply.resident_bytes
    big = MatMul(10_000, 10_000, 10_000)

    def five(times: int) -> float:
        m, n, k = tall_tile(machine, times)
        pair = Pair.dense(MatMul(m, n, k), DTYPE_BYTES["fp32"])
        return sum(pair.resident)

    assert five(high) <= room < five(2 * high)
    assert Pair.dense(big, 4).needed(tall_tile(machine, high)) <= room
    assert machine.tiling == tall_tile(machine, high)


def test_machines_can_be_typed_on_the_command_line() -> None:
    for case in (SMALL, LARGE, Case(cores=4), Case(bandwidth=0.25)):
        for tile in baselines.TILES:
            machine = case.machine(tile, order="paper", partition="k")
            assert machines.machine(text(machine)) == machine


def test_scratchpad_bandwidth_and_batch_grow_with_the_cores() -> None:
    one, four = LARGE.machine(), Case(cores=4).machine()
    assert (four.scratchpad_bytes, four.dram_bytes_per_s) == (4 * one.scratchpad_bytes, 4 * one.dram_bytes_per_s)
    assert four.tiling == one.tiling
    assert measuring.batch(Case(cores=4)) == 4 * measuring.batch(LARGE) == 32
    assert Case(bandwidth=0.5).machine().dram_bytes_per_s == one.dram_bytes_per_s / 2
    assert Case(changes=(("array.pipelined", True),)).machine().array.pipelined  # type: ignore[attr-defined]


@pytest.mark.parametrize("tile", baselines.TILES)
@pytest.mark.parametrize("network", QUICK)
def test_a_run_is_that_of_the_command_line(network: str, tile: baselines.Tile) -> None:
    machine = SMALL.machine(tile, order="interleaved")
    found, result = step_cost(SMALL, network, tile, order="interleaved"), runs.run(step(network, "small"), text(machine))
    assert found.seconds == pytest.approx(result.time_s, rel=1e-6)
    assert set(found.layers) == {(layer.path, layer.call) for layer in layers_of(network, "small")}
    forward = sum(spent.forward for spent in found.layers.values())
    backward = sum(spent.backward for spent in found.layers.values())
    assert forward + backward <= found.cycles  # the rest is attention
    assert found.backward_share == pytest.approx(backward / found.cycles)
    if network == "ncf":
        assert forward + backward == found.cycles


def made_up(*backward: int, rest: int = 100) -> StepCost:
    layers = {
        (f"l{number}", 0): LayerCost(forward=10, backward=cycles, compute=1, forward_bytes=1, moved={("dY", "read"): cycles})
        for number, cycles in enumerate(backward)
    }  # fmt: skip
    return StepCost(cycles=rest + sum(backward), clock_hz=1e9, layers=layers)


def test_the_ideal_order_takes_the_fastest_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    each = dict(zip(FUSED, (made_up(5, 90, 7), made_up(50, 9, 70), made_up(6, 10, 8)), strict=True))
    monkeypatch.setattr(measuring, "step_cost", lambda case, network, tile="tall", **order: each[order["order"]])
    assert measuring.ideal_cycles(SMALL, "any") == 100 + 5 + 9 + 7


def test_reductions_are_against_the_same_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = {("tall", ""): 400, ("searched", ""): 200, ("tall", "paper"): 300, ("searched", "paper"): 190}

    def fake(case: Case, network: str, tile: str = "tall", order: str = "") -> StepCost:
        return made_up(rest=cycles[tile, order])

    monkeypatch.setattr(measuring, "step_cost", fake)
    assert set(measuring.reductions(LARGE, order="paper").values()) == {25.0}
    assert {round(value, 9) for value in measuring.reductions(LARGE, "searched", order="paper").values()} == {5.0}
    assert set(measuring.faster(LARGE).values()) == {2.0}


@pytest.mark.parametrize("network", QUICK)
def test_no_order_or_partition_passes_the_limit(network: str) -> None:
    before = step_cost(SMALL, network).cycles
    limit = limits(SMALL)[network]
    for order in (*FUSED, "cost", "no_second_dy"):
        for partition in ("none", "m", "n", "k"):
            after = step_cost(SMALL, network, order=order, partition=partition).cycles
            assert reduction(before, after) <= limit + 1e-9 or order == "no_second_dy"
    with pytest.raises(BadInput, match="one core"):
        limits(Case(cores=2))


def test_the_classifiers_time_is_that_of_its_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(SMALL, parts=3)  # a case that no experiment has
    monkeypatch.setattr(partitioning, "ABBREVIATIONS", QUICK)
    found, rows = partitioning.chosen.__wrapped__(case), partitioning.table(case)
    expected = partitioning.evaluation(case).expected_cycles
    assert len(rows) == len(expected) == sum(layer.paired for network in QUICK for layer in layers_of(network, "small"))
    assert len(partitioning.table(case, once=True)) == 11
    for network in QUICK:
        whole = {scheme: step_cost(case, network, order="paper", partition=scheme) for scheme in ONE_CORE_SCHEMES}
        rest = whole["m"].cycles - sum(spent.backward for spent in whole["m"].layers.values())
        cheapest = sum(min(one.layers[key].backward for one in whole.values()) for key in whole["m"].layers)
        assert found.ideal[network] == rest + cheapest  # layer by layer, equal ones too
        likely = {layer.name: cycles for (layer, _), cycles in zip(rows, expected, strict=True)}
        more = sum(likely[layer.name] - min(c.cycles.values()) for layer, c in rows if layer.network == network)
        assert found.knn[network] == pytest.approx(found.ideal[network] + more)
        assert found.ideal[network] <= found.knn[network] <= max(one.cycles for one in whole.values())
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert {network: partitioning.possible(replace(LARGE, cores=cores)) for network, cores in (("one", 1), ("two", 2))} == {
        "one": ONE_CORE_SCHEMES, "two": SCHEMES,
    }  # fmt: skip


def test_a_layer_that_a_cut_makes_slower_stays_whole_on_one_core() -> None:
    """Depthwise convolutions of mobilenet gain nothing from a cut: the cheapest choice is never slower than no partition."""

    def backward(layer: Any, **changes: Any) -> int:
        return step_cost(LARGE, "mob", order="paper", **changes).layers[layer.path, layer.call].backward

    layers = [layer for layer in layers_of("mob") if layer.paired]
    whole = [backward(layer) for layer in layers]
    forced = [min(backward(layer, partition=scheme) for scheme in SCHEMES) for layer in layers]
    cheapest = [min(backward(layer, partition=scheme) for scheme in partitioning.possible(LARGE)) for layer in layers]
    assert cheapest == [*map(min, whole, forced)]
    assert any(cut > uncut for cut, uncut in zip(forced, whole, strict=True))


@pytest.mark.parametrize("network", QUICK)
def test_a_second_reading_saves_no_more_than_its_bytes(network: str) -> None:
    for case in CASES.values():
        assert 1.0 <= performance.potential(case, network) <= performance.bound(case, network) + 1e-9
        assert 0 < performance.second_reading(case, network) < performance.dy_share(case, network) / 100
        assert performance.dy_share(case, network) < performance.dy_share(case, network, reads=True) < 100


@given(st.lists(st.floats(0, 0.683), min_size=9, max_size=9), st.floats(0.1, 1.0), st.booleans())
def test_nothing_uneven_passes_the_most_uneven(shares: list[float], backward: float, half: bool) -> None:
    kept = 0.5 if half else 1.0
    mean = fmean(1 / (1 - backward * share * kept) for share in shares)
    assert mean <= performance.most_at(fmean(shares), backward, half) + 1e-9


def test_what_the_printed_shares_allow() -> None:
    assert performance.most_at(0.39, performance.GPU_BACKWARD) > 1.43  # not contradicted by them
    assert performance.most_at(0.39, performance.GPU_BACKWARD, half=True) < 1.43
    assert 1 / (1 - 0.39 * performance.GPU_BACKWARD) < 1.43


def test_shallow_layers_have_more_map_than_weights() -> None:
    kinds = {layer.path: longest.shallow(layer) for layer in layers_of("res")}
    assert kinds["layer1.0.conv2"]
    assert not kinds["layer4.0.conv2"]
    assert not kinds["fc"]
    assert not any(longest.shallow(layer) for layer in layers_of("ncf"))


GPU = {
    "device": "NVIDIA H200",
    "networks": [
        {"network": "res", "seconds": {"own_reference": 4.0, "reference": 2.0, "interleaving": 3.0, "rearrangement": 5.0,
                                       "partitioning": 2.0, "ours": 1.0, "cublas": 4.0}},
        {"network": "mob", "seconds": {"own_reference": 8.0, "reference": 5.0, "interleaving": 6.0, "rearrangement": 4.0,
                                       "partitioning": 4.0, "ours": 4.0, "cublas": 5.0}},
    ],
}  # fmt: skip


def test_the_gpu_is_held_against_kernels_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "measured", lambda: GPU)
    assert gpu.reductions("interleaving") == {"res": 25.0, "mob": 25.0}
    assert gpu.reductions("rearrangement") == {"res": -25.0, "mob": 50.0}
    assert gpu.reductions("partitioning", gpu.LIBRARY) == {"res": 0.0, "mob": pytest.approx(20.0)}
    rows = gpu.EXPERIMENTS
    assert set(rows) == {"igo.gpu.interleaving", "igo.gpu.rearrangement", "igo.gpu.all"}
    found = rows["igo.gpu.all"]()
    assert (found.value, found.verdict) == (50.0, "substitute")
    assert "H200" in found.note + found.details
    assert "pair and that one kernel: 10.0 %" in found.note + found.details
    assert "is kept in every layer" not in found.note + found.details
    assert "47.5 % against the pair, 35.0 % against the better of it and the one kernel" in found.note + found.details
    assert plots.figure_17().layout.meta["description"].count("50.0") == 1
    monkeypatch.setattr(gpu, "measured", dict)
    assert not gpu.seconds()


class Inline:
    """A pool that is this process."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken

    def map(self, function: Any, given_: list[Any]) -> Any:
        if self.broken:
            raise BrokenProcessPool
        return map(function, given_)


@pytest.mark.parametrize("broken", [False, True])
def test_runs_ahead_are_the_runs_themselves(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(measuring, "_cache", lambda: kept)
    monkeypatch.setattr(measuring, "workers", lambda: Inline(broken))
    monkeypatch.setattr(measuring, "ABBREVIATIONS", QUICK)
    measuring.prefetch(SMALL, "tall", {}, {"order": "paper"})
    assert len(kept) == (0 if broken else 4)
    before = dict(kept)
    found = step_cost(SMALL, "ncf", order="paper")
    assert found == measuring.run(measuring.job(SMALL, "ncf", order="paper"))
    assert broken or before == kept  # nothing was run again
    assert step_cost(SMALL, "ncf", order="paper") is found


def test_only_a_program_that_can_be_imported_gets_processes(tmp_path: Path) -> None:
    plain, guarded = tmp_path / "plain.py", tmp_path / "guarded.py"
    plain.write_text("work()")
    guarded.write_text('if __name__ == "__main__":\n    work()')
    assert [processes.guarded(str(file)) for file in (plain, guarded, tmp_path / "none.py")] == [False, True, False]
    assert processes.guarded(None)


def test_every_claim_has_its_experiment() -> None:
    wanted = {claim.id for claim in ledger.select("igo")}
    offered = set(bench.experiments("igo"))
    assert offered <= wanted
    assert wanted - offered <= {f"igo.gpu.{name}" for name in gpu.VARIANTS}  # these only where something was measured


def test_figures_have_the_names_that_claims_give_them() -> None:
    drawn = set(bench.figures("igo"))
    for claim in ledger.select("igo"):
        if claim.use != "context" and "Fig. 17" not in claim.where and "Sec." not in claim.where:
            assert any(ledger.names_figure(claim, name) for name in drawn), claim


@pytest.mark.parametrize("name", ["Fig. 7", "Figs. 8 to 10", "Table 4"])
def test_drawings_without_runs(name: str) -> None:
    figure = bench.figures("igo")[name]()
    assert figure.data
    assert figure.layout.meta["description"]


def test_figures_show_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance, "dy_share", lambda case, network, tile="tall", reads=False: 70.0 if reads else 40.0)
    figure = plots.figure_5()
    assert [list(trace.y)[-1] for trace in figure.data] == [40.0, 70.0, 39.0, 68.3]
    monkeypatch.setattr(plots, "by_knn", lambda case: {"a": 10.0 * case.cores})
    monkeypatch.setattr(plots, "by_ideal", lambda case: {"a": 12.0 * case.cores})
    monkeypatch.setattr(sweeps, "searched", lambda case: {"a": 1.0})
    bars = plots.figure_14().data
    assert [trace.y[-1] for trace in bars[:4]] == pytest.approx([0.9, 0.8, 0.6, 0.2])
    assert [trace.y[0] for trace in bars[4:]] == pytest.approx([0.855, 0.785, 0.763, 0.723])
    assert [trace.marker.color for trace in bars[4:]] == [trace.marker.color for trace in bars[:4]]  # whose figure it is


def test_the_overview_counts_what_each_step_moves() -> None:
    """Fig. 7, beside traffic counted by itself: interleaving alone moves more here, Algorithm 1's order less than the baseline."""
    found = {name: sum(trace.y[place] for trace in plots.figure_7().data) for place, name in enumerate(plots.figure_7().data[0].x)}
    plain, interleaved, rearranged = (
        traffic(MatMul(4096, 4096, 1024), tile=(2048, 128, 128), capacity_bytes=2**22, element_bytes=4, order=order).total_bytes
        / 1e6
        for order in ("sequential", "interleaved", "dx_major")
    )
    assert [*found.values()][:3] == pytest.approx([plain, interleaved, rearranged])
    assert len(found) == 6
    assert interleaved > plain > rearranged


def test_half_of_dy_never_gives_the_printed_potential() -> None:
    """The note of potential.large: with both readings equal, a step that is nothing but backward pass stays below 1.43."""
    share = performance.stated("dy_share.all_traffic") / 100
    assert performance.most_at(share, 1.0, half=True) < performance.stated("potential.large") < performance.most_at(share, 1.0)


def test_where_the_rule_keeps_every_pair_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [{**row, "seconds": {**row["seconds"], "ours": row["seconds"]["cublas"]}} for row in GPU["networks"]]  # type: ignore[dict-item, index]
    monkeypatch.setattr(gpu, "measured", lambda: {**GPU, "networks": kept})
    assert "the library's pair is kept in every layer" in gpu.interleave_rule()
    assert "0.0 % against the pair, -50.0 % against the better" in gpu.interleave_rule()


def test_walkthrough_takes_tiles() -> None:
    told, draw = bench.walkthrough("igo", "2x2x1")
    assert "dx_major" in told
    assert draw().data
    with pytest.raises(BadInput, match="3x3x2"):
        bench.walkthrough("igo", "seven")


def test_each_alternative_changes_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [*assumptions.alternatives("small")]
    assert {"precision", "im2col", "array.pipelined", "reuse", "scope", "tile height", "parts", "recommender_batch"} <= {
        other.name for other in others
    }
    changed = [other.payload(assumptions.Reading(SMALL)) for other in others]
    machines_of = [(one.case.machine(), one.case.recommender_batch, one.case.k_inner, one.ideal) for one in changed]
    assert len(set(machines_of)) == len(others)
    assert (SMALL.machine(), SMALL.recommender_batch, SMALL.k_inner, False) not in machines_of

    def fake(case: Case, more: float = 0.0) -> dict[str, Any]:
        return {"a": (20.0 if case.changes else 10.0) + (case.parts == 8) * 50 + more}

    monkeypatch.setattr(assumptions, "by_knn", fake)
    monkeypatch.setattr(assumptions, "by_ideal", lambda case: fake(case, 2.0))
    seen: list[tuple[int, int]] = []
    found = run_study(
        assumptions.sensitivity_study(kinds=("assumption",)), lambda done, total: seen.append((done, total)), paired=0
    )
    assert len(found) == 2 * len(others)
    assert seen[1:] == [(number, len(found)) for number in range(len(found))]
    assert (found[0].alternative, found[0].before, found[0].after) == (8, 10.0, 60.0)
    assert {effect.after - effect.before for effect in found} == {50.0, 10.0, 2.0, 0.0}


def test_distances_of_a_network_are_above_the_bound() -> None:
    for one in beyond.distances("small", "ncf"):
        assert one.joint >= one.least
        assert one.baseline >= one.least
    found = beyond.links("small", "ncf")
    assert found.chosen <= found.fusing <= found.every
    assert sum(found.reasons.values()) >= found.every - found.fusing


def test_a_figure_without_a_claim_is_found_on_the_whole_page() -> None:
    with pytest.raises(BadInput, match="drawn with all: trainyard reproduce igo --html"):
        ledger.select("igo", "7")
    with pytest.raises(BadInput, match="`trainyard reproduce igo` shows all"):
        ledger.select("igo", "99")


@pytest.mark.slow
@pytest.mark.parametrize("npu", CASES)
def test_the_joint_search_never_loses_beats_the_papers_rules_and_lies_below_the_bound(npu):
    for outcome in beyond.outcomes(npu).values():
        assert 0 <= outcome.joint <= outcome.bound
        assert outcome.rules < outcome.joint
