"""Collectives: their time and the bytes on every wire.

In reading order: `on_graph` is the entry, `fabric` the node with its rings and paths through switches; `ring_timing`, `switched`
and `double_tree` are the algorithms on it, `ring` the count of exchanges on one ring; `groups` has collectives between some of a
node's devices, `hierarchical` those between nodes.
"""
