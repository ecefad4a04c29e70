"""The verdict of rows that the search over readings covers: a result that misses the paper's figure is `open`, not merely `off`.

The evidence is the stored result of the search (`samples/igo/readings.json`): how many readings were tried, how many claims the
best of them reaches, and what the nearest defensible one gives for every claim. Some figures are printed in several places; such a
row has the evidence of its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trainyard.papers.evidence import Search
from trainyard.papers.igo.reading_page import described
from trainyard.papers.igo.reading_search import stored
from trainyard.papers.ledger import Experiments, Measured, claims, compare

TWINS: Mapping[str, str] = {  # a row -> the claim of the search that is the same figure of the paper
    "cores.1": "large.all", "bandwidth.full": "large.all", "batch.8": "large.all", "cores.2": "cores.2.partitioning_knn",
}  # fmt: skip
VARIED = (
    "tiles of 1 to 16 arrays, 2 or 4 bytes, im2col, reuse, loops of dXmajor, and 12 timings: [igo_readings.md](igo_readings.md)"
)


def evidence(claim: str, result: Mapping[str, Any]) -> Search | None:
    """The search as evidence for a claim (without the paper's name); None where it was not held against it."""
    source = TWINS.get(claim, claim)
    nearest = result.get("nearest_defensible") or result.get("best")
    if not nearest or source not in nearest[0]["values"]:
        return None
    best = max((*result["best"], *result["nearest_defensible"]), key=lambda one: one["reached"])
    return Search(
        varied=VARIED,
        readings=result["readings"],
        best=best["reached"],
        best_reading=described(best) if best["walk"] != nearest[0]["walk"] or best["timing"] != nearest[0]["timing"] else "",
        nearest=described(nearest[0]),
        numbers={f"igo.{claim if name == source else name}": value for name, value in nearest[0]["values"].items()},
    )


def judged(experiments: Experiments) -> Experiments:
    """Experiments whose results are `open` where they miss the paper's figure and the search was held against it."""
    return {claim: partial(_judged, claim, experiment) for claim, experiment in experiments.items()}


def _judged(claim_id: str, experiment: Callable[[], Measured]) -> Measured:
    measured = experiment()
    claim = next(claim for claim in claims() if claim.id == claim_id)
    found = evidence(claim_id.partition(".")[2], stored()) if measured.verdict is None else None
    if found is None or isinstance(claim.value, str) or compare(claim, measured.value) != "off":  # type: ignore[arg-type]  # a number
        return measured
    return replace(measured, verdict="open", evidence=found)
