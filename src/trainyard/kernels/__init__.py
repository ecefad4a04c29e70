"""Compiled loops. A test compares each with a plain-Python implementation of the same rule.

`schedule` is the engine's clock, `arrays` has loops of accelerators, `networks` of interconnects, `masks` of packed bits,
`mapping` of tile search, gradient orders and overlays; `qsgd`, `dpu_pipeline`, `gates` (netlists) and `training` stand alone.
`compilation` tells who asks which loop is being compiled, and stops the garbage collector meanwhile; `cache` says where
compiled loops are kept; `uncounted` compiles the innermost ones without counts of references.
Modules here import numba at the top, so callers import them inside the function that needs them.
Integer arrays in, arrays out; no global state. `cache=True` always, so that a second process does not compile.
A new loop is one module here; its docstring names the plain implementation.
"""

from trainyard.kernels import cache as cache
from trainyard.kernels import compilation as compilation
