"""On-chip memory levels between the scratchpad and an array: register files, local and shared buffers.

In reading order: `level` is the part that a machine's table lists; `stages` cuts a tile of the scratchpad into the tiles of each
level inside it and finds the fastest; `array` shows an array behind its levels as an array to the device.
A tile of the level outside is a product of its own for the level inside, so any number of levels is one rule, applied again.
"""
