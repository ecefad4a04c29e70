"""Compiled loops of both gradients of a layer through one scratchpad: `scratchpad` moves tiles of one layer, `chain` those of two
layers in a row; `walk` does so on one core for many walks, which `timings` times in several ways, `simulation` for candidates of
`search`, whose sizes and bounds are in `menus`.
"""
