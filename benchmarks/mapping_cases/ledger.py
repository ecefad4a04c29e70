"""Rows of the ledger that moved with the tile search, from the ledger's page at the commits that changed the search.

python benchmarks/mapping_cases/ledger.py        prints the section of docs/mapping_benchmark.md
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "docs/reproduction.md"


@dataclass(frozen=True, slots=True)
class Stage:
    """The ledger before and after a change of the search, and why rows moved."""

    before: str
    after: str
    cause: str


STAGES = (
    Stage(
        "25ab060",
        "c2c69b7",
        "The complete search replaced the menu of doublings. MC-DLA and DIRECT: within 1 % of the least time the tiling of the "
        "least traffic is taken, so computation takes up to 1 % longer beside transfers that stay as they are. TensorDash's chip: "
        "tilings of the least DRAM traffic read the scratchpad more often (VGG16: 11 % less DRAM energy, 6.1 J in SRAM instead of "
        "0.80), which is the same with and without TensorDash and hides its gain. Since then the least energy decides among "
        "tilings of equal time and traffic, and the row is back: 1.38, with what else changed.",
    ),
    Stage(
        "cc1de1f",
        "a7b728c",
        "Orders that cannot win are dropped, and tighter floors prove more of what lies between: other tilings among those within "
        "the tolerance. MC-DLA's generations are ratios of the least and the most of five devices, and move most. The two rows of "
        "DIRECT are no tiles: the GPU's efficiency without the update had been left as it was.",
    ),
    Stage("a7b728c", "7534fde", "Other tilings within the tolerance."),
    Stage("7534fde", "be5901b", "Sizes between the useful ones are tried at each bandwidth whose best tiling differs."),
    Stage("be5901b", "db353ea", "Cells are split between numbers of tiles, and arrays with odd sides searched for one bandwidth."),
    Stage(
        "db353ea",
        "",
        "More sizes in small products, and multiples of a fold: a DPU of DIRECT is faster by 0.03 % with the linear model. Bounds "
        "by kinds of steps moved none. IGO's shares of a GPU's time moved with casts and layouts, which GPUs know since.",
    ),
)
LARGE = 0.01
"""Rows of later stages are listed one by one where they moved by more than this."""


def rows_of(text: str) -> dict[str, str]:
    """What the ledger's page has as ours, by claim.

    >>> rows_of("| claim | paper | ours |\\n|---|---|---|\\n| igo.small.all | 14.5 | 14.3 |")
    {'igo.small.all': '14.3'}
    """
    rows, place = {}, 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if "ours" in cells:
            place = cells.index("ours")
        elif place and len(cells) > place and "." in cells[0]:
            rows[cells[0]] = cells[place]
    return rows


def change(before: str, after: str) -> float:
    """The largest relative change of a row's numbers.

    >>> f"{change('1,000 / 2.0', '1,010 / 1.9'):.2f}"
    '0.05'
    """
    pairs = zip(*(map(float, re.findall(r"-?[\d.]+(?:e-?\d+)?", value.replace(",", ""))) for value in (before, after)), strict=True)
    return max((abs(new / old - 1) if old else float(new != 0) for old, new in pairs), default=0.0)


def page_at(commit: str) -> str:
    """The ledger's page at a commit; as it is now where none is named."""
    if not commit:
        return (ROOT / PAGE).read_text(encoding="utf-8")
    return subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{PAGE}"], capture_output=True, text=True, check=True).stdout


def moved(stage: Stage) -> dict[str, tuple[str, str]]:
    before, after = rows_of(page_at(stage.before)), rows_of(page_at(stage.after))
    return {claim: (before[claim], ours) for claim, ours in after.items() if claim in before and before[claim] != ours}


def is_known(commit: str) -> bool:
    """Whether this clone has the commit: a shallow one may not."""
    asked = ["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"]
    return not commit or subprocess.run(asked, capture_output=True, check=False).returncode == 0


def section() -> str:
    lines = ["## Rows of the ledger that moved with the search", ""]
    if not all(is_known(commit) for stage in STAGES for commit in (stage.before, stage.after)):
        return "\n".join([*lines, "This clone lacks the commits that they are read from: `git fetch --unshallow`.", ""])
    for number, stage in enumerate(STAGES):
        rows = moved(stage)
        shown = {claim: row for claim, row in rows.items() if not number or change(*row) > LARGE}
        names = f"`{stage.before}` to {f'`{stage.after}`' if stage.after else 'now'}"
        kind = "all of them below" if not number else f"{len(shown)} by more than {LARGE:.0%}"
        text = f"**{names}**: {len(rows)} of {len(rows_of(page_at(stage.after)))} rows, {kind}. {stage.cause}"
        lines += [*textwrap.wrap(text, 124, break_on_hyphens=False, break_long_words=False), ""]
        if shown:
            lines += ["| claim | before | after | by |", "|---|---:|---:|---:|"]
            lines += [f"| {claim} | {before} | {after} | {change(before, after):.1%} |" for claim, (before, after) in shown.items()]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(section())
