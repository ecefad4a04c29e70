"""What a result says of its assumptions: which of them its range spans, which matter, and how many others there are."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import shorten

from trainyard.ir.assumptions import Assumption
from trainyard.report import lines
from trainyard.results.ranges import NOTICEABLE, moving
from trainyard.results.result import Result
from trainyard.units import show

MOST_NAMED = 3
"""Assumptions that the sentence on the range names."""
MOST_SHOWN = 8
"""Assumptions of a terminal's list."""
LONGEST = 60
"""Letters of a value in a sentence: a list of links is as long as a paragraph."""
LITTLE = lines.percent(NOTICEABLE)


def range_text(result: Result) -> str:
    """Which assumptions make the range behind the time, which do not, and which choices it leaves as they are."""
    if result.range_s is None:
        return ""
    movers = list(moving(result))
    others = len(result.range_by) - len(movers)
    sentences = []
    if movers:
        named = [f"{path} ({'-'.join(show(end, 's') for end in result.range_by[path])})" for path in movers[:MOST_NAMED]]
        more = [f"{len(movers) - MOST_NAMED} more"] if len(movers) > MOST_NAMED else []
        sentences.append(f"the range is over the alternatives of {_listed([*named, *more])}, one at a time")
    if others:
        less = f"move{'s' if others == 1 else ''} the time by less than {LITTLE}"
        what = "other assumption" if movers else "assumption"
        sentences.append(f"{'' if movers else 'no range: '}{others} {what}{'' if others == 1 else 's'} {less}")
    if chosen := [assumption.name for assumption in result.assumptions if assumption.choice and not assumption.unused]:
        sentences.append(f"{_listed(chosen)} {'is a choice and stays' if len(chosen) == 1 else 'are choices and stay'} as set")
    return "; ".join(sentences)


def that_matter(result: Result) -> tuple[list[Assumption], str]:
    """The assumptions to show, those that move the time most first, and a sentence that counts the others."""
    used = [assumption for assumption in result.assumptions if not assumption.unused]
    order = {path: number for number, path in enumerate(moving(result))}
    mattering = used
    if result.range_s is not None:  # what was tried and moves nothing is only counted
        mattering = sorted(
            (assumption for assumption in used if assumption.path in order or assumption.path not in result.range_by),
            key=lambda assumption: order.get(assumption.path, len(order)),
        )
    shown = mattering[:MOST_SHOWN]
    little = len(used) - len(mattering)
    counts = [
        (len(mattering) - len(shown), "that matter less" if result.range_s is not None else "more"),
        (little, f"that move the time by less than {LITTLE}"),
        (len(result.assumptions) - len(used), "that change nothing in this step"),
    ]
    return shown, ", ".join(f"{count} {what}" for count, what in counts if count)


def short_text(assumption: Assumption) -> str:
    """`fusion = epilogue: what it means; alternatives: none`, with long values cut."""
    value, others = lines.assumption_values(assumption)
    return lines.assumption_sentence(assumption, _cut(value), [_cut(other) for other in others])


def _cut(text: str) -> str:
    return shorten(text, LONGEST, placeholder=" ...")


def _listed(names: Iterable[str]) -> str:
    """Names in a sentence.

    >>> _listed(["fusion", "scope", "2 more"])
    'fusion, scope and 2 more'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
