"""Writes a paper's page of the manual (docs/PAPER.md) from its experiments.

    python scripts/paper_page.py                   # all five
    python scripts/paper_page.py sigma igo         # some

Introductions and sections are in `paper_pages/`, the pictures on a page are listed in `paper_figures.py`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from paper_figures import PICTURES, illustrated
from paper_pages import page_of

from trainyard.papers import bench
from trainyard.papers.pages import summary

ROOT = Path(__file__).parents[1]


def write(paper: str) -> None:
    rows = bench.walk(paper)
    introduction = (ROOT / "scripts" / "paper_pages" / f"{paper}.md").read_text(encoding="utf-8")
    page = page_of(introduction, import_module(f"paper_pages.{paper}").sections(rows))
    (ROOT / "docs" / f"{paper}.md").write_text(illustrated(paper, page), encoding="utf-8")
    print(f"wrote {paper}.md: {len(rows)} claims, {summary(rows)}", flush=True)


def main(papers: list[str]) -> None:
    unknown = sorted(set(papers) - set(PICTURES))
    if unknown:
        raise SystemExit(f"no page of {', '.join(unknown)}: there are {', '.join(PICTURES)}")
    for paper in papers or PICTURES:
        write(paper)


if __name__ == "__main__":
    main(sys.argv[1:])
