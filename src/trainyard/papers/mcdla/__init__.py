"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018.

`measuring` runs the eight networks on nodes. The experiments: `wiring` (Figs. 5, 7 to 9), `power` (Table IV), `generations` (Fig.
2), `performance` (Fig. 13), `breakdown` (Figs. 11, 12), `sensitivity` (Sec. V-B), `scaling` (Sec. V-D); `context` has the paper's
parameters, `printed` what its own figures exclude, `assumptions` the sensitivity study, `readings` what was searched for open
claims, `changes` what was changed after results had been seen, `headline` what a reader sees first. `plots` has the figures.
"""

from __future__ import annotations

from trainyard.papers.bench import Paper

PAPER = Paper(
    citation=__doc__,
    experiments=("context", "wiring", "power", "generations", "performance", "breakdown", "sensitivity", "scaling"),
    case=("resnet34", "mcdla-b"),
    sensitivity="assumptions",
    changes="changes",
    headline="headline",
    uses_processes=True,
)
