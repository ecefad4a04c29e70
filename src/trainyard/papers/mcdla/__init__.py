"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018."""

from __future__ import annotations

from trainyard.papers.bench import Paper

PAPER = Paper(
    citation=__doc__,
    experiments=("context", "wiring", "power", "generations", "performance", "breakdown", "sensitivity", "scaling"),
    case=("resnet34", "mcdla-b"),
    sensitivity="assumptions",
)
