"""What the pages of the five papers share: tables, sections, the ledger, effects of assumptions.

The page of a paper is the introduction in `PAPER.md` beside this file, then the sections that `PAPER.py` yields. `paper_page.py`
writes it to docs/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainyard.papers import bench
from trainyard.papers.ledger import Row, number, paper_figure
from trainyard.papers.pages import CHANGED, CHANGED_TEXT, change_tables, markdown_table, summary
from trainyard.sensitivity import ChangeEffect, run_study


class Section(NamedTuple):
    """A part of a page; without a title it continues the section before."""

    title: str
    text: str = ""
    content: str = ""

    @property
    def markdown(self) -> str:
        parts = (f"## {self.title}\n" if self.title else "", f"{self.text}\n" if self.text else "", self.content)
        return "".join(f"\n{part}" for part in parts if part)


def page_of(introduction: str, sections: Iterable[Section]) -> str:
    """Markdown without double blank lines.

    >>> page_of("# A\\n", [Section("B", "text"), Section("", "more", "| x |\\n")])
    '# A\\n\\n## B\\n\\ntext\\n\\nmore\\n\\n| x |\\n'
    """
    return (introduction + "".join(section.markdown for section in sections)).replace("\n\n\n", "\n\n")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], digits: int | None = 2) -> str:
    """Markdown; floats with so many digits after the point, or with four significant ones."""
    lines = [f"| {' | '.join(cell(name, digits) for name in head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell(value, digits) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object, digits: int | None = 2) -> str:
    if isinstance(value, float):
        return number(value) if digits is None else f"{value:.{digits}f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value).replace("|", "\\|").replace("*", "\\*")


def ledger_section(rows: Sequence[Row]) -> Iterator[Section]:
    """All claims; then what the notes of the table have no room for."""
    head = ["claim", "paper", "ours", "verdict", "unit", "note"]
    cells = [[_claim(row), paper_figure(row), number(row.ours), row.verdict, row.claim.unit, row.note] for row in rows]
    for title, figures in (("from gates", [row.gates for row in rows]), ("from printed inputs", [row.printed for row in rows])):
        if any(figure is not None for figure in figures):
            head.insert(3, title)
            for figure, texts in zip(figures, cells, strict=True):
                texts.insert(3, number(figure))
    yield Section("Ledger", f"{summary(rows)}.", table(head, cells))
    yield from details_section(rows)


def details_section(rows: Sequence[Row]) -> Iterator[Section]:
    lines = [f"- `{_claim(row)}`: {row.details}" for row in rows if row.details]
    if lines:
        yield Section("Details of the claims", "", "\n".join(lines) + "\n")


def changes_section(paper: str, rows: Sequence[Row]) -> Iterator[Section]:
    """What was changed after results had been seen, and every claim that a change moved, those that got worse first."""
    tables = change_tables(paper, rows)
    if tables:
        yield Section(CHANGED, CHANGED_TEXT, "\n".join(markdown_table(head, lines) for head, lines in tables))


def _claim(row: Row) -> str:
    return row.id.partition(".")[2]


def assumption_effects(paper: str) -> list[ChangeEffect]:
    """Of every alternative alone, the largest effect first."""
    study = bench.sensitivity_study(paper, ("assumption",))
    assert study is not None
    return list(run_study(study, paired=0))


def effects_table(effects: Iterable[ChangeEffect], digits: int | None = 2) -> str:
    rows = (
        (
            one.name,
            one.meaning,
            str(one.value),
            str(one.alternative),
            one.before,
            one.error or one.after,
            f"{100 * one.change:+.1f} %",
        )
        for one in effects
    )
    return table(("assumption", "meaning", "value", "alternative", "before", "after", "change"), rows, digits)
