"""A second command on the same step and machine searches no tiles, and prints the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.cli import main
from trainyard.devices.accelerator import batch_costs
from trainyard.files import cache_folder

COMMAND = ["run", "bert-tiny", "--on", "npu-small", "--no-range", "--json", "-"]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    batch_costs._searched.clear()  # as in another process
    assert main(COMMAND) == 0
    return capsys.readouterr().out


def unexpected(*_: object) -> None:
    raise AssertionError("tiles were searched")


def test_found_tilings_are_read_by_the_next_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = printed(capsys)
    stored: list[Path] = [*(cache_folder() / "tilings").iterdir()]
    assert stored
    monkeypatch.setattr(batch_costs, "search_tiles", unexpected)
    assert printed(capsys) == first


def test_nothing_is_stored_where_that_is_turned_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = printed(capsys)
    monkeypatch.setenv("TRAINYARD_TILINGS", "off")
    monkeypatch.setenv("TRAINYARD_CACHE", str(cache_folder() / "elsewhere"))
    assert printed(capsys) == first
    assert not (cache_folder() / "tilings").exists()
