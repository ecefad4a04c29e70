"""Models of other people's libraries, each with the training step of its own documentation: the cases of benchmarks/coverage.py.

- case: what a case is; torchvision_ops: torchvision's ops where its extension does not load
- one module for each family, imported by its name, with the function `cases() -> list[Case]`; a library is imported when a case is
  built, never before
"""
