"""TensorDash's headline, the mean speedup of training, and the three assumptions that it hinges on."""

from __future__ import annotations

from dataclasses import replace

from trainyard.papers.headlines import Headline, Hinge
from trainyard.papers.tensordash.chip import mean_gain
from trainyard.papers.tensordash.models import recorded
from trainyard.papers.tensordash.printed import printed
from trainyard.papers.tensordash.products import mean_speedup
from trainyard.papers.tensordash.sweeps import PAPER

# fmt: off
HEADLINE = Headline(
    system="TensorDash",
    titles={
        "tensordash.speedup":     "mean training speedup",
        "tensordash.energy.core": "energy efficiency of the cores",
    },
    figure="Fig. 8",
    shows="speedup of TensorDash by model and operation",
    hinges=(
        Hinge(
            assumed="The zeros are those that we recorded while training on stand-in data, because the paper's recordings are not "
                    "public.",
            otherwise="With random zeros in the shares that the paper prints of its own",
            result=lambda: mean_speedup(printed, PAPER),
        ),
        Hinge(
            assumed="The speedup is that of the array, which never waits for DRAM; this is our reading of Fig. 8.",
            otherwise="For the whole chip, which waits for its LPDDR4, with the shares that the paper prints",
            result=lambda: mean_gain(printed),
        ),
        Hinge(
            assumed="The rows of a tile wait for each other in every cycle; the paper does not say when they do.",
            otherwise="If they wait only at the end of an output",
            result=lambda: mean_speedup(recorded, replace(PAPER, sync="output")),
        ),
    ),
)
# fmt: on
