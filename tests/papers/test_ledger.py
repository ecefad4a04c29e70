from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.papers import bench, ledger, pages
from trainyard.papers.ledger import Claim, Measured, judge


def claim(value: Any, **changes: Any) -> Claim:
    given_ = {"id": "paper.topic", "unit": "x", "use": "table", "where": "Fig. 1", **changes}
    return Claim(value=value, **given_)


def test_the_shipped_claims_are_valid() -> None:
    rows = ledger.claims()
    assert len(rows) > 200
    assert ledger.papers() == ("sigma", "tensordash", "igo", "mcdla", "direct")
    assert all(isinstance(row.value, float | tuple | str) for row in rows)
    assert {row.use for row in rows} == {"headline", "table", "derived", "context"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('claim = [ { id = "a.b", value = 1, unit = "x", use = "tabel", where = "" } ]', "row 0, use"),
        ('claim = [ { id = "a.b", value = 1, unit = "x", use = "table", where = "", colour = 1 } ]', "row 0, colour"),
        ('claim = [ { id = "a.b", unit = "x", use = "table", where = "" } ]', "row 0, value"),
        ('claim = [ { id = "a.b", value = 1, unit = "x", use = "table", where = "", bound = "range" } ]', "needs two values"),
        ('claim = [ { id = "a.b", value = "much", unit = "x", use = "table", where = "" } ]', "only context may be text"),
        ('claim = [ { id = "a.b", value = 1, unit = "x", use = "table", where = "" },'
         ' { id = "a.b", value = 1, unit = "x", use = "table", where = "" } ]', "'a.b' is given twice"),
        ("claim = [", "claims: "),
    ],
)  # fmt: skip
def test_faulty_claims_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        ledger.read_claims(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (2.0, "met"), (2.1, "met"), (1.9, "met"), (2.11, "near"), (1.7, "near"), (2.31, "off"), (1.69, "off"), (0.0, "off"),
        (-2.0, "off"),
    ],
)  # fmt: skip
def test_points(ours: float, verdict: str) -> None:
    row = judge(claim(2.0), Measured(ours))
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(ours / 2)


@pytest.mark.parametrize(
    ("bound", "value", "ours", "verdict"),
    [
        ("upper", 50.0, 12.0, "met"), ("upper", 50.0, 50.0, "met"), ("upper", 50.0, 51.0, "near"), ("upper", 50.0, 60.0, "off"),
        ("lower", 50.0, 99.0, "met"), ("lower", 50.0, 49.0, "near"), ("lower", 50.0, 40.0, "off"),
        ("range", (10.0, 50.0), 10.0, "met"), ("range", (10.0, 50.0), 30.0, "met"), ("range", (10.0, 50.0), 55.0, "near"),
        ("range", (10.0, 50.0), 9.0, "near"), ("range", (10.0, 50.0), 5.0, "off"), ("range", (10.0, 50.0), (20.0, 60.0), "off"),
        ("range", (10.0, 50.0), 0.0, "off"), ("lower", 0.0, 0.0, "met"),
    ],
)  # fmt: skip
def test_bounds(bound: Any, value: Any, ours: Any, verdict: str) -> None:
    assert judge(claim(value, bound=bound), Measured(ours)).verdict == verdict


def test_the_worst_of_a_list_decides() -> None:
    row = judge(claim((100.0, 10.0)), Measured((101.0, 8.9)))
    assert (row.verdict, row.ratio) == ("near", 0.89)
    assert judge(claim((100.0, 10.0)), Measured([101.0, 30.0])).verdict == "off"
    with pytest.raises(BadInput, match="has 2 figures, 1 were measured"):
        judge(claim((100.0, 10.0)), Measured(100.0))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 4), st.floats(0.2, 5))
def test_a_list_is_as_bad_as_its_worst(values: list[float], index: int, factor: float) -> None:
    ours = list(values)
    ours[index % len(values)] *= factor
    alone = judge(claim(1.0), Measured(ours[index % len(values)] / values[index % len(values)]))
    assert judge(claim(tuple(values)), Measured(ours)).verdict == alone.verdict


def test_zero_and_nan() -> None:
    assert judge(claim(0.0), Measured(0.0)).verdict == "met"
    infinite = judge(claim(0.0), Measured(4.0))
    assert infinite.verdict == "off"
    assert infinite.as_dict()["ratio"] is None  # JSON knows no infinity
    with pytest.raises(BadInput):
        judge(claim(1.0), Measured(math.nan))


def test_overridden_verdicts_need_their_reason() -> None:
    row = judge(claim(5.0, conflict="needs 6.9x"), Measured(4.1, verdict="contradicted", proof="5 x 1.377 = 6.9 > 6"))
    assert row.verdict == "contradicted"
    assert row.note == "5 x 1.377 = 6.9 > 6"
    assert row.details == "The paper contradicts itself here: needs 6.9x."
    with pytest.raises(BadInput, match="needs its proof"):
        Measured(1.0, verdict="contradicted")
    with pytest.raises(BadInput, match="names what stands in"):
        Measured(1.0, verdict="substitute")


def test_arithmetic_is_derived_and_no_merit() -> None:
    assert judge(claim(2.0, use="derived"), Measured(2.02)).verdict == "derived"
    assert judge(claim(2.0, use="derived"), Measured(3.0)).verdict == "off"
    assert judge(claim(2.0, use="context"), Measured(3.0)).verdict == "context"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the experiments that take long; they have tests of their own."""
    from trainyard.papers import sigma

    monkeypatch.setattr(bench, "PAPERS", {"sigma": bench.PAPERS["sigma"]})
    monkeypatch.setattr(sigma, "PAPER", replace(sigma.PAPER, experiments=("baseline",)))


@pytest.mark.usefixtures("quick")
def test_walk_lists_every_claim_once() -> None:
    seen: list[tuple[int, int, str]] = []
    rows = bench.walk(on_progress=lambda done, total, name="": seen.append((done, total, name)))
    assert [row.id for row in rows] == [c.id for c in ledger.claims()]
    assert seen[0][:2] == (0, len(rows))
    assert seen[-1][:2] == (len(rows), len(rows))
    assert not any(row.failed for row in rows)
    for row in rows:
        assert (row.ours is None) == (row.verdict in ("context", "not yet"))
    assert sum(ledger.counts(rows).values()) == len(rows)


def test_a_failing_experiment_is_off_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Measured:
        raise ZeroDivisionError("no cycles")

    monkeypatch.setattr(bench, "experiments", lambda paper: {"igo.small.all": broken})
    row = next(row for row in bench.walk("igo") if row.id == "igo.small.all")
    assert (row.verdict, row.failed, row.note) == ("off", True, "error: ZeroDivisionError: no cycles")


def test_papers_that_wait_for_processes_are_walked_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment of each waits until that of the other has begun; rows are in the papers' order."""
    begun = {paper: Event() for paper in ("sigma", "igo")}

    def experiment(own: str, other: str) -> Measured:
        begun[own].set()
        assert begun[other].wait(timeout=30)
        return Measured(1.0)

    ids = {"sigma": "sigma.dense.speedup_over_tpu", "igo": "igo.small.all"}
    tables = {
        "sigma": {ids["sigma"]: partial(experiment, "sigma", "igo")},
        "igo": {ids["igo"]: partial(experiment, "igo", "sigma")},
    }
    monkeypatch.setattr(bench, "experiments", lambda paper: tables.get(paper, {}))
    monkeypatch.setattr(bench, "workers", object)
    stored: list[str] = []
    rows = bench.walk(keep=lambda claim, measured: stored.append(claim))
    assert [row.id for row in rows] == [claim.id for claim in ledger.claims()]
    assert sorted(stored) == sorted(ids.values())
    assert not any(row.failed for row in rows)


def test_an_experiment_for_no_claim_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.papers.sigma import baseline

    monkeypatch.setattr(baseline, "EXPERIMENTS", {"sigma.dense.speedup_over_tpo": lambda: Measured(1.0)})
    with pytest.raises(UnknownName, match=r"did you mean 'sigma\.dense\.speedup_over_tpu'"):
        bench.walk("sigma")


@pytest.mark.parametrize(
    ("figure", "words"), [("12", "Fig. 12"), ("12b", "Fig. 12b"), ("Fig. 12b", "Fig. 12b"), ("sec. vi-c", "Sec. VI-C")]
)
def test_figures_are_told_apart(figure: str, words: str) -> None:
    chosen = ledger.select("sigma", figure)
    assert {c.id for c in chosen} == {c.id for c in ledger.claims() if c.paper == "sigma" and words in c.where}
    assert chosen


def test_figure_1_is_not_figure_12() -> None:
    assert all("Fig. 1," in c.where or c.where == "Fig. 1" for c in ledger.select("tensordash", "1"))
    with pytest.raises(BadInput, match="no claim of sigma names '1'"):
        ledger.select("sigma", "1")


@pytest.mark.parametrize(
    ("figure", "neighbour"),
    [("12c", "Fig. 12b"), ("fig 99", "Fig. 9"), ("Sec. VI-Z", "Sec. VI-C"), ("Sec VI-C", "Sec. VI-C")],
)
def test_a_misspelt_figure_names_its_neighbour(figure: str, neighbour: str) -> None:
    with pytest.raises(BadInput, match=f"did you mean '{re.escape(neighbour)}'"):
        ledger.select("sigma", figure)
    with pytest.raises(BadInput, match="did you mean 'Table IV'"):
        ledger.select(None, "Tabel IV")
    with pytest.raises(BadInput, match=r"no claim of any paper names 'xyzzy'; `trainyard reproduce` shows all"):
        ledger.select(None, "xyzzy")


def test_one_claim_or_those_below_it_can_be_asked_for() -> None:
    assert [claim.id for claim in ledger.select("igo.small.all")] == ["igo.small.all"]
    below = [claim.id for claim in ledger.select("sigma.sparse")]
    assert below
    assert all(name.startswith("sigma.sparse.") for name in below)  # and not sigma.sparse_accelerators
    for misspelt, neighbour in (("igo.smal.all", "igo.small.all"), ("sgma.area", "sigma.area")):
        with pytest.raises(UnknownName, match=f"unknown claim '{misspelt}': did you mean '{neighbour}'"):
            ledger.select(misspelt)


def test_unknown_paper() -> None:
    with pytest.raises(UnknownName, match="did you mean 'sigma'"):
        bench.walk("sigme")


@pytest.mark.paper
@pytest.mark.usefixtures("quick")
def test_sigmas_baseline() -> None:
    rows = {row.id: row for row in bench.walk("sigma")}
    for name in ("sigma.tpu.utilisation_16_wide", "sigma.tpu.utilisation_drop_n16", "sigma.sparse.efficiency.tpu_below"):
        assert rows[name].verdict == "met", rows[name]
    dense = rows["sigma.dense.efficiency.tpu"]
    assert dense.verdict == "met"  # K along the columns, as the section has it
    assert dense.ours == pytest.approx(58.4, abs=0.1)
    for reading in ("49.2 %", "58.3 %", "67.5 %", "63.5 %"):
        assert reading in dense.details  # the other readings
    assert rows["sigma.dense.speedup_over_tpu"].verdict == "not yet"


@pytest.mark.paper
def test_the_reading_decides_how_common_low_utilisation_is() -> None:
    """Why the note of Sec. III-B's claim says what was counted: two readings lie on either side of 50 %."""
    from statistics import fmean

    from trainyard.arrays import Systolic
    from trainyard.papers.sigma import suite

    arrays = [Systolic(rows=128, columns=128, dataflow=flow) for flow in ("ws", "is")]
    best = [max(arrays, key=lambda array, op=op: array.utilisation(op)) for op in suite.SUITE]
    stationary = [suite.stationary_utilisation(array, op) for array, op in zip(best, suite.SUITE, strict=True)]
    overall = [suite.efficiency(op, suite.SQUARE) for op in suite.SUITE]
    assert fmean(overall) < 0.5 < fmean(stationary)
    assert (sum(s < 0.5 for s in stationary), sum(e < 0.5 for e in overall)) == (4, 4)


@pytest.mark.usefixtures("quick")
def test_pages(tmp_path: Path) -> None:
    rows = bench.walk()
    pages.write_markdown(rows, tmp_path / "reproduction.md")
    pages.write_html(rows, tmp_path / "reproduction.html")
    markdown, page = ((tmp_path / f"reproduction.{kind}").read_text() for kind in ("md", "html"))
    for row in rows:
        assert f"| {row.id} |" in markdown
        assert f"<td>{row.id}</td>" in page
    for paper in ledger.papers():
        assert f"## {paper}" in markdown
    table = [line for line in markdown.splitlines() if re.match(r"\| \w+\.", line)]
    assert {line.replace("\\|", "").count("|") for line in table} == {len(pages.COLUMNS) + 1}
    assert "http" not in page  # needs nothing beside it
    assert pages.summary(rows) in page
