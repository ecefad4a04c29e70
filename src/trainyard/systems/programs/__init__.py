"""Programs outside learning on PIM machines: supersteps in which all DPUs compute, talk to each other, and meet.

May import everything up to systems. `page_rank` and `heat` run for real and are priced on the crossbars or through the host; a new
program makes `Superstep`s of what its DPUs do and send, and hands them to `price`.
"""

from trainyard.systems.programs.graph import Graph, read_edge_list, rmat, uniform
from trainyard.systems.programs.page_rank import page_rank
from trainyard.systems.programs.runs import Run, side_by_side
from trainyard.systems.programs.stencil import heat

__all__ = ["Graph", "Run", "heat", "page_rank", "read_edge_list", "rmat", "side_by_side", "uniform"]
