"""The second column of the ledger, and the page with figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainyard.errors import BadInput
from trainyard.papers import bench, figures, ledger, pages, tables
from trainyard.papers.ledger import Claim, Measured, Row, judge
from trainyard.papers.tensordash.plots import table_4


def claim(name: str = "tensordash.a", where: str = "Fig. 12", **changes: object) -> Claim:
    return Claim(**{"id": name, "value": 2.0, "unit": "x", "use": "table", "where": where, **changes})  # type: ignore[arg-type]


def rows() -> list[Row]:
    return [
        judge(claim(), Measured(1.9, note="close", printed=1.95)),
        judge(claim("tensordash.b", "Table IV"), Measured(1.0, note="stand-in <b>", verdict="substitute")),
        judge(claim("tensordash.c", "Sec. IV"), Measured(3.0, note="far")),
    ]


# ---- the second column


def test_printed_inputs_stand_beside_and_decide_nothing() -> None:
    row = judge(claim(), Measured(1.9, printed=5.0))
    assert (row.verdict, row.ours, row.printed) == ("met", 1.9, 5.0)
    assert row.as_dict()["printed"] == 5.0
    assert judge(claim(), Measured(1.9)).as_dict()["printed"] is None
    listed = judge(claim(value=(1.0, 2.0)), Measured((1.0, 2.0), printed=[1.5, 2.5]))
    assert listed.printed == (1.5, 2.5)
    assert listed.as_dict()["printed"] == [1.5, 2.5]
    with pytest.raises(BadInput, match="has 1 figures, 2 were measured"):
        judge(claim(), Measured(1.9, printed=(1.0, 2.0)))


def test_the_column_is_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [judge(claim("sigma.dense.efficiency.tpu", "Sec. VI-C"), Measured(1.9, printed=1.95))]
    pages.write_markdown(some, tmp_path / "l.md")
    pages.write_html(some, tmp_path / "l.html")
    assert "| 1.9 | 1.95 |" in (tmp_path / "l.md").read_text()
    assert "<td>1.9</td><td>1.95</td>" in (tmp_path / "l.html").read_text()
    tables.show_rows(some)
    assert "from printed" in capsys.readouterr().out
    tables.show_rows([judge(claim(), Measured(1.9))])
    assert "from printed" not in capsys.readouterr().out  # an empty column is left out


# ---- which figures


def test_figures_are_those_of_one_paper_that_the_rows_name() -> None:
    whole = [judge(c, Measured(c.value)) for c in ledger.select("tensordash") if not isinstance(c.value, str)]  # type: ignore[arg-type]
    assert list(bench.figures_of(whole)) == list(bench.figures("tensordash"))
    only = [row for row in whole if ledger.names_figure(row.claim, "Fig. 12")]
    assert list(bench.figures_of(only)) == ["Fig. 12"]  # depth.4 names Fig. 8 as well, the others do not
    assert list(bench.figures_of([row for row in whole if "Table IV" in row.claim.where])) == ["Table IV"]
    section = [row for row in whole if "Sec. IV-B" in row.claim.where]
    assert list(bench.figures_of(section)) == ["Fig. 9"]
    bare = [judge(c, Measured(c.value)) for c in ledger.select("direct") if c.where == "Sec. III-A"]  # type: ignore[arg-type]
    assert bare
    assert bench.figures_of(bare) == {}
    assert bench.figures_of([*only, *bare]) == {}
    assert bench.figures_of([]) == {}


def test_every_claim_with_a_figure_has_one_drawn() -> None:
    named = {found for c in ledger.select("tensordash") for found in re.findall(r"Fig\. \d+|Table IV", c.where)}
    assert named <= set(bench.figures("tensordash"))
    assert {"Fig. 1", "Fig. 8", "Fig. 9", "Fig. 10", "Fig. 11", "Fig. 12", "Fig. 13", "Fig. 14", "Fig. 15", "Table IV"} <= set(
        bench.figures("tensordash")
    )


# ---- the page


def test_a_page_with_figures_explains_what_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "figures_of", lambda rows: {"Fig. 12": table_4, "Table IV": table_4})
    pages.write_html(rows(), tmp_path / "l.html")
    text = (tmp_path / "l.html").read_text()
    assert text.count("drawFitted(Plotly, ") == 1
    assert len(re.findall(r'<div role="img" aria-label="[^"]+" data-figure="(fig--12|table-iv)"', text)) == 2
    embedded = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert set(embedded) == {"fig--12", "table-iv"}
    assert text.count('class="miss substitute"') == 1  # below Table IV; the near one is met, the far one has no figure
    assert "stand-in &lt;b&gt;" in text
    for row in rows():
        assert row.id in text
    assert "default-src 'none'" in text


def test_without_figures_the_page_stays_small(tmp_path: Path) -> None:
    bare = [judge(c, Measured(c.value)) for c in ledger.select("direct") if c.where == "Sec. III-A"]  # type: ignore[arg-type]
    pages.write_html(bare, tmp_path / "l.html")
    assert (tmp_path / "l.html").stat().st_size < 100_000


# ---- figures


def test_a_figure_tells_what_it_shows() -> None:
    found = figures.chart(
        [
            figures.Series(name="ours", values={"a": 1.5, "b": 2.0}, colour="#000"),
            figures.Series(name="thin", values={"a": 1.0, "b": 1.0}, colour="#000", kind="faint"),
            figures.paper({"b": 1.9}), figures.from_printed({"a": 1.4}),
        ],
        "Fig. 0: title", "What it shows.", x="", y="speedup", unity=True, ceiling=3.0,
    )  # fmt: skip
    assert found.layout.meta["description"] == "What it shows."
    assert found.layout.xaxis.type == "category"
    assert list(found.layout.yaxis.range) == [0, 3.0]
    assert [trace.type for trace in found.data] == ["bar", "scatter", "scatter", "scatter"]
    assert found.data[0].customdata[1] == "ours<br>b: 2.00"
    assert found.data[2].marker.symbol == "diamond"


def test_names_in_groups_and_numbers() -> None:
    grouped = figures.chart(
        [figures.Series(name="ours", values={("a", "x"): 1.0, ("a", "y"): 2.0}, colour="#000")], "t", "d", x="", y="", stacked=True
    )
    assert [list(names) for names in grouped.data[0].x] == [["a", "a"], ["x", "y"]]
    assert grouped.layout.xaxis.type is None
    numbers = figures.chart(
        [figures.Series(name="n", values={10.0: 1.0}, colour="#000", kind="line")], "t", "d", x="", y="", numbers=True
    )
    assert numbers.layout.xaxis.type is None


def test_the_papers_values_are_drawn() -> None:
    found = table_4()
    theirs = next(trace for trace in found.data if trace.name == "paper")
    assert dict(zip(theirs.x, theirs.y, strict=True))["area"] == 14
    stacked = [trace for trace in found.data if trace.type == "bar"]
    assert sum(trace.y[0] for trace in stacked) == pytest.approx(14.34, abs=0.01)
