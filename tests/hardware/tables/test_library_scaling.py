"""Figures of the 0.18 um library at other nodes, against the published polynomials worked out by hand."""

from __future__ import annotations

import pytest

from trainyard.errors import BadInput
from trainyard.hardware.tables.library_scaling import area_at, delay_at, energy_at

LIBRARY_DELAY = 79.0116  # 97.09 * 3.24 - 356.7 * 1.8 + 406.5, Stillmaker 2017 at 180 nm and 1.8 V
LIBRARY_ENERGY = 26.372  # 24.64 * 1.8 - 17.98


@pytest.mark.paper
@pytest.mark.parametrize(
    ("nm", "delay"),
    [
        (45, -501.6 * 0.729 + 1567.0 * 0.81 - 1619.0 * 0.9 + 566.1),  # at 0.9 V: 12.6
        (20, 34.63 * 0.81 - 66.37 * 0.9 + 41.15),  # 9.5
        (7, -28.58 * 0.343 + 76.6 * 0.49 - 70.26 * 0.7 + 24.69),  # at 0.7 V: 3.2
    ],
)
def test_a_path_is_as_much_faster_as_the_nodes_gates(nm: int, delay: float) -> None:
    assert delay_at(10.0, nm) == pytest.approx(10.0 * delay / LIBRARY_DELAY)


def test_delay_between_two_nodes_lies_between_theirs() -> None:
    assert delay_at(1.0, 32) < delay_at(1.0, 40) < delay_at(1.0, 45)
    with pytest.raises(BadInput, match="outside the tables"):
        delay_at(1.0, 3)


@pytest.mark.paper
def test_energy_and_area_follow_the_nodes_factors() -> None:
    assert energy_at(10.0, 45) == pytest.approx(10.0 * (1.018 * 0.81 - 0.3107 * 0.9 + 0.1539) / LIBRARY_ENERGY)
    assert energy_at(10.0, 65) == pytest.approx(10.0 * (3.755 * 1.21 - 4.398 * 1.1 + 1.975) / LIBRARY_ENERGY)
    assert area_at(38.0, 90) == pytest.approx(2 * 2.8)
