"""Bills of parts against the networks that they count, and the calibration against the paper's totals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.sigma import Sigma
from trainyard.arrays.sigma.components import (
    ACTIVITY,
    CLOCK_HZ,
    Bill,
    areas,
    benes_levels,
    components,
    pitch_m,
    reduction_network,
    sigma_areas,
    sigma_components,
    sigma_parts,
    systolic_parts,
    watts,
)
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.papers.ledger import claims

LANES = st.integers(1, 9).map(lambda power: 2**power)
PAPER = sigma_parts(dpes=128, multipliers=128, bandwidth=128)
TPU = systolic_parts(128 * 128)


def printed(name: str) -> float:
    value = next(claim.value for claim in claims() if claim.id == f"sigma.{name}")
    assert isinstance(value, float)
    return value


def total(parts: tuple) -> float:
    return sum(row.m2 for row in areas(parts))


def fan_by_links(lanes: int) -> Bill:
    """The paper's pseudocode, link by link: adder i sits at the level of its trailing ones."""
    level = [len(format(i, "b")) - len(format(i, "b").rstrip("1")) for i in range(lanes - 1)]
    registers, muxes = lanes - 1, 0
    for i, top in enumerate(level):
        inputs = 0
        for lvl in range(1, top + 1):
            for other in (i - 2 ** (lvl - 1), i + 2 ** (lvl - 1)):
                assert level[other] == lvl - 1
                registers += top - lvl  # stages between the link's ends
                inputs += 1
        if top == 0:
            registers, muxes = registers + 1, muxes + 2  # bypass: a second value leaves
        else:
            muxes += inputs - 2  # to choose two of them
    return Bill(adders=lanes - 1, registers=registers, muxes=muxes)


def art_second_adders(lanes: int) -> int:
    """Adders with a sibling of another parent, level by level."""
    found, width = 0, lanes // 2
    while width > 1:
        parents = [node // 2 for node in range(width)]
        found += sum(
            any(0 <= other < width and parents[other] != parents[node] for other in (node - 1, node + 1)) for node in range(width)
        )
        width //= 2
    return found


@pytest.mark.oracle
@given(LANES)
def test_fan_is_what_the_printed_links_say(lanes: int) -> None:
    ours, theirs = reduction_network(lanes, "fan"), fan_by_links(lanes)
    assert (ours.adders, ours.registers, ours.muxes) == (theirs.adders, theirs.registers, theirs.muxes)


@pytest.mark.oracle
@given(LANES)
def test_art_doubles_the_adders_with_a_sibling(lanes: int) -> None:
    assert reduction_network(lanes, "art").adders == lanes - 1 + art_second_adders(lanes)


@pytest.mark.oracle
@given(LANES)
def test_tree_lines_of_a_folded_layout(lanes: int) -> None:
    """Pairs merge sideways and upwards in turn; an adder lies between its two."""
    places, length = [divmod(i, 2 ** math.ceil((lanes.bit_length() - 1) / 2)) for i in range(lanes)], 0.0
    axis = 1
    while len(places) > 1:
        merged = {}
        places.sort(key=lambda at: (at[1 - axis], at[axis]))
        for one, two in zip(places[::2], places[1::2], strict=True):
            length += abs(one[0] - two[0]) + abs(one[1] - two[1])
            merged[one, two] = ((one[0] + two[0]) / 2, (one[1] + two[1]) / 2)
        places, axis = list(merged.values()), 1 - axis
    assert reduction_network(lanes, "fan").pitches == pytest.approx(length)
    assert length < 1.5 * lanes


@pytest.mark.unit
@given(LANES, st.integers(1, 64))
def test_bills_grow_as_stated(lanes: int, dpes: int) -> None:
    by_name = {part.component: part for part in sigma_parts(dpes=dpes, multipliers=lanes, bandwidth=128)}
    assert by_name["distribution"].there.muxes == 2 * dpes * lanes * (2 * math.log2(lanes) + 1)
    assert by_name["distribution"].moved.muxes == benes_levels(lanes)
    assert by_name["noc"].there.muxes == 15 * 128 * dpes
    assert sum(part.there.multipliers for part in by_name.values()) == dpes * lanes
    assert sum(part.there.adders for part in by_name.values()) == dpes * (lanes - 1)


@pytest.mark.unit
def test_folded_diagonals() -> None:
    """128 lanes, 16 by 8: strides of 1, 2, 4, 8 along one side and 1, 2, 4 along the other."""
    distribution = next(part for part in PAPER if part.component == "distribution")
    assert distribution.moved.pitches == 15 + 7
    assert distribution.there.pitches == 2 * (15 + 7) * 128 * 128


@pytest.mark.paper
def test_calibrated_totals() -> None:
    """What three constants were set by; that the TPU's power follows is not among them."""
    assert total(PAPER) * 1e6 == pytest.approx(printed("area"), rel=1e-3)
    assert 100 * (total(PAPER) / total(TPU) - 1) == pytest.approx(printed("area_overhead_over_tpu"), rel=5e-3)
    assert sum(watts(PAPER).values()) == pytest.approx(printed("power"), rel=1e-3)
    assert sum(watts(PAPER).values()) / sum(watts(TPU).values()) == pytest.approx(printed("power_over_tpu"), rel=0.05)


@pytest.mark.paper
@pytest.mark.parametrize(("kind", "area", "power"), [("fan", 10, 31), ("art", 92, 86)])
def test_reduction_overheads_need_no_calibration(kind: str, area: float, power: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.arrays.sigma import components as module

    for name, value in (("LAYOUT", 1.0), ("ACTIVITY", 1.0), ("REPEATERS", 0.0)):
        monkeypatch.setattr(module, name, value)
    linear, network = reduction_network(512, "linear"), reduction_network(512, kind)  # type: ignore[arg-type]
    assert 100 * (network.cells_m2 / linear.cells_m2 - 1) == pytest.approx(area, rel=0.05)
    assert 100 * (network.joules(0.0) / linear.joules(0.0) - 1) == pytest.approx(power, rel=0.05)


@pytest.mark.unit
def test_events_times_joules_are_the_power() -> None:
    rows = sigma_components(dpes=128, multipliers=128)
    each = {"broadcast": 128.0, "stationary_load": 0.0}
    joules = sum(row.joules * each.get(row.event, 128.0 * 128.0) for row in rows)
    assert joules * CLOCK_HZ * ACTIVITY == pytest.approx(sum(watts(PAPER).values()))


@pytest.mark.unit
def test_rows_name_events_that_the_array_counts() -> None:
    counted = set(Sigma().cost(MatMul(64, 64, 64)).events)
    assert {row.event for row in sigma_components(dpes=128, multipliers=128)} <= counted


@pytest.mark.unit
def test_areas_carry_the_controller_and_scale_it() -> None:
    whole, half = ({row.component: row.m2 for row in sigma_areas(dpes=dpes, multipliers=128)} for dpes in (128, 64))
    assert whole["controller"] == pytest.approx(1.4e-6)
    for component, m2 in half.items():
        assert m2 == pytest.approx(whole[component] / 2)


@pytest.mark.unit
def test_pitch_is_the_side_of_a_lane() -> None:
    assert pitch_m(TPU) ** 2 * 128 * 128 == pytest.approx(sum(part.there.cells_m2 for part in TPU))
    assert pitch_m(TPU) < pitch_m(PAPER)


@pytest.mark.unit
def test_bills_add_and_scale() -> None:
    bill = Bill(adders=2, muxes=1) + Bill(adders=1, pitches=4) * 0.5
    assert bill == Bill(adders=2.5, muxes=1, pitches=2)
    assert bill.joules(1e-4) > Bill(adders=2.5, muxes=1).joules(1e-4)
    assert [row.joules for row in components(TPU)] == [TPU[0].moved.joules(pitch_m(TPU))]


@pytest.mark.unit
def test_bad_input_says_what_to_write() -> None:
    with pytest.raises(BadInput, match="64 or 128"):
        sigma_parts(dpes=1, multipliers=96)
    with pytest.raises(BadInput, match="bandwidth"):
        sigma_parts(dpes=1, multipliers=64, bandwidth=0)
    with pytest.raises(UnknownName, match="fan"):
        reduction_network(64, "fam")  # type: ignore[arg-type]
