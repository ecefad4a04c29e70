"""What must stand behind two verdicts: `open` (readings were searched, none fits) and `undefined` (the paper defines no quantity).

Both are values that a program can check, not prose: an `open` row has a `Search` with the numbers of the nearest defensible
reading for every claim that was searched, an `undefined` row has an `Undefined` with readings that disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.errors import BadInput

Figure = float | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Readings of a paper that were searched jointly, and the nearest one that contradicts no sentence of it.

    `numbers` are the results of that nearest defensible reading, one entry for each claim that the search was held against. `best`
    is the largest number of these claims that any reading has within 15 %, and `best_reading` says which one it is and why it is
    not adopted, where it is another. The count of the nearest reading is computed from its numbers (`ledger.judge`).

    >>> Search(varied="six variants of a rival", readings=6, best=0, nearest="the one of Fig. 14", numbers={"a.b": 3.0}).readings
    6
    """

    varied: str
    readings: int
    best: int
    nearest: str
    numbers: Mapping[str, Figure]
    best_reading: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {claim: figure_of(value) for claim, value in self.numbers.items()})
        for name in ("varied", "nearest"):
            if not getattr(self, name).strip():
                raise BadInput(f"a search needs `{name}`, in words")
        if self.readings < 2:
            raise BadInput(f"a search over {self.readings} readings is none: at least two")
        if not self.numbers:
            raise BadInput("a search needs the numbers of its nearest defensible reading, claim by claim")
        if not 0 <= self.best <= len(self.numbers):
            raise BadInput(f"best count {self.best} of {len(self.numbers)} claims")

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims that the readings were searched against."""
        return tuple(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undefined:
    """A quantity that a paper names and does not define: what is missing, where it was looked for, and readings that disagree.

    `missing` continues the sentence "The paper does not define ...".

    >>> Undefined(missing="the reference", looked_in=("Sec. VI-B",), readings={"against one unit": 0.9, "against 32": 0.3}).missing
    'the reference'
    """

    missing: str
    looked_in: tuple[str, ...]
    readings: Mapping[str, Figure]

    def __post_init__(self) -> None:
        object.__setattr__(self, "looked_in", tuple(self.looked_in))
        object.__setattr__(self, "readings", {name: figure_of(value) for name, value in self.readings.items()})
        if not self.missing.strip():
            raise BadInput("an undefined quantity needs `missing`: what the paper would have to say")
        if not self.looked_in:
            raise BadInput("an undefined quantity needs `looked_in`: the sections in which its definition was looked for")
        if len(set(self.readings.values())) < 2:
            raise BadInput("an undefined quantity needs at least two readings with different results")


Evidence = Search | Undefined


def figure_of(value: float | Sequence[float]) -> Figure:
    """A number, or numbers as a tuple of floats."""
    return tuple(map(float, value)) if isinstance(value, Sequence) else float(value)


def as_dict(evidence: Evidence) -> dict[str, Any]:
    """Plain values for JSON; `from_dict` reads them back."""
    return {name: _plain(getattr(evidence, name)) for name in evidence.__slots__}


def from_dict(content: Mapping[str, Any]) -> Evidence:
    kind = Search if "varied" in content else Undefined
    read: Evidence = kind(**content)
    return read


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
