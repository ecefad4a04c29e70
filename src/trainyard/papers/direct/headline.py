"""DIRECT's headline, the speedup over PIM-Opt, and the three assumptions that it hinges on.

Two of them are measured with crossbars in closed form, as the sensitivity study does (`assumptions`).
"""

from __future__ import annotations

from trainyard.papers.direct.assumptions import pair, with_lanes, with_room
from trainyard.papers.direct.measuring import RESNET18, WORKLOADS
from trainyard.papers.direct.table import epoch_s
from trainyard.papers.headlines import Headline, Hinge

LANES = 8
BATCH = 32


def _rank_parallel() -> list[float]:
    return [epoch_s("PIM-Opt, rank-parallel", one) / epoch_s("DIRECT", one) for one in WORKLOADS]


def _lanes() -> list[float]:
    """The linear model's DPU has no MAC array."""
    return [pair(one, with_lanes(LANES, one.dpu) if one is RESNET18 else None).speedup for one in WORKLOADS]


def _batch() -> list[float]:
    return [pair(one, with_room(BATCH, one.dpu), BATCH).speedup for one in WORKLOADS]


# fmt: off
HEADLINE = Headline(
    system="DIRECT",
    titles={
        "direct.speedup.pim_opt":           "speedup over PIM-Opt (linear, ResNet-18)",
        "direct.efficiency.resnet18.at_32": "parallel efficiency of one cluster",
    },
    figure="Fig. 2",
    shows="parallel efficiency by number of units",
    hinges=(
        Hinge(
            assumed="PIM-Opt's host transfers as Eq. 1 says: one rank after the other at the bandwidth that is measured of a rank.",
            otherwise="If it transfers to all ranks at once and broadcasts the mean, as real systems do",
            result=_rank_parallel,
        ),
        Hinge(
            assumed="A DPU's step has 8 samples, which is PIM-Opt's batch.",
            otherwise=f"With {BATCH} samples and as much more MRAM",
            result=_batch,
        ),
        Hinge(
            assumed="ResNet-18 runs on a DPU with 16 MACs a cycle, because UPMEM's own neither holds nor trains it.",
            otherwise=f"With {LANES} MACs a cycle",
            result=_lanes,
        ),
    ),
)
# fmt: on
