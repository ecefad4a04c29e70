"""The manual: it builds without a warning, loads nothing from elsewhere, and says everything it has to."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import trainyard

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAPERS = ("sigma", "tensordash", "igo", "mcdla", "direct")
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "use": "href"}


def script(name: str) -> ModuleType:
    """A script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Loads(HTMLParser):
    """Every address that a page loads by itself; a plain hyperlink is none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("next", "prev", "canonical"):
            return
        if tag in LOADED and given.get(LOADED[tag]):
            self.found.append(str(given[LOADED[tag]]))
        self.found += re.findall(r"url\((.*?)\)", given.get("style") or "")


def loads(page: Path) -> list[str]:
    reader = Loads()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="the manual is built with the extra dev")
    folder = tmp_path_factory.mktemp("manual") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert {page.stem for page in pages} >= {page.stem for page in DOCS.glob("*.md")}
    for page in pages:
        for address in loads(page):
            assert not re.match(r"(?:[a-z]+:)?//", address), f"{page.name} loads {address}"
            if page.name != "404.html" and not address.startswith(("data:", "#")):
                assert (site / address.partition("?")[0].partition("#")[0]).exists(), f"{page.name} has no {address}"
    for sheet in [*site.glob("*.css"), *site.rglob("stylesheets/*.css")]:
        assert not re.search(r"url\([\"']?https?:", sheet.read_text(encoding="utf-8")), sheet.name


def test_a_page_that_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<a href="https://a.example/">x</a><link rel="next" href="b.html"><img src="//a.example/x.png">')
    assert loads(page) == ["//a.example/x.png"]


def test_every_page_is_in_the_nav() -> None:
    named = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {page.name for page in DOCS.glob("*.md")}


def test_every_block_is_filled() -> None:
    blocks = script("manual_pages").BLOCK
    found = [(page.name, match) for page in DOCS.glob("*.md") for match in blocks.finditer(page.read_text(encoding="utf-8"))]
    assert len(found) > 15
    for name, match in found:
        body = match[0].splitlines()
        assert body[1:3] == ["```text", f"$ {match['command']}"], f"{name}: {match['command']} has not been run"
        assert len(body) > 6, f"{name}: {match['command']} printed nothing"
        assert "Traceback" not in match[0]


def test_every_command_is_on_the_page_of_commands() -> None:
    from typer.main import get_command

    from trainyard.cli import app

    titles = re.findall(r"^## ([a-z]+(?:-[a-z]+)?)$", (DOCS / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(titles) == set(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_public_name_is_on_the_page_of_names() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [name for name in trainyard.__all__ if f"`ty.{name}`" not in text] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_has_all_its_parts(paper: str) -> None:
    text = (DOCS / f"{paper}.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "What it is"
    assert "What is modelled" in titles
    assert any(re.search(r"(?i)assum", title) for title in titles)
    assert "Ledger" in titles or "reproduction.md#" in text
    pictures = re.findall(r"!\[[^\]]+\]\(([\w-]+\.svg)\)", text)
    assert len(pictures) >= 2
    assert all((DOCS / picture).exists() for picture in pictures)
    figures = script("paper_figures")
    assert figures.illustrated(paper, text) == text, "a picture is not where scripts/paper_figures.py puts it"
    assert [name for name in figures.PICTURES[paper] if name not in figures_of(paper)] == []


def figures_of(paper: str) -> list[str]:
    from trainyard.papers import bench

    return list(bench.figures(paper))


def test_pictures_are_drawn_the_same_again() -> None:
    pytest.importorskip("matplotlib")
    from trainyard.papers.figures import Series, chart, paper

    bars = [Series(name="ours", values={"a": 1.0, "b": 2.5}, colour="#0072B2"), paper({"b": 2.0})]
    figure = chart(bars, "Fig. 1", "Two bars & a mark.", x="", y="speedup", unity=True)
    figures = script("figures")
    first, second = figures.svg(figure), figures.svg(figure)
    assert first == second
    assert "<desc>Two bars &amp; a mark.</desc>" in first
    for word in ("ours", "paper", "speedup", "Fig. 1"):
        assert f">{word}<" in first
    figure.add_pie(values=[1, 2])
    with pytest.raises(SystemExit, match="not pie"):
        figures.svg(figure)


def test_the_page_on_speed_says_what_it_missed() -> None:
    text = (DOCS / "speed.md").read_text(encoding="utf-8")
    missed = len(re.findall(r"\| missed \|", text))
    reached = len(re.findall(r"\| reached \|", text))
    assert f"{reached} of {reached + missed} targets are reached" in text


def test_search_reads_its_index_from_files(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    assert "iframe-worker.js" in loads(site / "index.html")
    assert shutil.which("node") is None or subprocess.run(["node", "--check", str(DOCS / "iframe-worker.js")]).returncode == 0
