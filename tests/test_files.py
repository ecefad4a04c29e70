"""Files are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trainyard.errors import BadInput
from trainyard.files import read_text, whole_file, write_text


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_text(target, "old")
    with pytest.raises(BadInput, match="No space left on device"), whole_file(target) as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_really_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        return
    with pytest.raises(BadInput, match="cannot write"), whole_file("/dev/full/report.html"):
        pass


def test_a_missing_folder_and_a_missing_file_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write .*No such file"):
        write_text(tmp_path / "absent" / "x.html", "text")
    with pytest.raises(BadInput, match="cannot read machine file"):
        read_text(tmp_path / "absent.toml", "machine file")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not text"):
        read_text(tmp_path / "binary.toml")
