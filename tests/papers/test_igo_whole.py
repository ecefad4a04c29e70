"""All of `trainyard reproduce igo`: every row filled, both baselines in every note, every figure drawn."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainyard.papers import bench, pages
from trainyard.papers.igo import gpu, judging, measuring, performance, reading_search
from trainyard.papers.igo.baselines import CASES, Case
from trainyard.papers.igo.measuring import limits, mean, reductions
from trainyard.papers.igo.partitioning import by_cost, by_ideal, by_knn
from trainyard.papers.ledger import Row

pytestmark = [pytest.mark.slow, pytest.mark.paper]
SECONDS = 300  # 80 on two cores with nothing else to do; tests share them


@pytest.fixture(scope="module")
def walked() -> tuple[dict[str, Row], float]:
    began = time.monotonic()
    rows = bench.walk("igo")
    return {row.id.partition(".")[2]: row for row in rows}, time.monotonic() - began


def test_every_row_is_filled(walked: tuple[dict[str, Row], float]) -> None:
    rows, seconds = walked
    for name, row in rows.items():
        if name.startswith("gpu.") and not gpu.seconds():
            continue  # nothing was measured
        assert not row.failed, row
        assert row.ours is not None, row
        assert row.verdict != "not yet"
        assert row.note or row.verdict == "context", row
    assert seconds < SECONDS


def test_a_miss_that_was_searched_is_open(walked: tuple[dict[str, Row], float]) -> None:
    """The stored search has the ledger's own numbers, else its evidence would not count."""
    rows, _ = walked
    values = reading_search.stored()["ours"]["values"]
    for name in (*values, *judging.TWINS):
        assert rows[name].ours == pytest.approx(values[judging.TWINS.get(name, name)], abs=judging.AGREES)
        assert rows[name].verdict in ("met", "near", "open"), name


def test_every_simulated_row_has_both_baselines(walked: tuple[dict[str, Row], float]) -> None:
    rows, _ = walked
    for name, row in rows.items():
        if row.claim.use != "context" and not name.startswith(("gpu", "knn")):
            assert "tall tile" in (row.note + row.details), name
            assert "searched" in (row.note + row.details).lower(), name
            assert "assumed" in (row.note + row.details).lower(), name


def test_nothing_is_met_by_construction(walked: tuple[dict[str, Row], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """No measured value is the paper's own, and other printed figures do not change it."""
    rows, _ = walked
    for row in rows.values():
        if row.claim.use != "context":
            assert row.ours != row.paper, row
    monkeypatch.setattr(performance, "stated", lambda claim: 1.0)
    for name in ("small.rearrangement_ideal", "potential.large"):
        assert bench.experiments("igo")[f"igo.{name}"]().value == rows[name].ours


def test_other_processes_find_the_same(walked: tuple[dict[str, Row], float]) -> None:
    assert walked
    for asked in (
        measuring.job(CASES["large"], "ncf", order="paper", partition="k"),
        measuring.job(CASES["small"], "bert", "searched"),
    ):
        assert measuring.run(asked) == measuring.step_cost(*asked[:3], order=asked.order, partition=asked.partition)


@pytest.mark.parametrize("case", CASES.values())
def test_selections_are_in_order(case: Case, walked: tuple[dict[str, Row], float]) -> None:
    """What is searched for is within the machine's tolerance of the fastest, so that more freedom may lose that much."""
    assert walked
    lost = 100 * case.machine("searched").tolerance
    for network, most in limits(case).items():
        best = by_cost(case)[network]
        assert by_knn(case)[network] <= by_ideal(case)[network] + 1e-9 <= best + 2e-9 <= most + 3e-9
        assert reductions(case, order="paper")[network] <= performance.ideal(case)[network] + 1e-9 <= best + 2e-9
        assert (
            -1e-9
            <= reductions(case, "searched", order="cost")[network]
            <= reductions(case, "searched", **performance.JOINT)[network] + lost
        )
    assert mean(limits(case)) < 100


def test_every_figure_is_drawn(walked: tuple[dict[str, Row], float], tmp_path: Path) -> None:
    rows, _ = walked
    page = tmp_path / "igo.html"
    pages.write_html([*rows.values()], page)
    text = page.read_text()
    for name in bench.figures("igo"):
        key = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        assert f'id="{key}"' in text
