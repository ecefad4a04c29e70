"""Copies the table of headlines from docs/reproduction.md into README.md.

python scripts/readme_headlines.py       # after trainyard reproduce --markdown docs/reproduction.md
"""

from __future__ import annotations

import re
from pathlib import Path

from trainyard.papers.headlines import TABLE_HEAD

ROOT = Path(__file__).parents[1]
TABLE = re.compile(re.escape(f"| {' | '.join(TABLE_HEAD)} |\n") + r"(?:\|.*\n)+")


def with_headlines(readme: str, ledger: str) -> str:
    """The README with the ledger's table in the place of its own; links lead into docs/."""
    tables = TABLE.findall(ledger)
    if len(tables) != 1 or len(TABLE.findall(readme)) != 1:
        raise SystemExit(
            "README.md and docs/reproduction.md need one table of headlines each: trainyard reproduce --markdown writes it"
        )
    return TABLE.sub(lambda _: tables[0].replace("](", "](docs/"), readme)


def main() -> None:
    path = ROOT / "README.md"
    ledger = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    path.write_text(with_headlines(path.read_text(encoding="utf-8"), ledger), encoding="utf-8")
    print("wrote the headlines of README.md")


if __name__ == "__main__":
    main()
