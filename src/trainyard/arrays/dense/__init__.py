"""Arrays that multiply every pair of elements, zeros included.

`systolic` (SCALE-Sim's closed forms), `systolic_units` (several of them), `spatial` (MC-DLA's device), `tensorcore` (the baseline
that TensorDash extends); `execution` runs small products on them cell by cell, with real numbers.
"""
