"""IGO. J. Kim, S. Na, S. Lee, S. Lee, J. Huh: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for
DNN Training. MICRO 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured
    from trainyard.sensitivity import Kind, SensitivityStudy

CASE = ("resnet50", "npu")


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share their runs."""
    from trainyard.papers.igo import breakdown, context, gpu, longest, partitioning, performance, sweeps

    return {
        **context.EXPERIMENTS,
        **performance.EXPERIMENTS,
        **partitioning.EXPERIMENTS,
        **sweeps.EXPERIMENTS,
        **longest.EXPERIMENTS,
        **gpu.experiments(),
        **breakdown.EXPERIMENTS,
    }


def walkthrough(given: str = "") -> tuple[str, Callable[[], go.Figure]]:
    """Figs. 8 to 10 on a small layer; `given` are its tiles along M, N and K, as in 3x2x4."""
    from trainyard.mapping.gradient_order import walkthrough as told
    from trainyard.report.walkthroughs.igo import figure

    chosen = told.chosen(given) if given else told.EXAMPLE
    return told.walkthrough(chosen), lambda: figure(chosen)


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.igo.plots import FIGURES

    return FIGURES


def sensitivity_study(kinds: Sequence[Kind]) -> SensitivityStudy:
    """What `whatif igo` weighs: assumptions of the experiments, by the paper's own figure of merit."""
    from trainyard.papers.igo.assumptions import sensitivity_study

    return sensitivity_study(kinds=kinds)
