"""What each assumption is worth: the mean reduction of a step's time by all three steps, with another value in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from trainyard.papers.igo.baselines import CASES, PARTS, Case, height
from trainyard.papers.igo.measuring import mean
from trainyard.papers.igo.networks import RECOMMENDER_BATCH, Npu
from trainyard.papers.igo.partitioning import by_ideal, by_knn
from trainyard.sensitivity import KINDS, Change, Kind, SensitivityStudy, parameters

METRIC = "per cent by which all three steps shorten a training step (mean of nine networks, fixed tall tile)"


class Reading(NamedTuple):
    """How the reduction is measured: on which case, and with the partition chosen by which means."""

    case: Case
    ideal: bool = False

    def measured(self) -> float:
        return mean(by_ideal(self.case) if self.ideal else by_knn(self.case))


def _field(path: str, value: Any, reading: Reading) -> Reading:
    return reading._replace(case=replace(reading.case, changes=(*reading.case.changes, (path, value))))


def _case(changes: dict[str, Any], reading: Reading) -> Reading:
    return reading._replace(case=replace(reading.case, **changes))


def _ideal(reading: Reading) -> Reading:
    return reading._replace(ideal=True)


def alternatives(npu: Npu) -> Iterator[Change]:
    """Everything that the paper leaves open and that this machine has to decide."""
    high = height(CASES[npu].machine())

    def other(name: str, meaning: str, value: Any, alternative: Any, made: Callable[[Reading], Reading]) -> Change:
        return Change(name=name, meaning=meaning, value=value, alternative=alternative, payload=made, group=f"{npu} NPU")

    # fmt: off
    yield other("precision", "bytes of an element; sums have 4 in any case", "fp32", "bf16", partial(_field, "precision", "bf16"))
    yield other("im2col", "convolutions read the unfolded matrix, or each element once", "materialised", "raw",
                partial(_field, "im2col", "raw"))
    yield other("array.pipelined", "folds of the array overlap", False, True, partial(_field, "array.pipelined", True))
    yield other("reuse", "which tiles leave the scratchpad: the least recent, or those needed last", "lru", "farthest",
                partial(_field, "reuse", "farthest"))
    yield other("reuse", "tiles stay as long as there is room, or inside one half of the scratchpad alone (Secs. 2.2, 4.2)",
                "lru", "window", partial(_field, "reuse", "window"))
    yield other("partial sums", "unfinished sums stay where there is room (Sec. 4.3), or pass through DRAM after every step",
                "resident", "through DRAM", partial(_field, "reuse", "operands"))
    yield other("dXmajor and dWmajor", "loops, outer to inner: dX or dW is summed innermost, or a tile of dY serves all k first",
                "m,k,n and n,k,m", "m,n,k and n,m,k", partial(_case, {"k_inner": True}))
    yield other("scope", "products alone, or all ops of the step", "products", "all", partial(_field, "scope", "all"))
    for lower in (high // 2, high // 4, high // 8):
        yield other("tile height", "arrays that the fixed tile is high", high, lower, partial(_case, {"high": lower}))
    for parts in PARTS.alternatives:
        yield other(PARTS.name, PARTS.meaning, PARTS.value, parts, partial(_case, {"parts": parts}))
    for batch in RECOMMENDER_BATCH.alternatives:
        yield other(RECOMMENDER_BATCH.name, RECOMMENDER_BATCH.meaning, RECOMMENDER_BATCH.value, batch,
                    partial(_case, {"recommender_batch": batch}))
    yield other("partition by", "nearest neighbours that do not know the layer, or the cheapest of m, n, k", "KNN", "ideal", _ideal)
    # fmt: on


def of_machine(npu: Npu) -> Iterator[Change]:
    """Every parameter of the NPU that is no assumption above."""
    taken = {change.name for change in alternatives(npu)}
    for change in parameters(CASES[npu].machine()):
        if change.name not in taken:
            yield replace(change, payload=partial(_field, change.name, change.alternative), group=f"{npu} NPU")


def sensitivity_study(npus: Sequence[Npu] = ("small", "large"), kinds: Sequence[Kind] = KINDS) -> SensitivityStudy:
    """The paper's own figure of merit, of both NPUs."""
    by_group = {f"{npu} NPU": CASES[npu] for npu in npus}

    def measure(group: str, changes: Sequence[Change]) -> float:
        reading = Reading(by_group[group])
        for change in changes:
            reading = change.payload(reading)
        return reading.measured()

    sources = {"assumption": alternatives, "parameter": of_machine}
    changes = [change for kind in kinds for npu in npus for change in sources[kind](npu)]
    return SensitivityStudy(title="igo", metric=METRIC, changes=changes, measure=measure)
