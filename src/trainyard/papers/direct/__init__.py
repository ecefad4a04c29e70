"""DIRECT. P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured
    from trainyard.sensitivity import Kind, SensitivityStudy

CASE = ("linear", "direct")


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share their runs."""
    from trainyard.papers.direct import accuracy, context, contributions, efficiency, hardware, table

    return {
        **table.EXPERIMENTS,
        **efficiency.EXPERIMENTS,
        **contributions.EXPERIMENTS,
        **hardware.EXPERIMENTS,
        **accuracy.EXPERIMENTS,
        **context.EXPERIMENTS,
    }


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.direct.plots import FIGURES

    return FIGURES


def sensitivity_study(kinds: Sequence[Kind]) -> SensitivityStudy:
    """What `whatif direct` weighs: assumptions of both machines, by the speedup of one over the other."""
    from trainyard.papers.direct.assumptions import sensitivity_study

    return sensitivity_study(kinds=kinds)
