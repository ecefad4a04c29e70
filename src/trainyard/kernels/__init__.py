"""Compiled loops, each with a plain-Python twin that a test holds it against.

Modules here import numba at the top, so callers import them inside the function that needs them.
Arrays of whole numbers in, arrays out; no global state. `cache=True` always, so that a second process does not compile.
A new loop is one module here, and its twin stands where the mechanism is explained.
"""
