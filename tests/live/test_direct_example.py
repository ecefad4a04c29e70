"""`torchrun examples/direct_ddp.py` with two processes: it trains, it reports, and it goes on after an interruption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "direct_ddp.py"


def torchrun(folder: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    report = folder / "report.json"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(EXAMPLE), "--report", str(report), *options], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    actual: dict[str, Any] = json.loads(report.read_text())
    assert "exchanges" in done.stdout
    return actual


def test_it_trains_reports_and_resumes_to_the_same_parameters(tmp_path: Path) -> None:
    common = ["--steps", "40", "--tau", "4", "--checkpoint", str(tmp_path / "saved"), "--save-every", "22"]
    straight = torchrun(tmp_path, *common)
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
    resumed = torchrun(tmp_path, *common, "--resume")
    assert {row["kind"]: row["calls"] for row in resumed["rows"]}["compute"] == 18
    assert resumed["parameters"] == straight["parameters"]


def test_resume_without_a_folder_is_a_one_line_error() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--resume"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "direct_ddp.py: error: --resume needs --checkpoint FOLDER, the folder that was saved in"
    assert "Traceback" not in done.stderr
