"""All of `trainyard reproduce direct`: every row filled, orders that must hold, every figure drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainyard.papers import bench, pages
from trainyard.papers.direct import contributions, efficiency, measuring, studies, table
from trainyard.papers.direct.assumptions import sensitivity_study
from trainyard.papers.direct.measuring import RESNET18, WORKLOADS, system
from trainyard.papers.ledger import Row
from trainyard.sensitivity import run_study

pytestmark = [pytest.mark.slow, pytest.mark.paper]
CONTRADICTED = {
    "time.resnet18", "energy.linear", "energy.resnet18", "energy_cut", "efficiency.abstract", "efficiency.resnet18.fig2",
    "speedup.pim_opt", "area", "power",
}  # fmt: skip


@pytest.fixture(scope="module")
def walked() -> dict[str, Row]:
    return {row.id.partition(".")[2]: row for row in bench.walk("direct")}


def test_every_row_is_filled(walked: dict[str, Row]) -> None:
    for name, row in walked.items():
        assert not row.failed, row
        assert row.ours is not None, name
        assert row.verdict != "not yet"
        assert all(math.isfinite(value) for value in (row.ours if isinstance(row.ours, tuple) else (row.ours,))), row
        assert row.note or row.verdict == "context", row


def test_what_is_contradicted_carries_its_proof(walked: dict[str, Row]) -> None:
    assert {name for name, row in walked.items() if row.verdict == "contradicted"} == CONTRADICTED
    assert {name for name, row in walked.items() if row.verdict == "substitute"} == {
        "accuracy.linear", "accuracy.resnet18", "accuracy_gain",
    }  # fmt: skip
    assert not [name for name, row in walked.items() if row.verdict == "off" and row.claim.use == "headline"]


def test_nothing_is_met_by_construction(walked: dict[str, Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """No simulated value is the paper's own, and other printed figures do not change it."""
    for row in walked.values():
        if row.claim.use in ("headline", "table"):
            assert row.ours != row.paper, row
    monkeypatch.setattr(efficiency, "stated", lambda claim: (0.5, 0.5, 0.5))
    assert bench.experiments("direct")["direct.efficiency.pim_opt_knee"]().value == walked["efficiency.pim_opt_knee"].ours


def test_what_must_hold_for_both_workloads(walked: dict[str, Row]) -> None:
    assert walked
    for one in WORKLOADS:
        host, serial, fast = (system(name, one) for name in ("PIM-Opt", "PIM-Opt, DPU by DPU", "DIRECT"))
        real = system("PIM-Opt, rank-parallel", one)
        assert fast.time_s < real.time_s < host.time_s < serial.time_s
        assert fast.energy_j < real.energy_j < host.energy_j < serial.energy_j
        assert fast.latency_s < real.latency_s < host.latency_s < serial.latency_s
        speedup = table.epoch_s("PIM-Opt", one) / table.epoch_s("DIRECT", one)
        assert speedup == pytest.approx(fast.efficiency / host.efficiency)
        seconds = contributions.times(one)
        whole, none = seconds[frozenset(contributions.PARTS)], seconds[frozenset()]
        assert all(seconds[frozenset({part})] < none for part in contributions.PARTS)  # each part helps by itself
        assert whole < 1.05 * min(seconds.values())  # few exchanges leave little for the others to win
        assert contributions.removed(seconds)["AGAU"] == seconds[frozenset({"DSC", "LAA"})] / whole


def test_other_processes_find_the_same(walked: dict[str, Row]) -> None:
    wanted = measuring.Job(measuring.machine("DIRECT", RESNET18), RESNET18, 2048)
    assert measuring.run_job(wanted) == system("DIRECT", RESNET18)
    assert walked


def test_every_figure_is_drawn(walked: dict[str, Row], tmp_path: Path) -> None:
    rows = [*walked.values()]
    assert {name for name in bench.figures("direct") if name.startswith(("Fig", "Table"))} == {"Fig. 2", "Fig. 3", "Table II"}
    pages.write_html(rows, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for name in bench.figures("direct"):
        assert "".join(letter if letter.isalnum() else "-" for letter in name.lower()) in page


def test_exchanges_fall_with_tau_and_accuracy_stays() -> None:
    found = studies.by_tau()
    assert [len(one.exchanges) for one in found.values()] == [128, 64, 32, 16, 8, 4, 2, 1]
    times = [one.time_s for one in found.values()]
    assert times == sorted(times, reverse=True)
    ages = [one.age_s.mean for one in found.values()]
    assert ages == sorted(ages)
    assert max(one.accuracy for one in found.values()) - found[31].accuracy < 0.005


def test_assumptions_are_weighed() -> None:
    found = run_study(sensitivity_study(("assumption",)), paired=0)
    assert abs(found[0].change) >= abs(found[-1].change)
    assert not [one for one in found if one.error and "cluster_size" not in one.name and "dsc.entries" not in one.name]
    assert any(one.name == "resnet18: host.channels" for one in found)
