"""DIRECT. P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication."""

from __future__ import annotations

from trainyard.papers.bench import Paper

PAPER = Paper(
    citation=__doc__,
    experiments=("table", "efficiency", "contributions", "hardware", "accuracy", "context"),
    case=("linear", "direct"),
    sensitivity="assumptions",
)
