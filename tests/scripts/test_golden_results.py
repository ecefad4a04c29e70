"""Twenty results are what they were; a change needs a line in the changelog that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden_results
import pytest
from golden_results import CASES, HOW, MARK, Case, difference, measured, new_reason, reasons, stored

REASON = f"{MARK} tiles of attention products are searched to the end."


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_result_is_what_it_was(case: Case) -> None:
    line = difference(case.name, stored()["results"].get(case.name), measured(case))
    assert not line, f"{line}. {HOW}"


def test_there_are_twenty_and_the_file_has_no_others() -> None:
    assert len({case.name for case in CASES}) == 20
    assert set(stored()["results"]) == {case.name for case in CASES}


def test_the_changelog_says_why_the_hashes_are_what_they_are() -> None:
    assert stored()["reasons"], HOW
    assert stored()["reasons"][-1] in reasons(golden_results.CHANGELOG.read_text(encoding="utf-8"))


def test_a_reason_is_read_with_the_lines_that_it_goes_on_to() -> None:
    text = f"# Changelog\n\nIt.\n- Another line.\n{MARK} tiles of attention\n  products are longer.\n- More.\n\nNext.\n"
    assert reasons(text) == [f"{MARK} tiles of attention products are longer."]


@pytest.mark.parametrize(
    ("changelog", "used"),
    [("- Something else.\n", []), (f"{REASON}\n", [REASON]), (f"{MARK} because.\n", [])],
    ids=["no line", "a line that was used", "a line that says nothing"],
)
def test_without_a_new_reason_a_renewal_is_refused(changelog: str, used: list[str]) -> None:
    with pytest.raises(SystemExit, match="refused: no new line"):
        new_reason(f"# Changelog\n{changelog}", used)


def test_a_renewal_writes_the_new_hashes_with_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: dict[str, Any] = {"sha256": "a", "time_s": "1"}
    monkeypatch.setattr(golden_results, "ROOT", tmp_path)
    monkeypatch.setattr(golden_results, "FILE", tmp_path / "golden" / "results.json")
    monkeypatch.setattr(golden_results, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(golden_results, "measured", lambda case: figures)
    golden_results.CHANGELOG.write_text(f"# Changelog\n{REASON}\n")
    golden_results.main(["--renew"])
    assert json.loads(golden_results.FILE.read_text())["reasons"] == [REASON]
    golden_results.main([])
    figures |= {"sha256": "b", "time_s": "2"}
    for words, says in ([], "write a new line"), (["--renew"], "refused: no new line"):
        with pytest.raises(SystemExit, match=says):
            golden_results.main(words)
    assert "linear on npu has changed: time_s 1 -> 2" in capsys.readouterr().out


def test_a_result_that_differs_in_the_last_digits_of_a_sum_has_the_same_hash() -> None:
    assert golden_results.rounded([0.1 + 0.2, {"a": 1 / 3}]) == golden_results.rounded([0.3, {"a": 1 / 3 + 1e-16}])
    assert golden_results.rounded(0.3) != golden_results.rounded(0.3 * (1 + 1e-8))
