"""Units: what goes in comes out, and what cannot be meant is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.units import parse, show, unit_of_field


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("8 MiB", "B", 8 * 2**20),
        ("8MB", "B", 8e6),
        ("32 KB", "B", 32e3),
        ("16 Gb", "B", 2e9),
        ("900 GB/s", "B/s", 900e9),
        ("8 Gb/s", "B/s", 1e9),
        ("25 GiB/s", "B/s", 25 * 2**30),
        ("1.05 GHz", "Hz", 1.05e9),
        ("350MHz", "Hz", 350e6),
        ("500 ns", "s", 500e-9),
        ("2.5 us", "s", 2.5e-6),
        ("2 min", "s", 120.0),
        ("150 mW", "W", 0.15),
        ("3.7 pJ", "J", 3.7e-12),
        ("65.1 mm2", "m2", 65.1e-6),
        ("1e3", "", 1000.0),
        (42, "B", 42.0),
    ],
)
def test_parse(text: str, unit: str, value: float) -> None:
    assert parse(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["8 MHz", "MiB", "", "8 MiBs", "eight", "1e999 B", "nan", math.nan, math.inf, True, None, "8 mi B"]
)
def test_what_is_not_a_size_is_refused(text: object) -> None:
    with pytest.raises(BadInput, match="scratchpad"):
        parse(text, "B", "scratchpad")  # type: ignore[arg-type]


@given(st.floats(1e-11, 1e17), st.sampled_from(["s", "J", "W", "Hz"]))
def test_what_is_shown_can_be_parsed_again(value: float, unit: str) -> None:
    assert parse(show(value, unit, digits=6), unit) == pytest.approx(value, rel=1e-5)


@given(st.integers(1, 10**17))
def test_sizes_shown_in_either_system_agree(count: int) -> None:
    assert parse(show(count, "B", digits=6), "B") == pytest.approx(count, rel=1e-5)
    assert parse(show(count, "B", binary=True, digits=6), "B") == pytest.approx(count, rel=1e-5)


def test_the_field_name_tells_the_unit() -> None:
    assert unit_of_field("scratchpad_bytes") == "B"
    assert unit_of_field("dram_bytes_per_s") == "B/s"
    assert unit_of_field("dram_latency_s") == "s"
    assert unit_of_field("columns") is None


def test_an_unknown_name_offers_the_nearest_or_nothing() -> None:
    assert UnknownName("machine", "nup", ["npu", "tpu"]).nearest == "npu"
    assert UnknownName("machine", "zzzzz", ["npu", "tpu"]).nearest is None
