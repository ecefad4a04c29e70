"""Fig. 17: the backward pass of the nine networks on a GPU, dX and dW by one kernel; from a measurement on an H200.

The paper has an RTX 3090. Its reference is, for each layer, the better of two kernels of its own, one for dX and one for dW, and of
one that does dX, then dW, without interleaving. The same reference is used here (`own_reference`); `reference` is the better of the
library's pair and that one kernel. Batches are those of the small NPU, elements fp32. `samples/igo/gpu.json`, which
`benchmarks/gradient_gpu.py` writes, has under `networks` the seconds of all gradients of a network by variant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from typing import Any

from trainyard.papers.igo.measuring import Networks, listed, mean, reduction
from trainyard.papers.ledger import Experiments, Measured

VARIANTS = {"interleaving": "interleaving", "rearrangement": "rearrangement", "all": "partitioning"}
"""Name in the claim -> name in the measurement."""
OWN, LIBRARY, PAIR, OURS = "own_reference", "reference", "cublas", "ours"


@cache
def measured() -> Mapping[str, Any]:
    """The file's content; empty where it is missing."""
    file = resources.files("trainyard.papers").joinpath("samples", "igo", "gpu.json")
    measurement: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return measurement


def seconds() -> Mapping[str, Mapping[str, float]]:
    """By network and variant."""
    return {row["network"]: row["seconds"] for row in measured().get("networks", ())}


def reductions(variant: str, reference: str = OWN) -> Networks:
    return {network: reduction(times[reference], times[variant]) for network, times in seconds().items()}


def device() -> str:
    return str(measured().get("device", "a GPU"))


def _gpu(claim: str) -> Measured:
    variant = VARIANTS[claim]
    own, library = reductions(variant), reductions(variant, LIBRARY)
    partition = " Partition: the faster of two axes, or none, as measured." if variant == "partitioning" else ""
    return Measured(
        mean(own),
        verdict="substitute",
        note=f"Measured on {device()}, where the paper has an RTX 3090.",
        details="Backward pass in fp32, batch of the small NPU, kernels of one kind, for each layer against the better of two of "
        f"them and one that does dX and then dW: {listed(own)}.{partition} Against the better of the library's pair and that one "
        f"kernel: {mean(library):.1f} % ({listed(library)}). {interleave_rule()}",
    )


def interleave_rule() -> str:
    """A sentence on the rule of `interleave` on these layers."""
    pair, better = reductions(OURS, PAIR), reductions(OURS, LIBRARY)
    unchanged = "the library's pair is kept in every layer at this batch, " if not any(pair.values()) else ""
    return (
        f"The rule of `interleave`: {unchanged}{mean(pair):.1f} % against the pair, {mean(better):.1f} % against the better of it "
        "and the one kernel."
    )


# Without measurements there are no experiments, and the rows are `not yet`.
EXPERIMENTS: Experiments = {f"igo.gpu.{claim}": partial(_gpu, claim) for claim in VARIANTS} if seconds() else {}
