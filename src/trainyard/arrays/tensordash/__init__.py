"""TensorDash by the paper's own words: options and levels of promotion (`patterns`), the scheduler, the processing element and its
tile (`element`), cycles of row groups (`groups`), the array. Imports parts, kernels and the nouns of `ir`; a new pattern is a row
of the tables in `patterns.py`.
"""

from trainyard.arrays.tensordash.array import TensorDash

__all__ = ["TensorDash"]
