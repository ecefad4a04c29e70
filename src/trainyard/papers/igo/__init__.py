"""IGO. J. Kim, S. Na, S. Lee, S. Lee, J. Huh: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for
DNN Training. MICRO 2023.

`networks` and `baselines` are what is run, `measuring` runs it. The experiments: `performance` (Figs. 5, 6, 12), `partitioning`
(Sec. 5), `sweeps` (Figs. 14 to 16), `longest` (Fig. 13), `gpu` (Fig. 17), `breakdown` (Fig. 3); `context` has the paper's
parameters, `assumptions` the sensitivity study, `changes` what was changed after results had been seen. The search over readings of
what the paper leaves open: `readings` are walks and timings, `reading_claims` what they give for the claims, `reading_search` tries
them all, `reading_page` is its page, `judging` the verdict of the rows it covers. `headline` is what a reader sees first.
Beyond the paper: `beyond`. `plots` has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.papers.bench import Paper

if TYPE_CHECKING:
    from trainyard.papers.bench import Walkthrough


def _walkthrough(example: str) -> Walkthrough:
    """Figs. 8 to 10 on a small layer; the example is its tiles along M, N and K, as in 3x2x4."""
    from trainyard.mapping.gradient_order import walkthrough
    from trainyard.report.walkthroughs.igo import figure

    layer = walkthrough.parse_example(example) if example else walkthrough.EXAMPLE
    return walkthrough.walkthrough(layer), lambda: figure(layer)


PAPER = Paper(
    citation=__doc__,
    experiments=("context", "performance", "partitioning", "sweeps", "longest", "gpu", "breakdown"),
    case=("resnet50", "npu"),
    sensitivity="assumptions",
    changes="changes",
    headline="headline",
    uses_processes=True,
    search="reading_search",
    walkthrough=_walkthrough,
)
