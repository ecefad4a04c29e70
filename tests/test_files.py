"""Files are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trainyard.errors import BadInput
from trainyard.files import whole_file, write_text
from trainyard.reading import read_text


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_text(target, "old")

    def fill_the_disk() -> None:
        with whole_file(target) as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(BadInput, match="No space left on device"):
        fill_the_disk()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_really_full_disk_is_one_line_and_the_device_stays_one() -> None:
    with pytest.raises(BadInput, match="cannot write /dev/full: No space left on device"):
        write_text("/dev/full", "text")
    assert not Path("/dev/full").is_file()


def test_a_folder_in_the_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Is a directory"):
        write_text(tmp_path, "text")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_and_a_missing_file_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot write .*No such file"):
        write_text(tmp_path / "absent" / "x.html", "text")
    with pytest.raises(BadInput, match="cannot read machine file"):
        read_text(tmp_path / "absent.toml", "machine file")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not text"):
        read_text(tmp_path / "binary.toml")
