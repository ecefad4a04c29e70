"""The page: it parses, needs nothing from outside, escapes what users wrote, and says everything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.report import page, plots
from trainyard.results.result import Peaks, Result

Make = Callable[..., Result]
VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "<script>alert('layer')</script>"


class Reader(HTMLParser):
    """Elements in order, with text; complains about tags that do not close."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self) -> str:
        return " ".join(data for tag, data in self.text if tag not in ("script", "style"))


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def html(result: Result) -> str:
    return page.page([replace(result, range_s=(result.time_s * 0.9, result.time_s * 1.2))])


@pytest.fixture(scope="module")
def reader(html: str) -> Reader:
    return read(html)


def test_nothing_is_fetched(reader: Reader) -> None:
    for tag, attributes in reader.elements:
        assert "src" not in attributes, tag
        assert not str(attributes.get("href", "#")).startswith(("http", "//")), tag
    assert not reader.of("link")
    policy = next(meta["content"] for meta in reader.of("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    style = "".join(data for tag, data in reader.text if tag == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_what_users_wrote_is_escaped(html: str, reader: Reader) -> None:
    assert HOSTILE not in html
    (own,) = (data for tag, data in reader.text if tag == "script" and "drawFitted(Plotly, " in data)
    assert "alert(" not in own
    assert len(reader.of("script")) == 3  # plotly once, the figures, the page's own
    assert HOSTILE in reader.words()
    assert "a note with <markup> & an ampersand" in reader.words()
    assert "effective <bandwidth> & more" in reader.words()


def test_figures_are_data_with_a_place_for_each(reader: Reader) -> None:
    figures = json.loads(next(data for tag, data in reader.text if tag == "script" and data.startswith('{"r0-')))
    places = [div for div in reader.of("div") if "data-figure" in div]
    assert [place["data-figure"] for place in places] == list(figures) == [f"r0-{plot.__name__}" for plot in plots.ALL]
    for place in places:
        assert place["role"] == "img"
        assert len(str(place["aria-label"])) > 30
    assert all(figure["data"] for figure in figures.values())


def test_the_page_is_accessible(reader: Reader) -> None:
    assert reader.of("html")[0]["lang"] == "en"
    assert len(reader.of("h1")) == 1
    assert len(reader.of("caption")) == len(reader.of("table")) == 3
    assert all(head.get("scope") in ("col", "row") for head in reader.of("th"))
    assert len(reader.of("main")) == len(reader.of("title")) == 1


def test_the_page_says_everything(result: Result, reader: Reader) -> None:
    words = reader.words()
    low, high = result.time_s * 0.9e6, result.time_s * 1.2e6
    for expected in (f"({low:.0f}-{high:.0f})", "samples/s", "TMAC/s", "MiB", "epilogue", "what goes with a product",
                     result.config_hash, result.version, '"rows": 128', "bound by", "claim.8"):  # fmt: skip
        assert expected in words


def test_cells_carry_the_numbers_they_are_sorted_by(result: Result, reader: Reader) -> None:
    values = [float(str(cell["data-value"])) for cell in reader.of("td") if "data-value" in cell]
    assert len(values) == 6 * (len(result.by_phase) - 1 + 1 + len(result.by_layer) + 1)  # idle took no time; two totals
    assert result.time_s in values


def test_a_long_table_is_cut_and_its_rest_told(make_result: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_LAYERS", 10)
    assert "rest: 41 more" in read(page.page([make_result(layers=50)])).words()


def test_several_results_are_compared(make_result: Make) -> None:
    first = make_result(machine="npu")
    other = make_result(machine="tpu <fast>", peaks=Peaks(macs_per_s=16.4e12, dram_bytes_per_s=150e9))
    other = replace(other, columns=replace(other.columns, time_ps=other.columns.time_ps // 2))
    html = page.page([first, other])
    reader = read(html)
    words = reader.words()
    assert f"{first.time_ps / other.time_ps:.2f} x" in words
    assert "machines differ in peak MACs: 8.6 TMAC/s (npu) vs 16.4 TMAC/s (tpu <fast>)" in words
    assert len(reader.of("script")) == 3
    assert html.count("plotly.js v") == 1
    assert len([div for div in reader.of("div") if "data-figure" in div]) == 3 + 2 * len(plots.ALL)
    blocks = [block for block in reader.of("details") if block.get("class") == "result"]
    assert ["open" in block for block in blocks] == [True, False]


def test_writing_is_deterministic(make_result: Make, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        make_result(layers=3).to_html(tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_missing_folder_is_one_line(result: Result, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot write .*nowhere"):
        result.to_html(tmp_path / "nowhere" / "r.html")


def test_no_results_no_page(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no results"):
        page.write([], tmp_path / "r.html")


def test_a_notebook_gets_a_small_table(result: Result) -> None:
    html = result._repr_html_()
    reader = read(html)
    assert len(html) < 20_000
    assert not reader.of("script")
    assert HOSTILE in reader.words()
    assert len(reader.of("table")) == 2
    assert re.search(r"total\s+115 µs\s+100 %", reader.words())


def test_the_page_has_the_mapping_of_accelerators_alone() -> None:
    html = page.page([ty.run("linear", "npu")])
    assert "<h3>Mapping</h3>" in html
    assert "array Systolic ws 128 x 128" in html
    assert "<h3>Mapping</h3>" not in page.page([ty.run("linear", "h200")])
