"""What a reader sees first of a paper: its headline, ours, the verdict, the assumptions that it hinges on, and its main figure.

A paper declares a `Headline` in the module that `Paper.headline` names. Nothing in it is a result: the headline is read from the
ledger's rows, and every assumption has a function that measures the headline under the alternative. `experiment_cache.openings`
measures and draws, `pages` and `illustrated` write the result down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainyard.errors import BadInput, UnknownName
from trainyard.papers.evidence import Figure
from trainyard.papers.ledger import Claim, Row, Verdict, number, paper_figure

HINGES = 3
# fmt: off
IN_WORDS: Mapping[Verdict, str] = {  # continues "Here it is ..."
    "met":          "which meets the printed figure",
    "near":         "which is within 15 % of the printed figure",
    "off":          "which misses the printed figure",
    "open":         "which misses the printed figure; readings of the paper were searched jointly, and none of them fits",
    "undefined":    "but the paper does not define the quantity",
    "contradicted": "but other figures of the paper exclude the printed one",
    "substitute":   "with data that stand in for the paper's, which cannot be had",
    "derived":      "which is not judged: it is arithmetic on the paper's own figures",
    "context":      "which is a parameter and not judged",
    "not yet":      "because no experiment has run",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinge:
    """An assumption that the headline depends on.

    `assumed` is a sentence: what is assumed, and on which ground. `otherwise` names the alternative and begins the sentence that
    ends in ", the headline would be ...". `result` measures the headline's first claim under the alternative.
    """

    assumed: str
    otherwise: str
    result: Callable[[], float | Sequence[float]]

    def __post_init__(self) -> None:
        if not self.assumed.endswith("."):
            raise BadInput(f"an assumption of a headline is a sentence with a full stop, got {self.assumed!r}")
        if not self.otherwise or self.otherwise[-1] in ".,":
            raise BadInput(f"an alternative begins a sentence and has no stop at its end, got {self.otherwise!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The headlines of a paper: in `titles` what each claim is, in words. Hinges are about the first of them.

    `system` is the paper's name of what it proposes, `figure` the one of `bench.figures` that is shown, `shows` what is seen there.
    """

    system: str
    titles: Mapping[str, str]
    figure: str
    shows: str
    hinges: tuple[Hinge, ...]

    def __post_init__(self) -> None:
        if len(self.hinges) != HINGES:
            raise BadInput(f"the headline of {self.system} needs {HINGES} assumptions that it hinges on, got {len(self.hinges)}")
        if not self.titles:
            raise BadInput(f"the headline of {self.system} names no claim")

    @property
    def claim(self) -> str:
        """The claim that the hinges are about."""
        return next(iter(self.titles))

    @property
    def picture(self) -> str:
        """The file of the main figure in docs/, beside the ledger's page."""
        return picture_file(self.claim.partition(".")[0], self.figure)


class Opening(NamedTuple):
    """A headline with its rows of the ledger, its first claim under each alternative, and the figure as plotly's JSON."""

    headline: Headline
    rows: tuple[Row, ...]
    alternatives: tuple[Figure, ...]
    figure: Mapping[str, Any]

    @property
    def paper(self) -> str:
        return self.headline.claim.partition(".")[0]


def check(headline: Headline, claims: Sequence[Claim], figures: Mapping[str, Any]) -> None:
    """Every claim and the figure that a headline names exist."""
    known = {claim.id for claim in claims}
    for claim in headline.titles:
        if claim not in known:
            raise UnknownName("claim", claim, known, f"the headline of {headline.system}")
    if headline.figure not in figures:
        raise UnknownName("figure", headline.figure, figures, f"the headline of {headline.system}")


def picture_file(paper: str, figure: str) -> str:
    """The file of a figure in docs/.

    >>> picture_file("sigma", "Fig. 12a")
    'sigma-fig-12a.svg'
    """
    return f"{paper}-{'-'.join(figure.lower().replace('.', '').split())}.svg"


def headline_sentences(opening: Opening) -> Iterator[str]:
    """What the paper prints, what comes out here and how it is judged, one sentence or two for each claim."""
    for row in opening.rows:
        second = "" if row.printed is None else f" From the inputs that the paper prints, it is {number(row.printed)}."
        title = opening.headline.titles[row.id]
        printed = f"{title[0].upper()}{title[1:]}: the paper prints {paper_figure(row)} ({row.claim.where})"
        yield f"{printed}; here it is {number(row.ours)}, {IN_WORDS[row.verdict]}.{second} {row.note}".rstrip()


def hinge_sentences(opening: Opening) -> Iterator[str]:
    """Each assumption, and what the headline would be without it."""
    now = number(opening.rows[0].ours)
    for hinge, figure in zip(opening.headline.hinges, opening.alternatives, strict=True):
        yield f"{hinge.assumed} {hinge.otherwise}, the headline would be {number(figure)} instead of {now}."


def hinges_lead(opening: Opening) -> str:
    """The sentence before the list of hinges."""
    first = "" if len(opening.rows) == 1 else f" (`{opening.headline.claim}`)"
    return f"The first of these figures{first} hinges on three assumptions:" if first else "It hinges on three assumptions:"


def figure_sentence(opening: Opening) -> str:
    """What the main figure shows, and how it is drawn again."""
    headline = opening.headline
    description = opening.figure["layout"]["meta"]["description"]
    name = headline.figure.removeprefix("Fig. ")
    command = f"trainyard reproduce {opening.paper} --figure {name if ' ' not in name else repr(name)} --html figure.html"
    return f"{headline.figure}: {headline.shows}. {description} `{command}` draws it with every value."


TABLE_HEAD = ("paper", "headline", "claim", "printed", "here", "verdict")


def table_rows(openings: Sequence[Opening]) -> Iterator[tuple[str, ...]]:
    """Of all headlines; a paper is named once."""
    for opening in openings:
        name = f"[{opening.headline.system}]({opening.headline.claim.partition('.')[0]}.md)"
        for row in opening.rows:
            title = opening.headline.titles[row.id]
            yield name, title, f"`{row.id}`", paper_figure(row), number(row.ours), row.verdict
            name = ""
