"""What machines are made of: folds of an array, energy and area tables, checks of fields.

Imports errors and units alone. A new part is one file; a table carries the source of each row on its line.
"""
