"""SIGMA. E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM
Accelerator with Flexible Interconnects for DNN Training. HPCA 2020.

`suite` has the ten GEMMs with their masks. The experiments: `baseline` (the TPU), `performance` (Fig. 12), `features` (Fig. 11),
`dataflows` (Fig. 10), `rivals` (Fig. 14), `formats` (Fig. 7), `networks` (Fig. 6b), `chip` (Figs. 8, 13), `sizing` (Fig. 9), `gpu`
(Figs. 2, 3), `examples` (Fig. 4); `context` has the paper's parameters, `changes` what was changed after results had been seen.
`headline` what a reader sees first. Beyond the paper: `training`, `every_model`. `plots` has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.papers.bench import Paper, seed_of

if TYPE_CHECKING:
    from trainyard.papers.bench import Walkthrough


def _walkthrough(example: str) -> Walkthrough:
    """The example of Fig. 5 on two Flex-DPEs of four multipliers, or a random one on two of eight."""
    from trainyard.arrays.sigma import walkthrough
    from trainyard.report.walkthroughs.sigma import figure

    seed = seed_of("sigma", example)
    chosen = walkthrough.EXAMPLE if seed is None else walkthrough.example(seed)
    return walkthrough.walkthrough(chosen), lambda: figure(chosen)


# fmt: off
PAPER = Paper(
    citation=__doc__,
    experiments=("baseline", "performance", "features", "dataflows", "rivals", "formats", "networks", "chip", "sizing", "gpu",
                 "context"),
    # The array is what varies, not the DRAM that the paper leaves out; zeros as in Sec. VI-A, of inputs the middle of its range.
    case=("transformer-324m", "sigma(scope=products,dram=2 TB/s)", "sparsity(W=0.8,A=0.3)"),
    changes="changes",
    headline="headline",
    walkthrough=_walkthrough,
)
# fmt: on
