"""The ledger's column "from gates": arithmetic on measured circuits, shown beside ours, and the judge of calibrated rows."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.papers import gates, ledger
from trainyard.papers.ledger import Claim, Measured, claims, judge
from trainyard.papers.pages import COLUMNS, cells


def network(area: float, energy: float, *, whole: float = 0.0) -> dict[str, Any]:
    load = {"pj_per_cycle": energy + 5, "clock_pj": energy / 2, "inputs_pj": 5.0, "by_part": {"tree": energy}}
    return {"area_um2": whole or area, "area_by_part": {"tree": area}, "energy": {"one": load, "mixed": load}}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A chain, FAN and ART with round figures at 16 and 512 lanes."""
    table = {
        "chain/16": network(100.0, 95.0), "fan/16": network(110.0, 115.0), "art/16": network(160.0, 145.0),
        "chain/512": network(1000.0, 995.0), "fan/512": network(1200.0, 1295.0, whole=1260.0), "art/512": network(2000.0, 1795.0),
    }  # fmt: skip
    monkeypatch.setattr(gates, "content", lambda: {"measurements": table})
    return table


def value(claim: str) -> float:
    found = gates.figure(claim)
    assert found is not None
    return found.value


def test_overheads_over_the_chain_are_ratios_of_areas_and_energies(measured: dict[str, Any]) -> None:
    assert value("sigma.fan.area_overhead_over_linear_512") == pytest.approx(20.0)
    assert value("sigma.art.area_overhead_over_linear_512") == pytest.approx(100.0)
    assert value("sigma.fan.power_overhead_over_linear_512") == pytest.approx(30.0)
    assert value("sigma.art.power_overhead_over_linear_512") == pytest.approx(80.0)
    found = gates.figure("sigma.fan.area_overhead_over_linear_512")
    assert found is not None
    assert "select registers would add 5 %" in found.note


def test_energy_delay_products_take_the_simulators_cycles(measured: dict[str, Any]) -> None:
    faster = (1009 / 1512) ** 2
    assert value("sigma.fan.edp_below_linear_512") == pytest.approx(100 * (1 - 1.3 * faster))
    assert value("sigma.fan.edp_below_art_512") == pytest.approx(100 * (1 - 1.3 / 1.8))
    assert gates.power_over_chain("fan", 16) == pytest.approx(1.2)
    assert 1.2 < gates.power_over_chain("fan", 128) < 1.3
    assert value("sigma.fan.edp_wins_from") == 256  # at 128 lanes 1.26 times the power for 0.893 of the time


def test_what_was_not_measured_has_no_figure(measured: dict[str, Any]) -> None:
    assert gates.figure("tensordash.area_overhead.core") is None
    del measured["chain/512"]
    assert gates.figure("sigma.fan.area_overhead_over_linear_512") is None
    assert gates.figure("sigma.fan.edp_wins_from") is None
    assert gates.figure("igo.small.all") is None


def test_every_figure_is_of_a_claim() -> None:
    known = {claim.id for claim in claims()}
    assert set(gates.FIGURES) <= known
    assert set(gates.JUDGED_BY_GATES) <= set(gates.FIGURES)


def test_a_row_shows_its_figure_and_is_judged_by_ours(measured: dict[str, Any]) -> None:
    claim = next(one for one in claims() if one.id == "sigma.fan.area_overhead_over_linear_512")
    row = judge(claim, Measured(10.0, note="counted"))
    assert (row.verdict, row.ratio) == ("derived", 1.0)
    assert row.gates == pytest.approx(20.0)
    assert row.as_dict()["gates"] == row.gates
    assert dict(zip(COLUMNS, cells(row), strict=True))["from gates"] == "20"
    assert "From gates: Adders with forwarding links" in row.details


@pytest.mark.parametrize(("counted", "verdict"), [(65.1, "met"), (72.0, "near"), (90.0, "off")])
def test_a_calibrated_row_is_judged_by_the_gates(monkeypatch: pytest.MonkeyPatch, counted: float, verdict: str) -> None:
    monkeypatch.setattr(ledger, "figure_from_gates", lambda claim: gates.GateFigure(counted, "Cells."))
    claim = next(one for one in claims() if one.id == "sigma.area")
    row = judge(claim, Measured(65.1, note="Calibrated on this claim."))
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(counted / 65.1)
    assert row.ours == 65.1
    other = Claim(id="sigma.power_over_tpu", value=2.0, unit="x", use="table", where="Sec. V")
    assert judge(other, Measured(2.0)).verdict == "met"


def test_the_file_that_ships_was_measured_with_named_tools() -> None:
    content = gates.content()
    assert content["tools"]["yosys"]
    assert content["library"]["name"] == "osu018_stdcells"
    for key, found in content["measurements"].items():
        assert found["gates"] > 0, key
        assert found["area_um2"] >= 16 * found["gates"], key  # the smallest cell
        assert found["critical_path_ns"] > 0
        assert all(load["pj_per_cycle"] > 0 for load in found["energy"].values())
        if "design" in found["parameters"]:
            assert any(load["values_compared"] > 0 for load in found["energy"].values()), key
    assert all(run["cycles"] >= 10_000 for run in content["equality"].values())
    assert content["formal"]
