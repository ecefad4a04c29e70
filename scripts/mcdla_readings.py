"""Runs all readings of MC-DLA's nodes (`papers.mcdla.readings`) and writes the results that the ledger's open claims quote.

python scripts/mcdla_readings.py
"""

from __future__ import annotations

import json
from pathlib import Path

from trainyard.papers.mcdla import readings

TARGET = Path(__file__).parents[1] / "src" / "trainyard" / "papers" / readings.STORED


def main() -> None:
    found = {}
    for one in readings.readings():
        found[one.name] = {claim: round(value, 4) for claim, value in readings.results(one).items()}
        print(one.name, found[one.name], flush=True)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
