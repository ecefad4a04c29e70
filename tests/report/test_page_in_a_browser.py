"""Reports in a browser, on a desk and on a phone, light and dark: nothing is cut without a cue, no text lies over another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.browsing import Visit, launched

import trainyard as ty
from trainyard.papers import bench, illustrated, shipped
from trainyard.report.walkthroughs import page as walkthrough_page

NESTED = "mcdla-b(device=npu(array=tensordash,order=interleaved))"
DESK, PHONE = 1400, 390
OVERLAPS = """() => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => {
    const [title, legend] = ['.gtitle', '.infolayer > .legend'].map(name => plot.querySelector(name)?.getBoundingClientRect());
    const buttons = plot.querySelector('.modebar-group')?.closest('.modebar').getBoundingClientRect();
    return [legend, buttons].some(over => title?.width && over?.width && title.bottom > over.top && title.right > over.left);
}).map(plot => plot.dataset.figure)"""
CUT_TEXTS = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const box = plot.getBoundingClientRect();
    return [...plot.querySelectorAll('.gtitle, .xtitle, .ytitle, .legendtext, .xtick text, .ytick text')].filter(text => {
        const {left, right, width} = text.getBoundingClientRect();
        return width && (left < box.left - 1 || right > box.right + 1);
    }).map(text => `${plot.dataset.figure}: ${text.textContent}`);
})"""
UNMARKED = """() => [...document.querySelectorAll('.scroll, pre')].filter(box => {
    const hint = box.previousElementSibling;
    const marked = box.dataset.more === 'right' && hint?.checkVisibility() && hint.textContent.includes('sideways');
    return box.checkVisibility() && box.scrollWidth > box.clientWidth + 1 && !marked;
}).map(box => box.outerHTML.slice(0, 80))"""
CRUSHED = """() => [...document.querySelectorAll('th, td')].filter(cell => cell.checkVisibility() && cell.clientWidth < 36
    && cell.innerText.trim().length > 3).map(cell => cell.innerText.slice(0, 40))"""
LEGIBLE = """() => { const numbers = text => text.match(/[\\d.]+/g).map(Number), style = getComputedStyle(document.body);
    const light = text => numbers(text).slice(0, 3).reduce((sum, part) => sum + part, 0) / 3;
    return [light(style.backgroundColor), light(style.color)]; }"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    step = ty.zoo.load("bert-tiny", batch=8)
    paths = {name: folder / f"{name}.html" for name in ("run", "compare", "tensordash", "sigma", "igo", "ledger")}
    paths["ledger"].write_text(illustrated.overview(shipped.rows("igo"), []))
    ty.run(step, on="mcdla-b").to_html(paths["run"], ranged=False)
    ty.compare(step, on=["npu", "tpu", NESTED]).to_html(paths["compare"])
    for paper in ("tensordash", "sigma", "igo"):
        text, drawing = bench.walkthrough(paper)
        walkthrough_page.write(drawing(), text, paths[paper])
    return paths


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    made = Visit(page=context.new_page(), base="")
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    yield made
    assert made.complaints == []
    context.close()


CASES = [(DESK, "dark", name) for name in ("compare", "tensordash", "sigma", "ledger")]
CASES += [(PHONE, "light", name) for name in ("run", "compare", "tensordash", "sigma", "igo", "ledger")]
SEEN_ELSEWHERE = {(DESK, "sigma"), (DESK, "ledger"), (PHONE, "tensordash"), (PHONE, "igo")}
"""Pages of which the quick tier sees the other width, or another one like them."""


@pytest.mark.parametrize(
    ("visit", "name"),
    [
        pytest.param((width, scheme), name, marks=[pytest.mark.slow] if (width, name) in SEEN_ELSEWHERE else [])
        for width, scheme, name in CASES
    ],
    indirect=["visit"],
)
def test_a_report_fits_the_screen(visit: Visit, pages: dict[str, Path], name: str) -> None:
    page = visit.page
    page.goto(pages[name].as_uri())
    page.locator(".js-plotly-plot .main-svg, .ledger").first.wait_for()
    visit.settled()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT_TEXTS) == []
    assert page.evaluate(UNMARKED) == []
    assert page.evaluate(CRUSHED) == []
    if name in ("tensordash", "sigma", "igo") and page.viewport_size["width"] == DESK:
        assert not page.get_by_text("scroll it sideways").count()  # a drawing fits a desk
    paper, text = page.evaluate(LEGIBLE)
    assert (
        (paper < 60 and text > 200)
        if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        else (paper > 200 and text < 60)
    )


@pytest.mark.parametrize("visit", [(PHONE, "light")], indirect=True, ids=["phone"])
def test_a_wide_table_says_where_it_goes_on(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit.page
    page.goto(pages["compare"].as_uri())
    box = page.locator(".scroll").first
    page.wait_for_function("() => document.querySelector('.scroll').dataset.more === 'right'")
    box.evaluate("box => { box.scrollLeft = 40; }")
    page.wait_for_function("() => document.querySelector('.scroll').dataset.more === 'left right'")
    box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    page.wait_for_function("() => document.querySelector('.scroll').dataset.more === 'left'")
    box.evaluate("box => { box.style.width = '4000px'; }")
    page.wait_for_function("() => document.querySelector('.scroll').dataset.more === ''")
    assert not page.get_by_text("scroll it sideways").first.is_visible()


@pytest.mark.parametrize("visit", [(DESK, "dark")], indirect=True, ids=["dark"])
def test_a_print_is_light_and_has_every_plot(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit.page
    page.goto(pages["compare"].as_uri())
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    paper, text = page.evaluate(LEGIBLE)
    assert (paper, text < 60) == (255, True)
    assert page.evaluate("[...document.querySelectorAll('[data-figure]')].every(place => place.querySelector('.main-svg'))")
