"""docs/your_own.md: everything is built from the page alone, an array, a package, a study, a topology and a system, and runs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.ir import protocols

TEXT = (Path(__file__).parents[1] / "docs" / "your_own.md").read_text(encoding="utf-8")
ARRAY, SYSTEM = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FILES = dict(re.findall(r"```toml\n# ([\w.]+)[^\n]*\n(.*?)```", TEXT, re.DOTALL))


def ran(program: str, folder: Path) -> str:
    file = folder / "own.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_machine_on_the_page_runs(tmp_path: Path) -> None:
    stdout = ran(ARRAY, tmp_path)
    assert "resnet50, batch 4" in stdout
    share = re.search(r"(\d+)% of peak", stdout)
    assert share is not None
    assert 1 <= int(share.group(1)) <= 100


def test_the_study_on_the_page_runs(tmp_path: Path) -> None:
    """The package as pip would have installed it: a module, and what its metadata declares."""
    package = tmp_path / "site"
    metadata = package / "own-0.1.dist-info"
    metadata.mkdir(parents=True)
    (package / "own.py").write_text(ARRAY)
    declared = tomllib.loads(FILES["pyproject.toml"])["project"]
    points = declared["entry-points"]["trainyard.parts"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n")
    (metadata / "entry_points.txt").write_text("[trainyard.parts]\n" + "".join(f"{name} = {at}\n" for name, at in points.items()))
    (tmp_path / "study.toml").write_text(FILES["study.toml"])
    done = subprocess.run(
        [sys.executable, "-m", "trainyard", "sweep", "study.toml", "--workers", "1", "--json", "-"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["points"], summary["failed"]) == (4, 0)


def test_the_topology_on_the_page_runs_with_another_device_inside(tmp_path: Path) -> None:
    file = tmp_path / "ring3.toml"
    file.write_text(FILES["ring3.toml"])
    result = ty.run("resnet18", on=str(file), batch=48)
    assert result.peaks.devices == 3
    assert result.by_class["synchronisation"].busy_s > 0
    assert ty.run("resnet18", on=f"{file}(device=npu(array=tensordash,dram_capacity=2 GB))", batch=48).time_s > 0
    graph = ty.machine(str(file)).topology
    assert graph.devices == ("D0", "D1", "D2")
    assert [store.place for store in graph.stores("D1")] == ["M"]


def test_the_system_on_the_page_runs_and_its_policy_matters(tmp_path: Path) -> None:
    stdout = ran(SYSTEM, tmp_path)
    assert "chip 0" in stdout
    assert "chip 1" in stdout
    names = runpy.run_path(str(tmp_path / "own.py"), run_name="own")
    step, device = ty.zoo.load("resnet18", batch=2), ty.machine("npu")
    alone = ty.run(step, on=device)
    together, apart = (ty.run(step, on=names["TwoChips"](device=device, first=first)) for first in ("nothing", "layer1"))
    assert together.time_s == pytest.approx(alone.time_s)  # everything on chip 1
    assert apart.traffic_bytes["chip link"] > 0
    assert apart.macs == together.macs == alone.macs


def test_the_page_lists_every_optional_capability() -> None:
    required = {"Array", "Device", "System"}
    capabilities = {name for name, kind in vars(protocols).items() if getattr(kind, "_is_protocol", False)} - required
    listed = dict(re.findall(r"^\| [\w, ]+ \| `(\w+)` \| `(\w+)", TEXT, re.MULTILINE))
    assert set(listed) == {name for name in capabilities if getattr(protocols, name).__module__ == protocols.__name__}
    for name, member in listed.items():
        assert member in vars(getattr(protocols, name)), f"{name} has no {member}"
