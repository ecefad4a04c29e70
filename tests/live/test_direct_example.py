"""`torchrun examples/direct_ddp.py` with two processes: it trains, it reports, and it goes on after an interruption."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "direct_ddp.py"


LAUNCHER = f"""
import json, os, runpy, sys
from multiprocessing import get_context
import torch._dynamo, torch.distributed
import numba, sklearn.datasets, trainyard.live.direct

def example(rank, options):
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = ["direct_ddp.py", *options]
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")

for line in sys.stdin:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), WORLD_SIZE="2")
    os.environ |= dict(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    ranks = [get_context("fork").Process(target=example, args=(rank, json.loads(line))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    print("exit codes", [process.exitcode for process in ranks], flush=True)
"""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
Launcher = Callable[..., str]


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Launcher]:
    """What torchrun does, with the ranks of all runs forked from one process that has imported the libraries: most of the time."""
    errors = tmp_path / "errors.txt"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
            env=os.environ | ENVIRONMENT,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def run(*options: str) -> str:
        print(json.dumps(options), file=process.stdin, flush=True)
        lines = []
        for line in process.stdout or ():
            if line.startswith("exit codes"):
                assert line == "exit codes [0, 0]\n", errors.read_text()
                return "".join(lines)
            lines.append(line)
        raise AssertionError(errors.read_text())

    yield run
    process.stdin.close()
    process.stdout.close()
    assert process.wait(20) == 0


def torchrun(*options: str) -> str:
    words = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(EXAMPLE))
    command = [sys.executable, "-m", "torch.distributed.run", *words, *options]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reported(launcher: Launcher, folder: Path, *options: str) -> dict[str, Any]:
    report = folder / "report.json"
    printed = launcher("--report", str(report), *options)
    actual: dict[str, Any] = json.loads(report.read_text())
    report.unlink()
    assert "exchanges" in printed
    return actual


@pytest.mark.parametrize("launcher", ["forked", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_it_trains_reports_and_resumes_to_the_same_parameters(launcher: str, forked: Launcher, tmp_path: Path) -> None:
    common = ["--steps", "40", "--tau", "4", "--checkpoint", str(tmp_path / "saved"), "--save-every", "22"]
    straight = reported(forked if launcher == "forked" else torchrun, tmp_path, *common)
    rows = {row["kind"]: row for row in straight["rows"]}
    assert straight["ranks"] == [0, 1]
    assert straight["exchanges"] == 40 // 5 + 1
    assert rows["all_reduce"]["calls"] == straight["exchanges"]
    assert rows["local_all_reduce"]["calls"] == rows["compute"]["calls"] == 40
    assert straight["accuracy"] > 0.5
    assert straight["total"]["simulated_s"] > 0
    assert straight["total"]["simulated_j"] > 0
    assert straight["machine"] == "DpuToDpu: 32 DPUs in clusters of 16"

    latest = tmp_path / "saved" / "latest.json"
    latest.write_text(json.dumps({**json.loads(latest.read_text()), "step": 22}))  # as if it had ended there, in mid-interval
    resumed = reported(forked, tmp_path, *common, "--resume")
    assert {row["kind"]: row["calls"] for row in resumed["rows"]}["compute"] == 18
    assert resumed["parameters"] == straight["parameters"]


def test_resume_without_a_folder_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--resume"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "direct_ddp.py: error: --resume needs --checkpoint FOLDER, the folder that was saved in"
