"""Workloads in the files of other tools: SCALE-Sim topologies. Read leniently, as they are found; written as the tool reads them.

May import the ir and `workloads/backward.py`. A new format is one file with `read_...` and `write_...`. (Machines in the files of
other tools are read in `machines/`.)
"""

from trainyard.workloads.formats.scalesim import read_sparsity, read_topology, write_topology

__all__ = ["read_sparsity", "read_topology", "write_topology"]
