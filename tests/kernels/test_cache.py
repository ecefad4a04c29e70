"""Compiled loops on a read-only installation, and on a cold cache that several processes share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from numba import config

from trainyard.errors import TrainyardError
from trainyard.kernels import cache

IMPORT = "from trainyard.kernels import dpu_pipeline; print('imported')"
AGAIN = f"import subprocess, sys; {IMPORT}; subprocess.run([sys.executable, '-c', {IMPORT!r}], check=True)"
COMPILE = """
import os, sys, time
from numba import int64
from trainyard.kernels import compilation, dpu_pipeline
loops = []
print("ready", flush=True)
sys.stdin.read()  # all begin together
with compilation.observed(loops.append):
    dpu_pipeline._skip.compile((int64[::1], int64[::1], int64, int64))
print(len(loops))
"""
PACKAGE = Path(cache.__file__).parents[1]


def environment(temporary: Path, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in (cache.VARIABLE, "HOME", "XDG_CACHE_HOME")}
    return {**inherited, "TMPDIR": str(temporary), "HOME": "/nonexistent", **more}


def test_where_numba_finds_no_folder_a_temporary_one_is_used_with_one_line_of_warning(tmp_path: Path) -> None:
    """numba is told to look where there is nothing: neither beside the source nor at home."""
    nowhere = environment(tmp_path, NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator")
    done = subprocess.run([sys.executable, "-c", AGAIN], env=nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["imported", "imported"]
    (line,) = done.stderr.splitlines()  # and the process that it started says nothing
    assert line.startswith(f"trainyard: warning: compiled loops are kept in {tmp_path}/trainyard-loops-{os.getuid()}, since")
    assert line.endswith("set NUMBA_CACHE_DIR to a folder that stays")


def test_where_neither_the_package_nor_a_home_can_be_written_the_loops_can_be_imported(tmp_path: Path) -> None:
    """A copy of the package that nobody may write; root gives up the right to write it all the same."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    for folder in (home, temporary):
        folder.mkdir()
    for file in (*PACKAGE.glob("*.py"), *(PACKAGE / "kernels").glob("*.py")):
        copy = tmp_path / "trainyard" / file.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    read_only = [tmp_path / "trainyard", tmp_path / "trainyard" / "kernels", home]
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.getuid() == 0 else []
    if drop and not shutil.which("setpriv"):
        pytest.skip("root can write everything, and there is no setpriv to give that up")
    for folder in read_only:
        folder.chmod(0o555)
    try:
        done = subprocess.run(
            [*drop, sys.executable, "-B", "-c", IMPORT],
            env=environment(temporary, HOME=str(home), PYTHONPATH=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for folder in read_only:
            folder.chmod(0o755)
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"kept in {temporary}/trainyard-loops-{os.getuid()}" in done.stderr


def test_a_folder_that_others_can_write_is_not_trusted_with_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv(cache.VARIABLE, "")
    planted = tmp_path / f"trainyard-loops-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    cache.use_temporary_folder()
    used = Path(os.environ[cache.VARIABLE])
    assert used.parent == tmp_path
    assert used != planted
    assert used.stat().st_mode & 0o077 == 0
    assert str(used) in capsys.readouterr().err


def test_where_nothing_can_be_written_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(TrainyardError, match="set NUMBA_CACHE_DIR to a folder that can be written"):
        cache.use_temporary_folder()


def test_a_loop_is_out_of_date_when_a_file_changes_that_its_source_imports(tmp_path: Path) -> None:
    """The package is copied, run, changed in the innermost file, and run again with the same cache."""
    copied = tmp_path / "trainyard"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "papers", "zoo", "web", "*.nb?"))
    changed = copied / "kernels" / "mapping" / "tile_bounds.py"
    code = "import numpy; from trainyard.kernels.mapping.tile_leaf import keep_bits; print(keep_bits(numpy.arange(3), 1))"
    run = {**os.environ, cache.VARIABLE: str(tmp_path / "loops"), "PYTHONPATH": str(tmp_path)}
    run["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode of a file of the same size and second would be taken for that of the new one
    answers = []
    for text in (changed.read_text(), changed.read_text().replace("1 if axis == 0 else (0", "0 if axis == 0 else (1")):
        changed.write_text(text)
        answers.append(subprocess.run([sys.executable, "-c", code], env=run, capture_output=True, text=True, check=True).stdout)
    assert answers == ["1\n", "2\n"]


def test_of_several_processes_on_a_cold_cache_one_compiles_a_loop_and_the_others_read_it(tmp_path: Path) -> None:
    cold = {**os.environ, cache.VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, env=cold, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    assert sorted(int(process.communicate()[0]) for process in processes) == [0, 0, 1]
