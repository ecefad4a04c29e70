"""Memory overlay: what a backward pass needs again is kept, sent to a second memory and fetched back, or recomputed.

`problem` is a step as an overlay problem, `policy` a decision and its price, `search` the least time within a memory budget.
"""
