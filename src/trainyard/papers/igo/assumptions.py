"""What each assumption is worth: the mean reduction of a step's time by all three steps, with another value in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from trainyard.errors import TrainyardError
from trainyard.papers.igo.baselines import CASES, PARTS, Case, height
from trainyard.papers.igo.measuring import mean
from trainyard.papers.igo.networks import RECOMMENDER_BATCH, Npu
from trainyard.papers.igo.partitioning import by_ideal, by_knn
from trainyard.runs import Told, Worth, silent

METRIC = "per cent by which all three steps shorten a training step (mean of nine networks, fixed tall tile)"


class Other(NamedTuple):
    """One alternative: how the case changes."""

    name: str
    meaning: str
    value: Any
    alternative: Any
    case: Case
    ideal: bool = False


def _field(case: Case, path: str, value: Any) -> Case:
    return replace(case, changes=(*case.changes, (path, value)))


def alternatives(case: Case) -> Iterator[Other]:
    """Everything that the paper leaves open and that this machine has to decide."""
    machine = case.machine()
    high = height(machine)
    # fmt: off
    yield Other("precision", "bytes of an element; sums have 4 in any case", "fp32", "bf16", _field(case, "precision", "bf16"))
    yield Other("im2col", "convolutions read the unfolded matrix, or each element once", "materialised", "raw",
                _field(case, "im2col", "raw"))
    yield Other("array.pipelined", "folds of the array overlap", False, True, _field(case, "array.pipelined", True))
    yield Other("reuse", "which tiles leave the scratchpad: the least recent, or those needed last", "lru", "farthest",
                _field(case, "reuse", "farthest"))
    yield Other("scope", "products alone, or all ops of the step", "products", "all", _field(case, "scope", "all"))
    for other in (high // 2, high // 4, high // 8):
        yield Other("tile height", "arrays that the fixed tile is high", high, other, replace(case, high=other))
    for other in PARTS.alternatives:
        yield Other(PARTS.name, PARTS.meaning, PARTS.value, other, replace(case, parts=other))
    for other in RECOMMENDER_BATCH.alternatives:
        yield Other(RECOMMENDER_BATCH.name, RECOMMENDER_BATCH.meaning, RECOMMENDER_BATCH.value, other,
                    replace(case, recommender_batch=other))
    yield Other("partition by", "nearest neighbours that do not know the layer, or the cheapest of m, n, k", "KNN", "ideal", case,
                ideal=True)
    # fmt: on


def worths(told: Told = silent, npus: Sequence[Npu] = ("small", "large")) -> list[Worth]:
    """The most valuable first, of both NPUs."""
    trials = [(npu, other) for npu in npus for other in alternatives(CASES[npu])]
    found = []
    for done, (npu, other) in enumerate(trials):
        told(done, len(trials))
        before, after, error = mean(by_knn(CASES[npu])), 0.0, ""
        try:
            after = mean(by_ideal(other.case) if other.ideal else by_knn(other.case))
        except TrainyardError as problem:
            after, error = before, str(problem)
        found.append(
            Worth(
                name=f"{npu} NPU: {other.name}", meaning=other.meaning, value=other.value, alternative=other.alternative,
                before=before, after=after, error=error,
            )
        )  # fmt: skip
    return sorted(found, key=lambda worth: -abs(worth.after - worth.before))
