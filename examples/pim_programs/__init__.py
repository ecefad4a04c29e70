"""Programs other than training on PIM machines: PageRank and the heat equation, on DIRECT's crossbars or through the host.

In reading order: `supersteps` says what all DPUs compute between two barriers and what that costs; `carriers` prices what they send
each other; `graph` and `partition` load a graph and spread it over DPUs, `page_rank` runs on it; `grid` cuts a grid into blocks,
`stencil` runs the heat equation on it; `runs` reports. `kernels` holds the compiled loops. A program of your own builds a
`Superstep` for each of its phases and passes it to `price`. `examples/page_rank.py` uses all of it.
"""

from pim_programs.graph import Graph, read_edge_list, rmat, uniform
from pim_programs.page_rank import page_rank
from pim_programs.runs import Run, side_by_side
from pim_programs.stencil import heat

__all__ = ["Graph", "Run", "heat", "page_rank", "read_edge_list", "rmat", "side_by_side", "uniform"]
