"""What machines are made of: folds of an array, views and streams of masks, energy and area tables, checks of fields.

Imports ir, kernels (inside functions), units and errors. A new part is one file; a table carries the source of each row on its
line.
"""
