"""Results of experiments on disk, so that a second `reproduce` of an unchanged program reads them instead of computing.

A cache file belongs to one state of the package (`files.source_digest`: every source file, and the versions of the libraries). It
holds measurements and figures, not verdicts, which are computed each time. An experiment that failed is not stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.errors import BadInput
from trainyard.files import cache_folder, source_digest, write_text
from trainyard.papers import bench, evidence
from trainyard.papers.headlines import Headline, Opening
from trainyard.papers.ledger import Measured, Row, by_paper, select
from trainyard.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    import plotly.graph_objects as go

EARLIER = "an earlier version"
MOST_FILES = 4
"""States of the package whose cache files are left on disk."""


class ExperimentCache:
    """Measurements by claim and figures by name, in one file; `version` is that of the program which wrote it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "ledger" / f"{source_digest()[:32]}.json"
        self._changed = False
        self.version = EARLIER  # that wrote the file
        self._content: dict[str, dict[str, Any]] = {"measured": {}, "figures": {}}
        with suppress(OSError, ValueError):
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(read, dict) and all(isinstance(read.get(part), dict) for part in self._content):
                content = {part: read[part] for part in self._content}
                if read.get("digest") == _digest(content):
                    self._content = content
                    self.version = f"version {read['version']}" if "version" in read else EARLIER

    @property
    def content(self) -> Mapping[str, Mapping[str, Any]]:
        """Measurements by claim and figures by paper and name, as they are stored."""
        return self._content

    def measured(self, claim: str) -> Measured | None:
        stored = self._content["measured"].get(claim)
        try:
            return None if stored is None else measured_of(stored)
        except (TypeError, BadInput):  # not written by this program
            return None

    def store(self, claim: str, measured: Measured) -> None:
        fields = {name: getattr(measured, name) for name in Measured.__slots__ if name != "evidence"}
        self._content["measured"][claim] = {name: _plain(value) for name, value in fields.items() if value not in (None, "")}
        if measured.evidence is not None:
            self._content["measured"][claim]["evidence"] = evidence.as_dict(measured.evidence)
        self._changed = True

    def figure(self, paper: str, name: str) -> dict[str, Any] | None:
        """A figure as plotly's JSON."""
        stored = self._content["figures"].get(f"{paper} {name}")
        return stored if isinstance(stored, dict) else None

    def store_figure(self, paper: str, name: str, figure: go.Figure) -> dict[str, Any]:
        import plotly.io

        content: dict[str, Any] = json.loads(plotly.io.to_json(figure, engine="json"))
        self._content["figures"][f"{paper} {name}"] = content
        self._changed = True
        return content

    def save(self) -> None:
        """Replaces the file at once; if the folder cannot be written to, only the next run's time is lost."""
        if not self._changed:
            return
        with suppress(OSError, BadInput):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = {**self._content, "digest": _digest(self._content), "version": VERSION}
            write_text(self.path, json.dumps(kept, separators=(",", ":")))
            for path in _newest_first(self.path.parent)[MOST_FILES:]:
                path.unlink()
        self._changed = False


def outdated(paper: str | None = None) -> str:
    """One sentence where a ledger of another state of the program is kept and the one of this state is not complete; else "".

    Its numbers are not used: a change of any source file or library may change them.
    """
    cache = ExperimentCache()
    wanted = {claim.id for claim in select(paper)}
    papers = {claim.partition(".")[0] for claim in wanted}
    measurable = [claim for name in papers for claim in bench.experiments(name) if claim in wanted]
    if all(cache.measured(claim) is not None for claim in measurable):
        return ""
    for path in _newest_first(cache.path.parent):
        if path == cache.path:
            continue
        other = ExperimentCache(path)
        if count := sum(other.measured(claim) is not None for claim in measurable):
            return (
                f"a ledger kept from {other.version} has {count} of these {len(measurable)} measurements; it was written by "
                f"another state of the program than this one ({VERSION}) and is not used"
            )
    return ""


def _newest_first(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def _digest(content: Mapping[str, Any]) -> str:
    """A file whose content does not match its digest was damaged or altered, and counts as empty."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def measured_of(stored: Mapping[str, Any]) -> Measured:
    """A measurement as it was stored."""
    content = dict(stored)
    if "evidence" in content:
        content["evidence"] = evidence.from_dict(content["evidence"])
    return Measured(**content)


def _plain(value: Any) -> Any:
    if isinstance(value, str | None):
        return value
    return [float(number) for number in value] if isinstance(value, Sequence) else float(value)


def walk(
    paper: str | None = None,
    figure: str | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    anew: bool = False,
) -> list[Row]:
    """The ledger's rows; cached measurements are used unless `anew`."""
    cache = ExperimentCache()
    try:
        return bench.walk(paper, figure, on_progress, recall=None if anew else cache.measured, keep=cache.store)
    finally:
        cache.save()


def rows(paper: str) -> list[Row] | None:
    """The rows of a paper if all its measurements are cached; None where an experiment would have to run."""
    cache = ExperimentCache()
    if any(cache.measured(claim) is None for claim in bench.experiments(paper)):
        return None
    return bench.walk(paper, recall=cache.measured)


def figures(paper: str, on_progress: ProgressCallback = no_progress, *, run: bool = False) -> Mapping[str, dict[str, Any]] | None:
    """A paper's figures as plotly's JSON by name; None where one is not cached, unless they may `run`."""
    cache = ExperimentCache()
    functions = bench.figures(paper)
    content = {}
    try:
        for number, (name, draw) in enumerate(functions.items()):
            on_progress(number, len(functions))
            stored = cache.figure(paper, name)
            if stored is None and not run:
                return None
            content[name] = stored or cache.store_figure(paper, name, draw())
    finally:
        cache.save()
    return content


def openings(rows: Sequence[Row], on_progress: ProgressCallback = no_progress, *, anew: bool = False) -> list[Opening]:
    """What a reader sees first of each paper whose claims are all among the rows: its headline is measured under every alternative.

    A paper is left out where it declares no headline or where the headline has no result.
    """
    by_id = {row.id: row for row in rows}
    complete = [paper for paper, group in by_paper(rows) if {claim.id for claim in select(paper)} == {row.id for row in group}]
    declared = {paper: found for paper in complete if (found := bench.headline(paper)) is not None}
    measured = {paper: one for paper, one in declared.items() if all(by_id[claim].ours is not None for claim in one.titles)}
    cache, opened = ExperimentCache(), list[Opening]()
    try:
        for place, (paper, headline) in enumerate(measured.items()):
            on_progress(place, len(measured), headline.system)
            name = headline.figure
            drawn = None if anew else cache.figure(paper, name)
            opened.append(
                Opening(
                    headline,
                    tuple(by_id[claim] for claim in headline.titles),
                    tuple(_alternatives(headline, cache, anew)),
                    drawn or cache.store_figure(paper, name, bench.figures(paper)[name]()),
                )
            )
        on_progress(len(measured), len(measured))
    finally:
        cache.save()
    return opened


def _alternatives(headline: Headline, cache: ExperimentCache, anew: bool) -> Iterator[evidence.Figure]:
    """The headline under the alternative of every hinge."""
    for place, hinge in enumerate(headline.hinges):
        name = f"{headline.claim} otherwise {place}"
        recalled = None if anew else cache.measured(name)
        if recalled is None:
            recalled = Measured(hinge.result())
            cache.store(name, recalled)
        yield evidence.figure_of(recalled.value)
