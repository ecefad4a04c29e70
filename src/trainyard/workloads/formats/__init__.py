"""Workloads in the files of other tools: SCALE-Sim topologies both ways, ONNX in, Timeloop problems out, Chakra traces as files.

May import the ir and `workloads/formats/backward.py`. Read leniently, as they are found; written as the tool reads them. A new
format is one file with `read_...` and `write_...`. What needs a machine lives in `report/` (`chakra.py`, `memory_trace.py`);
machines in the files of other tools are read in `machines/`.
"""

from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.formats.scalesim import read_sparsity, read_topology, write_topology
from trainyard.workloads.formats.timeloop import read_timeloop, write_timeloop

__all__ = ["read_onnx", "read_sparsity", "read_timeloop", "read_topology", "write_timeloop", "write_topology"]
