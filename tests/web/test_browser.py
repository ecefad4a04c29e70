"""The page in a real browser: headless Chromium against a real `trainyard serve`, loopback only.

`TRAINYARD_CHROMIUM` names another browser than /usr/bin/chromium; `TRAINYARD_BROWSER=required` makes a missing one a failure.
The manual's pictures are taken by `test_browser_pictures.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.web.browsing import Browsing, Visit, browsing

import trainyard as ty
from trainyard.ir import Phase
from trainyard.papers import shipped
from trainyard.units import show

pytestmark = pytest.mark.browser
HOSTILE = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsing]:
    axes = {"array.rows": [32, 64, 128], "dram": ["75 GB/s", "150 GB/s", "300 GB/s"]}
    small = {"name": "small", "workloads": ["linear"], "machine": "npu", "axes": axes,
             "objectives": {"time_s": "min", "energy_j": "min"}}  # fmt: skip
    forward = {"name": "forward", "workloads": ["linear", "own.json"], "machine": "npu", "axes": {"inference": [True, False]}}
    yield from browsing(tmp_path_factory, small, forward)


@pytest.fixture
def visit(opened: Browsing) -> Iterator[Visit]:
    with opened.visit() as made:
        yield made
        made.require_quiet()


def headline(visit: Visit) -> list[list[str]]:
    """The cells of the headline table."""
    table = visit.page.locator("table.headline")
    table.wait_for(timeout=WAIT_MS)
    return [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]


def percent(share: float) -> str:
    """As the page's `signed` writes it, without what rounding leaves to taste."""
    return f"{'+' if share > 0 else ''}{100 * share:.1f} %"


def draw(visit: Visit, number: int = 0) -> None:
    """Scrolls to a figure, which is drawn when it comes into sight."""
    place = visit.page.locator("figure .plot").nth(number)
    place.scroll_into_view_if_needed(timeout=WAIT_MS)
    visit.page.locator("figure .plot").nth(number).locator("xpath=self::*[@data-drawn]").wait_for(timeout=WAIT_MS)


def test_the_first_paint_is_soon_and_waits_for_no_answer(visit: Visit, record_property: Callable[[str, object], None]) -> None:
    held: list[Any] = []
    visit.page.route("**/api/**", lambda route: held.append(route))  # nothing is answered yet
    visit.go("/")
    visit.page.get_by_role("button", name="Run", exact=True).wait_for(timeout=WAIT_MS)
    painted_ms = visit.page.evaluate(
        """() => new Promise(told => new PerformanceObserver(
             list => told(list.getEntriesByName('first-contentful-paint')[0].startTime))
             .observe({type: 'paint', buffered: true}))"""
    )
    record_property("first_contentful_paint_ms", painted_ms)
    print(f"first contentful paint after {painted_ms:.0f} ms, with {len(held)} requests unanswered")
    assert held
    assert painted_ms < 3000  # under 1 s where the cores are free
    visit.page.unroute("**/api/**")  # lets those go on that were held
    visit.page.get_by_role("button", name="Knobs: npu").wait_for(timeout=WAIT_MS)
    assert not [url for url in visit.requested if "plotly" in url]


def test_run_two_machines_and_compare(visit: Visit) -> None:
    page = visit.page
    visit.go("/")
    page.get_by_label("Filter the zoo").fill("alex")
    page.get_by_label("Model", exact=True).select_option("alexnet")
    page.get_by_label("or write one").fill("tpu")
    page.get_by_label("or write one").press("Enter")
    page.get_by_role("button", name="Knobs: tpu").wait_for(timeout=WAIT_MS)
    page.get_by_role("button", name="Run", exact=True).click()
    (npu, tpu), ours = headline(visit), ty.run("alexnet", "npu")
    other = ty.run("alexnet", "tpu")
    assert npu[:3] == ["npu", ours.headline, "1.00 x"]
    assert tpu[:3] == ["tpu", other.headline, f"{other.samples_per_s / ours.samples_per_s:.2f} x"]
    assert tpu[5] == show(other.traffic_bytes["dram"], "B")
    warning = page.get_by_role("note").inner_text()
    assert "peak MACs" in warning
    assert "DRAM bandwidth" in warning
    assert "technology" in warning
    draw(visit)
    assert page.locator("figure").first.locator("figcaption").inner_text().startswith("Time by machine and phase: npu")
    link = page.get_by_role("link", name="Download JSON: npu").get_attribute("href")
    assert page.request.get(visit.base + str(link)).json()["time_s"] == ours.time_s


def test_a_step_that_does_not_fit_and_a_slower_machine_say_so(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=compare&workload=linear&on=npu&on=npu&set=dram_capacity_bytes=1 kB&set=dram_bytes_per_s=1 GB/s&run=1")
    (first, short) = headline(visit)
    assert "of 1 kB" in " ".join(short)
    assert "of 1 kB" not in " ".join(first)
    page.get_by_role("note").filter(has_text="does not fit this machine").wait_for()
    said = page.locator(".results p", has_text="x the samples/s of npu: it is bound by dram")
    assert "x the DRAM bandwidth (1 GB/s against 150 GB/s)" in said.inner_text()


def test_a_knob_is_in_the_link_and_the_link_reproduces_the_view(visit: Visit, opened: Browsing) -> None:
    page = visit.page
    visit.go("/?view=compare&workload=linear&on=npu")
    page.get_by_role("button", name="Knobs: npu").click(timeout=WAIT_MS)
    knob = page.get_by_label("dram_bytes_per_s, in B/s")
    assert knob.input_value() == "150 GB/s"
    row = page.locator("tr", has=knob)
    assert "Table 3: 150 GB/s per core" in row.inner_text()
    knob.fill("15 GB/s")
    knob.press("Enter")
    page.get_by_label("fusion", exact=True).select_option("none")
    assert "(changed)" in row.locator("th").inner_text()
    page.get_by_role("button", name="Run", exact=True).click()
    ((name, time, *_),) = headline(visit)
    assert name == "npu, dram_bytes_per_s = 15 GB/s, fusion = none"
    assert time == ty.run("linear", "npu(dram=15 GB/s,fusion=none)").headline
    asked = parse_qsl(urlsplit(page.url).query)
    assert asked[-4:] == [("on", "npu"), ("set", "dram_bytes_per_s=15 GB/s"), ("set", "fusion=none"), ("run", "1")]
    with opened.visit() as again:
        again.page.goto(page.url)
        assert headline(again)[0][:2] == [name, time]
        again.page.get_by_role("button", name="Knobs: npu").click()
        changed = again.page.locator("tr", has=again.page.get_by_label("dram_bytes_per_s, in B/s"))
        assert "Table 3: 150 GB/s per core" in changed.inner_text()  # what it was, and from where
        again.require_quiet()
    page.get_by_role("button", name=re.compile("^Reset dram_bytes_per_s")).click()
    assert knob.input_value() == "150 GB/s"
    page.go_back()
    page.locator(".chip", has_text="dram_bytes_per_s = 15 GB/s").wait_for()
    assert headline(visit)[0][1] == time


def test_a_part_that_is_put_in_brings_its_knobs_and_its_peaks(visit: Visit, opened: Browsing) -> None:
    page = visit.page
    visit.expected = ("status of 400",)
    visit.go("/?view=compare&workload=linear&on=npu")
    page.get_by_role("button", name="Knobs: npu").click(timeout=WAIT_MS)
    card = page.locator(".chosen .card")
    assert show(ty.machine("npu").peaks.macs_per_s, "MAC/s") in card.inner_text()
    order = page.get_by_label("order", exact=True)
    assert {"sequential", "interleaved", "paper", "cost"} <= set(order.locator("option").all_inner_texts())
    array = page.get_by_label("array", exact=True)
    array.fill("tensordash")
    array.press("Enter")
    lanes = page.get_by_label("array.lanes", exact=True)
    lanes.wait_for(timeout=WAIT_MS)
    assert page.get_by_label("array.dataflow", exact=True).count() == 0
    assert visit.focused() == "array"
    assert "run=1" not in page.url  # Enter in a knob runs nothing
    assert "(changed)" in page.locator("tr", has=array).locator("th").inner_text()
    swapped = ty.machine("npu(array=tensordash)")
    assert lanes.input_value() == str(swapped.array.lanes)
    page.locator(".chosen .card", has_text=show(swapped.peaks.macs_per_s, "MAC/s")).wait_for(timeout=WAIT_MS)
    lanes.fill("none at all")
    lanes.press("Enter")
    page.locator(".chosen .error", has_text="array.lanes").wait_for(timeout=WAIT_MS)  # said before anything is run
    page.get_by_role("button", name=re.compile(r"^Reset array\.lanes")).click()
    page.locator(".chosen .error").wait_for(state="detached", timeout=WAIT_MS)
    with opened.visit() as again:
        again.page.goto(page.url)
        again.page.locator(".chosen .card", has_text=show(swapped.peaks.macs_per_s, "MAC/s")).wait_for(timeout=WAIT_MS)
        again.page.get_by_role("button", name="Knobs: npu").click()
        assert again.page.get_by_label("array.lanes", exact=True).input_value() == str(swapped.array.lanes)
        again.require_quiet()
    page.get_by_role("button", name="Reset array to systolic").click()
    page.get_by_label("array.dataflow", exact=True).wait_for(timeout=WAIT_MS)
    assert page.locator(".chosen .chip").count() == 0


def test_a_wrong_machine_is_said_under_its_field(visit: Visit) -> None:
    page = visit.page
    visit.expected = ("status of 400",)
    visit.go("/")
    field = page.get_by_label("or write one")
    field.fill("npu(dramm=75 GB/s)")
    field.press("Enter")
    error = page.get_by_role("alert").filter(has_text="dramm")
    error.wait_for(timeout=WAIT_MS)
    assert field.get_attribute("aria-invalid") == "true"
    assert str(error.get_attribute("id")) in str(field.get_attribute("aria-describedby"))
    visit.go("/?view=compare&workload=linear&on=npu&set=dram_bytes_per_s=much&run=1")
    page.locator(".chosen .error", has_text="'much' is not a quantity").wait_for(timeout=WAIT_MS)


def test_what_is_wrong_is_said_once(visit: Visit) -> None:
    page = visit.page
    visit.expected = ("status of 400", "status of 404")
    for view, wrong in (("compare&workload=linear&on=npu&set=dram_bytes_per_s=much", "'much' is not a quantity"),
                        ("whatif&workload=linear&on=npu&set=dram_bytes_per_s=much", "'much' is not a quantity"),
                        ("compare&workload=lineer&on=npu", "unknown workload 'lineer'")):  # fmt: skip
        visit.go(f"/?view={view}&run=1")
        said = page.locator("main .error:visible, main .said:visible").filter(has_text=wrong)
        said.first.wait_for(timeout=WAIT_MS)
        visit.settled()
        assert said.count() == 1, view


def test_the_marked_machine_is_the_one_that_runs(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=compare&workload=linear")
    marked = page.locator("#panel-compare").get_by_label("Machine", exact=True)
    about = page.locator("#panel-compare .machines .about")
    page.locator(".chosen .empty").wait_for(timeout=WAIT_MS)
    assert (marked.input_value(), about.inner_text()) == ("", "")
    assert page.get_by_role("button", name="Add the selected").is_disabled()
    visit.go("/?view=compare&workload=linear&on=npu(dram=75 GB/s)&on=tpu")
    page.get_by_role("button", name="Knobs: tpu").wait_for(timeout=WAIT_MS)
    assert marked.input_value() == "npu"
    assert "IGO" in about.inner_text()
    page.get_by_label("Filter the machines").fill("sigma")
    assert marked.input_value() == "sigma"
    visit.go("/")
    page.get_by_role("button", name="Knobs: npu").wait_for(timeout=WAIT_MS)
    assert marked.input_value() == "npu"


def test_every_plot_is_drawn_in_a_print_and_light(opened: Browsing) -> None:
    with opened.visit(color_scheme="dark") as visit:
        page = visit.page
        visit.go("/?view=compare&workload=linear&on=npu&run=1")
        headline(visit)
        page.locator("figure .plot[data-drawn]").first.wait_for(timeout=WAIT_MS)
        page.wait_for_function("() => [...document.querySelectorAll('.plot')].every(place => place.dataset.drawn)", timeout=WAIT_MS)
        assert page.evaluate("scrollY") == 0  # none was scrolled to
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_upload_of_a_step_and_of_a_file_that_is_none(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.expected = ("status of 400",)
    (tmp_path / "own.json").write_text(ty.zoo.load("linear", batch=16).to_json())
    (tmp_path / "bad.json").write_text('{"format": "none of ours"}')
    visit.go("/?view=compare&workload=linear&on=npu")
    page.locator("#panel-compare summary", has_text="Own file, zeros").click()
    chooser = page.get_by_label("Upload a step (JSON)")
    chooser.set_input_files(tmp_path / "bad.json")
    page.get_by_role("alert").filter(has_text="bad.json").wait_for(timeout=WAIT_MS)
    (tmp_path / "my.py").write_text("def build():\n    return None\n")
    chooser.set_input_files(tmp_path / "my.py")
    page.get_by_role("alert").filter(has_text="trainyard export my.py:build --to step -o step.json").wait_for(timeout=WAIT_MS)
    chooser.set_input_files(tmp_path / "own.json")
    page.locator("option", has_text="own.json (uploaded)").wait_for(state="attached", timeout=WAIT_MS)
    page.get_by_role("button", name="Run", exact=True).click()
    assert headline(visit)[0][1] == ty.run("linear", "npu", batch=16).headline
    assert "own, batch 16" in page.get_by_role("heading", level=2).first.inner_text()


def test_hostile_names_stay_text(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    text = ty.zoo.load("linear").to_json()
    layer = next(layer for layer in ty.zoo.load("linear").layers if layer)
    step = tmp_path / "x.json"
    step.write_text(text.replace(json.dumps(layer), json.dumps(HOSTILE)))
    visit.go("/?view=compare&workload=linear&on=npu")
    page.locator("#panel-compare summary", has_text="Own file, zeros").click()
    hostile_file = {"name": f"{HOSTILE}.json", "mimeType": "application/json", "buffer": step.read_bytes()}
    page.get_by_label("Upload a step (JSON)").set_input_files(hostile_file)
    page.locator("option", has_text="script.json (uploaded)").wait_for(state="attached", timeout=WAIT_MS)
    page.get_by_role("button", name="Run", exact=True).click()
    headline(visit)
    page.locator("summary", has_text="Table by layer").click()
    page.get_by_role("rowheader", name=HOSTILE, exact=True).wait_for()
    draw(visit, 2)
    assert page.evaluate("window.hurt") is None
    assert page.locator("img[src=x]").count() == 0
    visit.expected = ("status of 400",)
    visit.go(f"/?view=compare&workload={HOSTILE}&on={HOSTILE}&run=1")
    page.locator(".chosen .error").wait_for(timeout=WAIT_MS)
    assert page.evaluate("window.hurt") is None


def test_the_keyboard_alone_runs_a_step(visit: Visit) -> None:
    page, press = visit.page, visit.page.keyboard.press
    visit.go("/?view=compare&workload=linear&on=npu")
    page.get_by_role("button", name="Knobs: npu").wait_for(timeout=WAIT_MS)
    visit.tab_to("tab-compare")
    press("ArrowRight")
    assert visit.focused() == "tab-whatif"
    assert page.get_by_role("tab", name="What if").get_attribute("aria-selected") == "true"
    press("End")
    assert visit.focused() == "tab-sweeps"
    press("ArrowRight")
    assert visit.focused() == "tab-compare"
    visit.tab_to("Filter the machines")
    page.keyboard.type("small")
    press("Tab")
    press("Enter")  # adds the only machine left
    page.get_by_role("button", name="Knobs: npu-small").wait_for(timeout=WAIT_MS)
    visit.tab_to("Knobs: npu-small")
    press("Space")
    panel = page.get_by_role("region", name="Knobs of npu-small", exact=True)
    panel.wait_for()
    press("Escape")
    panel.wait_for(state="detached")
    assert visit.focused() == "Knobs: npu-small"
    visit.tab_to("Run")
    press("Enter")
    assert [row[0] for row in headline(visit)] == ["npu", "npu-small"]


NESTED = "mcdla-b(device=npu(array=tensordash,order=interleaved))"


@pytest.mark.parametrize(
    "view",
    [
        f"compare&workload=linear&on=npu&on={NESTED}&run=1",
        "whatif",
        pytest.param("papers&paper=igo", marks=pytest.mark.slow),
        "sweeps&store=small.store",
    ],
)
def test_every_control_has_a_name_and_nothing_overflows(visit: Visit, view: str) -> None:
    page = visit.page
    visit.go(f"/?view={view}")
    page.locator("[role=tabpanel]:not([hidden])").locator("table, .chosen .card").first.wait_for(timeout=WAIT_MS)
    if view.startswith("compare"):
        headline(visit)
        page.get_by_role("button", name="Knobs: npu").click()
    page.evaluate("document.querySelectorAll('details').forEach(block => { block.open = true; })")
    assert visit.unnamed() == []
    assert page.locator("[tabindex]:not([tabindex='0']):not([tabindex='-1'])").count() == 0
    for table in page.locator("table:visible").all():
        assert table.locator("caption").count() == 1
        assert table.locator("thead th:not([scope])").count() == 0
    for figure in page.locator("figure").all():
        assert len(figure.locator("figcaption").inner_text()) > 20
        assert figure.locator(".plot, img").get_attribute("aria-label") or figure.locator("img").get_attribute("alt")
    for width in (1300, 800, 390):
        page.set_viewport_size({"width": width, "height": 900})
        visit.settled()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    ordered = visit.tab_order(60)
    assert ordered == sorted(ordered)


def test_papers_show_their_ledger_and_a_job_can_be_cancelled(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=papers&paper=tensordash")
    ledger = page.locator("table.ledger")
    ledger.wait_for(timeout=WAIT_MS)
    rows = ledger.locator("tbody tr")
    whole = rows.count()
    assert rows.first.locator("th").inner_text().startswith("tensordash.")
    chip = page.get_by_role("button", name=re.compile(r"^context \d+$"))
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert 0 < rows.count() < whole
    assert set(rows.locator(".verdict").all_inner_texts()) == {"context"}
    assert "verdict=context" in page.url
    page.get_by_label("Find in the ledger").fill("no claim says this")
    assert rows.count() == 0
    page.get_by_text("claims of tensordash is one with the verdict context that says").wait_for()
    page.get_by_role("button", name="Show all claims").click()
    assert rows.count() == whole
    assert "verdict" not in page.url
    assert not page.locator(".side", has_text="not yet").count()  # a ledger came with the package
    assert page.locator("#panel-papers figure").count() > 5
    page.get_by_role("button", name="Compute it here").click()
    page.locator("progress").wait_for(timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel tensordash").click()
    page.locator(".jobs .state", has_text="cancelled").wait_for(timeout=WAIT_MS)
    page.locator("#announcer", has_text="cancelled").wait_for(state="attached")


def test_a_link_to_a_verdict_that_no_claim_has_says_so(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=papers&paper=mcdla&verdict=not+yet")
    page.get_by_text("claims of mcdla is one with the verdict not yet.").wait_for(timeout=WAIT_MS)
    chip = page.get_by_role("button", name="not yet 0", exact=True)
    assert chip.get_attribute("aria-pressed") == "true"
    chip.click()
    page.locator("table.ledger").wait_for()
    visit.go("/?view=papers&paper=mcdla&verdict=wrong")
    page.get_by_text("There is no verdict wrong: the verdicts are met, near").wait_for(timeout=WAIT_MS)


def test_a_claim_that_is_judged_by_gates_shows_the_figure_from_gates(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=papers&paper=sigma")
    row = page.locator("table.ledger tbody tr").filter(has=page.locator("th", has_text=re.compile("^sigma.area$")))
    row.wait_for(timeout=WAIT_MS)
    heads = page.locator("table.ledger thead th").all_inner_texts()
    (figure,) = [claim.gates for claim in shipped.rows("sigma") if claim.id == "sigma.area"]
    cells = row.locator("th, td").all_inner_texts()
    assert figure is not None
    assert float(cells[heads.index("from gates")]) == pytest.approx(figure, rel=1e-3)


def test_a_sweep_that_is_not_finished_says_so(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=sweeps&store=cut.store")
    page.get_by_text("This sweep is not finished: the store has 2 of 9 points").wait_for(timeout=WAIT_MS)
    assert page.locator("nav li", has_text="cut.store").locator("p").inner_text() == "2 of 9 points: unfinished"
    visit.go("/?view=sweeps&store=small.store")
    page.locator(".points caption", has_text="9 of 9 points.").wait_for(timeout=WAIT_MS)
    assert not page.get_by_text("is not finished").count()


def test_a_sweep_is_brushed_and_a_point_opened(visit: Visit, opened: Browsing) -> None:
    page = visit.page
    visit.go("/?view=sweeps")
    page.get_by_role("link", name="small.store").click(timeout=WAIT_MS)
    draw(visit)
    caption = page.locator(".points caption")
    assert caption.inner_text() == "9 of 9 points."
    box = page.locator(".plot .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2, steps=5)
    page.mouse.up()
    page.locator(".points caption", has_text="inside the brush").wait_for()
    inside = caption.inner_text()
    assert inside != "9 of 9 points, inside the brush."
    assert not inside.startswith("0 of")
    with opened.visit() as again:
        again.page.goto(page.url)
        again.page.locator(".points caption", has_text=inside).wait_for(timeout=WAIT_MS)
    page.get_by_role("button", name="Clear the brush").click()
    assert caption.inner_text() == "9 of 9 points."
    cells = page.locator(".points tbody tr").first.locator("th, td").all_inner_texts()
    page.locator(".points tbody tr").first.get_by_role("link").click()
    assert headline(visit)[0][1].split()[0] == cells[2].split()[0] or float(headline(visit)[0][1].split()[0]) == float(
        cells[2].split()[0]
    )
    assert "set=dram_bytes_per_s" in page.url


def test_a_point_of_a_forward_pass_is_opened_as_one_and_a_file_is_asked_for(opened: Browsing, visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=sweeps&store=studies%2Fforward.sweep")
    rows = page.locator(".points tbody tr")
    rows.first.wait_for(timeout=WAIT_MS)
    inference = rows.filter(has=page.get_by_role("cell", name="true", exact=True)).filter(has=page.get_by_role("link"))
    inference.first.get_by_role("link").click()
    (cells,) = headline(visit)
    step = ty.zoo.load("linear").only(Phase.FORWARD)
    assert cells[1] == ty.run(step, "npu").headline
    assert "inference=1" in page.url
    assert page.get_by_label("the forward pass alone").first.is_checked()
    page.go_back()
    page.get_by_role("button", name=re.compile("^Why .* cannot be opened")).first.click(timeout=WAIT_MS)
    page.get_by_role("alert").filter(has_text="own.json is a file of the study: upload it").wait_for()


def test_worths_as_a_tornado_and_a_table(visit: Visit) -> None:
    page = visit.page
    visit.go("/?view=whatif&workload=linear&on=npu&only=assumption&run=1")
    page.get_by_role("region", name="Worths").locator("tbody tr").first.wait_for(timeout=WAIT_MS)
    names = page.get_by_role("region", name="Worths", exact=True).last.locator("tbody th").all_inner_texts()
    assert "fusion" in names
    assert "scope" in names
    draw(visit)
    assert "as it stands" in page.locator("figcaption").inner_text()


def test_worths_have_all_that_the_library_finds(visit: Visit) -> None:
    """Assumptions and parameters, pairs with their interaction, and why what cannot be made cannot."""
    page = visit.page
    visit.go("/?view=whatif&workload=linear&on=npu(array=tensordash)&run=1")
    effects = page.get_by_role("region", name="Worths", exact=True).locator("table").first
    effects.locator("tbody tr").first.wait_for(timeout=WAIT_MS)
    weighed = ty.whatif("linear", "npu(array=tensordash)")
    rows = [row.locator("th, td").all_inner_texts() for row in effects.locator("tbody tr").all()]
    assert [row[:2] for row in rows] == [[effect.name, effect.kind] for effect in weighed]
    assert {row[1] for row in rows} == {"assumption", "parameter"}
    assert [row[6] for row in rows] == ["-" if effect.error else percent(effect.change) for effect in weighed]
    assert [row[7] for row in rows] == [effect.error or effect.meaning for effect in weighed]
    assert not {"True", "False", "None"} & {cell for row in rows for cell in row}
    pairs = page.get_by_role("region", name="Pairs").locator("tbody tr")
    found = [row.locator("td").all_inner_texts()[1:5] for row in pairs.all()]
    assert found == [
        [percent(pair.first.change), percent(pair.second.change)]
        + (["not possible", "-"] if pair.error else [percent(pair.change), percent(pair.interaction)])
        for pair in weighed.pairs
    ]


def test_the_colours_are_those_of_the_report() -> None:
    from trainyard.report import colours

    text = (Path(ty.__file__).parent / "web" / "static" / "colours.js").read_text()
    phases = dict(re.findall(r"(\w+): \"(#\w+)\"", text.partition("PHASES = {")[2].partition("}")[0]))
    assert phases == dict(colours.PHASES)
    assert tuple(re.findall(r"#\w+", text.partition("SPARE = ")[2].partition("\n")[0])) == colours.SPARE
