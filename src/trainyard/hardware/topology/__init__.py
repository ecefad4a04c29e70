"""Nodes as graphs: `graph` has places and wires, `builders` the papers' interconnects, `rings` (with `ring_search`) the rings in
them."""
