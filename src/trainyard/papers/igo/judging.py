"""The verdict of rows that the search over readings covers: a result that misses the paper's figure is `open`, not merely `off`.

The evidence is the stored result of the search (`samples/igo/readings.json`): how many readings were tried, how many claims the
best of them reaches, and what the nearest defensible one gives for every claim. Some figures are printed in several places; such a
row has the evidence of its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trainyard.papers.evidence import Search
from trainyard.papers.igo.reading_claims import reached
from trainyard.papers.igo.reading_page import candidates, described, objections
from trainyard.papers.igo.reading_search import stored
from trainyard.papers.ledger import Claim, Experiments, Measured, claims, compare

TWINS: Mapping[str, str] = {  # a row -> the claim of the search that is the same figure of the paper
    "cores.1": "large.all", "bandwidth.full": "large.all", "batch.8": "large.all", "cores.2": "cores.2.partitioning_knn",
}  # fmt: skip
AGREES = 1e-3  # of values that are rounded to four places in the stored result


def evidence(claim: str, result: Mapping[str, Any]) -> Search | None:
    """The search as evidence for a claim (without the paper's name); None where it was not held against it."""
    source, nearest = TWINS.get(claim, claim), result["nearest_defensible"]
    if not nearest or source not in nearest[0]["values"]:
        return None
    best = max(candidates(result), key=lambda one: one["reached"])
    return Search(
        varied=_varied(result),
        readings=result["readings"],
        best=best["reached"],
        best_reading=objections(best),
        nearest=described(nearest[0]),
        numbers={f"igo.{claim if name == source else name}": value for name, value in nearest[0]["values"].items()},
    )


def _varied(result: Mapping[str, Any]) -> str:
    first, more = len(result["claims"]["searched"]), len(candidates(result))
    return (
        f"tiles, bytes, im2col, reuse, loops and timings; all held against {first} claims of one core, the best {more} against the "
        "rest too; see igo_readings.md"
    )


def judged(experiments: Experiments) -> Experiments:
    """Experiments whose results are `open` where they miss the paper's figure and the search was held against it."""
    return {claim: partial(_judged, claim, experiment) for claim, experiment in experiments.items()}


def _judged(claim_id: str, experiment: Callable[[], Measured]) -> Measured:
    claim = next(claim for claim in claims() if claim.id == claim_id)
    return with_evidence(claim, experiment(), stored())


def with_evidence(claim: Claim, measured: Measured, result: Mapping[str, Any]) -> Measured:
    """The measurement as `open`, with its evidence; as it is where it is no miss or where the search says nothing about it.

    The search has measured the ledger's reading too. If its number is not the ledger's, it was run with another state of the
    program: it is no evidence, and the row says so.
    """
    name = claim.id.partition(".")[2]
    found = evidence(name, result) if measured.verdict is None else None
    if found is None or isinstance(measured.value, Sequence) or compare(claim, measured.value) != "off":
        return measured
    source = TWINS.get(name, name)
    searched = result["ours"]["values"][source]
    if abs(searched - measured.value) > AGREES:
        outdated = f"The stored search over readings has {searched:.4g} for this reading and is no evidence here: run it again."
        return replace(measured, details=f"{measured.details} {outdated}".strip())
    return replace(measured, verdict="open", evidence=found, details=f"{measured.details} {_reached(source, result)}".strip())


def _reached(claim: str, result: Mapping[str, Any]) -> str:
    """How often a claim is reached by itself."""
    if claim in result["reached_by"]:
        times, of = result["reached_by"][claim], f"{result['readings']:,} readings"
    else:
        best = candidates(result)
        times, of = sum(reached(claim, one["values"][claim]) for one in best), f"the {len(best)} best readings"
    return f"Taken by itself, the printed figure is reached by {times:,} of {of}."
