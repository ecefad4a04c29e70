"""TensorDash. M. Mahmoud, I. Edo, A. H. Zadeh, O. M. Awad, G. Pekhimenko, J. Albericio, A. Moshovos: TensorDash: Exploiting
Sparsity to Accelerate Deep Neural Network Training. MICRO 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from trainyard.errors import BadInput

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured

CASE = ("squeezenet", "tensordash(scope=products,dram=1 TB/s)", "sparsity(A=0.57,G=0.65)")
"""The array is weighed, not the LPDDR4 that bounds the whole step; zeros as in training here (docs/samples.md)."""


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share what they measured."""
    from trainyard.papers.tensordash import connectivity, context, energies, over_time, overheads, performance, random_tensors

    return {
        **performance.EXPERIMENTS,
        **energies.EXPERIMENTS,
        **overheads.EXPERIMENTS,
        **context.EXPERIMENTS,
        "tensordash.resnet50_pruned.stable": over_time.pruned_stable,
        "tensordash.pattern.spread": connectivity.pattern_spread,
        **{f"tensordash.random.{level:g}": partial(random_tensors.at, level) for level in (20.0, 90.0, 99.0)},
        "tensordash.random.ideal_20": random_tensors.ideal_20,
        "tensordash.random.max_deviation": random_tensors.max_deviation,
        "tensordash.random.core_energy_limit": random_tensors.core_energy_limit,
        "tensordash.random.chip_energy_limit": random_tensors.chip_energy_limit,
    }


def walkthrough(given: str = "") -> tuple[str, Callable[[], go.Figure]]:
    """The example of Fig. 3 behind 2-deep staging buffers; or, given a seed, a random stream behind the 4-deep ones of Fig. 5."""
    from trainyard.arrays.tensordash import walkthrough as told
    from trainyard.arrays.tensordash.scheduler import Scheduler
    from trainyard.report.walkthroughs.tensordash import figure

    if given and not given.isdigit():
        raise BadInput(f"explain tensordash {given}: give nothing (the paper's example), or a seed such as 7 for another one")
    scheduler = Scheduler(lanes=4, depth=4 if given else 2)
    nonzero = told.example(int(given)) if given else told.EXAMPLE
    return told.walkthrough(nonzero, scheduler), lambda: figure(nonzero, scheduler)


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them; those without a number are beyond the paper."""
    from trainyard.papers.tensordash.plots import FIGURES

    return FIGURES
