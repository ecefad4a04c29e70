"""PageRank and the heat equation on 64 to 2048 DPUs: what they exchange through the host, and DPU to DPU (DIRECT).

The graph is generated (R-MAT, a power law); give a file with two numbers a line to take that instead. Ranks are the same bits in
every row: time and energy differ. With `combining=1` every DPU sends for itself, in tiny messages; else a cluster combines.
"""

import sys

import numpy as np

from pim_programs.graph import read_edge_list, rmat
from pim_programs.page_rank import page_rank
from pim_programs.runs import side_by_side
from pim_programs.stencil import heat
from trainyard.systems.pim.systems import DpuToDpu, HostMediated

COUNTS = (64, 128, 256, 512, 1024, 2048)


def main() -> None:
    graph = read_edge_list(sys.argv[1]) if len(sys.argv) > 1 else rmat(14, 150_000, seed=0)
    print(f"{graph.name}: {graph.vertices} vertices, {graph.edges} edges")
    runs = [page_rank(graph, machine(dpus=dpus)) for dpus in COUNTS for machine in (HostMediated, DpuToDpu)]
    side_by_side(runs)
    assert all((run.values == runs[0].values).all() for run in runs)

    alone = page_rank(graph, DpuToDpu(dpus=512), combining=1)
    print(f"512 DPUs, each for itself: {alone.cost.messages / alone.iterations:.0f} messages an iteration")
    alone.table()

    grid = np.random.default_rng(0).integers(0, 10_000, (1024, 1024)).astype(np.int32)
    side_by_side([heat(grid, 8, machine(dpus=dpus)) for dpus in COUNTS for machine in (HostMediated, DpuToDpu)])


if __name__ == "__main__":
    main()
