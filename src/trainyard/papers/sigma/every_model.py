"""Beyond the paper: the three products of every layer of every model of the zoo, with the zeros that its evaluation assumes.

Weights are 80 % sparse and activations 30 % (Sec. VI-A: about 80 %, and 10 to 50 %, of which this is the middle); gradients count
as dense, since the paper says nothing of theirs. The zeros fall at random. As in `training.py`, the products alone count, one op
after another on bare arrays; the TPU takes the better stationary operand, as SIGMA does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from trainyard.ir import DENSE, Dense, Density
from trainyard.ir.letters import letter_of
from trainyard.machines.presets.sigma import SIGMA
from trainyard.mapping.lowering import lower
from trainyard.papers.figures import Series, drawn
from trainyard.papers.sigma.chip import tpu_cycles
from trainyard.papers.sigma.training import NAMES, PRODUCTS, Product, Summary, sigma_cost
from trainyard.report.colours import PHASES, SPARE
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

ZEROS: Mapping[str, Dense | Density] = {
    "W": Density(0.2),  # Sec. VI-A: weights about 80 % sparse
    "A": Density(0.7),  # Sec. VI-A: inputs 10 to 50 % sparse; assumed: the middle
    "G": DENSE,  # assumed: the paper says nothing of gradients
    "": DENSE,  # attention's own products
}


@cache
def whole(model: str) -> Summary:
    """All products of a model's training step at the zoo's batch."""
    step = zoo.load(model)
    found = []
    for op in step.ops:
        if not op.is_product or op.phase not in PRODUCTS:
            continue
        matmul = lower(op.body, SIGMA.grad_input).product
        letters = [letter_of(step, op, side) for side in (0, 1)]
        cost = sigma_cost(matmul, *(ZEROS[letter] for letter in letters))
        found.append(
            Product(
                phase=op.phase,
                macs=matmul.macs,
                stays=letters[0 if cost.stationary == "a" else 1] or "-",
                sigma=cost,
                dense_cycles=sigma_cost(matmul, DENSE, DENSE).cycles,
                tpu_cycles=tpu_cycles(matmul),
            )
        )
    return Summary(tuple(found))


def table() -> str:
    """For the documentation."""
    lines = [
        "| model | batch | forward | dX | dW | all | without zeros | utilisation | efficiency |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model in zoo.names():
        found = whole(model)
        phases = [found.of(phase) for phase in PRODUCTS]
        each = " | ".join(f"{part.speedup:.2f}" if part.products else "" for part in phases)
        lines.append(
            f"| {model} | {zoo.load(model).batch} | {each} | {found.speedup:.2f} | {found.dense_speedup:.2f} "
            f"| {100 * found.utilisation:.0f} % | {100 * found.efficiency:.0f} % |"
        )
    return "\n".join(lines)


def figure() -> go.Figure:
    found = {model: whole(model) for model in zoo.names()}
    by_phase = [
        Series(
            name=NAMES[phase],
            colour=PHASES[phase.value],
            values={model: summary.of(phase).speedup for model, summary in found.items() if summary.of(phase).products},
        )
        for phase in PRODUCTS
    ]
    dense = Series(
        name="all three, without zeros", colour=SPARE[-1], values={model: summary.dense_speedup for model, summary in found.items()}
    )
    return drawn(
        [*by_phase, dense],
        "Beyond: every model of the zoo",
        "Weights 80 %, activations 30 % sparse, gradients dense; products alone, at the zoo's batches.",
        x="", y="speedup over TPU 128 x 128", unity=True,
    )  # fmt: skip


FIGURES: Mapping[str, Callable[[], go.Figure]] = {"Every model": figure}
