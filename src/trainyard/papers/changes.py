"""Readings and parameters that were changed after results had been seen: what, from what to what, why, and what got worse by it.

A paper lists its changes in a module that `Paper.changes` names (a tuple CHANGES); its page prints them with the claims that moved
away from the paper's figures first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trainyard.errors import BadInput, UnknownName
from trainyard.papers.evidence import Figure, figure_of
from trainyard.papers.ledger import Claim, Measured, Row, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that was made when results were known.

    `before` has the result of every claim that the change moved, as it was before it; what got worse is computed from it and from
    the ledger's rows (`moved`). `worse` says in words what got worse beside the claims, or "nothing" where that was looked for and
    nothing was found. `tried` is the number of settings that were run before this one was taken; `target_in_sight` marks a value
    that was picked because a printed figure comes out with it, and not by a sentence of the paper. `column` says which results the
    change moved: ours, or those from the inputs that the paper prints.
    """

    what: str
    was: str
    now: str
    argument: str
    before: Mapping[str, Figure] = field(default_factory=dict)
    worse: str = ""
    tried: int = 1
    target_in_sight: bool = False
    column: Literal["ours", "printed"] = "ours"

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", {claim: figure_of(value) for claim, value in self.before.items()})
        for name in ("what", "was", "now", "argument"):
            if not getattr(self, name).strip():
                raise BadInput(f"a change after results had been seen needs `{name}`")
        if not self.before and not self.worse.strip():
            raise BadInput(f"{self.what}: say what got worse by the change: results `before` it by claim, or `worse` in words")
        if self.was == self.now:
            raise BadInput(f"{self.what}: was and is {self.now!r}, so nothing changed")


class Moved(NamedTuple):
    """A claim that a change moved, with the results before and now; `farther`: whether it moved away from the paper's figure."""

    row: Row
    before: Figure
    now: Figure
    farther: bool


def moved(change: Change, rows: Sequence[Row]) -> list[Moved]:
    """The claims that a change moved, those that got worse first; claims that are not among the rows are left out."""
    by_id = {row.id: row for row in rows}
    found = []
    for claim_id, figure in change.before.items():
        row = by_id.get(claim_id)
        now = None if row is None else getattr(row, change.column)
        if row is not None and now is not None:
            found.append(Moved(row, figure, now, _miss(row.claim, now) > _miss(row.claim, figure)))
    return sorted(found, key=lambda one: not one.farther)


def check(changes: Sequence[Change], claims: Sequence[Claim]) -> None:
    """Every claim that a change names exists and has as many figures."""
    known = {claim.id: claim for claim in claims}
    for change in changes:
        for name, figure in change.before.items():
            if name not in known:
                raise UnknownName("claim", name, known, f"the change of {change.what}")
            judge(known[name], Measured(figure))


def _miss(claim: Claim, figure: Figure) -> float:
    """How far a result is from the paper's figure, as a factor; 0 where a bound holds."""
    row = judge(claim, Measured(figure))
    if claim.bound and row.verdict == "met":
        return 0.0
    return abs(math.log(row.ratio)) if row.ratio is not None and row.ratio > 0 else math.inf
