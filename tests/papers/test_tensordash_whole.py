"""All of `trainyard reproduce tensordash`: every row filled, every figure drawn."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainyard.papers import bench, pages
from trainyard.papers.changes import moved
from trainyard.papers.ledger import Row

pytestmark = [pytest.mark.slow, pytest.mark.paper]
SECONDS = 180  # 60 on two cores with nothing else to do; tests share them


@pytest.fixture(scope="module")
def walked() -> tuple[dict[str, Row], float]:
    began = time.process_time()
    rows = bench.walk("tensordash")
    return {row.id.partition(".")[2]: row for row in rows}, time.process_time() - began


def test_every_row_is_filled(walked: tuple[dict[str, Row], float]) -> None:
    rows, seconds = walked
    for row in rows.values():
        assert not row.failed, row
        assert row.ours is not None, row
        assert row.verdict != "not yet"
        assert row.note or row.verdict == "context", row
    assert seconds < SECONDS


def test_what_needs_no_data_is_met(walked: tuple[dict[str, Row], float]) -> None:
    rows, _ = walked
    for name in (
        "random.20",
        "random.90",
        "random.99",
        "random.ideal_20",
        "random.max_deviation",
        "never_slower",
        "pattern.spread",
        "wide16.levels",
    ):
        assert rows[name].verdict == "met", rows[name]
    for name in ("area_overhead.core", "area_overhead.chip", "power_overhead.core", "bfloat16.area.core", "bfloat16.power.core"):
        assert rows[name].verdict == "derived", rows[name]
    assert rows["power_overhead.core_total"].verdict == "contradicted"
    assert [name for name, row in rows.items() if row.verdict == "off"] == []
    assert [name for name, row in rows.items() if row.verdict == "open"] == ["wide16.area_overhead.core"]
    assert rows["random.chip_energy_limit"].verdict in ("met", "near")


def test_printed_inputs_lead_to_the_printed_speedups(walked: tuple[dict[str, Row], float]) -> None:
    rows, _ = walked
    for name in (
        "speedup",
        "depth.2",
        "depth.4",
        "depth.5",
        "rows.1",
        "rows.16",
        "energy.core",
        "bfloat16.core_energy",
        "potential.snli",
    ):
        row = rows[name]
        assert isinstance(row.printed, float)
        assert isinstance(row.paper, float)
        assert row.printed == pytest.approx(row.paper, rel=0.051), row
    assert rows["speedup"].printed == rows["depth.4"].printed
    assert rows["energy.chip"].printed == pytest.approx(1.5, rel=0.1)
    for change in bench.changes("tensordash"):
        assert len(moved(change, [*rows.values()])) == len(change.before)


def test_stand_ins_are_near(walked: tuple[dict[str, Row], float]) -> None:
    """Real training on stand-in data, so no more than the order of things is asked of it."""
    rows, _ = walked
    ours = {name: row.ours for name, row in rows.items()}
    assert 1.5 < ours["speedup"] < ours["potential"]  # type: ignore[operator]
    assert ours["depth.2"] < ours["depth.4"] < ours["depth.5"]  # type: ignore[operator]
    assert ours["rows.1"] > ours["depth.4"] > ours["rows.16"]  # type: ignore[operator]
    assert 1.0 < ours["energy.chip"] < ours["energy.core"] < ours["speedup"]  # type: ignore[operator]
    assert 1.0 <= ours["dense_model.speedup"] < 1.1  # type: ignore[operator]


def test_the_page_draws_every_figure(walked: tuple[dict[str, Row], float], tmp_path: Path) -> None:
    rows, _ = walked
    pages.write_html(list(rows.values()), tmp_path / "tensordash.html")
    text = (tmp_path / "tensordash.html").read_text()
    assert text.count('data-figure="') == len(bench.figures_of(list(rows.values()))) == 12
    for row in rows.values():
        assert row.id in text
