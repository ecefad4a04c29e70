"""SIGMA's headline, the speedup over a TPU on sparse GEMMs, and the three assumptions that move it most."""

from __future__ import annotations

from statistics import fmean, geometric_mean

from trainyard.papers.headlines import Headline, Hinge
from trainyard.papers.sigma.suite import SPARSE_CASES, speedups

# fmt: off
HEADLINE = Headline(
    system="SIGMA",
    titles={
        "sigma.sparse.speedup_over_tpu": "speedup over a TPU, sparse GEMMs",
        "sigma.dense.speedup_over_tpu":  "speedup over a TPU, dense GEMMs",
    },
    figure="Fig. 12b",
    shows="speedup of SIGMA over a TPU on ten GEMMs with zeros",
    hinges=(
        Hinge(
            assumed="A vector of the streaming operand reaches the multipliers in one cycle, as in the paper's evaluation "
                    "(Sec. VI-A).",
            otherwise="With 128 words per cycle, as for loading",
            result=lambda: geometric_mean(speedups(SPARSE_CASES, streaming="limited")),
        ),
        Hinge(
            assumed="The mean over GEMMs and pairs of sparsity is the geometric one, since the paper names none.",
            otherwise="With the arithmetic mean",
            result=lambda: fmean(speedups(SPARSE_CASES)),
        ),
        Hinge(
            assumed="All non-zeros of the stationary operand are held, since the paper's analytic model is given sizes and not "
                    "matrices (Sec. VI-A).",
            otherwise="If those that meet no streaming value are left out (step ii of Sec. IV-E)",
            result=lambda: geometric_mean(speedups(SPARSE_CASES, step_ii=True)),
        ),
    ),
)
# fmt: on
