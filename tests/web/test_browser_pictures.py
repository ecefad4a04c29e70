"""The manual's pictures of the page, taken when `TRAINYARD_SCREENSHOTS` names a folder, such as docs/images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.browsing import Browsing, Visit, browsing

from trainyard.files import cache_folder

FOLDER = os.environ.get("TRAINYARD_SCREENSHOTS", "")
KEPT = str(cache_folder())  # before the tests are given one of their own: a ledger that was computed is shown
LARGEST_BYTES = 300_000
WAIT_MS = 600_000
STUDY = {
    "name": "npu-pareto",
    "workloads": ["resnet18"],
    "machine": "npu",
    "objectives": {"time_s": "min", "energy_j": "min"},
    "axes": {
        "array.rows": [32, 64, 128, 256],
        "dram": {"from": "50 GB/s", "to": "800 GB/s", "steps": 5, "scale": "log"},
        "scratchpad": ["1 MiB", "4 MiB", "16 MiB"],
    },
    "tie": {"array.columns": "array.rows"},
}
COMPARED = "/?view=compare&workload=resnet18&batch=8&on=npu&on=tpu&on=npu(array=tensordash)"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not FOLDER, reason="pictures are taken when TRAINYARD_SCREENSHOTS names a folder"),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsing]:
    yield from browsing(tmp_path_factory, STUDY, cache=KEPT)


@pytest.fixture
def visit(opened: Browsing) -> Iterator[Visit]:
    with opened.visit() as made:
        made.page.set_default_timeout(WAIT_MS)
        yield made
        made.require_quiet()


def take(visit: Visit, name: str, first: Any, last: Any) -> None:
    """The page from the top of one element to the bottom of another, as a PNG of few colours."""
    from PIL import Image

    page = visit.page
    page.set_viewport_size({"width": 1300, "height": 2600})
    for place in page.locator("figure .plot:visible").all():
        place.scroll_into_view_if_needed()
    page.evaluate("() => { scrollTo(0, 0); document.activeElement.blur(); }")
    page.wait_for_timeout(600)
    top, end = first.bounding_box(), last.bounding_box()
    path = Path(FOLDER) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    start = max(0, top["y"] - 12)
    page.screenshot(path=path, clip={"x": 0, "y": start, "width": 1300, "height": end["y"] + end["height"] + 12 - start})
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    assert path.stat().st_size < LARGEST_BYTES, f"{path} has {path.stat().st_size} bytes"


def test_compare(visit: Visit) -> None:
    visit.go(f"{COMPARED}&run=1")
    figures = visit.page.locator("#panel-compare figure")
    figures.nth(1).wait_for()
    take(visit, "serve-compare.png", visit.page.locator("header"), figures.nth(1))


def test_knobs(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=compare&workload=resnet18&on=npu&set=dram_bytes_per_s=300 GB/s&set=fusion=none&on=tpu")
    page.get_by_role("button", name="Knobs: npu").click()
    page.get_by_label("Which knobs").wait_for()
    page.locator(".knobs .scroll").evaluate("table => { table.style.maxHeight = 'none'; }")  # all of it
    take(visit, "serve-knobs.png", page.locator(".chosen"), page.get_by_role("button", name="Run", exact=True))


def test_papers(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=papers&paper=sigma")
    page.locator("table.ledger").wait_for()
    page.locator("#panel-papers figure").first.wait_for()
    take(visit, "serve-papers.png", page.locator("header"), page.locator("#panel-papers figure").first)


def test_sweep(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=sweeps&store=npu-pareto.store&x=time_s&y=energy_j&logx=1&box=,0.02,,0.23")
    page.locator(".points caption", has_text="inside the brush").wait_for()
    take(visit, "serve-sweep.png", page.locator("header"), page.locator(".brushed"))


def test_whatif(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=whatif&workload=resnet18&on=npu&run=1")
    page.locator("#panel-whatif figure").wait_for()
    take(visit, "serve-whatif.png", page.locator("#panel-whatif .results"), page.get_by_role("heading", name="Two at a time"))
