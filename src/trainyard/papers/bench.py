"""The test bench: what each paper offers (`Paper`), and its claims held against its experiments (`walk`).

`papers/<paper>/__init__.py` defines `PAPER`. Its modules are named there by strings and imported when they are needed, so that
`trainyard list papers` imports no experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from trainyard.errors import BadInput, UnknownName
from trainyard.papers.changes import Change
from trainyard.papers.changes import check as check_changes
from trainyard.papers.headlines import Headline
from trainyard.papers.headlines import check as check_headline
from trainyard.papers.ledger import Claim, Measured, Row, Verdict, claims, judge, names_figure, select
from trainyard.papers.processes import workers
from trainyard.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.sensitivity import Kind, SensitivityStudy

    Experiment = Callable[[], Measured]
    Draw = Callable[[], go.Figure]
    Walkthrough = tuple[str, Draw]

# fmt: off
PAPERS: Mapping[str, str] = {  # paper -> the package whose PAPER describes it
    "sigma":      "trainyard.papers.sigma",
    "tensordash": "trainyard.papers.tensordash",
    "igo":        "trainyard.papers.igo",
    "mcdla":      "trainyard.papers.mcdla",
    "direct":     "trainyard.papers.direct",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper's part of the bench; strings name modules of its package.

    Every module of `experiments` has a table EXPERIMENTS from claims to functions, `plots` a table FIGURES from the names that
    claims give in `where` to functions. `whatif PAPER` runs `case` (workload, machine and masks, if any) unless `sensitivity`
    names a module whose `sensitivity_study(kinds)` varies the assumptions by a measure of the paper's own. `changes` names a module
    whose CHANGES lists what was changed after results had been seen, `headline` one whose HEADLINE is what a reader sees first of
    the paper, `search` one whose `run(folder, on_progress)` tries readings of the paper, writes what it finds into a folder and
    returns a sentence on it. `uses_processes`: its experiments mostly wait for other processes (`papers.processes`). `walkthrough`
    takes the example that was asked for in `explain PAPER EXAMPLE`, or "".
    """

    citation: str
    experiments: tuple[str, ...]
    case: tuple[str, str] | tuple[str, str, str]
    plots: str = "plots"
    sensitivity: str = ""
    changes: str = ""
    headline: str = ""
    search: str = ""
    uses_processes: bool = False
    walkthrough: Callable[[str], Walkthrough] | None = None


def description(paper: str) -> Paper | None:
    """A paper's `PAPER`; None for one that has claims alone."""
    if paper not in PAPERS:
        return None
    described: Paper = import_module(PAPERS[paper]).PAPER
    return described


def citation(paper: str) -> str:
    described = description(paper)
    return paper if described is None else " ".join(described.citation.partition("\n\n")[0].split())


def experiments(paper: str) -> Mapping[str, Experiment]:
    """A paper's experiments by the claims they answer; those of one process share their runs."""
    described = description(paper)
    if described is None:
        return {}
    table: dict[str, Experiment] = {}
    for module in described.experiments:
        table |= import_module(f"{PAPERS[paper]}.{module}").EXPERIMENTS
    known = {claim.id for claim in claims()}
    for claim in table:
        if claim not in known:
            raise UnknownName("claim", claim, known, PAPERS[paper])
    return table


def figures(paper: str) -> Mapping[str, Draw]:
    """All figures of a paper by their names, those that no claim names included."""
    described = description(paper)
    if described is None:
        return {}
    table: Mapping[str, Draw] = import_module(f"{PAPERS[paper]}.{described.plots}").FIGURES
    return table


def figures_of(rows: Sequence[Row]) -> dict[str, Draw]:
    """The figures of the one paper that all rows are of: all where all its claims are there, else those that the rows name."""
    papers = {row.claim.paper for row in rows}
    paper = next(iter(papers), "")
    drawn = figures(paper) if len(papers) == 1 else {}
    if not drawn:
        return {}
    if {row.id for row in rows} == {claim.id for claim in select(paper)}:
        return dict(drawn)
    named = {name: [names_figure(row.claim, name) for row in rows] for name in drawn}
    test = all if any(map(all, named.values())) else any  # a figure that all rows share is the one that was asked for
    return {name: drawn[name] for name, is_named in named.items() if test(is_named)}


def changes(paper: str) -> tuple[Change, ...]:
    """What was changed for a paper after results had been seen, every claim that it names checked."""
    described = description(paper)
    if described is None or not described.changes:
        return ()
    listed: tuple[Change, ...] = import_module(f"{PAPERS[paper]}.{described.changes}").CHANGES
    check_changes(listed, claims())
    return listed


def headline(paper: str) -> Headline | None:
    """What a reader sees first of a paper, the claims and the figure that it names checked; None where none is declared."""
    described = description(paper)
    if described is None or not described.headline:
        return None
    declared: Headline = import_module(f"{PAPERS[paper]}.{described.headline}").HEADLINE
    check_headline(declared, claims(), figures(paper))
    return declared


def search(paper: str, folder: Path, on_progress: ProgressCallback = no_progress) -> str:
    """Searches readings of a paper, or goes on with an interrupted search."""
    described = description(paper)
    if described is None or not described.search:
        having = [name for name in PAPERS if (other := description(name)) is not None and other.search]
        raise BadInput(f"{paper} has no search over readings; {' and '.join(having)} has: trainyard reproduce {having[0]} --search")
    found: str = import_module(f"{PAPERS[paper]}.{described.search}").run(folder, on_progress)
    return found


def case(paper: str, masks: str | None = None) -> tuple[str, str, str | None]:
    """The workload, the machine and the masks (if any) that stand for a paper in a sensitivity study."""
    described = description(paper)
    if described is None:
        raise BadInput(f"{paper} has no machine yet: name a workload and a machine, as in trainyard whatif resnet50 --on npu")
    workload, machine, *zeros = described.case
    return workload, machine, masks or next(iter(zeros), None)


def sensitivity_study(paper: str, kinds: Sequence[Kind]) -> SensitivityStudy | None:
    """A paper's assumptions and parameters under a measure of its own. None where `case` is run instead."""
    described = description(paper)
    if described is None or not described.sensitivity:
        return None
    study: SensitivityStudy = import_module(f"{PAPERS[paper]}.{described.sensitivity}").sensitivity_study(kinds=kinds)
    return study


def walkthrough(paper: str, example: str = "") -> Walkthrough:
    """A paper's mechanism on a small example: the text, and how to draw it."""
    described = description(paper)
    if described is None or described.walkthrough is None:
        raise BadInput(
            f"{paper} has no walk-through yet: explain a workload on a machine, as in trainyard explain resnet50 --on npu"
        )
    return described.walkthrough(example)


def seed_of(paper: str, example: str) -> int | None:
    """The seed of a random example; None for the paper's own."""
    if example and not example.isdigit():
        raise BadInput(f"explain {paper} {example}: give nothing (the paper's example), or a seed such as 7 for another one")
    return int(example) if example else None


def walk(
    paper: str | None = None,
    figure: str | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    recall: Callable[[str], Measured | None] | None = None,
    keep: Callable[[str, Measured], None] | None = None,
) -> list[Row]:
    """One row for each claim, in the papers' order; an experiment that fails is `off`, its error the note.

    A claim that `recall` answers is not measured; a new measurement is passed to `keep`. Papers whose experiments wait for other
    processes are walked in a thread of their own, so that this process has something to do meanwhile.
    """
    chosen = select(paper, figure)
    tables = {name: experiments(name) for name in dict.fromkeys(claim.paper for claim in chosen)}
    rows: dict[str, Row] = {}

    def measure(some: Sequence[Claim]) -> None:
        for claim in some:
            on_progress(len(rows), len(chosen), claim.id)
            rows[claim.id] = _row(claim, tables[claim.paper].get(claim.id), recall, keep)

    waiting = {name for name in tables if (described := description(name)) is not None and described.uses_processes}
    here = [claim for claim in chosen if claim.paper not in waiting]
    elsewhere = [claim for claim in chosen if claim.paper in waiting]
    if here and elsewhere and workers() is not None:
        thread = Thread(target=measure, args=(elsewhere,), daemon=True)  # an interrupt does not wait for it
        thread.start()
        measure(here)
        thread.join()
    else:
        measure(chosen)
    on_progress(len(chosen), len(chosen))
    return [rows[claim.id] for claim in chosen]


def unmeasured(claim: Claim) -> Row:
    """The row of a claim before its experiment has run."""
    verdict: Verdict = "context" if claim.use == "context" else "not yet"
    return Row(id=claim.id, paper=claim.value, ours=None, ratio=None, verdict=verdict, note=claim.conflict, claim=claim)


def _row(
    claim: Claim,
    experiment: Experiment | None,
    recall: Callable[[str], Measured | None] | None,
    keep: Callable[[str, Measured], None] | None,
) -> Row:
    if experiment is None:
        return unmeasured(claim)
    try:
        recalled = recall(claim.id) if recall is not None else None
        measured = recalled or experiment()
        row = judge(claim, measured)
        if keep is not None and recalled is None:
            keep(claim.id, measured)
        return row
    except Exception as error:  # one broken experiment must not hide the other claims; the exit code says so
        note = f"error: {type(error).__name__}: {error}"
        return Row(id=claim.id, paper=claim.value, ours=None, ratio=None, verdict="off", note=note, claim=claim, failed=True)
