"""What a shell does to a program: pipes that close, full disks, terminals without our signs, keys pressed too early."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from trainyard import cli
from trainyard.__main__ import main as start
from trainyard.cli.faults import EXAMPLES
from trainyard.errors import BadInput
from trainyard.files import require_writable
from trainyard.machines import describe, machine

PROGRAM = [sys.executable, "-m", "trainyard.cli"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a mistake."""
    assert cli.main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    "words",
    [["list"], ["run", "linear", "--on", "npu", "--json", "-"], ["reproduce", "direct", "--figure", "Table I", "--context"]],
)
def test_a_reader_that_has_read_enough_is_no_error(words: list[str]) -> None:
    """`trainyard list | head -1`, without the race: nobody reads at all."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run([*PROGRAM, *words], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["list"], ["run", "linear", "--on", "npu", "--json", "-"]])
def test_a_full_disk_behind_stdout_is_one_line(words: list[str], tmp_path: Path) -> None:
    """A file that may not grow: `trainyard list > file` on a full disk."""
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); import signal; "
    limited += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); runpy.run_module('trainyard.cli', run_name='__main__')"
    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run([sys.executable, "-c", limited, *words], stdout=out, stderr=subprocess.PIPE, text=True, env=quiet)
    assert done.returncode == 2
    assert done.stderr == "trainyard: cannot write to stdout: File too large\n"


def test_a_terminal_without_our_signs_gets_plain_ones() -> None:
    """All commands in one process: its start takes longer than they do."""
    commands = ("run linear --on npu", "explain linear --on npu", "reproduce igo --figure 'Sec. 2.1' --context")
    program = "import shlex, sys; from trainyard import cli\n"
    program += "for line in sys.argv[1:]: print(cli.main(shlex.split(line)), '#end')"
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program, *commands], capture_output=True, env=plain)
    assert (done.returncode, done.stderr) == (0, b"")
    texts = done.stdout.decode("ascii").split(" #end\n")[:-1]
    assert len(texts) == len(commands)
    for text in texts:
        assert text.endswith("0")  # the exit code
        assert " us" in text or ">=" in text
        assert "?" not in text


def test_streams_that_cannot_be_changed_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.report.terminal import replace_unknown_signs

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    replace_unknown_signs()
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    replace_unknown_signs()
    ascii_only.write("12 µs, 1 ≥ 0 …λ")
    ascii_only.flush()
    assert ascii_only.buffer.getvalue() == b"12 us, 1 >= 0 ~?"  # type: ignore[attr-defined]  # the BytesIO above


def test_an_interrupted_process_says_so(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef build():\n    print('begun', flush=True)\n    time.sleep(60)\n")
    command = [*PROGRAM, "run", str(tmp_path / "slow.py") + ":build", "--on", "npu", "--html", str(tmp_path / "r.html")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores the signal
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == cli.INTERRUPTED
    assert err == "trainyard: interrupted\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["slow.py"]


def test_an_interrupt_while_the_program_is_imported_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert start() == cli.INTERRUPTED
    assert capsys.readouterr().err == "trainyard: interrupted\n"


def test_a_budget_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "write --budget '24 GB'" in said(capsys, "memory", "linear", "--on", "npu", "--budget", "24")
    assert "write --link '5.5 GB/s'" in said(capsys, "memory", "linear", "--on", "npu", "--link", "5.5")


def test_a_file_is_asked_for_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainyard.cli.request.RunRequest.results", lambda *_, **__: pytest.fail("ran before it looked"))
    for option in ("--html", "--csv", "--perfetto", "--parquet"):
        assert "name a file" in said(capsys, "run", "linear", "--on", "npu", option, "-")
        assert "no folder no/such" in said(capsys, "run", "linear", "--on", "npu", option, "no/such/file")
    assert "name a file" in said(capsys, "run", "linear", "--on", "npu", "--json", "")
    assert "name a file" in said(capsys, "reproduce", "igo", "--markdown", "-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["run", "linear", "--on", "npu", "--html", "folder"],
        ["compare", "linear", "--on", "npu", "--json", "folder"],
        ["record", "mine.py:train", "-o", "folder"],
        ["export", "linear", "--to", "step", "-o", "folder/none/step.json"],
        ["export", "linear", "--to", "scalesim", "-o", "folder"],
        ["export", "linear", "--to", "chakra", "--on", "npu", "-o", "none/trace"],
        ["export", "linear", "--to", "timeloop", "-o", "file"],
        ["explain", "tensordash", "--html", "folder"],
        ["reproduce", "igo", "--markdown", "folder"],
        ["reproduce", "igo", "--search", "--store", "file"],
        ["sweep", "study.toml", "--store", "file/store"],
        ["sweep", "study.toml", "--csv", "/proc/no.csv"],
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """None of the workloads, programs and studies is there: the path is what is said to be wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("trainyard.workloads.named.load", lambda *_: pytest.fail("read before it looked"))
    assert said(capsys, *words).startswith("trainyard: cannot write ")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    require_writable(tmp_path / "pipe")
    require_writable(os.devnull)
    os.close(reading)


def test_a_name_that_ends_as_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="it is a folder"):
        require_writable(f"{tmp_path}/later/")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "resnet50"], "Missing option '--on'; for example: trainyard run resnet50 --on npu; trainyard list machines"),
        (["run"], "Missing argument 'workload'; for example: trainyard run resnet50 --on npu; trainyard list models"),
        (["export", "resnet50", "--to", "step"], "for example: trainyard export resnet50 --to step -o resnet50.json"),
        (["sweep"], "for example: trainyard sweep examples/npu_pareto.toml"),
        (["record"], "for example: trainyard record my.py:train"),
    ],
)
def test_a_missing_option_is_shown_by_example(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert says in said(capsys, *words)


def test_every_command_that_needs_more_than_its_name_has_an_example() -> None:
    for command in cli.app.registered_commands:
        callback = command.callback
        assert callback is not None
        name = command.name or callback.__name__
        needed = [p for p in inspect.signature(callback).parameters.values() if p.default is p.empty]
        assert (name in EXAMPLES) == bool(needed), name
        assert EXAMPLES.get(name, f"trainyard {name}").startswith(f"trainyard {name}")


def test_a_batch_beyond_counting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "run", "linear", "--on", "npu", "--batch", "9" * 30).startswith(
        f"trainyard: --batch {'9' * 30} is too large"
    )
    assert said(capsys, "run", "linear", "--on", "h200", f"--batch={10**17}").startswith(
        f"trainyard: --batch {10**17} is too large"
    )


def test_a_folder_is_no_workload(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("nets", "old.json", "linear"):
        (tmp_path / folder).mkdir()
    assert "nets is a folder: name a file in it (.json" in said(capsys, "run", "nets", "--on", "npu")
    assert "old.json is a folder" in said(capsys, "run", "old.json", "--on", "npu")
    (tmp_path / "nets" / "mine.py").write_text("")
    assert "name a file in it, such as nets/mine.py:function" in said(capsys, "run", "nets", "--on", "npu")
    assert cli.main(["export", "linear", "--to", "step", "-o", "step.json"]) == 0  # a zoo model comes before a folder of its name


def test_paths_with_spaces(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my yard").mkdir()
    (tmp_path / "my yard" / "small npu.toml").write_text('base = "npu-small"\n')
    assert cli.main(["run", "linear", "--on", "my yard/small npu.toml", "--no-range", "--csv", "my yard/r.csv"]) == 0
    assert "wrote my yard/r.csv" in capsys.readouterr().err
    assert (tmp_path / "my yard" / "r.csv").read_text().startswith("op")


def test_several_machines_where_one_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "explain", "whatif"):
        assert "trainyard compare takes several" in said(capsys, command, "linear", "--on", "npu,tpu(dram=1 GB/s)")


def test_overrides_name_the_machine_that_does_not_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200: unknown key of Gpu 'array'" in said(capsys, "compare", "linear", "--on", "npu,h200", "--set", "array.rows=64")
    assert "did you mean 'array.rows'" in said(capsys, "run", "linear", "--on", "npu", "--set", "rows=64")
    assert "write path=value" in said(capsys, "run", "linear", "--on", "npu", "--set", "array..rows=64")


def test_sizes_beyond_counting(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--batch" not in said(capsys, "run", "linear", "--on", "npu(array=systolic(rows=1e99))")


def test_a_users_function_may_need_torch_or_end_the_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def build():\n    import torch\n\ndef leave():\n    raise SystemExit(3)\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("sys.meta_path", [NoTorch(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch")
    for command in (["run", f"{tmp_path}/mine.py:build", "--on", "npu"], ["record", f"{tmp_path}/mine.py:build"]):
        assert "pip install 'trainyard[torch]'" in said(capsys, *command)
    assert "ended the program with exit(3)" in said(capsys, "run", f"{tmp_path}/mine.py:leave", "--on", "npu")


class NoTorch:
    """Finds torch missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


@pytest.mark.parametrize("name", ["npu", "h200", "npu(dram=75 GB/s)", "replicas(device=npu-small,devices=4,link=25 GB/s)"])
def test_a_shown_machine_is_a_machine_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    assert cli.main(["show", name]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["type"]
    (tmp_path / "shown.toml").write_text(text)
    assert machine(tmp_path / "shown.toml") == machine(name)
    assert cli.main(["show", name, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe(machine(name))))


def test_a_shown_preset_names_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "npu"])
    lines = {line.partition(" = ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["dram_bytes_per_s"].endswith("# Table 3: 150 GB/s per core")
    assert lines["vector_lanes"].endswith("or: 128")
    assert lines["rows"].partition("# ")[2].startswith("Table 3")
    cli.main(["show", "npu(dram=75 GB/s)"])
    changed = {line.partition(" = ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "Table 3" not in changed["dram_bytes_per_s"]  # a changed number is not the paper's
    assert "Table 3" in changed["clock_hz"]
    assert "did you mean 'npu'" in said(capsys, "show", "NPI")
