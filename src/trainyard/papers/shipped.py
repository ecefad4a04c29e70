"""The ledger that comes with the package: what the program that was released measured, read in an instant.

`scripts/ship_ledger.py` writes it from the cache of experiments. It holds measurements and figures, not verdicts. It is an output
and no part of `files.source_digest`; it names the state of the program that computed it, so that another state can say so.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from trainyard._version import VERSION
from trainyard.errors import BadInput
from trainyard.files import SHIPPED_LEDGER, source_digest
from trainyard.papers import bench
from trainyard.papers.experiment_cache import ExperimentCache, measured_of
from trainyard.papers.ledger import Measured, Row, judge, select


@cache
def _content() -> Mapping[str, Any]:
    try:
        packed = resources.files("trainyard.papers").joinpath(SHIPPED_LEDGER).read_bytes()
    except FileNotFoundError:
        return {"version": VERSION, "source": "", "measured": {}, "figures": {}}
    content: dict[str, Any] = json.loads(gzip.decompress(packed))
    return content


def measured(claim: str) -> Measured | None:
    stored = _content()["measured"].get(claim)
    return None if stored is None else measured_of(stored)


def rows(paper: str) -> list[Row]:
    """One row for each claim of a paper; a claim that was not measured has none of ours."""
    return [
        bench.unmeasured(claim) if (found := measured(claim.id)) is None else judge(claim, found) for claim in select(paper)
    ]  # fmt: skip


def figures(paper: str) -> dict[str, dict[str, Any]]:
    """The figures of a paper that came with the package, as plotly's JSON by name."""
    stored = _content()["figures"]
    return {name: stored[f"{paper} {name}"] for name in bench.figures(paper) if f"{paper} {name}" in stored}


def of_this_state() -> bool:
    """Whether the very same program with the same libraries computed it."""
    return bool(_content()["source"] == source_digest())


def sentence() -> str:
    """Where the shipped numbers are from."""
    program = "this very program" if of_this_state() else "another state of the program"
    return f"These numbers came with Trainyard {_content()['version']}, computed by {program}, not on this computer"


def packed(computed: ExperimentCache) -> bytes:
    """The file, from a cache that has every measurement of this state."""
    wanted = [claim for paper in bench.PAPERS for claim in bench.experiments(paper)]
    absent = [claim for claim in wanted if computed.measured(claim) is None]
    if absent:
        raise BadInput(f"{len(absent)} of {len(wanted)} claims are not measured, {absent[0]} the first: run trainyard reproduce")
    parts = {part: dict(sorted(entries.items())) for part, entries in computed.content.items()}
    content = {"version": VERSION, "source": source_digest(), **parts}
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)
