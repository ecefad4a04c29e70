"""TensorDash. M. Mahmoud, I. Edo, A. H. Zadeh, O. M. Awad, G. Pekhimenko, J. Albericio, A. Moshovos: TensorDash: Exploiting
Sparsity to Accelerate Deep Neural Network Training. MICRO 2020.

`models` has the models with recorded zeros, `printed` the zeros that the paper prints, `sweeps` the arrays, `products` the cost of
each product on the array, `chip` that of the whole chip. The experiments: `performance` (Figs. 8, 12 to 14), `potential` (Fig. 1),
`over_time` (Fig. 9), `energies` (Figs. 10, 11), `overheads` (Table IV), `connectivity` (Sec. IV-D), `random_tensors` (Fig. 15);
`context` has the paper's parameters, `changes` what was changed after results had been seen, `headline` what a reader sees first.
Beyond the paper: `beyond`. `plots` has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.papers.bench import Paper, seed_of

if TYPE_CHECKING:
    from trainyard.papers.bench import Walkthrough


def _walkthrough(example: str) -> Walkthrough:
    """The example of Fig. 3 behind 2-deep staging buffers, or a random stream behind the 4-deep ones of Fig. 5."""
    from trainyard.arrays.tensordash import walkthrough
    from trainyard.arrays.tensordash.scheduler import Scheduler
    from trainyard.report.walkthroughs.tensordash import figure

    seed = seed_of("tensordash", example)
    scheduler = Scheduler(lanes=4, depth=2 if seed is None else 4)
    nonzero = walkthrough.EXAMPLE if seed is None else walkthrough.example(seed)
    return walkthrough.walkthrough(nonzero, scheduler), lambda: figure(nonzero, scheduler)


# fmt: off
PAPER = Paper(
    citation=__doc__,
    experiments=("performance", "energies", "overheads", "context", "over_time", "connectivity", "random_tensors"),
    # The array is what varies, not the LPDDR4 that bounds the whole step; zeros as in training here (docs/samples.md).
    case=("squeezenet", "tensordash(scope=products,dram=1 TB/s)", "sparsity(A=0.57,G=0.65)"),
    changes="changes",
    headline="headline",
    walkthrough=_walkthrough,
)
# fmt: on
