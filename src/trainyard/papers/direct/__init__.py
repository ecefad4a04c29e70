"""DIRECT. P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication.

`measuring` runs the workloads on the three systems. The experiments: `table` (Table II), `efficiency` (Fig. 2), `contributions`
(Fig. 3), `hardware` (area and power), `accuracy`; `context` has the paper's parameters, `printed` what its own figures exclude,
`assumptions` the sensitivity study, `readings` what was searched for open claims, `changes` what was changed after results had been
seen, `headline` what a reader sees first. Beyond the paper: `studies`. `plots` has the figures.
"""

from __future__ import annotations

from trainyard.papers.bench import Paper

PAPER = Paper(
    citation=__doc__,
    experiments=("table", "efficiency", "contributions", "hardware", "accuracy", "context"),
    case=("linear", "direct"),
    sensitivity="assumptions",
    changes="changes",
    headline="headline",
    uses_processes=True,
)
