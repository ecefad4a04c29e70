"""The README's first Python block is examples/quickstart.py, and it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.py"


def test_the_readme_shows_the_quickstart() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert block.group(1).strip() == QUICKSTART.read_text().strip()
    assert QUICKSTART.read_text().count("\n") < 40


def test_the_quickstart_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(QUICKSTART)], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "npu" in done.stdout
    assert "next 10 %" in done.stdout
