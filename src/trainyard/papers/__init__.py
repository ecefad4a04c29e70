"""The papers: presets with the source of each number, the figures they print (`claims.toml`), and experiments held against them.

Data and experiments over shared parts: a paper never re-implements a part. A new paper is one file with its presets and a
function `experiments()`, a row in `ledger.MODULES`, and its claims.
"""
