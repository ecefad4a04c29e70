"""Puts what commands print into the manual: every block between `<!-- output: COMMAND -->` and `<!-- end -->` is run anew.

A command is a line of the shell's that begins with `trainyard` or `python`. `python scripts/manual_pages.py [page.md ...]` renews
the pages, `--check` only says which are out of date (exit code 1).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- output: (?P<command>[^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SECONDS = 600
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
"""Of the outputs on a page."""


def printed(command: str) -> str:
    """What a command prints on a terminal of 100 columns, its progress left out."""
    words = shlex.split(command)
    programs = {"trainyard": [sys.executable, "-m", "trainyard"], "python": [sys.executable]}
    if words[0] not in programs:
        raise SystemExit(f"a page may only call trainyard or python, not: {command}")
    environment = {**os.environ, **TERMINAL}
    done = subprocess.run(
        [*programs[words[0]], *words[1:]], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS
    )
    text = done.stdout if done.returncode == 0 else done.stderr
    return "\n".join(line.rstrip() for line in text.splitlines())


def shown(command: str) -> str:
    """A command and what it prints, as a page has them."""
    return f"$ {command}\n\n{printed(command)}"


def renewed(text: str) -> str:
    """The page with what its commands print now."""
    return BLOCK.sub(lambda found: f"{found[1]}```text\n{shown(found['command'])}\n```\n{found[3]}", text)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    named = [Path(word) for word in arguments if word != "--check"]
    stale = []
    for page in named or sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if not BLOCK.search(text):
            continue
        new = renewed(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'out of date' if check else 'renewed'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
