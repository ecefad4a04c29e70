"""The ledger: the papers' claims (`claims.toml`), what an experiment measured, and the verdict. Experiments run in `bench`.

A claim that the paper's own figures or physics exclude is `contradicted` and carries its proof; where other data stand in for data
that are not available, the verdict is `substitute` and the note names them. A miss for which readings of the paper were searched
jointly is `open`, a quantity that the paper does not define is `undefined`; both carry their evidence (`evidence`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Literal, get_args

from trainyard.errors import BadInput, UnknownName
from trainyard.papers.evidence import Evidence, Figure, Search, Undefined, figure_of
from trainyard.papers.evidence import as_dict as evidence_as_dict
from trainyard.papers.gates import JUDGED_BY_GATES
from trainyard.papers.gates import figure as figure_from_gates
from trainyard.reading import parse_toml, reader

Use = Literal["headline", "table", "derived", "context"]
Bound = Literal["upper", "lower", "range"]
Verdict = Literal["met", "near", "off", "open", "undefined", "contradicted", "substitute", "derived", "context", "not yet"]
Value = float | tuple[float, ...] | str

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MET, NEAR = 0.05, 0.15
ROUNDING = 1e-9  # of the division: 2.1 is within 5 % of 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure of a paper."""

    id: str
    value: float | tuple[float, ...] | str
    unit: str
    use: Use
    where: str
    bound: Bound | None = None
    conflict: str = ""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.bound == "range" and not (isinstance(self.value, tuple) and len(self.value) == 2):
            raise BadInput(f"claim {self.id}: a range needs two values, got {self.value!r}")
        if isinstance(self.value, str) and self.use != "context":
            raise BadInput(f"claim {self.id}: only context may be text, got {self.value!r}")

    @property
    def paper(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of an experiment.

    `note` is one sentence for the table; `details` are further sentences for the paper's own page. `verdict` is set only where
    comparison is not the point: with a `proof`, with the stand-in named in `note`, or with `evidence` (a `Search` for `open`, an
    `Undefined` for `undefined`). `printed` is the result of the same experiment with the inputs that the paper prints.
    """

    value: float | Sequence[float]
    note: str = ""
    verdict: Literal["contradicted", "substitute", "open", "undefined"] | None = None
    proof: str = ""
    printed: float | Sequence[float] | None = None
    details: str = ""
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if self.verdict == "contradicted" and not self.proof:
            raise BadInput("a contradicted claim needs its proof")
        if self.verdict == "substitute" and not self.note:
            raise BadInput("a substitute needs a note that names what stands in")
        if self.verdict == "open" and not isinstance(self.evidence, Search):
            raise BadInput("an open claim needs its evidence: a Search with the readings that were tried and the nearest one")
        if self.verdict == "undefined" and not isinstance(self.evidence, Undefined):
            raise BadInput("an undefined claim needs its evidence: an Undefined with what is missing and readings that disagree")
        if self.evidence is not None and self.verdict not in ("open", "undefined"):
            raise BadInput(f"a {type(self.evidence).__name__} is evidence of open or undefined, not of {self.verdict}")


Experiments = Mapping[str, Callable[[], Measured]]
"""Functions by the claims that they answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the ledger; `paper` is the paper's figure, `ratio` ours over it (the worst of a list).

    `printed` is ours from the inputs that the paper prints, where it prints them; `gates` is what synthesis of our own circuits
    says (`papers.gates`); `details` are for the paper's page alone.
    """

    id: str
    paper: Value
    ours: float | tuple[float, ...] | None
    ratio: float | None
    verdict: Verdict
    note: str
    claim: Claim
    failed: bool = False
    printed: float | tuple[float, ...] | None = None
    gates: float | None = None
    details: str = ""
    evidence: Evidence | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "paper": list(self.paper) if isinstance(self.paper, tuple) else self.paper,
            "ours": list(self.ours) if isinstance(self.ours, tuple) else self.ours,
            "printed": list(self.printed) if isinstance(self.printed, tuple) else self.printed,
            "gates": self.gates,
            "ratio": self.ratio if self.ratio is not None and math.isfinite(self.ratio) else None,
            "verdict": self.verdict,
            "note": self.note,
            "unit": self.claim.unit,
            "use": self.claim.use,
            "bound": self.claim.bound,
            "where": self.claim.where,
            "evidence": None if self.evidence is None else evidence_as_dict(self.evidence),
        }


@cache
def claims() -> tuple[Claim, ...]:
    """All claims of all papers, validated."""
    return read_claims(resources.files("trainyard.papers").joinpath("claims.toml").read_text(encoding="utf-8"))


@reader("claims", source="text")
def read_claims(text: str) -> tuple[Claim, ...]:
    """The claims of a TOML text."""
    from pydantic import TypeAdapter, ValidationError

    try:
        rows = TypeAdapter(tuple[Claim, ...]).validate_python(parse_toml(text, "claims").get("claim", []))
    except ValidationError as error:
        first = error.errors()[0]
        number, *field = first["loc"] or ("",)
        raise BadInput(f"claims: row {number}, {'.'.join(map(str, field))}: {first['msg']}") from None
    except ValueError as error:
        raise BadInput(f"claims: {error}") from None
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise BadInput(f"claims: '{row.id}' is given twice")
        seen.add(row.id)
    return rows


def stated(paper: str, claim: str) -> float:
    """The one number that a paper prints for a claim.

    >>> stated("igo", "small.all")
    29.3
    """
    (value,) = stated_values(paper, claim)
    return value


def stated_values(paper: str, claim: str) -> tuple[float, ...]:
    return _numbers(next(row.value for row in claims() if row.id == f"{paper}.{claim}"))


def papers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim.paper for claim in claims()))


def select(paper: str | None = None, figure: str | None = None) -> tuple[Claim, ...]:
    """The claims of one paper, one claim or those below it (`igo.small`), or those of a figure (`12`, `12a`, `Table II`)."""
    of_paper = _named(paper)
    if figure is None:
        return of_paper
    pattern = _figure_pattern(figure)
    chosen = tuple(claim for claim in of_paper if pattern.search(claim.where))
    if chosen:
        return chosen
    from trainyard.papers.bench import figures

    command = " ".join(filter(None, ("trainyard reproduce", paper)))
    missing = f"no claim of {paper or 'any paper'} names {figure!r}"
    if paper in papers() and any(map(pattern.search, figures(str(paper)))):
        raise BadInput(f"{missing}; it is drawn with all: {command} --html page.html")
    named = dict.fromkeys(name for claim in of_paper for name in _PLACES.findall(claim.where))
    raise BadInput(f"{missing}{_neighbour(figure, named)}; `{command}` shows all")


_PLACES = re.compile(r"Fig\. \d+\w*|Table [IVX\d]+|Sec\. [IVX\d]+(?:[-.]\w+)*")


def _named(name: str | None) -> tuple[Claim, ...]:
    """The claims of a paper, or those whose id is the name or begins with it; all of them for None."""
    if name is None or name in papers():
        return tuple(claim for claim in claims() if name in (None, claim.paper))
    if "." not in name:
        raise UnknownName("paper", name, papers())
    chosen = tuple(claim for claim in claims() if claim.id == name or claim.id.startswith(f"{name}."))
    if not chosen:
        of_paper = [claim.id for claim in claims() if claim.paper == name.partition(".")[0]]
        raise UnknownName("claim", name, of_paper or [claim.id for claim in claims()])
    return chosen


def _neighbour(figure: str, named: Iterable[str]) -> str:
    """The figure, table or section that is written most like the one asked for: `12c` like Fig. 12a, `Tabel II` like Table II."""
    short = {re.sub(r"^Fig\. ", "", name).lower(): name for name in named}
    asked = re.sub(r"(?i)^fig[a-z]*\.?\s*", "", figure.strip()).lower()
    near = difflib.get_close_matches(asked, short, n=1, cutoff=0.5)
    return f": did you mean '{short[near[0]]}'?" if near else ""


def names_figure(claim: Claim, figure: str) -> bool:
    """Whether a claim is of that figure or table.

    >>> names_figure(Claim(id="a.b", value=1.0, unit="x", use="table", where="Fig. 12 / Fig. 8, mean"), "Fig. 1")
    False
    """
    return _figure_pattern(figure).search(claim.where) is not None


def _figure_pattern(figure: str) -> re.Pattern[str]:
    text = re.sub(r"(?i)^fig(ure|\.)?\s*", "", figure.strip())
    if re.match(r"(?i)(table|sec)", text):
        return re.compile(rf"{re.escape(text)}(?![\w.-])", re.IGNORECASE)
    return re.compile(rf"Fig\. {re.escape(text)}(?!\d)")


def judge(claim: Claim, measured: Measured) -> Row:
    """The verdict on one measured claim.

    `open` stands in place of `off` alone: a result within 15 % is judged by its distance. An `undefined` claim has no ratio. A
    claim on which a table is calibrated is judged by its figure from gates, where there is one.
    """
    ours = figure_of(measured.value)
    if isinstance(claim.value, str):
        raise BadInput(f"claim {claim.id} is text and cannot be measured")
    ratio: float | None = worst(_ratios(claim, ours))
    compared = compare(claim, ours)
    verdict: Verdict = measured.verdict or ("context" if claim.use == "context" else compared)
    if verdict == "open" and compared != "off":
        verdict = compared
    if verdict == "undefined":
        ratio = None
    if claim.use == "derived" and verdict == "met":
        verdict = "derived"
    counted = figure_from_gates(claim.id)
    if counted is not None and claim.id in JUDGED_BY_GATES:
        verdict, ratio = compare(claim, counted.value), worst(_ratios(claim, counted.value))
    conflict = claim.conflict and f"The paper contradicts itself here: {claim.conflict}."
    reason = "" if measured.evidence is None or verdict not in ("open", "undefined") else _reason(claim, measured.evidence)
    texts = (measured.proof, reason, measured.note, conflict, counted and f"From gates: {counted.note}")
    note, *further = [text for text in texts if text] or [""]
    printed = None if measured.printed is None else figure_of(measured.printed)
    if printed is not None:
        _ratios(claim, printed)  # as many figures as the claim has, none of them nan
    return Row(
        id=claim.id, paper=claim.value, ours=ours, ratio=ratio, verdict=verdict, note=note, claim=claim, printed=printed,
        gates=None if counted is None else counted.value,
        details=" ".join(text for text in (*further, measured.details) if text), evidence=measured.evidence,
    )  # fmt: skip


def _reason(claim: Claim, evidence: Evidence) -> str:
    """The evidence in a sentence or two; a search must have been held against this claim, and against claims that exist."""
    if isinstance(evidence, Undefined):
        readings = ", ".join(f"{name} {number(value)}" for name, value in evidence.readings.items())
        where = ", ".join(evidence.looked_in)
        return f"The paper does not define {evidence.missing} (looked for in {where}). Readings: {readings}."
    if claim.id not in evidence.numbers:
        raise BadInput(f"claim {claim.id} is open by a search that was not held against it")
    count, total = within(evidence), len(evidence.numbers)
    if count > evidence.best:
        raise BadInput(f"claim {claim.id}: the nearest reading has {count} claims within 15 %, the best of all {evidence.best}")
    best = f" ({evidence.best_reading})" if evidence.best_reading else ""
    fits = ", which is within 15 %, but not the others with it" if compare(claim, evidence.numbers[claim.id]) != "off" else ""
    return (
        f"{evidence.readings:,} readings ({evidence.varied}) searched against {total} claim{'s' * (total > 1)}: the best has "
        f"{evidence.best} within 15 %{best}, the nearest defensible one {count} ({evidence.nearest}); that one gives "
        f"{number(evidence.numbers[claim.id])} here{fits}."
    )


def searched(varied: str, results: Mapping[str, Mapping[str, Figure]], nearest: str, why: str) -> Search:
    """A search over readings, from the results of each by claim; `nearest` is the defensible one that the ledger has.

    `why` says why the best of all is not adopted, where it is another.
    """
    counts_by_name = {name: _within(numbers) for name, numbers in results.items()}
    best = max(counts_by_name, key=lambda name: (counts_by_name[name], name == nearest))
    return Search(
        varied=varied, readings=len(results), best=counts_by_name[best], nearest=nearest, numbers=results[nearest],
        best_reading="" if best == nearest else f"{best}; {why}",
    )  # fmt: skip


def within(search: Search) -> int:
    """How many of the claims of a search its nearest defensible reading has within 15 %, bounds included."""
    return _within(search.numbers)


def _within(numbers: Mapping[str, Figure]) -> int:
    known = {claim.id: claim for claim in claims()}
    for name in numbers:
        if name not in known:
            raise UnknownName("claim", name, known, "the evidence of an open claim")
    return sum(compare(known[name], value) != "off" for name, value in numbers.items())


def compare(claim: Claim, ours: float | tuple[float, ...]) -> Literal["met", "near", "off"]:
    """The verdict by distance alone: within 5 % (or a bound that holds), within 15 %, farther."""
    excess = _excess(claim, ours, worst(_ratios(claim, ours)))
    if not math.isfinite(excess):
        return "off"
    if excess <= (0.0 if claim.bound else MET) + ROUNDING:
        return "met"
    return "near" if excess <= NEAR + ROUNDING else "off"


def _excess(claim: Claim, ours: float | tuple[float, ...], ratio: float) -> float:
    """By how much a point is missed or a bound broken, as a share of the paper's figure."""
    if claim.bound == "range":
        low, high = _numbers(claim.value)
        return max(max(low / x if x else math.inf, x / high) - 1.0 for x in _numbers(ours))
    if claim.bound == "upper":
        return max(_ratios(claim, ours)) - 1.0
    if claim.bound == "lower":
        return 1.0 - min(_ratios(claim, ours))
    return abs(ratio - 1.0)


def _numbers(value: Value) -> tuple[float, ...]:
    if isinstance(value, str):
        raise BadInput(f"{value!r} is not a number")
    return value if isinstance(value, tuple) else (value,)


def _ratios(claim: Claim, ours: float | tuple[float, ...]) -> tuple[float, ...]:
    theirs, measured = _numbers(claim.value), _numbers(ours)
    if any(math.isnan(x) for x in measured):
        raise BadInput(f"claim {claim.id}: measured {ours!r}")
    if claim.bound == "range":
        low, high = theirs
        return tuple(x / min(max(x, low), high) if x else 0.0 for x in measured)
    if len(theirs) != len(measured):
        raise BadInput(f"claim {claim.id} has {len(theirs)} figures, {len(measured)} were measured")
    return tuple(_ratio(x, y) for x, y in zip(measured, theirs, strict=True))


def _ratio(ours: float, paper: float) -> float:
    if paper == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / paper


def worst(ratios: Iterable[float]) -> float:
    """The ratio farthest from 1, above and below alike.

    >>> worst((1.1, 0.8, 1.2))
    0.8
    """
    return max(ratios, key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf)


def number(value: Value | None) -> str:
    """A figure as it is printed, lists with slashes.

    >>> number((245.0, 87.5)), number(0.12345), number(None)
    ('245 / 87.5', '0.1235', '')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " / ".join(map(number, value))
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def paper_figure(row: Row) -> str:
    """The paper's figure with its bound."""
    if row.claim.bound == "range" and isinstance(row.paper, tuple):
        return " to ".join(map(number, row.paper))
    return {"upper": "≤ ", "lower": "≥ "}.get(row.claim.bound or "", "") + number(row.paper)


def with_verdicts(rows: Sequence[Row], verdicts: str) -> list[Row]:
    """The rows whose verdict is one of those listed, as in "off, open"."""
    wanted = [name.strip() for name in verdicts.split(",") if name.strip()]
    for name in wanted:
        if name not in VERDICTS:
            raise UnknownName("verdict", name, VERDICTS)
    return [row for row in rows if row.verdict in wanted]


def counts(rows: Iterable[Row]) -> dict[Verdict, int]:
    """How many rows have each verdict, verdicts that do not occur left out."""
    listed = [row.verdict for row in rows]
    return {verdict: listed.count(verdict) for verdict in VERDICTS if verdict in listed}


def by_paper(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for paper in dict.fromkeys(row.claim.paper for row in rows):
        yield paper, [row for row in rows if row.claim.paper == paper]
