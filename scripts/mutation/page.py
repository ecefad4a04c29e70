"""docs/mutation.md: the table by room, the mutants that no test can notice with the reason, and those that no test does notice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mutation.records import FOLDER, Found, equivalents, read
from mutation.sample import ROOMS, all_of_room

NOTICED = ("caught", "time")
FEWEST = 60

HEAD = """# Mutation testing

A mutant is the code with one small change that a careless author might have made: `<` for `<=`, `+` for `-`, a constant one larger
or smaller, `and` for `or`, a statement left out, two arguments swapped, `min` for `max`, another return value, a `not` left out. A
mutant is *caught* when a test fails that runs its line, or takes ten times as long as usual. The share that is caught says what the
tests are worth: a line that a test runs but does not check gives mutants that survive.

    make mutate ROOM=devices            # goes on where the last run ended, to 80 mutants of the room
    make mutate ROOM=devices COUNT=200
    .venv/bin/python scripts/mutate.py devices --survivors   # tries again what no test had noticed
    .venv/bin/python scripts/mutate.py --page                # writes this page

Mutants are drawn by a seed, at most one to a line, from the bodies of all functions of a room: not from tables, defaults and
decorators, which run when a module is imported, and not from docstrings, type hints and the texts of errors. A room is held by its
own tests alone: the quick ones under `tests/ROOM` and the examples in its docstrings, those of the mutant's own folder first, all
of the room when it is tried again. A line that none of them runs counts as a survivor; of the tests of a line the quickest are run,
up to 20 s of their usual time. Compiled loops are not mutated: they all live in `kernels`, and their plain-Python twins hold them.
Each trial is a process forked from one that has collected all tests, with the changed function in its memory; no file is changed.

"*At first*" is the share when a mutant was first tried. Tests were then written for the survivors, so that "*now*" is a share of
mutants whose survivors were looked at; "*drawn last*" are the mutants that were drawn when those tests were already written, and
says what a new mutant has to expect.

"""


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % ({part} of {whole})" if whole else "-"


def _code(text: str) -> str:
    short = text if len(text) <= 90 else f"{text[:87]}..."
    return "`" + short.replace("|", "\\|").replace("`", "'") + "`"


def _row(root: Path, found: Found, last: str) -> str:
    mutant = found.drawn.mutant
    place = f"{mutant.path.removeprefix('src/trainyard/')}, {mutant.function}"
    line = (root / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
    return f"| {place} | {_code(line)} | {_code(mutant.after)} for {_code(mutant.before)} | {last} |"


def _table(title: str, column: str, rows: list[str]) -> str:
    if not rows:
        return ""
    return "\n".join([f"## {title}\n", f"| where | line | mutant | {column} |", "|---|---|---|---|", *rows]) + "\n\n"


def write(root: Path, late: int = 60) -> int:
    """Writes the page; `late` is how many of the mutants drawn last are shown by themselves."""
    reasons = equivalents(root)
    lines = [
        "| room | mutants | at first | now | of these by time | survivors | equivalent | drawn last, at first |",
        "|---|---|---|---|---|---|---|---|",
    ]
    few: list[str] = []
    equal: list[str] = []
    survivors: list[str] = []
    for room in ROOMS:
        outcomes = read(root / FOLDER / f"{room}.jsonl", all_of_room(root, room))
        found = [one for one in outcomes.values() if one.last != "inapplicable"]
        counted = [one for one in found if one.drawn.name not in reasons]
        few += [room] if len(counted) < FEWEST else []
        kinds = Counter(one.last for one in counted)
        noticed = kinds["caught"] + kinds["time"]
        first = sum(one.first in NOTICED for one in counted)
        drawn_last = counted[-late:] if len(counted) >= 2 * late else []
        lines.append(
            f"| {room} | {len(counted)} | {_share(first, len(counted))} | **{_share(noticed, len(counted))}** | {kinds['time']} "
            f"| {len(counted) - noticed} | {len(found) - len(counted)} "
            f"| {_share(sum(one.first in NOTICED for one in drawn_last), len(drawn_last))} |"
        )
        equal += [_row(root, one, reasons[one.drawn.name]) for one in found if one.drawn.name in reasons]
        survivors += [
            _row(root, one, "no test runs the line" if one.last == "uncovered" else "")
            for one in counted
            if one.last not in NOTICED
        ]
    text = HEAD + "\n".join(lines) + "\n\n"
    if few:
        text += f"Fewer than {FEWEST} mutants were tried in {', '.join(few)}: their shares say little yet.\n\n"
    text += _table("Equivalent mutants", "why no test can notice", equal)
    text += _table("Survivors", "", survivors)
    (root / "docs" / "mutation.md").write_text(text.rstrip() + "\n")
    return 0
