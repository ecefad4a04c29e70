"""Beyond the paper: the three products of every layer of every model of the zoo, with the zeros that its evaluation assumes.

Weights are 80 % sparse and activations 30 % (Sec. VI-A: about 80 %, and 10 to 50 %, of which this is the middle); gradients count
as dense, since the paper says nothing of theirs. The zeros fall at random. As in `training.py`, only products count, one op after
another on bare arrays; the TPU takes the better stationary operand, as SIGMA does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from trainyard.ir import DENSE, Dense, Density
from trainyard.ir.step import letter_of
from trainyard.papers.figures import Series, chart
from trainyard.papers.sigma.training import NAMES, PRODUCTS, Summary
from trainyard.report.colours import PHASES, SPARE
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

ZEROS: Mapping[str, Dense | Density] = {
    "W": Density(0.2),  # Sec. VI-A: weights about 80 % sparse
    "A": Density(0.7),  # Sec. VI-A: inputs 10 to 50 % sparse; assumed: the middle
    "G": DENSE,  # assumed: the paper says nothing of gradients
    "": DENSE,  # attention's own products
}


@cache
def summary(model: str) -> Summary:
    """All products of a model's training step at the zoo's batch."""
    step = zoo.load(model)
    return Summary.of_step(step, lambda op, side: ZEROS[letter_of(step, op, side)])


def figure() -> go.Figure:
    summaries = {model: summary(model) for model in zoo.names()}
    by_phase = [
        Series(
            name=NAMES[phase],
            colour=PHASES[phase.value],
            values={model: one.of(phase).speedup for model, one in summaries.items() if one.of(phase).products},
        )
        for phase in PRODUCTS
    ]
    dense = Series(
        name="all three, without zeros", colour=SPARE[-1], values={model: one.dense_speedup for model, one in summaries.items()}
    )
    return chart(
        [*by_phase, dense],
        "Beyond: every model of the zoo",
        "Weights 80 %, activations 30 % sparse, gradients dense; products alone, at the zoo's batches.",
        y="speedup over TPU 128 x 128", unity=True,
    )  # fmt: skip


FIGURES: Figures = {"Every model": figure}
