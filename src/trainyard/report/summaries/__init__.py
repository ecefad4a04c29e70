"""Short tables that stand alone: `model` has the layers of a step before any machine, `differences` what changed between two
results.

Each has its numbers as a value (`as_dict`, `to_frame`) and prints itself (`table`); `grid` is the table that both print.
"""
