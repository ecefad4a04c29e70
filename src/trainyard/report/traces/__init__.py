"""A run as files that other programs read.

`perfetto` is the timeline for a browser's trace viewer, `chakra` the graph of tasks that network simulators replay. `memory_trace`
writes every access to DRAM in order for simulators of memories; `memory_accesses` are these accesses, found from the tiles.
"""
