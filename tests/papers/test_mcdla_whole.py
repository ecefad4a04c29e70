"""All of `trainyard reproduce mcdla`: every row filled, bounds and orders over the whole matrix, every figure drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainyard.machines.presets.mcdla import DESIGNS
from trainyard.papers import bench, pages
from trainyard.papers.ledger import Row
from trainyard.papers.mcdla import measuring, performance, printed, readings, sensitivity
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, step_times

pytestmark = [pytest.mark.slow, pytest.mark.paper]
SLACK = 1 + 1e-9


@pytest.fixture(scope="module")
def walked() -> dict[str, Row]:
    return {row.id.partition(".")[2]: row for row in bench.walk("mcdla")}


def test_every_row_is_filled(walked: dict[str, Row]) -> None:
    for name, row in walked.items():
        assert not row.failed, row
        assert row.ours is not None, name
        assert row.verdict != "not yet"
        assert all(math.isfinite(value) for value in (row.ours if isinstance(row.ours, tuple) else (row.ours,))), row
        assert row.note or row.verdict == "context", row


def test_what_is_contradicted_carries_its_proof(walked: dict[str, Row]) -> None:
    found = {name for name, row in walked.items() if row.verdict == "contradicted"}
    assert found == {"star_loss.max", "hc.data", "pcie4.dc_gain", "scaling.dc.4", "scaling.dc.8", "power.high"}


def test_stored_readings_are_those_of_this_version(walked: dict[str, Row]) -> None:
    assert not [name for name, row in walked.items() if row.verdict == "off" and row.claim.use == "headline"]
    for claim, value in readings.stored()[readings.LEDGER.name].items():
        assert value == pytest.approx(walked[claim.partition(".")[2]].ours, rel=0.02), "run: python scripts/mcdla_readings.py"


def test_orders_and_bounds_hold_in_every_example(walked: dict[str, Row]) -> None:
    assert walked
    for network in NETWORKS:
        for parallel in PARALLEL:
            time = {name: step_times(node, network, parallel).time_s for name, node in DESIGNS.items()}
            assert time["dc-dla-oracle"] <= SLACK * time["mcdla-b"] <= SLACK**2 * min(time["mcdla-l"], time["mcdla-s"])
            assert time["hc-dla"] <= SLACK * 2 * time["mcdla-b"]
            gain = time["dc-dla"] / step_times(sensitivity.GEN4, network, parallel).time_s
            assert gain >= printed.least_gain(time["dc-dla"] / time["mcdla-b"]) / SLACK


def test_nothing_is_met_by_construction(walked: dict[str, Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """No simulated value is the paper's own, and other printed figures do not change it."""
    for name, row in walked.items():
        if row.claim.use in ("headline", "table") and not name.startswith(("hops", "mc.cpu", "dc.virtualisation", "hc.cpu")):
            assert row.ours != row.paper, row
    for module in (performance, sensitivity):
        monkeypatch.setattr(module, "stated", lambda claim: 1.0)
    for name in ("hc.model", "pcie4.gap"):
        assert bench.experiments("mcdla")[f"mcdla.{name}"]().value == walked[name].ours


def test_other_processes_find_the_same(walked: dict[str, Row]) -> None:
    assert walked
    wanted = measuring.job(DESIGNS["mcdla-s"], "alexnet", "model")
    assert measuring.run_job(wanted) == measuring.step_times(DESIGNS["mcdla-s"], "alexnet", "model")


def test_every_figure_is_drawn(walked: dict[str, Row], tmp_path: Path) -> None:
    page = tmp_path / "mcdla.html"
    pages.write_html([*walked.values()], page)
    text = page.read_text()
    for name in bench.figures("mcdla"):
        key = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        assert f'id="{key}"' in text
