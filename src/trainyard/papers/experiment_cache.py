"""What experiments found, kept between runs: a ledger that nothing has changed is read, not computed again.

A notebook belongs to one state of the package (`files.source_digest`: every file of it, and the versions of what it computes with).
It holds what was measured, not the verdicts: these are given anew. An experiment that failed is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput
from trainyard.files import cache_folder, source_digest, write_text
from trainyard.papers import ledger
from trainyard.papers.ledger import Measured, Row
from trainyard.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    import plotly.graph_objects as go

NOTEBOOKS = 4
"""Of so many states of the package the notebooks are left."""


class Notebook:
    """Measured claims and drawn figures by name, in one file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "ledger" / f"{source_digest()[:32]}.json"
        self._changed = False
        self._content: dict[str, dict[str, Any]] = {"measured": {}, "figures": {}}
        with suppress(OSError, ValueError):
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(read, dict) and all(isinstance(read.get(part), dict) for part in self._content):
                content = {part: read[part] for part in self._content}
                if read.get("digest") == _digest(content):
                    self._content = content

    def measured(self, claim: str) -> Measured | None:
        """What was found for a claim before."""
        found = self._content["measured"].get(claim)
        try:
            return None if found is None else Measured(**found)
        except (TypeError, BadInput):  # written by nobody we know
            return None

    def keep(self, claim: str, found: Measured) -> None:
        given = {name: getattr(found, name) for name in Measured.__slots__}
        self._content["measured"][claim] = {name: _plain(value) for name, value in given.items() if value not in (None, "")}
        self._changed = True

    def figure(self, paper: str, name: str) -> dict[str, Any] | None:
        """A figure as plotly's JSON."""
        found = self._content["figures"].get(f"{paper} {name}")
        return found if isinstance(found, dict) else None

    def keep_figure(self, paper: str, name: str, figure: go.Figure) -> dict[str, Any]:
        import plotly.io

        found: dict[str, Any] = json.loads(plotly.io.to_json(figure, engine="json"))
        self._content["figures"][f"{paper} {name}"] = found
        self._changed = True
        return found

    def save(self) -> None:
        """Written whole; a folder that cannot be written to costs the next run its time, and nothing else."""
        if not self._changed:
            return
        with suppress(OSError, BadInput):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps({**self._content, "digest": _digest(self._content)}, separators=(",", ":")))
            old = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in old[NOTEBOOKS:]:
                path.unlink()
        self._changed = False


def _digest(content: Mapping[str, Any]) -> str:
    """Of all that a notebook says: one that was damaged or altered does not have it, and counts as empty."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, str | None):
        return value
    return [float(one) for one in value] if isinstance(value, Sequence) else float(value)


def walk(
    paper: str | None = None,
    figure: str | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    anew: bool = False,
) -> list[Row]:
    """The ledger's rows; what was measured by the very same program is not measured again unless asked `anew`."""
    notebook = Notebook()
    try:
        return ledger.walk(paper, figure, on_progress, recall=None if anew else notebook.measured, keep=notebook.keep)
    finally:
        notebook.save()


def rows(paper: str) -> list[Row] | None:
    """The rows of a paper if all that can be measured has been; None where something would have to run."""
    notebook = Notebook()
    known = ledger.experiments(paper)
    if any(notebook.measured(claim) is None for claim in known):
        return None
    return ledger.walk(paper, recall=notebook.measured)


def figures(paper: str, on_progress: ProgressCallback = no_progress, *, run: bool = False) -> Mapping[str, dict[str, Any]] | None:
    """A paper's figures as plotly's JSON by name; None where one is not kept, unless they may `run`."""
    notebook = Notebook()
    drawn = ledger.drawn(paper)
    found = {}
    try:
        for number, (name, draw) in enumerate(drawn.items()):
            on_progress(number, len(drawn))
            kept = notebook.figure(paper, name)
            if kept is None and not run:
                return None
            found[name] = kept or notebook.keep_figure(paper, name, draw())
    finally:
        notebook.save()
    return found
