"""The ledger: what each paper prints, what a simulation here gives, and a verdict. A claim is met by simulation or not at all.

An experiment measures one claim. What a paper's own figures or physics exclude is `contradicted` and carries its proof; what stands
in for data that cannot be had is a `substitute` and is named.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainyard.errors import BadInput, UnknownName
from trainyard.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.sensitivity import Kind, SensitivityStudy

Use = Literal["headline", "table", "derived", "context"]
Bound = Literal["upper", "lower", "range"]
Verdict = Literal["met", "near", "off", "contradicted", "substitute", "derived", "context", "not yet"]
Value = float | tuple[float, ...] | str

VERDICTS: tuple[Verdict, ...] = ("met", "near", "off", "contradicted", "substitute", "derived", "context", "not yet")
MET, NEAR = 0.05, 0.15
ROUNDING = 1e-9  # of the division: 2.1 is within 5 % of 2

# fmt: off
# paper -> its module: experiments() answers its claims (without it they are `not yet`), figures() draws its figures by the name
# that claims give them in `where`, walkthrough() tells `explain PAPER`; `whatif PAPER` runs CASE, or, where a paper's assumptions
# are not those of one machine, sensitivity_study() gives them and a measure of its own
MODULES: Mapping[str, str] = {
    "sigma":      "trainyard.papers.sigma",
    "tensordash": "trainyard.papers.tensordash",
    "igo":        "trainyard.papers.igo",
    "mcdla":      "trainyard.papers.mcdla",
    "direct":     "trainyard.papers.direct",
}
# fmt: on


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
    """What an experiment found.

    `verdict` is given only where comparison is not the point: with a `proof`, or with the stand-in named in `note`. `printed` is
    what the same experiment gives with the inputs that the paper prints in place of those that were had here.
    """

    value: float | Sequence[float]
    note: str = ""
    verdict: Literal["contradicted", "substitute"] | None = None
    proof: str = ""
    printed: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.verdict == "contradicted" and not self.proof:
            raise BadInput("a contradicted claim needs its proof")
        if self.verdict == "substitute" and not self.note:
            raise BadInput("a substitute needs a note that names what stands in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the ledger; `paper` is the paper's figure, `ratio` ours over it (the worst of a list).

    `printed` is ours from the paper's own printed inputs, where it was measured so as well.
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "paper": list(self.paper) if isinstance(self.paper, tuple) else self.paper,
            "ours": list(self.ours) if isinstance(self.ours, tuple) else self.ours,
            "printed": list(self.printed) if isinstance(self.printed, tuple) else self.printed,
            "ratio": self.ratio if self.ratio is not None and math.isfinite(self.ratio) else None,
            "verdict": self.verdict,
            "note": self.note,
            "unit": self.claim.unit,
            "use": self.claim.use,
            "bound": self.claim.bound,
            "where": self.claim.where,
        }


@cache
def claims() -> tuple[Claim, ...]:
    """All claims of all papers, validated."""
    return read_claims(resources.files("trainyard.papers").joinpath("claims.toml").read_text(encoding="utf-8"))


def read_claims(text: str) -> tuple[Claim, ...]:
    from pydantic import TypeAdapter, ValidationError

    try:
        rows = TypeAdapter(tuple[Claim, ...]).validate_python(tomllib.loads(text).get("claim", []))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"claims: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"claims: row {first['loc'][0]}, {'.'.join(map(str, first['loc'][1:]))}: {first['msg']}") from None
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise BadInput(f"claims: '{row.id}' is given twice")
        seen.add(row.id)
    return rows


def papers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim.paper for claim in claims()))


def case(paper: str, masks: str | None = None) -> tuple[str, str, str | None]:
    """The workload, the machine and the zeros (if any) that stand for a paper when its assumptions are weighed."""
    found: tuple[str, ...] | None = getattr(import_module(MODULES[paper]), "CASE", None) if paper in MODULES else None
    if found is None:
        raise BadInput(f"{paper} has no machine yet: name a workload and a machine, as in trainyard whatif resnet50 --on npu")
    workload, machine, *zeros = found
    return workload, machine, masks or next(iter(zeros), None)


def sensitivity_study(paper: str, kinds: Sequence[Kind]) -> SensitivityStudy | None:
    """How a paper weighs its assumptions and parameters by a measure of its own. None where `case` is run instead."""
    offered: Callable[[Sequence[Kind]], SensitivityStudy] | None = (
        getattr(import_module(MODULES[paper]), "sensitivity_study", None) if paper in MODULES else None
    )
    return None if offered is None else offered(kinds)


def walkthrough(paper: str, given: str = "") -> tuple[str, Callable[[], go.Figure]]:
    """A paper's mechanism at work on a small example: the text, and how to draw it. `given` chooses the example."""
    told: Callable[[str], tuple[str, Callable[[], go.Figure]]] | None = (
        getattr(import_module(MODULES[paper]), "walkthrough", None) if paper in MODULES else None
    )
    if told is None:
        raise BadInput(
            f"{paper} has no walk-through yet: explain a workload on a machine, as in trainyard explain resnet50 --on npu"
        )
    return told(given)


def select(paper: str | None = None, figure: str | None = None) -> tuple[Claim, ...]:
    """The claims of one paper, or of one of its figures (`12`, `12a`, `Table II`)."""
    if paper is not None and paper not in papers():
        raise UnknownName("paper", paper, papers())
    found = tuple(claim for claim in claims() if paper in (None, claim.paper))
    if figure is None:
        return found
    pattern = _figure_pattern(figure)
    chosen = tuple(claim for claim in found if pattern.search(claim.where))
    if not chosen:
        is_drawn = any(map(pattern.search, drawn(paper))) if paper else False
        where = f"it is drawn with all: trainyard reproduce {paper} --html page.html" if is_drawn else ""
        raise BadInput(
            f"no claim of {paper or 'any paper'} names {figure!r}; "
            + (where or f"`trainyard reproduce {paper or ''}`".rstrip() + " shows all")
        )
    return chosen


def names_figure(claim: Claim, figure: str) -> bool:
    """Whether a claim is of that figure or table.

    >>> names_figure(Claim(id="a.b", value=1.0, unit="x", use="table", where="Fig. 12 / Fig. 8, mean"), "Fig. 1")
    False
    """
    return _figure_pattern(figure).search(claim.where) is not None


def figures(rows: Sequence[Row]) -> dict[str, Callable[[], go.Figure]]:
    """The figures of the one paper that all rows are of: all where all its claims are there, else those that the rows name."""
    listed = {row.claim.paper for row in rows}
    paper = next(iter(listed), "")
    found = drawn(paper) if len(listed) == 1 else {}
    if not found:
        return {}
    if {row.id for row in rows} == {claim.id for claim in select(paper)}:
        return dict(found)
    named = {name: [names_figure(row.claim, name) for row in rows] for name in found}
    test = all if any(map(all, named.values())) else any  # one that they share is the one that was asked for
    return {name: found[name] for name, each in named.items() if test(each)}


def drawn(paper: str) -> Mapping[str, Callable[[], go.Figure]]:
    """All figures of a paper by their names, those that no claim names included."""
    offered = getattr(import_module(MODULES[paper]), "figures", None) if paper in MODULES else None
    found: Mapping[str, Callable[[], go.Figure]] = offered() if offered else {}
    return found


def _figure_pattern(figure: str) -> re.Pattern[str]:
    text = re.sub(r"(?i)^fig(ure|\.)?\s*", "", figure.strip())
    if re.match(r"(?i)(table|sec)", text):
        return re.compile(rf"{re.escape(text)}(?![\w.-])", re.IGNORECASE)
    return re.compile(rf"Fig\. {re.escape(text)}(?!\d)")


def walk(
    paper: str | None = None,
    figure: str | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    recall: Callable[[str], Measured | None] | None = None,
    keep: Callable[[str, Measured], None] | None = None,
) -> list[Row]:
    """One row for each claim, in the papers' order; an experiment that fails is `off`, its error the note.

    What `recall` knows of a claim is not measured again; what was measured is given to `keep`.
    """
    chosen = select(paper, figure)
    found = {name: experiments(name) for name in dict.fromkeys(claim.paper for claim in chosen)}
    rows = []
    for number, claim in enumerate(chosen):
        on_progress(number, len(chosen), claim.id)
        rows.append(_row(claim, found[claim.paper].get(claim.id), recall, keep))
    on_progress(len(chosen), len(chosen))
    return rows


def experiments(paper: str) -> Mapping[str, Callable[[], Measured]]:
    """A paper's experiments by the claims they answer."""
    offered = getattr(import_module(MODULES[paper]), "experiments", None) if paper in MODULES else None
    if offered is None:
        return {}
    found: Mapping[str, Callable[[], Measured]] = offered()
    known = {claim.id for claim in claims()}
    for name in found:
        if name not in known:
            raise UnknownName("claim", name, known, MODULES[paper])
    return found


def _row(
    claim: Claim,
    experiment: Callable[[], Measured] | None,
    recall: Callable[[str], Measured | None] | None = None,
    keep: Callable[[str, Measured], None] | None = None,
) -> Row:
    if experiment is None:
        verdict: Verdict = "context" if claim.use == "context" else "not yet"
        return Row(id=claim.id, paper=claim.value, ours=None, ratio=None, verdict=verdict, note=claim.conflict, claim=claim)
    try:
        known = recall(claim.id) if recall is not None else None
        measured = known or experiment()
        row = judge(claim, measured)
        if keep is not None and known is None:
            keep(claim.id, measured)
        return row
    except Exception as error:  # one broken experiment must not hide the other claims; the exit code says so
        note = f"error: {type(error).__name__}: {error}"
        return Row(id=claim.id, paper=claim.value, ours=None, ratio=None, verdict="off", note=note, claim=claim, failed=True)


def judge(claim: Claim, measured: Measured) -> Row:
    """The verdict on one measured claim."""
    ours = _plain(measured.value)
    if isinstance(claim.value, str):
        raise BadInput(f"claim {claim.id} is text and cannot be measured")
    ratio = worst(_ratios(claim, ours))
    verdict: Verdict = measured.verdict or ("context" if claim.use == "context" else _verdict(claim, ours, ratio))
    if claim.use == "derived" and verdict == "met":
        verdict = "derived"
    note = "; ".join(text for text in (measured.proof, measured.note, claim.conflict and f"in conflict: {claim.conflict}") if text)
    printed = None if measured.printed is None else _plain(measured.printed)
    if printed is not None:
        _ratios(claim, printed)  # as many figures as the claim has, none of them nan
    return Row(id=claim.id, paper=claim.value, ours=ours, ratio=ratio, verdict=verdict, note=note, claim=claim, printed=printed)


def _plain(value: float | Sequence[float]) -> float | tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, Sequence) else float(value)


def _verdict(claim: Claim, ours: float | tuple[float, ...], ratio: float) -> Verdict:
    excess = _excess(claim, ours, ratio)
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
    each = _ratios(claim, ours)
    if claim.bound == "upper":
        return max(each) - 1.0
    if claim.bound == "lower":
        return 1.0 - min(each)
    return abs(ratio - 1.0)


def _numbers(value: Value) -> tuple[float, ...]:
    if isinstance(value, str):
        raise BadInput(f"{value!r} is not a number")
    return value if isinstance(value, tuple) else (value,)


def _ratios(claim: Claim, ours: float | tuple[float, ...]) -> tuple[float, ...]:
    theirs, found = _numbers(claim.value), _numbers(ours)
    if any(math.isnan(x) for x in found):
        raise BadInput(f"claim {claim.id}: measured {ours!r}")
    if claim.bound == "range":
        low, high = theirs
        return tuple(x / min(max(x, low), high) if x else 0.0 for x in found)
    if len(theirs) != len(found):
        raise BadInput(f"claim {claim.id} has {len(theirs)} figures, {len(found)} were measured")
    return tuple(_ratio(x, y) for x, y in zip(found, theirs, strict=True))


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


def counts(rows: Iterable[Row]) -> dict[Verdict, int]:
    """How many rows have each verdict, verdicts that do not occur left out."""
    listed = [row.verdict for row in rows]
    return {verdict: listed.count(verdict) for verdict in VERDICTS if verdict in listed}


def by_paper(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for paper in dict.fromkeys(row.claim.paper for row in rows):
        yield paper, [row for row in rows if row.claim.paper == paper]
