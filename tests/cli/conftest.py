"""The program, called as a user calls it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainyard import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trainyard(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call
