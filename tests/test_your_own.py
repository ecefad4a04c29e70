"""docs/your_own.md: the page's file is built from the page, and the machine in it runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "your_own.md"


def test_the_machine_on_the_page_runs(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    file = tmp_path / "own.py"
    file.write_text(block.group(1))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "resnet50, batch 4" in done.stdout
    share = re.search(r"(\d+)% of peak", done.stdout)
    assert share is not None
    assert 1 <= int(share.group(1)) <= 100


def test_the_study_on_the_page_runs(tmp_path: Path) -> None:
    """The package as pip would have installed it: a module, and what its metadata declares."""
    text = PAGE.read_text()
    own, project, study = (
        re.search(rf"```{kind}(.*?)```", text, re.DOTALL) for kind in ("python", "toml\n# pyproject", "toml\n# study")
    )
    assert own is not None
    assert project is not None
    assert study is not None
    package = tmp_path / "site"
    metadata = package / "own-0.1.dist-info"
    metadata.mkdir(parents=True)
    (package / "own.py").write_text(own.group(1))
    declared = tomllib.loads(f"# {project.group(1)}")["project"]
    points = declared["entry-points"]["trainyard.parts"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n")
    (metadata / "entry_points.txt").write_text("[trainyard.parts]\n" + "".join(f"{name} = {at}\n" for name, at in points.items()))
    (tmp_path / "study.toml").write_text(f"# {study.group(1)}")
    done = subprocess.run(
        [sys.executable, "-m", "trainyard", "sweep", "study.toml", "--workers", "1", "--json", "-"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["points"], told["failed"]) == (4, 0)
