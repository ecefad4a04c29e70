"""Puts the ledger of this state of the program into the package, where the page reads it: `python scripts/ship_ledger.py`.

`trainyard reproduce` must have measured every claim; figures that were not drawn before are drawn now.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.files import SHIPPED_LEDGER
from trainyard.papers import bench, experiment_cache, shipped

TARGET = Path(__file__).parents[1] / "src" / "trainyard" / "papers" / SHIPPED_LEDGER


def main() -> None:
    for paper in bench.PAPERS:
        experiment_cache.figures(paper, run=True)
    computed = experiment_cache.ExperimentCache()
    TARGET.write_bytes(shipped.packed(computed))
    print(f"{TARGET.name}: {len(computed.content['measured'])} measurements, {len(computed.content['figures'])} figures")


if __name__ == "__main__":
    main()
