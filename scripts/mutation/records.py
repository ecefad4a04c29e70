"""What was found: one JSON object a line, appended, so that a run that ends early loses nothing and the next goes on.

The first line of a mutant says what the tests of that day did; the last says what those of today do. A line about a function that
has changed since is left out.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mutation.sample import Drawn
from mutation.trial import Outcome

FOLDER = Path("benchmarks") / "mutation"


@dataclass(frozen=True, slots=True)
class Found:
    """Outcomes of one mutant, the first and the last."""

    drawn: Drawn
    first: str
    last: str
    test: str


def append(path: Path, drawn: Drawn, outcome: Outcome, tests: int) -> None:
    mutant = drawn.mutant
    row = {
        "name": drawn.name,
        "digest": drawn.digest,
        "outcome": outcome.kind,
        "path": mutant.path,
        "function": mutant.function,
        "operator": mutant.operator,
        "before": mutant.before,
        "after": mutant.after,
        "tests": tests,
        "test": outcome.test,
        "seconds": round(outcome.seconds, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read(path: Path, room_mutants: Iterable[Drawn]) -> dict[str, Found]:
    """Name -> outcomes, for the mutants that the code of today still has."""
    today = {drawn.name: drawn for drawn in room_mutants}
    found: dict[str, Found] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        drawn = today.get(row["name"])
        if drawn is not None and drawn.digest == row["digest"]:
            first = found[drawn.name].first if drawn.name in found else row["outcome"]
            found[drawn.name] = Found(drawn, first, row["outcome"], row["test"])
    return found


def equivalents(root: Path) -> dict[str, str]:
    """Name of a mutant -> why no test can notice it."""
    path = root / FOLDER / "equivalents.toml"
    return {name: row["reason"] for name, row in tomllib.loads(path.read_text()).items()} if path.exists() else {}
