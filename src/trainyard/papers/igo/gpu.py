"""Fig. 17: the backward pass of the nine networks on a GPU, dX and dW by one kernel; from a measurement on an H200.

The paper has an RTX 3090. Its reference is, for each layer, the better of two kernels of its own, one for dX and one for dW, and of
one that does dX, then dW, without interleaving: so it is here (`own_reference`). The library's pair, where that is better than
the one kernel, stands beside it (`reference`). Batches are those of the small NPU, elements fp32. `samples/igo/gpu.json`, which
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
"""The claim's word -> that of the measurement."""
OWN, LIBRARY, PAIR, OURS = "own_reference", "reference", "cublas", "ours"


@cache
def measured() -> Mapping[str, Any]:
    """The whole file; empty where it is missing."""
    file = resources.files("trainyard.papers").joinpath("samples", "igo", "gpu.json")
    found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def seconds() -> Mapping[str, Mapping[str, float]]:
    """By network and variant."""
    return {row["network"]: row["seconds"] for row in measured().get("networks", ())}


def reductions(variant: str, reference: str = OWN) -> Networks:
    return {network: reduction(each[reference], each[variant]) for network, each in seconds().items()}


def device() -> str:
    return str(measured().get("device", "a GPU"))


def _gpu(claim: str) -> Measured:
    variant = VARIANTS[claim]
    found, library = reductions(variant), reductions(variant, LIBRARY)
    partition = " Partition: the faster of two axes, or none, as measured." if variant == "partitioning" else ""
    return Measured(
        mean(found),
        verdict="substitute",
        note=f"measured on {device()}, the paper on an RTX 3090; backward pass in fp32, batch of the small NPU, kernels of one "
        f"kind, for each layer against the better of two of them and one that does dX and then dW: {listed(found)}.{partition} "
        f"Against the better of the library's pair and that one kernel: {mean(library):.1f} % ({listed(library)}). "
        f"{told_of_ours()}",
    )


def told_of_ours() -> str:
    """`interleave`'s own rule on these layers: against the library's pair, and against the better of it and the one kernel."""
    pair, better = reductions(OURS, PAIR), reductions(OURS, LIBRARY)
    kept = "the library's pair is kept in every layer at this batch, " if not any(pair.values()) else ""
    return (
        f"The rule of `interleave`: {kept}{mean(pair):.1f} % against the pair, {mean(better):.1f} % against the better of it and "
        "the one kernel"
    )


# Without measurements there are no experiments, and the rows are `not yet`.
EXPERIMENTS: Experiments = {f"igo.gpu.{claim}": partial(_gpu, claim) for claim in VARIANTS} if seconds() else {}
