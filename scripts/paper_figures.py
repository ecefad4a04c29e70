"""Draws the pictures of the manual: some figures of each paper, from its own plots, and the tornado of the page on `whatif`.

    python scripts/paper_figures.py                   # all
    python scripts/paper_figures.py sigma whatif      # some

A figure that was drawn before by the very same program is not measured again (`papers/experiment_cache.py`). Each picture stands in
its paper's page below the title that is named here: the pages' own scripts put it there through `illustrated`, and so does this
one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from trainyard.papers.headlines import picture_file

DOCS = Path(__file__).parents[1] / "docs"
# fmt: off
PICTURES: Mapping[str, Mapping[str, tuple[str, str]]] = {  # paper: figure in papers/*/plots.py: title on the page, what it shows
    "sigma": {
        "Fig. 12a": ("Dense (Fig. 12a)",                            "Speedup of SIGMA over a TPU, dense GEMMs"),
        "Fig. 12b": ("Sparse (Fig. 12b)",                           "Speedup of SIGMA over a TPU, sparse GEMMs"),
        "Fig. 14":  ("Against other sparse accelerators (Fig. 14)", "Speedup of SIGMA over six sparse accelerators"),
    },
    "tensordash": {
        "Fig. 8":   ("Potential and speedup (Fig. 1, Fig. 8)",      "Speedup of TensorDash by model and operation"),
        "Fig. 12":  ("Depth of the staging buffers (Fig. 12)",      "Speedup by depth of the staging buffers"),
        "Fig. 15":  ("Random tensors (Fig. 15)",                    "Speedup and energy by share of zeros"),
    },
    "igo": {
        "Fig. 5":   ("What dY is of the traffic (Fig. 5)",          "Share of dY in the traffic of the backward pass"),
        "Fig. 12":  ("Three steps on the small NPU (Fig. 12, Sec. 4.3)", "Time of a step in each order over the baseline's"),
        "Fig. 15":  ("Bandwidth (Fig. 15)",                         "What the order gives at other bandwidths"),
    },
    "mcdla": {
        "Fig. 13":  ("Speedups, data-parallel (Fig. 13)",           "Performance of six designs over DC-DLA"),
        "Fig. 11":  ("Every step, data-parallel (Fig. 11)",         "Time of a step by part, six designs"),
    },
    "direct": {
        "Fig. 2":   ("Efficiency from 32 to 2048 units (Fig. 2)",   "Parallel efficiency by number of units"),
        "Fig. 3":   ("What AGAU, DSC and LAA give (Fig. 3)",        "Shares of AGAU, DSC and LAA in DIRECT's speedup"),
    },
}
# fmt: on
TORNADO = ("resnet50", "npu(array=tensordash,order=interleaved)", 8)


def illustrated(paper: str, text: str) -> str:
    """A paper's page with its pictures in place; those that are there already stay."""
    for figure, (title, told) in PICTURES[paper].items():
        picture = f"![{figure}: {told}]({picture_file(paper, figure)})"
        head = f"\n## {title}\n"
        if head not in text:
            raise SystemExit(f"docs/{paper}.md has no title {title!r} for {figure}")
        if picture not in text:
            text = text.replace(head, f"{head}\n{picture}\n")
    return text


def draw(paper: str) -> None:
    from figures import svg

    from trainyard.papers import bench
    from trainyard.papers.experiment_cache import ExperimentCache

    cache, known = ExperimentCache(), bench.figures(paper)
    try:
        for figure in PICTURES[paper]:
            drawn = cache.figure(paper, figure) or cache.store_figure(paper, figure, known[figure]())
            (DOCS / picture_file(paper, figure)).write_text(svg(drawn), encoding="utf-8")
            print(f"docs/{picture_file(paper, figure)}", flush=True)
    finally:
        cache.save()
    page = DOCS / f"{paper}.md"
    page.write_text(illustrated(paper, page.read_text(encoding="utf-8")), encoding="utf-8")


def draw_tornado() -> None:
    from figures import svg

    import trainyard as ty
    from trainyard.report.tornado import tornado

    workload, machine, batch = TORNADO
    weighed = ty.whatif(workload, on=machine, batch=batch)
    figure = tornado(weighed, weighed.title, weighed.metric, bars=14)
    (DOCS / "whatif-tornado.svg").write_text(svg(figure), encoding="utf-8")
    print("docs/whatif-tornado.svg")


def main(asked: list[str]) -> None:
    strange = sorted(set(asked) - {*PICTURES, "whatif"})
    if strange:
        raise SystemExit(f"no pictures of {', '.join(strange)}: there are {', '.join((*PICTURES, 'whatif'))}")
    for paper in PICTURES:
        if not asked or paper in asked:
            draw(paper)
    if not asked or "whatif" in asked:
        draw_tornado()


if __name__ == "__main__":
    main(sys.argv[1:])
