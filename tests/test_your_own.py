"""docs/your_own.md: the page's file is built from the page, and the machine in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
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
