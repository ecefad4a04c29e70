"""The mapping of a step on an accelerator: loop nests as text, and a table of them for the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainyard.errors import NotModelled
from trainyard.report import lines
from trainyard.results.loop_nests import LoopNest, chosen, drawing, unproven_text
from trainyard.results.result import Result
from trainyard.units import show

MOST_ROWS = 1500
HEADS = ("tile", "order", "stays", "passes", "room", "DRAM", "over bound", "cycles")
CAPTION = (
    "Tiles in the scratchpad and the order of their loops, outer to inner. Passes: how often each tensor crosses the DRAM's pins. "
    "Over bound: DRAM traffic over the least of any mapping onto this scratchpad."
)


def text(result: Result, pattern: str = "") -> str:
    """The loop nests of the layers that a pattern names, with what all of them move together."""
    nests = chosen(_nests(result), pattern)
    return "\n\n".join([lines.title(result), drawing(nests, pattern), summary(nests), *result.notes])


def _nests(result: Result) -> Sequence[LoopNest]:
    if result.mapping:
        return result.mapping
    if result.rerun is None:
        raise NotModelled("no mapping is known: this result was added, scaled, measured or read from a file")
    raise NotModelled(
        f"{result.machine} has no loop nests: they belong to accelerators (an array behind a scratchpad, as npu) and their nodes"
    )


def summary(nests: Sequence[LoopNest]) -> str:
    """DRAM traffic of the nests with a lower bound, over that bound, and whether the search proved its choice."""
    bounded = [nest for nest in nests if nest.least_bytes]
    if not bounded:
        return "no products among these layers"
    moved, least = (sum(sizes) for sizes in zip(*((nest.dram_bytes, nest.least_bytes) for nest in bounded), strict=True))
    worst = max(bounded, key=lambda nest: nest.dram_bytes / nest.least_bytes)
    number = f"{len(bounded)} mappings move" if len(bounded) > 1 else "1 mapping moves"
    sentences = [
        f"{number} {show(moved, 'B')}, {moved / least:.3f} x the lower bound of {show(least, 'B')}",
        f"the farthest from it is {worst.layer or worst.op} {worst.phase} with {worst.dram_bytes / worst.least_bytes:.3f} x",
    ]
    return "; ".join([*sentences, *filter(None, [unproven_text(bounded)])])


def table(result: Result) -> list[str]:
    """The section of the page; nothing for a machine without loop nests."""
    nests = [nest for nest in result.mapping if nest.loops]
    if not nests:
        return []
    shown = nests[:MOST_ROWS]
    more = f" The first {MOST_ROWS} of {len(nests)}." if len(nests) > MOST_ROWS else ""
    heads = "".join(f'<th scope="col" data-kind="{_kind(head)}"><button type="button">{head}</button></th>' for head in HEADS)
    names = "".join(
        f'<th scope="col" class="text"><button type="button">{name}</button></th>' for name in ("layer", "phase", "product")
    )
    bound = '<th scope="col" class="text"><button type="button">bound by</button></th>'
    return [
        "<h3>Mapping</h3>",
        f"<p>{escape(summary(nests))}.</p>",
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of mappings"><table class="sortable">',
        f"<caption>{escape(CAPTION + more)}</caption>",
        f"<thead><tr>{names}{heads}{bound}</tr></thead>",
        "<tbody>",
        *map(_row, shown),
        "</tbody></table></div>",
        f"<details><summary>Loop nests</summary><pre>{escape(drawing(shown))}</pre></details>",
    ]


def _kind(head: str) -> str:
    return "text" if head in ("tile", "order", "stays", "passes") else "number"


def _row(nest: LoopNest) -> str:
    passes = ", ".join(f"{moved.tensor} {moved.passes:.3g}" for moved in nest.moved)
    over = nest.over_least
    cells = [
        (None, " x ".join(map(str, nest.tile or ()))),
        (None, nest.order),
        (None, ", ".join(dict.fromkeys(name for name in (nest.keeps, *nest.kept) if name)) or "-"),
        (None, passes or "-"),
        (nest.room_bytes, show(nest.room_bytes, "B")),
        (nest.dram_bytes, show(nest.dram_bytes, "B")),
        (over or 0.0, "-" if over is None else f"{over:.3f}"),
        (nest.cycles, f"{nest.cycles:,}"),
    ]
    middle = "".join(
        f'<td class="text">{escape(shown)}</td>' if value is None else f'<td data-value="{value!r}">{escape(shown)}</td>'
        for value, shown in cells
    )
    names = f'<th scope="row">{escape(nest.layer or nest.op)}</th><td class="text">{escape(nest.phase)}</td>'
    return f'<tr>{names}<td class="text">{escape(nest.product)}</td>{middle}<td class="text">{escape(nest.bound)}</td></tr>'
