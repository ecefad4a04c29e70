"""A node's interconnect as a graph: `graph` has its places and wires, `builders` the papers' interconnects, `rings` (with
`ring_search`) derives the rings for collectives.
"""
