"""SIGMA's GPU side (Figs. 2, 3): experiments, and what they rest on."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, geometric_mean

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.machines.presets.gpus import H200, V100
from trainyard.papers import ledger
from trainyard.papers.sigma import gpu
from trainyard.papers.sigma.suite import SUITE
from trainyard.workloads import zoo

CLAIMS = {claim.id: claim for claim in ledger.claims()}


@pytest.mark.paper
@pytest.mark.parametrize("name", gpu.EXPERIMENTS)
def test_every_experiment_answers_its_claim(name: str) -> None:
    row = ledger.judge(CLAIMS[name], gpu.EXPERIMENTS[name]())
    assert isinstance(row.ours, float)
    assert 0 < row.ours < math.inf
    assert "H200" in row.note + row.details
    assert (row.verdict == "substitute") == (name != "sigma.gpu.matmul_share"), "what stands in was measured on an H200"


@pytest.mark.paper
def test_the_model_that_is_farther_from_the_paper_is_judged() -> None:
    shares = [gpu.share(gpu.breakdown(model, batch, gpu.board("fp16"))) for model, batch in gpu.LARGE]
    found = gpu._matmul_share()
    assert found.value == max(shares, key=lambda value: abs(value - 70))
    for value in shares:
        assert f"{value:.1f} %" in found.note + found.details


@pytest.mark.paper
def test_no_claim_of_these_figures_is_left_out() -> None:
    wanted = {claim.id for claim in ledger.select("sigma") if claim.id.startswith("sigma.gpu.")}
    assert wanted == set(gpu.EXPERIMENTS)
    for name in gpu.FIGURES:
        assert any(ledger.names_figure(CLAIMS[claim], name) for claim in wanted), name


@pytest.mark.paper
def test_experiments_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board of faster products gives other figures and other verdicts."""
    before = gpu._regular_efficiency().value
    monkeypatch.setattr(gpu, "V100", replace(V100, tensor_fraction=1.0))
    regular = gpu._regular_efficiency()
    monkeypatch.setattr(gpu, "V100", replace(V100, half_macs=4 * V100.half_macs))
    shares = gpu._matmul_share()
    assert ledger.judge(CLAIMS["sigma.gpu.matmul_share"], shares).verdict == "off"
    assert shares.value < 70  # type: ignore[operator]
    assert before < 76 < regular.value  # type: ignore[operator]


@pytest.mark.oracle
@pytest.mark.parametrize("op", [gpu.REGULAR, *SUITE[:2]])
def test_losses_are_ratios_of_efficiencies(op: MatMul) -> None:
    for sparsity in gpu.SPARSITIES:
        dense, sparse = gpu.timed(op), gpu.timed(op, "fp32", sparsity)
        assert sparse["nonzero"] == pytest.approx(1 - sparsity, abs=0.02)
        assert gpu.loss(op, sparsity) == pytest.approx(gpu.efficiency(op) / gpu.efficiency(op, "fp32", sparsity), rel=1e-4)
        assert gpu.loss(op, sparsity, useful=False) == pytest.approx(sparse["seconds"] / dense["seconds"])
    assert len(gpu.losses()) == 2 * len(SUITE)
    assert geometric_mean(gpu.losses()) <= fmean(gpu.losses())


@pytest.mark.unit
def test_tiles_that_fill_the_board_are_more_efficient() -> None:
    """80 multiprocessors: 2048 x 2048 is 128 tiles of 256 x 128 and leaves some idle in the second wave; 2560 x 2048 is 160."""
    ragged, full = (gpu.predicted(V100, MatMul(rows, 2048, 2048), "fp16") for rows in (2048, 2560))
    assert ragged < full < V100.tensor_fraction
    for precision in ("fp32", "fp16"):
        for op in (gpu.REGULAR, *SUITE):
            assert 0 < gpu.predicted(V100, op, precision) < 1  # type: ignore[arg-type]


@pytest.mark.unit
def test_predicted_and_measured_efficiency_agree_on_the_board_that_was_measured() -> None:
    """Large products within 15 %; small ones, which starts bound, are left out."""
    large = [op for op in (gpu.REGULAR, *SUITE) if op.macs > 5e9 and op.N > 100]
    assert len(large) == 2
    for op in large:
        for precision in ("fp32", "fp16"):
            assert gpu.predicted(H200, op, precision) == pytest.approx(gpu.efficiency(op, precision), rel=0.15)  # type: ignore[arg-type]


@pytest.mark.unit
def test_kinds_of_ops_add_up_to_the_step() -> None:
    board = gpu.board()
    step = zoo.load("transformer-324m", batch=1)
    spent = gpu.breakdown("transformer-324m", 1, board)
    assert sum(spent.values()) == pytest.approx(sum(board.cost(step, work).cycles for work in board.works(step)) / board.clock_hz)
    row = gpu.measured()["breakdowns"][0]
    assert sum(gpu.breakdown_measured(row["model"], row["batch"], row["precision"]).values()) == pytest.approx(
        sum(row["device_s"].values())
    )
    assert gpu.share({"products": 3.0, "optimizer": 1.0, "all else": 0.0}) == 75.0


@pytest.mark.unit
def test_what_was_not_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"gpu\.json"):
        gpu.timed(MatMul(3, 3, 3))
    with pytest.raises(UnknownName, match="bert"):
        gpu.breakdown_measured("bert-large", 1, "fp32")
    monkeypatch.setattr(gpu, "H200", replace(H200, sms=108))
    gpu.measured.cache_clear()
    with pytest.raises(BadInput, match="not of an H200"):
        gpu.measured()
    gpu.measured.cache_clear()


@pytest.mark.unit
@pytest.mark.parametrize("name", gpu.FIGURES)
def test_figures_draw_what_was_measured(name: str) -> None:
    figure = gpu.FIGURES[name]()
    assert name in figure.layout.title.text
    assert figure.layout.meta["description"]
    values = [value for trace in figure.data for value in trace.y]
    assert values
    assert all(math.isfinite(value) and value >= 0 for value in values)
    if name == "Fig. 2":
        total: dict[tuple[str, str], float] = {}
        for trace in figure.data:
            for board, step, value in zip(*trace.x, trace.y, strict=True) if trace.type == "bar" else ():
                total[board, step] = total.get((board, step), 0.0) + value
        assert all(value == pytest.approx(100) for value in total.values())
