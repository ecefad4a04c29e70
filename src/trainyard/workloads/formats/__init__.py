"""Workloads in the files of other tools. In reading order:

- scalesim: SCALE-Sim topologies, read and written
- timeloop: Timeloop problems, one per product, read and written
- backward, gradients: the backward pass of a forward-only Step, derived by rule
- protobuf: the wire format that ONNX and Chakra files share
- onnx/: ONNX models, read
- chakra: Chakra execution traces, read and written

Files are read leniently and written as the tool expects them. A new format is one file with `read_...` and `write_...`. What needs
a machine lives in `report/` (`chakra.py`, `memory_trace.py`); machines in the files of other tools are read in `machines/`.
"""

from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.formats.scalesim import read_sparsity, read_topology, write_topology
from trainyard.workloads.formats.timeloop import read_timeloop, write_timeloop

__all__ = ["read_onnx", "read_sparsity", "read_timeloop", "read_topology", "write_timeloop", "write_topology"]
