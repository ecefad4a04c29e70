"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured
    from trainyard.sensitivity import Kind, SensitivityStudy

CASE = ("resnet34", "mcdla-b")


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share their runs."""
    from trainyard.papers.mcdla import breakdown, context, generations, performance, power, scaling, sensitivity, wiring

    return {
        **context.EXPERIMENTS,
        **wiring.EXPERIMENTS,
        **power.EXPERIMENTS,
        **generations.EXPERIMENTS,
        **performance.EXPERIMENTS,
        **breakdown.EXPERIMENTS,
        **sensitivity.EXPERIMENTS,
        **scaling.EXPERIMENTS,
    }


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.mcdla.plots import FIGURES

    return FIGURES


def sensitivity_study(kinds: Sequence[Kind]) -> SensitivityStudy:
    """What `whatif mcdla` weighs: assumptions of the node, by the paper's own figure of merit."""
    from trainyard.papers.mcdla.assumptions import sensitivity_study

    return sensitivity_study(kinds=kinds)
