"""Memory overlay: each tensor that the backward pass needs is kept, offloaded to a second memory and fetched back, or recomputed.

In reading order: `policy` is the problem, a choice for each tensor, and its time and memory; `search` finds the least time within a
memory budget, `stress` offloads all that can leave; `problem` makes an overlay problem of a training step;
`by_blocks` keeps or checkpoints its repeated blocks as a whole.
"""
