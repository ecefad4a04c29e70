"""Renews the ledger's tables on the pages of the manual from the shipped ledger, without running an experiment.

`make rtl` calls it when the measurements in gates have changed: they are a column of the ledger and decide some of its verdicts.
"""

from __future__ import annotations

import re
from pathlib import Path

from paper_pages import ledger_section

from trainyard._version import VERSION
from trainyard.papers import bench, shipped
from trainyard.papers.gates import FIGURES
from trainyard.papers.pages import COLUMNS, LEGEND, cells, markdown_table, summary

DOCS = Path(__file__).parents[1] / "docs"


def reproduction(text: str) -> str:
    """The page of all claims with the tables as they are now."""
    everything = []
    for paper in bench.PAPERS:
        rows = shipped.rows(paper)
        everything += rows
        claims = f"### All claims\n\n{summary(rows)}.\n\n{markdown_table(COLUMNS, map(cells, rows)).rstrip()}\n"
        section = re.compile(rf"(?ms)(^## {paper}\n.*?)^### All claims\n.*?(?=^##)")
        text, found = section.subn(lambda match, claims=claims: f"{match[1]}{claims}\n", text + "\n##")  # type: ignore[misc]
        text = text.removesuffix("\n##")
        if found != 1:
            raise SystemExit(f"docs/reproduction.md has {found} tables of {paper}")
    first = f"Written by `trainyard reproduce --markdown`, trainyard {VERSION}: {summary(everything)}.\n"
    text = re.sub(r"(?m)^Written by `trainyard reproduce --markdown`.*\n", lambda _: first, text)
    return re.sub(r"(?m)^met: within 5 %.*$", lambda _: LEGEND, text)


def paper_page(paper: str, text: str) -> str:
    """A paper's page with its ledger and the details of its claims as they are now; a page may refer to the ledger instead."""
    section = "".join(part.markdown for part in ledger_section(shipped.rows(paper))).replace("\n\n\n", "\n\n").rstrip("\n")
    pattern = r"(?ms)\n^## Ledger\n.*?(?=\n^## (?!Details of the claims)|\Z)"
    return re.sub(pattern, lambda _: f"{section}\n", text)


def main() -> None:
    changed = []
    for name in ("reproduction", *dict.fromkeys(claim.partition(".")[0] for claim in FIGURES)):
        path = DOCS / f"{name}.md"
        text = path.read_text(encoding="utf-8")
        new = reproduction(text) if name == "reproduction" else paper_page(name, text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path.name)
    print(f"renewed: {', '.join(changed) or 'none'}")


if __name__ == "__main__":
    main()
