"""Calls of blocks that are recorded once and replayed, so that the host issues one call instead of hundreds.

A host that issues every kernel of a step by itself is often slower than the device. CUDA records what a stream is given as a
*graph*, and repeats it in one call, at the same addresses. Here the forward and the backward of each block's call are a graph, in
the variant that the plan chose: kept, checkpointed, selective or compiled. What stands between blocks (embeddings, masks, the
loss) runs as before, and so does a block that cannot be recorded.

A graph knows addresses and nothing else. So a block must compute the same in each pass (`fingerprints`), whatever the graph read
from Python must be as it was (`conditions`), what Python did beside must not matter (`obstacles`), and memory that a later graph
uses again must not be in use (`passes`). Where one of these does not hold, the block is called as without a recording. What cannot
be seen is a number from outside of Python's variables (a file, the clock, a function written in C) that is the same in the first
passes and another one later: such a program needs `replay=False`.

In reading order:

- passes: rehearsed, recorded, then replayed; the order of graphs, in which their common memory may be used again
- calls: one call of a block: its two graphs, and the node of autograd that replays them
- places: memory that recordings own, and tensors that lie there
- parts: gradients that are returned part by part, so that sums round as in plain training
- arguments: what a block is called with and returns, as tensors and the rest
- fingerprints: whether a block computes the same in two passes, from its arguments and its own tensors alone
- obstacles: why a block cannot be recorded; forward_hooks: those that look at what modules inside return are called after a replay
- conditions: what must not have changed since; lookups: what a block's functions look up outside of it
- recorders: CUDA graphs; operator_graph: for the CPU their twin, operators and the memory that they were given
- stand_ins: parameters while a block is recorded
- random_numbers: of a recorded call, for its repetition in backward
- session: the recordings that a with-block has at a time
"""
