"""The range of a result's time: the step is run again with each alternative of each open assumption, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.errors import TrainyardError
from trainyard.ir.assumptions import trials
from trainyard.progress import ProgressCallback

if TYPE_CHECKING:
    from trainyard.results.result import Result

Spans = Mapping[str, tuple[float, float]]
"""By the path of an assumption, the least and the most seconds over its value and its alternatives."""
NOTICEABLE = 1e-3
"""Share of the time below which a span is only counted."""


def with_range(result: Result, on_progress: ProgressCallback) -> Result:
    """The result with the spans of all open assumptions, and the range over all of them."""
    if result.range_s is not None or result.rerun is None:
        return result
    alternatives = trials(result.assumptions, "time_s")
    times: dict[str, list[float]] = {}
    for done, (path, alternative) in enumerate(alternatives):
        on_progress(done, len(alternatives))
        with suppress(TrainyardError):  # an alternative that this machine refuses does not widen the range
            times.setdefault(path, [result.time_s]).append(result.rerun({path: alternative}).time_s)
    spans = {path: (min(seconds), max(seconds)) for path, seconds in times.items()}
    low, high = (pick([result.time_s, *(ends[end] for ends in spans.values())]) for end, pick in ((0, min), (1, max)))
    return replace(result, range_s=(low, high), range_by=spans)


def moving(result: Result) -> Iterator[str]:
    """Paths of the assumptions that move the time by more than rounding, the widest span first."""
    spans = result.range_by
    for path in sorted(spans, key=lambda path: spans[path][0] - spans[path][1]):
        if spans[path][1] - spans[path][0] >= NOTICEABLE * result.time_s:
            yield path
