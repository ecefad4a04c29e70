"""What a reader sees first of a paper: declarations are whole, alternatives are measured once, every form of the page has them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.papers import bench, experiment_cache, headlines, ledger, pages
from trainyard.papers.headlines import Headline, Hinge, Opening
from trainyard.papers.ledger import Claim, Measured, Row, judge

SMALL, LARGE = "igo.small.all", "igo.large.all"


class Alternative:
    """The headline under an alternative, and how often it was measured."""

    def __init__(self, value: float) -> None:
        self.value, self.runs = value, 0

    def __call__(self) -> float:
        self.runs += 1
        return self.value


def hinge(result: Alternative, assumed: str = "Tiles are tall.", otherwise: str = "With flat ones") -> Hinge:
    return Hinge(assumed=assumed, otherwise=otherwise, result=result)


def headline(*alternatives: Alternative, **changes: Any) -> Headline:
    given = {
        "system": "IGO", "titles": {SMALL: "time saved, %", LARGE: "of the large NPU, %"}, "figure": "Fig. 12",
        "shows": "time of a step", "hinges": tuple(map(hinge, alternatives)),
    }  # fmt: skip
    return Headline(**{**given, **changes})


def rows() -> list[Row]:
    """All of a paper; those of the headline with results."""
    results = {SMALL: Measured(10.25, "Note of the small one."), LARGE: Measured(14.0)}
    return [judge(one, results[one.id]) if one.id in results else bench.unmeasured(one) for one in ledger.select("igo")]


def picture() -> dict[str, Any]:
    return {"data": [], "layout": {"height": 300, "meta": {"description": "Bars of every network."}}}


def opening() -> Opening:
    by_id = {row.id: row for row in rows()}
    alternatives = (Alternative(1.0), Alternative(2.0), Alternative(3.0))
    return Opening(headline(*alternatives), (by_id[SMALL], by_id[LARGE]), (2.5, 5.7, 30.0), picture())


@pytest.mark.parametrize("paper", bench.PAPERS)
def test_every_paper_declares_its_headline_with_claims_and_figure_that_exist(paper: str) -> None:
    found = bench.headline(paper)
    assert found is not None
    assert all(claim.partition(".")[0] == paper for claim in found.titles)
    assert found.claim in bench.experiments(paper)
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / found.picture).exists()
    for one in found.hinges:
        assert one.assumed[0].isupper() or one.assumed.startswith("dX")
        assert one.otherwise[0].isupper()


def test_sigmas_alternatives_are_not_its_headline() -> None:
    """A change of the suite's defaults would make a hinge say nothing."""
    from trainyard.papers.sigma.headline import HEADLINE
    from trainyard.papers.sigma.suite import SMALL as SMALL_GEMM
    from trainyard.papers.sigma.suite import SPARSE_CASES, SUITE

    source = import_module("trainyard.papers.sigma.headline")
    few = tuple(case for case in SPARSE_CASES if case[0] in (SMALL_GEMM, SUITE[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "SPARSE_CASES", few)
        adopted = source.geometric_mean(source.speedups(few))
        assert all(one.result() != pytest.approx(adopted, rel=1e-3) for one in HEADLINE.hinges)


def test_a_headline_needs_three_sentences_and_a_claim() -> None:
    one = Alternative(1.0)
    with pytest.raises(BadInput, match="needs 3 assumptions that it hinges on, got 2"):
        headline(one, one)
    with pytest.raises(BadInput, match="names no claim"):
        headline(one, one, one, titles={})
    with pytest.raises(BadInput, match="sentence with a full stop"):
        hinge(one, assumed="tall tiles")
    with pytest.raises(BadInput, match="has no stop at its end"):
        hinge(one, otherwise="With flat ones.")


def test_a_misspelt_claim_or_figure_of_a_headline_names_its_neighbour() -> None:
    one = Alternative(1.0)
    with pytest.raises(UnknownName, match=r"did you mean 'igo\.small\.all'"):
        headlines.check(headline(one, one, one, titles={"igo.small.al": "x"}), ledger.claims(), {"Fig. 12": None})
    with pytest.raises(UnknownName, match=r"did you mean 'Fig\. 12'"):
        headlines.check(headline(one, one, one, figure="Fig 12"), ledger.claims(), {"Fig. 12": None})


def test_the_sentences_have_both_figures_the_verdict_and_every_alternative() -> None:
    first, second = headlines.headline_sentences(opening())
    assert "the paper prints 29.3" in first
    assert "here it is 10.25, which misses the printed figure. Note of the small one." in first
    assert "which meets the printed figure" in second
    told = list(headlines.hinge_sentences(opening()))
    assert told[1] == "Tiles are tall. With flat ones, the headline would be 5.7 instead of 10.25."
    assert len(told) == 3
    assert set(headlines.IN_WORDS) == set(ledger.VERDICTS)


def test_alternatives_are_measured_once_and_again_with_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.graph_objects as go

    drawn: list[str] = []

    def draw() -> go.Figure:
        drawn.append("once")
        return go.Figure(layout=picture()["layout"])

    alternatives = [Alternative(float(place)) for place in range(3)]
    monkeypatch.setattr(bench, "headline", lambda paper: headline(*alternatives))
    monkeypatch.setattr(bench, "figures", lambda paper: {"Fig. 12": draw})
    found = experiment_cache.openings(rows())
    assert [one.alternatives for one in found] == [(0.0, 1.0, 2.0)]
    assert [one.alternatives for one in experiment_cache.openings(rows())] == [(0.0, 1.0, 2.0)]
    assert ([one.runs for one in alternatives], len(drawn)) == ([1, 1, 1], 1)
    experiment_cache.openings(rows(), anew=True)
    assert ([one.runs for one in alternatives], len(drawn)) == ([2, 2, 2], 2)


def test_a_part_of_a_paper_and_a_headline_without_result_have_no_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    alternatives = [Alternative(1.0)] * 3
    monkeypatch.setattr(bench, "headline", lambda paper: headline(*alternatives))
    assert experiment_cache.openings(rows()[:-1]) == []
    without = [replace(row, ours=None) if row.id == LARGE else row for row in rows()]
    assert experiment_cache.openings(without) == []
    assert alternatives[0].runs == 0


def test_markdown_begins_with_the_headlines_and_links_a_picture_that_is_there(tmp_path: Path) -> None:
    page = tmp_path / "l.md"
    pages.write_markdown(rows(), page, [opening()])
    text = page.read_text()
    assert "| [IGO](igo.md) | time saved, % | `igo.small.all` | 29.3 | 10.25 | off |\n|  | of the large NPU, % |" in text
    assert text.index("1. Tiles are tall. With flat ones") < text.index("### All claims") < text.index(f"### {pages.CHANGED}")
    assert "![" not in text
    (tmp_path / "igo-fig-12.svg").write_text("<svg/>")
    pages.write_markdown(rows(), page, [opening()])
    assert "![Fig. 12: time of a step](igo-fig-12.svg)" in page.read_text()


def test_html_of_several_papers_embeds_their_main_figures(tmp_path: Path) -> None:
    others = [bench.unmeasured(one) for one in ledger.select("sigma")]
    pages.write_html([*others, *rows()], tmp_path / "l.html", [opening()])
    text = (tmp_path / "l.html").read_text()
    embedded = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    assert set(embedded) == {"igo-main"}
    assert 'data-figure="igo-main"' in text
    assert "<li>Tiles are tall. With flat ones, the headline would be 2.5 instead of 10.25.</li>" in text
    assert "default-src 'none'" in text
    assert 'src="http' not in text


def test_the_readmes_table_is_copied_from_the_ledgers(tmp_path: Path) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    try:
        copied = import_module("readme_headlines").with_headlines
    finally:
        sys.path.pop(0)
    pages.write_markdown(rows(), tmp_path / "l.md", [opening()])
    readme = pages.markdown_table(headlines.TABLE_HEAD, [("a", "b", "c", "d", "e", "f")])
    text = copied(f"before\n\n{readme}\nafter\n", (tmp_path / "l.md").read_text())
    assert text.startswith("before\n\n| paper |")
    assert "| [IGO](docs/igo.md) | time saved, % | `igo.small.all` |" in text
    assert text.endswith("|\n\nafter\n")
    with pytest.raises(SystemExit, match="one table of headlines each"):
        copied("no table", "none")


def claim() -> Claim:
    return next(one for one in ledger.claims() if one.id == SMALL)


def test_the_second_column_stands_in_the_sentence() -> None:
    row = judge(claim(), Measured(10.0, "Stand-in data.", verdict="substitute", printed=28.0))
    (told,) = headlines.headline_sentences(opening()._replace(rows=(row,)))
    assert "which cannot be had. From the inputs that the paper prints, it is 28. Stand-in data." in told
