"""IGO's headline, the share of a step's time that it saves, and the three assumptions that move it most."""

from __future__ import annotations

from dataclasses import replace

from trainyard.papers.headlines import Headline, Hinge
from trainyard.papers.igo.baselines import LARGE, Case
from trainyard.papers.igo.measuring import mean, reductions
from trainyard.papers.igo.partitioning import by_knn
from trainyard.papers.igo.performance import JOINT


def _saved(case: Case) -> float:
    """Per cent of a step's time that all three steps of the paper save."""
    return mean(by_knn(case))


# fmt: off
HEADLINE = Headline(
    system="IGO",
    titles={
        "igo.large.all": "step time saved on the large NPU, %",
        "igo.small.all": "step time saved on the small NPU, %",
    },
    figure="Fig. 12",
    shows="time of a step in each order over the baseline's",
    hinges=(
        Hinge(
            assumed="Every layer has the same tall tile, since the paper prints none.",
            otherwise="If tiles, order and partition are searched for every layer, and the baseline's tiles too",
            result=lambda: mean(reductions(LARGE, "searched", **JOINT)),
        ),
        Hinge(
            assumed="An element has 4 bytes, since the paper does not name its number format.",
            otherwise="With 2 bytes (bf16) and sums of 4",
            result=lambda: _saved(replace(LARGE, changes=(*LARGE.changes, ("precision", "bf16")))),
        ),
        Hinge(
            assumed="dXmajor and dWmajor sum one tile of a gradient to its end before the next one (loops m,k,n and n,k,m).",
            otherwise="If a tile of dY serves all of k first (loops m,n,k and n,m,k)",
            result=lambda: _saved(replace(LARGE, k_inner=True)),
        ),
    ),
)
# fmt: on
