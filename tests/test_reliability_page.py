"""The page on reliability: its figures are those of the data, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import reliability_page

ROOT = Path(__file__).parents[1]
TEXT = reliability_page.PAGE.read_text(encoding="utf-8")


def test_figures_and_limits_are_those_that_were_measured_and_are_set() -> None:
    assert reliability_page.renewed(TEXT) == TEXT, "python scripts/reliability_page.py"
    assert {match["name"] for match in reliability_page.SECTION.finditer(TEXT)} == set(reliability_page.SECTIONS)


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:[\w/]+/)?[\w-]+\.(?:py|json|md))`", TEXT))
    assert len(named) > 12
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    assert not [name for name in named if not (ROOT / name).exists() and name not in tests]
